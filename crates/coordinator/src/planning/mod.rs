//! The planner's loop: a plan every so often and when something has happened, and its adoption.
//!
//! ```text
//!   every second: run's facts, queues ──► Measured.learn, snapshot ──► Desk (for people)
//!   Δ, or news:   snapshot ──► planner, on a thread of its own ──► keep │ adopt ──► queue's journal
//! ```
//!
//! The plan in force is the queue's ([`hansa_queue::State::plan`]): it survives a restart, and the queue's
//! policy follows it without ever touching a job that runs. Never here: what a good plan is.

mod adopt;
mod facts;
mod live;
mod measure;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hansa_planner::{Ask, Balance, Objective, Snapshot, WallMs, news};
use hansa_queue::{Adopted, QueueRefusal};
use hansa_wire::plan::live::{PlanView, ProposalView};
use hansa_wire::plan::snapshot_to_json;
use hansa_wire::recipe::{PlanObjective, PlanPolicy};
use tokio::sync::{mpsc, oneshot};

use self::adopt::{Decision, decide};
use self::facts::run_facts;
use self::live::{NoSnapshot, Sources};
use self::measure::Measured;
use crate::actor::{Mailbox, NotTaken};
use crate::queue::{QueueMailbox, run_view};
use crate::setup::wall_ms;
use crate::shell::{SharedShell, lock};

/// How often run and queues are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Plans are at least so far apart, whatever happens.
const PLANS_APART: Duration = Duration::from_secs(5);
/// After this time a plan that is still being made is given up.
const PLAN_MAX: Duration = Duration::from_secs(60);
/// Operators that may wait for a plan to be applied.
const APPLIES_MAX: usize = 8;

/// What came of an order to apply the best plan.
pub(crate) type Applied = Result<Adopted, String>;

/// What people are shown.
#[derive(Default)]
struct Desk {
    snapshot: Option<Result<Snapshot, NoSnapshot>>,
    proposal: Option<ProposalView>,
}

/// The way to the loop. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Planner {
    shell: SharedShell,
    desk: Arc<Mutex<Desk>>,
    applies: mpsc::Sender<oneshot::Sender<Applied>>,
}

/// The loop, before it runs.
pub(crate) struct PlanningLoop {
    planner: Planner,
    run: Mailbox,
    queue: QueueMailbox,
    orders: mpsc::Receiver<oneshot::Sender<Applied>>,
    measured: Measured,
    /// The snapshot of the last plan, and when that was made.
    last: Option<(Snapshot, Instant)>,
    /// The run is paused: nothing is submitted meanwhile.
    paused: bool,
    /// What was said last, so that it is said once.
    told: Option<String>,
}

impl Planner {
    /// A planner for a run, and its loop.
    pub fn new(shell: SharedShell, run: Mailbox, queue: QueueMailbox) -> (Self, PlanningLoop) {
        let (applies, orders) = mpsc::channel(APPLIES_MAX);
        let planner = Self {
            shell,
            desk: Arc::default(),
            applies,
        };
        let planning = PlanningLoop {
            planner: planner.clone(),
            run,
            queue,
            orders,
            measured: Measured::default(),
            last: None,
            paused: false,
            told: None,
        };
        (planner, planning)
    }

    /// What plans are asked for.
    fn ask(&self) -> Ask {
        let (section, phase) = (&self.shell.recipe.plan, &self.shell.spec.phase);
        let objective = match section.objective {
            PlanObjective::EarliestFinish => Objective::EarliestFinish,
            PlanObjective::MostTokens => Objective::MostTokens,
            PlanObjective::FewestGpuHours => Objective::FewestGpuHours,
        };
        let horizon = Duration::from_secs_f64(section.horizon_days * 86_400.0);
        // Accumulation is the recipe's, and cannot be chosen any more.
        let (balance, accumulation_max) = match phase.balance {
            true => (Balance::Nearest, phase.accumulation.saturating_mul(256)),
            false => (Balance::Off, phase.accumulation),
        };
        Ask {
            solo_penalty: section.solo_penalty,
            replicas_max: section.replicas_max,
            accumulation_max,
            balance: Some(balance),
            single: false,
            ..Ask::new(objective, horizon)
        }
    }

