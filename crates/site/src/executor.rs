//! Orders of the coordinator, carried out at most once.
//!
//! ```text
//!   order ─► anything known? ─► look for the job ─► ask again: is it still ordered, the lease alive?
//!                 │ yes               │ there               │ yes
//!                 ▼                   ▼                     ▼
//!           say it again      Submitted (found)    note the attempt, fsync ─► sbatch ─► its reply
//!                                                                                │ lost or unclear
//!                       look until the request must have settled, then NotSubmitted ◄┘
//! ```
//!
//! An attempt without an outcome is never repeated before a controller that has answered all along for the
//! settle time knows of no job by that name. That holds for whoever made the attempt: this process, one
//! that was killed, or another holder of the lease. An attempt whose answer is known is not repeated at all:
//! the coordinator hears the answer, and decides. Between the coordinator's word and `sbatch` there are only
//! two writes to disk; if they take too long, the word is stale.

use std::time::Duration;

use hansa_queue::{
    Begin, How, IntentId, JobId, Line, Order, Raw, Refusal, RefusalKind, Report, ShapeName,
    Submission,
};
use hansa_slurm::parse::{Submitted, SubmittedReply};

use crate::commands::{ACT_WITHIN, SlurmError, Which};
use crate::convert;
use crate::error::SiteError;
use crate::follower::Follower;
use crate::memory::Doubt;
use crate::runner::Printed;
use crate::script::{JobRequest, JobScript, StartRule, render};
use crate::search::Search;
use crate::service::{Note, Site, unix_now};

/// What the coordinator keeps of a job's output.
const TAIL_BYTES: usize = 4096;
/// A job that may turn up is looked for so often.
const SEARCH_AGAIN: Duration = Duration::from_secs(5);

impl Site {
    /// Orders that have no reported outcome yet.
    pub fn has_open_orders(&self) -> bool {
        self.link.orders().iter().any(|order| !self.is_done(order))
    }

    /// Whether the outcome lies in the spool, so that the order will not come again.
    fn is_done(&self, order: &Order) -> bool {
        let key = key_of(order);
        let said = self.done.get(&key);
        said.is_some_and(|seq| *seq > self.spool.accepted_through())
    }

    pub async fn execute_orders(&mut self, follower: &mut Follower) -> Result<(), SiteError> {
        for order in self.link.orders().to_vec() {
            if self.is_done(&order) || !self.slurm.wait().is_zero() {
                continue;
            }
            match &order {
                Order::Submit(submission) => self.submit(submission, &order).await?,
                Order::Withdraw { intent, why } => self.withdraw(*intent, why, &order).await?,
                Order::Cancel { intent, job, why } => {
                    self.cancel(*intent, job, why, Which::Any, &order).await?;
                    follower.hurry();
                }
                Order::Recall { intent, job, why } => {
                    self.cancel(*intent, job, why, Which::Waiting, &order)
                        .await?;
                    follower.hurry();
                }
                Order::Release { intent, job } => self.release(*intent, job, &order).await?,
                Order::Tail { intent, job } => self.tail(*intent, job, &order).await?,
                Order::Probe { shape } => self.probe_now(shape, &order).await?,
            }
            self.note_turns()?;
            self.breathe().await?;
        }
        let accepted = self.spool.accepted_through();
        self.done.retain(|_, seq| *seq > accepted);
        Ok(())
    }

    fn outcome(&mut self, order: &Order, report: Report) -> Result<(), SiteError> {
        let seq = self.report(report)?;
        self.done.insert(key_of(order), seq);
        Ok(())
    }

