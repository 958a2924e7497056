//! `hansa slurm`: what a site's Slurm prints, as Hansa understands it.

use crate::ui::out;
use anyhow::Context as _;
use clap::{Args, Subcommand};
use hansa_slurm::json::{Kind, parse_to_json};
use hansa_slurm::parse::{FieldList, Now, UnixTime, Zone};
use std::io::Read as _;
use std::time::SystemTime;

/// What to do with Slurm's output.
#[derive(Subcommand)]
pub enum Command {
    /// Read a command's output on stdin and print as JSON what was understood, and what was not.
    Parse(ParseArguments),
}

/// `hansa slurm parse`.
#[derive(Args)]
pub struct ParseArguments {
    /// What printed it: test-only, sacct, squeue, submit, partition, reservation or config.
    kind: Kind,
    /// When the command ran and in which zone, such as
    /// 2026-11-29T15:25:44+02:00[Europe/Helsinki] [default: now, in this machine's zone].
    #[arg(long)]
    now: Option<Now>,
    /// The argument of --format, for output without a header line.
    #[arg(long)]
    fields: Option<FieldList>,
}

/// Runs the subcommand.
pub fn run(command: Command) -> anyhow::Result<()> {
    let Command::Parse(arguments) = command;
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .context("read stdin")?;
    let now = match arguments.now {
        Some(now) => now,
        None => now_here()?,
    };
    let fields = arguments.fields.as_ref();
    out!("{:#}", parse_to_json(arguments.kind, &bytes, &now, fields));
    Ok(())
}

fn now_here() -> anyhow::Result<Now> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since.context("read the clock")?.as_secs();
    let zone = Zone::here()?;
    let at = UnixTime(i64::try_from(seconds).context("read the clock")?);
    Ok(Now { at, zone })
}
