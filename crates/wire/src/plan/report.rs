//! A plan as a document: every number that its tables show, and the reasons as sentences.
//!
//! One way only: a plan is made again from its snapshot, never read back. Lengths of time are seconds
//! from the snapshot's `now`, and end in `_s`.

use hansa_planner::{
    Alternative, Basis, Candidate, ChainPolicy, Ended, Excluded, Flip, Input, Objective, Plan,
    Quantile, Snapshot, Tally, Trap, Wait, Waterfill, inputs,
};
use serde::Serialize;

use super::live::balance_word;
use super::mirror::seconds;

/// A plan.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct PlanReport {
    pub now_ms: u64,
    pub objective: &'static str,
    pub deadline_s: f64,
    /// `target`, `corpus`, `nobody` or `horizon`.
    pub ended: &'static str,
    pub ends_s: f64,
    pub windows: u64,
    pub tokens: u64,
    /// Windows of rounds with one replica.
    pub solo_windows: u64,
    pub rounds: u64,
    pub gpu_hours: f64,
    /// The share of billed time in which accelerators did not train.
    pub idle_share: f64,
    /// How accumulation fills the barrier: `off`, `within` or `nearest`.
    pub balance: &'static str,
    /// Whether early jobs begin so late that all are ready together.
    pub together: bool,
    /// How the sites are to be used.
    pub picks: Vec<PickReport>,
    /// Everybody in the run, site by site: jobs that are there, and new ones.
    pub sites: Vec<SiteReport>,
    /// The rounds, like ones together.
    pub stretches: Vec<StretchReport>,
    pub traps: Vec<String>,
    pub excluded: Vec<ExcludedReport>,
    pub alternatives: Vec<AlternativeReport>,
    /// Whether every way to run was tried or ruled out.
    pub exact: bool,
    pub simulations: u32,
}

/// How one site is to be used.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct PickReport {
    pub site: String,
    pub shape: String,
    pub partition: String,
    pub nodes: u32,
    pub gpus: u32,
    pub walltime_s: f64,
    pub replicas: u32,
    /// Of these, so many have a job already.
    pub already: u32,
    /// `single`, `after_end` or `ahead`.
    pub chain: &'static str,
    /// A job is not to start earlier.
    pub begins_s: f64,
    pub starts_s: f64,
    pub wait: WaitReport,
}

/// How long a job will wait, and what that rests on.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct WaitReport {
    /// What the probe said.
    pub raw_s: f64,
    pub p50_s: f64,
    pub p90_s: f64,
    /// Which of the two is counted on.
    pub counted_s: f64,
    pub basis: String,
    pub source: String,
}

/// What becomes of the replicas of a site.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct SiteReport {
    pub site: String,
    /// Whether its job runs already.
    pub there_already: bool,
    pub replicas: u32,
    pub gpus: u32,
    /// Until its first job starts.
    pub wait_s: f64,
    /// Until its replica can train; left out if that is never before the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_s: Option<f64>,
    /// Ready time over all jobs.
    pub active_s: f64,
    pub jobs: u32,
    pub rounds: u64,
    pub windows: u64,
    pub tokens: u64,
    pub gpu_hours: f64,
    /// The share of billed time in which it does not train.
    pub idle_share: f64,
}

/// Rounds that are all alike.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct StretchReport {
    pub opens_s: f64,
    pub rounds: u64,
    pub period_s: f64,
    pub compute_s: f64,
    pub exchange_s: f64,
    pub merge_s: f64,
    /// Windows of each round.
    pub windows: u64,
    /// Who takes part, with steps and accumulation: `[index into sites, steps, accumulation]`.
    pub parts: Vec<(usize, u64, u32)>,
}

/// A shape that cannot be used.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct ExcludedReport {
    pub site: String,
    pub shape: String,
    pub reason: String,
    /// The line of the site's profile that would let it in, where one would.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// What lost, and why.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct AlternativeReport {
    pub site: String,
    /// Left out: without the site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    pub replicas: u32,
    pub why: String,
}

/// The plan if something were different.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct FlipReport {
    pub change: String,
    /// Whether the decision is another one.
    pub flips: bool,
    /// The decision then: `site shape ×replicas`.
    pub decision: Vec<String>,
    pub ended: &'static str,
    pub ends_s: f64,
    pub gpu_hours: f64,
}

/// A number of the snapshot.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct InputReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    pub what: String,
    /// Null: nobody knows.
    pub value: Option<String>,
    pub source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_s: Option<f64>,
}

/// A waterfill.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct WaterfillReport {
    pub units: u64,
    pub windows_per_unit: u64,
    /// When arbitrarily fine work would be done; null if not all of it fits.
    pub level_s: Option<f64>,
    /// When the last whole unit is done.
    pub done_s: f64,
    /// Units that fit into no job.
    pub left: u64,
    pub shares: Vec<ShareReport>,
    pub passed_over: Vec<ExcludedReport>,
    pub excluded: Vec<ExcludedReport>,
}

