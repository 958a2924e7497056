//! What every crate of the workspace has in common.

use super::Violation;
use super::repo::Repo;

/// Each crate has a README that says in a few lines what it is for.
pub fn each_crate_says_what_it_is_for(repo: &Repo) -> Vec<Violation> {
    let lacks_readme = |dir: &str| {
        repo.text(&format!("{dir}/README.md"))
            .is_none_or(|text| text.trim().is_empty())
    };
    repo.packages()
        .iter()
        .filter(|package| lacks_readme(&package.dir))
        .map(|package| {
            let path = format!("{}/README.md", package.dir);
            Violation::of(
                &path,
                "write about five lines: what is this crate for, and what not?",
            )
        })
        .collect()
}

/// One set of lints and one list of versions for all crates.
pub fn lints_and_versions_come_from_the_workspace(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in repo.packages() {
        let inherits = |table: &str, key: &str| {
            package.manifest.get(table).and_then(|table| table.get(key)) == Some(&true.into())
        };
        if !inherits("lints", "workspace") {
            let message = "its lints are its own: add `[lints]` with `workspace = true`";
            violations.push(Violation::of(&package.manifest_path(), message));
        }
        for dependency in package
            .dependencies
            .iter()
            .filter(|dependency| !dependency.inherited)
        {
            let message = format!(
                "`{}` names its own version: put it under [workspace.dependencies] in the root \
                 Cargo.toml and write `{}.workspace = true` here",
                dependency.name, dependency.name
            );
            violations.push(Violation::of(&package.manifest_path(), message));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn a_crate_without_a_readme_is_named() {
        let files = [
            ("crates/a/Cargo.toml", "[package]\nname = \"a\""),
            ("crates/a/README.md", "It is for the letter a."),
            ("crates/b/Cargo.toml", "[package]\nname = \"b\""),
            ("crates/b/README.md", " \n"),
            ("crates/c/Cargo.toml", "[package]\nname = \"c\""),
            (
                "crates/a/fuzz/Cargo.toml",
                "[workspace]\n[package]\nname = \"a-fuzz\"",
            ),
        ];
        let expected = ["crates/b/README.md: write", "crates/c/README.md: write"];
        check(each_crate_says_what_it_is_for, &files, &expected);
    }

    #[test]
    fn a_crate_with_lints_or_versions_of_its_own_is_named() {
        let kept = "[package]\nname = \"a\"\n[lints]\nworkspace = true\n
                    [dependencies]\nserde = { workspace = true, features = [\"rc\"] }";
        let broken = "[package]\nname = \"b\"\n[dev-dependencies]\nserde = \"1\"";
        let files = [
            ("crates/a/Cargo.toml", kept),
            ("crates/b/Cargo.toml", broken),
        ];
        check(
            lints_and_versions_come_from_the_workspace,
            &files,
            &[
                "crates/b/Cargo.toml: `serde` names its own",
                "crates/b/Cargo.toml: its lints",
            ],
        );
    }
}
