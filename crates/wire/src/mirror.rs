//! How a pure type gets a serialisable mirror: one declaration, both conversions.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use hansa_base::{
    Bytes, ContributionNo, Epoch, Generation, Hash, Incarnation, LeaseId, Position, ReplicaId,
    ReplicaKey, ReplicaName, SiteName, Steps, Timeline, Tokens, WallS, Windows,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// A value that has a form in JSON.
pub trait Wire: Sized {
    /// The mirror: plain data, unchecked.
    type Json: Serialize + DeserializeOwned;

    /// To the mirror.
    fn to_json(&self) -> Self::Json;

    /// From the mirror, checked: it may come from anywhere.
    ///
    /// # Errors
    /// The first value that cannot be, by its field.
    fn from_json(json: Self::Json) -> Result<Self, BadValue>;
}

/// A message or record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", if field.is_empty() { String::new() } else { format!("{field}: ") })]
pub struct BadValue {
    /// Where: `parts.spans`.
    pub field: String,
    /// What is wrong there.
    pub problem: String,
}

impl BadValue {
    /// A value that cannot be, at no field yet.
    #[must_use]
    pub fn new(problem: impl ToString) -> Self {
        // Part of a log line: what the network sent must not fill it.
        let problem = problem.to_string().chars().take(300).collect();
        let field = String::new();
        Self { field, problem }
    }

    /// The same within `field`.
    #[must_use]
    pub fn at(mut self, field: &str) -> Self {
        self.field = match self.field.as_str() {
            "" => field.to_owned(),
            inner => format!("{field}.{inner}"),
        };
        self
    }
}

/// JSON bytes of a value.
#[must_use]
pub fn encode<T: Wire>(value: &T) -> Vec<u8> {
    // The mirrors are structs of numbers, strings and lists, which cannot fail to serialise.
    serde_json::to_vec(&value.to_json()).unwrap_or_default()
}

/// Reads [`encode`]'s form; never panics, whatever the bytes.
///
/// # Errors
/// If it is not JSON, of another shape, or holds a value that cannot be.
pub fn decode<T: Wire>(bytes: &[u8]) -> Result<T, BadValue> {
    T::from_json(serde_json::from_slice(bytes).map_err(BadValue::new)?)
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            type Json = Self;
            fn to_json(&self) -> Self {
                self.clone()
            }
            fn from_json(json: Self) -> Result<Self, BadValue> {
                Ok(json)
            }
        }
    )*};
}
plain!(u32, u64, bool, String);

impl Wire for f64 {
    type Json = Self;
    // JSON has no other numbers: what is not finite becomes null, and null is refused below.
    fn to_json(&self) -> Self {
        *self
    }
    fn from_json(json: Self) -> Result<Self, BadValue> {
        Ok(json)
    }
}

macro_rules! newtypes {
    ($($type:ident($repr:ty)),*) => {$(
        impl Wire for $type {
            type Json = $repr;
            fn to_json(&self) -> $repr {
                self.0
            }
            fn from_json(json: $repr) -> Result<Self, BadValue> {
                Ok(Self(json))
            }
        }
    )*};
}
newtypes!(
    Bytes(u64),
    ContributionNo(u64),
    Epoch(u32),
    Generation(u64),
    Incarnation(u64),
    LeaseId(u64),
    Position(u64),
    ReplicaKey(u32),
    Steps(u64),
    Timeline(u64),
    Tokens(u64),
    WallS(u64),
    Windows(u64)
);

macro_rules! texts {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            type Json = String;
            fn to_json(&self) -> String {
                self.to_string()
            }
            fn from_json(json: String) -> Result<Self, BadValue> {
                json.parse().map_err(BadValue::new)
            }
        }
    )*};
}
texts!(Hash, ReplicaId, ReplicaName, SiteName);

macro_rules! lists {
    ($($list:ident<$item:ident $(: $order:ident)?>),*) => {$(
        impl<$item: Wire $(+ $order)?> Wire for $list<$item> {
            type Json = Vec<$item::Json>;
            fn to_json(&self) -> Self::Json {
                self.iter().map($item::to_json).collect()
            }
            fn from_json(json: Self::Json) -> Result<Self, BadValue> {
                json.into_iter().map($item::from_json).collect()
            }
        }
    )*};
}
lists!(Vec<T>, VecDeque<T>, BTreeSet<T: Ord>);

impl<T: Wire> Wire for Option<T> {
    type Json = Option<T::Json>;
    fn to_json(&self) -> Self::Json {
        self.as_ref().map(T::to_json)
    }
    fn from_json(json: Self::Json) -> Result<Self, BadValue> {
        json.map(T::from_json).transpose()
    }
}

