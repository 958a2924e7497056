//! What a Rust file says first, and what it may not leave behind.

use super::Violation;
use super::repo::Repo;

/// Macros that mark unfinished work.
const UNFINISHED: &[&str] = &["todo", "unimplemented", "dbg"];

/// Files that do not parse escape all other rules, so they are violations themselves.
pub fn rust_parses(repo: &Repo) -> Vec<Violation> {
    let broken = repo.sources().iter().filter_map(|source| {
        let (line, error) = source.error.as_ref()?;
        Some(Violation::at(
            &source.path,
            *line,
            format!("does not parse: {error}"),
        ))
    });
    broken.collect()
}

/// Each module opens with a `//!` comment.
pub fn modules_open_with_why(repo: &Repo) -> Vec<Violation> {
    let bare = repo
        .sources()
        .iter()
        .filter(|source| !source.opens_with_docs);
    bare.map(|source| {
        let message = "open it with `//!`: why it exists, and what it never does";
        Violation::at(&source.path, 1, message)
    })
    .collect()
}

/// No unfinished work, no test that is switched off, no dead code kept for later.
pub fn no_loose_ends(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in repo.sources() {
        for call in &source.macros {
            if UNFINISHED.contains(&call.path.as_str()) {
                let message = format!("`{}!` is unfinished work: finish or remove it", call.path);
                violations.push(Violation::at(&source.path, call.line, message));
            }
        }
        for (line, words) in &source.attributes {
            if let Some(message) = complaint(&source.path, words) {
                violations.push(Violation::at(&source.path, *line, message));
            }
        }
    }
    violations
}

/// Cargo builds what test targets share once for each of them, and each uses only a part.
const SHARED_BY_TESTS: &str = "/tests/common/";

fn complaint(path: &str, attribute: &[String]) -> Option<&'static str> {
    let (name, words) = attribute.split_first()?;
    let conditional = name == "cfg_attr";
    let has = |word: &str| words.iter().any(|other| other == word);
    if name == "ignore" || (conditional && has("ignore")) {
        return Some("an ignored test protects nothing: make it run everywhere, or remove it");
    }
    let allows = name == "allow" || name == "expect" || conditional;
    if allows && has("dead_code") && !path.contains(SHARED_BY_TESTS) {
        return Some("code that nothing uses: remove it; git remembers it");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn a_file_says_first_what_it_is_for() {
        let files = [
            ("crates/a/src/lib.rs", "//! For the letter a.\nfn f() {}"),
            ("crates/a/src/b.rs", "use std::fs;\n"),
            ("crates/a/tests/c.rs", "#![allow(x)]\n//! Too late.\n"),
        ];
        check(
            modules_open_with_why,
            &files,
            &["src/b.rs:1: open it", "tests/c.rs:1: open it"],
        );
    }

    #[test]
    fn unfinished_work_is_found_even_inside_macros() {
        let code = "fn f() { todo!() }\nfn g() { vec![1, dbg!(2)] }\nfn h() { unimplemented!() }";
        let expected = [
            "a.rs:1: `todo!`",
            "a.rs:2: `dbg!`",
            "a.rs:3: `unimplemented!`",
        ];
        check(no_loose_ends, &[("a.rs", code)], &expected);
        check(
            no_loose_ends,
            &[("a.rs", "fn f(todo: u8) { g!(todo != 1) } // dbg!(f)")],
            &[],
        );
    }

    #[test]
    fn switched_off_tests_and_dead_code_are_found() {
        let code = "#[test]\n#[ignore = \"slow\"]\nfn f() {}\n#[cfg_attr(unix, ignore)]\nfn g() {}";
        check(
            no_loose_ends,
            &[("a.rs", code)],
            &["a.rs:2: an ignored", "a.rs:4: an ignored"],
        );
        check(
            no_loose_ends,
            &[("a.rs", "#![allow(unused, dead_code)]")],
            &["a.rs:1: code that"],
        );
        check(
            no_loose_ends,
            &[("a.rs", "#[expect(dead_code)]\nfn f() {}")],
            &["nothing uses"],
        );
        check(
            no_loose_ends,
            &[("a.rs", "#[must_use]\nfn ignore() {}")],
            &[],
        );
    }

    #[test]
    fn a_file_that_does_not_parse_is_named() {
        check(
            rust_parses,
            &[("a.rs", "fn f() {\n    let = 1;\n}")],
            &["a.rs:2: does not parse"],
        );
    }
}