    /// What is known, what is in force, and what was proposed last.
    pub fn view(&self, adopted: Option<&Adopted>) -> PlanView {
        let desk = lock(&self.desk);
        let (snapshot, problem) = match &desk.snapshot {
            None => (
                None,
                Some("run and queues were not looked at yet".to_owned()),
            ),
            Some(Ok(snapshot)) => (Some(snapshot_to_json(snapshot)), None),
            Some(Err(problem)) => (None, Some(problem.to_string())),
        };
        let section = &self.shell.recipe.plan;
        PlanView {
            run: self.shell.recipe.name.clone(),
            now_ms: wall_ms(),
            policy: section.policy.to_string(),
            every_s: section.every_s,
            margin: section.margin,
            ask: hansa_wire::plan::live::ask_to_json(&self.ask()),
            current: adopted.map(hansa_wire::Wire::to_json),
            proposal: desk.proposal.clone(),
            snapshot,
            problem,
        }
    }

    /// Adopts the best plan of now, whatever it gains; says which, or why not.
    pub async fn apply(&self) -> Applied {
        if self.shell.recipe.plan.policy == PlanPolicy::Fixed {
            return Err(
                "the recipe's plan.policy is \"fixed\": each site's profile decides; set \"advise\" or \
                 \"auto\" and start the coordinator again"
                    .to_owned(),
            );
        }
        let stopping = || "the coordinator is stopping".to_owned();
        let (answer, receive) = oneshot::channel();
        let sent = self.applies.try_send(answer);
        sent.map_err(|_| "another plan is being applied; try again".to_owned())?;
        receive.await.unwrap_or_else(|_| Err(stopping()))
    }
}

/// Why a plan is made.
struct Occasion {
    /// In words.
    because: String,
    /// Who waits for it to be adopted in any case.
    apply: Option<oneshot::Sender<Applied>>,
}

impl PlanningLoop {
    /// Plans for as long as the run is served.
    pub async fn serve(mut self) {
        loop {
            let order = tokio::time::timeout(LOOK_EVERY, self.orders.recv()).await;
            let apply = order.ok().flatten();
            let snapshot = match self.look().await {
                Ok(Some(snapshot)) => snapshot,
                Err(NotTaken::Full) => {
                    if let Some(apply) = apply {
                        let _ = apply.send(Err("the coordinator is busy; try again".to_owned()));
                    }
                    continue;
                }
                Ok(None) | Err(NotTaken::Gone) => return,
            };
            let snapshot = match snapshot {
                Ok(snapshot) => snapshot,
                Err(problem) => {
                    if let Some(apply) = apply {
                        let _ = apply.send(Err(problem.to_string()));
                    }
                    continue;
                }
            };
            if let Some(occasion) = self.occasion(&snapshot, apply) {
                self.plan(snapshot, occasion).await;
            }
        }
    }

    /// The snapshot of now; `None` once the run is over.
    async fn look(&mut self) -> Result<Option<Result<Snapshot, NoSnapshot>>, NotTaken> {
        let unknown = self
            .queue
            .query(|machine, _| machine.state().sites.is_empty());
        if unknown.await? {
            let nobody = Err(NoSnapshot::NoSites);
            lock(&self.planner.desk).snapshot = Some(nobody.clone());
            return Ok(Some(nobody));
        }
        let (planning, rounds) = (self.planner.shell.planning(), self.measured.rounds());
        let query = move |machine: &_, _| {
            let facts = run_facts(machine, rounds);
            (facts, run_view(machine, planning))
        };
        let (run, view) = self.run.query(query).await?;
        if run.over {
            return Ok(None);
        }
        let mut measured = self.measured.clone();
        let shell = self.planner.shell.clone();
        let look = self.queue.query(move |machine, mono| {
            let (queue, now) = (machine.state(), WallMs(wall_ms()));
            measured.learn(&run, queue, now);
            let sites = queue.sites.keys();
            let attended = sites.filter(|site| machine.is_attended(site, mono));
            let attended: Vec<_> = attended.cloned().collect();
            let snapshot = live::snapshot(&Sources {
                section: &shell.recipe.plan,
                phase: shell.spec.phase,
                seq_len: shell.spec.digest.seq_len,
                run: &run,
                view: &view,
                queue,
                attended: &attended,
                measured: &measured,
                now,
            });
            (measured, snapshot, run.paused)
        });
        let (measured, snapshot, paused) = look.await?;
        self.measured = measured;
        lock(&self.planner.desk).snapshot = Some(snapshot.clone());
        self.paused = paused;
        Ok(Some(snapshot))
    }

