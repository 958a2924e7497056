//! What Slurm says of our jobs: `squeue` now, `sacct` for good.
//!
//! A job leaves `squeue` some minutes after its end, and `sacct` knows of it seconds late: a job that
//! neither shows is "not yet known" for a while before it is "gone". A state that nobody listed changes
//! nothing. Never here: what follows from a state.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hansa_queue::{IntentId, JobId, JobReport, Report};
use hansa_slurm::parse::{JobState, SacctRow, SqueueRow};

use crate::convert;
use crate::error::SiteError;
use crate::profile::{Chain, Profile};
use crate::script::{intent_of, name_prefix};
use crate::service::{Note, Site};

/// Accounting is asked about so many days: no job of ours waits longer than it is worth.
const DAYS: u32 = 30;
/// A job that nobody knows is gone after this, or after the controller would have forgotten it, if later.
const GONE_AFTER: Duration = Duration::from_secs(600);
/// A job that lost its nodes may be in the queue again within this time; the coordinator waits less.
const REQUEUED_WITHIN: Duration = Duration::from_secs(180);
/// Jobs that are asked about at once.
const JOBS_MAX: usize = 200;
/// After an order that changes a job.
const SOON: Duration = Duration::from_secs(1);

/// Looks at our jobs now and then.
pub struct Follower {
    every: Duration,
    next: Instant,
    adopted: bool,
}

/// What came of looking for an intent's job.
#[derive(Debug, PartialEq, Eq)]
pub enum Search {
    /// It is there.
    Found(String),
    /// Both commands answered, and know of none.
    Nothing,
    /// At least one did not answer.
    Unknown,
}

impl Follower {
    /// For a profile; the first look is due at once.
    #[must_use]
    pub fn new(profile: &Profile) -> Self {
        Self {
            every: Duration::from_secs(profile.watch.follow_every_s),
            next: Instant::now(),
            adopted: false,
        }
    }

    /// Whether it is time to look.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.due_in().is_zero()
    }

    /// How long until it is.
    #[must_use]
    pub fn due_in(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Looks again soon: something was done to a job.
    pub fn hurry(&mut self) {
        self.next = self.next.min(Instant::now() + SOON);
    }

    /// Looks at all our jobs and reports what changed.
    pub(crate) async fn look(&mut self, site: &mut Site) -> Result<(), SiteError> {
        if !site.slurm.wait().is_zero() {
            return Ok(());
        }
        self.next = Instant::now() + self.every;
        let live = site.memory.live();
        if live.is_empty() && self.adopted {
            return Ok(());
        }
        let Ok(rows) = site.slurm.queue().await else {
            return site.note_turns();
        };
        site.note_turns()?;
        if !self.adopted {
            site.adopt(&rows)?;
            self.adopted = true;
        }
        let mut queued: BTreeMap<String, &SqueueRow> = BTreeMap::new();
        for row in &rows {
            if let Some(job) = row.job.value() {
                queued.insert(job.to_string(), row);
            }
        }
        let mut ended = Vec::new();
        for (intent, job) in site.memory.live() {
            match queued.get(&job) {
                Some(row) if is_over(row.state.value()) != Some(true) => {
                    let report = convert::queued(intent, &job, row);
                    site.saw(report, false)?;
                }
                row => ended.push((intent, job, row.copied())),
            }
        }
        if !ended.is_empty() {
            site.breathe().await?;
            site.look_back(&ended).await?;
        }
        Ok(())
    }
}

fn is_over(state: Option<&JobState>) -> Option<bool> {
    state.and_then(JobState::is_over)
}

/// Slurm may start it again under the same number.
fn is_interrupted(state: Option<&JobState>) -> bool {
    matches!(
        state,
        Some(JobState::NodeFail | JobState::BootFail | JobState::Preempted)
    )
}

impl Site {
    /// Reports a job's state, if it is another than the last one reported.
    fn saw(&mut self, mut report: JobReport, over: bool) -> Result<(), SiteError> {
        let (intent, job) = (report.intent.0, report.job.to_string());
        let now = self.slurm.now();
        // `squeue` does not say how often a job was requeued: one that ran and waits again was.
        let trace = self.memory.touch(intent);
        let waits = report.state.as_str() == "PENDING";
        trace.restarts = trace.restarts.max(report.restarts) + u32::from(trace.ran && waits);
        // On its way back it may be COMPLETING for a while, or said to have failed with its node.
        trace.ran = !waits && (trace.ran || report.state.as_str() == "RUNNING");
        report.restarts = trace.restarts;
        let digest = format!(
            "{} {} {:?} {:?} {:?} {}",
            report.state,
            report.reason,
            report.started,
            report.ended,
            report.nodes,
            report.restarts
        );
        let trace = self.memory.touch(intent);
        trace.seen_at = Some(now);
        if matches!(report.state.as_str(), "RUNNING" | "PENDING") {
            trace.interrupted_at = None;
        }
        if trace.reported.as_ref() != Some(&digest) {
            trace.reported = Some(digest);
            let state = report.state.to_string();
            self.report(Report::Job(report))?;
            self.tell(&Note::Job { intent, job, state });
        }
        if over {
            // Reported first: what is told twice does no harm, what is never told does.
            self.memory.note(intent, |trace| trace.over = true)?;
        }
        Ok(())
    }

