//! Whose turn it is: first the site's lease, then the home's lock, then anything else.
//!
//! ```text
//!   ask for the lease ─► ours ─► lock the home ─► serve ─► the turn is over
//!        ▲     │ another's                                  │ another process has the site
//!        │     └─► end, saying whose                        ▼
//!        └────────────────────────────────── let the home go, and wait
//! ```
//!
//! A process whose turn another one ended keeps nothing open, so that both can use one home. Never here: what
//! a process does in its turn.

use std::path::Path;
use std::time::{Duration, Instant};

use hansa_store::{DataDir, StoreError};
use tokio::sync::watch;

use crate::error::SiteError;
use crate::link::{Link, Synced};
use crate::service::{Note, Notes};

/// Whoever lost its turn hears so with its next call, after the command that it waits for.
const LET_GO_WITHIN: Duration = Duration::from_secs(150);
/// Between two looks at the lock.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Waits for the lease. False if told to stop before.
///
/// # Errors
/// What no waiting can mend; another holder, unless the caller is `patient`; and with `once` a coordinator that
/// is away.
pub(crate) async fn gain(
    link: &mut Link,
    patient: bool,
    once: bool,
    notes: &Notes,
    stop: &mut watch::Receiver<bool>,
) -> Result<bool, SiteError> {
    while !*stop.borrow() {
        match link.sync(None, false).await? {
            Synced::Answered => return Ok(true),
            Synced::Away(_) if once => return Err(SiteError::Away),
            Synced::Away(why) => {
                if let Some(why) = why {
                    notes(&Note::Away(why));
                }
            }
            Synced::Busy(message) if link.takes_over_from(&message) => continue,
            Synced::Busy(message) if !patient => return Err(SiteError::Busy { message }),
            Synced::Busy(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(link.due_in(false)) => {}
            _ = stop.changed() => {}
        }
    }
    Ok(false)
}

/// Locks the home, keeping the lease meanwhile. `None` if the turn is over again or told to stop.
///
/// # Errors
/// If whoever has it does not let go.
pub(crate) async fn lock(
    link: &mut Link,
    home: &Path,
    stop: &mut watch::Receiver<bool>,
) -> Result<Option<DataDir>, SiteError> {
    let since = Instant::now();
    loop {
        match DataDir::lock(home) {
            Ok(lock) => return Ok(Some(lock)),
            Err(StoreError::AlreadyOpen { path, holder }) if since.elapsed() > LET_GO_WITHIN => {
                return Err(SiteError::InUse { path, holder });
            }
            Err(StoreError::AlreadyOpen { .. }) => {}
            Err(other) => return Err(other.into()),
        }
        if *stop.borrow() {
            return Ok(None);
        }
        if link.due_in(false).is_zero()
            && let Synced::Busy(_) = link.sync(None, false).await?
        {
            return Ok(None);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = stop.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hansa_queue::{IntentId, Report};

    use super::*;
    use crate::service::testing;

    #[test]
    fn a_process_writes_no_more_once_another_machine_has_its_home() {
        let folder = tempfile::tempdir().unwrap();
        let mut site = testing::site(folder.path(), "1a2b");
        let attempting = || Report::Attempting {
            intent: IntentId(1),
        };
        site.report(attempting()).unwrap();
        std::fs::write(folder.path().join("home/lock"), "4711 uan02\n").unwrap();
        let error = site.report(attempting()).unwrap_err();
        assert!(matches!(error, SiteError::Overtaken { .. }), "{error}");
        assert!(
            error.to_string().contains("process 4711 on uan02"),
            "{error}"
        );
        assert_eq!(site.spool.batch().unwrap().len(), 1);
    }
}
