//! What is known and wanted: a function of the events, and nothing else.
//!
//! Never here: a decision. Everything that grows is bounded.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use hansa_base::{ReplicaName, SiteName};

use crate::event::{Intention, Joined};
use crate::held::Held;
use crate::outcome::{Outcome, PauseWhy};
use crate::phase::Phase;
use crate::planned::Adopted;
use crate::{
    Budget, BudgetReport, GpuS, How, IntentId, JobId, JobReport, LeaseNo, Line, PartitionReport,
    ProbeReport, Raw, ReservationReport, Shape, ShapeName, SiteProfile, UnixS, UsageReport,
};

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The next intent's number.
    pub next_intent: IntentId,
    /// By site.
    pub sites: BTreeMap<SiteName, Site>,
    /// Those that are live, and the last of each site that are not.
    pub intents: BTreeMap<IntentId, Intent>,
    /// The plan in force.
    pub plan: Option<Adopted>,
}

/// One facility's queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Who runs the site process, or ran it last.
    pub lease: Option<Lease>,
    /// The last lease's number.
    pub last_lease: LeaseNo,
    /// What its process told of its profile.
    pub profile: Option<SiteProfile>,
    /// When it was told.
    pub profiled: Option<UnixS>,
    /// The newest report of each spool, the latest spool last.
    pub spools: Vec<(Line, u64)>,
    /// Submissions are paused.
    pub paused: Option<Paused>,
    /// By replica.
    pub slots: BTreeMap<ReplicaName, Slot>,
    /// Newest last.
    pub probes: BTreeMap<ShapeName, VecDeque<Probed>>,
    /// The newest, by partition.
    pub usage: BTreeMap<Line, (UnixS, UsageReport)>,
    /// The newest, by name.
    pub partitions: BTreeMap<Line, (UnixS, PartitionReport)>,
    /// By name; over ones are dropped.
    pub reservations: BTreeMap<Line, ReservationReport>,
    /// What is left of the allocation.
    pub budget: BudgetState,
    /// Predictions and what came of them, newest last.
    pub joined: VecDeque<(ShapeName, Joined)>,
    /// Nodes that new jobs do not get, until when.
    pub excluded: BTreeMap<Line, UnixS>,
    /// What does not work at the site, since when.
    pub troubles: BTreeMap<Line, (UnixS, Line)>,
    /// Jobs in a row that failed at once.
    pub quick_failures: u32,
    /// Jobs that nobody here ordered.
    pub strays: BTreeSet<JobId>,
    /// What was decided, newest last.
    pub decisions: VecDeque<Decision>,
}

/// Who runs the site process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its number.
    pub no: LeaseNo,
    /// Who.
    pub holder: Line,
    /// Since when.
    pub since: UnixS,
}

/// A pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paused {
    /// Why.
    pub why: PauseWhy,
    /// Since when.
    pub since: UnixS,
    /// What came up during an operator's pause, and would have paused the site, too.
    pub also: Option<PauseWhy>,
}

impl Paused {
    /// What is wrong with the jobs themselves, if that is among the reasons: those that wait would only run
    /// into it.
    #[must_use]
    pub fn defect(&self) -> Option<&PauseWhy> {
        let defect = |why: &&PauseWhy| {
            !matches!(
                why,
                PauseWhy::Operator(_) | PauseWhy::AllocationExhausted(_)
            )
        };
        std::iter::once(&self.why).chain(&self.also).find(defect)
    }
}

impl fmt::Display for Paused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.also {
            None => self.why.fmt(f),
            Some(also) => write!(f, "{}; and {also}", self.why),
        }
    }
}

/// A probe and when it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// When.
    pub at: UnixS,
    /// What was answered.
    pub probe: ProbeReport,
    /// The partition's usage then, in thousandths.
    pub usage_permille: Option<u64>,
}

/// What is left of an allocation, and what was used since that was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetState {
    /// What is left, as last said.
    pub said: Budget,
    /// When.
    pub said_at: UnixS,
    /// By whom.
    pub source: Line,
    /// What ended jobs used, by the quarter of an hour in which they ended.
    pub spent: BTreeMap<UnixS, GpuS>,
}

