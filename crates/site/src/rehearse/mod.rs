//! A rehearsal: one short job against a run that is thrown away, through everything that a campaign needs.
//!
//! ```text
//!   this machine: a coordinator with a toy model ◄──── the job: starts, trains, uploads,
//!                                                      is told to leave, says goodbye
//! ```
//!
//! It is the profile's own script, container and launcher, and the site's own signal; only the run, its
//! data and the walltime are others. So compute nodes must reach this machine; whether they reach the real
//! coordinator is what `hansa site check --compute` sees. Never here: the real run.

mod stage;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hansa_slurm::parse::{JobState, SubmittedReply};
use hansa_wire::status::{ReplicaStatus, Status};

use crate::check::{Finding, Findings};
use crate::commands::{Slurm, Which};
use crate::error::SiteError;
use crate::profile::Profile;
use crate::script::{JobRequest, StartRule, render};
use stage::Stage;

const LOOK_EVERY: Duration = Duration::from_secs(2);
/// What accounting may be late by.
const LATE: Duration = Duration::from_secs(60);
const TAIL_BYTES: usize = 2000;
const REPLICA: &str = "rehearsal";

/// How to rehearse.
pub struct RehearseOptions {
    /// The profile.
    pub profile: Profile,
    /// The shape; the preferred one if none is named.
    pub shape: Option<String>,
    /// Walltime of the job.
    pub minutes: u64,
    /// How long it may wait in the queue.
    pub queue_max: Duration,
    /// The name by which compute nodes reach this machine; its own if none is given.
    pub host: Option<String>,
    /// Leave the rehearsal's files where they are.
    pub keep: bool,
    /// What is going on, for people.
    pub say: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Rehearses.
///
/// # Errors
/// If the stage cannot be set. What goes wrong on it is a finding.
pub async fn rehearse(options: RehearseOptions) -> Result<Vec<Finding>, SiteError> {
    let stage = Stage::set(&options).await?;
    let mut findings = Findings::default();
    let mut play = Play {
        slurm: Slurm::new(&stage.profile),
        profile: stage.profile.clone(),
        say: options.say.clone(),
        began: Instant::now(),
    };
    let job = play.submit(&mut findings).await;
    if let Some((job, name)) = job {
        let patience = options.queue_max;
        let fine = play.acts(&mut findings, &stage, &job, patience).await;
        if !fine {
            play.last_words(&mut findings, &job, &name).await;
            let _ = play.slurm.cancel(&job, Which::Any).await;
        }
    }
    let folder = stage.strike().await;
    if !options.keep {
        // What is left is told by its name.
        let _ = std::fs::remove_dir_all(folder);
    }
    Ok(findings.into_inner())
}

struct Play {
    slurm: Slurm,
    profile: Profile,
    say: Arc<dyn Fn(&str) + Send + Sync>,
    began: Instant,
}

/// One thing that must happen.
struct Act {
    what: &'static str,
    happened: fn(&Status) -> bool,
    advice: &'static str,
}

const ACTS: &[Act] = &[
    Act {
        what: "registered",
        happened: |status| replica(status).is_some(),
        advice: "does the compute node reach this machine? (--host)",
    },
    Act {
        what: "trains",
        happened: |status| replica(status).is_some_and(|r| r.counter > 0 || r.tally.committed > 0),
        advice: "look at the trainer's output",
    },
    Act {
        what: "uploaded",
        happened: |status| replica(status).is_some_and(|r| r.tally.committed > 0),
        advice: "look at the trainer's output",
    },
    Act {
        what: "said goodbye",
        happened: |status| replica(status).is_some_and(|r| !r.live),
        advice: "do the launcher and the container pass USR1 on?",
    },
];

/// What a job came to.
enum Ended {
    Not,
    As(JobState, Option<u32>),
}

impl Play {
    fn after(&self) -> String {
        format!("after {} s", self.began.elapsed().as_secs())
    }

    async fn submit(&mut self, findings: &mut Findings) -> Option<(String, String)> {
        let what = "submitted";
        let advice = "see `hansa site check`";
        if let Err(error) = self.slurm.config().await {
            findings.bad(what, error, advice);
            return None;
        }
        let shape = self.profile.shape(&self.profile.jobs.shape)?.clone();
        let request = JobRequest {
            run: "rehearsal",
            replica: REPLICA,
            intent: 1,
            link: 1,
            start: StartRule::Now,
            exclude: Vec::new(),
        };
        let script = render(&self.profile, &shape, &request);
        match self.slurm.submit(&script.text).await {
            Ok((submitted, printed)) => match submitted.reply {
                SubmittedReply::Accepted { job, .. } => {
                    findings.good(
                        what,
                        format!("job {job}, {} for {}", shape.name, shape.walltime),
                    );
                    (self.say)(&format!(
                        "job {job} waits in the queue; who stops this before it is over cancels it: scancel {job}"
                    ));
                    return Some((job.to_string(), script.name));
                }
                _ => findings.bad(what, printed.both(), advice),
            },
            Err(error) => findings.bad(what, error, advice),
        }
        None
    }

