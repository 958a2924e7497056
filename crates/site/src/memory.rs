//! What became of each intent at this site: durable before anything is done, and never forgotten while an
//! order could come again.
//!
//! An intent goes one way: known → attempted → submitted or refused → over. Whoever finds an attempt
//! without an outcome looks for the job before anything else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hansa_base::MonoMs;
use hansa_queue::LiveJob;
use serde::{Deserialize, Serialize};

use crate::error::SiteError;

/// Ended intents that are kept: orders about older ones do not come any more.
const ENDED_MAX: usize = 2000;
/// A job's end is told again at most so often.
const REOPEN_AFTER: Duration = Duration::from_secs(60);

/// One intent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The job's name.
    pub name: String,
    /// When `sbatch` was about to be called, by the wall clock in seconds; the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempted_at: Option<i64>,
    /// The job, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// What the last attempt came to, if that leaves open whether there is a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Doubt>,
    /// Why there is none and will be none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The job has ended, and that was reported.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
    /// How often it went back to the queue.
    #[serde(default)]
    pub restarts: u32,
    /// It was seen running.
    #[serde(skip)]
    pub ran: bool,
    /// When this process first knew that an attempt may be under way, by its own clock: its predecessor's
    /// clock means nothing.
    #[serde(skip)]
    pub suspected_at: Option<MonoMs>,
    /// When its job was last looked for, by this process's clock.
    #[serde(skip)]
    pub searched_at: Option<MonoMs>,
    /// The state that was reported last.
    #[serde(skip)]
    pub reported: Option<String>,
    /// When the job was last seen, by this process's clock.
    #[serde(skip)]
    pub seen_at: Option<MonoMs>,
    /// When it was last taken up again after its end, because the coordinator still waited for that.
    #[serde(skip)]
    pub reopened_at: Option<MonoMs>,
    /// When it was first seen without its nodes, and neither waiting again nor surely over.
    #[serde(skip)]
    pub interrupted_at: Option<MonoMs>,
}

/// What `sbatch` complained of, when it may have submitted the job all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// The kind of refusal, in one word.
    pub kind: String,
    /// What was said.
    pub text: String,
}

impl Trace {
    /// Whether it is known what became of the submission.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        self.job.is_some() || self.refused.is_some()
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Content {
    run: String,
    intents: BTreeMap<u64, Trace>,
    /// Reservations that the coordinator knows of, each with what it was told.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    reservations: BTreeMap<String, String>,
}

/// All intents of a run at this site.
pub struct Memory {
    path: PathBuf,
    content: Content,
}

impl Memory {
    /// Reads what a home remembers; empty if it is a new one.
    ///
    /// # Errors
    /// If the file cannot be read, or holds something else.
    pub fn open(home: &Path) -> Result<Self, SiteError> {
        let path = home.join("intents.json");
        let content = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| SiteError::Broken {
                path: path.clone(),
                why: error.to_string(),
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Content::default(),
            Err(error) => return Err(SiteError::io("read", &path)(error)),
        };
        Ok(Self { path, content })
    }

    /// The run's identity; empty before the coordinator was first reached.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.content.run
    }

    /// Notes whose home this is.
    ///
    /// # Errors
    /// If it is another run's, or cannot be noted.
    pub fn belong_to(&mut self, run: &str, home: &Path) -> Result<(), SiteError> {
        if self.content.run == run {
            return Ok(());
        }
        if !self.content.run.is_empty() {
            return Err(SiteError::OtherRun {
                home: home.to_owned(),
                had: self.content.run.clone(),
                has: run.to_owned(),
            });
        }
        run.clone_into(&mut self.content.run);
        self.save()
    }

    /// What is known of an intent.
    #[must_use]
    pub fn get(&self, intent: u64) -> Option<&Trace> {
        self.content.intents.get(&intent)
    }

    /// The same, to note what need not be durable; new if unknown.
    pub fn touch(&mut self, intent: u64) -> &mut Trace {
        self.content.intents.entry(intent).or_default()
    }

    /// Changes what is known of an intent; durable when this returns.
    ///
    /// # Errors
    /// If it cannot be made durable.
    pub fn note(&mut self, intent: u64, change: impl FnOnce(&mut Trace)) -> Result<(), SiteError> {
        change(self.touch(intent));
        self.forget();
        self.save()
    }

    /// Whether a job is known to be another intent's.
    #[must_use]
    pub fn is_of_another(&self, intent: u64, job: &str) -> bool {
        let mut others = self.content.intents.iter().filter(|(id, _)| **id != intent);
        others.any(|(_, trace)| trace.job.as_deref() == Some(job))
    }

    /// Reservations that the coordinator knows of, each with what it was told.
    #[must_use]
    pub fn reservations(&self) -> &BTreeMap<String, String> {
        &self.content.reservations
    }

    /// Changes which reservations those are; durable when this returns.
    ///
    /// # Errors
    /// If it cannot be made durable.
    pub fn reserve(
        &mut self,
        change: impl FnOnce(&mut BTreeMap<String, String>),
    ) -> Result<(), SiteError> {
        change(&mut self.content.reservations);
        self.save()
    }