    /// True if the intent's outcome is known, and has been said again.
    fn repeat(&mut self, intent: u64, order: &Order) -> Result<bool, SiteError> {
        let Some(trace) = self.memory.get(intent) else {
            return Ok(false);
        };
        let (job, refused) = (trace.job.clone(), trace.refused.clone());
        let report = match (job, refused) {
            (Some(job), _) => Report::Submitted {
                intent: IntentId(intent),
                job: JobId::new(&job),
                how: How::Found,
                raw: Raw::new("known to the site process"),
            },
            (None, Some(text)) => Report::NotSubmitted {
                intent: IntentId(intent),
                refusal: Refusal {
                    kind: RefusalKind::Other(Line::new("earlier")),
                    lasting: false,
                    text: Line::new(&text),
                },
                raw: Raw::new(&text),
            },
            (None, None) => return Ok(false),
        };
        self.outcome(order, report)?;
        Ok(true)
    }

    async fn submit(&mut self, wanted: &Submission, order: &Order) -> Result<(), SiteError> {
        let intent = wanted.intent.0;
        if self.repeat(intent, order)? || self.slurm.known_config().is_none() {
            // Without the site's time-outs nobody can say how long an attempt may be under way.
            return Ok(());
        }
        let Some(script) = self.script(wanted) else {
            return self.refuse_unknown_shape(wanted, order);
        };
        if wanted.tried {
            let now = self.slurm.now();
            self.memory.touch(intent).suspected_at.get_or_insert(now);
        }
        if !self.may_attempt(intent, &script.name, order).await? {
            return Ok(());
        }
        if self.tell_doubt(intent, order)? {
            return Ok(());
        }
        if wanted.begin == Begin::Now
            && let Some(probe) = self.probe(wanted.shape.as_str()).await
        {
            // What the queue promised this very job: later compared with what it did.
            self.report(Report::Probe(probe))?;
        }
        self.prepare_folders().await?;
        if !self.slurm.wait().is_zero() {
            return Ok(());
        }
        // That took time. Is it still wanted, and are we still the ones to do it?
        if !self.sync(false).await? || !self.link.orders().contains(order) {
            return Ok(());
        }
        let now = self.slurm.now();
        self.memory.note(intent, |trace| {
            trace.name.clone_from(&script.name);
            trace.attempted_at = i64::try_from(unix_now().0).ok();
            trace.suspected_at = Some(now);
        })?;
        self.report(Report::Attempting {
            intent: IntentId(intent),
        })?;
        if !self.link.was_confirmed_within(ACT_WITHIN) {
            let why = "too long from the coordinator's word to sbatch: is the home's disk or the link so slow?";
            return self.fails("submission", why);
        }
        self.works("submission")?;
        let reply = self.slurm.submit(&script.text).await;
        self.note_turns()?;
        self.replied(intent, reply, order)
    }

    /// What `sbatch` said. Where that leaves a doubt, the next rounds look for the job.
    fn replied(
        &mut self,
        intent: u64,
        reply: Result<(Submitted, Printed), SlurmError>,
        order: &Order,
    ) -> Result<(), SiteError> {
        let (submitted, printed) = match reply {
            Ok(reply) => reply,
            Err(error) => return self.doubt(intent, RefusalKind::Controller, &error.to_string()),
        };
        let raw = printed.both();
        match submitted.reply {
            SubmittedReply::Accepted { job, .. } => {
                let seq = self.submitted(intent, &job.to_string(), How::Reply, &raw)?;
                self.done.insert(key_of(order), seq);
                Ok(())
            }
            SubmittedReply::Refused(reason) if !is_of_controller(&reason) => {
                let refusal = convert::refusal(&reason);
                self.refuse(intent, refusal, &raw, order)
            }
            SubmittedReply::Refused(reason)
            | SubmittedReply::Unclear {
                error: Some(reason),
            } => {
                let refusal = convert::refusal(&reason);
                self.doubt(intent, refusal.kind, refusal.text.as_str())
            }
            SubmittedReply::Unclear { error: None } => {
                let text = format!("sbatch said nothing that is understood: {raw}");
                let kind = RefusalKind::Other(Line::new("unclear"));
                self.doubt(intent, kind, &text)
            }
        }
    }

