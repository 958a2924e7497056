//! `hansa site rehearse`: a short job against a run that is thrown away.

use super::check;
use crate::ui;
use crate::ui::note;
use anyhow::bail;
use clap::Args;
use hansa_site::Profile;
use hansa_site::check::is_fit;
use hansa_site::rehearse::{RehearseOptions, rehearse};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// `hansa site rehearse`.
#[derive(Args)]
pub struct Arguments {
    /// The site's profile.
    profile: PathBuf,
    /// The shape of the job [default: the preferred one].
    #[arg(long)]
    shape: Option<String>,
    /// The job's walltime; it is told to leave after three quarters of it, or a minute earlier.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=120))]
    minutes: u64,
    /// How long the job may wait in the queue.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10080))]
    queue_minutes: u64,
    /// The name by which compute nodes reach this machine [default: its own].
    #[arg(long)]
    host: Option<String>,
    /// Keep the rehearsal's files, in hansa-rehearsal of the state folder.
    #[arg(long)]
    keep: bool,
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints how it went; fails if anything went wrong.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let options = RehearseOptions {
        profile: Profile::load(&arguments.profile)?,
        shape: arguments.shape,
        minutes: arguments.minutes,
        queue_max: Duration::from_secs(60 * arguments.queue_minutes),
        host: arguments.host,
        keep: arguments.keep,
        say: Arc::new(|text| note!("{text}")),
    };
    let findings = rehearse(options).await?;
    match arguments.json {
        true => ui::print_json(&findings)?,
        false => check::print(&findings),
    }
    if !is_fit(&findings) {
        bail!("the rehearsal failed; `--keep` leaves its files to look at");
    }
    Ok(())
}
