//! `hansa site run`: one loop that reports, executes orders, follows jobs and collects estimates.
//!
//! ```text
//!        ┌──────────────────────────────────────────────────────────┐
//!        ▼                                                          │
//!   sync with the coordinator ─► orders ─► jobs ─► collector ─► sleep until something is due
//!        ▲                         │         │         │
//!        └────── spool ◄───────────┴─────────┴─────────┘
//! ```
//!
//! One thing at a time: between any two of Slurm's commands the coordinator is called if that is due, so
//! that the site's lease stays alive and its end is seen. A hung controller costs each command its time
//! limit, which is far below the lease's. Never here: what to submit.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hansa_queue::{IntentId, JobId, Line, Report, UnixS};
use hansa_store::DataDir;
use hansa_transfer::{Client, Endpoint, Proxy, Route};
use tokio::sync::watch;

use crate::collector::Collector;
use crate::commands::{Slurm, Turn};
use crate::convert::site_profile;
use crate::error::SiteError;
use crate::follower::Follower;
use crate::link::{Link, Synced, caller};
use crate::memory::Memory;
use crate::profile::Profile;
use crate::spool::Spool;

/// Something a person may want to read. One line each.
pub type Notes = Arc<dyn Fn(&Note) + Send + Sync>;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The site's lease is ours.
    Started {
        /// The run.
        run: String,
    },
    /// The coordinator does not answer.
    Away(String),
    /// Another process has the lease.
    Busy(String),
    /// Slurm does not answer.
    Trouble(String),
    /// Slurm answers again.
    Recovered,
    /// A job was submitted.
    Submitted {
        /// The intent.
        intent: u64,
        /// The job.
        job: String,
        /// It was found by its name.
        found: bool,
    },
    /// A job was refused.
    Refused {
        /// The intent.
        intent: u64,
        /// Why.
        why: String,
    },
    /// A job has another state than before.
    Job {
        /// The intent.
        intent: u64,
        /// The job.
        job: String,
        /// Its state.
        state: String,
    },
    /// A job was cancelled, as ordered.
    Cancelled {
        /// The intent.
        intent: u64,
        /// The job.
        job: String,
        /// Why.
        why: String,
    },
    /// The run is over, and so are its jobs here.
    Ended,
    /// The relay listens.
    Relay {
        /// Where.
        address: String,
    },
}

/// How to run a site.
pub struct Options {
    /// The profile.
    pub profile: Profile,
    /// Where the process keeps what it must not forget.
    pub home: PathBuf,
    /// The coordinator.
    pub endpoint: Endpoint,
    /// Fence another process that has the lease.
    pub take_over: bool,
    /// Do what is due, and end.
    pub once: bool,
    /// Who gets to know.
    pub notes: Notes,
}

/// The parts that all steps of the loop share.
pub(crate) struct Site {
    pub profile: Profile,
    pub slurm: Slurm,
    pub spool: Spool,
    pub memory: Memory,
    pub link: Link,
    pub notes: Notes,
    pub user: String,
    /// Orders other than submissions that were carried out, with the number of the report that says so.
    pub done: HashMap<(&'static str, u64), u64>,
    home: PathBuf,
    greeted: bool,
    // Held for the lock only.
    _lock: DataDir,
}

/// Runs a site until told to stop, or, with `once`, until nothing is due.
///
/// # Errors
/// What no waiting can mend, and with `once` also a coordinator that is away.
pub async fn run(options: Options, mut stop: watch::Receiver<bool>) -> Result<(), SiteError> {
    let once = options.once;
    let notes = options.notes.clone();
    let endpoint = Some(&options.endpoint);
    let relay = crate::relay::start_for(&options.profile, endpoint, &*notes).await?;
    let mut site = Site::open(options)?;
    let mut collector = Collector::new(&site.profile);
    let mut follower = Follower::new(&site.profile);
    let ended = loop {
        if *stop.borrow() {
            break Ok(());
        }
        match site.turn(&mut collector, &mut follower).await {
            Ok(()) => {}
            Err(error) => break Err(error),
        }
        if site.is_over() {
            site.tell(&Note::Ended);
            break Ok(());
        }
        let quiet = site.spool.is_empty() && collector.is_through() && !site.has_open_orders();
        match (once, site.link.holds_lease()) {
            (true, false) => break Err(SiteError::Away),
            (true, true) if quiet => break Ok(()),
            _ => {}
        }
        let pause = site.pause(&collector, &follower);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.changed() => {}
        }
    };
    if ended.is_ok() {
        site.leave().await?;
    }
    drop(relay);
    ended
}

impl Site {
    fn open(options: Options) -> Result<Self, SiteError> {
        let lock = DataDir::lock(&options.home)?;
        let profile = options.profile;
        let nonce = nonce();
        let spool = Spool::open(&options.home, &format!("spool-{nonce}"))?;
        let memory = Memory::open(&options.home)?;
        let route = Route {
            proxy: match &profile.coordinator.proxy {
                Some(url) => Proxy::Url(url.clone()),
                None => Proxy::FromEnvironment,
            },
            ..Route::default()
        };
        let client = Client::over(&route, &options.endpoint, &caller())?;
        let holder = format!("{} pid {} {nonce}", host(), std::process::id());
        let Ok(name) = profile.site() else {
            // A parsed profile has a name.
            return Err(SiteError::Broken {
                path: options.home,
                why: "the profile has no site's name".into(),
            });
        };
        let told = site_profile(&profile);
        let link = Link::new(client, name, &holder, told, options.take_over);
        Ok(Self {
            slurm: Slurm::new(&profile),
            profile,
            spool,
            memory,
            link,
            notes: options.notes,
            user: String::new(),
            done: HashMap::new(),
            home: options.home,
            greeted: false,
            _lock: lock,
        })
    }

