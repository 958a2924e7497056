//! What is wrong with a profile, said so that its author finds the line.

use std::path::PathBuf;

use hansa_wire::recipe::UnknownKey;

/// Why a profile is refused.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("read the profile {}: {source}; `hansa site new` writes one", path.display())]
    Read {
        /// The profile's file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It is not TOML, a key is missing, or a value is of another type.
    #[error("{}: {}{problem}", path.display(), place(*line, key.as_deref()))]
    Syntax {
        /// The profile's file.
        path: PathBuf,
        /// The line, if it is known.
        line: Option<usize>,
        /// The key, if it is known.
        key: Option<String>,
        /// The parser's words.
        problem: String,
    },
    /// Keys that no profile has.
    #[error("{}: {}", path.display(), list(keys))]
    UnknownKeys {
        /// The profile's file.
        path: PathBuf,
        /// All of them.
        keys: Vec<UnknownKey>,
    },
    /// A value that cannot work.
    #[error("{}: {}{problem}", path.display(), place(*line, Some(key)))]
    Value {
        /// The profile's file.
        path: PathBuf,
        /// The line, if the key is written.
        line: Option<usize>,
        /// The key, with its table.
        key: String,
        /// What is wrong with it, and what it should be.
        problem: String,
    },
}

fn list(keys: &[UnknownKey]) -> String {
    let shown: Vec<String> = keys.iter().take(10).map(ToString::to_string).collect();
    shown.join("\n  ")
}

fn place(line: Option<usize>, key: Option<&str>) -> String {
    let line = line.map(|line| format!("line {line}: "));
    let key = key.map(|key| format!("`{key}`: "));
    line.unwrap_or_default() + &key.unwrap_or_default()
}
