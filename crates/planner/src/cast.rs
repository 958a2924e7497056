//! From what a snapshot says to what the simulators walk through.
//!
//! Never here: a number that the snapshot does not have. What is missing is the error.

use std::time::Duration;

use hansa_base::Windows;

use crate::candidate::{Candidate, Exclusion};
use crate::chain::{FirstJob, Member, Then};
use crate::rounds::World;
use crate::run::Snapshot;

/// Why rounds cannot be simulated at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplannable {
    /// The coordinator's share of a round is unknown.
    #[error(
        "nobody knows how long a merge takes: let the run close a round, or state merge_s in the \
         coordinator's configuration"
    )]
    NoMerge,
}

/// How a replica is to be run, beyond its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// `A`.
    pub accumulation: u32,
    /// What follows a job; its wait is the shape's.
    pub chain: ChainPolicy,
    /// Jobs at most.
    pub jobs_max: u32,
    /// Its first job starts no earlier.
    pub begins_in: Duration,
}

/// How a replica outlives its walltime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChainPolicy {
    /// It does not.
    Single,
    /// The successor is submitted when a job ends, and waits as long as the first.
    AfterEnd,
    /// The successor is submitted when a job starts, so that it waits while that one runs. It needs a
    /// second place under the site's job limit.
    Ahead,
}

impl World {
    /// What the snapshot says of the run, over this horizon.
    ///
    /// # Errors
    /// When no round's merge was ever measured or stated.
    pub fn of(snapshot: &Snapshot, horizon: Duration) -> Result<Self, Unplannable> {
        let run = &snapshot.run;
        let budget = |site: &crate::site::Site| site.budget.as_ref().map(|b| b.spendable_gpu_s());
        Ok(Self {
            steps: run.phase.steps,
            target: run.target,
            corpus: run.corpus,
            merge: run.merge.best().ok_or(Unplannable::NoMerge)?.value,
            exchange: snapshot.policy.exchange,
            horizon,
            budgets_gpu_s: snapshot.sites.iter().map(budget).collect(),
        })
    }
}

impl Member {
    /// One replica in this shape.
    ///
    /// # Errors
    /// The candidate's own, when its exchange is not known.
    pub fn of(snapshot: &Snapshot, candidate: &Candidate, terms: Terms) -> Result<Self, Exclusion> {
        let exchange = candidate.exchange.as_ref().map_err(Clone::clone)?.total();
        let (batch, gpus) = (snapshot.run.phase.batch, candidate.shape.gpus());
        let wait = candidate.wait.at(snapshot.policy.quantile);
        let startup = candidate.startup.value;
        let starts_in = candidate.starts_in.max(terms.begins_in);
        let mut sites = snapshot.sites.iter();
        Ok(Self {
            site: sites.position(|s| s.name == candidate.site).unwrap_or(0),
            gpus,
            micro_windows: Windows(batch.0.saturating_mul(gpus.into())),
            micro_step: candidate.micro_step(batch),
            accumulation: terms.accumulation,
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
}