/// A replica that has or shall have a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Jobs so far.
    pub links: u32,
    /// Failures in a row.
    pub failures: u32,
    /// No job before this time, and what came of the last.
    pub wait: Option<(UnixS, Line)>,
    /// Why nothing is submitted, as last told.
    pub held: Option<Held>,
}

/// One wanted job, from its intent to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// What is wanted.
    pub intention: Intention,
    /// When that was decided.
    pub made: UnixS,
    /// The lease whose holder was told last.
    pub delivered: Option<LeaseNo>,
    /// Somebody may have submitted it before.
    pub tried: bool,
    /// It shall not be submitted any more.
    pub withdraw: Option<Line>,
    /// Its job shall be cancelled.
    pub cancel: Option<Line>,
    /// Its job shall be cancelled if it still waits.
    pub recall: Option<Line>,
    /// Its job need not wait any more.
    pub release: Release,
    /// The job.
    pub job: Option<Job>,
    /// Jobs that should not be there, and shall be cancelled.
    pub unwanted: Vec<JobId>,
    /// What came of it, and when that was known.
    pub outcome: Option<(UnixS, Outcome)>,
    /// Its job's last lines.
    pub tail: Tail,
}

/// Whether a job may start before its begin time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// Nobody asked.
    #[default]
    No,
    /// The site was asked to see to it.
    Ordered,
    /// It may.
    Done,
}

/// A job's last lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tail {
    /// Nobody asked.
    #[default]
    No,
    /// The site was asked for them.
    Ordered,
    /// These.
    Got(Raw),
}

/// A job that the site has for an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// How the submission is known.
    pub how: How,
    /// When that was reported.
    pub submitted: UnixS,
    /// The last that Slurm said of it.
    pub report: Option<JobReport>,
    /// When.
    pub heard: UnixS,
    /// Neither squeue nor sacct know it.
    pub gone: bool,
    /// `scancel` was called.
    pub cancelled: bool,
    /// Its start has been compared with the probe's promise.
    pub joined: bool,
}

/// A line of the decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When.
    pub at: UnixS,
    /// For which replica.
    pub replica: Option<ReplicaName>,
    /// What, and why.
    pub text: Line,
}

impl Intent {
    /// True until its outcome is known.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.outcome.is_none()
    }

    /// Where its job is; before there is one, it waits.
    #[must_use]
    pub fn phase(&self) -> Phase {
        let report = self.job.as_ref().and_then(|job| job.report.as_ref());
        report.map_or(Phase::Pending, Phase::of)
    }

    /// True while its job has nodes.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.is_live() && self.phase() == Phase::Running
    }

    /// True while its job is being cancelled.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.cancel.is_some() || self.recall.is_some()
    }

    /// A job that started before it could be recalled runs on, until it is cancelled for good.
    pub(crate) fn started_anyway(&mut self) {
        if self.is_running() && self.recall.take().is_some() {
            self.not_cancelled_yet();
        }
    }

    /// What was done about its job before is not what is ordered now.
    pub(crate) fn not_cancelled_yet(&mut self) {
        if let Some(job) = &mut self.job {
            job.cancelled = false;
        }
    }

    /// When its job has reached its walltime, if it runs.
    #[must_use]
    pub fn walltime_end(&self) -> Option<UnixS> {
        let report = self.job.as_ref()?.report.as_ref()?;
        let limit = report.limit_s.unwrap_or(self.intention.shape.walltime_s);
        Some(report.started?.after_s(limit))
    }
}

impl State {
    /// Nothing known, nothing wanted.
    #[must_use]
    pub fn new() -> Self {
        Self {
            next_intent: IntentId(1),
            ..Self::default()
        }
    }

    /// The next intent's number in a copy of the run that was restored from a backup: the lost history
    /// may have made intents since, and their jobs may still be in some queue.
    #[must_use]
    pub const fn after_a_restore(&self) -> IntentId {
        const SKIPPED: u64 = 100_000;
        IntentId(self.next_intent.0.saturating_add(SKIPPED))
    }

