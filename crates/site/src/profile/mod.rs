//! The profile of a site: one TOML file says how jobs are submitted there.
//!
//! Sites change their policies, so what a profile claims about one (`[[partition]]`, `[[fact]]`) says
//! who said it and when; `hansa site check` compares what it can. Unknown keys are errors. Never here:
//! anything that all sites of a run share (that is the recipe's).

mod error;
mod sections;
mod template;

use std::path::{Path, PathBuf};

use hansa_base::SiteName;
use hansa_slurm::parse::Walltime;
use hansa_wire::strict::{FileError, keys_of, read_toml};
use serde::{Deserialize, Serialize};

pub use error::ProfileError;
pub use sections::{
    BudgetSection, Chain, ChecksSection, CoordinatorSection, CostsSection, FactRow, JobsSection,
    LimitsSection, PartitionRow, RelaySection, RetrySection, ScriptSection, ShapeRow, SlurmSection,
    WatchSection,
};
pub use template::commented;

/// A whole profile, checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The site's name in the run.
    pub name: String,
    /// The way to the coordinator.
    pub coordinator: CoordinatorSection,
    /// How Slurm's commands are run.
    pub slurm: SlurmSection,
    /// How many jobs, of which shape.
    pub jobs: JobsSection,
    /// The shapes of jobs that make sense here; each is probed.
    #[serde(default)]
    pub shape: Vec<ShapeRow>,
    /// What a job does.
    pub script: ScriptSection,
    /// How often to look.
    #[serde(default)]
    pub watch: WatchSection,
    /// What the allocation has left.
    #[serde(default)]
    pub budget: BudgetSection,
    /// What jobs and rounds cost beside training, for plans.
    #[serde(default)]
    pub costs: CostsSection,
    /// What the run may have at a time, for plans.
    #[serde(default)]
    pub limits: LimitsSection,
    /// When to give up.
    #[serde(default)]
    pub retry: RetrySection,
    /// The relay for compute nodes with no way out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<RelaySection>,
    /// What `hansa site check` compares.
    #[serde(default)]
    pub checks: ChecksSection,
    /// What is known of partitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partition: Vec<PartitionRow>,
    /// What else is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fact: Vec<FactRow>,
}