    /// There is no job after all: what was said of it goes to the coordinator, and what follows is decided
    /// there. False if nothing was said.
    fn tell_doubt(&mut self, intent: u64, order: &Order) -> Result<bool, SiteError> {
        let trace = self.memory.get(intent);
        let Some(doubt) = trace.and_then(|trace| trace.doubt.clone()) else {
            return Ok(false);
        };
        let refusal = Refusal {
            kind: RefusalKind::from_word(&doubt.kind),
            lasting: false,
            text: Line::new(&doubt.text),
        };
        self.refuse(intent, refusal, &doubt.text, order)?;
        Ok(true)
    }

    fn doubt(&mut self, intent: u64, kind: RefusalKind, text: &str) -> Result<(), SiteError> {
        let now = self.slurm.now();
        let (kind, text) = (kind.word().to_owned(), text.to_owned());
        self.memory.note(intent, |trace| {
            trace.suspected_at = Some(now);
            trace.doubt = Some(Doubt { kind, text });
        })
    }

    /// Whether nothing speaks against calling `sbatch` for this intent now: there is no job of its name,
    /// and no request for one under way. A job that is found settles the order.
    async fn may_attempt(
        &mut self,
        intent: u64,
        name: &str,
        order: &Order,
    ) -> Result<bool, SiteError> {
        let now = self.slurm.now();
        let trace = self.memory.touch(intent);
        let lately = |at: &hansa_base::MonoMs| now.since(*at) < SEARCH_AGAIN;
        if trace.searched_at.as_ref().is_some_and(lately) {
            return Ok(false);
        }
        trace.searched_at = Some(now);
        // The profile may have changed since the attempt, and with it how jobs are named.
        let name = match trace.attempted_at {
            Some(_) => trace.name.clone(),
            None => name.to_owned(),
        };
        let search = self.search(intent, &name).await?;
        let found = match search {
            Search::Found(job) => job,
            Search::Unknown => return Ok(false),
            Search::Nothing => {
                let trace = self.memory.get(intent).cloned().unwrap_or_default();
                // Without a time of this process's own the attempt was a predecessor's: from now on.
                let suspected = trace.attempted_at.is_some() || trace.suspected_at.is_some();
                if !suspected {
                    return Ok(true);
                }
                let now = self.slurm.now();
                let since = *self.memory.touch(intent).suspected_at.get_or_insert(now);
                return Ok(self.slurm.settled(since));
            }
        };
        let seq = self.submitted(intent, &found, How::Found, "found by its name")?;
        self.done.insert(key_of(order), seq);
        Ok(false)
    }

    fn refuse(
        &mut self,
        intent: u64,
        refusal: Refusal,
        raw: &str,
        order: &Order,
    ) -> Result<(), SiteError> {
        let why = refusal.to_string();
        self.memory
            .note(intent, |trace| trace.refused = Some(why.clone()))?;
        self.tell(&Note::Refused { intent, why });
        let (intent, raw) = (IntentId(intent), Raw::new(raw));
        let report = Report::NotSubmitted {
            intent,
            refusal,
            raw,
        };
        self.outcome(order, report)
    }

    fn refuse_unknown_shape(
        &mut self,
        wanted: &Submission,
        order: &Order,
    ) -> Result<(), SiteError> {
        let text = format!("the profile here has no shape {}", wanted.shape);
        let refusal = Refusal {
            kind: RefusalKind::Other(Line::new("unknown-shape")),
            lasting: true,
            text: Line::new(&text),
        };
        self.refuse(wanted.intent.0, refusal, &text, order)
    }

    fn script(&self, wanted: &Submission) -> Option<JobScript> {
        let shape = self.profile.shape(wanted.shape.as_str())?;
        let start = match wanted.begin {
            Begin::Now => StartRule::Now,
            Begin::Singleton => StartRule::Singleton,
            Begin::At(at) => match at.since_s(unix_now()) {
                0 => StartRule::Now,
                seconds => StartRule::InSeconds(seconds),
            },
        };
        let request = JobRequest {
            run: self.memory.run(),
            replica: wanted.replica.as_str(),
            intent: wanted.intent.0,
            link: wanted.link,
            start,
            exclude: wanted.exclude.iter().map(Line::as_str).collect(),
        };
        Some(render(&self.profile, shape, &request))
    }

