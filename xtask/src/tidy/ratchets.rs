//! Lengths that may only shrink.
//!
//! A file has at most 600 lines, a function 70. Longer ones that exist are listed in
//! `xtask/ratchets.toml` with their present length. Like a ratchet it turns one way: a listed one
//! may not grow, and when it shrinks its entry must follow, so that it cannot grow back.

use std::collections::BTreeMap;

use super::Violation;
use super::repo::Repo;

const FILE: &str = "xtask/ratchets.toml";
const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
/// Endings of the files that people write by hand and have to read.
const CODE: &[&str] = &[".rs", ".py", ".sh", ".js"];

/// Files and functions are short, or listed with their length.
pub fn lengths(repo: &Repo) -> Vec<Violation> {
    let listed: toml::Table = match toml::from_str(repo.text(FILE).unwrap_or_default()) {
        Ok(table) => table,
        Err(error) => return vec![Violation::of(FILE, format!("does not parse: {error}"))],
    };
    let mut violations = Vec::new();
    let unknown = listed
        .keys()
        .filter(|key| !["files", "functions"].contains(&key.as_str()));
    violations.extend(unknown.map(|key| {
        Violation::of(
            FILE,
            format!("unknown table [{key}]: known are [files] and [functions]"),
        )
    }));
    let files = Ratchet {
        kind: "file",
        table: "files",
        limit: FILE_LINES_MAX,
    };
    violations.extend(files.check(&listed, &file_lengths(repo)));
    let functions = Ratchet {
        kind: "function",
        table: "functions",
        limit: FUNCTION_LINES_MAX,
    };
    violations.extend(functions.check(&listed, &function_lengths(repo)));
    violations
}

/// A length and the line where it starts.
type Lengths = BTreeMap<String, (usize, usize)>;

fn file_lengths(repo: &Repo) -> Lengths {
    let code = repo
        .texts()
        .filter(|(path, _)| CODE.iter().any(|ending| path.ends_with(ending)));
    code.map(|(path, text)| (path.to_owned(), (text.lines().count(), 1)))
        .collect()
}

/// Keys are `path::name`; of functions with the same name (behind `cfg`) the longest counts.
fn function_lengths(repo: &Repo) -> Lengths {
    let mut lengths = Lengths::new();
    for source in repo.sources() {
        for function in &source.functions {
            let key = format!("{}::{}", source.path, function.name);
            let longest = lengths.entry(key).or_default();
            *longest = (*longest).max((function.line_count, function.line));
        }
    }
    lengths
}

struct Ratchet {
    kind: &'static str,
    table: &'static str,
    limit: usize,
}

impl Ratchet {
    fn check(&self, listed: &toml::Table, lengths: &Lengths) -> Vec<Violation> {
        let empty = toml::Table::new();
        let entries = listed
            .get(self.table)
            .and_then(toml::Value::as_table)
            .unwrap_or(&empty);
        let measured = lengths.iter().filter_map(|(key, (length, line))| {
            let allowed = match entries.get(key).and_then(toml::Value::as_integer) {
                Some(allowed) => usize::try_from(allowed).unwrap_or(0),
                None => self.limit,
            };
            let file = key.split("::").next().unwrap_or(key);
            (*length > allowed).then(|| Violation::at(file, *line, self.too_long(*length, allowed)))
        });
        let stale = entries.iter().filter_map(|(key, allowed)| {
            let length = lengths.get(key).map(|(length, _)| *length);
            Some(Violation::of(
                FILE,
                self.stale(key, length, allowed.as_integer())?,
            ))
        });
        measured.chain(stale).collect()
    }

    fn too_long(&self, length: usize, allowed: usize) -> String {
        let kind = self.kind;
        if allowed == self.limit {
            format!("this {kind} has {length} lines, the limit is {allowed}: split it")
        } else {
            format!(
                "this {kind} has grown from {allowed} to {length} lines: split it, do not grow it"
            )
        }
    }

    fn stale(&self, key: &str, length: Option<usize>, allowed: Option<i64>) -> Option<String> {
        let Some(allowed) = allowed.and_then(|allowed| usize::try_from(allowed).ok()) else {
            return Some(format!("`{key}` must be a number of lines"));
        };
        match length {
            None => Some(format!("`{key}` is gone: remove its entry")),
            Some(length) if length <= self.limit => Some(format!(
                "`{key}` has {length} lines, within the limit: remove its entry"
            )),
            Some(length) if length < allowed => Some(format!(
                "`{key}` has shrunk to {length} lines: lower its entry to that"
            )),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    fn lines(count: usize) -> String {
        "//\n".repeat(count)
    }

    /// A method of `count` lines, from `fn` to its brace.
    fn method(count: usize) -> String {
        format!("impl Lease {{\nfn grow() {{\n{}}}\n}}\n", lines(count - 2))
    }

    #[test]
    fn long_files_and_functions_are_found() {
        let (short, long) = (lines(600), lines(601));
        let expected = ["b.rs:1: this file has 601 lines, the limit is 600"];
        check(lengths, &[("a.rs", &short), ("b.rs", &long)], &expected);

        let (short, long) = (method(70), method(71));
        let expected = ["b.rs:2: this function has 71 lines, the limit is 70"];
        check(lengths, &[("a.rs", &short), ("b.rs", &long)], &expected);
    }

    #[test]
    fn a_listed_one_may_stay_but_not_grow() {
        let listed = (
            FILE,
            "[functions]\n\"a.rs::Lease::grow\" = 80\n[files]\n\"b.py\" = 700",
        );
        let (method_80, lines_700) = (method(80), lines(700));
        check(
            lengths,
            &[listed, ("a.rs", &method_80), ("b.py", &lines_700)],
            &[],
        );

        let (method_81, lines_701) = (method(81), lines(701));
        let expected = [
            "function has grown from 80 to 81",
            "file has grown from 700 to 701",
        ];
        check(
            lengths,
            &[listed, ("a.rs", &method_81), ("b.py", &lines_701)],
            &expected,
        );
    }

    #[test]
    fn an_entry_follows_what_it_lists_down_and_away() {
        let listed = (
            FILE,
            "[files]\n\"a.rs\" = 700\n\"b.rs\" = 700\n\"c.rs\" = 700",
        );
        let (shrunk, short) = (lines(650), lines(10));
        let expected = [
            "`a.rs` has shrunk to 650",
            "`b.rs` has 10 lines",
            "`c.rs` is gone",
        ];
        check(
            lengths,
            &[listed, ("a.rs", &shrunk), ("b.rs", &short)],
            &expected,
        );
    }

    #[test]
    fn a_list_that_cannot_be_understood_is_refused() {
        check(lengths, &[(FILE, "[file]\n")], &["unknown table [file]"]);
        check(lengths, &[(FILE, "[files")], &["does not parse"]);
        check(
            lengths,
            &[(FILE, "[files]\n\"a.rs\" = \"long\"")],
            &["must be a number of lines"],
        );
    }
}