    /// Intents with a job that has not ended, as far as is known.
    #[must_use]
    pub fn live(&self) -> Vec<(u64, String)> {
        let live = self.content.intents.iter();
        live.filter(|(_, trace)| !trace.over)
            .filter_map(|(intent, trace)| Some((*intent, trace.job.clone()?)))
            .collect()
    }

    /// The coordinator waits for these jobs: what this home does not know of, or has done with, is followed
    /// again. Its reports may be lost with another home, or the coordinator's memory with a disk.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub fn follow(&mut self, jobs: &[LiveJob], now: MonoMs) -> Result<(), SiteError> {
        let mut changed = false;
        for wanted in jobs {
            let trace = self.touch(wanted.intent.0);
            let same = trace.job.as_deref() == Some(wanted.job.as_str());
            let lately = |at: MonoMs| now.since(at) < REOPEN_AFTER;
            if same && (!trace.over || trace.reopened_at.is_some_and(lately)) {
                continue;
            }
            trace.job = Some(wanted.job.to_string());
            trace.over = false;
            trace.reported = None;
            trace.seen_at = Some(now);
            trace.reopened_at = Some(now);
            changed = true;
        }
        if changed { self.save() } else { Ok(()) }
    }

    /// The coordinator may not know any more what it was told: tell it again.
    pub fn forget_told(&mut self) {
        for trace in self.content.intents.values_mut() {
            trace.reported = None;
        }
        // Their names stay: one that is gone meanwhile is told to be.
        for told in self.content.reservations.values_mut() {
            told.clear();
        }
    }

    fn forget(&mut self) {
        let ended = |trace: &Trace| trace.over || trace.refused.is_some();
        let intents = &mut self.content.intents;
        let mut surplus = intents.values().filter(|trace| ended(trace)).count();
        intents.retain(|_, trace| {
            let forget = surplus > ENDED_MAX && ended(trace);
            surplus -= usize::from(forget);
            !forget
        });
    }

    fn save(&self) -> Result<(), SiteError> {
        let bytes = serde_json::to_vec_pretty(&self.content).unwrap_or_default();
        Ok(hansa_store::replace_file(&self.path, &bytes, 0o600)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_attempt_outlives_the_process_and_a_home_stays_with_its_run() {
        let home = tempfile::tempdir().unwrap();
        let mut memory = Memory::open(home.path()).unwrap();
        memory.belong_to("aa", home.path()).unwrap();
        memory
            .note(7, |trace| trace.attempted_at = Some(1))
            .unwrap();
        let mut memory = Memory::open(home.path()).unwrap();
        assert_eq!(memory.get(7).unwrap().attempted_at, Some(1));
        assert!(!memory.get(7).unwrap().is_decided());
        assert!(memory.belong_to("aa", home.path()).is_ok());
        let error = memory.belong_to("bb", home.path()).unwrap_err().to_string();
        assert!(error.contains("belongs to run aa"), "{error}");
    }

    #[test]
    fn a_job_that_the_coordinator_waits_for_is_followed_even_if_this_home_had_done_with_it() {
        let home = tempfile::tempdir().unwrap();
        let mut memory = Memory::open(home.path()).unwrap();
        let job = |intent: u64, job: &str| LiveJob {
            intent: hansa_queue::IntentId(intent),
            job: job.into(),
        };
        let done = |trace: &mut Trace| {
            trace.over = true;
            trace.reported = Some("COMPLETED".into());
        };
        // Another person takes over with a new home: the job is in nobody's squeue any more.
        memory.follow(&[job(7, "70")], MonoMs(0)).unwrap();
        assert_eq!(memory.live(), [(7, "70".to_owned())]);
        // It ended and was told; the coordinator comes back from a backup, and waits for it.
        memory.note(7, done).unwrap();
        memory.follow(&[job(7, "70")], MonoMs(70_000)).unwrap();
        assert_eq!(memory.live(), [(7, "70".to_owned())]);
        assert_eq!(memory.get(7).unwrap().reported, None, "it is told again");
        // Told again; if that does not help, it is not told without end.
        memory.note(7, done).unwrap();
        memory.follow(&[job(7, "70")], MonoMs(71_000)).unwrap();
        assert_eq!(memory.live(), []);
        // What is followed already goes on as it was.
        memory.follow(&[job(8, "80")], MonoMs(71_000)).unwrap();
        memory.touch(8).reported = Some("RUNNING".into());
        memory.follow(&[job(8, "80")], MonoMs(500_000)).unwrap();
        assert!(memory.get(8).unwrap().reported.is_some());
        memory.forget_told();
        assert!(memory.get(8).unwrap().reported.is_none());
    }

    #[test]
    fn only_the_newest_ended_intents_are_kept_and_all_live_ones() {
        let home = tempfile::tempdir().unwrap();
        let mut memory = Memory::open(home.path()).unwrap();
        memory.touch(0).job = Some("1".into());
        for intent in 1..=ENDED_MAX as u64 + 10 {
            let trace = memory.touch(intent);
            trace.job = Some(format!("{}", intent + 1));
            trace.over = true;
        }
        memory.note(5000, |_| {}).unwrap();
        assert_eq!(memory.live(), [(0, "1".to_owned())]);
        assert!(memory.get(10).is_none() && memory.get(11).is_some());
    }
}
