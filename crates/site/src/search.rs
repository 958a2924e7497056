//! Looks for an intent's job: by number, or by name and comment.
//!
//! First in the queue, then in the accounting: what leaves the first is in the second. Never here: what follows
//! from there being one, or none.

use hansa_slurm::parse::{SacctRow, SqueueRow};

use crate::error::SiteError;
use crate::script::{intent_of, name_prefix};
use crate::service::{Site, unix_now};

/// Accounting is asked about so many hours, where it is not known when a job may have been submitted: no job
/// of ours waits longer than it is worth.
const SEARCH_HOURS_MAX: u64 = 30 * 24;
/// Clocks of login nodes and controllers differ by less: `munge` sees to that.
const CLOCKS_S: i64 = 300;

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

impl Site {
    /// Whether a job in the queue is the intent's, by the job's number; `None` if nobody can say.
    pub async fn is_in_queue(&mut self, intent: u64, job: &str) -> Result<Option<bool>, SiteError> {
        let rows = self.slurm.queue().await;
        let Some(rows) = self.answer("squeue", rows)? else {
            return Ok(None);
        };
        let mut of_number = rows.iter().filter(|row| {
            let number = row.job.value();
            number.is_some_and(|number| number.to_string() == job)
        });
        Ok(Some(of_number.any(|row| {
            self.is_of(intent, "", &Candidate::queued(row))
        })))
    }

    /// Looks for an intent's job by name and comment, first in the queue, then in the accounting: what
    /// leaves the first is in the second.
    pub async fn search(&mut self, intent: u64, name: &str) -> Result<Search, SiteError> {
        let rows = self.slurm.queue().await;
        let Some(rows) = self.answer("squeue", rows)? else {
            return Ok(Search::Unknown);
        };
        let queued = rows.iter().map(Candidate::queued);
        if let Some(found) = self.first_of(intent, name, queued) {
            return Ok(Search::Found(found));
        }
        if !self.slurm.has_accounting() {
            return Ok(Search::Nothing);
        }
        self.breathe().await?;
        let attempted_at = self.memory.get(intent).and_then(|trace| trace.attempted_at);
        let rows = self.slurm.accounting(hours_since(attempted_at)).await;
        let Some(rows) = self.answer("sacct", rows)? else {
            return Ok(Search::Unknown);
        };
        let accounted = rows.iter().map(Candidate::accounted);
        Ok(match self.first_of(intent, name, accounted) {
            Some(found) => Search::Found(found),
            None => Search::Nothing,
        })
    }

    fn first_of<'a>(
        &self,
        intent: u64,
        name: &str,
        mut candidates: impl Iterator<Item = Candidate<'a>>,
    ) -> Option<String> {
        candidates
            .find(|candidate| self.is_of(intent, name, candidate))
            .and_then(|candidate| candidate.job)
    }

    /// Whether a job is the intent's, which was, or would be, submitted as `wanted`.
    fn is_of(&self, intent: u64, wanted: &str, candidate: &Candidate<'_>) -> bool {
        let run = self.memory.run();
        let sought = Sought {
            run,
            prefix: &name_prefix(run, &self.profile.name),
            intent,
            name: wanted,
            attempted_at: self.memory.get(intent).and_then(|trace| trace.attempted_at),
        };
        let of_another = |job: &String| self.memory.is_of_another(intent, job);
        match sought.fit(candidate) {
            Fit::Surely => candidate.job.is_some(),
            Fit::UnlessAnothers => candidate.job.as_ref().is_some_and(|job| !of_another(job)),
            Fit::No => false,
        }
    }
}

/// The job that is looked for.
struct Sought<'a> {
    run: &'a str,
    prefix: &'a str,
    intent: u64,
    name: &'a str,
    attempted_at: Option<i64>,
}

/// A job that may be an intent's.
struct Candidate<'a> {
    job: Option<String>,
    name: Option<&'a str>,
    comment: &'a str,
    submitted: Option<i64>,
}

