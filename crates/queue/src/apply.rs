//! The only way in which the state changes, live and in replay.

use std::collections::VecDeque;

use hansa_base::SiteName;

use crate::event::{Event, Intention};
use crate::outcome::{Outcome, Then};
use crate::phase::Phase;
use crate::state::{Decision, Intent, Job, Lease, Release, Site, State, Tail};
use crate::{
    GpuS, How, IntentId, JobId, JobReport, JobSource, LeaseNo, Line, Report, Shape, Stamped, UnixS,
};

/// Decisions of a site that are kept; the journal has all.
const DECISIONS_MAX: usize = 200;
/// Intents of a site that are kept after their end.
const ENDED_MAX: usize = 100;
/// Pairs of promise and reality that are kept.
const JOINED_MAX: usize = 1000;
/// Names of partitions, reservations, nodes and troubles that are kept of each.
pub(crate) const NAMES_MAX: usize = 256;

/// An event that does not follow from the state: the journal is damaged, or there is a defect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// Intents are numbered without gaps.
    #[error("intent {found} follows, {expected} was due")]
    NotNext {
        /// What was due.
        expected: IntentId,
        /// What came.
        found: IntentId,
    },
    /// Nothing is known of the intent, or it has ended.
    #[error("intent {0} is not live")]
    NotLive(IntentId),
    /// Leases are numbered upwards.
    #[error("lease {found} follows {last}")]
    OldLease {
        /// The last.
        last: LeaseNo,
        /// What came.
        found: LeaseNo,
    },
    /// Nothing is known of the site.
    #[error("site {0} is not known")]
    UnknownSite(SiteName),
}

impl State {
    /// Applies an event of the time `at`.
    ///
    /// # Errors
    /// If it does not follow from the state, which is then of no use any more.
    pub fn apply(&mut self, at: UnixS, event: &Event) -> Result<(), Misfit> {
        self.note(at, event);
        match event {
            Event::LeaseTaken {
                site,
                lease,
                holder,
            } => self.lease(at, site, *lease, holder),
            Event::LeaseLeft { site, .. } => {
                self.known(site)?.lease = None;
                Ok(())
            }
            Event::Profiled { site, profile } => {
                self.site(site).profile(at, profile);
                Ok(())
            }
            Event::Reported {
                site,
                spool,
                stamped,
            } => {
                self.reported(at, site, spool, stamped);
                Ok(())
            }
            Event::Intended(intention) => self.intended(at, intention),
            Event::Judged {
                intent,
                outcome,
                then,
            } => self.judged(at, *intent, outcome, then),
            Event::PlanAdopted(plan) => {
                self.plan = Some(plan.clone());
                Ok(())
            }
            Event::Restored { next_intent } => {
                self.next_intent = self.next_intent.max(*next_intent);
                Ok(())
            }
            other if other.intent().is_some() => self.of_intent(at, other),
            other => self.of_site(at, other),
        }
    }

    fn of_intent(&mut self, at: UnixS, event: &Event) -> Result<(), Misfit> {
        let id = event.intent().unwrap_or_default();
        if let Event::Doubled { job, .. } | Event::Late { job, .. } = event {
            // Also of an intent that has ended.
            if let Some(intent) = self.intents.get_mut(&id) {
                intent.unwanted.push(job.clone());
            }
            return Ok(());
        }
        if let Event::TailOrdered { .. } = event {
            // The same: which ended ones are kept has changed between versions.
            if let Some(intent) = self.intents.get_mut(&id) {
                intent.tail = Tail::Ordered;
            }
            return Ok(());
        }
        let intent = self.intents.get_mut(&id).filter(|intent| intent.is_live());
        let intent = intent.ok_or(Misfit::NotLive(id))?;
        match event {
            Event::Delivered { lease, .. } => {
                intent.tried |= intent.delivered.is_some_and(|before| before != *lease);
                intent.delivered = Some(*lease);
            }
            Event::WithdrawOrdered { why, .. } => intent.withdraw = Some(why.clone()),
            Event::CancelOrdered { why, .. } => {
                intent.cancel = Some(why.clone());
                intent.not_cancelled_yet();
            }
            Event::RecallOrdered { why, .. } => {
                intent.recall = Some(why.clone());
                intent.not_cancelled_yet();
            }
            Event::ReleaseOrdered { .. } => intent.release = Release::Ordered,
            Event::Withdrawn { .. } => intent.outcome = Some((at, Outcome::Withdrawn)),
            Event::Joined(joined) => {
                if let Some(job) = &mut intent.job {
                    job.joined = true;
                }
                let intention = &intent.intention;
                let (site, shape) = (intention.site.clone(), intention.shape.name.clone());
                let history = &mut self.site(&site).joined;
                push(history, (shape, joined.clone()), JOINED_MAX);
            }
            _ => {}
        }
        Ok(())
    }

