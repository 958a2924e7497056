//! `hansa ledger`: prove what a journal claims, or show it (reads only; the coordinator may run), and
//! let windows out of quarantine.

use crate::demo::{ledger_table, plain_table, rounds_table};
use crate::operate::Whom;
use crate::train;
use crate::ui;
use crate::ui::out;
use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use comfy_table::Table;
use hansa_coordinator::trace::{Subject, Trace, trace};
use hansa_coordinator::{Replayed, SiteShare, VerifyReport, replay_journal, verify_journal};
use hansa_protocol::{Order, Ownership};
use serde_json::{Value, json};
use std::path::PathBuf;

/// What to do with a ledger.
#[derive(Subcommand)]
pub enum Command {
    /// Replay the journal from its first record and check every invariant.
    Verify(Arguments),
    /// Show who was granted and committed what, and every round.
    Show(ShowArguments),
    /// Let windows out of quarantine, into the running epoch.
    Release(ReleaseArguments),
}

/// `hansa ledger release`.
#[derive(Args)]
pub struct ReleaseArguments {
    /// Windows of the corpus, as `hansa status` lists them [default: all].
    #[arg(value_name = "WINDOW")]
    windows: Vec<u64>,
    #[command(flatten)]
    whom: Whom,
}

/// A journal to look at.
#[derive(Args)]
pub struct Arguments {
    /// The coordinator's data directory, or its journal.sqlite.
    path: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// `hansa ledger show`.
#[derive(Args)]
pub struct ShowArguments {
    #[command(flatten)]
    journal: Arguments,
    /// Show every range of positions of the running epoch, too.
    #[arg(long)]
    positions: bool,
    #[command(flatten)]
    subject: SubjectArguments,
}

/// What became of one thing, instead of the whole.
#[derive(Args)]
#[group(multiple = false)]
pub struct SubjectArguments {
    /// Show what a replica had, and what became of it.
    #[arg(long, value_name = "SITE/NAME", conflicts_with = "positions")]
    replica: Option<String>,
    /// Show who trained a block of the corpus, and which generation has it.
    #[arg(long, value_name = "N", conflicts_with = "positions")]
    block: Option<u64>,
    /// The same for one window of the corpus.
    #[arg(long, value_name = "N", conflicts_with = "positions")]
    window: Option<u64>,
    /// The same for a place in the order of windows, which is another window in every epoch.
    #[arg(long, value_name = "N", conflicts_with = "positions")]
    position: Option<u64>,
}

impl SubjectArguments {
    fn subject(&self) -> anyhow::Result<Option<Subject>> {
        if let Some(name) = &self.replica {
            let id = name.parse().with_context(|| {
                format!("{name} is not the name of a replica: it is a site, a slash and a name")
            })?;
            return Ok(Some(Subject::Replica(id)));
        }
        let block = self.block.map(Subject::Block);
        let window = self.window.map(Subject::Window);
        Ok(block.or(window).or(self.position.map(Subject::Position)))
    }
}

/// Runs the subcommand.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Verify(arguments) => verify(&arguments),
        Command::Show(arguments) => show(&arguments),
        Command::Release(arguments) => train::block_on(release(arguments)),
    }
}

async fn release(arguments: ReleaseArguments) -> anyhow::Result<()> {
    let ReleaseArguments { windows, whom } = arguments;
    let done = "the windows are out of quarantine and will be trained";
    whom.order(Order::LetOut { windows }, done).await
}

fn verify(arguments: &Arguments) -> anyhow::Result<()> {
    let report = verify_journal(&arguments.path)?;
    if arguments.json {
        ui::print_json(&report)?;
    } else {
        out!("{}\n\n{}", sites_table(&report.sites), verdict(&report));
    }
    if !report.is_good() {
        bail!("the journal does not prove what it claims: keep it, and do not go on with this run");
    }
    Ok(())
}

/// What a verification found, for people.
pub fn verdict(report: &VerifyReport) -> String {
    let mut text = format!(
        "{} records: {} windows committed up to generation {}, {} lost, {} doubled",
        ui::count(report.records),
        ui::count(report.committed),
        report.generation,
        report.lost,
        report.doubled,
    );
    report
        .violations
        .iter()
        .for_each(|violation| text += &format!("\n  {violation}"));
    text
}

