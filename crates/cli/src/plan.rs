//! `hansa plan`: which sites, in which shapes, when, and how the rounds will go.
//!
//! Everything is computed from a snapshot, here; the same snapshot gives the same bytes. A coordinator
//! gives the snapshot of now, and the plan that is in force.

mod input;
mod show;
mod table4;

use self::input::{Input, Source};
use crate::operate::Whom;
use crate::ui::{note, out, print_json};
use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use hansa_base::Windows;
use hansa_planner::{Ask, Objective, Request, Snapshot, plan, sensitivity, waterfill};
use hansa_wire::plan::{FlipReport, InputReport, PlanReport, WaterfillReport, snapshot_to_json};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// `hansa plan`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    source: Source,
    /// Print a scenario that Hansa knows instead.
    #[arg(long, conflicts_with_all = ["snapshot", "data", "objective", "days"])]
    recipe: Option<Recipe>,
    #[command(flatten)]
    ask: AskArguments,
    /// Print the plan as JSON.
    #[arg(long)]
    json: bool,
}

/// More than the decision.
#[derive(Subcommand)]
pub enum Command {
    /// Say what the decision rests on, why everything else lost, and what would flip it.
    Explain(ExplainArguments),
    /// Place units of work as if nobody ever waited for anybody.
    Waterfill(WaterfillArguments),
    /// Write down what a coordinator knows now, to plan from it anywhere.
    Snapshot(SnapshotArguments),
    /// Have the best plan of now followed, whatever it gains over the one in force.
    Apply(ApplyArguments),
}

/// A known scenario.
#[derive(Clone, Copy, ValueEnum)]
enum Recipe {
    /// 100 billion tokens at LUMI and Snellius, with and without barrier.
    Table4,
}

/// `hansa plan explain`.
#[derive(Args)]
pub struct ExplainArguments {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    ask: AskArguments,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

/// `hansa plan snapshot`.
#[derive(Args)]
pub struct SnapshotArguments {
    #[command(flatten)]
    source: Source,
    /// The file to write [default: stdout].
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// `hansa plan apply`.
#[derive(Args)]
pub struct ApplyArguments {
    #[command(flatten)]
    whom: Whom,
}

/// `hansa plan waterfill`.
#[derive(Args)]
pub struct WaterfillArguments {
    #[command(flatten)]
    source: Source,
    /// Units to place [default: what is left to the target].
    #[arg(long)]
    units: Option<u64>,
    /// Windows of a unit [default: a base phase in the snapshot's first shape].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    windows_per_unit: Option<u64>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

/// What a plan is asked for; of a coordinator's, what its recipe says unless it is said here.
#[derive(Args)]
pub struct AskArguments {
    /// What is wanted [default: earliest-finish].
    #[arg(long, value_enum)]
    objective: Option<Wanted>,
    /// The deadline, and how far is looked ahead, in days [default: 14].
    #[arg(long, value_parser = crate::ui::positive)]
    days: Option<f64>,
    /// How much worse a run by one replica alone is than a federated one, 0 to 1 [default: 0].
    #[arg(long, value_parser = fraction)]
    solo_penalty: Option<f64>,
    /// Replicas at a site, at most [default: 4].
    #[arg(long)]
    replicas: Option<u32>,
    /// Micro-batches of a step, at most [default: 8]. For a run that has begun it is the recipe's.
    #[arg(long)]
    accumulation: Option<u32>,
}

/// An objective.
#[derive(Clone, Copy, ValueEnum)]
enum Wanted {
    /// The token target, as early as can be.
    EarliestFinish,
    /// As many tokens as can be until the deadline.
    MostTokens,
    /// The target before the deadline, for the fewest GPU-hours.
    FewestGpuHours,
}

impl AskArguments {
    /// These wishes over others.
    fn over(&self, mut ask: Ask) -> Ask {
        if let Some(objective) = self.objective {
            ask.objective = match objective {
                Wanted::EarliestFinish => Objective::EarliestFinish,
                Wanted::MostTokens => Objective::MostTokens,
                Wanted::FewestGpuHours => Objective::FewestGpuHours,
            };
        }
        if let Some(days) = self.days {
            // Beyond ten years a number of days is a slip.
            ask.deadline = Duration::from_secs_f64(days.min(3660.0) * 86_400.0);
        }
        ask.solo_penalty = self.solo_penalty.unwrap_or(ask.solo_penalty);
        ask.replicas_max = self.replicas.unwrap_or(ask.replicas_max);
        if ask.balance.is_none() {
            ask.accumulation_max = self.accumulation.unwrap_or(ask.accumulation_max);
        }
        ask
    }
}

fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("a number from 0 to 1 is expected".to_owned()),
    }
}

/// Everything that `explain` says.
#[derive(Serialize)]
struct Explained {
    plan: PlanReport,
    flips: Vec<FlipReport>,
    inputs: Vec<InputReport>,
}

/// Runs the command.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match (arguments.command, arguments.recipe) {
        (Some(Command::Explain(arguments)), _) => explain(arguments).await,
        (Some(Command::Waterfill(arguments)), _) => pour(arguments).await,
        (Some(Command::Snapshot(arguments)), _) => save(arguments).await,
        (Some(Command::Apply(arguments)), _) => arguments.whom.apply_plan().await,
        (None, Some(Recipe::Table4)) => table4::run(arguments.json),
        (None, None) => decide(arguments.source, &arguments.ask, arguments.json).await,
    }
}

