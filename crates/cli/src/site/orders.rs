//! `hansa site drain` and `undrain`: send a site's replicas away, and let them come back.

use crate::operate::{Reason, Whom};
use clap::Args;
use hansa_base::SiteName;
use hansa_protocol::Order;

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

/// Sends the replicas away.
pub async fn drain(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { site, whom, reason } = arguments;
    let done = format!("site {site} is drained; `hansa site undrain {site}` lets it back");
    let why = reason.because;
    whom.order(Order::Drain { site, why }, &done).await
}

/// Lets them come back.
pub async fn undrain(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { site, whom, reason } = arguments;
    let done = format!("replicas of site {site} may come back");
    let why = reason.because;
    whom.order(Order::Undrain { site, why }, &done).await
}