    /// Whether it is time for a plan, and why.
    fn occasion(
        &self,
        snapshot: &Snapshot,
        apply: Option<oneshot::Sender<Applied>>,
    ) -> Option<Occasion> {
        let section = &self.planner.shell.recipe.plan;
        if self.paused
            && let Some(apply) = apply
        {
            let paused =
                "the run is paused: resume it first, so that jobs that wait keep their places";
            let _ = apply.send(Err(paused.to_owned()));
            return None;
        }
        if apply.is_some() {
            let because = "an operator applied it".to_owned();
            return Some(Occasion { because, apply });
        }
        let occasion = |because: String| {
            Some(Occasion {
                because,
                apply: None,
            })
        };
        if section.policy == PlanPolicy::Fixed || self.paused || snapshot.sites.is_empty() {
            return None;
        }
        let Some((before, at)) = &self.last else {
            return occasion("first look".to_owned());
        };
        if at.elapsed() < PLANS_APART {
            return None;
        }
        let happened = news(before, snapshot);
        if let Some(first) = happened.first() {
            let more = match happened.len() {
                1 => String::new(),
                n => format!(" (and {} more)", n - 1),
            };
            return occasion(format!("{first}{more}"));
        }
        let every = Duration::try_from_secs_f64(section.every_s).unwrap_or(Duration::MAX);
        (at.elapsed() >= every).then(|| Occasion {
            because: "regular".to_owned(),
            apply: None,
        })
    }

    /// Makes a plan off this thread, and adopts it if that is decided.
    async fn plan(&mut self, snapshot: Snapshot, occasion: Occasion) {
        let current = self.queue.query(|machine, _| machine.state().plan.clone());
        let Ok(current) = current.await else { return };
        let (ask, section) = (self.planner.ask(), &self.planner.shell.recipe.plan);
        let margin = match occasion.apply {
            Some(_) => None,
            None => Some(section.margin),
        };
        let (no, auto) = (
            current.as_ref().map_or(1, |plan| plan.no + 1),
            section.policy == PlanPolicy::Auto,
        );
        let input = snapshot.clone();
        let because = occasion.because.clone();
        let planning = tokio::task::spawn_blocking(move || {
            decide(&input, &ask, current.as_ref(), margin, no, &because)
        });
        self.last = Some((snapshot, Instant::now()));
        let decision = match tokio::time::timeout(PLAN_MAX, planning).await {
            Ok(Ok(decision)) => decision,
            Ok(Err(_)) | Err(_) => Decision::failed("the plan took too long and was given up"),
        };
        // Whoever was told to try again must not find two plans adopted.
        let gave_up = (occasion.apply.as_ref()).is_some_and(oneshot::Sender::is_closed);
        let adopting = decision.adopt;
        let adopting = adopting.filter(|_| (auto || occasion.apply.is_some()) && !gave_up);
        let answer = match adopting {
            Some(plan) => self.adopt(plan).await,
            None => Err(decision.verdict.clone()),
        };
        let adopted = answer.is_ok();
        self.tell(&occasion.because, &decision.verdict, adopted);
        lock(&self.planner.desk).proposal = Some(ProposalView {
            at_ms: wall_ms(),
            because: occasion.because,
            verdict: decision.verdict,
            adopted,
        });
        if let Some(apply) = occasion.apply {
            let _ = apply.send(answer);
        }
    }

    async fn adopt(&self, plan: Adopted) -> Applied {
        let shown = plan.clone();
        match self.queue.adopt(plan).await {
            Ok(Ok(())) => Ok(shown),
            Ok(Err(refusal @ QueueRefusal::OtherPlan { .. })) => Err(refusal.to_string()),
            Ok(Err(refusal)) => Err(format!("the plan was not adopted: {refusal}")),
            Err(_) => Err("the coordinator is stopping".to_owned()),
        }
    }

    /// One line for each verdict that is another one.
    fn tell(&mut self, because: &str, verdict: &str, adopted: bool) {
        let text = format!("{verdict} ({because})");
        if adopted || self.told.as_ref() != Some(&text) {
            tracing::info!(adopted, "plan: {text}");
            self.told = Some(text);
        }
    }
}