    fn of_site(&mut self, at: UnixS, event: &Event) -> Result<(), Misfit> {
        match event {
            Event::Excluded { site, node, until } => {
                let excluded = &mut self.known(site)?.excluded;
                excluded.retain(|_, until| *until > at);
                if excluded.len() < NAMES_MAX {
                    excluded.insert(node.clone(), *until);
                }
            }
            Event::SitePaused { site, why } => self.site(site).pause(at, why),
            Event::SiteResumed { site, .. } => self.known(site)?.resume(),
            Event::HeldBack {
                site,
                replica,
                held,
            } => {
                let slot = self.known(site)?.slots.entry(replica.clone()).or_default();
                slot.held = held.clone();
            }
            Event::Stray { site, job, .. } => {
                self.known(site)?.strays.insert(job.clone());
            }
            Event::BudgetSet { site, budget } => {
                let state = &mut self.known(site)?.budget;
                state.said = *budget;
                state.said_at = at;
                state.source = Line::new("an operator");
                state.spent.clear();
            }
            Event::BudgetAmended {
                site,
                reserve_gpu_s,
                ends_at,
            } => {
                let said = &mut self.known(site)?.budget.said;
                said.reserve_gpu_s = *reserve_gpu_s;
                said.ends_at = *ends_at;
            }
            _ => {}
        }
        Ok(())
    }

    fn lease(
        &mut self,
        at: UnixS,
        name: &SiteName,
        no: LeaseNo,
        holder: &Line,
    ) -> Result<(), Misfit> {
        let site = self.site(name);
        if no <= site.last_lease {
            let (last, found) = (site.last_lease, no);
            return Err(Misfit::OldLease { last, found });
        }
        site.last_lease = no;
        site.lease = Some(Lease {
            no,
            holder: holder.clone(),
            since: at,
        });
        Ok(())
    }

    fn intended(&mut self, at: UnixS, intention: &Intention) -> Result<(), Misfit> {
        let (expected, found) = (self.next_intent, intention.intent);
        if found != expected {
            return Err(Misfit::NotNext { expected, found });
        }
        self.next_intent = IntentId(found.0 + 1);
        let site = self.known(&intention.site)?;
        let slot = site.slots.entry(intention.replica.clone()).or_default();
        slot.links = intention.link;
        slot.held = None;
        self.intents.insert(
            found,
            Intent {
                intention: intention.clone(),
                made: at,
                delivered: None,
                tried: false,
                withdraw: None,
                cancel: None,
                recall: None,
                release: Release::No,
                job: None,
                unwanted: Vec::new(),
                outcome: None,
                tail: Tail::No,
            },
        );
        Ok(())
    }

    fn judged(
        &mut self,
        at: UnixS,
        id: IntentId,
        outcome: &Outcome,
        then: &Then,
    ) -> Result<(), Misfit> {
        let intent = self.intents.get_mut(&id).filter(|intent| intent.is_live());
        let intent = intent.ok_or(Misfit::NotLive(id))?;
        intent.outcome = Some((at, outcome.clone()));
        let intention = intent.intention.clone();
        let run = intent.job.as_ref().and_then(|job| job.report.clone());
        let site = self.known(&intention.site)?;
        if let Some((ended, cost)) = run.and_then(|run| cost_of(&intention.shape, &run, at)) {
            site.spend(ended, cost);
        }
        site.judged(at, &intention.replica, outcome, then);
        self.forget_ended(&intention.site, id);
        Ok(())
    }

