//! A plan that is in force: how each site shall be used, and what was said when it was adopted.
//!
//! Never here: how plans are made.

use std::fmt;

use hansa_base::SiteName;

use crate::{GpuS, Line, ShapeName, UnixS};

/// Who decides which jobs are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planning {
    /// Each site's profile.
    #[default]
    Fixed,
    /// Each site's profile, until an operator has applied a plan.
    Advise,
    /// The planner; before its first plan nothing is wanted.
    Auto,
}

/// A plan that was adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Its number, from 1.
    pub no: u64,
    /// When it was made.
    pub made: UnixS,
    /// Why it took the place of the one before.
    pub why: Line,
    /// Whether early jobs begin so late that all are ready together.
    pub together: bool,
    /// How each site shall be used; one that is not here gets no new job.
    pub sites: Vec<SitePlan>,
    /// What it promises.
    pub promise: Promise,
}

/// How a site shall be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SitePlan {
    /// The site.
    pub site: SiteName,
    /// The shape of its jobs.
    pub shape: ShapeName,
    /// Replicas that shall have a job, those that run included.
    pub jobs: u32,
    /// Whether a successor waits while its predecessor runs, in the way that the profile says.
    pub ahead: bool,
    /// New jobs do not start before this.
    pub begin: Option<UnixS>,
}

/// What a plan promised when it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Why the run would end: `target`, or what comes before it.
    pub ended: Line,
    /// When.
    pub ends: UnixS,
    /// Windows trained by then, from the plan on.
    pub windows: u64,
    /// Rounds.
    pub rounds: u64,
    /// What it would cost.
    pub cost: GpuS,
}

impl fmt::Display for Adopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (no, why) = (self.no, &self.why);
        write!(f, "plan {no} is adopted: {}; {why}", self.summary())
    }
}

impl Adopted {
    /// How a site shall be used.
    #[must_use]
    pub fn site(&self, name: &SiteName) -> Option<&SitePlan> {
        self.sites.iter().find(|plan| plan.site == *name)
    }

    /// What is wanted, in a few words.
    #[must_use]
    pub fn summary(&self) -> String {
        let all = self.sites.iter();
        let all: Vec<String> = all
            .map(|plan| format!("{} {} ×{}", plan.site, plan.shape, plan.jobs))
            .collect();
        match all.is_empty() {
            true => "no job anywhere".to_owned(),
            false => all.join(", "),
        }
    }
}