async fn decide(source: Source, wishes: &AskArguments, json: bool) -> anyhow::Result<()> {
    let input = source.read().await?;
    let ask = wishes.over(input.ask());
    let snapshot = input.snapshot();
    let decided = input.decide(&ask)?;
    let report = PlanReport::new(snapshot, &decided.plan);
    if json {
        return print_json(&decided.document(&input, report));
    }
    if let Input::Live(live) = &input {
        show::current(live, decided.verdict.as_deref());
    }
    show::plan(snapshot, &report);
    note!("`hansa plan explain` says what this rests on, why the others lost, and what flips it");
    Ok(())
}

async fn explain(arguments: ExplainArguments) -> anyhow::Result<()> {
    let input = arguments.source.read().await?;
    let ask = arguments.ask.over(input.ask());
    let snapshot = input.snapshot();
    let plan = plan(snapshot, &ask)?;
    let flips = sensitivity(snapshot, &ask, &plan)?;
    let explained = Explained {
        plan: PlanReport::new(snapshot, &plan),
        flips: flips.iter().map(FlipReport::new).collect(),
        inputs: InputReport::all(snapshot),
    };
    if arguments.json {
        return print_json(&explained);
    }
    if let Input::Live(live) = &input {
        show::current(live, input.decide(&ask)?.verdict.as_deref());
    }
    out!("What it rests on:\n\n{}\n", show::inputs(&explained.inputs));
    show::plan(snapshot, &explained.plan);
    show::rounds(&explained.plan);
    show::alternatives(&explained.plan);
    show::flips(&explained.flips);
    Ok(())
}

async fn save(arguments: SnapshotArguments) -> anyhow::Result<()> {
    let input = arguments.source.read().await?;
    let mut text = serde_json::to_string_pretty(&snapshot_to_json(input.snapshot()))?;
    text.push('\n');
    match arguments.out {
        None => out!("{}", text.trim_end()),
        Some(path) => {
            let shown = path.display();
            std::fs::write(&path, text).with_context(|| format!("write {shown}"))?;
            note!("`hansa plan --snapshot {shown}` plans from it");
        }
    }
    Ok(())
}

async fn pour(arguments: WaterfillArguments) -> anyhow::Result<()> {
    let input = arguments.source.read().await?;
    let snapshot = input.snapshot();
    let windows_per_unit = arguments
        .windows_per_unit
        .map_or_else(|| first_phase(snapshot), Windows);
    let left = snapshot.run.target.min(snapshot.run.corpus);
    let units = left.0.div_ceil(windows_per_unit.0.max(1));
    let request = Request {
        units: arguments.units.unwrap_or(units),
        windows_per_unit,
    };
    let report = WaterfillReport::new(snapshot, request, &waterfill(snapshot, request));
    if arguments.json {
        return print_json(&report);
    }
    show::waterfill(&report);
    Ok(())
}

/// Windows of a base phase in the first shape that the snapshot lists.
fn first_phase(snapshot: &Snapshot) -> Windows {
    let mut shapes = snapshot.sites.iter().flat_map(|site| &site.shapes);
    let gpus = shapes.next().map_or(1, |state| state.shape.gpus());
    let phase = snapshot.run.phase;
    let rank = phase.steps.0.saturating_mul(phase.batch.0);
    let rank = rank.saturating_mul(phase.accumulation.into());
    Windows(rank.saturating_mul(gpus.into()).max(1))
}
