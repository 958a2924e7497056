//! What pure crates never do.
//!
//! A pure crate is a function of its arguments: same state, same time, same seed, same command,
//! same answer. That is what lets the simulator replay a failure from a seed. So it touches no
//! clock, file, socket, thread, environment or source of randomness, nor any collection that
//! iterates in a random order. Its tests, examples and benchmarks may.

use super::Violation;
use super::repo::{Kind, Repo};

/// The pure crates and what each may link besides one another. Everything else is refused: a list
/// of what is forbidden would never be complete. `base` and `protocol` have no `serde` on purpose,
/// since the types of the core are not what travels or is stored; `wire` mirrors them.
const PURE: &[(&str, &[&str])] = &[
    ("base", &["thiserror"]),
    ("protocol", &["blake3", "thiserror"]),
    (
        "outer",
        &[
            "blake3",
            "bytemuck",
            "half",
            "pulp",
            "serde",
            "serde_json",
            "thiserror",
        ],
    ),
    ("planner", &["thiserror"]),
    ("queue", &["thiserror"]),
    ("backfill", &[]),
];

/// Paths that reach outside, with what to do instead.
const EFFECTS: &[(&str, &str)] = &[
    ("std::time::Instant", "take the time as an argument"),
    ("std::time::SystemTime", "take the time as an argument"),
    ("std::fs", "take bytes, and let the caller read them"),
    (
        "std::net",
        "return what to send, and let the caller send it",
    ),
    ("std::thread", "let the caller run things in parallel"),
    (
        "std::process",
        "return what to do, and let the caller do it",
    ),
    ("std::env", "take the setting as an argument"),
    ("std::io::stdin", "take the input as an argument"),
    (
        "std::io::stdout",
        "return the text, and let the caller print it",
    ),
    (
        "std::io::stderr",
        "return the text, and let the caller print it",
    ),
    (
        "std::collections::HashMap",
        "its order is random: use BTreeMap",
    ),
    (
        "std::collections::HashSet",
        "its order is random: use BTreeSet",
    ),
    (
        "std::collections::hash_map",
        "its order is random: use BTreeMap",
    ),
    ("std::hash::RandomState", "take the seed as an argument"),
    ("rand", "take the seed as an argument"),
    ("getrandom", "take the seed as an argument"),
    ("tokio", "return what to do, and let the caller do it"),
    ("rayon", "let the caller run things in parallel"),
];

const PRINTING: &[&str] = &["print", "println", "eprint", "eprintln"];

/// Pure crates link nothing that could reach outside.
pub fn dependencies_of_pure_crates(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (name, allowed) in PURE {
        let dir = format!("crates/{name}");
        let Some(package) = repo.packages().iter().find(|package| package.dir == dir) else {
            continue;
        };
        let refused = package.dependencies.iter().filter(|dependency| {
            let pure = PURE
                .iter()
                .any(|(name, _)| dependency.name == format!("hansa-{name}"));
            dependency.kind != Kind::Dev && !pure && !allowed.contains(&dependency.name.as_str())
        });
        violations.extend(refused.map(|dependency| {
            let message = format!(
                "pure crate `{name}` links `{}`: do that part in a crate around it, or, if the \
                 library has no clock, files, sockets, threads or randomness, allow it in \
                 xtask/src/tidy/purity.rs",
                dependency.name
            );
            Violation::of(&package.manifest_path(), message)
        }));
    }
    violations
}

/// Pure crates name nothing that reaches outside.
pub fn effects_in_pure_crates(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in repo.sources() {
        let Some((name, _)) = PURE
            .iter()
            .find(|(name, _)| source.path.starts_with(&format!("crates/{name}/")))
        else {
            continue;
        };
        for used in source.paths.iter().filter(|used| !used.in_test) {
            if let Some((effect, instead)) = effect_of(&used.path) {
                let message = format!("pure crate `{name}` uses `{effect}`: {instead}");
                violations.push(Violation::at(&source.path, used.line, message));
            }
        }
        for call in source.macros.iter().filter(|call| !call.in_test) {
            if PRINTING.contains(&call.path.as_str()) {
                let message = format!(
                    "pure crate `{name}` prints: return the text, and let the caller print it"
                );
                violations.push(Violation::at(&source.path, call.line, message));
            }
        }
    }
    violations
}

fn effect_of(path: &str) -> Option<&'static (&'static str, &'static str)> {
    let starts_with = |path: &str, prefix: &str| {
        path.strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    EFFECTS.iter().find(|(effect, _)| {
        let hidden_by_glob = path
            .strip_suffix("::*")
            .is_some_and(|module| starts_with(effect, module));
        starts_with(path, effect) || hidden_by_glob
    })
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    fn check_code(code: &str, expected: &[&str]) {
        check(
            effects_in_pure_crates,
            &[("crates/protocol/src/lib.rs", code)],
            expected,
        );
    }

    #[test]
    fn clocks_are_found_however_they_are_named() {
        check_code(
            "fn f() { std::time::Instant::now(); }",
            &["lib.rs:1: pure crate `protocol`"],
        );
        check_code(
            "use std::time::{Duration, SystemTime};",
            &["uses `std::time::SystemTime`"],
        );
        check_code(
            "use std::time as t;\nfn f() { t::Instant::now(); }",
            &["lib.rs:2: "],
        );
        check_code("use std::time::*;", &["uses `std::time::Instant`"]);
        check_code(
            "fn f() { assert!(g(std::time::Instant::now())); }",
            &["take the time as an"],
        );
        check_code(
            "fn f() { m!(at: std::time::Instant) }",
            &["take the time as an"],
        );
        check_code("use std::time::Duration;\nfn f(d: Duration) {}", &[]);
    }

    #[test]
    fn files_sockets_threads_and_chance_are_found() {
        check_code(
            "use std::{fs, net::TcpStream};",
            &["`std::fs`", "`std::net`"],
        );
        check_code("fn f() { std::thread::spawn(g); }", &["`std::thread`"]);
        check_code(
            "fn f(m: std::collections::HashMap<u8, u8>) {}",
            &["use BTreeMap"],
        );
        check_code("fn f() -> u8 { rand::random() }", &["take the seed"]);
        check_code(
            "fn f() { println!(\"{}\", 1); }",
            &["prints: return the text"],
        );
    }

    #[test]
    fn words_in_comments_strings_and_variables_are_not_effects() {
        check_code(
            "//! Never std::fs.\nfn f(rand: u8) -> &str { g(rand); \"std::fs\" }",
            &[],
        );
    }

    #[test]
    fn tests_and_other_crates_may_have_effects() {
        check_code("#[cfg(test)]\nmod tests { use std::fs; }", &[]);
        let effect = "use std::fs;";
        let files = [
            ("crates/protocol/tests/a.rs", effect),
            ("crates/store/src/lib.rs", effect),
        ];
        check(effects_in_pure_crates, &files, &[]);
    }

    #[test]
    fn only_known_libraries_are_linked() {
        let manifest = "[package]\nname = \"hansa-base\"\n[dependencies]\nserde.workspace = true\n
                        thiserror.workspace = true\n[dev-dependencies]\nproptest = \"1\"";
        let files = [("crates/base/Cargo.toml", manifest)];
        check(
            dependencies_of_pure_crates,
            &files,
            &["pure crate `base` links `serde`"],
        );
    }
}
