//! `hansa submit`: one more job at a site, now.

use crate::operate::{Reason, Whom};
use crate::ui::out;
use anyhow::{Context as _, ensure};
use clap::Args;
use hansa_base::SiteName;
use hansa_queue::{Line, QueueOrder, ShapeName};
use hansa_site::Profile;
use hansa_site::script::{JobRequest, StartRule, render};
use std::path::PathBuf;

/// `hansa submit`.
#[derive(Args)]
pub struct Arguments {
    /// The site; its `hansa site run` submits the job.
    site: SiteName,
    /// A shape of the site's profile [default: the preferred one].
    #[arg(long)]
    shape: Option<String>,
    /// Print the job script that this profile makes, and order nothing.
    #[arg(long, value_name = "PROFILE")]
    dry_run: Option<PathBuf>,
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    reason: Reason,
}

/// Orders the job.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments {
        site,
        shape,
        dry_run,
        whom,
        reason,
    } = arguments;
    if let Some(profile) = dry_run {
        return show(&Profile::load(&profile)?, &site, shape.as_deref());
    }
    let done = format!(
        "one more job is wanted at {site}; `hansa queue --site {site}` shows what becomes of it"
    );
    let order = QueueOrder::Submit {
        site,
        shape: shape.as_deref().map(ShapeName::new),
        why: Line::new(&reason.because),
    };
    whom.queue_order(order, &done).await
}

/// Run, replica and intent are those of nobody: the coordinator chooses them.
fn show(profile: &Profile, site: &SiteName, shape: Option<&str>) -> anyhow::Result<()> {
    ensure!(
        profile.name == site.as_str(),
        "the profile is of {}, not of {site}",
        profile.name
    );
    let name = shape.unwrap_or(&profile.jobs.shape);
    let shape = profile
        .shape(name)
        .with_context(|| format!("the profile has no shape {name}"))?;
    let request = JobRequest {
        run: "00000000",
        replica: "r1",
        intent: 0,
        link: 1,
        start: StartRule::Now,
        exclude: Vec::new(),
    };
    out!("{}", render(profile, shape, &request).text.trim_end());
    Ok(())
}
