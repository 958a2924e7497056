//! `scontrol show config`: how a site has set its Slurm.

use std::collections::BTreeMap;

use super::field::Word;
use super::text::{self, Skipped, Why, digits, is_command_error};

/// What `scontrol show config` printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    values: BTreeMap<String, String>,
    /// Everything else.
    pub skipped: Vec<Skipped>,
}

/// A version of Slurm: `22.05.8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The year.
    pub major: u32,
    /// The month.
    pub minor: u32,
    /// The release.
    pub micro: u32,
}

impl Config {
    /// Reads lines of the form `Key = value`; of a key that comes twice the first counts.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut config = Self::default();
        for line in text::lines(bytes) {
            if is_command_error(&line.text) {
                config.skipped.push(line.skipped(Why::CommandError));
            } else if line.is_blank() {
            } else if !line.ended {
                config.skipped.push(line.skipped(Why::Cut));
            } else if let Some((key, value)) = pair(&line.text) {
                let entry = config.values.entry(key.to_owned());
                entry.or_insert_with(|| value.to_owned());
            } else {
                config.skipped.push(line.skipped(Why::Noise));
            }
        }
        config
    }

    /// A value as printed; `None` where Slurm has none either.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        let value = self.values.get(key)?.as_str();
        let nothing = value.is_empty() || value == Word::Null.as_str() || value == "N/A";
        (!nothing).then_some(value)
    }

    /// All keys and values as printed.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The cluster's name.
    #[must_use]
    pub fn cluster(&self) -> Option<&str> {
        self.get("ClusterName")
    }

    /// Slurm's version.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        Version::read(self.get("SLURM_VERSION")?)
    }

    /// A duration that is printed in seconds, such as `KillWait` or `MinJobAge`.
    #[must_use]
    pub fn seconds(&self, key: &str) -> Option<u64> {
        let number = self.get(key)?.strip_suffix(" sec")?;
        digits(number)
    }

    /// A value that is a list, such as `PrivateData` or `SchedulerParameters`.
    #[must_use]
    pub fn list(&self, key: &str) -> Vec<&str> {
        match self.get(key) {
            None | Some("none" | "NONE") => Vec::new(),
            Some(value) => value.split(',').collect(),
        }
    }
}

impl Version {
    /// Reads `22.05.8`, alone or after a word, as `sbatch --version` prints it (`slurm 22.05.8`).
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let last = text.split_whitespace().last()?;
        let mut parts = last.split('.');
        let (major, minor, micro) = (parts.next()?, parts.next()?, parts.next()?);
        // Release candidates: 25.05.0-0rc1.
        let micro = micro.split('-').next()?;
        Some(Self {
            major: digits(major)?,
            minor: digits(minor)?,
            micro: digits(micro)?,
        })
    }
}

fn pair(text: &str) -> Option<(&str, &str)> {
    let (key, value) = text.split_once('=')?;
    let (key, value) = (key.trim(), value.trim());
    let plain = |c: char| c.is_ascii_alphanumeric() || "_[]/".contains(c);
    let named = key.starts_with(|c: char| c.is_ascii_alphabetic()) && key.chars().all(plain);
    named.then_some((key, value))
}
