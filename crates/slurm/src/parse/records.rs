//! Records of `scontrol show`: `Key=Value` words, on one line or over several.

use super::field::Field;
use super::text::{Line, Skipped, Why, is_command_error};

/// One record.
pub(super) struct Record {
    /// Its first line, counted from 1.
    pub line: usize,
    /// Keys and values as printed, in that order.
    pub pairs: Vec<(String, String)>,
}

/// Reads records, each opened by the key `opening`.
///
/// A word without `=` belongs to the value before it (`OS=Linux 6.18`). The output's last word is
/// dropped if no line end follows: it may be cut.
pub(super) fn read(lines: &[Line], opening: &'static str) -> (Vec<Record>, Vec<Skipped>) {
    let mut records: Vec<Record> = Vec::new();
    let mut skipped = Vec::new();
    for line in lines {
        if is_command_error(&line.text) {
            skipped.push(line.skipped(Why::CommandError));
            continue;
        }
        if line.is_blank() {
            continue;
        }
        let text = line.text.trim();
        let absent = text.ends_with(" not found") || text.starts_with("No reservations");
        if absent {
            skipped.push(line.skipped(Why::NotFound));
            continue;
        }
        let mut words: Vec<&str> = text.split_whitespace().collect();
        if words.first().is_none_or(|word| pair(word).is_none()) {
            skipped.push(line.skipped(Why::Noise));
            continue;
        }
        if !line.ended && !line.text.ends_with(char::is_whitespace) {
            let last = words.pop().unwrap_or_default();
            skipped.push(Skipped::new(line.number, last, Why::Cut));
        }
        take(&words, line, opening, &mut records, &mut skipped);
    }
    (records, skipped)
}

fn take(
    words: &[&str],
    line: &Line,
    opening: &'static str,
    records: &mut Vec<Record>,
    skipped: &mut Vec<Skipped>,
) {
    let mut orphans = false;
    let mut in_record = !records.is_empty();
    for word in words {
        match pair(word) {
            Some((key, value)) => {
                if key == opening {
                    let (line, pairs) = (line.number, Vec::new());
                    records.push(Record { line, pairs });
                    in_record = true;
                }
                match records.last_mut().filter(|_| in_record) {
                    Some(record) => record.pairs.push((key.to_owned(), value.to_owned())),
                    None => orphans = true,
                }
            }
            None => {
                let last = records
                    .last_mut()
                    .and_then(|record| record.pairs.last_mut());
                if let Some((_, value)) = last.filter(|_| in_record) {
                    value.push(' ');
                    value.push_str(word);
                }
            }
        }
    }
    if orphans {
        skipped.push(line.skipped(Why::NoRecord { key: opening }));
    }
}

fn pair(word: &str) -> Option<(&str, &str)> {
    let (key, value) = word.split_once('=')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "_/:.-[]".contains(c);
    let named = key.starts_with(|c: char| c.is_ascii_alphabetic()) && key.chars().all(plain);
    named.then_some((key, value))
}

impl Record {
    /// The first value of a key, as printed.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find_map(|(known, value)| (known == key).then_some(value.as_str()))
    }

    /// The value of a key, read; what is odd is noted.
    pub fn get<T>(
        &self,
        key: &str,
        skipped: &mut Vec<Skipped>,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Field<T> {
        let Some(text) = self.text(key) else {
            return Field::Absent;
        };
        let field = Field::read(text, read);
        if let Field::Odd(text) = &field {
            let column = key.to_owned();
            skipped.push(Skipped::new(self.line, text, Why::OddCell { column }));
        }
        field
    }

    /// The value of a key split at commas; empty without one.
    pub fn list(&self, key: &str) -> Vec<String> {
        match Field::read(self.text(key).unwrap_or_default(), |text| {
            Some(text.to_owned())
        }) {
            Field::Value(text) => text.split(',').map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }
}
