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

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hansa_queue::{IntentId, JobId, Line, Report, UnixS};
use hansa_store::{DataDir, host};
use hansa_transfer::{Client, Endpoint, Route};
use tokio::sync::watch;

use crate::collector::Collector;
use crate::commands::{Slurm, SlurmError, Turn};
use crate::convert::site_profile;
use crate::error::SiteError;
use crate::follower::Follower;
use crate::link::{Link, Synced, caller};
use crate::memory::Memory;
use crate::profile::Profile;
use crate::relay::{Gate, proxy_of};
use crate::spool::Spool;
use crate::turn;

/// What troubles with Slurm itself are called.
const CONTROLLER: &str = "slurm";

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
    /// Something else does not work.
    Fails {
        /// What: a word or two.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// It works again.
    Works {
        /// What.
        what: &'static str,
    },
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
    /// How often the coordinator may have forgotten what it was told.
    pub retold: u64,
    /// What does not work besides the controller, and what is known to work.
    works: BTreeMap<&'static str, bool>,
    /// Another process has the site: nothing is done any more.
    lost: bool,
    lock: DataDir,
}

/// Runs a site until told to stop, or, with `once`, until nothing is due.
///
/// # Errors
/// What no waiting can mend, and with `once` also a coordinator that is away.
pub async fn run(options: Options, mut stop: watch::Receiver<bool>) -> Result<(), SiteError> {
    let name = |pid| format!("{} pid {pid} ", host());
    let holder = format!("{}{}", name(std::process::id()), nonce());
    let mut gate = Gate::new(&options.endpoint);
    let mut patient = false;
    loop {
        let mut link = options.link(&holder, !patient)?;
        if !patient {
            // Killed, it could not say that it ends.
            link.follows(DataDir::left_by(&options.home).map(name));
        }
        if !turn::gain(&mut link, patient, options.once, &options.notes, &mut stop).await? {
            return Ok(());
        }
        let lock = turn::lock(&mut link, &options.home, &mut stop).await?;
        if let Some(lock) = lock {
            let site = Site::open(&options, link, lock)?;
            if let End::Over = serve(site, &mut gate, options.once, &mut stop).await? {
                return Ok(());
            }
        }
        // Whoever has the site now may use this home.
        gate.close();
        patient = true;
    }
}

/// How a turn ended.
enum End {
    /// There is nothing more to do, or so we were told.
    Over,
    /// Another process has the site.
    Lost,
}

async fn serve(
    mut site: Site,
    gate: &mut Gate<'_>,
    once: bool,
    stop: &mut watch::Receiver<bool>,
) -> Result<End, SiteError> {
    let mut collector = Collector::new(&site.profile);
    let mut follower = Follower::new(&site.profile);
    loop {
        if *stop.borrow() {
            break;
        }
        site.breathe().await?;
        gate.open(&site).await?;
        site.turn(&mut collector, &mut follower).await?;
        if site.lost {
            // Before the home goes: whoever gets it may want the same port.
            gate.close();
            return Ok(End::Lost);
        }
        if site.is_over() {
            site.tell(&Note::Ended);
            break;
        }
        let quiet = site.spool.is_empty() && collector.is_through() && !site.has_open_orders();
        match (once, site.link.holds_lease()) {
            (true, false) => return Err(SiteError::Away),
            (true, true) if quiet => break,
            _ => {}
        }
        let pause = site.pause(&collector, &follower);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.changed() => {}
        }
    }
    site.leave().await?;
    Ok(End::Over)
}

impl Options {
    /// A way to the coordinator, for one turn.
    fn link(&self, holder: &str, may_take_over: bool) -> Result<Link, SiteError> {
        let profile = &self.profile;
        let route = Route {
            proxy: proxy_of(profile),
            ..Route::default()
        };
        let client = Client::over(&route, &self.endpoint, &caller())?;
        let Ok(name) = profile.site() else {
            // A parsed profile has a name.
            return Err(SiteError::Broken {
                path: self.home.clone(),
                why: "the profile has no site's name".into(),
            });
        };
        let (told, take_over) = (site_profile(profile), self.take_over && may_take_over);
        Ok(Link::new(client, name, holder, told, take_over))
    }
}

impl Site {
    /// Opens a home for a turn that has begun.
    fn open(options: &Options, link: Link, lock: DataDir) -> Result<Self, SiteError> {
        let mut memory = Memory::open(&options.home)?;
        let run = link.news().map(|news| news.run_id.clone());
        let run = run.unwrap_or_default();
        memory.belong_to(&run, &options.home)?;
        let site = Self::with_memory(options, link, lock, memory)?;
        site.tell(&Note::Started { run });
        Ok(site)
    }

    fn with_memory(
        options: &Options,
        link: Link,
        lock: DataDir,
        memory: Memory,
    ) -> Result<Self, SiteError> {
        let spool = Spool::open(&options.home, &format!("spool-{}", nonce()))?;
        Ok(Self {
            slurm: Slurm::new(&options.profile),
            profile: options.profile.clone(),
            spool,
            memory,
            link,
            notes: options.notes.clone(),
            user: String::new(),
            done: HashMap::new(),
            retold: 0,
            works: BTreeMap::new(),
            lost: false,
            lock,
        })
    }

