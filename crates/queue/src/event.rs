//! What changes the state, live and in replay: facts that sites reported, and decisions.

use std::fmt;

use hansa_base::{ReplicaName, SiteName};

use crate::held::Held;
use crate::outcome::{Outcome, PauseWhy, Then};
use crate::planned::Adopted;
use crate::{
    Begin, Budget, GpuS, IntentId, JobId, LeaseNo, Line, Shape, SiteProfile, Stamped, UnixS,
};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
// The large ones are the common ones.
#[allow(clippy::large_enum_variant)]
pub enum Event {
    /// Somebody runs the site process from now on; whoever did before is fenced.
    LeaseTaken {
        /// The site.
        site: SiteName,
        /// The lease's number.
        lease: LeaseNo,
        /// Who.
        holder: Line,
    },
    /// The holder gave the lease back.
    LeaseLeft {
        /// The site.
        site: SiteName,
        /// The lease.
        lease: LeaseNo,
    },
    /// The site's profile is new, or has changed.
    Profiled {
        /// The site.
        site: SiteName,
        /// What it is now.
        profile: SiteProfile,
    },
    /// A fact from a site's spool.
    Reported {
        /// The site.
        site: SiteName,
        /// The spool.
        spool: Line,
        /// The fact.
        stamped: Stamped,
    },
    /// A job is wanted.
    Intended(Intention),
    /// A site process was told to submit it.
    Delivered {
        /// Which.
        intent: IntentId,
        /// To the holder of this lease.
        lease: LeaseNo,
    },
    /// It is not wanted any more, and nobody ever heard of it.
    Withdrawn {
        /// Which.
        intent: IntentId,
        /// Why.
        why: Line,
    },
    /// It is not wanted any more; the site says whether there is a job already.
    WithdrawOrdered {
        /// Which.
        intent: IntentId,
        /// Why.
        why: Line,
    },
    /// Its job shall be cancelled.
    CancelOrdered {
        /// Which.
        intent: IntentId,
        /// Why.
        why: Line,
    },
    /// Its job shall be cancelled if it still waits.
    RecallOrdered {
        /// Which.
        intent: IntentId,
        /// Why.
        why: Line,
    },
    /// Its job need not wait for its begin time any more.
    ReleaseOrdered {
        /// Which.
        intent: IntentId,
    },
    /// Its job's last lines are wanted.
    TailOrdered {
        /// Which.
        intent: IntentId,
    },
    /// A job of a probed shape has started: what the queue had promised, and what came of it.
    Joined(Joined),
    /// Its job has ended, or there will be none: what came of it, and what follows.
    Judged {
        /// Which.
        intent: IntentId,
        /// What came of it.
        outcome: Outcome,
        /// What follows.
        then: Then,
    },
    /// A second job for one intent: this must never happen.
    Doubled {
        /// Which.
        intent: IntentId,
        /// The second one, which is cancelled.
        job: JobId,
    },
    /// A job for an intent that was given up: a request that hung was taken after all.
    Late {
        /// Which.
        intent: IntentId,
        /// The job, which is cancelled.
        job: JobId,
    },
    /// New jobs do not get this node.
    Excluded {
        /// The site.
        site: SiteName,
        /// The node.
        node: Line,
        /// Until then.
        until: UnixS,
    },
    /// Nothing more is submitted at the site.
    SitePaused {
        /// The site.
        site: SiteName,
        /// Why.
        why: PauseWhy,
    },
    /// Submissions go on.
    SiteResumed {
        /// The site.
        site: SiteName,
        /// Why.
        why: Line,
    },
    /// Why nothing is submitted for a replica; told when the reason changes, `None` when there is none.
    HeldBack {
        /// The site.
        site: SiteName,
        /// The replica.
        replica: ReplicaName,
        /// The reason.
        held: Option<Held>,
    },
    /// Reports were lost between two that came; or the coordinator was restored from a backup.
    Gap {
        /// The site.
        site: SiteName,
        /// The last report before it.
        after: u64,
        /// The first one behind it.
        next: u64,
    },
    /// A site reports a job for an intent that nobody here made: of another copy of the run.
    Stray {
        /// The site.
        site: SiteName,
        /// The intent.
        intent: IntentId,
        /// The job.
        job: JobId,
    },
    /// An operator set what is left of the allocation.
    BudgetSet {
        /// The site.
        site: SiteName,
        /// What is left.
        budget: Budget,
    },
    /// An operator changed what else there is to say of the allocation.
    BudgetAmended {
        /// The site.
        site: SiteName,
        /// What no job may touch.
        reserve_gpu_s: GpuS,
        /// When it ends.
        ends_at: Option<UnixS>,
    },
    /// A plan took the place of the one before.
    PlanAdopted(Adopted),
    /// The run was restored from a backup: intents that the lost history may have made are skipped.
    Restored {
        /// The next intent's number.
        next_intent: IntentId,
    },
}

