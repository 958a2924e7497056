//! Which jobs are wanted at a site: by its profile, or by the plan in force.
//!
//! A plan counts jobs that run first, whatever they are: they keep their places until they end. Never
//! here: changes.

use hansa_base::ReplicaName;

use crate::event::Why;
use crate::held::Held;
use crate::planned::Planning;
use crate::policy::{Look, slot_name, slot_number};
use crate::state::Intent;
use crate::{Chain, Line, Shape, SiteProfile, UnixS};

/// What is wanted at a site.
pub(crate) struct Wants<'a> {
    /// Replicas that shall have a job.
    pub jobs: u32,
    /// Its shape.
    pub shape: &'a Shape,
    /// How they are succeeded.
    pub chain: Chain,
    /// A new job starts no earlier.
    pub begin: Option<UnixS>,
    /// The plan's number; `None` if the profile decides.
    pub plan: Option<u64>,
}

/// What is wanted, or why nobody has decided.
pub(crate) fn wants<'a>(look: &Look<'a>, profile: &'a SiteProfile) -> Result<Wants<'a>, Held> {
    let preferred = profile.shape(&profile.preferred);
    let preferred = preferred.ok_or(Held::NoProfile)?;
    let by_profile = Wants {
        jobs: profile.wanted_jobs,
        shape: preferred,
        chain: profile.chain,
        begin: None,
        plan: None,
    };
    let adopted = match (look.run.planning, &look.state.plan) {
        (Planning::Fixed, _) | (Planning::Advise, None) => return Ok(by_profile),
        (Planning::Auto, None) => return Err(Held::NoPlan),
        (Planning::Advise | Planning::Auto, Some(adopted)) => adopted,
    };
    let none = Wants {
        jobs: 0,
        plan: Some(adopted.no),
        ..by_profile
    };
    let Some(plan) = adopted.site(look.name) else {
        return Ok(none);
    };
    // A profile that has lost the shape: the next plan knows.
    let Some(shape) = profile.shape(&plan.shape) else {
        return Ok(none);
    };
    Ok(Wants {
        // The profile may want fewer since.
        jobs: plan.jobs.min(profile.wanted_jobs),
        shape,
        chain: match plan.ahead {
            true => profile.chain,
            false => Chain::None,
        },
        begin: plan.begin.filter(|begin| *begin > look.now),
        plan: Some(adopted.no),
    })
}

impl Wants<'_> {
    /// The replicas that shall have a job. Under a plan, those whose jobs run come first, and then those
    /// whose jobs wait in its shape.
    pub(crate) fn replicas(&self, look: &Look<'_>) -> Vec<ReplicaName> {
        let jobs = self.jobs as usize;
        let numbered = |jobs: u32| (1..=jobs).filter_map(slot_name);
        if self.plan.is_none() {
            return numbered(self.jobs).collect();
        }
        let place = |intent: &Intent| match intent.is_running() {
            true => Some(0),
            false => {
                let stays = !intent.is_leaving() && intent.withdraw.is_none();
                (stays && intent.intention.shape.name == self.shape.name).then_some(1)
            }
        };
        let live = look.state.live(look.name);
        let mut placed: Vec<(u8, u32, &ReplicaName)> = live
            .filter_map(|intent| {
                let replica = &intent.intention.replica;
                Some((place(intent)?, slot_number(replica)?, replica))
            })
            .collect();
        placed.sort();
        let mut names: Vec<ReplicaName> = Vec::new();
        for (.., name) in placed {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names.truncate(jobs);
        let more = u32::try_from(names.len()).unwrap_or(u32::MAX);
        for name in numbered(self.jobs.saturating_add(more)) {
            if names.len() < jobs && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Why a waiting job is not wanted, if it is not.
    pub(crate) fn unwanted(&self, look: &Look<'_>, intent: &Intent) -> Option<Line> {
        let intention = &intent.intention;
        if matches!(intention.why, Why::Operator(_)) {
            return None;
        }
        let wanted = self.replicas(look).contains(&intention.replica);
        let why = match self.plan {
            None if !wanted => "the profile wants fewer jobs".to_owned(),
            Some(no) if !wanted => format!("plan {no} wants fewer jobs here"),
            Some(no) if intention.shape.name != self.shape.name => {
                format!("plan {no} wants shape {}", self.shape.name)
            }
            _ => return None,
        };
        Some(Line::new(&why))
    }

    /// Why a job is submitted that has no predecessor.
    pub(crate) fn why(&self) -> Why {
        let jobs = self.jobs;
        match self.plan {
            None => Why::Wanted { jobs },
            Some(plan) => Why::Planned { plan, jobs },
        }
    }
}
