//! Which crate may know which.
//!
//! The order below is the architecture in one line: a crate depends only on crates before it. The
//! compiler forbids cycles; it does not forbid a store that knows the coordinator.

use super::Violation;
use super::repo::{Dependency, Kind, Package, Repo};

/// Crates by folder name under `crates/`, the one that knows nothing first.
const ORDER: &[&str] = &[
    "base",
    "protocol",
    "outer",
    "planner",
    "queue",
    "corpus",
    "train",
    "wire",
    "store",
    "transfer",
    "slurm",
    "coordinator",
    "session",
    "site",
    "agent",
    "bench",
    "cli",
    "sim",
    "model",
    "backfill",
    "testkit",
];

/// Crates that exist for tests: no program may link them.
const FOR_TESTS_ONLY: &[&str] = &["sim", "model", "backfill", "testkit"];

/// A crate depends only on crates before it in [`ORDER`]; crates for tests only serve tests.
pub fn order_of_crates(repo: &Repo) -> Vec<Violation> {
    let crates = || {
        repo.packages()
            .iter()
            .filter(|package| package.dir.starts_with("crates/"))
    };
    let unknown = crates()
        .filter(|package| rank(package.short_name()).is_none())
        .map(|package| {
            Violation::of(
                &package.manifest_path(),
                format!(
                    "crate `{}` has no place in the order of crates: add it to ORDER in \
                 xtask/src/tidy/edges.rs and to docs/ARCHITECTURE.md",
                    package.short_name()
                ),
            )
        });
    let edges = crates().flat_map(|from| {
        from.dependencies.iter().filter_map(|dependency| {
            // Names, not folders, are what a manifest lists.
            let to = crates().find(|package| package.name == dependency.name)?;
            let complaint = complaint(from.short_name(), to.short_name(), dependency)?;
            Some(Violation::of(&from.manifest_path(), complaint))
        })
    });
    unknown.chain(edges).collect()
}

impl Package {
    /// `base` for `crates/base`.
    fn short_name(&self) -> &str {
        self.dir.rsplit('/').next().unwrap_or(&self.dir)
    }
}

fn rank(name: &str) -> Option<usize> {
    ORDER.iter().position(|other| *other == name)
}

fn complaint(from: &str, to: &str, dependency: &Dependency) -> Option<String> {
    if FOR_TESTS_ONLY.contains(&to) {
        return (dependency.kind != Kind::Dev).then(|| {
            format!("`{from}` links `{to}`, which is for tests: make it a dev-dependency")
        });
    }
    (rank(to)? >= rank(from)?).then(|| {
        format!(
            "`{from}` depends on `{to}`, which comes after it in the order of crates: move what \
             it needs down into a crate both may know, or the test into `{to}` or `testkit`"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    fn manifest(name: &str, dependencies: &str) -> String {
        format!("[package]\nname = \"hansa-{name}\"\n{dependencies}")
    }

    #[test]
    fn a_crate_may_know_those_before_it() {
        let base = manifest("base", "");
        let store = manifest("store", "[dependencies]\nhansa-base.workspace = true\n");
        let files = [
            ("crates/base/Cargo.toml", base.as_str()),
            ("crates/store/Cargo.toml", &store),
        ];
        check(order_of_crates, &files, &[]);
    }

    #[test]
    fn a_crate_may_not_know_those_after_it_not_even_in_tests() {
        let store = manifest(
            "store",
            "[dev-dependencies]\nhansa-coordinator.workspace = true\n",
        );
        let coordinator = manifest("coordinator", "");
        let files = [
            ("crates/store/Cargo.toml", store.as_str()),
            ("crates/coordinator/Cargo.toml", &coordinator),
        ];
        let expected = "`store` depends on `coordinator`, which comes after it";
        check(order_of_crates, &files, &[expected]);
    }

    #[test]
    fn crates_for_tests_serve_only_tests() {
        let sim = manifest("sim", "");
        let protocol = manifest(
            "protocol",
            "[dev-dependencies]\nhansa-sim.workspace = true\n",
        );
        let cli = manifest(
            "cli",
            "[target.'cfg(unix)'.dependencies]\nhansa-sim.path = \"x\"\n",
        );
        let files = [
            ("crates/sim/Cargo.toml", sim.as_str()),
            ("crates/protocol/Cargo.toml", &protocol),
            ("crates/cli/Cargo.toml", &cli),
        ];
        check(
            order_of_crates,
            &files,
            &["crates/cli/Cargo.toml: `cli` links `sim`"],
        );
    }

    #[test]
    fn a_new_crate_must_take_its_place_in_the_order() {
        let new = manifest("gossip", "");
        check(
            order_of_crates,
            &[("crates/gossip/Cargo.toml", &new)],
            &["crate `gossip` has no"],
        );
    }
}
