//! The one call to the coordinator, and what it allows: an order may be executed only while the site's
//! lease is surely alive by our own clock.

use std::time::{Duration, Instant};

use hansa_base::SiteName;
use hansa_queue::{LeaseNo, Line, LiveJob, Order, RunNews, SiteProfile, SyncReply, SyncRequest};
use hansa_transfer::{Client, TransferError};
use hansa_wire::Wire as _;
use hansa_wire::queue::SYNC;

use crate::error::SiteError;
use crate::spool::Spool;

const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// The spool's name in calls that tell nothing.
const NO_SPOOL: &str = "none";
/// Between calls that have something to tell.
const GAP: Duration = Duration::from_millis(500);
const AWAY_FIRST: Duration = Duration::from_secs(1);
const AWAY_LONGEST: Duration = Duration::from_secs(30);

/// The headers of a site process's calls.
pub(crate) fn caller() -> [(&'static str, String); 3] {
    let caller = hansa_wire::http::Client {
        name: "hansa".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    caller.headers()
}

/// What came of a call.
#[derive(Debug)]
pub enum Synced {
    /// Orders are fresh.
    Answered,
    /// The coordinator is away; in words, if it was there before.
    Away(Option<String>),
    /// Another process has the lease.
    Busy(String),
}

/// The way to the coordinator.
pub struct Link {
    client: Client,
    site: SiteName,
    holder: Line,
    profile: SiteProfile,
    profile_told: bool,
    take_over: bool,
    /// How the name of a process begins that has ended without giving its lease back.
    ended: Option<String>,
    lease: Option<LeaseNo>,
    /// The lease that was ours last, if it is over.
    before: Option<LeaseNo>,
    /// The coordinator may not know what it was told before.
    forgetful: bool,
    alive_until: Instant,
    confirmed: Option<Instant>,
    called: Instant,
    next: Instant,
    failures: u32,
    orders: Vec<Order>,
    jobs: Vec<LiveJob>,
    news: Option<RunNews>,
}

impl Link {
    /// A link that has not called yet.
    #[must_use]
    pub fn new(
        client: Client,
        site: SiteName,
        holder: &str,
        profile: SiteProfile,
        take_over: bool,
    ) -> Self {
        let now = Instant::now();
        Self {
            client,
            site,
            holder: Line::new(holder),
            profile,
            profile_told: false,
            take_over,
            ended: None,
            lease: None,
            before: None,
            forgetful: false,
            alive_until: now,
            confirmed: None,
            called: now,
            next: now,
            failures: 0,
            orders: Vec::new(),
            jobs: Vec::new(),
            news: None,
        }
    }

    /// A process with such a name has surely ended: its lease need not be waited for.
    pub fn follows(&mut self, ended: Option<String>) {
        self.ended = ended;
    }

    /// Whether the holder that a refusal names is the one that has ended: the next call takes over from it.
    pub fn takes_over_from(&mut self, refusal: &str) -> bool {
        let ended = self.ended.take();
        let found = ended.is_some_and(|ended| refusal.starts_with(&ended));
        self.take_over |= found;
        found
    }

    /// What to do, as last answered; nothing once the lease may have lapsed.
    #[must_use]
    pub fn orders(&self) -> &[Order] {
        match self.holds_lease() {
            true => &self.orders,
            false => &[],
        }
    }

    /// The lease, while it is surely ours.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseNo> {
        self.lease.filter(|_| self.holds_lease())
    }

    /// Whether the coordinator answered a call with orders that was made so lately.
    #[must_use]
    pub fn was_confirmed_within(&self, limit: Duration) -> bool {
        self.holds_lease() && self.confirmed.is_some_and(|sent| sent.elapsed() < limit)
    }

    /// The jobs that the coordinator waits for, after it took all that was told; once.
    pub fn take_jobs(&mut self) -> Vec<LiveJob> {
        std::mem::take(&mut self.jobs)
    }

    /// Whether the coordinator may have forgotten what it was told: the lease is a new one, or it was
    /// restored from a backup. Once.
    pub fn take_forgetful(&mut self) -> bool {
        std::mem::take(&mut self.forgetful)
    }

    /// How the run stands, if it is known.
    #[must_use]
    pub fn news(&self) -> Option<&RunNews> {
        self.news.as_ref()
    }

    /// Whether we are surely the only one who acts for the site.
    #[must_use]
    pub fn holds_lease(&self) -> bool {
        self.lease.is_some() && Instant::now() < self.alive_until
    }

    /// How long until the next call is due; sooner if there is something to tell.
    #[must_use]
    pub fn due_in(&self, something_to_tell: bool) -> Duration {
        let due = match something_to_tell && self.failures == 0 {
            true => self.next.min(self.called + GAP),
            false => self.next,
        };
        due.saturating_duration_since(Instant::now())
    }

    /// Calls: tells what lies in the spool, and hears what to do. Without a spool it tells nothing: first it
    /// must turn out whose turn it is, and which run the coordinator serves.
    ///
    /// # Errors
    /// What no later call can mend: a wrong token, a wrong certificate, another version.
    pub async fn sync(
        &mut self,
        spool: Option<&mut Spool>,
        leave: bool,
    ) -> Result<Synced, SiteError> {
        let reports = spool
            .as_ref()
            .map_or_else(|| Ok(Vec::new()), |spool| spool.batch())?;
        let request = SyncRequest {
            site: self.site.clone(),
            holder: self.holder.clone(),
            lease: self.lease,
            take_over: self.take_over,
            leave,
            profile: (!self.profile_told).then(|| self.profile.clone()),
            spool: Line::new(spool.as_ref().map_or(NO_SPOOL, |spool| spool.id())),
            reports,
        };
        let sent_at = Instant::now();
        self.called = sent_at;
        let answer = self
            .client
            .post_json::<_, <SyncReply as hansa_wire::Wire>::Json>(
                SYNC,
                &request.to_json(),
                ANSWER_WITHIN,
            )
            .await;
        let url = || format!("{}{SYNC}", self.client.base_url());
        let answer = answer.and_then(|json| {
            SyncReply::from_json(json).map_err(|error| TransferError::BadAnswer {
                url: url(),
                why: error.to_string(),
            })
        });
        match answer {
            Ok(reply) => self.heard(reply, sent_at, spool),
            Err(error) => self.refused(error),
        }
    }

    fn heard(
        &mut self,
        reply: SyncReply,
        sent_at: Instant,
        spool: Option<&mut Spool>,
    ) -> Result<Synced, SiteError> {
        let before = self.lease.or(self.before);
        self.profile_told = true;
        if before.is_some_and(|before| before != reply.lease) {
            self.forget_told();
        }
        self.jobs.clear();
        if let Some(spool) = spool {
            if reply.accepted_through < spool.accepted_through() {
                self.forget_told();
            }
            spool.accepted(reply.accepted_through)?;
            // What is still to be told may be a job's end.
            if spool.is_empty() {
                self.jobs = reply.jobs.unwrap_or_default();
            }
        }
        self.lease = Some(reply.lease);
        self.confirmed = Some(sent_at);
        self.take_over = false;
        self.failures = 0;
        // A sixth of it is for what has been begun, and for clocks that run at another pace.
        let ttl = Duration::from_millis(reply.lease_ttl_ms);
        self.alive_until = sent_at + ttl - ttl / 6;
        self.next = Instant::now() + Duration::from_millis(reply.next_sync_ms.clamp(200, 60_000));
        self.orders = reply.orders;
        self.news = Some(reply.news);
        Ok(Synced::Answered)
    }

    fn forget_told(&mut self) {
        self.profile_told = false;
        self.forgetful = true;
    }

    fn refused(&mut self, error: TransferError) -> Result<Synced, SiteError> {
        let away = |failures: u32| (AWAY_FIRST * (1 << failures.min(6))).min(AWAY_LONGEST);
        match error.refusal_code() {
            Some("fenced") => {
                self.before = self.lease.take().or(self.before);
                self.alive_until = Instant::now();
                self.next = Instant::now();
                return Ok(Synced::Away(None));
            }
            Some("busy") => {
                self.before = self.lease.take().or(self.before);
                self.alive_until = Instant::now();
                self.next = Instant::now() + AWAY_LONGEST;
                let message = match error {
                    TransferError::Refused { message, .. } => message,
                    other => other.to_string(),
                };
                return Ok(Synced::Busy(message));
            }
            _ => {}
        }
        if !error.is_transient() {
            return Err(error.into());
        }
        self.next = Instant::now() + away(self.failures);
        self.failures = self.failures.saturating_add(1);
        let first = self.failures == 1;
        Ok(Synced::Away(first.then(|| error.to_string())))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hansa_queue::{IntentId, Report, UnixS};

    use super::*;
    use crate::service::{Site, testing};

    #[test]
    fn only_from_a_process_that_surely_ended_a_lease_is_taken_over_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let mut site = testing::site(folder.path(), "1a2b");
        let refusal = "uan02 pid 471 aaaa runs the site process of lumi since 1";
        for (ended, found) in [
            (None, false),
            (Some("uan02 pid 47 "), false),
            (Some("uan01 pid 471 "), false),
            (Some("uan02 pid 471 "), true),
        ] {
            site.link.take_over = false;
            site.link.follows(ended.map(str::to_owned));
            assert_eq!(site.link.takes_over_from(refusal), found, "{ended:?}");
            assert_eq!(site.link.take_over, found, "{ended:?}");
            assert!(!site.link.takes_over_from(refusal), "once");
        }
    }

    fn reply(lease: u64, accepted_through: u64) -> SyncReply {
        let job = LiveJob {
            intent: IntentId(7),
            job: "70".into(),
        };
        SyncReply {
            lease: LeaseNo(lease),
            lease_ttl_ms: 180_000,
            next_sync_ms: 20_000,
            accepted_through,
            orders: Vec::new(),
            news: RunNews {
                run_id: "1a2b".repeat(16),
                ended: false,
                paused: None,
                drained: None,
                queue_paused: None,
                windows_left: 1,
                now: UnixS(1_800_000_000),
            },
            jobs: Some(vec![job]),
        }
    }

    #[test]
    fn a_coordinator_that_may_have_forgotten_is_told_everything_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut site = testing::site(folder.path(), "1a2b");
        let Site { link, spool, .. } = &mut site;
        for intent in 1..=3 {
            let intent = IntentId(intent);
            spool.add(UnixS(0), Report::Attempting { intent }).unwrap();
        }
        let mut hear = |lease, through, link: &mut Link| {
            let reply = reply(lease, through);
            link.heard(reply, Instant::now(), Some(&mut *spool))
                .unwrap();
            let jobs = link.take_jobs().len();
            (link.take_forgetful(), link.profile_told, jobs)
        };
        // Which jobs it waits for counts once it has heard all.
        assert_eq!(hear(4, 2, link), (false, true, 0));
        assert_eq!(hear(4, 3, link), (false, true, 1));
        // From a backup of an hour ago.
        assert_eq!(hear(4, 1, link), (true, false, 1));
        assert_eq!(hear(4, 3, link), (false, true, 1));
        // Its lease lapsed, and is another now.
        assert_eq!(hear(5, 3, link), (true, false, 1));
        assert!(link.lease() == Some(LeaseNo(5)) && link.was_confirmed_within(ANSWER_WITHIN));
    }
}