    /// The next plan's number.
    #[must_use]
    pub fn next_plan(&self) -> u64 {
        self.plan
            .as_ref()
            .map_or(1, |plan| plan.no.saturating_add(1))
    }

    /// The live intents of a site.
    pub fn live<'a>(&'a self, site: &'a SiteName) -> impl Iterator<Item = &'a Intent> {
        let of_site = move |intent: &&Intent| intent.intention.site == *site && intent.is_live();
        self.intents.values().filter(of_site)
    }

    /// The live intents of a replica.
    pub fn live_of<'a>(
        &'a self,
        site: &'a SiteName,
        replica: &'a ReplicaName,
    ) -> impl Iterator<Item = &'a Intent> {
        self.live(site)
            .filter(move |intent| intent.intention.replica == *replica)
    }

    /// What live intents of a site cost at most.
    #[must_use]
    pub fn committed(&self, site: &SiteName) -> GpuS {
        let costs = self
            .live(site)
            .map(|intent| intent.intention.shape.cost().0);
        GpuS(costs.fold(0, u64::saturating_add))
    }

    /// What a new job may cost; `None` where nobody counts.
    #[must_use]
    pub fn free(&self, name: &SiteName) -> Option<GpuS> {
        let (left, taken) = self.balance(name)?;
        Some(GpuS(left.saturating_sub(taken)))
    }

    /// True if what was used and what live jobs may use is more than there is: a job was requeued, or
    /// there is less than was said.
    #[must_use]
    pub fn is_overdrawn(&self, name: &SiteName) -> bool {
        self.balance(name).is_some_and(|(left, taken)| taken > left)
    }

    /// What is left, and what of it is reserved, used since that was said, or may be used by live jobs.
    fn balance(&self, name: &SiteName) -> Option<(u64, u64)> {
        let budget = &self.sites.get(name)?.budget;
        let left = budget.said.gpu_s_left?.0;
        let spent = budget.spent.values().map(|cost| cost.0);
        let spent = spent.fold(0, u64::saturating_add);
        let taken = budget.said.reserve_gpu_s.0.saturating_add(spent);
        Some((left, taken.saturating_add(self.committed(name).0)))
    }
}

impl Site {
    /// The newest probe of a shape that had been made by `at`.
    #[must_use]
    pub fn probe_at(&self, shape: &Shape, at: UnixS) -> Option<&Probed> {
        let probes = self.probes.get(&shape.name)?;
        probes.iter().rev().find(|probed| probed.at <= at)
    }

    /// The usage of a partition in thousandths.
    #[must_use]
    pub fn usage_permille(&self, partition: &Line) -> Option<u64> {
        let (_, usage) = self.usage.get(partition)?;
        permille(usage.realised_s, usage.requested_s)
    }

    /// The same, each job weighted with its CPUs.
    #[must_use]
    pub fn usage_by_cpu_permille(&self, partition: &Line) -> Option<u64> {
        let (_, usage) = self.usage.get(partition)?;
        permille(usage.realised_cpu_s, usage.requested_cpu_s)
    }

    /// The newest report of a spool.
    #[must_use]
    pub fn spooled(&self, spool: &Line) -> u64 {
        let known = self.spools.iter().find(|(name, _)| name == spool);
        known.map_or(0, |(_, seq)| *seq)
    }

    /// What the last statement about the allocation says.
    #[must_use]
    pub const fn budget_said(&self) -> &Budget {
        &self.budget.said
    }
}

fn permille(part: u64, of: u64) -> Option<u64> {
    let share = part.saturating_mul(1000).checked_div(of)?;
    Some(share.min(1000))
}

/// A statement by a command of the site's keeps the profile's reserve.
pub(crate) fn budget_of(report: &BudgetReport, before: &Budget) -> Budget {
    Budget {
        gpu_s_left: report.gpu_s_left.or(before.gpu_s_left),
        reserve_gpu_s: before.reserve_gpu_s,
        ends_at: report.ends_at.or(before.ends_at),
    }
}