fn sites_table(sites: &[SiteShare]) -> Table {
    let total: u64 = sites.iter().map(|site| site.committed).sum();
    let header = [
        "site",
        "replicas",
        "granted",
        "committed",
        "share",
        "lost",
        "revived",
        "taken over",
        "given back",
        "refused",
    ];
    let mut table = plain_table(&header);
    for site in sites {
        let share = 100.0 * site.committed as f64 / total.max(1) as f64;
        table.add_row([
            site.site.clone(),
            site.replicas.to_string(),
            ui::count(site.granted),
            ui::count(site.committed),
            format!("{share:.1} %"),
            ui::count(site.reclaimed),
            ui::count(site.revived),
            ui::count(site.stolen),
            ui::count(site.released),
            ui::count(site.refused),
        ]);
    }
    table
}

fn show(arguments: &ShowArguments) -> anyhow::Result<()> {
    if let Some(subject) = arguments.subject.subject()? {
        let trace = trace(&arguments.journal.path, &subject)?;
        if arguments.journal.json {
            return ui::print_json(&trace);
        }
        show_trace(&trace);
        return Ok(());
    }
    let replayed = replay_journal(&arguments.journal.path)?;
    let report = replayed.history();
    if arguments.journal.json {
        let mut value = json!({
            "replicas": report.replicas,
            "rounds": report.rounds,
            "evaluations": report.evaluations,
            "quarantined_windows": report.quarantined_windows,
        });
        if arguments.positions {
            value["positions"] = positions(&replayed).into();
        }
        return ui::print_json(&value);
    }
    out!(
        "{}\n\n{}",
        ledger_table(&report.replicas),
        rounds_table(&report.rounds)
    );
    if let Some(text) = quarantine(&report.quarantined_windows) {
        out!("\n{text}");
    }
    if arguments.positions {
        out!("");
        for (span, ownership) in replayed.state.ledger.intervals() {
            out!("{:>24}  {}", span.to_string(), replayed.owner(ownership));
        }
    }
    Ok(())
}

fn show_trace(trace: &Trace) {
    let spans = |spans: &[(u64, u64)]| -> String {
        let texts: Vec<String> = spans
            .iter()
            .map(|(start, end)| format!("{start}..{end}"))
            .collect();
        texts.join(", ")
    };
    for commit in &trace.committed {
        let (epoch, generation) = (commit.epoch, commit.generation);
        let (replica, id) = (&commit.replica, &commit.contribution);
        out!(
            "epoch {epoch}, positions {}: trained by {replica}, in the weights from generation \
             {generation} on (contribution {id})",
            spans(&commit.spans)
        );
    }
    if trace.committed.is_empty() {
        out!("nothing of it is in the weights");
    }
    for standing in &trace.now {
        let (start, end) = standing.span;
        out!("now, positions {start}..{end}: {}", standing.state);
    }
    out!("");
    for happening in &trace.history {
        let (record, epoch, what) = (happening.record, happening.epoch, happening.what);
        let at = ui::wall_time(happening.wall_ms);
        let who = happening.replica.as_deref().unwrap_or_default();
        out!(
            "{at}  record {record:<5} epoch {epoch}  {what:<11} {who}  {}  {}",
            spans(&happening.spans),
            happening.detail
        );
    }
}

/// Which windows are in quarantine and how they come out, if any are.
pub fn quarantine(windows: &[u64]) -> Option<String> {
    const SHOWN: usize = 20;
    let names: Vec<String> = windows.iter().take(SHOWN).map(u64::to_string).collect();
    let more = match windows.len().checked_sub(SHOWN) {
        None | Some(0) => String::new(),
        Some(more) => format!(" and {more} more"),
    };
    let text = format!(
        "quarantined: windows {}{more}; `hansa ledger release` has them tried again",
        names.join(", ")
    );
    (!windows.is_empty()).then_some(text)
}

fn positions(replayed: &Replayed) -> Vec<Value> {
    let intervals = replayed.state.ledger.intervals();
    let entry = |(span, ownership): (hansa_protocol::Span, Ownership)| {
        let owner = replayed.owner(ownership);
        json!({ "start": span.start.0, "end": span.end.0, "state": owner })
    };
    intervals.map(entry).collect()
}
