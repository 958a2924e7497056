//! `hansa replica`: shut a replica out at once, and let it in again.

use crate::operate::{Reason, Whom};
use clap::{Args, Subcommand};
use hansa_base::ReplicaId;
use hansa_protocol::Order;

/// What to do with a replica.
#[derive(Subcommand)]
pub enum Command {
    /// Shut a replica out at once: what it leased goes to others, and it is not let in.
    Evict(Arguments),
    /// Let an evicted replica come back.
    Readmit(Arguments),
}

/// An order about a replica.
#[derive(Args)]
pub struct Arguments {
    /// The replica, SITE/REPLICA, as `hansa status` names it.
    replica: ReplicaId,
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    reason: Reason,
}

/// Runs the subcommand.
pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Evict(Arguments {
            replica,
            whom,
            reason,
        }) => {
            let done =
                format!("{replica} is evicted; `hansa replica readmit {replica}` lets it back");
            let why = reason.because;
            whom.order(Order::Evict { replica, why }, &done).await
        }
        Command::Readmit(Arguments {
            replica,
            whom,
            reason,
        }) => {
            let done = format!("{replica} may come back");
            let why = reason.because;
            whom.order(Order::Readmit { replica, why }, &done).await
        }
    }
}