    /// Waits for one thing after the other; false if one of them does not come.
    async fn acts(
        &mut self,
        findings: &mut Findings,
        stage: &Stage,
        job: &str,
        patience: Duration,
    ) -> bool {
        let walltime = Duration::from_secs(60 * stage.minutes);
        if !self.starts(findings, job, patience).await {
            return false;
        }
        for act in ACTS {
            if !self.until(findings, stage, job, act, walltime).await {
                return false;
            }
        }
        self.ends(findings, job).await
    }

    async fn starts(&mut self, findings: &mut Findings, job: &str, patience: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < patience {
            match self.state(job).await {
                Some(JobState::Pending | JobState::Configuring) | None => {}
                Some(JobState::Running | JobState::Completing | JobState::Completed) => {
                    findings.good("started", self.after());
                    (self.say)("it runs");
                    return true;
                }
                Some(state) => {
                    findings.bad(
                        "started",
                        format!("the job is {state}"),
                        "see its output below",
                    );
                    return false;
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let advice = "try a debug shape (--shape), or wait longer (--queue-minutes)";
        findings.bad("started", format!("still waiting {}", self.after()), advice);
        false
    }

    async fn until(
        &mut self,
        findings: &mut Findings,
        stage: &Stage,
        job: &str,
        act: &Act,
        patience: Duration,
    ) -> bool {
        let (what, happened, advice) = (act.what, act.happened, act.advice);
        let began = Instant::now();
        let mut over = false;
        while began.elapsed() < patience + LATE {
            if stage.status().await.is_some_and(|status| happened(&status)) {
                findings.good(what, self.after());
                (self.say)(what);
                return true;
            }
            if over {
                findings.bad(what, "the job ended before", advice);
                return false;
            }
            // Asked once more after its end: the last call may be under way.
            over = matches!(self.state(job).await, Some(state) if state.is_over() == Some(true));
            tokio::time::sleep(LOOK_EVERY).await;
        }
        findings.bad(what, format!("not {}", self.after()), advice);
        false
    }

    async fn ends(&mut self, findings: &mut Findings, job: &str) -> bool {
        let began = Instant::now();
        while began.elapsed() < LATE {
            if let Ended::As(state, code) = self.ended(job).await {
                let found = format!(
                    "{state}, exit code {}",
                    code.map_or("unknown".into(), |c| c.to_string())
                );
                if state == JobState::Completed {
                    findings.good("ended", found);
                    return true;
                }
                let advice =
                    "the job must end by itself before its walltime: raise script.signal_before_s";
                findings.bad("ended", found, advice);
                return false;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        findings.warn("ended", "nobody says how", "accounting may be down");
        true
    }

    /// The job's state; `None` if nobody knows it now.
    async fn state(&mut self, job: &str) -> Option<JobState> {
        let rows = self.slurm.queue().await.ok()?;
        let row = rows
            .into_iter()
            .find(|row| row.job.value().is_some_and(|j| j.to_string() == job));
        match row {
            Some(row) => row.state.value().cloned(),
            None => match self.ended(job).await {
                Ended::As(state, _) => Some(state),
                Ended::Not => None,
            },
        }
    }

    async fn ended(&mut self, job: &str) -> Ended {
        let rows = match self.slurm.has_accounting() {
            true => self.slurm.accounting_of(&[job]).await.unwrap_or_default(),
            false => Vec::new(),
        };
        let mut ours = rows
            .iter()
            .filter(|row| row.job.value().is_some_and(|j| j.to_string() == job));
        let last = ours.next_back();
        let state = last.and_then(|row| row.state.value().cloned());
        match state.filter(|state| state.is_over() == Some(true)) {
            Some(state) => {
                let code = last
                    .and_then(|row| row.exit_code.value())
                    .map(|exit| exit.code);
                Ended::As(state, code)
            }
            None => Ended::Not,
        }
    }

    async fn last_words(&self, findings: &mut Findings, job: &str, name: &str) {
        let path = self.profile.script.logs.join(format!("{name}-{job}.out"));
        let text = self.slurm.tail(&path.to_string_lossy(), TAIL_BYTES).await;
        let text = text.ok().flatten().unwrap_or_else(|| "nothing".to_owned());
        findings.skip("the job's last lines", text.trim());
    }
}

fn replica(status: &Status) -> Option<&ReplicaStatus> {
    status
        .replicas
        .iter()
        .find(|replica| replica.replica == REPLICA)
}

/// Where a rehearsal's files lie.
pub(crate) fn folder(profile: &Profile) -> PathBuf {
    profile.script.state.join("hansa-rehearsal")
}