macro_rules! tuples {
    ($(($($part:ident $index:tt),*))*) => {$(
        impl<$($part: Wire),*> Wire for ($($part,)*) {
            type Json = ($($part::Json,)*);
            fn to_json(&self) -> Self::Json {
                ($(self.$index.to_json(),)*)
            }
            fn from_json(json: Self::Json) -> Result<Self, BadValue> {
                Ok(($($part::from_json(json.$index)?,)*))
            }
        }
    )*};
}
tuples!((A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3, E 4));

/// A length of time; a plain number would not say its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurationJson {
    /// Microseconds.
    pub us: u64,
}

/// Ten years: longer than any time of the protocol, and far from overflow.
const DURATION_MAX_US: u64 = 10 * 366 * 86_400 * 1_000_000;

impl Wire for Duration {
    type Json = DurationJson;
    fn to_json(&self) -> DurationJson {
        let us = u64::try_from(self.as_micros()).unwrap_or(u64::MAX);
        DurationJson {
            us: us.min(DURATION_MAX_US),
        }
    }
    fn from_json(json: DurationJson) -> Result<Self, BadValue> {
        if json.us > DURATION_MAX_US {
            return Err(BadValue::new("a duration of more than ten years"));
        }
        Ok(Self::from_micros(json.us))
    }
}

/// Declares the mirror of a struct with public fields: same names, in this order. A field that is
/// derived from the others is left out, and made by a method of theirs. A field that came `later` is an
/// `Option`, and not written while it is `None`.
macro_rules! mirror_struct {
    ($json:ident = $type:ident { $($field:ident: $part:ty),* $(,)? }
        $(later { $($new:ident: $new_part:ty),* $(,)? })?
        $(derived $derived:ident by $derive:ident)?
        $(check $check:expr)?) => {
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
        #[allow(missing_docs)]
        #[doc = concat!("JSON form of `", stringify!($type), "`.")]
        pub struct $json {
            $(pub $field: <$part as $crate::Wire>::Json,)*
            $($(
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $new: Option<<$new_part as $crate::Wire>::Json>,
            )*)?
        }

        impl $crate::Wire for $type {
            type Json = $json;
            fn to_json(&self) -> $json {
                $json {
                    $($field: $crate::Wire::to_json(&self.$field),)*
                    $($($new: self.$new.as_ref().map($crate::Wire::to_json),)*)?
                }
            }
            fn from_json(json: $json) -> Result<Self, $crate::BadValue> {
                let value = $type {
                    $($field: <$part as $crate::Wire>::from_json(json.$field)
                        .map_err(|error| error.at(stringify!($field)))?,)*
                    $($($new: <Option<$new_part> as $crate::Wire>::from_json(json.$new)
                        .map_err(|error| error.at(stringify!($new)))?,)*)?
                    $($derived: Default::default(),)?
                };
                $(
                    let mut value = value;
                    value.$derive();
                )?
                $(
                    let check: fn(&$type) -> Result<(), &'static str> = $check;
                    check(&value).map_err($crate::BadValue::new)?;
                )?
                Ok(value)
            }
        }
    };
}

/// Declares the mirror of an enum: variants with fields, then with parts, then plain ones. In JSON a
/// variant is `{"variant": …}` or `"variant"`, in snake case.
macro_rules! mirror_enum {
    ($json:ident = $type:ident {
        $(struct $named:ident { $($field:ident: $part:ty),* $(,)? })*
        $(tuple $listed:ident($($item:ident: $kind:ty),*))*
        $(unit $plain:ident)*
    }) => {
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        // On its way to or from text only.
        #[allow(missing_docs, clippy::large_enum_variant)]
        #[doc = concat!("JSON form of `", stringify!($type), "`.")]
        pub enum $json {
            $($named { $($field: <$part as $crate::Wire>::Json),* },)*
            $($listed($(<$kind as $crate::Wire>::Json),*),)*
            $($plain,)*
        }

        impl $crate::Wire for $type {
            type Json = $json;
            fn to_json(&self) -> $json {
                match self {
                    $($type::$named { $($field),* } => $json::$named {
                        $($field: $crate::Wire::to_json($field)),*
                    },)*
                    $($type::$listed($($item),*) => $json::$listed(
                        $($crate::Wire::to_json($item)),*
                    ),)*
                    $($type::$plain => $json::$plain,)*
                }
            }
            fn from_json(json: $json) -> Result<Self, $crate::BadValue> {
                Ok(match json {
                    $($json::$named { $($field),* } => $type::$named {
                        $($field: <$part as $crate::Wire>::from_json($field)
                            .map_err(|error| error.at(stringify!($field)))?),*
                    },)*
                    $($json::$listed($($item),*) => $type::$listed(
                        $(<$kind as $crate::Wire>::from_json($item)
                            .map_err(|error| error.at(stringify!($item)))?),*
                    ),)*
                    $($json::$plain => $type::$plain,)*
                })
            }
        }
    };
}

pub(crate) use {mirror_enum, mirror_struct};