/// A job that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intention {
    /// Its number.
    pub intent: IntentId,
    /// The site.
    pub site: SiteName,
    /// The replica that it carries on.
    pub replica: ReplicaName,
    /// What it asks for, as the profile was then.
    pub shape: Shape,
    /// Its number in the replica's chain, from 1.
    pub link: u32,
    /// When it may start.
    pub begin: Begin,
    /// The link before it, if that still runs.
    pub after: Option<IntentId>,
    /// Nodes that it must not get.
    pub exclude: Vec<Line>,
    /// Why it is wanted.
    pub why: Why,
}

/// Why a job is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The site's profile wants so many jobs.
    Wanted {
        /// How many.
        jobs: u32,
    },
    /// A plan wants so many jobs.
    Planned {
        /// The plan's number.
        plan: u64,
        /// How many.
        jobs: u32,
    },
    /// The link before it has started, and ends at its walltime.
    Chained,
    /// An operator asked for it.
    Operator(Line),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wanted { jobs: 1 } => f.write_str("the profile wants a job"),
            Self::Wanted { jobs } => write!(f, "the profile wants {jobs} jobs"),
            Self::Planned { plan, jobs: 1 } => write!(f, "plan {plan} wants a job"),
            Self::Planned { plan, jobs } => write!(f, "plan {plan} wants {jobs} jobs"),
            Self::Chained => f.write_str("the link before it runs, and ends at its walltime"),
            Self::Operator(why) if why.as_str().is_empty() => f.write_str("ordered by an operator"),
            Self::Operator(why) => write!(f, "ordered by an operator: {why}"),
        }
    }
}

/// What was predicted for a job, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Which job.
    pub intent: IntentId,
    /// When the probe was made.
    pub probed: UnixS,
    /// The start that it promised.
    pub predicted: UnixS,
    /// When the job was submitted.
    pub submitted: UnixS,
    /// When it started.
    pub started: UnixS,
    /// Realised over requested walltime in the partition when it was submitted, in thousandths, at most
    /// 1,000; `None` if that was not known.
    pub usage_permille: Option<u64>,
    /// It was not to start before another had ended, so its wait says nothing about the queue.
    pub deferred: bool,
}

impl Joined {
    /// The wait that the probe promised, undiscounted.
    #[must_use]
    pub const fn predicted_wait_s(&self) -> u64 {
        self.predicted.since_s(self.submitted)
    }

    /// How long it really waited.
    #[must_use]
    pub const fn real_wait_s(&self) -> u64 {
        self.started.since_s(self.submitted)
    }
}

impl Event {
    /// The intent that it is about, if it is about one that was made before.
    #[must_use]
    pub const fn intent(&self) -> Option<IntentId> {
        match self {
            Self::Delivered { intent, .. }
            | Self::Withdrawn { intent, .. }
            | Self::WithdrawOrdered { intent, .. }
            | Self::CancelOrdered { intent, .. }
            | Self::RecallOrdered { intent, .. }
            | Self::ReleaseOrdered { intent }
            | Self::TailOrdered { intent }
            | Self::Judged { intent, .. }
            | Self::Doubled { intent, .. }
            | Self::Late { intent, .. } => Some(*intent),
            Self::Joined(joined) => Some(joined.intent),
            _ => None,
        }
    }

    /// The site that it is about, if it names one.
    #[must_use]
    pub const fn site(&self) -> Option<&SiteName> {
        match self {
            Self::LeaseTaken { site, .. }
            | Self::LeaseLeft { site, .. }
            | Self::Profiled { site, .. }
            | Self::Reported { site, .. }
            | Self::Excluded { site, .. }
            | Self::SitePaused { site, .. }
            | Self::SiteResumed { site, .. }
            | Self::HeldBack { site, .. }
            | Self::Gap { site, .. }
            | Self::Stray { site, .. }
            | Self::BudgetSet { site, .. }
            | Self::BudgetAmended { site, .. } => Some(site),
            Self::Intended(intention) => Some(&intention.site),
            _ => None,
        }
    }

