//! One cell or value: read, absent in one of Slurm's ways, or kept as text.

/// What a cell says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Field<T> {
    /// The column or key was not printed.
    #[default]
    Absent,
    /// It was printed, and is empty.
    Empty,
    /// A value.
    Value(T),
    /// One of Slurm's words for "no value".
    Word(Word),
    /// Something else, verbatim. It is among the skipped pieces too.
    Odd(String),
}

impl<T> Field<T> {
    /// The value, if there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            _ => None,
        }
    }

    /// This field if it has a value, or else the other one unless that was not printed.
    pub(super) fn or_else(self, other: impl FnOnce() -> Self) -> Self {
        if self.value().is_some() {
            return self;
        }
        match other() {
            Self::Absent => self,
            other => other,
        }
    }

    /// Reads a cell; `read` sees neither blanks around it nor Slurm's words for "no value".
    pub(super) fn read(text: &str, read: impl FnOnce(&str) -> Option<T>) -> Self {
        let text = text.trim();
        if text.is_empty() {
            return Self::Empty;
        }
        if let Some(word) = Word::of(text) {
            return Self::Word(word);
        }
        read(text).map_or_else(|| Self::Odd(text.to_owned()), Self::Value)
    }
}

/// How Slurm says that there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// `Unknown`: not yet.
    Unknown,
    /// `None`, `NONE`, `None assigned`: never.
    None,
    /// `N/A`, `n/a`, `n/s`: not for this one.
    NotApplicable,
    /// `INVALID`: Slurm's own arithmetic failed.
    Invalid,
    /// `(null)`: not set.
    Null,
}

impl Word {
    /// The word as Slurm writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown",
            Self::None => "None",
            Self::NotApplicable => "N/A",
            Self::Invalid => "INVALID",
            Self::Null => "(null)",
        }
    }

    fn of(text: &str) -> Option<Self> {
        Some(match text {
            "Unknown" | "UNKNOWN" => Self::Unknown,
            "None" | "NONE" | "None assigned" => Self::None,
            "N/A" | "n/a" | "n/s" | "NOT_SET" => Self::NotApplicable,
            "INVALID" | "Invalid" => Self::Invalid,
            "(null)" => Self::Null,
            _ => return None,
        })
    }
}

/// An upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit<T> {
    /// This much.
    Of(T),
    /// `UNLIMITED`, `INFINITE`.
    Unlimited,
    /// `Partition_Limit`: as much as the partition allows.
    Partition,
}

impl<T> Limit<T> {
    pub(super) fn read(text: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<Self> {
        match text {
            "UNLIMITED" | "INFINITE" => Some(Self::Unlimited),
            "Partition_Limit" => Some(Self::Partition),
            _ => read(text).map(Self::Of),
        }
    }
}
