//! From what a snapshot says to what the simulators walk through.
//!
//! Never here: a number that the snapshot does not have. What is missing is the error.

use std::time::Duration;

use crate::candidate::{Candidate, Exclusion, Speed, shape_wait};
use crate::chain::{FirstJob, Member, Then};
use crate::rounds::{Balance, World};
use crate::run::Snapshot;
use crate::site::{ChainPolicy, Job, JobState};

/// Why rounds cannot be simulated at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplannable {
    /// The coordinator's share of a round is unknown.
    #[error(
        "nobody knows how long a merge takes: let the run close a round, or say [plan] merge_s in the \
         recipe and start the coordinator again"
    )]
    NoMerge,
}

/// How a replica is to be run, beyond its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Replicas, each in a job of its own.
    pub replicas: u32,
    /// What follows a job; its wait is the shape's.
    pub chain: ChainPolicy,
    /// Jobs at most.
    pub jobs_max: u32,
    /// Its first job starts no earlier.
    pub begins_in: Duration,
}

impl World {
    /// What the snapshot says of the run, over this horizon, with the recipe's accumulation.
    ///
    /// # Errors
    /// When no round's merge was ever measured or stated.
    pub fn of(snapshot: &Snapshot, horizon: Duration) -> Result<Self, Unplannable> {
        let run = &snapshot.run;
        Ok(Self {
            steps: run.phase.steps,
            target: run.target,
            corpus: run.corpus,
            merge: run.merge.best().ok_or(Unplannable::NoMerge)?.value,
            exchange: snapshot.policy.exchange,
            balance: Balance::Off,
            accumulation_max: run.phase.accumulation,
            horizon,
            sites: snapshot
                .sites
                .iter()
                .map(|s| s.bounds(snapshot.now))
                .collect(),
        })
    }
}

impl Member {
    /// Replicas in this shape, all submitted now.
    ///
    /// # Errors
    /// The candidate's own, when its exchange is not known.
    pub fn of(snapshot: &Snapshot, candidate: &Candidate, terms: Terms) -> Result<Self, Exclusion> {
        let speed = &candidate.speed;
        let exchange = speed.exchange.as_ref().map_err(Clone::clone)?.total();
        let wait = candidate.wait.at(snapshot.policy.quantile);
        let startup = speed.startup.value;
        let starts_in = candidate.starts_in.max(terms.begins_in);
        let batch = snapshot.run.phase.batch;
        Ok(Self {
            site: candidate.site_index,
            replicas: terms.replicas,
            gpus: candidate.shape.gpus(),
            micro_windows: speed.micro_windows(batch),
            micro_step: speed.micro_step(batch),
            accumulation: snapshot.run.phase.accumulation,
            exchange,
            first: FirstJob {
                starts_in,
                ready_in: starts_in.saturating_add(startup),
                ends_in: starts_in.saturating_add(candidate.walltime),
                paid: false,
            },
            walltime: candidate.walltime,
            startup,
            then: match terms.chain {
                ChainPolicy::Single => Then::Nothing,
                ChainPolicy::AfterEnd => Then::AfterEnd { wait },
                ChainPolicy::Ahead => Then::Ahead { wait },
            },
            jobs_max: terms.jobs_max,
        })
    }

    /// The replica of a job that the site has already. It runs as it was submitted, and nothing
    /// follows it: what comes after is a decision. A pending job is counted on to start when its shape's
    /// wait, counted from its submission, is over; one that is overdue, after as long again as it is
    /// overdue, but no later than a job that is submitted now. It is paid from what is left, as one that
    /// runs is not.
    ///
    /// # Errors
    /// What is not known of its shape.
    pub fn of_job(snapshot: &Snapshot, site: usize, job: &Job) -> Result<Self, Exclusion> {
        let place = snapshot.sites.get(site).ok_or(Exclusion::UnknownShape)?;
        let state = place.shape(&job.shape).ok_or(Exclusion::UnknownShape)?;
        let speed = Speed::of(snapshot, place, state)?;
        let exchange = speed.exchange.as_ref().map_err(Clone::clone)?.total();
        let (startup, walltime) = (speed.startup.value, place.usable(state.shape.walltime));
        let started = match job.state {
            JobState::Running { started } => started,
            JobState::Pending { submitted } => {
                let wait = shape_wait(snapshot, place, state)?;
                let wait = wait.at(snapshot.policy.quantile);
                let start = submitted.after(wait);
                let overdue = snapshot.now.since(start);
                match overdue.is_zero() {
                    true => start,
                    false => snapshot.now.after(overdue.min(wait)),
                }
            }
        };
        let until = |after: Duration| started.after(after).since(snapshot.now);
        let batch = snapshot.run.phase.batch;
        Ok(Self {
            site,
            replicas: 1,
            gpus: state.shape.gpus(),
            micro_windows: speed.micro_windows(batch),
            micro_step: speed.micro_step(batch),
            accumulation: snapshot.run.phase.accumulation,
            exchange,
            first: FirstJob {
                starts_in: until(Duration::ZERO),
                ready_in: until(startup),
                ends_in: until(walltime),
                paid: matches!(job.state, JobState::Running { .. }),
            },
            walltime,
            startup,
            then: Then::Nothing,
            jobs_max: 1,
        })
    }
}