    /// Those that ended first go, and of them first those whose last lines nobody waits for; never the one
    /// that has `just` ended, however old it is: more is decided about it. One with a job that should not be
    /// there stays until that is gone.
    fn forget_ended(&mut self, site: &SiteName, just: IntentId) {
        let ended = self.intents.values().filter_map(|intent| {
            let (at, _) = intent.outcome.as_ref()?;
            let id = intent.intention.intent;
            let settled = intent.unwanted.is_empty() && intent.intention.site == *site;
            settled.then_some((id == just, intent.tail == Tail::Ordered, *at, id))
        });
        let mut ended: Vec<_> = ended.collect();
        ended.sort_unstable();
        let too_many = ended.len().saturating_sub(ENDED_MAX);
        for (.., id) in &ended[..too_many] {
            self.intents.remove(id);
        }
    }

    fn reported(&mut self, at: UnixS, name: &SiteName, spool: &Line, stamped: &Stamped) {
        let site = self.site(name);
        site.spool(spool, stamped.seq);
        match &stamped.report {
            Report::Submitted {
                intent, job, how, ..
            } => self.adopt(*intent, name, job, *how, stamped.at),
            Report::Attempting { intent } => {
                if let Some(intent) = self.live_mut(*intent, name) {
                    intent.tried = true;
                }
            }
            Report::Job(report) => {
                // Whatever became of the report of its submission: here it is.
                self.adopt(report.intent, name, &report.job, How::Found, stamped.at);
                self.job(at, name, report);
            }
            Report::Gone { intent, job } => {
                if let Some(job) = self.job_mut(*intent, name, job) {
                    job.gone = true;
                }
            }
            Report::Cancelled { intent, job } => {
                if let Some(known) = self.live_mut(*intent, name)
                    // The word of a recall may come after that of the start that ended it.
                    && known.is_leaving()
                    && let Some(known) = known.job.as_mut().filter(|known| known.id == *job)
                {
                    known.cancelled = true;
                }
                if let Some(intent) = self.intents.get_mut(intent) {
                    intent.unwanted.retain(|unwanted| unwanted != job);
                }
            }
            Report::Released { intent, job } => {
                if self.job_mut(*intent, name, job).is_some()
                    && let Some(intent) = self.live_mut(*intent, name)
                {
                    intent.release = Release::Done;
                }
            }
            Report::Tail { intent, text, .. } => {
                let intent = self.intents.get_mut(intent);
                if let Some(intent) = intent.filter(|intent| intent.intention.site == *name) {
                    intent.tail = Tail::Got(text.clone());
                }
            }
            Report::NotSubmitted { .. } => {}
            other => self.site(name).learn(at, stamped.at, other),
        }
    }

    /// The first job for an intent is its job.
    fn adopt(&mut self, id: IntentId, site: &SiteName, job: &JobId, how: How, at: UnixS) {
        if let Some(intent) = self.live_mut(id, site)
            && intent.job.is_none()
        {
            intent.job = Some(Job {
                id: job.clone(),
                how,
                submitted: at,
                report: None,
                heard: at,
                gone: false,
                cancelled: false,
                joined: false,
            });
        }
    }

    /// squeue is about now; sacct lags, and may show a state that is over.
    fn job(&mut self, at: UnixS, site: &SiteName, report: &JobReport) {
        let Some(job) = self.job_mut(report.intent, site, &report.job) else {
            return;
        };
        let requeued = job
            .report
            .as_ref()
            .is_some_and(|known| report.restarts > known.restarts && known.started.is_some());
        let before = job.report.clone();
        if before.as_ref().is_some_and(|known| is_older(report, known)) {
            return;
        }
        job.heard = at;
        job.gone = false;
        job.report = Some(report.clone());
        if let Some(intent) = self.live_mut(report.intent, site) {
            intent.started_anyway();
        }
        let Some(before) = before.filter(|_| requeued) else {
            return;
        };
        self.requeued(at, site, report.intent, &before);
    }

