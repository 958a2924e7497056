//! Real text for the demo: documentation and sources of libraries that Hansa itself is built on,
//! which lie in cargo's registry cache after a build. Fixed names, versions and order give the same
//! corpus bytes on every machine.

use anyhow::{Context as _, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Unconditional dependencies of Hansa with much text, as `Cargo.lock` pins them.
const LIBRARIES: &[(&str, &str)] = &[
    ("tokio", "1.54.1"),
    ("regex-automata", "0.4.19"),
    ("rustls", "0.23.46"),
    ("tokenizers", "0.23.2"),
    ("clap_builder", "4.6.7"),
    ("rayon", "1.12.0"),
    ("futures-util", "0.3.34"),
    ("aho-corasick", "1.1.5"),
    ("h2", "0.4.20"),
    ("rusqlite", "0.43.0"),
    ("axum", "0.8.9"),
    ("hyper", "1.12.0"),
    ("serde_json", "1.0.154"),
    ("reqwest", "0.13.5"),
    ("hyper-util", "0.1.21"),
    ("memchr", "2.8.3"),
    ("http", "1.5.0"),
    ("mio", "1.2.5"),
];

/// Larger files are tables that a generator wrote, not text.
const FILE_BYTES_MAX: u64 = 200_000;

/// The demo's own text files, in their fixed order.
///
/// # Errors
/// If cargo's registry cache is not there, or lacks one of the libraries: then `--text` is needed.
pub fn default_files() -> anyhow::Result<Vec<PathBuf>> {
    let sources = registry_sources()?;
    let mut files = Vec::new();
    for (name, version) in LIBRARIES {
        let folder = format!("{name}-{version}");
        let found = sources
            .iter()
            .map(|source| source.join(&folder))
            .find(|path| path.is_dir());
        let Some(found) = found else {
            bail!(
                "cargo's registry cache has no {folder}, which the demo would read as its text: \
                 give text of your own with `hansa demo --text FILE…`"
            );
        };
        let before = files.len();
        collect(&found, &mut files)?;
        files[before..].sort();
    }
    Ok(files)
}

/// Folders of unpacked sources, one for each registry mirror that cargo has used.
fn registry_sources() -> anyhow::Result<Vec<PathBuf>> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let sources = home.map(|home| home.join("registry/src"));
    let entries = sources.as_ref().and_then(|path| fs::read_dir(path).ok());
    let Some(entries) = entries else {
        bail!(
            "there is no cargo registry cache on this machine, from which the demo takes its \
             text: give text of your own with `hansa demo --text FILE…`"
        );
    };
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    Ok(folders)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let entry = entry.with_context(|| format!("list {}", folder.display()))?;
        let (path, metadata) = (
            entry.path(),
            entry.metadata().context("read a file's size")?,
        );
        if metadata.is_dir() {
            collect(&path, files)?;
        } else if is_text(&path) && (1..=FILE_BYTES_MAX).contains(&metadata.len()) {
            files.push(path);
        }
    }
    Ok(())
}

fn is_text(path: &Path) -> bool {
    path.extension()
        .is_some_and(|ending| ending == "rs" || ending == "md")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_what_cargo_lock_pins() {
        let lock = include_str!("../../../../Cargo.lock");
        for (name, version) in LIBRARIES {
            let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            assert!(
                lock.contains(&entry),
                "Cargo.lock has another {name}: change LIBRARIES"
            );
        }
    }
}
