//! From a plan to what the queue follows: kept or adopted, and why. Pure.

use hansa_planner::{
    Ask, ChainPolicy, Ended, Exclusion, Fact, Plan, Snapshot, Source, WallMs, candidates, plan,
    replan,
};
use hansa_queue::{Adopted, GpuS, Line, Promise, SitePlan, UnixS};
use hansa_wire::plan::live::held;

/// What came of making a plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Decision {
    /// In words.
    pub verdict: String,
    /// What should take the place of the plan in force; `None` keeps it.
    pub adopt: Option<Adopted>,
}

impl Decision {
    pub(super) fn failed(problem: impl ToString) -> Self {
        Self {
            verdict: problem.to_string(),
            adopt: None,
        }
    }
}

/// Decides between the plan in force and the best of now. `margin` is what that must gain; `None` if it is
/// to be adopted in any case.
pub(super) fn decide(
    snapshot: &Snapshot,
    ask: &Ask,
    current: Option<&Adopted>,
    margin: Option<f64>,
    no: u64,
    because: &str,
) -> Decision {
    let kept = current.map_or_else(Vec::new, |current| untouched(snapshot, current));
    let snapshot = &without(snapshot, &kept);
    let made = match (current, margin) {
        (Some(current), Some(margin)) => {
            let mut open = current.clone();
            open.sites.retain(|site| !kept.contains(site));
            let held = held(&open, ask, snapshot);
            replan(snapshot, ask, &held, margin).map(|replan| {
                let keeps = replan.verdict.keeps();
                (replan.plan, replan.verdict.to_string(), keeps)
            })
        }
        (None, Some(_)) => plan(snapshot, ask).map(|plan| (plan, "the first plan".into(), false)),
        (_, None) => plan(snapshot, ask).map(|plan| (plan, "the best of now".into(), false)),
    };
    let (plan, verdict, keeps) = match made {
        Ok(made) => made,
        Err(problem) => return Decision::failed(problem),
    };
    // A first plan that has nobody says only that too little is known.
    if current.is_none() && plan.picks.is_empty() {
        let reasons = plan.excluded.iter().take(3).map(|excluded| {
            let (site, shape, reason) = (&excluded.site, &excluded.shape, &excluded.reason);
            format!("{shape} at {site}: {reason}")
        });
        let reasons: Vec<String> = reasons.collect();
        let reasons = match reasons.is_empty() {
            true => "no job would help".to_owned(),
            false => reasons.join("; "),
        };
        return Decision::failed(format!("no plan yet: {reasons}"));
    }
    let why = format!("{verdict} ({because})");
    Decision {
        verdict,
        adopt: (!keeps).then(|| {
            let mut adopted = adopted(snapshot, &plan, no, &why);
            adopted.sites.extend(kept);
            adopted
        }),
    }
}

/// What the plan in force says of shapes that must not be used for a while, or of which too little is known
/// now: it stays, so that jobs which wait keep their places. Where nothing may be submitted, the queue
/// submits nothing. A shape that is shut while others of its site can be used is left for those.
fn untouched(snapshot: &Snapshot, current: &Adopted) -> Vec<SitePlan> {
    let (usable, excluded) = candidates(snapshot);
    let elsewhere = |plan: &SitePlan| usable.iter().any(|usable| usable.site == plan.site);
    let passing = |plan: &&SitePlan| {
        excluded.iter().any(|excluded| {
            let same = excluded.site == plan.site && excluded.shape.0 == plan.shape.as_str();
            let passing = match excluded.reason {
                Exclusion::Shut { .. } => !elsewhere(plan),
                Exclusion::NeverProbed
                | Exclusion::ProbeTooOld { .. }
                | Exclusion::NoRate
                | Exclusion::NoStartup
                | Exclusion::NoTransfer
                | Exclusion::NoEvaluation => true,
                _ => false,
            };
            same && passing
        })
    };
    current.sites.iter().filter(passing).cloned().collect()
}

/// Nothing new is planned at the sites of which the plan in force stays.
fn without(snapshot: &Snapshot, kept: &[SitePlan]) -> Snapshot {
    let mut snapshot = snapshot.clone();
    for site in &mut snapshot.sites {
        if kept.iter().any(|plan| plan.site == site.name) {
            let why = || Fact {
                value: "the plan in force stays here for now".to_owned(),
                source: Source::Operator,
                at: snapshot.now,
            };
            for shape in &mut site.shapes {
                shape.shut.get_or_insert_with(why);
            }
        }
    }
    snapshot
}

fn adopted(snapshot: &Snapshot, plan: &Plan, no: u64, why: &str) -> Adopted {
    let at = |after| unix(snapshot.now.after(after));
    let site = |pick: &hansa_planner::Pick| SitePlan {
        site: pick.candidate.site.clone(),
        shape: pick.candidate.shape.name.0.as_str().into(),
        jobs: pick.terms.replicas,
        ahead: pick.terms.chain == ChainPolicy::Ahead,
        begin: (!pick.terms.begins_in.is_zero()).then(|| at(pick.terms.begins_in)),
    };
    let outcome = &plan.outcome;
    Adopted {
        no,
        made: unix(snapshot.now),
        why: Line::new(why),
        together: plan.together,
        sites: plan.picks.iter().map(site).collect(),
        promise: Promise {
            ended: Line::new(match outcome.ended {
                Ended::Target => "target",
                Ended::Corpus => "corpus",
                Ended::Nobody => "nobody",
                Ended::Horizon => "horizon",
            }),
            ends: at(outcome.ends_in),
            windows: outcome.windows.0,
            rounds: outcome.rounds(),
            cost: GpuS((outcome.gpu_hours(&plan.members) * 3600.0).round() as u64),
        },
    }
}

const fn unix(at: WallMs) -> UnixS {
    UnixS(at.0 / 1000)
}