    /// The decision in words; `None` for what is a fact.
    #[must_use]
    pub fn decision(&self) -> Option<String> {
        Some(match self {
            Self::Reported { .. } | Self::Delivered { .. } | Self::TailOrdered { .. } => {
                return None;
            }
            Self::LeaseTaken { lease, holder, .. } => {
                format!("{holder} runs the site process (lease {lease})")
            }
            Self::LeaseLeft { lease, .. } => format!("the site process has left (lease {lease})"),
            Self::Profiled { profile, .. } => format!(
                "the profile wants {} jobs of shape {}, chained by {}",
                profile.wanted_jobs, profile.preferred, profile.chain
            ),
            Self::Intended(intention) => intention.to_string(),
            Self::Withdrawn { intent, why } | Self::WithdrawOrdered { intent, why } => {
                format!("intent {intent} is withdrawn: {why}")
            }
            Self::CancelOrdered { intent, why } => {
                format!("the job of intent {intent} is cancelled: {why}")
            }
            Self::RecallOrdered { intent, why } => {
                format!("the job of intent {intent} is cancelled if it still waits: {why}")
            }
            Self::ReleaseOrdered { intent } => {
                format!("the job of intent {intent} may start now: the link before it ended early")
            }
            Self::Joined(joined) => format!(
                "the job of intent {} started after {} s; the probe said {} s",
                joined.intent,
                joined.real_wait_s(),
                joined.predicted_wait_s()
            ),
            Self::Judged {
                intent,
                outcome,
                then,
            } => format!("intent {intent}: {outcome}; {then}"),
            Self::Doubled { intent, job } => format!(
                "DEFECT: intent {intent} was submitted twice; job {job} is cancelled. Please report \
                 this with the output of `hansa queue --json`"
            ),
            Self::Late { intent, job } => format!(
                "job {job} is there for intent {intent}, which was given up; it is cancelled"
            ),
            other => return other.decision_of_site(),
        })
    }

    /// The same of what is about a site, a plan or all of it.
    fn decision_of_site(&self) -> Option<String> {
        Some(match self {
            Self::Excluded { node, .. } => format!("node {node} is left out: it failed"),
            Self::SitePaused { why, .. } => format!("the site's queue is paused: {why}"),
            Self::SiteResumed { why, .. } => format!("the site's queue goes on: {why}"),
            Self::HeldBack {
                held: Some(held), ..
            } => format!("nothing is submitted: {held}"),
            Self::HeldBack { held: None, .. } => return None,
            Self::Gap { after, next, .. } => format!(
                "reports {} to {} of the site are missing here",
                after.saturating_add(1),
                next.saturating_sub(1)
            ),
            Self::Stray { intent, job, .. } => format!(
                "job {job} is for intent {intent}, which this coordinator never made: cancel it at \
                 the site if it belongs to a lost copy of the run"
            ),
            Self::BudgetSet { budget, .. } => {
                let said = budget_set(budget.gpu_s_left);
                format!(
                    "{said}; {}",
                    allocation(budget.reserve_gpu_s, budget.ends_at)
                )
            }
            Self::BudgetAmended {
                reserve_gpu_s,
                ends_at,
                ..
            } => format!(
                "an operator changed the allocation: {}",
                allocation(*reserve_gpu_s, *ends_at)
            ),
            Self::PlanAdopted(plan) => plan.to_string(),
            Self::Restored { next_intent } => {
                format!("restored from a backup: intents go on at {next_intent}")
            }
            _ => return None,
        })
    }
}

fn budget_set(left: Option<GpuS>) -> String {
    match left {
        Some(left) => format!(
            "an operator set the budget to {:.1} GPU-hours",
            left.hours()
        ),
        None => "an operator set the budget to be unlimited".to_owned(),
    }
}

fn allocation(reserve: GpuS, ends_at: Option<UnixS>) -> String {
    let ends = match ends_at {
        Some(at) => format!("it ends at {at}"),
        None => "no end is known".to_owned(),
    };
    format!("{} in reserve, {ends}", gpu_hours(reserve))
}

impl fmt::Display for Intention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            intent,
            shape,
            link,
            why,
            ..
        } = self;
        write!(
            f,
            "intent {intent}: link {link} in shape {} is wanted: {why}",
            shape.name
        )?;
        match self.begin {
            Begin::Now => Ok(()),
            Begin::At(at) => write!(f, "; not before {at}"),
            Begin::Singleton => f.write_str("; not before the link before it has ended"),
        }
    }
}

/// A cost in words.
pub(crate) fn gpu_hours(cost: GpuS) -> String {
    format!("{:.1} GPU-hours", cost.hours())
}
