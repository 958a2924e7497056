//! From keys to lines and back, cheaply: for messages only, so a miss costs a line number.

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
