//! Reading a snapshot strictly.

use hansa_planner::Snapshot;
use serde_json::Value;

use super::snapshot::{SnapshotJson, snapshot_from_json};
use crate::BadValue;
use crate::strict::{UnknownKey, UnknownKeys};

/// A snapshot that has every key there is.
pub(super) const EXAMPLE: &str = include_str!("example.json");

/// Why a snapshot is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SnapshotError {
    /// It is not JSON, a key is missing, or a value is of another type.
    #[error("{problem}")]
    Syntax {
        /// The parser's words, with line and column.
        problem: String,
    },
    /// Keys that no snapshot has; all of them.
    #[error("{0}")]
    UnknownKeys(UnknownKeys),
    /// A value that cannot be.
    #[error(transparent)]
    Value(#[from] BadValue),
    /// A value that no plan can be made from.
    #[error(transparent)]
    Invalid(#[from] hansa_planner::Invalid),
}

/// Reads and checks a snapshot.
///
/// # Errors
/// Text that is no JSON of this schema; keys that are unknown (all of them, each with the nearest
/// known one); values that cannot be.
pub fn parse_snapshot(text: &str) -> Result<Snapshot, SnapshotError> {
    // Serde would take a list for the object's values.
    if text.trim_start().starts_with('[') {
        let problem = "a list, where a snapshot is an object: `hansa plan snapshot` writes one";
        let problem = problem.to_owned();
        return Err(SnapshotError::Syntax { problem });
    }
    let mut unknown = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed: Result<SnapshotJson, _> = serde_ignored::deserialize(&mut deserializer, |path| {
        unknown.push(unknown_key(&path.to_string()));
    });
    // A misspelt key often leaves another missing: name the misspelt one.
    if !unknown.is_empty() {
        return Err(SnapshotError::UnknownKeys(UnknownKeys(unknown)));
    }
    let syntax = |error: serde_json::Error| SnapshotError::Syntax {
        problem: error.to_string(),
    };
    let json = parsed.map_err(syntax)?;
    deserializer.end().map_err(syntax)?;
    let snapshot = snapshot_from_json(json)?;
    snapshot.validate()?;
    Ok(snapshot)
}

fn unknown_key(path: &str) -> UnknownKey {
    // Steps into what may be left out are no part of a key.
    let parts: Vec<&str> = path.split('.').filter(|part| *part != "?").collect();
    let last = parts.last().copied().unwrap_or_default();
    let named = |part: &&&str| part.parse::<usize>().is_err();
    let parent = parts.iter().rev().skip(1).find(named).copied();
    let mut known = Vec::new();
    if let Ok(example) = serde_json::from_str(EXAMPLE) {
        collect("", &example, &mut known);
    }
    let distance = |(near_parent, key): &(String, String)| {
        let elsewhere = parent.is_some_and(|parent| parent != near_parent);
        (strsim::damerau_levenshtein(key, last), elsewhere)
    };
    let near = known.into_iter().min_by_key(distance);
    let near = near.filter(|near| distance(near).0 <= last.len() / 3 + 1);
    UnknownKey {
        key: parts.join("."),
        line: None,
        near: near.map(|(_, key)| key),
    }
}

/// Every key below `value` with the key that holds it.
fn collect(parent: &str, value: &Value, known: &mut Vec<(String, String)>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                known.push((parent.to_owned(), key.clone()));
                collect(key, value, known);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(parent, item, known)),
        _ => {}
    }
}
