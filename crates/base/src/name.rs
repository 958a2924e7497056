//! Names of sites and replicas: they become file names, URL parts and table cells, so the alphabet
//! is small.

use std::fmt;
use std::str::FromStr;

const LENGTH_MAX: usize = 48;

/// Why a text is no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be a name: use 1 to 48 letters, digits, '-', '_' or '.', starting with a letter \
     or digit"
)]
pub struct NameError(pub String);

fn check(text: &str) -> Result<(), NameError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && text.len() <= LENGTH_MAX && text.chars().all(plain) {
        return Ok(());
    }
    Err(NameError(text.chars().take(60).collect()))
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                check(text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name!(
    /// A facility's name.
    SiteName
);
name!(
    /// A replica's name at its site.
    ReplicaName
);

/// A replica's full name, `site/replica`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    /// The facility.
    pub site: SiteName,
    /// The replica at it.
    pub replica: ReplicaName,
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.site, self.replica))
    }
}

impl FromStr for ReplicaId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (site, replica) = text.split_once('/').ok_or_else(|| NameError(text.into()))?;
        Ok(Self {
            site: site.parse()?,
            replica: replica.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_their_folder_are_refused() {
        for good in ["lumi", "r0", "Snellius-gpu_h100.2"] {
            assert!(good.parse::<SiteName>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "-x", "é", "a b", &"x".repeat(49)] {
            assert!(bad.parse::<SiteName>().is_err(), "{bad}");
        }
    }
}
