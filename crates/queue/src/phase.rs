//! Where a job is, from Slurm's words.

use crate::JobReport;

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In the queue.
    Pending,
    /// It has nodes.
    Running,
    /// It has lost its nodes, and may be in the queue again in a moment.
    Interrupted,
    /// Over.
    Ended,
    /// In a state that nobody listed; it is taken to be alive.
    Unknown,
}

impl Phase {
    /// The phase of a state.
    #[must_use]
    pub fn of(report: &JobReport) -> Self {
        match report.state.as_str() {
            "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT"
            | "RESV_DEL_HOLD" => Self::Pending,
            "RUNNING" | "CONFIGURING" | "COMPLETING" | "SUSPENDED" | "STOPPED" | "SIGNALING"
            | "STAGE_OUT" | "RESIZING" => Self::Running,
            "NODE_FAIL" | "BOOT_FAIL" | "PREEMPTED" => Self::Interrupted,
            "COMPLETED" | "FAILED" | "TIMEOUT" | "CANCELLED" | "OUT_OF_MEMORY" | "DEADLINE"
            | "REVOKED" => Self::Ended,
            _ => Self::Unknown,
        }
    }

    /// A job that is held starts only when somebody releases it.
    #[must_use]
    pub fn is_held(report: &JobReport) -> bool {
        let held = ["JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue"];
        let reason = report.reason.as_str();
        Self::of(report) == Self::Pending
            && (held.contains(&reason)
                || reason.contains("requeued_held")
                || reason.contains("requeued held")
                || report.state.as_str() == "REQUEUE_HOLD")
    }

    /// It waits because the allocation is used up. Limits on what runs at a time (`RunMinutes`) pass when
    /// running jobs end.
    #[must_use]
    pub fn is_exhausted(report: &JobReport) -> bool {
        let reason = report.reason.as_str();
        let of_a_budget = ["AssocGrp", "QOSGrp", "AssociationGrp"];
        let total = |what: &str| reason.ends_with(what);
        Self::of(report) == Self::Pending
            && of_a_budget.iter().any(|start| reason.starts_with(start))
            && ["Minutes", "MinutesLimit", "Wall", "WallLimit"]
                .into_iter()
                .any(total)
            && !reason.contains("RunMin")
    }

    /// It waits for what no queue gives: somebody must change the job, the limit or the profile.
    #[must_use]
    pub fn cannot_start(report: &JobReport) -> bool {
        let reason = report.reason.as_str();
        let lasting = [
            "PartitionTimeLimit",
            "PartitionNodeLimit",
            "PartitionConfig",
            "BadConstraints",
            "InvalidAccount",
            "InvalidQOS",
            "AccountNotAllowed",
            "QOSNotAllowed",
            "DependencyNeverSatisfied",
        ];
        Self::of(report) == Self::Pending
            && (lasting.contains(&reason)
                || reason.contains("PerJob")
                || reason.starts_with("QOSMin"))
    }
}
