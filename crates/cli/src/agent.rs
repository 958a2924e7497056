//! `hansa agent`: one replica with a trainer of another kind.

use crate::credentials::CoordinatorArguments;
use crate::train::{self, ReplicaArguments};
use clap::Args;
use hansa_agent::{Agent, Options, TrainerSource};
use std::path::PathBuf;
use std::time::Duration;

/// `hansa agent`.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    coordinator: CoordinatorArguments,
    #[command(flatten)]
    replica: ReplicaArguments,
    /// The agent's socket [default: in a new folder that only you can enter; without a command,
    /// agent.sock in the state directory].
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Where the trainer writes its weights for the agent to read; the state directory if that is full
    /// [default: /dev/shm while it has room].
    #[arg(long)]
    exchange: Option<PathBuf>,
    /// So often in a row the trainer may crash or hang, without a checkpoint or a contribution between, until the
    /// agent ends; so does four times as often within an hour.
    #[arg(long, value_name = "TIMES", default_value_t = 3)]
    losses_max: u32,
    /// How many minutes the trainer may take from its start to its first word.
    #[arg(long, value_name = "MINUTES", default_value_t = 15.0, value_parser = train::minutes)]
    start_within_min: f64,
    /// How many minutes the trainer may show no sign of life while it is asked for something.
    #[arg(long, value_name = "MINUTES", default_value_t = 10.0, value_parser = train::minutes)]
    hang_after_min: f64,
    /// The trainer's command; without one, a trainer that something else starts is waited for.
    #[arg(last = true)]
    command: Vec<String>,
}

/// Trains until the run is over or a signal asks for a goodbye.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let json = arguments.replica.json;
    let session = arguments.replica.options(&arguments.coordinator)?;
    let trainer = if arguments.command.is_empty() {
        TrainerSource::Elsewhere
    } else {
        TrainerSource::Command(arguments.command)
    };
    let options = Options {
        socket: arguments.socket,
        exchange: arguments.exchange,
        losses_max: arguments.losses_max,
        start_within: Duration::from_secs_f64(60.0 * arguments.start_within_min),
        hang_after: Duration::from_secs_f64(60.0 * arguments.hang_after_min),
        ..Options::new(session, trainer)
    };
    let outcome = Agent::new(options)
        .run()
        .await
        .map_err(|error| match error {
            // The exit code follows from it.
            hansa_agent::Error::Session(error) => anyhow::Error::new(error),
            other => anyhow::Error::new(other),
        })?;
    train::say(&outcome, json);
    Ok(())
}
