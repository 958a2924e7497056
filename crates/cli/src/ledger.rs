//! `hansa ledger`: prove what a journal claims, or show it. Reads only; the coordinator may run.

use crate::demo::{ledger_table, rounds_table};
use crate::ui;
use crate::ui::out;
use anyhow::bail;
use clap::{Args, Subcommand};
use hansa_coordinator::{Replayed, VerifyReport, replay_journal, verify_journal};
use hansa_protocol::Ownership;
use serde_json::{Value, json};
use std::path::PathBuf;

/// What to do with a ledger.
#[derive(Subcommand)]
pub enum Command {
    /// Replay the journal from its first record and check every invariant.
    Verify(Arguments),
    /// Show who was granted and committed what, and every round.
    Show(ShowArguments),
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
}

/// Runs the subcommand.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Verify(arguments) => verify(&arguments),
        Command::Show(arguments) => show(&arguments),
    }
}

fn verify(arguments: &Arguments) -> anyhow::Result<()> {
    let report = verify_journal(&arguments.path)?;
    if arguments.json {
        ui::print_json(&report)?;
    } else {
        out!("{}", verdict(&report));
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

fn show(arguments: &ShowArguments) -> anyhow::Result<()> {
    let replayed = replay_journal(&arguments.journal.path)?;
    let report = replayed.history();
    if arguments.journal.json {
        let mut value = json!({
            "replicas": report.replicas,
            "rounds": report.rounds,
            "evaluations": report.evaluations,
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
    if arguments.positions {
        out!("");
        for (span, ownership) in replayed.state.ledger.intervals() {
            out!("{:>24}  {}", span.to_string(), owner(&replayed, ownership));
        }
    }
    Ok(())
}

fn positions(replayed: &Replayed) -> Vec<Value> {
    let intervals = replayed.state.ledger.intervals();
    let entry = |(span, ownership): (hansa_protocol::Span, Ownership)| {
        let owner = owner(replayed, ownership);
        json!({ "start": span.start.0, "end": span.end.0, "state": owner })
    };
    intervals.map(entry).collect()
}

/// The state of a position, in words.
pub fn owner(replayed: &Replayed, ownership: Ownership) -> String {
    let name = |key| {
        let replica = replayed.state.replica(key);
        replica.map_or_else(|| "?".to_owned(), |replica| replica.id.to_string())
    };
    match ownership {
        Ownership::Free => "free".to_owned(),
        Ownership::Leased(id) => {
            let lease = replayed.state.leases.get(&id);
            format!(
                "leased to {}",
                lease.map_or_else(|| "?".to_owned(), |lease| name(lease.key))
            )
        }
        Ownership::Staged(no) => {
            let contribution = replayed.state.contributions.get(&no);
            format!(
                "staged by {}",
                contribution.map_or_else(|| "?".to_owned(), |c| name(c.key))
            )
        }
        Ownership::Committed(generation, key) => {
            format!("committed by {}, in generation {generation}", name(key))
        }
        Ownership::Quarantined => "quarantined".to_owned(),
    }
}
