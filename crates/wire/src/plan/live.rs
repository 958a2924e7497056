//! What the coordinator says of its plan: `GET /v1/plan`. Whoever asks makes plans from the snapshot in it
//! by itself, with the same planner.

use std::time::Duration;

use hansa_planner::{Ask, Balance, ChainPolicy, Held, HeldPick, Objective, Snapshot};
use hansa_queue::{Adopted, SitePlan};
use serde::{Deserialize, Serialize};

use super::snapshot::SnapshotJson;
use crate::queue::AdoptedJson;

/// Path of [`PlanView`].
pub const PLAN: &str = "/v1/plan";
/// Path of the order to adopt the best plan of now; answered with [`AdoptedJson`].
pub const APPLY: &str = "/v1/plan/apply";

/// The plan in force, and all that the next one is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanView {
    /// The run's name.
    pub run: String,
    /// The coordinator's time.
    pub now_ms: u64,
    /// Who decides which jobs are wanted: `fixed`, `advise` or `auto`.
    pub policy: String,
    /// Seconds between two regular plans.
    pub every_s: f64,
    /// What a new plan must gain.
    pub margin: f64,
    /// What plans are asked for.
    pub ask: AskJson,
    /// The plan in force.
    pub current: Option<AdoptedJson>,
    /// What came of the last plan that was made.
    pub proposal: Option<ProposalView>,
    /// What is known now.
    pub snapshot: Option<SnapshotJson>,
    /// Why there is no snapshot.
    pub problem: Option<String>,
}

/// What came of a plan that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposalView {
    /// When.
    pub at_ms: u64,
    /// Why it was made.
    pub because: String,
    /// What was decided, and why.
    pub verdict: String,
    /// It is in force.
    pub adopted: bool,
}

/// JSON form of [`Ask`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AskJson {
    /// `earliest_finish`, `most_tokens` or `fewest_gpu_hours`.
    pub objective: String,
    /// The deadline.
    pub deadline_s: f64,
    /// How much worse solo rounds are.
    pub solo_penalty: f64,
    /// Replicas at a site.
    pub replicas_max: u32,
    /// Accumulation at most.
    pub accumulation_max: u32,
    /// How accumulation fills the barrier, if that is given: `off`, `within` or `nearest`.
    pub balance: Option<String>,
    /// Whether replicas may end with their jobs.
    pub single: bool,
}

/// To the document.
#[must_use]
pub fn ask_to_json(ask: &Ask) -> AskJson {
    AskJson {
        objective: match ask.objective {
            Objective::EarliestFinish => "earliest_finish",
            Objective::MostTokens => "most_tokens",
            Objective::FewestGpuHours => "fewest_gpu_hours",
        }
        .to_owned(),
        deadline_s: ask.deadline.as_secs_f64(),
        solo_penalty: ask.solo_penalty,
        replicas_max: ask.replicas_max,
        accumulation_max: ask.accumulation_max,
        balance: ask.balance.map(|balance| balance_word(balance).to_owned()),
        single: ask.single,
    }
}

/// The word of a balance.
pub(super) const fn balance_word(balance: Balance) -> &'static str {
    match balance {
        Balance::Off => "off",
        Balance::Within => "within",
        Balance::Nearest => "nearest",
    }
}

impl From<&AskJson> for Ask {
    /// A word that this program does not know is what it does by default.
    fn from(json: &AskJson) -> Self {
        let objective = match json.objective.as_str() {
            "most_tokens" => Objective::MostTokens,
            "fewest_gpu_hours" => Objective::FewestGpuHours,
            _ => Objective::EarliestFinish,
        };
        let deadline = Duration::try_from_secs_f64(json.deadline_s).unwrap_or(Duration::MAX);
        Self {
            solo_penalty: json.solo_penalty,
            replicas_max: json.replicas_max,
            accumulation_max: json.accumulation_max,
            balance: json.balance.as_deref().map(|word| match word {
                "within" => Balance::Within,
                "nearest" => Balance::Nearest,
                _ => Balance::Off,
            }),
            single: json.single,
            ..Self::new(objective, deadline)
        }
    }
}

/// A plan in force as the planner holds it, where accumulation is the run's own.
#[must_use]
pub fn held(current: &Adopted, ask: &Ask, snapshot: &Snapshot) -> Held {
    let chain = |plan: &SitePlan| {
        let site = snapshot.sites.iter().find(|site| site.name == plan.site);
        match (site.map(|site| site.chain.value), plan.ahead) {
            (Some(ChainPolicy::Ahead), true) => ChainPolicy::Ahead,
            _ => ChainPolicy::AfterEnd,
        }
    };
    let pick = |plan: &SitePlan| HeldPick {
        site: plan.site.clone(),
        shape: plan.shape.as_str().into(),
        replicas: plan.jobs,
        chain: chain(plan),
    };
    Held {
        picks: current.sites.iter().map(pick).collect(),
        balance: ask.balance.unwrap_or(Balance::Off),
        together: current.together,
    }
}
