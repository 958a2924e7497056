//! The machine: commands in, events and answers out.
//!
//! It applies its own events at once, so that what it decides next sees them; the caller makes them
//! durable before any answer leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hansa_base::{MonoMs, SiteName};

use crate::apply::{Misfit, is_older};
use crate::command::{QueueOrder, QueueRefusal};
use crate::event::Event;
use crate::held::Held;
use crate::judge::{follow_up, join, judged, outcome_of};
use crate::orders::orders;
use crate::outcome::Outcome;
use crate::phase::Phase;
use crate::planned::Adopted;
use crate::policy::{self, Look, held_back};
use crate::state::{Intent, Job, Lease, State};
use crate::view::{Now, RunView};
use crate::wants::wants;
use crate::{
    Begin, IntentId, JobId, LeaseNo, Line, LiveJob, Order, Report, RunNews, SiteProfile, Stamped,
    SyncReply, SyncRequest,
};

/// Decisions of one command. More are taken at the next.
const DECISIONS_MAX: usize = 2000;

/// How long leases of site processes last, and how often they call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A lease that is not renewed is over after this time.
    pub lease_ttl: Duration,
    /// How often a site process calls.
    pub sync_every: Duration,
}

impl Timing {
    /// Calls so often, and a lease of nine of them: a few lost ones are no loss of contact.
    #[must_use]
    pub const fn every(sync_every: Duration) -> Self {
        Self {
            lease_ttl: sync_every.saturating_mul(9),
            sync_every,
        }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::every(Duration::from_secs(20))
    }
}

/// What came of a command: events to make durable, then the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handled<T> {
    /// In order; applied already.
    pub events: Vec<Event>,
    /// The answer.
    pub reply: Result<T, QueueRefusal>,
}

/// The queue machine.
#[derive(Clone, Debug)]
pub struct Machine {
    state: State,
    timing: Timing,
    /// When the leases are over, unless renewed. Not in the state: only the monotonic clock decides.
    deadlines: BTreeMap<SiteName, MonoMs>,
    /// When the holders called, for the same reason.
    contacts: BTreeMap<SiteName, Contact>,
    /// Leases whose holders were told that the run is over.
    told: BTreeSet<(SiteName, LeaseNo)>,
    events: Vec<Event>,
}

/// Calls of one holder without a gap.
#[derive(Clone, Copy, Debug)]
struct Contact {
    lease: LeaseNo,
    first: MonoMs,
    last: MonoMs,
}

impl Machine {
    /// A machine over a replayed state. Whoever held a lease has it for a whole TTL from now.
    #[must_use]
    pub fn new(state: State, timing: Timing, now: MonoMs) -> Self {
        let held = state.sites.iter().filter(|(_, site)| site.lease.is_some());
        let deadlines = held.map(|(name, _)| (name.clone(), now.after(timing.lease_ttl)));
        Self {
            deadlines: deadlines.collect(),
            state,
            timing,
            contacts: BTreeMap::new(),
            told: BTreeSet::new(),
            events: Vec::new(),
        }
    }

    /// What is known and wanted.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Whether a site process holds the lease of a site.
    #[must_use]
    pub fn is_attended(&self, site: &SiteName, now: MonoMs) -> bool {
        let held = self
            .state
            .sites
            .get(site)
            .is_some_and(|s| s.lease.is_some());
        held && self.deadlines.get(site).is_some_and(|until| now < *until)
    }

    /// True if every site process knows that the run is over and has nothing left to do, or is gone.
    #[must_use]
    pub fn is_quiet(&self, now: MonoMs) -> bool {
        let mut sites = self.state.sites.iter();
        sites.all(|(name, site)| {
            let told = |lease: &Lease| self.told.contains(&(name.clone(), lease.no));
            let idle = || orders(&self.state, name).is_empty();
            !self.is_attended(name, now) || (site.lease.as_ref().is_some_and(told) && idle())
        })
    }

    /// What a site process is to do, as far as it was decided.
    #[must_use]
    pub fn orders(&self, site: &SiteName) -> Vec<Order> {
        orders(&self.state, site)
    }

    /// Why nothing more would be submitted at a site now; `None` if it could be.
    #[must_use]
    pub fn held(&self, site: &SiteName, run: &RunView, now: Now) -> Option<Held> {
        let look = self.look(site, run, now)?;
        let Some(profile) = &look.site.profile else {
            return Some(Held::NoProfile);
        };
        match wants(&look, profile) {
            Err(held) => Some(held),
            Ok(wants) => match wants.plan {
                Some(plan) if wants.jobs == 0 => Some(Held::NotPlanned(plan)),
                _ => held_back(&look, profile, None, wants.shape, Begin::Now),
            },
        }
    }

