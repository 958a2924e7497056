//! `hansa site`: what a site does, and what it is told.

mod check;
mod new;
mod orders;
mod rehearse;
mod run;

use clap::Subcommand;
use hansa_site::Profile;
use hansa_transfer::Endpoint;

use crate::credentials::Credentials;

/// What to do with a site.
#[derive(Subcommand)]
pub enum Command {
    /// Let the site's replicas contribute what they have and leave; none is let in until `undrain`.
    Drain(orders::DrainArguments),
    /// Let replicas of a drained site come back.
    Undrain(orders::Arguments),
    /// Write a commented profile of a site.
    New(new::Arguments),
    /// See whether a site is fit for a campaign, and what to do if not.
    Check(check::Arguments),
    /// Try everything once: a short job that trains in a run which is thrown away.
    Rehearse(rehearse::Arguments),
    /// Submit, follow and report jobs, on the site's login node.
    Run(run::Arguments),
}

/// Runs the subcommand.
pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Drain(arguments) => orders::drain(arguments).await,
        Command::Undrain(arguments) => orders::undrain(arguments).await,
        Command::New(arguments) => new::run(&arguments),
        Command::Check(arguments) => check::run(arguments).await,
        Command::Rehearse(arguments) => rehearse::run(arguments).await,
        Command::Run(arguments) => run::run(arguments).await,
    }
}

/// The coordinator of a profile.
fn endpoint(profile: &Profile) -> anyhow::Result<Endpoint> {
    let coordinator = &profile.coordinator;
    Credentials::read(&coordinator.token_file)?.endpoint(&coordinator.url, None)
}