    /// Jobs fail at once where their folders are missing.
    async fn prepare_folders(&mut self) -> Result<(), SiteError> {
        let script = &self.profile.script;
        let mut folders = vec![&script.state, &script.logs];
        folders.extend(&script.cache);
        let folders: Vec<_> = folders.iter().map(|path| path.to_string_lossy()).collect();
        let words = ["mkdir", "-p", "--"].into_iter();
        let line = crate::shell::join(words.chain(folders.iter().map(AsRef::as_ref)));
        // If it fails, the job's own failure says why.
        let _ = self.slurm.shell(&line).await;
        Ok(())
    }

    async fn withdraw(
        &mut self,
        intent: IntentId,
        why: &Line,
        order: &Order,
    ) -> Result<(), SiteError> {
        if self.repeat(intent.0, order)? {
            return Ok(());
        }
        let name = self.memory.get(intent.0).map(|trace| trace.name.clone());
        let now = self.slurm.now();
        // Whether another holder tried is not said: assume it.
        self.memory.touch(intent.0).suspected_at.get_or_insert(now);
        let name = name.unwrap_or_default();
        if !self.may_attempt(intent.0, &name, order).await? {
            return Ok(());
        }
        let refusal = Refusal {
            kind: RefusalKind::Withdrawn,
            lasting: true,
            text: why.clone(),
        };
        self.refuse(intent.0, refusal, "", order)
    }

    async fn cancel(
        &mut self,
        intent: IntentId,
        job: &JobId,
        why: &Line,
        which: Which,
        order: &Order,
    ) -> Result<(), SiteError> {
        // A number is not enough: it may be another job's by now.
        let ours = match self.memory.get(intent.0) {
            Some(trace) if trace.job.as_deref() == Some(job.as_str()) => !trace.over,
            // The intent may have another one, which is wanted.
            _ => match self.is_in_queue(intent.0, job.as_str()).await? {
                Some(ours) => ours,
                None => return Ok(()),
            },
        };
        if ours && self.slurm.cancel(job.as_str(), which).await.is_err() {
            return Ok(());
        }
        self.tell(&Note::Cancelled {
            intent: intent.0,
            job: job.to_string(),
            why: why.to_string(),
        });
        let job = job.clone();
        self.outcome(order, Report::Cancelled { intent, job })
    }

    async fn release(
        &mut self,
        intent: IntentId,
        job: &JobId,
        order: &Order,
    ) -> Result<(), SiteError> {
        match self.slurm.release(job.as_str()).await {
            Err(error) if error.is_of_controller() => Ok(()),
            // Refused: it runs already, or is gone. Its state says which.
            Ok(()) | Err(_) => {
                let job = job.clone();
                self.outcome(order, Report::Released { intent, job })
            }
        }
    }

    async fn tail(
        &mut self,
        intent: IntentId,
        job: &JobId,
        order: &Order,
    ) -> Result<(), SiteError> {
        let name = self.memory.get(intent.0).map(|trace| trace.name.clone());
        let name = name.unwrap_or_default();
        let path = self.profile.script.logs.join(format!("{name}-{job}.out"));
        let Ok(text) = self.slurm.tail(&path.to_string_lossy(), TAIL_BYTES).await else {
            return Ok(());
        };
        let (job, text) = (job.clone(), Raw::new(&text.unwrap_or_default()));
        self.outcome(order, Report::Tail { intent, job, text })
    }

    async fn probe_now(&mut self, shape: &ShapeName, order: &Order) -> Result<(), SiteError> {
        let Some(report) = self.probe(shape.as_str()).await else {
            return Ok(());
        };
        self.outcome(order, Report::Probe(report))
    }
}