    /// A plan takes the place of the one before; every site follows it at once. Its number is the next
    /// one, so that of two that were made beside each other one is adopted.
    pub fn adopt(&mut self, plan: Adopted, run: &RunView, now: Now) -> Handled<()> {
        let reply = self.try_adopt(plan, run, now);
        self.handled(reply)
    }

    fn try_adopt(&mut self, plan: Adopted, run: &RunView, now: Now) -> Result<(), QueueRefusal> {
        let due = self.state.next_plan();
        if plan.no != due {
            let found = plan.no;
            return Err(QueueRefusal::OtherPlan { found, due });
        }
        let mut planned = plan.sites.iter();
        planned.try_for_each(|plan| self.check_site(&plan.site))?;
        self.put(Event::PlanAdopted(plan), now)?;
        let sites: Vec<SiteName> = self.state.sites.keys().cloned().collect();
        sites
            .iter()
            .try_for_each(|site| self.decide(site, run, now))
    }

    /// A site process reports, and asks what to do.
    pub fn sync(&mut self, request: SyncRequest, run: &RunView, now: Now) -> Handled<SyncReply> {
        let reply = self.try_sync(request, run, now);
        self.handled(reply)
    }

    /// Time has passed, or the run has changed.
    pub fn tick(&mut self, run: &RunView, now: Now) -> Handled<()> {
        let names: Vec<_> = self.state.sites.keys().cloned().collect();
        let decided = names
            .iter()
            .try_for_each(|name| self.decide(name, run, now));
        self.handled(decided)
    }

    /// An operator orders something.
    pub fn operate(&mut self, order: QueueOrder, run: &RunView, now: Now) -> Handled<()> {
        let reply = self.try_operate(order, run, now);
        self.handled(reply)
    }

    fn handled<T>(&mut self, reply: Result<T, QueueRefusal>) -> Handled<T> {
        let events = std::mem::take(&mut self.events);
        Handled { events, reply }
    }

    pub(crate) fn put(&mut self, event: Event, now: Now) -> Result<(), QueueRefusal> {
        let broken = |misfit: Misfit| QueueRefusal::Broken(misfit.to_string());
        self.state.apply(now.wall, &event).map_err(broken)?;
        self.events.push(event);
        Ok(())
    }

