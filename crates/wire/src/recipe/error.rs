//! What is wrong with a recipe, said so that its author finds the line.

use std::fmt;
use std::path::PathBuf;

/// Why a recipe is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RecipeError {
    /// It is not TOML, a key is missing, or a value is of another type.
    #[error("{}: {}{problem}", path.display(), place(line, key))]
    Syntax {
        /// The recipe's file.
        path: PathBuf,
        /// The line, if it is known.
        line: Option<usize>,
        /// The key, if it is known.
        key: Option<String>,
        /// The parser's words.
        problem: String,
    },
    /// Keys that no recipe has.
    #[error("{}: {}", path.display(), list(keys))]
    UnknownKeys {
        /// The recipe's file.
        path: PathBuf,
        /// All of them.
        keys: Vec<UnknownKey>,
    },
    /// A value that cannot work.
    #[error("{}: {}{problem}", path.display(), place(line, &Some(key.clone())))]
    Value {
        /// The recipe's file.
        path: PathBuf,
        /// The line, if the key is written.
        line: Option<usize>,
        /// The key, with its table.
        key: String,
        /// What is wrong with it, and what it should be.
        problem: String,
    },
    /// The recipe and the corpus do not fit.
    #[error("the recipe does not fit its corpus: {key} is {recipe}, but {corpus}")]
    Corpus {
        /// The recipe's key.
        key: &'static str,
        /// Its value.
        recipe: String,
        /// What the corpus has, and what to do.
        corpus: String,
    },
    /// The corpus cannot be trained on.
    #[error("{key}: {problem}")]
    Spec {
        /// The recipe's key.
        key: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
}

/// A key that no recipe has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// The key, with its table.
    pub key: String,
    /// Its line.
    pub line: Option<usize>,
    /// The nearest known key.
    pub near: Option<String>,
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

fn list(keys: &[UnknownKey]) -> String {
    let shown: Vec<String> = keys.iter().take(10).map(ToString::to_string).collect();
    shown.join("\n  ")
}

fn place(line: &Option<usize>, key: &Option<String>) -> String {
    let line = line
        .map(|line| format!("line {line}: "))
        .unwrap_or_default();
    let key = key
        .as_ref()
        .map(|key| format!("`{key}`: "))
        .unwrap_or_default();
    format!("{line}{key}")
}