/// Whether it is.
#[derive(Debug, PartialEq, Eq)]
enum Fit {
    Surely,
    UnlessAnothers,
    No,
}

impl Sought<'_> {
    fn fit(&self, candidate: &Candidate<'_>) -> Fit {
        let name = candidate.name.filter(|name| name.starts_with(self.prefix));
        let Some(name) = name else {
            return Fit::No;
        };
        let intent = self.intent;
        if let Some(found) = intent_of(candidate.comment, self.run) {
            return if found == intent {
                Fit::Surely
            } else {
                Fit::No
            };
        }
        // Accounting may keep no comments. A name that tells the intent is enough. In a singleton chain all
        // have the same: then it is the one of no other intent that was submitted since we were about to.
        if name.ends_with(&format!("-{intent}")) {
            return Fit::Surely;
        }
        let times = self.attempted_at.zip(candidate.submitted);
        let since = times.is_some_and(|(attempt, submit)| submit >= attempt - CLOCKS_S);
        match name == self.name && since {
            true => Fit::UnlessAnothers,
            false => Fit::No,
        }
    }
}

impl<'a> Candidate<'a> {
    fn queued(row: &'a SqueueRow) -> Self {
        let job = row.job.value().filter(|job| job.is_allocation());
        Self {
            job: job.map(ToString::to_string),
            name: row.name.value().map(String::as_str),
            comment: row.comment.value().map_or("", String::as_str),
            submitted: row.submit.value().map(|at| at.0),
        }
    }

    fn accounted(row: &'a SacctRow) -> Self {
        Self {
            job: row.job.value().map(ToString::to_string),
            name: row.name.value().map(String::as_str),
            comment: row.comment.value().map_or("", String::as_str),
            submitted: row.submit.value().map(|at| at.0),
        }
    }
}

/// How far back a job may have been submitted that was attempted at a time by this machine's clock.
fn hours_since(attempted_at: Option<i64>) -> u64 {
    let now = i64::try_from(unix_now().0).unwrap_or(i64::MAX);
    let since = attempted_at.and_then(|at| u64::try_from(now - at).ok());
    since.map_or(SEARCH_HOURS_MAX, |since| {
        (since.div_ceil(3600) + 1).min(SEARCH_HOURS_MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "1a2b3c4d5e6f";

    fn candidate<'a>(name: &'a str, comment: &'a str, submitted: i64) -> Candidate<'a> {
        Candidate {
            job: Some("70".to_owned()),
            name: Some(name),
            comment,
            submitted: Some(submitted),
        }
    }

    #[test]
    fn a_job_is_told_by_its_comment_or_its_name_or_in_a_chain_of_one_name_by_its_time() {
        let alike = "hansa-1a2b3c4d-birch-r1";
        let sought = Sought {
            run: RUN,
            prefix: "hansa-1a2b3c4d-birch-",
            intent: 7,
            name: alike,
            attempted_at: Some(10_000),
        };
        let fit = |name, comment, at| sought.fit(&candidate(name, comment, at));
        let ours = "hansa run=1a2b3c4d replica=r1 intent=7";
        assert_eq!(fit(alike, ours, 0), Fit::Surely);
        assert_eq!(
            fit(alike, "hansa run=1a2b3c4d replica=r1 intent=6", 10_001),
            Fit::No
        );
        // Submitted before the chain was changed to one name.
        assert_eq!(fit("hansa-1a2b3c4d-birch-r1-7", "", 0), Fit::Surely);
        // Accounting keeps no comments: the attempt's reply was lost while nobody watched.
        assert_eq!(fit(alike, "", 10_001), Fit::UnlessAnothers);
        assert_eq!(fit(alike, "", 9000), Fit::No, "an earlier link");
        assert_eq!(fit("hansa-1a2b3c4d-birch-r2", "", 10_001), Fit::No);
        assert_eq!(fit("hansa-5555-birch-r1-7", "", 10_001), Fit::No);
    }
}
