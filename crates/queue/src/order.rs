//! What a site process is to do. An order is repeated until its outcome has been reported.

use hansa_base::ReplicaName;

use crate::{IntentId, JobId, Line, ShapeName, UnixS};

/// One thing to do at a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Submit one job, once. Done when `Submitted` or `NotSubmitted` is reported.
    Submit(Submission),
    /// Submit no job for this intent; look for one that may be there already. Done when `NotSubmitted`
    /// is reported (nothing was submitted, for good) or `Submitted` (there is one; it is cancelled next).
    Withdraw {
        /// Which.
        intent: IntentId,
        /// Why.
        why: Line,
    },
    /// Cancel a job. Done when `Cancelled` or its end is reported.
    Cancel {
        /// For which intent.
        intent: IntentId,
        /// The job.
        job: JobId,
        /// Why.
        why: Line,
    },
    /// Cancel a job if it still waits: one that runs is left alone. Done as [`Order::Cancel`] is, or when
    /// its start is reported.
    Recall {
        /// For which intent.
        intent: IntentId,
        /// The job.
        job: JobId,
        /// Why.
        why: Line,
    },
    /// Let a successor start before its begin time: its predecessor has ended early. Done when
    /// `Released` or its start is reported.
    Release {
        /// For which intent.
        intent: IntentId,
        /// The job.
        job: JobId,
    },
    /// Probe a shape now. Done when a probe of it is reported that was made after the order.
    Probe {
        /// Which.
        shape: ShapeName,
    },
    /// Send a job's last lines. Done when `Tail` is reported, empty if there are none.
    Tail {
        /// For which intent.
        intent: IntentId,
        /// The job.
        job: JobId,
    },
}

/// When a job may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// As soon as the queue lets it.
    Now,
    /// Not before this time.
    At(UnixS),
    /// Not while another job of its name runs.
    Singleton,
}

/// One job to submit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The intent.
    pub intent: IntentId,
    /// The replica that it carries on; survives requeues and links.
    pub replica: ReplicaName,
    /// The shape.
    pub shape: ShapeName,
    /// Its number in the replica's chain, from 1.
    pub link: u32,
    /// When it may start.
    pub begin: Begin,
    /// Nodes that it must not get.
    pub exclude: Vec<Line>,
    /// The order was given to another holder of the lease before, or may have been attempted: look for
    /// the job first, and wait until a request under way has settled.
    pub tried: bool,
}
