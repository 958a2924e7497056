//! What the coordinator needs to know of a site's profile.

use std::fmt;

use crate::{GpuS, Line, ShapeName, UnixS};

/// What a job asks for, and what one probe asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its name in the profile; unique at the site.
    pub name: ShapeName,
    /// The partition.
    pub partition: Line,
    /// The account that is billed, where the site wants one.
    pub account: Option<Line>,
    /// The quality of service, where the site wants one.
    pub qos: Option<Line>,
    /// Whole nodes.
    pub nodes: u32,
    /// Accelerators of a node, as the batch system counts them.
    pub gpus_per_node: u32,
    /// The walltime asked for; part of the shape, and never stretched afterwards.
    pub walltime_s: u64,
}

impl Shape {
    /// What a job of this shape costs at most. A job without accelerators is counted by its nodes.
    #[must_use]
    pub const fn cost(&self) -> GpuS {
        let per_node = if self.gpus_per_node == 0 {
            1
        } else {
            self.gpus_per_node as u64
        };
        GpuS(self.width(per_node).saturating_mul(self.walltime_s))
    }

    /// What it costs for some seconds of running.
    #[must_use]
    pub fn cost_of(&self, seconds: u64) -> GpuS {
        let per_node = u64::from(self.gpus_per_node.max(1));
        GpuS(self.width(per_node).saturating_mul(seconds))
    }

    const fn width(&self, per_node: u64) -> u64 {
        (self.nodes as u64).saturating_mul(per_node)
    }
}

/// How a replica outlives its walltime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// Its successor is submitted when it has ended.
    None,
    /// Its successor is submitted when it starts, with `--begin` at the end of its walltime.
    Begin,
    /// The same with `--dependency=singleton`: jobs of one name run one after the other.
    Singleton,
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Begin => "begin",
            Self::Singleton => "singleton",
        })
    }
}

/// What is left of an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// What is left, counted when this was said; `None` where nobody counts.
    pub gpu_s_left: Option<GpuS>,
    /// What no plan may touch.
    pub reserve_gpu_s: GpuS,
    /// When the allocation ends.
    pub ends_at: Option<UnixS>,
}

/// When to stop trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Failures in a row after a short run that pause the site.
    pub quick_failures_max: u32,
    /// A job that failed before it had run this long failed at once.
    pub quick_run_s: u64,
    /// How long a replica's next job waits after the first failure; doubled with each further one.
    pub backoff_first_s: u64,
    /// The longest such wait.
    pub backoff_longest_s: u64,
    /// How long a node that failed is left out.
    pub exclude_node_s: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            quick_failures_max: 3,
            quick_run_s: 60,
            backoff_first_s: 60,
            backoff_longest_s: 3600,
            exclude_node_s: 24 * 3600,
        }
    }
}

/// A site's profile, as far as it concerns the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteProfile {
    /// Replicas that shall have a job, running or in the queue.
    pub wanted_jobs: u32,
    /// The shape of their jobs.
    pub preferred: ShapeName,
    /// What is probed, and what an operator may ask for.
    pub shapes: Vec<Shape>,
    /// How replicas outlive the walltime.
    pub chain: Chain,
    /// Jobs that may wait in the queue at a time, successors included.
    pub max_pending: u32,
    /// What is left of the allocation.
    pub budget: Budget,
    /// How often each shape is probed.
    pub probe_every_s: u64,
    /// How often accounting is asked for usage.
    pub usage_every_s: u64,
    /// When to stop trying.
    pub retry: Retry,
    /// What it says for plans, if anything.
    pub stated: Option<Stated>,
    /// A figure of what is left may lack what ended so long before it; `None` is a quarter of an hour.
    pub accounting_lag_s: Option<u64>,
}

/// What a profile says for plans, until the run has measured it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stated {
    /// From a job's start until its replica can train.
    pub startup_ms: Option<u64>,
    /// Weights there and back, per round.
    pub transfer_ms: Option<u64>,
    /// A replica leaves so long before its job's walltime is over.
    pub leaves_before_ms: Option<u64>,
    /// Nodes of all jobs of the run, at most.
    pub nodes_max: Option<u32>,
    /// Jobs of the run, running or pending, at most.
    pub jobs_max: Option<u32>,
    /// Of shapes.
    pub shapes: Vec<StatedShape>,
}

/// What a profile says of a shape for plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedShape {
    /// Which.
    pub shape: ShapeName,
    /// Millionths of a window that one accelerator trains in a second.
    pub microwindows_per_gpu_s: Option<u64>,
    /// Ranks of a replica; `None` is one for each accelerator.
    pub ranks: Option<u32>,
}

impl Stated {
    /// What is said of a shape.
    #[must_use]
    pub fn shape(&self, name: &ShapeName) -> Option<&StatedShape> {
        self.shapes.iter().find(|stated| stated.shape == *name)
    }
}

impl SiteProfile {
    /// The shape of this name.
    #[must_use]
    pub fn shape(&self, name: &ShapeName) -> Option<&Shape> {
        self.shapes.iter().find(|shape| shape.name == *name)
    }
}