    /// Once around.
    async fn turn(
        &mut self,
        collector: &mut Collector,
        follower: &mut Follower,
    ) -> Result<(), SiteError> {
        self.breathe().await?;
        if !self.greeted {
            return Ok(());
        }
        if self.slurm.known_config().is_none() {
            // Time-outs derive from it; without it the generous ones hold.
            let _ = self.slurm.config().await;
            if let Ok(user) = self.slurm.user().await {
                self.user = user;
            }
            self.note_turns()?;
            collector.begin(self).await?;
        }
        self.execute_orders(follower).await?;
        if follower.is_due() {
            follower.look(self).await?;
            self.breathe().await?;
        }
        collector.step(self).await?;
        self.note_turns()?;
        self.breathe().await
    }

    /// Calls the coordinator, if that is due.
    pub async fn breathe(&mut self) -> Result<(), SiteError> {
        if self
            .link
            .due_in(!self.spool.is_empty() && self.greeted)
            .is_zero()
        {
            self.sync(false).await?;
        }
        Ok(())
    }

    /// Calls the coordinator now. True if orders are fresh.
    pub async fn sync(&mut self, leave: bool) -> Result<bool, SiteError> {
        match self.link.sync(&mut self.spool, leave).await? {
            Synced::Answered => {}
            Synced::Away(why) => {
                if let Some(why) = why {
                    self.tell(&Note::Away(why));
                }
                return Ok(false);
            }
            Synced::Busy(message) => {
                if self.greeted {
                    self.tell(&Note::Busy(message));
                    return Ok(false);
                }
                return Err(SiteError::Busy { message });
            }
        }
        if let (false, Some(news)) = (self.greeted, self.link.news()) {
            let run = news.run_id.clone();
            self.memory.belong_to(&run, &self.home)?;
            self.greeted = true;
            self.tell(&Note::Started { run });
        }
        Ok(true)
    }

    /// Whether there is nothing left to do: the run is over, and so are its jobs here.
    fn is_over(&self) -> bool {
        let ended = self.link.news().is_some_and(|news| news.ended);
        let told = self.spool.is_empty() || !self.link.holds_lease();
        ended && told && self.memory.live().is_empty() && !self.has_open_orders()
    }

    async fn leave(&mut self) -> Result<(), SiteError> {
        if self.link.holds_lease() {
            // Whoever comes next need not wait for the lease to lapse; if this fails, it waits.
            let _ = self.link.sync(&mut self.spool, true).await;
        }
        Ok(())
    }

    /// Something to tell the coordinator: durable when this returns.
    pub fn report(&mut self, report: Report) -> Result<u64, SiteError> {
        self.spool.add(unix_now(), report)
    }

    pub fn tell(&self, note: &Note) {
        (self.notes)(note);
    }

    /// Reports that Slurm stopped answering, or answers again.
    pub fn note_turns(&mut self) -> Result<(), SiteError> {
        for turn in self.slurm.turns() {
            let what = Line::new("slurm");
            match turn {
                Turn::Trouble(text) => {
                    self.tell(&Note::Trouble(text.clone()));
                    let text = Line::new(&text);
                    self.report(Report::Trouble { what, text })?;
                }
                Turn::Recovered => {
                    self.tell(&Note::Recovered);
                    self.report(Report::Recovered { what })?;
                }
            }
        }
        Ok(())
    }

    /// Notes that an intent has a job, and tells the coordinator.
    pub fn submitted(
        &mut self,
        intent: u64,
        job: &str,
        how: hansa_queue::How,
        raw: &str,
    ) -> Result<u64, SiteError> {
        let now = self.slurm.now();
        self.memory.note(intent, |trace| {
            trace.job = Some(job.to_owned());
            trace.seen_at = Some(now);
        })?;
        let seq = self.report(Report::Submitted {
            intent: IntentId(intent),
            job: JobId::new(job),
            how,
            raw: raw.into(),
        })?;
        let found = how == hansa_queue::How::Found;
        let job = job.to_owned();
        self.tell(&Note::Submitted { intent, job, found });
        Ok(seq)
    }

    fn pause(&self, collector: &Collector, follower: &Follower) -> Duration {
        let told = self.link.due_in(!self.spool.is_empty() && self.greeted);
        let own = collector.due_in().min(follower.due_in());
        // What waits for Slurm's pace, or to settle, is looked at again soon.
        let orders = match self.has_open_orders() {
            true => Duration::from_secs(1).max(self.slurm.wait()),
            false => Duration::MAX,
        };
        let own = own.max(self.slurm.wait());
        told.min(own)
            .min(orders)
            .clamp(Duration::from_millis(50), Duration::from_secs(60))
    }
}

/// Seconds since 1970 by this machine's clock.
#[must_use]
pub fn unix_now() -> UnixS {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    UnixS(since.map_or(0, |since| since.as_secs()))
}

/// A random word: the hasher of the standard library is seeded by the system.
fn nonce() -> String {
    use std::hash::{BuildHasher as _, Hasher as _};
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    format!("{:016x}", hasher.finish())
}

/// This machine's name.
#[must_use]
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}
