//! Reading what people write: a key that nobody knows is an error that names the near one.
//!
//! ```text
//!   text ──► unknown keys? all of them, each with its line and the nearest known key
//!        └─► a key missing, a value of another type? the line and the key
//! ```
//!
//! Every file of ours is read with this, so that all of them are refused in the same words. Never here: what
//! a key means.

mod locate;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

pub use locate::keys_of;
use locate::{line_of, place_of, unknown_key};

/// Keys that are listed; the rest goes without saying.
const LISTED_MAX: usize = 10;

/// Why a file is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FileError {
    /// It is not TOML, a key is missing, or a value is of another type.
    #[error("{}: {}{problem}", path.display(), place(*line, key.as_deref()))]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, if it is known.
        line: Option<usize>,
        /// The key, if it is known.
        key: Option<String>,
        /// The parser's words.
        problem: String,
    },
    /// Keys that no such file has.
    #[error("{}: {keys}", path.display())]
    UnknownKeys {
        /// The file.
        path: PathBuf,
        /// All of them.
        keys: UnknownKeys,
    },
    /// A value that cannot work.
    #[error("{}: {}{problem}", path.display(), place(*line, Some(key)))]
    Value {
        /// The file.
        path: PathBuf,
        /// The line, if the key is written.
        line: Option<usize>,
        /// The key, with its table.
        key: String,
        /// What is wrong with it, and what it should be.
        problem: String,
    },
}

/// A key that nobody knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// The key, with what holds it.
    pub key: String,
    /// Its line, if it is known.
    pub line: Option<usize>,
    /// The nearest known key.
    pub near: Option<String>,
}

/// Several of them, one a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKeys(pub Vec<UnknownKey>);

impl FileError {
    /// A value that was read well and cannot work; `key` is `table.key` or `key`.
    #[must_use]
    pub fn value(text: &str, path: &Path, key: String, problem: String) -> Self {
        let line = line_of(text, &key);
        let path = path.to_owned();
        Self::Value {
            path,
            line,
            key,
            problem,
        }
    }
}

impl fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        write!(f, "unknown key `{}`", self.key)?;
        match &self.near {
            Some(near) => write!(f, "; did you mean `{near}`?"),
            None => write!(f, "; remove it"),
        }
    }
}

impl fmt::Display for UnknownKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, key) in self.0.iter().take(LISTED_MAX).enumerate() {
            let between = if index == 0 { "" } else { "\n  " };
            write!(f, "{between}{key}")?;
        }
        Ok(())
    }
}

fn place(line: Option<usize>, key: Option<&str>) -> String {
    let line = line.map(|line| format!("line {line}: "));
    let key = key.map(|key| format!("`{key}`: "));
    line.unwrap_or_default() + &key.unwrap_or_default()
}

/// Reads a TOML file's text; `path` is only named in messages, `known` says every key there is
/// ([`keys_of`]).
///
/// # Errors
/// Text that is no TOML; keys that are unknown or missing; values of another type.
pub fn read_toml<T: DeserializeOwned>(
    text: &str,
    path: &Path,
    known: impl FnOnce() -> Vec<String>,
) -> Result<T, FileError> {
    let syntax = |error: toml::de::Error| {
        let place = error.span().map(|span| place_of(text, span.start));
        let (line, key) = place.unzip();
        FileError::Syntax {
            path: path.to_owned(),
            line,
            key: key.flatten(),
            problem: error.message().trim().to_owned(),
        }
    };
    let mut unknown = Vec::new();
    let deserializer = toml::Deserializer::parse(text).map_err(syntax)?;
    let parsed: Result<T, _> = serde_ignored::deserialize(deserializer, |key| {
        unknown.push(key.to_string());
    });
    // A misspelt key often leaves another missing: name the misspelt one.
    if !unknown.is_empty() {
        let known = known();
        let keys = unknown.iter().map(|key| unknown_key(text, key, &known));
        return Err(FileError::UnknownKeys {
            path: path.to_owned(),
            keys: UnknownKeys(keys.collect()),
        });
    }
    parsed.map_err(syntax)
}
