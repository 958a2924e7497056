//! `hansa run`: pause a run, let it go on, end it early.

use crate::operate::{Reason, Whom};
use clap::{Args, Subcommand};
use hansa_protocol::Order;

/// What to do with a run.
#[derive(Subcommand)]
pub enum Command {
    /// Grant, close and give up nothing until `resume`; phases under way may end and are kept.
    Pause(Arguments),
    /// Let a paused run go on.
    Resume(Arguments),
    /// End the run after the open round, as if that were its last; there is no way back.
    Stop(Arguments),
}

/// An order to a run.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    reason: Reason,
}

/// Runs the subcommand.
pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Pause(Arguments { whom, reason }) => {
            let why = reason.because;
            let done = "the run is paused; `hansa run resume` lets it go on";
            whom.order(Order::Pause { why }, done).await
        }
        Command::Resume(Arguments { whom, reason }) => {
            let why = reason.because;
            whom.order(Order::Resume { why }, "the run goes on").await
        }
        Command::Stop(Arguments { whom, reason }) => {
            let why = reason.because;
            let done = "the run ends after the open round; the model is exported then";
            whom.order(Order::Stop { why }, done).await
        }
    }
}
