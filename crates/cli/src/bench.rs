//! `hansa bench`: what the heavy steps cost on this machine, beside what its hardware allows.

mod exchange;
mod merge;

use crate::ui::print_json;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// What to measure.
#[derive(Subcommand)]
pub enum Command {
    /// Merge contributions of a model and move as many bytes plainly, in turns.
    Merge(merge::Arguments),
    /// Exchange weights with a real coordinator and real sessions, step by step, beside plain copies of as
    /// many bytes.
    Exchange(exchange::Arguments),
    /// Take part in an exchange that is measured.
    #[command(hide = true)]
    Replica(exchange::ReplicaArguments),
    /// Run one step of a measurement in this process, as another process asks for.
    #[command(hide = true)]
    Task(TaskArguments),
}

/// `hansa bench task`.
#[derive(Args)]
pub struct TaskArguments {
    /// The file that describes it.
    task: PathBuf,
}

/// Runs the subcommand.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Merge(arguments) => merge::run(arguments),
        Command::Exchange(arguments) => exchange::run(arguments),
        Command::Replica(arguments) => exchange::replica(&arguments),
        Command::Task(arguments) => print_json(&hansa_bench::process::run_task(&arguments.task)?),
    }
}

/// How this program starts itself to be measured.
fn starter() -> anyhow::Result<hansa_bench::process::Starter> {
    Ok(hansa_bench::process::Starter {
        program: std::env::current_exe()?,
        arguments: vec!["bench".to_owned(), "task".to_owned()],
    })
}