    pub(crate) fn look<'a>(
        &'a self,
        name: &'a SiteName,
        run: &'a RunView,
        now: Now,
    ) -> Option<Look<'a>> {
        Some(Look {
            state: &self.state,
            name,
            site: self.state.sites.get(name)?,
            run,
            now: now.wall,
            attended: self.is_attended(name, now.mono),
            heard_s: self
                .contacts
                .get(name)
                .map_or(0, |contact| contact.last.since(contact.first).as_secs()),
        })
    }

    fn try_sync(
        &mut self,
        request: SyncRequest,
        run: &RunView,
        now: Now,
    ) -> Result<SyncReply, QueueRefusal> {
        let site = request.site.clone();
        let lease = self.lease(&request, now)?;
        self.called(&site, lease, now.mono);
        if let Some(profile) = request.profile {
            self.profile(&site, profile, now)?;
        }
        for stamped in request.reports {
            self.report(&site, &request.spool, stamped, run, now)?;
        }
        if request.leave {
            let site = site.clone();
            self.put(Event::LeaseLeft { site, lease }, now)?;
        }
        self.decide(&site, run, now)?;
        if !request.leave {
            self.deliver(&site, lease, now)?;
        }
        let orders = match request.leave {
            true => Vec::new(),
            false => orders(&self.state, &site),
        };
        if run.ended {
            self.told.insert((site.clone(), lease));
        }
        let known = self.state.sites.get(&site);
        Ok(SyncReply {
            lease,
            lease_ttl_ms: ms(self.timing.lease_ttl),
            next_sync_ms: ms(self.timing.sync_every),
            accepted_through: known.map_or(0, |known| known.spooled(&request.spool)),
            orders,
            news: self.news(&site, run, now),
            jobs: Some(self.live_jobs(&site)),
        })
    }

    fn live_jobs(&self, site: &SiteName) -> Vec<LiveJob> {
        let live = self.state.live(site).filter_map(|intent| {
            let job = intent.job.as_ref()?.id.clone();
            let intent = intent.intention.intent;
            Some(LiveJob { intent, job })
        });
        live.collect()
    }

    /// One holder at a time. The same holder gets the same lease again: a reply may have been lost.
    fn lease(&mut self, request: &SyncRequest, now: Now) -> Result<LeaseNo, QueueRefusal> {
        let site = &request.site;
        let known = self.state.sites.get(site);
        let current = known.and_then(|known| known.lease.clone());
        let until = now.mono.after(self.timing.lease_ttl);
        let own = current
            .as_ref()
            .filter(|lease| lease.holder == request.holder);
        if let Some(own) = own.filter(|own| request.lease.is_none_or(|held| held == own.no)) {
            let no = own.no;
            self.deadlines.insert(site.clone(), until);
            return Ok(no);
        }
        if let (Some(held), Some(_)) = (request.lease, &current) {
            let site = site.clone();
            return Err(QueueRefusal::Fenced { site, held });
        }
        let deadline = self.deadlines.get(site).copied().unwrap_or_default();
        if let Some(lease) = current.filter(|_| now.mono < deadline && !request.take_over) {
            return Err(QueueRefusal::Busy {
                site: site.clone(),
                holder: lease.holder,
                since: lease.since,
                left_s: deadline.since(now.mono).as_secs() + 1,
            });
        }
        let last = known.map_or(LeaseNo(0), |known| known.last_lease);
        let lease = LeaseNo(last.0 + 1);
        let holder = request.holder.clone();
        let site = site.clone();
        self.deadlines.insert(site.clone(), until);
        let taken = Event::LeaseTaken {
            site,
            lease,
            holder,
        };
        self.put(taken, now)?;
        Ok(lease)
    }

    /// A few lost calls are no gap.
    fn called(&mut self, site: &SiteName, lease: LeaseNo, now: MonoMs) {
        let gap = self.timing.lease_ttl / 2;
        let known = self.contacts.get(site);
        let known = known.filter(|known| known.lease == lease && now.since(known.last) <= gap);
        let first = known.map_or(now, |known| known.first);
        let last = now;
        let contact = Contact { lease, first, last };
        self.contacts.insert(site.clone(), contact);
    }

    fn profile(
        &mut self,
        site: &SiteName,
        profile: SiteProfile,
        now: Now,
    ) -> Result<(), QueueRefusal> {
        let known = self.state.sites.get(site);
        if known.is_some_and(|known| known.profile.as_ref() == Some(&profile)) {
            return Ok(());
        }
        let paused = known.and_then(|known| known.paused.as_ref());
        let cured = paused.is_some_and(|paused| paused.why.ends_with_another_profile())
            && known.is_some_and(|known| known.profile.is_some());
        let event = Event::Profiled {
            site: site.clone(),
            profile,
        };
        self.put(event, now)?;
        if cured {
            let (site, why) = (site.clone(), Line::new("the profile has changed"));
            self.put(Event::SiteResumed { site, why }, now)?;
        }
        Ok(())
    }

    /// A report once; and what follows from it at once.
    fn report(
        &mut self,
        site: &SiteName,
        spool: &Line,
        stamped: Stamped,
        run: &RunView,
        now: Now,
    ) -> Result<(), QueueRefusal> {
        let known = self.state.sites.get(site);
        let through = known.map_or(0, |known| known.spooled(spool));
        let seq = stamped.seq;
        if seq <= through {
            return Ok(());
        }
        if seq > through + 1 {
            let gap = Event::Gap {
                site: site.clone(),
                after: through,
                next: seq,
            };
            self.put(gap, now)?;
        }
        let report = stamped.report.clone();
        let event = Event::Reported {
            site: site.clone(),
            spool: spool.clone(),
            stamped,
        };
        let unexpected = self.unexpected(site, &report);
        self.put(event, now)?;
        if let Some(event) = unexpected {
            self.put(event, now)?;
        }
        self.follow(site, &report, run, now)
    }

    /// A job that should not be there.
    fn unexpected(&self, site: &SiteName, report: &Report) -> Option<Event> {
        let (id, job) = match report {
            Report::Submitted { intent, job, .. } => (*intent, job),
            Report::Job(report) if crate::Phase::of(report) != crate::Phase::Ended => {
                (report.intent, &report.job)
            }
            _ => return None,
        };
        let Some(intent) = self.state.intents.get(&id) else {
            let known = self.state.sites.get(site)?;
            let stray = id >= self.state.next_intent
                && !known.strays.contains(job)
                && known.strays.len() < 64;
            return stray.then(|| Event::Stray {
                site: site.clone(),
                intent: id,
                job: job.clone(),
            });
        };
        if intent.intention.site != *site || intent.unwanted.contains(job) {
            return None;
        }
        let (intent_id, job_id) = (id, JobId::clone(job));
        match &intent.job {
            Some(known) if known.id == *job => {
                came_back(intent, known, report).then_some(Event::Late {
                    intent: intent_id,
                    job: job_id,
                })
            }
            Some(_) => Some(Event::Doubled {
                intent: intent_id,
                job: job_id,
            }),
            None if intent.is_live() => None,
            None => Some(Event::Late {
                intent: intent_id,
                job: job_id,
            }),
        }
    }

    fn follow(
        &mut self,
        site: &SiteName,
        report: &Report,
        run: &RunView,
        now: Now,
    ) -> Result<(), QueueRefusal> {
        let Some(look) = self.look(site, run, now) else {
            return Ok(());
        };
        let live = |id: &IntentId| {
            let intent = look.state.intents.get(id);
            intent.filter(|intent| intent.is_live() && intent.intention.site == *site)
        };
        let mut events = Vec::new();
        let mut judge = |intent: &crate::state::Intent, outcome: Outcome| {
            events.push(judged(&look, intent, outcome.clone()));
            events.extend(follow_up(&look, intent, &outcome));
        };
        match report {
            Report::NotSubmitted {
                intent, refusal, ..
            } => {
                if let Some(intent) = live(intent).filter(|intent| intent.job.is_none()) {
                    let outcome = match refusal.kind {
                        crate::RefusalKind::Withdrawn => Outcome::Withdrawn,
                        _ => Outcome::NotSubmitted(refusal.clone()),
                    };
                    judge(intent, outcome);
                }
            }
            Report::Job(report) => {
                if let Some(intent) = live(&report.intent) {
                    let same = intent.job.as_ref().is_some_and(|job| job.id == report.job);
                    if let Some(outcome) = outcome_of(intent).filter(|_| same) {
                        judge(intent, outcome);
                    }
                    let joined = join(&look, intent, report).filter(|_| same);
                    events.splice(0..0, joined);
                }
            }
            Report::Gone { intent, .. } => {
                if let Some(intent) = live(intent)
                    && let Some(outcome) = outcome_of(intent)
                {
                    judge(intent, outcome);
                }
            }
            _ => {}
        }
        events
            .into_iter()
            .try_for_each(|event| self.put(event, now))
    }

    /// Everything that is to be decided for a site.
    pub(crate) fn decide(
        &mut self,
        site: &SiteName,
        run: &RunView,
        now: Now,
    ) -> Result<(), QueueRefusal> {
        for _ in 0..DECISIONS_MAX {
            let Some(look) = self.look(site, run, now) else {
                return Ok(());
            };
            let Some(event) = policy::next(&look) else {
                return Ok(());
            };
            let mut more = Vec::new();
            if let Event::Judged {
                intent, outcome, ..
            } = &event
                && let Some(intent) = look.state.intents.get(intent)
            {
                more = follow_up(&look, intent, outcome);
            }
            self.put(event, now)?;
            more.into_iter()
                .try_for_each(|event| self.put(event, now))?;
        }
        Ok(())
    }

    /// What is told now must be known to have been told, should another process run the site next.
    fn deliver(&mut self, site: &SiteName, lease: LeaseNo, now: Now) -> Result<(), QueueRefusal> {
        let waiting = self.state.live(site).filter(|intent| {
            intent.job.is_none() && intent.withdraw.is_none() && intent.delivered != Some(lease)
        });
        let waiting: Vec<_> = waiting.map(|intent| intent.intention.intent).collect();
        waiting
            .into_iter()
            .try_for_each(|intent| self.put(Event::Delivered { intent, lease }, now))
    }

    fn news(&self, site: &SiteName, run: &RunView, now: Now) -> RunNews {
        let known = self.state.sites.get(site);
        let paused = known.and_then(|known| known.paused.as_ref());
        RunNews {
            run_id: run.run_id.clone(),
            ended: run.ended,
            paused: run.paused.clone(),
            drained: run.drained.get(site).cloned(),
            queue_paused: paused.map(|paused| Line::new(&paused.to_string())),
            windows_left: run.windows_left,
            now: now.wall,
        }
    }
}

/// Whether a job is there again after it was judged: somebody requeued it, or it was lost and is found.
fn came_back(intent: &Intent, known: &Job, report: &Report) -> bool {
    let Report::Job(report) = report else {
        return false;
    };
    let news = known.report.as_ref();
    let news = news.is_none_or(|known| !is_older(report, known));
    // One that is cancelled already is on its way out.
    let here = matches!(Phase::of(report), Phase::Pending | Phase::Running)
        && report.state.as_str() != "COMPLETING";
    !intent.is_live() && news && here
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
