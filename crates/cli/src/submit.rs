//! `hansa submit`: one more job at a site, now.

use crate::operate::{Reason, Whom};
use clap::Args;
use hansa_base::SiteName;
use hansa_queue::{Line, QueueOrder, ShapeName};

/// `hansa submit`.
#[derive(Args)]
pub struct Arguments {
    /// The site; its `hansa site run` submits the job.
    site: SiteName,
    /// A shape of the site's profile [default: the preferred one].
    #[arg(long)]
    shape: Option<String>,
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
        whom,
        reason,
    } = arguments;
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