/// One job of a waterfill.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct ShareReport {
    pub site: String,
    pub shape: String,
    pub gpus: u32,
    pub units: u64,
    pub ready_s: f64,
    pub done_s: f64,
    pub walltime_s: f64,
    pub gpu_hours: f64,
    pub wait: WaitReport,
}

impl PlanReport {
    /// The document of a plan that was made from this snapshot.
    #[must_use]
    pub fn new(snapshot: &Snapshot, plan: &Plan) -> Self {
        let outcome = &plan.outcome;
        Self {
            now_ms: snapshot.now.0,
            objective: objective(plan.ask.objective),
            deadline_s: seconds(plan.ask.deadline),
            ended: ended(outcome.ended),
            ends_s: seconds(outcome.ends_in),
            windows: outcome.windows.0,
            tokens: tokens(snapshot, outcome.windows.0),
            solo_windows: outcome.solo_windows.0,
            rounds: outcome.rounds(),
            gpu_hours: outcome.gpu_hours(&plan.members),
            idle_share: outcome.idle_share(&plan.members),
            balance: balance_word(plan.balance),
            together: plan.together,
            picks: picks(snapshot, plan),
            sites: sites(snapshot, plan),
            stretches: stretches(plan),
            traps: plan.traps.iter().map(Trap::to_string).collect(),
            excluded: plan.excluded.iter().map(ExcludedReport::new).collect(),
            alternatives: plan.alternatives.iter().map(alternative).collect(),
            exact: plan.exact,
            simulations: plan.simulations,
        }
    }
}

impl ExcludedReport {
    /// The document of an exclusion.
    #[must_use]
    pub fn new(excluded: &Excluded) -> Self {
        Self {
            site: excluded.site.to_string(),
            shape: excluded.shape.to_string(),
            reason: excluded.reason.to_string(),
            fix: excluded.reason.fix(&excluded.shape),
        }
    }
}

impl FlipReport {
    /// The document of a change and what it does.
    #[must_use]
    pub fn new(flip: &Flip) -> Self {
        let outcome = &flip.plan.outcome;
        let pick = |pick: &hansa_planner::Pick| {
            let Candidate { site, shape, .. } = &pick.candidate;
            format!("{site} {} ×{}", shape.name, pick.terms.replicas)
        };
        Self {
            change: flip.change.to_string(),
            flips: flip.flips,
            decision: flip.plan.picks.iter().map(pick).collect(),
            ended: ended(outcome.ended),
            ends_s: seconds(outcome.ends_in),
            gpu_hours: outcome.gpu_hours(&flip.plan.members),
        }
    }
}

impl InputReport {
    /// Everything that a plan from this snapshot rests on.
    #[must_use]
    pub fn all(snapshot: &Snapshot) -> Vec<Self> {
        let report = |input: Input| Self {
            site: input.site.map(|site| site.to_string()),
            what: input.what,
            value: input.value,
            source: input.source,
            age_s: input.age.map(seconds),
        };
        inputs(snapshot).into_iter().map(report).collect()
    }
}

impl WaterfillReport {
    /// The document of a waterfill over this snapshot.
    #[must_use]
    pub fn new(
        snapshot: &Snapshot,
        request: hansa_planner::Request,
        waterfill: &Waterfill,
    ) -> Self {
        let share = |share: &hansa_planner::Share| ShareReport {
            site: share.candidate.site.to_string(),
            shape: share.candidate.shape.name.to_string(),
            gpus: share.candidate.shape.gpus(),
            units: share.units,
            ready_s: seconds(share.ready_in),
            done_s: seconds(share.done_in),
            walltime_s: seconds(share.walltime),
            gpu_hours: share.gpu_hours,
            wait: WaitReport::new(snapshot, &share.candidate.wait),
        };
        let passed = |passed: &hansa_planner::PassedOver| ExcludedReport {
            site: passed.site.to_string(),
            shape: passed.shape.to_string(),
            reason: passed.reason.to_string(),
            fix: None,
        };
        Self {
            units: request.units,
            windows_per_unit: request.windows_per_unit.0,
            level_s: waterfill.level_in.map(seconds),
            done_s: seconds(waterfill.done_in),
            left: waterfill.left,
            shares: waterfill.shares.iter().map(share).collect(),
            passed_over: waterfill.passed_over.iter().map(passed).collect(),
            excluded: waterfill.excluded.iter().map(ExcludedReport::new).collect(),
        }
    }
}

