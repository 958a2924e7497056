//! What is known of a facility: its shapes, queues, speeds, costs and limits.
//!
//! One [`Site`] is one page of the snapshot. Everything that can be unknown is an `Option` or a list
//! that may be empty. Never here: a decision.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hansa_base::SiteName;

use crate::chain::Bounds;
use crate::fact::{Cost, Fact, WallMs};

macro_rules! text {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub String);

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

text!(
    /// A partition of a site's batch system.
    Partition
);
text!(
    /// The name that a site's profile gives a shape; unique at the site.
    ShapeName
);

/// What a job asks for; what one probe asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its name in the site's profile.
    pub name: ShapeName,
    /// The partition.
    pub partition: Partition,
    /// The account that is billed, where the site wants one.
    pub account: Option<String>,
    /// The quality of service, where the site wants one.
    pub qos: Option<String>,
    /// Whole nodes.
    pub nodes: u32,
    /// Accelerators of a node, as the batch system counts them (a GCD is one).
    pub gpus_per_node: u32,
    /// The walltime asked for. A probe says nothing about a longer job.
    pub walltime: Duration,
}

impl Shape {
    /// Accelerators of the whole job.
    #[must_use]
    pub const fn gpus(&self) -> u32 {
        self.nodes.saturating_mul(self.gpus_per_node)
    }
}

/// What the batch system answered to `sbatch --test-only`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The job would start at this time.
    StartsAt(WallMs),
    /// It would not be accepted, or not now; in the batch system's words.
    Refused(String),
}

/// Windows that one accelerator trains in a second, waiting and exchange left out.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct WindowsPerGpuS(pub f64);

/// A shape and what is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapeState {
    /// What it asks for.
    pub shape: Shape,
    /// The newest probe.
    pub probe: Option<Fact<Answer>>,
    /// The speed measured in this very shape.
    pub rate: Option<Fact<WindowsPerGpuS>>,
    /// Ranks of a replica in it; `None` is one for each accelerator.
    pub ranks: Option<Fact<u32>>,
    /// Nothing may be submitted in it now, and why.
    pub shut: Option<Fact<String>>,
}

impl ShapeState {
    /// A shape of which nothing is known.
    #[must_use]
    pub const fn new(shape: Shape) -> Self {
        Self {
            shape,
            probe: None,
            rate: None,
            ranks: None,
            shut: None,
        }
    }
}

/// A prediction and what came of it: one job that was probed, submitted and started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPair {
    /// The wait that the probe at submission gave, undiscounted.
    pub predicted: Duration,
    /// How long the job really waited.
    pub real: Duration,
    /// When it started: when this became known.
    pub at: WallMs,
}

/// What is known of a partition's queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartitionState {
    /// Realised over requested walltime of finished jobs, 0 to 1.
    pub usage: Option<Fact<f64>>,
    /// Predictions and what came of them, in any order.
    pub history: Vec<WaitPair>,
    /// The longest walltime the partition grants.
    pub walltime_max: Option<Fact<Duration>>,
}

/// What one user may have at a site at a time. `None` is "no limit that anybody knows of".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Nodes over all of this run's jobs.
    pub nodes: Option<Fact<u32>>,
    /// Jobs running or pending.
    pub jobs: Option<Fact<u32>>,
    /// Replicas that the site's operator wants at most.
    pub replicas: Option<Fact<u32>>,
}

/// What is left of an allocation.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// GPU-hours left, running jobs counted at their full walltime.
    pub gpu_hours: Fact<f64>,
    /// GPU-hours that no plan may touch.
    pub keep_gpu_hours: f64,
    /// When the allocation ends.
    pub ends: Option<Fact<WallMs>>,
}

impl Budget {
    /// GPU-time that a plan may spend, in GPU-seconds.
    #[must_use]
    pub fn spendable_gpu_s(&self) -> f64 {
        ((self.gpu_hours.value - self.keep_gpu_hours) * 3600.0).max(0.0)
    }
}

/// A time in which no job of ours can run: maintenance, a reservation for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Its first moment.
    pub from: WallMs,
    /// The first moment after it.
    pub until: WallMs,
}

/// A job of this run that the site already has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The shape it was submitted in.
    pub shape: ShapeName,
    /// Where it is.
    pub state: JobState,
}

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// In the queue.
    Pending {
        /// Since when.
        submitted: WallMs,
    },
    /// On its nodes.
    Running {
        /// Since when.
        started: WallMs,
    },
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

/// A facility.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Its name.
    pub name: SiteName,
    /// Its shapes, in the profile's order.
    pub shapes: Vec<ShapeState>,
    /// Its queues.
    pub partitions: BTreeMap<Partition, PartitionState>,
    /// The speed of one accelerator in any shape; a shape's own measurement goes before it.
    pub rate: Option<Fact<WindowsPerGpuS>>,
    /// From a job's start until its replica can train.
    pub startup: Cost,
    /// Weights there and back, per round.
    pub transfer: Cost,
    /// The part of an evaluation that does not depend on the number of windows.
    pub evaluation: Cost,
    /// A replica leaves so long before its job's walltime is over.
    pub leaves_before: Option<Fact<Duration>>,
    /// What one user may have at a time.
    pub limits: Limits,
    /// What is left of the allocation; `None` where nobody counts.
    pub budget: Option<Budget>,
    /// Maintenance and reservations.
    pub closed: Vec<Fact<Closed>>,
    /// The most that the site's rules and our means allow in chaining jobs.
    pub chain: Fact<ChainPolicy>,
    /// Our jobs that are there already.
    pub jobs: Vec<Job>,
}

impl Site {
    /// What is known of a partition's queue.
    #[must_use]
    pub fn partition(&self, name: &Partition) -> Option<&PartitionState> {
        self.partitions.get(name)
    }

    /// The shape of this name.
    #[must_use]
    pub fn shape(&self, name: &ShapeName) -> Option<&ShapeState> {
        self.shapes.iter().find(|state| state.shape.name == *name)
    }

    /// Nodes and jobs that are taken by what the site already has of us.
    #[must_use]
    pub fn taken(&self) -> (u32, u32) {
        let nodes = self.jobs.iter().filter_map(|job| self.shape(&job.shape));
        let nodes = nodes.map(|state| state.shape.nodes).sum();
        (nodes, u32::try_from(self.jobs.len()).unwrap_or(u32::MAX))
    }

    /// What a job of this walltime has of it.
    pub(crate) fn usable(&self, walltime: Duration) -> Duration {
        let leaves = self.leaves_before.as_ref();
        walltime.saturating_sub(leaves.map_or(Duration::ZERO, |fact| fact.value))
    }

    /// What bounds the jobs of this site from `now` on.
    #[must_use]
    pub fn bounds(&self, now: WallMs) -> Bounds {
        let budget = self.budget.as_ref();
        let ends = budget.and_then(|budget| budget.ends.as_ref());
        let from_now = |closed: &Closed| (closed.from.since(now), closed.until.since(now));
        Bounds {
            budget_gpu_s: budget.map(Budget::spendable_gpu_s),
            ends_in: ends.map(|fact| fact.value.since(now)),
            closed: self
                .closed
                .iter()
                .map(|fact| from_now(&fact.value))
                .collect(),
        }
    }
}
