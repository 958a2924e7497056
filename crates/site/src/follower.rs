//! What Slurm says of our jobs: `squeue` now, `sacct` for good.
//!
//! A job leaves `squeue` some minutes after its end, and `sacct` knows of it seconds late: a job that
//! neither shows is "not yet known" for a while before it is "gone". A state that nobody listed changes
//! nothing. Never here: what follows from a state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use hansa_queue::{IntentId, JobId, JobReport, Report};
use hansa_slurm::parse::{JobState, SacctRow, SqueueRow};

use crate::convert;
use crate::error::SiteError;
use crate::profile::Profile;
use crate::script::{intent_of, name_prefix};
use crate::service::{Note, Site};

/// Without a live job the queue is looked at so often, for jobs that should not be there.
const IDLE_EVERY: Duration = Duration::from_secs(300);
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
    looked: Option<Instant>,
    /// Jobs of intents that have another one, or should have none, as they were told.
    doubles: BTreeSet<(u64, String)>,
    retold: u64,
}

impl Follower {
    /// For a profile; the first look is due at once.
    #[must_use]
    pub fn new(profile: &Profile) -> Self {
        Self {
            every: Duration::from_secs(profile.watch.follow_every_s),
            next: Instant::now(),
            looked: None,
            doubles: BTreeSet::new(),
            retold: 0,
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
        let lately = |looked: Instant| looked.elapsed() < IDLE_EVERY;
        if site.memory.live().is_empty() && self.looked.is_some_and(lately) {
            return Ok(());
        }
        let rows = site.slurm.queue().await;
        let Some(rows) = site.answer("squeue", rows)? else {
            return Ok(());
        };
        self.looked = Some(Instant::now());
        if std::mem::replace(&mut self.retold, site.retold) != site.retold {
            self.doubles.clear();
        }
        site.adopt(&rows, &mut self.doubles)?;
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
            true => {
                let accounts = self.slurm.accounting_of(&jobs).await;
                self.answer("sacct", accounts)?
            }
            false => Some(Vec::new()),
        };
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

    /// Takes up jobs of ours that this home knows nothing of, such as a new one; and tells of jobs that should
    /// not be there, once each.
    fn adopt(
        &mut self,
        rows: &[SqueueRow],
        doubles: &mut BTreeSet<(u64, String)>,
    ) -> Result<(), SiteError> {
        let prefix = name_prefix(self.memory.run(), &self.profile.name);
        for row in rows {
            let (Some(job), Some(name)) = (row.job.value(), row.name.value()) else {
                continue;
            };
            let comment = row.comment.value().map_or("", String::as_str);
            let intent = intent_of(comment, self.memory.run());
            let Some(intent) = intent.filter(|_| name.starts_with(&prefix)) else {
                continue;
            };
            let job = job.to_string();
            let trace = self.memory.get(intent);
            if trace.is_none_or(|trace| !trace.is_decided()) {
                self.memory.touch(intent).name.clone_from(name);
                self.submitted(intent, &job, hansa_queue::How::Found, comment)?;
                continue;
            }
            let known = trace.and_then(|trace| trace.job.as_deref()) == Some(&*job);
            if known || is_over(row.state.value()) == Some(true) {
                continue;
            }
            if doubles.insert((intent, job.clone())) {
                self.report(Report::Submitted {
                    intent: IntentId(intent),
                    job: JobId::new(&job),
                    how: hansa_queue::How::Found,
                    raw: comment.into(),
                })?;
            }
        }
        Ok(())
    }
}

fn is_job(row: &SacctRow, job: &str) -> bool {
    row.job
        .value()
        .is_some_and(|found| found.to_string() == job)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hansa_slurm::parse::{FieldList, Now, Squeue, UnixTime, Zone};

    use super::*;
    use crate::service::testing;

    const RUN: &str = "1a2b3c4d5e6f";

    #[test]
    fn a_second_job_of_an_intent_is_told_once_and_a_new_homes_jobs_are_taken_up() {
        let folder = tempfile::tempdir().unwrap();
        let mut site = testing::site(folder.path(), RUN);
        let row = |job: u32, state: &str, intent: u32| {
            format!(
                "{job}|{state}|None|N/A|N/A|N/A|2:00|gpu||hansa-1a2b3c4d-birch-r1-{intent}|\
                 hansa run=1a2b3c4d replica=r1 intent={intent}\n"
            )
        };
        let fields: FieldList = "%i,%T,%r,%S,%e,%V,%l,%P,%N,%j,%k".parse().unwrap();
        let now = Now {
            at: UnixTime(1_800_000_000),
            zone: Zone::UTC,
        };
        let text = [
            row(70, "RUNNING", 7),
            row(71, "PENDING", 7),
            row(72, "COMPLETED", 7),
        ]
        .concat();
        let rows = Squeue::parse(text.as_bytes(), Some(&fields), &now).rows;
        assert_eq!(rows.len(), 3);
        let mut doubles = BTreeSet::new();
        for _ in 0..3 {
            site.adopt(&rows, &mut doubles).unwrap();
        }
        let told = |site: &Site| -> Vec<String> {
            let batch = site.spool.batch().unwrap();
            let jobs = batch.iter().filter_map(|stamped| match &stamped.report {
                Report::Submitted { job, .. } => Some(job.to_string()),
                _ => None,
            });
            jobs.collect()
        };
        assert_eq!(told(&site), ["70", "71"]);
        assert_eq!(site.memory.live(), [(7, "70".to_owned())]);
        // The coordinator comes back from a backup.
        doubles.clear();
        site.adopt(&rows, &mut doubles).unwrap();
        assert_eq!(told(&site), ["70", "71", "71"]);
    }
}
