//! `hansa site`: send a site's replicas away, and let them come back.

use crate::operate::{Reason, Whom};
use clap::{Args, Subcommand};
use hansa_base::SiteName;
use hansa_protocol::Order;

/// What to do with a site.
#[derive(Subcommand)]
pub enum Command {
    /// Let the site's replicas contribute what they have and leave; none is let in until `undrain`.
    Drain(Arguments),
    /// Let replicas of a drained site come back.
    Undrain(Arguments),
}

/// An order about a site.
#[derive(Args)]
pub struct Arguments {
    /// The site, as in `hansa train --site`.
    site: SiteName,
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    reason: Reason,
}

/// Runs the subcommand.
pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Drain(Arguments { site, whom, reason }) => {
            let done = format!("site {site} is drained; `hansa site undrain {site}` lets it back");
            let why = reason.because;
            whom.order(Order::Drain { site, why }, &done).await
        }
        Command::Undrain(Arguments { site, whom, reason }) => {
            let done = format!("replicas of site {site} may come back");
            let why = reason.because;
            whom.order(Order::Undrain { site, why }, &done).await
        }
    }
}