    /// Once around.
    async fn turn(
        &mut self,
        collector: &mut Collector,
        follower: &mut Follower,
    ) -> Result<(), SiteError> {
        if self.lost {
            return Ok(());
        }
        if self.slurm.known_config().is_none() {
            // Time-outs derive from it; without it the generous ones hold.
            let config = self.slurm.config().await;
            self.answer(CONTROLLER, config)?;
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
        if self.link.due_in(!self.spool.is_empty()).is_zero() {
            self.sync(false).await?;
        }
        Ok(())
    }

    /// Calls the coordinator now. True if orders are fresh.
    pub async fn sync(&mut self, leave: bool) -> Result<bool, SiteError> {
        if self.lost {
            return Ok(false);
        }
        match self.link.sync(Some(&mut self.spool), leave).await? {
            Synced::Answered => {}
            Synced::Away(why) => {
                if let Some(why) = why {
                    self.tell(&Note::Away(why));
                }
                return Ok(false);
            }
            Synced::Busy(message) => {
                self.tell(&Note::Busy(message));
                self.lost = true;
                return Ok(false);
            }
        }
        if self.link.take_forgetful() {
            self.memory.forget_told();
            self.works.clear();
            self.retold += 1;
        }
        let jobs = self.link.take_jobs();
        self.memory.follow(&jobs, self.slurm.now())?;
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
            let _ = self.link.sync(Some(&mut self.spool), true).await;
        }
        Ok(())
    }

    /// Something to tell the coordinator: durable when this returns.
    pub fn report(&mut self, report: Report) -> Result<u64, SiteError> {
        if let Some(holder) = self.lock.taken_by() {
            let path = self.lock.path().to_owned();
            return Err(SiteError::Overtaken { path, holder });
        }
        self.spool.add(unix_now(), report)
    }

    pub fn tell(&self, note: &Note) {
        (self.notes)(note);
    }

    /// Reports that Slurm stopped answering, or answers again.
    pub fn note_turns(&mut self) -> Result<(), SiteError> {
        for turn in self.slurm.turns() {
            let what = Line::new(CONTROLLER);
            match turn {
                Turn::Trouble(text) => {
                    self.works.insert(CONTROLLER, false);
                    self.tell(&Note::Trouble(text.clone()));
                    let text = Line::new(&text);
                    self.report(Report::Trouble { what, text })?;
                }
                Turn::Recovered => {
                    self.works.insert(CONTROLLER, true);
                    self.tell(&Note::Recovered);
                    self.report(Report::Recovered { what })?;
                }
            }
        }
        Ok(())
    }

    /// A command's answer, or nothing. What is wrong besides the controller is told when it begins, and when it
    /// is over.
    pub fn answer<T>(
        &mut self,
        what: &'static str,
        answer: Result<T, SlurmError>,
    ) -> Result<Option<T>, SiteError> {
        self.note_turns()?;
        match answer {
            Ok(answer) => {
                self.works(what)?;
                Ok(Some(answer))
            }
            Err(error) => {
                if !error.is_of_controller() {
                    self.fails(what, &error.to_string())?;
                }
                Ok(None)
            }
        }
    }

    /// Tells that something does not work, unless that was told.
    pub fn fails(&mut self, what: &'static str, text: &str) -> Result<(), SiteError> {
        if self.works.insert(what, false) != Some(false) {
            let why = text.to_owned();
            self.tell(&Note::Fails { what, why });
            let (what, text) = (Line::new(what), Line::new(text));
            self.report(Report::Trouble { what, text })?;
        }
        Ok(())
    }

    /// Tells that something works, unless that was told: it may not have under a process before this one.
    pub fn works(&mut self, what: &'static str) -> Result<(), SiteError> {
        let before = self.works.insert(what, true);
        if before == Some(false) {
            self.tell(&Note::Works { what });
        }
        if before != Some(true) {
            let what = Line::new(what);
            self.report(Report::Recovered { what })?;
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
        let told = self.link.due_in(!self.spool.is_empty());
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

/// A site for tests of its parts.
#[cfg(test)]
pub(crate) mod testing {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use hansa_transfer::{Token, Trust};

    use super::*;

    const PROFILE: &str = r#"name = "birch"
[coordinator]
url = "http://127.0.0.1:1"
token_file = "token"
[slurm]
[jobs]
wanted = 1
shape = "tiny"
[[shape]]
name = "tiny"
partition = "gpu"
nodes = 1
gpus_per_node = 0
walltime = "01:00:00"
[script]
corpus = "corpus"
state = "state"
logs = "logs"
"#;

    /// A site process that has spoken with nobody yet, of this run and with its home in a folder.
    pub fn site(folder: &Path, run: &str) -> Site {
        let options = Options {
            profile: Profile::parse(PROFILE, &folder.join("birch.toml")).unwrap(),
            home: folder.join("home"),
            endpoint: Endpoint {
                base_url: "http://127.0.0.1:1".to_owned(),
                token: Token::new("t"),
                trust: Trust::LoopbackPlain,
            },
            take_over: false,
            once: false,
            notes: Arc::new(|_| {}),
        };
        let link = options.link("here", false).unwrap();
        let lock = DataDir::lock(&options.home).unwrap();
        let mut memory = Memory::open(&options.home).unwrap();
        memory.belong_to(run, &options.home).unwrap();
        Site::with_memory(&options, link, lock, memory).unwrap()
    }
}