impl Profile {
    /// Reads a profile's text; `path` is only named in messages, and what relative paths relate to.
    ///
    /// # Errors
    /// Text that is no TOML; keys that are unknown (all of them, each with the nearest known one) or
    /// missing; values that cannot work.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ProfileError> {
        let mut profile: Self = read_toml(text, path, known_keys)?;
        profile
            .check()
            .map_err(|(key, problem)| FileError::value(text, path, key, problem))?;
        profile.resolve(path.parent().unwrap_or(Path::new("")));
        Ok(profile)
    }

    /// Reads a profile's file.
    ///
    /// # Errors
    /// As [`Profile::parse`], and if the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        let text = std::fs::read_to_string(path).map_err(|source| ProfileError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// The site's name.
    ///
    /// # Errors
    /// Never for a profile that [`Profile::parse`] has read.
    pub fn site(&self) -> Result<SiteName, hansa_base::NameError> {
        self.name.parse()
    }

    /// The shape of this name.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&ShapeRow> {
        self.shape.iter().find(|shape| shape.name == name)
    }

    /// A shape's account: its own, or else the site's.
    #[must_use]
    pub fn account_of<'a>(&'a self, shape: &'a ShapeRow) -> Option<&'a str> {
        shape.account.as_deref().or(self.slurm.account.as_deref())
    }

    /// The partitions of all shapes, each once.
    #[must_use]
    pub fn partitions(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.shape.iter().map(|s| s.partition.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Paths that are not absolute lie beside the profile, where the commands run on this machine.
    fn resolve(&mut self, beside: &Path) {
        // A profile in the current folder has no parent.
        let beside = match beside.as_os_str().is_empty() {
            true => Path::new("."),
            false => beside,
        };
        let beside = std::path::absolute(beside).unwrap_or_else(|_| beside.to_owned());
        let token_file = &mut self.coordinator.token_file;
        *token_file = beside.join(&token_file);
        if self.slurm.ssh.is_some() {
            return;
        }
        let script = &mut self.script;
        let mut paths = vec![&mut script.corpus, &mut script.state, &mut script.logs];
        paths.extend(script.cache.as_mut());
        paths.extend(script.token_file.as_mut());
        paths.extend(self.checks.scratch.as_mut());
        paths.extend(self.relay.as_mut().map(|relay| &mut relay.file));
        for path in paths {
            *path = beside.join(&path);
        }
    }

    /// The first value that cannot work, by key.
    fn check(&self) -> Result<(), (String, String)> {
        let bad = |key: &str, problem: String| Err((key.to_owned(), problem));
        if let Err(error) = self.site() {
            return bad("name", error.to_string());
        }
        for (index, shape) in self.shape.iter().enumerate() {
            self.check_shape(index, shape)?;
        }
        if self.shape(&self.jobs.shape).is_none() {
            let names: Vec<_> = self.shape.iter().map(|s| s.name.as_str()).collect();
            let names = names.join(", ");
            return bad(
                "jobs.shape",
                format!("must be the name of a [[shape]]; there are: {names}"),
            );
        }
        let rules = self.rules();
        let broken = rules.into_iter().find(|(holds, ..)| !holds);
        if let Some((_, key, problem)) = broken {
            return bad(key, problem.to_owned());
        }
        if let Some(zone) = &self.slurm.time_zone
            && let Err(error) = zone.parse::<hansa_slurm::parse::Zone>()
        {
            return bad("slurm.time_zone", error.to_string());
        }
        if let Some(text) = &self.budget.ends_at
            && text.parse::<jiff::civil::Date>().is_err()
        {
            return bad("budget.ends_at", "is no date: write 2027-03-31".to_owned());
        }
        if self.budget.lag_s.is_some_and(|lag| lag > 7 * 86_400) {
            return bad("budget.lag_s", "is more than a week".to_owned());
        }
        if let Some(name) = self
            .script
            .environment
            .keys()
            .find(|name| !is_variable(name))
        {
            return bad(
                "script.environment",
                format!("{name:?} is no name of a variable: letters, digits and _, no digit first"),
            );
        }
        if let Err((key, problem)) = crate::script::check_commands(&self.script) {
            return bad(key, problem);
        }
        self.check_sources()
    }

    fn check_shape(&self, index: usize, shape: &ShapeRow) -> Result<(), (String, String)> {
        let bad = |key: &str, problem: String| {
            Err((
                format!("shape.{key}"),
                format!("(shape {}) {problem}", shape.name),
            ))
        };
        let plain =
            |text: &str| !text.is_empty() && text.chars().all(|c| !c.is_control() && c != ' ');
        if !plain(&shape.name) || shape.name.len() > 64 {
            return bad("name", "must be one word of at most 64 letters".into());
        }
        if self.shape[..index].iter().any(|s| s.name == shape.name) {
            return bad("name", "is the name of another shape, too".into());
        }
        if !plain(&shape.partition) {
            return bad("partition", "must be one word".into());
        }
        if !(1..=1 << 20).contains(&shape.nodes) || shape.gpus_per_node > 1024 {
            return bad("nodes", "must be 1 to 2^20, of at most 1024 GPUs".into());
        }
        let walltime = match shape.walltime.parse::<Walltime>() {
            Ok(walltime) => walltime,
            Err(error) => return bad("walltime", error.to_string()),
        };
        if !(60..=366 * 86_400).contains(&walltime.0) {
            return bad("walltime", "must be a minute to a year".into());
        }
        if shape
            .windows_per_gpu_s
            .is_some_and(|rate| !(1e-6..=1e9).contains(&rate))
        {
            return bad("windows_per_gpu_s", "must be a number above 0".into());
        }
        if shape.ranks == Some(0) {
            return bad("ranks", "must be at least 1".into());
        }
        if 2 * self.script.signal_before_s > walltime.0 {
            let half = walltime.0 / 2;
            return bad(
                "walltime",
                format!(
                    "is too short for script.signal_before_s = {}: set that to {half} or less",
                    self.script.signal_before_s
                ),
            );
        }
        Ok(())
    }

    fn rules(&self) -> Vec<Rule> {
        let mut rules = self.rules_of_jobs();
        rules.extend(self.rules_of_time());
        rules
    }

    fn rules_of_jobs(&self) -> Vec<Rule> {
        let jobs = &self.jobs;
        let ssh = self.slurm.ssh.is_some();
        let here = |path: &Path| !ssh || path.is_absolute();
        let away = "must be absolute: it lies on the machine that slurm.ssh names";
        let hours = |value: Option<f64>| value.is_none_or(|h| h.is_finite() && h >= 0.0);
        let seconds =
            |value: Option<f64>| value.is_none_or(|s| (0.0..=366.0 * 86_400.0).contains(&s));
        vec![
            (
                (1..=64).contains(&self.shape.len()),
                "shape",
                "is needed: 1 to 64 tables [[shape]]",
            ),
            (jobs.wanted <= 256, "jobs.wanted", "must be at most 256"),
            (
                (1..=256).contains(&jobs.max_pending),
                "jobs.max_pending",
                "must be 1 to 256",
            ),
            (
                self.slurm.gpu_option.contains("{}"),
                "slurm.gpu_option",
                "needs {} where the number goes",
            ),
            (
                hours(self.budget.gpu_hours),
                "budget.gpu_hours",
                "must be a number, 0 or more",
            ),
            (
                hours(Some(self.budget.reserve_gpu_hours)),
                "budget.reserve_gpu_hours",
                "must be a number, 0 or more",
            ),
            (
                seconds(self.costs.startup_s),
                "costs.startup_s",
                "must be a number of seconds, at most a year",
            ),
            (
                seconds(self.costs.transfer_s),
                "costs.transfer_s",
                "must be a number of seconds, at most a year",
            ),
            (here(&self.script.corpus), "script.corpus", away),
            (here(&self.script.state), "script.state", away),
            (here(&self.script.logs), "script.logs", away),
            (
                !ssh || self.relay.is_none(),
                "relay",
                "runs where `hansa site run` does, which must be the login node: leave slurm.ssh out",
            ),
        ]
    }

    fn rules_of_time(&self) -> Vec<Rule> {
        const YEAR: u64 = 366 * 86_400;
        let (watch, retry) = (&self.watch, &self.retry);
        vec![
            (
                (10..=YEAR).contains(&watch.probe_every_s),
                "watch.probe_every_s",
                "must be 10 s to a year",
            ),
            (
                (10..=YEAR).contains(&watch.usage_every_s),
                "watch.usage_every_s",
                "must be 10 s to a year",
            ),
            (
                (1..=3600).contains(&watch.follow_every_s),
                "watch.follow_every_s",
                "must be 1 s to an hour",
            ),
            (
                (1..=24 * 90).contains(&watch.usage_window_h),
                "watch.usage_window_h",
                "must be 1 to 2160",
            ),
            (
                (10..=86_400).contains(&self.script.signal_before_s),
                "script.signal_before_s",
                "must be 10 s to a day",
            ),
            (
                (1..=1000).contains(&retry.quick_failures_max),
                "retry.quick_failures_max",
                "must be 1 to 1000",
            ),
            (
                retry.backoff_first_s >= 1
                    && retry.backoff_first_s <= retry.backoff_longest_s
                    && retry.backoff_longest_s <= YEAR,
                "retry.backoff_first_s",
                "must be at least 1 and no more than retry.backoff_longest_s",
            ),
        ]
    }

    /// Facts without a source are rumours.
    fn check_sources(&self) -> Result<(), (String, String)> {
        let partitions = self
            .partition
            .iter()
            .map(|row| ("partition", &row.name, &row.source, &row.date));
        let facts = self
            .fact
            .iter()
            .map(|row| ("fact", &row.about, &row.source, &row.date));
        for (table, name, source, date) in partitions.chain(facts) {
            if source.trim().is_empty() {
                return Err((
                    format!("{table}.source"),
                    format!("({name}) must say who says so"),
                ));
            }
            if date.parse::<jiff::civil::Date>().is_err() {
                return Err((
                    format!("{table}.date"),
                    format!("({name}) is no date: write 2026-11-30"),
                ));
            }
        }
        Ok(())
    }
}

/// What must hold, the key that it is about, and what is wrong if it does not.
type Rule = (bool, &'static str, &'static str);

/// A shape's walltime in seconds; one that [`Profile::parse`] has let pass can be read.
#[must_use]
pub fn walltime_s(shape: &ShapeRow) -> u64 {
    shape
        .walltime
        .parse::<Walltime>()
        .map_or(0, |walltime| walltime.0)
}

/// Every key that a profile can have, drawn from the commented one, which has them all.
fn known_keys() -> Vec<String> {
    let every: Option<toml::Table> = template::every_key().parse().ok();
    every.as_ref().map(keys_of).unwrap_or_default()
}

/// The default place of what the site process keeps for a profile.
#[must_use]
pub fn default_home(profile: &Path) -> PathBuf {
    let name = profile.file_stem().unwrap_or_default().to_string_lossy();
    profile.with_file_name(format!("hansa-site-{name}"))
}

/// What a shell takes as a variable's name; anything else would be run.
fn is_variable(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(plain) && name.starts_with(|c: char| !c.is_ascii_digit())
}

#[cfg(test)]
mod tests;
