//! `hansa plan`: which sites, in which shapes, when, and how the rounds will go.
//!
//! Everything is computed from a snapshot; the same snapshot gives the same bytes.

mod show;
mod table4;

use crate::ui::{note, out, print_json};
use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use hansa_base::Windows;
use hansa_planner::{Ask, Objective, Request, Snapshot, plan, sensitivity, waterfill};
use hansa_wire::plan::{FlipReport, InputReport, PlanReport, WaterfillReport, parse_snapshot};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// `hansa plan`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// What is known of the queues, the sites and the run, as JSON (docs/guide.md).
    #[arg(long, value_name = "FILE", required_unless_present = "recipe")]
    snapshot: Option<PathBuf>,
    /// Print a scenario that Hansa knows instead.
    #[arg(long, conflicts_with_all = ["snapshot", "objective", "days"])]
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
    /// What is known of the queues, the sites and the run, as JSON (docs/guide.md).
    #[arg(long, value_name = "FILE")]
    snapshot: PathBuf,
    #[command(flatten)]
    ask: AskArguments,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

/// `hansa plan waterfill`.
#[derive(Args)]
pub struct WaterfillArguments {
    /// What is known of the queues, the sites and the run, as JSON (docs/guide.md).
    #[arg(long, value_name = "FILE")]
    snapshot: PathBuf,
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

/// What a plan is asked for.
#[derive(Args)]
pub struct AskArguments {
    /// What is wanted.
    #[arg(long, value_enum, default_value_t = Wanted::EarliestFinish)]
    objective: Wanted,
    /// The deadline, and how far is looked ahead, in days.
    #[arg(long, default_value_t = 14.0, value_parser = crate::ui::positive)]
    days: f64,
    /// How much worse a run by one replica alone is than a federated one, 0 to 1.
    #[arg(long, default_value_t = 0.0, value_parser = fraction)]
    solo_penalty: f64,
    /// Replicas at a site, at most.
    #[arg(long, default_value_t = 4)]
    replicas: u32,
    /// Micro-batches of a step, at most.
    #[arg(long, default_value_t = 8)]
    accumulation: u32,
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
    fn ask(&self) -> Ask {
        let objective = match self.objective {
            Wanted::EarliestFinish => Objective::EarliestFinish,
            Wanted::MostTokens => Objective::MostTokens,
            Wanted::FewestGpuHours => Objective::FewestGpuHours,
        };
        // Beyond ten years a number of days is a slip.
        let deadline = Duration::from_secs_f64(self.days.min(3660.0) * 86_400.0);
        Ask {
            solo_penalty: self.solo_penalty,
            replicas_max: self.replicas,
            accumulation_max: self.accumulation,
            ..Ask::new(objective, deadline)
        }
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
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match (&arguments.command, arguments.recipe, &arguments.snapshot) {
        (Some(Command::Explain(arguments)), ..) => explain(arguments),
        (Some(Command::Waterfill(arguments)), ..) => pour(arguments),
        (None, Some(Recipe::Table4), _) => table4::run(arguments.json),
        (None, None, Some(path)) => decide(path, &arguments.ask.ask(), arguments.json),
        (None, None, None) => anyhow::bail!("give --snapshot FILE or --recipe table4"),
    }
}

fn decide(path: &PathBuf, ask: &Ask, json: bool) -> anyhow::Result<()> {
    let snapshot = read(path)?;
    let report = PlanReport::new(&snapshot, &plan(&snapshot, ask)?);
    if json {
        return print_json(&report);
    }
    show::plan(&snapshot, &report);
    note!("`hansa plan explain` says what this rests on, why the others lost, and what flips it");
    Ok(())
}

fn explain(arguments: &ExplainArguments) -> anyhow::Result<()> {
    let (snapshot, ask) = (read(&arguments.snapshot)?, arguments.ask.ask());
    let plan = plan(&snapshot, &ask)?;
    let flips = sensitivity(&snapshot, &ask, &plan)?;
    let explained = Explained {
        plan: PlanReport::new(&snapshot, &plan),
        flips: flips.iter().map(FlipReport::new).collect(),
        inputs: InputReport::all(&snapshot),
    };
    if arguments.json {
        return print_json(&explained);
    }
    out!("What it rests on:\n\n{}\n", show::inputs(&explained.inputs));
    show::plan(&snapshot, &explained.plan);
    show::rounds(&explained.plan);
    show::alternatives(&explained.plan);
    show::flips(&explained.flips);
    Ok(())
}

fn pour(arguments: &WaterfillArguments) -> anyhow::Result<()> {
    let snapshot = read(&arguments.snapshot)?;
    let windows_per_unit = arguments
        .windows_per_unit
        .map_or_else(|| first_phase(&snapshot), Windows);
    let left = snapshot.run.target.min(snapshot.run.corpus);
    let units = left.0.div_ceil(windows_per_unit.0.max(1));
    let request = Request {
        units: arguments.units.unwrap_or(units),
        windows_per_unit,
    };
    let report = WaterfillReport::new(&snapshot, request, &waterfill(&snapshot, request));
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

fn read(path: &PathBuf) -> anyhow::Result<Snapshot> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("read {shown}"))?;
    parse_snapshot(&text).with_context(|| format!("read {shown}"))
}
