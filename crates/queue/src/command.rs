//! What an operator may order, and what is refused to whom.

use std::fmt;

use hansa_base::SiteName;

use crate::held::Held;
use crate::{Budget, GpuS, IntentId, LeaseNo, Line, ShapeName, UnixS};

/// An operator's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueOrder {
    /// Submit nothing more at a site; what waits or runs goes on.
    Pause {
        /// The site.
        site: SiteName,
        /// Why.
        why: Line,
    },
    /// Go on, whatever paused it, and forget its failures.
    Resume {
        /// The site.
        site: SiteName,
        /// Why.
        why: Line,
    },
    /// Submit one more job now.
    Submit {
        /// The site.
        site: SiteName,
        /// In this shape; `None`: the preferred one.
        shape: Option<ShapeName>,
        /// Why.
        why: Line,
    },
    /// Cancel a job, or withdraw an intent that has none.
    Cancel {
        /// Which.
        intent: IntentId,
        /// Why.
        why: Line,
    },
    /// Ask the site for a job's last lines.
    Tail {
        /// Which.
        intent: IntentId,
    },
    /// Say something of the allocation.
    Budget {
        /// The site.
        site: SiteName,
        /// What; the rest stays.
        change: BudgetChange,
    },
}

/// What an operator says of an allocation; what is not said stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetChange {
    /// What is left now.
    pub left: Option<Left>,
    /// What no job may touch.
    pub reserve_gpu_s: Option<GpuS>,
    /// When the allocation ends.
    pub ends: Option<Ends>,
}

/// What is left of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// So much.
    Counted(GpuS),
    /// Nobody counts.
    Uncounted,
}

/// When an allocation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The first moment after its last day.
    At(UnixS),
    /// No day is known.
    Never,
}

impl BudgetChange {
    /// What is true with it.
    #[must_use]
    pub fn of(&self, before: &Budget) -> Budget {
        Budget {
            gpu_s_left: match self.left {
                Some(Left::Counted(left)) => Some(left),
                Some(Left::Uncounted) => None,
                None => before.gpu_s_left,
            },
            reserve_gpu_s: self.reserve_gpu_s.unwrap_or(before.reserve_gpu_s),
            ends_at: match self.ends {
                Some(Ends::At(at)) => Some(at),
                Some(Ends::Never) => None,
                None => before.ends_at,
            },
        }
    }
}

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueRefusal {
    /// Somebody else runs the site process.
    #[error(
        "{holder} runs the site process of {site} since {since}: stop that one, wait {left_s} s after \
         its end, or use --take-over"
    )]
    Busy {
        /// The site.
        site: SiteName,
        /// Who.
        holder: Line,
        /// Since when.
        since: UnixS,
        /// How long its lease lasts, unless it is renewed.
        left_s: u64,
    },
    /// The caller's lease is over: it must execute nothing any more.
    #[error(
        "lease {held} of {site} is over, another site process took over: execute nothing more, and \
         ask for a new lease"
    )]
    Fenced {
        /// The site.
        site: SiteName,
        /// The lease that it holds.
        held: LeaseNo,
    },
    /// No site process ever told of this site.
    #[error("no site process of {0} has reported: run `hansa site run` there first")]
    UnknownSite(SiteName),
    /// No such shape.
    #[error("{site} has no shape {shape}; its profile has {known}")]
    UnknownShape {
        /// The site.
        site: SiteName,
        /// The shape.
        shape: ShapeName,
        /// Those that it has.
        known: Line,
    },
    /// It has ended, or never was.
    #[error("intent {0} is not live; `hansa queue` lists those that are")]
    NotLive(IntentId),
    /// Nothing may be submitted now.
    #[error("nothing is submitted at {site}: {held}")]
    Held {
        /// The site.
        site: SiteName,
        /// Why.
        held: Held,
    },
    /// Another plan was adopted meanwhile.
    #[error("plan {found} was made when plan {due} was due: make it again")]
    OtherPlan {
        /// What came.
        found: u64,
        /// What was due.
        due: u64,
    },
    /// The state of the machine is broken.
    #[error("the queue's state is broken: {0}")]
    Broken(String),
}

impl fmt::Display for QueueOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pause { site, .. } => write!(f, "pause the queue of {site}"),
            Self::Resume { site, .. } => write!(f, "resume the queue of {site}"),
            Self::Submit { site, .. } => write!(f, "submit a job at {site}"),
            Self::Cancel { intent, .. } => write!(f, "cancel intent {intent}"),
            Self::Tail { intent } => write!(f, "fetch the last lines of intent {intent}"),
            Self::Budget { site, .. } => write!(f, "set the budget of {site}"),
        }
    }
}
