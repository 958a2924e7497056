//! The repository as the rules see it: texts by path, crates by name.
//!
//! Read once, so that rules are functions of values and their tests need no disk.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use xshell::{Shell, cmd};

use super::rust::Source;

/// Every file that git tracks or would track, with paths relative to the root.
pub struct Repo {
    /// Text files and their text; binary files have only a path.
    texts: BTreeMap<String, String>,
    paths: BTreeSet<String>,
    sources: Vec<Source>,
    packages: Vec<Package>,
}

/// One crate of the workspace.
pub struct Package {
    pub name: String,
    /// The folder of its manifest, such as `crates/base`.
    pub dir: String,
    pub manifest: toml::Table,
    pub dependencies: Vec<Dependency>,
}

pub struct Dependency {
    /// The package's own name, whatever the manifest renames it to.
    pub name: String,
    pub kind: Kind,
    /// Whether its version is the workspace's.
    pub inherited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Normal,
    Dev,
    Build,
}

impl Repo {
    pub fn read(sh: &Shell) -> anyhow::Result<Self> {
        // Files not yet added count too: a violation is best heard of before the commit.
        let listed = cmd!(sh, "git ls-files -z --cached --others --exclude-standard")
            .quiet()
            .read()
            .context("list the files: tidy needs git and a checkout")?;
        let mut contents = BTreeMap::new();
        for path in listed.split('\0').filter(|path| !path.is_empty()) {
            let on_disk = sh.path_exists(path) && sh.current_dir().join(path).is_file();
            if on_disk {
                let bytes = sh
                    .read_binary_file(path)
                    .with_context(|| format!("read {path}"))?;
                contents.insert(path.to_owned(), bytes);
            }
        }
        Ok(Self::from_contents(contents))
    }

    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let contents = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).into()));
        Self::from_contents(contents.collect())
    }

    fn from_contents(contents: BTreeMap<String, Vec<u8>>) -> Self {
        let paths = contents.keys().cloned().collect();
        let texts: BTreeMap<String, String> = contents
            .into_iter()
            .filter_map(|(path, bytes)| Some((path, String::from_utf8(bytes).ok()?)))
            .collect();
        let sources = texts
            .iter()
            .filter(|(path, _)| path.ends_with(".rs"))
            .map(|(path, text)| Source::parse(path, text))
            .collect();
        let packages = texts
            .iter()
            .filter_map(|(path, text)| Package::parse(path, text))
            .collect();
        Self {
            texts,
            paths,
            sources,
            packages,
        }
    }

    pub fn file_count(&self) -> usize {
        self.paths.len()
    }

    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Whether a file or a folder of this path is tracked.
    pub fn contains(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        self.paths.contains(path)
            || self
                .paths
                .range(folder.clone()..)
                .next()
                .is_some_and(|p| p.starts_with(&folder))
    }

    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// The crates; a manifest that does not parse is cargo's to refuse.
    pub fn packages(&self) -> &[Package] {
        &self.packages
    }
}

impl Package {
    fn parse(path: &str, text: &str) -> Option<Self> {
        let dir = path.strip_suffix("/Cargo.toml")?.to_owned();
        let manifest: toml::Table = toml::from_str(text).ok()?;
        // A workspace of its own, such as a fuzzer, is no crate of ours to depend on.
        if manifest.contains_key("workspace") {
            return None;
        }
        let name = manifest.get("package")?.get("name")?.as_str()?.to_owned();
        let mut dependencies = Vec::new();
        collect_dependencies(&manifest, &mut dependencies);
        let per_target = manifest.get("target").and_then(toml::Value::as_table);
        for table in per_target.into_iter().flat_map(toml::Table::values) {
            if let Some(table) = table.as_table() {
                collect_dependencies(table, &mut dependencies);
            }
        }
        Some(Self {
            name,
            dir,
            manifest,
            dependencies,
        })
    }

    pub fn manifest_path(&self) -> String {
        format!("{}/Cargo.toml", self.dir)
    }
}

fn collect_dependencies(table: &toml::Table, found: &mut Vec<Dependency>) {
    let sections = [
        ("dependencies", Kind::Normal),
        ("dev-dependencies", Kind::Dev),
        ("build-dependencies", Kind::Build),
    ];
    for (section, kind) in sections {
        let Some(entries) = table.get(section).and_then(toml::Value::as_table) else {
            continue;
        };
        found.extend(entries.iter().map(|(key, value)| {
            Dependency {
                name: value
                    .get("package")
                    .and_then(toml::Value::as_str)
                    .unwrap_or(key)
                    .to_owned(),
                kind,
                inherited: value.get("workspace").and_then(toml::Value::as_bool) == Some(true),
            }
        }));
    }
}