impl WaitReport {
    fn new(snapshot: &Snapshot, wait: &Wait) -> Self {
        let now = snapshot.now;
        let basis = match &wait.basis {
            Basis::Discounted {
                strength,
                usage,
                pairs,
            } => format!(
                "discounted: strength {strength}, usage {:.1} % ({}); {pairs} pairs alike, too few",
                usage.value * 100.0,
                usage.provenance(now)
            ),
            Basis::Undiscounted { pairs } => {
                format!("not discounted: no usage is known; {pairs} pairs alike, too few")
            }
            Basis::Learned { pairs, .. } => format!("learned from {pairs} pairs alike"),
        };
        Self {
            raw_s: seconds(wait.raw.value),
            p50_s: seconds(wait.p50),
            p90_s: seconds(wait.p90),
            counted_s: seconds(wait.at(snapshot.policy.quantile)),
            basis,
            source: wait.raw.provenance(now),
        }
    }

    /// Which quantile is counted on.
    #[must_use]
    pub const fn quantile(snapshot: &Snapshot) -> &'static str {
        match snapshot.policy.quantile {
            Quantile::P50 => "p50",
            Quantile::P90 => "p90",
        }
    }
}

fn objective(objective: Objective) -> &'static str {
    match objective {
        Objective::EarliestFinish => "earliest-finish",
        Objective::MostTokens => "most-tokens",
        Objective::FewestGpuHours => "fewest-gpu-hours",
    }
}

fn ended(ended: Ended) -> &'static str {
    match ended {
        Ended::Target => "target",
        Ended::Corpus => "corpus",
        Ended::Nobody => "nobody",
        Ended::Horizon => "horizon",
    }
}

fn tokens(snapshot: &Snapshot, windows: u64) -> u64 {
    windows.saturating_mul(snapshot.run.seq_len.into())
}

fn picks(snapshot: &Snapshot, plan: &Plan) -> Vec<PickReport> {
    let pick = |pick: &hansa_planner::Pick| {
        let (candidate, terms) = (&pick.candidate, pick.terms);
        PickReport {
            site: candidate.site.to_string(),
            shape: candidate.shape.name.to_string(),
            partition: candidate.shape.partition.to_string(),
            nodes: candidate.shape.nodes,
            gpus: candidate.shape.gpus(),
            walltime_s: seconds(candidate.walltime),
            replicas: terms.replicas,
            already: pick.already,
            chain: match terms.chain {
                ChainPolicy::Single => "single",
                ChainPolicy::AfterEnd => "after_end",
                ChainPolicy::Ahead => "ahead",
            },
            begins_s: seconds(terms.begins_in),
            starts_s: seconds(candidate.starts_in.max(terms.begins_in)),
            wait: WaitReport::new(snapshot, &candidate.wait),
        }
    };
    plan.picks.iter().map(pick).collect()
}

fn sites(snapshot: &Snapshot, plan: &Plan) -> Vec<SiteReport> {
    let members = plan.members.iter().zip(&plan.outcome.members);
    let site = |(member, tally): (&hansa_planner::Member, &Tally)| {
        let site = snapshot.sites.get(member.site);
        let billed_s = tally.billed.as_secs_f64();
        let idle_share = match billed_s > 0.0 {
            true => 1.0 - tally.computing.as_secs_f64() / billed_s,
            false => 0.0,
        };
        SiteReport {
            site: site.map(|site| site.name.to_string()).unwrap_or_default(),
            there_already: member.first.paid,
            replicas: member.replicas,
            gpus: member.gpus,
            wait_s: seconds(member.first.starts_in),
            ready_s: tally.ready_in.map(seconds),
            active_s: seconds(tally.active),
            jobs: tally.jobs,
            rounds: tally.rounds,
            windows: tally.windows.0,
            tokens: tokens(snapshot, tally.windows.0),
            gpu_hours: billed_s * member.all_gpus() / 3600.0,
            idle_share,
        }
    };
    members.map(site).collect()
}

fn stretches(plan: &Plan) -> Vec<StretchReport> {
    let stretch = |stretch: &hansa_planner::Stretch| {
        let spent = stretch.compute.saturating_add(stretch.merge);
        let parts = stretch.parts.iter();
        StretchReport {
            opens_s: seconds(stretch.opens_in),
            rounds: stretch.rounds,
            period_s: seconds(stretch.period),
            compute_s: seconds(stretch.compute),
            exchange_s: seconds(stretch.period.saturating_sub(spent)),
            merge_s: seconds(stretch.merge),
            windows: stretch.windows.0,
            parts: parts
                .map(|p| (p.member, p.steps.0, p.accumulation))
                .collect(),
        }
    };
    plan.outcome.stretches.iter().map(stretch).collect()
}

fn alternative(alternative: &Alternative) -> AlternativeReport {
    AlternativeReport {
        site: alternative.site.to_string(),
        shape: alternative.shape.as_ref().map(ToString::to_string),
        replicas: alternative.replicas,
        why: alternative.why.to_string(),
    }
}