    /// The batch system put a job back into the queue: `before` is the end of its last life.
    fn requeued(&mut self, at: UnixS, site: &SiteName, id: IntentId, before: &JobReport) {
        let Some(intent) = self.intents.get(&id) else {
            return;
        };
        let (shape, replica) = (&intent.intention.shape, &intent.intention.replica);
        let (cost, replica) = (cost_of(shape, before, at), replica.clone());
        let text = Line::new(&back_in_the_queue(before));
        let site = self.site(site);
        // What it ran before the requeue was used, too.
        if let Some((ended, cost)) = cost {
            site.spend(ended, cost);
        }
        let replica = Some(replica);
        let decision = Decision { at, replica, text };
        push(&mut site.decisions, decision, DECISIONS_MAX);
    }

    /// The decision, for people.
    fn note(&mut self, at: UnixS, event: &Event) {
        let Some(text) = event.decision() else {
            return;
        };
        if let Event::PlanAdopted(_) = event {
            // It is about all of them.
            for site in self.sites.values_mut() {
                let (replica, text) = (None, Line::new(&text));
                push(
                    &mut site.decisions,
                    Decision { at, replica, text },
                    DECISIONS_MAX,
                );
            }
            return;
        }
        let intent = event.intent().and_then(|id| self.intents.get(&id));
        let of_intent = intent.map(|intent| &intent.intention);
        let (site, replica) = match (event, of_intent) {
            (Event::Intended(intention), _) | (_, Some(intention)) => {
                (intention.site.clone(), Some(intention.replica.clone()))
            }
            (Event::HeldBack { site, replica, .. }, _) => (site.clone(), Some(replica.clone())),
            (other, None) => match other.site() {
                Some(site) => (site.clone(), None),
                None => return,
            },
        };
        let text = Line::new(&text);
        let decision = Decision { at, replica, text };
        push(&mut self.site(&site).decisions, decision, DECISIONS_MAX);
    }

    fn site(&mut self, name: &SiteName) -> &mut Site {
        self.sites.entry(name.clone()).or_default()
    }

    fn known(&mut self, name: &SiteName) -> Result<&mut Site, Misfit> {
        let site = self.sites.get_mut(name);
        site.ok_or_else(|| Misfit::UnknownSite(name.clone()))
    }

    fn live_mut(&mut self, id: IntentId, site: &SiteName) -> Option<&mut Intent> {
        let intent = self.intents.get_mut(&id)?;
        (intent.is_live() && intent.intention.site == *site).then_some(intent)
    }

    fn job_mut(&mut self, id: IntentId, site: &SiteName, job: &JobId) -> Option<&mut Job> {
        let known = self.live_mut(id, site)?.job.as_mut()?;
        (known.id == *job).then_some(known)
    }
}

/// Why nothing is submitted for a job that the batch system itself starts again.
fn back_in_the_queue(before: &JobReport) -> String {
    let nodes: Vec<&str> = before.nodes.iter().map(Line::as_str).collect();
    let nodes = nodes.join(", ");
    let why = match before.state.as_str() {
        "PREEMPTED" => "it made room for another job on",
        "NODE_FAIL" | "BOOT_FAIL" => "a node failed:",
        _ => "it lost its place on",
    };
    let (job, number) = (&before.job, before.restarts.saturating_add(1));
    format!("job {job} is back in the queue ({why} {nodes}): requeue {number}, it goes on there")
}

/// What a job used, and when it stopped using it.
fn cost_of(shape: &Shape, report: &JobReport, now: UnixS) -> Option<(UnixS, GpuS)> {
    let started = report.started?;
    let ended = report.ended.unwrap_or(now);
    Some((ended, shape.cost_of(ended.since_s(started))))
}

/// True if `new` says what was true before `known`.
pub(crate) fn is_older(new: &JobReport, known: &JobReport) -> bool {
    if new.restarts != known.restarts {
        return new.restarts < known.restarts;
    }
    let from_sacct = new.source == JobSource::Sacct;
    match (Phase::of(known), Phase::of(new)) {
        // Over is over, until a requeue counts up.
        (Phase::Ended, Phase::Ended) => false,
        (Phase::Ended, _) => true,
        (Phase::Running | Phase::Interrupted, Phase::Pending) => from_sacct,
        (Phase::Interrupted, Phase::Running) => from_sacct,
        _ => false,
    }
}

pub(crate) fn push<T>(queue: &mut VecDeque<T>, item: T, max: usize) {
    if queue.len() >= max {
        queue.pop_front();
    }
    queue.push_back(item);
}
