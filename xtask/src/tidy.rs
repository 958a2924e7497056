//! The rules of this code base that no compiler checks.
//!
//! Each rule is a function from the repository's files to violations, in a module of its own, with
//! tests that show a violation being caught. A violation says where it is and what to do about it.
//! Rules look at text and syntax only: they build nothing and change nothing, so that all of them
//! together take a second.

mod edges;
mod manifests;
mod purity;
mod ratchets;
mod repo;
mod rust;
mod source;
mod text;

use std::fmt;

use anyhow::bail;
use xshell::Shell;

use repo::Repo;

/// One place that breaks one rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    file: String,
    /// Counted from 1; absent when the whole file is meant.
    line: Option<usize>,
    message: String,
}

impl Violation {
    fn at(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line: Some(line),
            message: message.into(),
        }
    }

    fn of(file: &str, message: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line: None,
            message: message.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.message),
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

type Rule = fn(&Repo) -> Vec<Violation>;

const RULES: &[Rule] = &[
    edges::order_of_crates,
    manifests::each_crate_says_what_it_is_for,
    manifests::lints_and_versions_come_from_the_workspace,
    purity::dependencies_of_pure_crates,
    purity::effects_in_pure_crates,
    ratchets::lengths,
    source::modules_open_with_why,
    source::no_loose_ends,
    source::rust_parses,
    text::no_paths_of_one_machine,
    text::links_resolve,
];

/// Checks every rule; prints every violation.
///
/// # Errors
/// When there is a violation, or the files cannot be read.
pub fn run(sh: &Shell) -> anyhow::Result<()> {
    let repo = Repo::read(sh)?;
    let mut violations: Vec<Violation> = RULES.iter().flat_map(|rule| rule(&repo)).collect();
    violations.sort();
    for violation in &violations {
        println!("{violation}");
    }
    if !violations.is_empty() {
        bail!("tidy: {} violation(s), listed above", violations.len());
    }
    println!(
        "tidy: {} files keep {} rules",
        repo.file_count(),
        RULES.len()
    );
    Ok(())
}

/// Runs one rule on a made-up repository and compares what it says, as text.
#[cfg(test)]
fn check(rule: Rule, files: &[(&str, &str)], expected: &[&str]) {
    let mut violations = rule(&Repo::of(files));
    violations.sort();
    let found: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), expected.len(), "found {found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            found.contains(expected),
            "{found:?} does not contain {expected:?}"
        );
    }
}
