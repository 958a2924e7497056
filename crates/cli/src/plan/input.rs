//! Where a plan's inputs come from: a file, or a coordinator.

use crate::credentials::RemoteArguments;
use crate::status::{Listening, operator_endpoint, tool};
use anyhow::Context as _;
use clap::Args;
use hansa_planner::{Ask, Objective, Plan, Snapshot, plan, replan};
use hansa_queue::Adopted;
use hansa_wire::Wire as _;
use hansa_wire::plan::live::{PLAN, PlanView, held};
use hansa_wire::plan::{PlanReport, parse_snapshot, snapshot_from_json};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// What to plan from.
#[derive(Args)]
pub struct Source {
    /// What is known of the queues, the sites and the run, as JSON (docs/guide.md).
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    snapshot: Option<PathBuf>,
    /// The coordinator's data directory, on its own machine; nothing else is needed then.
    #[arg(long)]
    data: Option<PathBuf>,
    #[command(flatten)]
    remote: RemoteArguments,
}

/// What is planned from.
// One of them, once.
#[allow(clippy::large_enum_variant)]
pub enum Input {
    /// A file.
    File(Snapshot),
    /// A coordinator's state of now.
    Live(Live),
}

/// What a coordinator said.
pub struct Live {
    /// All of it, but for the snapshot.
    pub view: PlanView,
    /// The plan in force.
    pub current: Option<Adopted>,
    snapshot: Snapshot,
}

/// A plan, and why it and no other.
pub struct Decided {
    /// On what is known now.
    pub plan: Plan,
    /// What becomes of the plan in force, if there is one.
    pub verdict: Option<String>,
}

impl Source {
    /// Reads the file, or asks the coordinator.
    pub async fn read(self) -> anyhow::Result<Input> {
        if let Some(path) = &self.snapshot {
            let shown = path.display();
            let text = std::fs::read_to_string(path).with_context(|| format!("read {shown}"))?;
            let snapshot = parse_snapshot(&text).with_context(|| format!("read {shown}"))?;
            return Ok(Input::File(snapshot));
        }
        let endpoint = match &self.data {
            Some(data) => operator_endpoint(&Listening::load(data)?, data)?,
            None => (self.remote.endpoint()).context("give --snapshot FILE, or say whom to ask")?,
        };
        let mut view: PlanView = tool(&endpoint)?.get_json(PLAN, ANSWER_WITHIN).await?;
        let snapshot = match (view.snapshot.take(), &view.problem) {
            (Some(snapshot), _) => snapshot_from_json(snapshot)?,
            (None, Some(problem)) => anyhow::bail!("no plan can be made: {problem}"),
            (None, None) => anyhow::bail!("the coordinator gave no snapshot"),
        };
        snapshot.validate()?;
        let current = view.current.clone().map(Adopted::from_json).transpose()?;
        Ok(Input::Live(Live {
            view,
            current,
            snapshot,
        }))
    }
}

impl Input {
    /// What is known.
    pub fn snapshot(&self) -> &Snapshot {
        match self {
            Self::File(snapshot) => snapshot,
            Self::Live(live) => &live.snapshot,
        }
    }

    /// What is asked for where nobody says anything.
    pub fn ask(&self) -> Ask {
        match self {
            Self::File(_) => Ask::new(Objective::EarliestFinish, Duration::from_secs(14 * 86_400)),
            Self::Live(live) => Ask::from(&live.view.ask),
        }
    }

    /// The plan in force as it looks now, or the best one if that takes its place.
    pub fn decide(&self, ask: &Ask) -> anyhow::Result<Decided> {
        let snapshot = self.snapshot();
        let current = match self {
            Self::File(_) => None,
            Self::Live(live) => live.current.as_ref().map(|current| (current, live)),
        };
        let Some((current, live)) = current else {
            let plan = plan(snapshot, ask)?;
            return Ok(Decided {
                plan,
                verdict: None,
            });
        };
        let held = held(current, ask, snapshot);
        let again = replan(snapshot, ask, &held, live.view.margin)?;
        Ok(Decided {
            plan: again.plan,
            verdict: Some(again.verdict.to_string()),
        })
    }
}

impl Decided {
    /// The plan as a document; of a coordinator with what is in force.
    pub fn document(&self, input: &Input, report: PlanReport) -> Value {
        #[derive(Serialize)]
        struct Document<'a> {
            plan: PlanReport,
            policy: &'a str,
            current: Value,
            proposal: Value,
            verdict: Option<&'a str>,
        }
        let value = match input {
            Input::File(_) => serde_json::to_value(report),
            Input::Live(live) => serde_json::to_value(Document {
                plan: report,
                policy: &live.view.policy,
                current: json!(live.view.current),
                proposal: json!(live.view.proposal),
                verdict: self.verdict.as_deref(),
            }),
        };
        value.unwrap_or_default()
    }
}
