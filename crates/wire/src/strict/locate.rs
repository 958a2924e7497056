//! From keys to lines and back, cheaply: for messages only, so a miss costs a line number.

use super::UnknownKey;

/// What a file's author may have meant by an unknown key (`table.key` or `key`), out of those `known`.
pub(super) fn unknown_key(text: &str, key: &str, known: &[String]) -> UnknownKey {
    let key = without_indices(key);
    let distance = |candidate: &&String| {
        let whole = strsim::damerau_levenshtein(candidate, &key);
        // The right name in the wrong table is near, too.
        let name = strsim::damerau_levenshtein(last_part(candidate), last_part(&key));
        (name.min(whole), whole)
    };
    let near = known.iter().min_by_key(distance);
    let near = near.filter(|candidate| distance(candidate).0 <= last_part(&key).len() / 3 + 1);
    UnknownKey {
        line: line_of(text, &key),
        near: near.cloned(),
        key,
    }
}

/// Every key of a TOML table, as `table.key` or `key`; of tables in an array those of the first.
#[must_use]
pub fn keys_of(table: &toml::Table) -> Vec<String> {
    let mut keys = Vec::new();
    for (name, value) in table {
        keys.push(name.clone());
        let members = match value {
            toml::Value::Table(members) => Some(members),
            toml::Value::Array(rows) => rows.first().and_then(toml::Value::as_table),
            _ => None,
        };
        keys.extend(
            members
                .into_iter()
                .flat_map(|members| members.keys().map(|key| format!("{name}.{key}"))),
        );
    }
    keys
}

/// `shape.0.nodes` without the number of the table in its array.
fn without_indices(key: &str) -> String {
    let number = |part: &&str| part.parse::<u32>().is_err();
    let parts: Vec<&str> = key.split('.').filter(number).collect();
    parts.join(".")
}

fn last_part(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// The line (from 1) on which a key is written, given as `table.key` or `key`.
pub(super) fn line_of(text: &str, key: &str) -> Option<usize> {
    let mut table = String::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(name) = table_of(line) {
            table = name;
            if table == key {
                return Some(index + 1);
            }
        } else if key_of(line).is_some_and(|found| join(&table, &found) == key) {
            return Some(index + 1);
        }
    }
    None
}

/// The line (from 1) of a byte offset, and the key written there.
pub(super) fn place_of(text: &str, offset: usize) -> (usize, Option<String>) {
    let mut table = String::new();
    let (mut start, mut number, mut key) = (0, 0, None);
    for line in text.split_inclusive('\n') {
        number += 1;
        if let Some(name) = table_of(line) {
            table = name.clone();
            key = Some(name);
        } else if let Some(found) = key_of(line) {
            key = Some(join(&table, &found));
        }
        start += line.len();
        if offset < start {
            break;
        }
    }
    (number.max(1), key)
}

fn join(table: &str, key: &str) -> String {
    if table.is_empty() {
        key.to_owned()
    } else {
        format!("{table}.{key}")
    }
}

fn table_of(line: &str) -> Option<String> {
    let inner = line.trim().strip_prefix('[')?;
    // `[[table]]` is one of an array's.
    let inner = inner.strip_prefix('[').unwrap_or(inner);
    Some(inner.split(']').next()?.trim().to_owned())
}

fn key_of(line: &str) -> Option<String> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let (key, _) = line.split_once('=')?;
    Some(key.trim().trim_matches('"').to_owned())
}
