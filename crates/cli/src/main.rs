//! The `hansa` command: one training run across many supercomputers.
//!
//! Each subcommand has a file; this one only dispatches. Data goes to stdout, prose and errors to
//! stderr; the exit code is 0 only if what was asked for is done, and 75 if it may be done later.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod agent;
mod backup;
mod bench;
mod corpus;
mod credentials;
mod demo;
mod ledger;
mod logs;
mod operate;
mod plan;
mod queue;
mod replica;
mod restore;
mod run;
mod serve;
mod site;
mod slurm;
mod status;
mod submit;
mod token;
mod train;
mod ui;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// One language-model pre-training run across many supercomputers.
#[derive(Parser)]
#[command(name = "hansa", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a small model at three sites on this machine, with failures, in a few minutes.
    Demo(demo::Arguments),
    /// Be the coordinator of one run.
    Serve(serve::Arguments),
    /// Train as one replica of a run.
    Train(train::Arguments),
    /// Train as one replica of a run with another trainer, such as torchtitan.
    Agent(agent::Arguments),
    /// Say what a run is doing, and what it waits for.
    Status(status::Arguments),
    /// Copy a run, while it goes on, so that it can be restored.
    Backup(backup::Arguments),
    /// Make a coordinator's data directory from a backup.
    Restore(restore::Arguments),
    /// Pause a run, let it go on, or end it early.
    #[command(subcommand)]
    Run(run::Command),
    /// Run a site's jobs, see whether it is fit for a campaign, or send its replicas away.
    #[command(subcommand)]
    Site(site::Command),
    /// Show each site's queue: probes, jobs, decisions and why; or give an order to one.
    Queue(queue::Arguments),
    /// Show the last lines of jobs that failed, and what they made pause.
    Logs(logs::Arguments),
    /// Have one more job submitted at a site.
    Submit(submit::Arguments),
    /// Shut a replica out at once, or let it in again.
    #[command(subcommand)]
    Replica(replica::Command),
    /// Prove what a run's journal claims, or show it.
    #[command(subcommand)]
    Ledger(ledger::Command),
    /// Give sites access to a coordinator.
    #[command(subcommand)]
    Token(token::Command),
    /// Look at what a site's Slurm says.
    #[command(subcommand)]
    Slurm(slurm::Command),
    /// Decide which sites train, in which jobs, from when on, and say how the rounds will go.
    Plan(plan::Arguments),
    /// Build, inspect and verify corpora.
    #[command(subcommand)]
    Corpus(corpus::Command),
    /// Measure a heavy step on this machine, beside what its hardware allows.
    #[command(subcommand)]
    Bench(bench::Command),
}

/// EX_TEMPFAIL of sysexits.h: nothing is wrong here, and the same command may succeed later.
const TRY_LATER: u8 = 75;

/// For job scripts in a chain: whether the next job has anything to do.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref() {
        Some(hansa_session::Error::Away { .. } | hansa_session::Error::Unreachable { .. }) => {
            ExitCode::from(TRY_LATER)
        }
        _ => match error.downcast_ref() {
            Some(hansa_site::SiteError::Away | hansa_site::SiteError::Busy { .. }) => {
                ExitCode::from(TRY_LATER)
            }
            _ => ExitCode::FAILURE,
        },
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    ui::start_log();
    let done = match arguments.command {
        Command::Demo(arguments) => train::block_on(demo::run(arguments)),
        Command::Serve(arguments) => train::block_on(serve::run(arguments)),
        Command::Train(arguments) => train::block_on(train::run(arguments)),
        Command::Agent(arguments) => train::block_on(agent::run(arguments)),
        Command::Status(arguments) => train::block_on(status::run(arguments)),
        Command::Backup(arguments) => backup::run(&arguments),
        Command::Restore(arguments) => restore::run(&arguments),
        Command::Run(command) => train::block_on(run::run(command)),
        Command::Site(command) => train::block_on(site::run(command)),
        Command::Queue(arguments) => train::block_on(queue::run(arguments)),
        Command::Logs(arguments) => train::block_on(logs::run(arguments)),
        Command::Submit(arguments) => train::block_on(submit::run(arguments)),
        Command::Replica(command) => train::block_on(replica::run(command)),
        Command::Ledger(command) => ledger::run(command),
        Command::Token(command) => token::run(command),
        Command::Slurm(command) => slurm::run(command),
        Command::Plan(arguments) => train::block_on(plan::run(arguments)),
        Command::Corpus(command) => corpus::run(command),
        Command::Bench(command) => bench::run(command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ui::print_error(&error);
            exit_code(&error)
        }
    }
}
