//! `hansa site drain` and `undrain`: send a site's replicas away, and let them come back.

use crate::operate::{Reason, Whom};
use crate::ui;
use clap::Args;
use hansa_base::{SiteName, WallS};
use hansa_protocol::Order;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

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

/// An order to drain a site.
#[derive(Args)]
pub struct DrainArguments {
    #[command(flatten)]
    of: Arguments,
    /// Let them back by itself then: at 2027-03-31T08:00 (UTC), 2027-03-31T08:00+02:00, or in 8h. Given again, it
    /// moves the end.
    #[arg(long, value_name = "TIME", value_parser = until)]
    until: Option<WallS>,
}

/// Sends the replicas away.
pub async fn drain(arguments: DrainArguments) -> anyhow::Result<()> {
    let DrainArguments { of, until } = arguments;
    let Arguments { site, whom, reason } = of;
    let done = match until {
        None => format!("site {site} is drained; `hansa site undrain {site}` lets it back"),
        Some(at) => format!(
            "site {site} is drained until {}; `hansa site undrain {site}` lets it back before",
            ui::wall_time(at.0.saturating_mul(1000))
        ),
    };
    let why = reason.because;
    whom.order(Order::Drain { site, why, until }, &done).await
}

/// Lets them come back.
pub async fn undrain(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { site, whom, reason } = arguments;
    let done = format!("replicas of site {site} may come back");
    let why = reason.because;
    whom.order(Order::Undrain { site, why }, &done).await
}

fn until(text: &str) -> Result<WallS, String> {
    time_of(text, Timestamp::now())
}

/// A time to come: in UTC, with a zone of its own, or so long after `now`.
fn time_of(text: &str, now: Timestamp) -> Result<WallS, String> {
    let utc = |at| TimeZone::UTC.to_ambiguous_timestamp(at).compatible();
    let at = if let Ok(at) = text.parse::<Timestamp>() {
        Ok(at)
    } else if let Ok(at) = text.parse::<DateTime>() {
        utc(at)
    } else if let Ok(wait) = text.parse::<SignedDuration>() {
        now.checked_add(wait)
    } else {
        return Err(
            "a time is expected, such as 2027-03-31T08:00 (UTC), 2027-03-31T08:00+02:00 or 8h"
                .to_owned(),
        );
    };
    let at = at.map_err(|error| error.to_string())?;
    if at <= now {
        return Err(format!("{} is over", at.strftime("%F %TZ")));
    }
    let second = u64::try_from(at.as_second());
    second.map(WallS).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_end_of_a_drain_is_a_time_to_come() {
        let now: Timestamp = "2027-03-31T06:00Z".parse().unwrap();
        let hour = 3600;
        let start = u64::try_from(now.as_second()).unwrap();
        for text in [
            "2027-03-31T08:00",
            "2027-03-31 08:00",
            "2027-03-31T10:00+02:00",
            "2h",
            "PT2H",
        ] {
            assert_eq!(time_of(text, now), Ok(WallS(start + 2 * hour)), "{text}");
        }
        assert_eq!(
            time_of("2027-03-31T05:00", now).unwrap_err(),
            "2027-03-31 05:00:00Z is over"
        );
        for text in ["", "tomorrow", "8", "-2h"] {
            assert!(time_of(text, now).is_err(), "{text}");
        }
    }
}