    /// Asks accounting about jobs that are not in the queue any more.
    async fn look_back(
        &mut self,
        ended: &[(u64, String, Option<&SqueueRow>)],
    ) -> Result<(), SiteError> {
        let ended = &ended[..ended.len().min(JOBS_MAX)];
        let jobs: Vec<&str> = ended.iter().map(|(_, job, _)| job.as_str()).collect();
        let accounts = match self.slurm.has_accounting() {
            true => self.slurm.accounting_of(&jobs).await.ok(),
            false => Some(Vec::new()),
        };
        self.note_turns()?;
        for (intent, job, row) in ended {
            let lives: Vec<&SacctRow> = accounts
                .iter()
                .flatten()
                .filter(|r| is_job(r, job))
                .collect();
            let report = convert::accounted(*intent, job, &lives);
            let last = lives.last().and_then(|life| life.state.value());
            if let Some(report) = report.filter(|_| is_over(last) == Some(true)) {
                let over = !is_interrupted(last) || self.stays_away(*intent);
                self.saw(report, over)?;
            } else if let (Some(row), false) = (row, self.slurm.has_accounting()) {
                self.saw(convert::queued(*intent, job, row), true)?;
            } else if accounts.is_some() {
                self.miss(*intent, job, *row)?;
            }
        }
        Ok(())
    }

    /// Whether a job that lost its nodes would be in the queue again by now, if it were to go on.
    fn stays_away(&mut self, intent: u64) -> bool {
        let now = self.slurm.now();
        let since = *self.memory.touch(intent).interrupted_at.get_or_insert(now);
        now.since(since) >= REQUEUED_WITHIN
    }

    /// Neither command has the last word on a job: wait, then say what is known.
    fn miss(&mut self, intent: u64, job: &str, row: Option<&SqueueRow>) -> Result<(), SiteError> {
        let now = self.slurm.now();
        let patience = GONE_AFTER.max(Duration::from_secs(self.slurm.min_job_age_s()));
        let trace = self.memory.touch(intent);
        let seen = *trace.seen_at.get_or_insert(now);
        if now.since(seen) < patience {
            return Ok(());
        }
        if let Some(row) = row {
            return self.saw(convert::queued(intent, job, row), true);
        }
        let (id, number) = (JobId::new(job), IntentId(intent));
        self.report(Report::Gone {
            intent: number,
            job: id,
        })?;
        self.memory.note(intent, |trace| trace.over = true)
    }

    /// Takes up jobs of ours that this home knows nothing of: it is a new one.
    fn adopt(&mut self, rows: &[SqueueRow]) -> Result<(), SiteError> {
        let prefix = name_prefix(self.memory.run(), &self.profile.name);
        for row in rows {
            let (Some(job), Some(name)) = (row.job.value(), row.name.value()) else {
                continue;
            };
            let comment = row.comment.value().map_or("", String::as_str);
            let Some(intent) = intent_of(comment, self.memory.run()) else {
                continue;
            };
            let known = self
                .memory
                .get(intent)
                .is_some_and(|trace| trace.is_decided());
            if known || !name.starts_with(&prefix) {
                continue;
            }
            self.memory.touch(intent).name.clone_from(name);
            self.submitted(intent, &job.to_string(), hansa_queue::How::Found, comment)?;
        }
        Ok(())
    }

    /// Looks for an intent's job by name and comment, first in the queue, then in the accounting: what
    /// leaves the first is in the second.
    pub async fn search(&mut self, intent: u64, name: &str) -> Result<Search, SiteError> {
        let Ok(rows) = self.slurm.queue().await else {
            self.note_turns()?;
            return Ok(Search::Unknown);
        };
        self.note_turns()?;
        for row in &rows {
            let (name_of, comment) = (row.name.value(), row.comment.value());
            let job = row.job.value().filter(|job| job.is_allocation());
            if self.is_of(intent, name, name_of, comment)
                && let Some(job) = job
            {
                return Ok(Search::Found(job.to_string()));
            }
        }
        if !self.slurm.has_accounting() {
            return Ok(Search::Nothing);
        }
        self.breathe().await?;
        let Ok(rows) = self.slurm.accounting(DAYS).await else {
            self.note_turns()?;
            return Ok(Search::Unknown);
        };
        for row in &rows {
            let (name_of, comment) = (row.name.value(), row.comment.value());
            if self.is_of(intent, name, name_of, comment)
                && let Some(job) = row.job.value()
            {
                return Ok(Search::Found(job.to_string()));
            }
        }
        Ok(Search::Nothing)
    }

    /// Whether a job with this name and comment is the intent's.
    fn is_of(
        &self,
        intent: u64,
        wanted: &str,
        name: Option<&String>,
        comment: Option<&String>,
    ) -> bool {
        let run = self.memory.run();
        let prefix = name_prefix(run, &self.profile.name);
        let Some(name) = name.filter(|name| name.starts_with(&prefix)) else {
            return false;
        };
        if let Some(found) = comment.and_then(|comment| intent_of(comment, run)) {
            return found == intent;
        }
        // Accounting may keep no comments. A name that tells the intent is enough; the names of a
        // singleton chain do not.
        if self.profile.jobs.chain == Chain::Singleton {
            return false;
        }
        name == wanted || name.ends_with(&format!("-{intent}"))
    }
}

fn is_job(row: &SacctRow, job: &str) -> bool {
    row.job
        .value()
        .is_some_and(|found| found.to_string() == job)
}