fn is_of_controller(refusal: &hansa_slurm::parse::Refusal) -> bool {
    refusal.kind == hansa_slurm::parse::RefusalKind::Controller
}

fn key_of(order: &Order) -> (&'static str, u64) {
    match order {
        Order::Submit(submission) => ("submit", submission.intent.0),
        Order::Withdraw { intent, .. } => ("withdraw", intent.0),
        Order::Cancel { intent, .. } => ("cancel", intent.0),
        Order::Recall { intent, .. } => ("recall", intent.0),
        Order::Release { intent, .. } => ("release", intent.0),
        Order::Tail { intent, .. } => ("tail", intent.0),
        Order::Probe { shape } => ("probe", hash_of(shape.as_str())),
    }
}

/// FNV-1a: tells a handful of shapes apart.
fn hash_of(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hansa_slurm::parse::{Now, UnixTime, Zone};

    use super::*;
    use crate::service::testing;

    fn said(stderr: &str) -> Result<(Submitted, Printed), SlurmError> {
        let printed = Printed {
            stdout: Vec::new(),
            stderr: stderr.as_bytes().to_vec(),
            code: Some(1),
            took: Duration::ZERO,
            now: Now {
                at: UnixTime(1_800_000_000),
                zone: Zone::UTC,
            },
        };
        Ok((Submitted::parse(b"", stderr.as_bytes()), printed))
    }

    fn order(intent: u64) -> Order {
        Order::Withdraw {
            intent: IntentId(intent),
            why: "".into(),
        }
    }

    /// What the coordinator is told of intents: the refusal's kind, its text, and whether it lasts.
    fn refusals(site: &Site) -> Vec<(u64, String, String, bool)> {
        let batch = site.spool.batch().unwrap();
        let refusals = batch.iter().filter_map(|stamped| match &stamped.report {
            Report::NotSubmitted {
                intent, refusal, ..
            } => {
                let (kind, text) = (refusal.kind.word().to_owned(), refusal.text.to_string());
                Some((intent.0, kind, text, refusal.lasting))
            }
            _ => None,
        });
        refusals.collect()
    }

    #[test]
    fn an_answer_in_words_that_nobody_listed_is_told_once_there_is_surely_no_job() {
        let folder = tempfile::tempdir().unwrap();
        let mut site = testing::site(folder.path(), "1a2b");
        let answers = [
            "sbatch: error: Batch job submission failed: The moon is in the wrong phase\n",
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
            "Segmentation fault\n",
        ];
        for (intent, answer) in (1..).zip(answers) {
            site.replied(intent, said(answer), &order(intent)).unwrap();
        }
        assert_eq!(refusals(&site), [], "the job may be there all the same");
        // Killed meanwhile: the next process does not try again either, but tells what was said.
        drop(site);
        let mut site = testing::site(folder.path(), "1a2b");
        for (intent, answer) in (1..).zip(answers) {
            assert!(site.tell_doubt(intent, &order(intent)).unwrap());
            let (of, _, text, lasting) = refusals(&site).pop().unwrap();
            let words = answer.rsplit(": ").next().unwrap().trim();
            assert!(of == intent && text.contains(words) && !lasting, "{text}");
            assert!(site.repeat(intent, &order(intent)).unwrap());
        }
        assert!(!site.tell_doubt(9, &order(9)).unwrap());
    }

    #[test]
    fn a_refusal_that_is_certain_is_told_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut site = testing::site(folder.path(), "1a2b");
        let text = "sbatch: error: Batch job submission failed: Invalid account or account/partition \
                    combination specified\n";
        site.replied(1, said(text), &order(1)).unwrap();
        let (_, kind, _, lasting) = refusals(&site).pop().unwrap();
        assert_eq!((kind.as_str(), lasting), ("access", true));
    }
}
