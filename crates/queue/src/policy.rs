//! The policy: keep the wanted number of replicas of each site in the queue or running.
//!
//! ```text
//!   next() ──► the first thing that is to be decided ──► apply ──► next() … until there is nothing
//! ```
//!
//! So each decision sees those before it. How many, and in which shape, is [`crate::wants`]'s answer. Never
//! here: changes.

use hansa_base::{ReplicaName, SiteName};

use crate::event::{Event, Intention, Why};
use crate::held::Held;
use crate::judge::judge_interrupted;
use crate::outcome::PauseWhy;
use crate::phase::Phase;
use crate::state::{Intent, Paused, Release, Site, State};
use crate::view::RunView;
use crate::wants::{Wants, wants};
use crate::{Begin, Chain, Line, ProbeAnswer, Shape, ShapeName, SiteProfile, UnixS};

/// A successor that would start this soon anyway needs no release.
const RELEASE_WORTH_S: u64 = 30;
/// A probe older than so many intervals says nothing any more.
const PROBE_INTERVALS: u64 = 3;
/// Excluded nodes of one submission.
const EXCLUDE_MAX: usize = 64;

/// What is looked at.
pub(crate) struct Look<'a> {
    pub state: &'a State,
    pub name: &'a SiteName,
    pub site: &'a Site,
    pub run: &'a RunView,
    pub now: UnixS,
    /// A site process holds the lease.
    pub attended: bool,
    /// How long it has called without a gap: it would have told what happened since then.
    pub heard_s: u64,
}

/// The next thing that is to be decided for a site.
pub(crate) fn next(look: &Look<'_>) -> Option<Event> {
    judge_interrupted(look)
        .or_else(|| pause_exhausted(look))
        .or_else(|| end_unwanted(look))
        .or_else(|| release(look))
        .or_else(|| submit(look))
}

/// A job that waits for an allocation that is used up waits for ever.
fn pause_exhausted(look: &Look<'_>) -> Option<Event> {
    if look.site.paused.is_some() {
        return None;
    }
    let reports = look.state.live(look.name).filter_map(|intent| {
        let report = intent.job.as_ref()?.report.as_ref()?;
        Phase::is_exhausted(report).then_some(report)
    });
    let report = reports.last()?;
    let text = format!("job {} waits with reason {}", report.job, report.reason);
    Some(Event::SitePaused {
        site: look.name.clone(),
        why: PauseWhy::AllocationExhausted(Line::new(&text)),
    })
}

/// Why a live intent is not wanted any more.
fn unwanted(look: &Look<'_>, intent: &Intent) -> Option<Line> {
    if look.run.ended {
        // A running one is told by the run itself, leaves, and uploads what it has first.
        return (!intent.is_running()).then(|| Line::new("the run is over"));
    }
    if intent.is_running() {
        return None;
    }
    let paused = look.site.paused.as_ref();
    if let Some(defect) = paused.and_then(Paused::defect) {
        let why = format!("the site's queue is paused: {defect}");
        return Some(Line::new(&why));
    }
    let profile = look.site.profile.as_ref()?;
    // While nobody has decided, what waits goes on waiting.
    wants(look, profile).ok()?.unwanted(look, intent)
}

fn end_unwanted(look: &Look<'_>) -> Option<Event> {
    let one = look.state.live(look.name).find_map(|intent| {
        let why = unwanted(look, intent)?;
        end(intent, why)
    });
    one.or_else(|| end_overdrawn(look))
}

/// Takes back the newest that waits, once for as long as it is not gone.
fn end_overdrawn(look: &Look<'_>) -> Option<Event> {
    if !look.state.is_overdrawn(look.name) {
        return None;
    }
    let waiting = look
        .state
        .live(look.name)
        .filter(|intent| !intent.is_running());
    let waiting: Vec<_> = waiting.collect();
    let underway = |intent: &&Intent| intent.is_leaving() || intent.withdraw.is_some();
    if waiting.iter().any(underway) {
        return None;
    }
    end(
        waiting.last()?,
        Line::new("it may cost more than is left of the allocation"),
    )
}

/// How a live intent that does not run comes to an end; `None` if that is under way. A job that starts before
/// it can be cancelled runs on.
fn end(intent: &Intent, why: Line) -> Option<Event> {
    let id = intent.intention.intent;
    match &intent.job {
        None => withdraw(intent, why),
        Some(_) => (!intent.is_leaving()).then_some(Event::RecallOrdered { intent: id, why }),
    }
}

/// The same for good, whether or not it runs.
pub(crate) fn cancel(intent: &Intent, why: Line) -> Option<Event> {
    let id = intent.intention.intent;
    match &intent.job {
        None => withdraw(intent, why),
        Some(job) => {
            // Once more if it did not help.
            let due = intent.cancel.is_none() || job.cancelled;
            due.then_some(Event::CancelOrdered { intent: id, why })
        }
    }
}

fn withdraw(intent: &Intent, why: Line) -> Option<Event> {
    let id = intent.intention.intent;
    match intent.delivered {
        None => Some(Event::Withdrawn { intent: id, why }),
        Some(_) => {
            let due = intent.withdraw.is_none();
            due.then_some(Event::WithdrawOrdered { intent: id, why })
        }
    }
}

/// A successor that waits for the end of a link that has ended already.
fn release(look: &Look<'_>) -> Option<Event> {
    if look.site.paused.is_some() || look.run.ended || !look.attended {
        return None;
    }
    look.state.live(look.name).find_map(|intent| {
        let Begin::At(begin) = intent.intention.begin else {
            return None;
        };
        let slot = look.site.slots.get(&intent.intention.replica)?;
        let waits = slot
            .wait
            .as_ref()
            .is_some_and(|(until, _)| *until > look.now);
        let free = match intent.intention.after {
            Some(before) => {
                let before = look.state.intents.get(&before);
                before.is_none_or(|before| !before.is_live())
            }
            // A plan held it back, and this one does not.
            None => wanted_begin(look).is_none(),
        };
        let worth = begin > look.now.after_s(RELEASE_WORTH_S);
        let asleep = intent.job.is_some()
            && intent.phase() == Phase::Pending
            && intent.release == Release::No
            && !intent.is_leaving();
        let id = intent.intention.intent;
        (free && worth && asleep && !waits).then_some(Event::ReleaseOrdered { intent: id })
    })
}

/// When the plan lets a new job start.
fn wanted_begin(look: &Look<'_>) -> Option<UnixS> {
    let profile = look.site.profile.as_ref()?;
    wants(look, profile).ok()?.begin
}

fn submit(look: &Look<'_>) -> Option<Event> {
    let profile = look.site.profile.as_ref()?;
    match wants(look, profile) {
        Ok(wants) => {
            let idle =
                |replica: &ReplicaName| look.state.live_of(look.name, replica).next().is_none();
            // Places in the queue go to replicas without any job first, then to successors.
            let (first, then): (Vec<_>, Vec<_>) = wants.replicas(look).into_iter().partition(idle);
            let mut replicas = first.iter().chain(&then);
            replicas.find_map(|replica| for_slot(look, profile, &wants, replica))
        }
        Err(held) => {
            let replica = slot_name(1)?;
            let told = look.site.slots.get(&replica);
            let told = told.and_then(|slot| slot.held.as_ref());
            (told != Some(&held)).then(|| Event::HeldBack {
                site: look.name.clone(),
                replica,
                held: Some(held),
            })
        }
    }
}

/// What the replica lacks, or why it does not get it.
fn for_slot(
    look: &Look<'_>,
    profile: &SiteProfile,
    wants: &Wants<'_>,
    replica: &ReplicaName,
) -> Option<Event> {
    let slot = look.site.slots.get(replica);
    let told = slot.and_then(|slot| slot.held.as_ref());
    let tell = |held: Option<Held>| Event::HeldBack {
        site: look.name.clone(),
        replica: replica.clone(),
        held,
    };
    let Some((begin, after, why)) = need(look, wants, replica) else {
        let held = stuck(look, replica);
        return (told != held.as_ref()).then(|| tell(held));
    };
    let shape = wants.shape;
    if let Some(held) = held_back(look, profile, Some(replica), shape, begin) {
        let full = matches!(held, Held::Pending { .. });
        if let Some(room) = make_room(look, replica).filter(|_| full && after.is_none()) {
            return Some(room);
        }
        let same =
            told.is_some_and(|told| std::mem::discriminant(told) == std::mem::discriminant(&held));
        return (!same).then(|| tell(Some(held)));
    }
    Some(Event::Intended(intention(
        look, replica, shape, begin, after, why,
    )))
}

/// A place in the queue for a replica that has no job: the newest successor of a link that still runs gives
/// up its own, one at a time.
fn make_room(look: &Look<'_>, replica: &ReplicaName) -> Option<Event> {
    let waiting = look.state.live(look.name);
    let waiting: Vec<_> = waiting.filter(|intent| !intent.is_running()).collect();
    let underway = |intent: &&Intent| intent.is_leaving() || intent.withdraw.is_some();
    if waiting.iter().any(underway) {
        return None;
    }
    let ahead = |intent: &&&Intent| {
        let before = intent.intention.after;
        let before = before.and_then(|before| look.state.intents.get(&before));
        before.is_some_and(Intent::is_running)
    };
    let why = format!("its place in the queue is for {replica}, which has no job");
    end(waiting.iter().rev().find(ahead)?, Line::new(&why))
}

/// Why the replica's job that waits will not start by itself.
fn stuck(look: &Look<'_>, replica: &ReplicaName) -> Option<Held> {
    look.state.live_of(look.name, replica).find_map(|intent| {
        let report = intent.job.as_ref()?.report.as_ref()?;
        let intent = intent.intention.intent;
        let (job, reason) = (report.job.clone(), report.reason.clone());
        if Phase::is_held(report) {
            return Some(Held::JobHeld {
                intent,
                job,
                reason,
            });
        }
        Phase::cannot_start(report).then_some(Held::CannotStart {
            intent,
            job,
            reason,
        })
    })
}

type Need = (Begin, Option<crate::IntentId>, Why);

/// A replica without a job needs one; one whose job runs needs the next link.
fn need(look: &Look<'_>, wants: &Wants<'_>, replica: &ReplicaName) -> Option<Need> {
    let mut live = look.state.live_of(look.name, replica);
    let Some(first) = live.next() else {
        let begin = wants.begin.map_or(Begin::Now, Begin::At);
        return Some((begin, None, wants.why()));
    };
    let alone = live.next().is_none() && first.is_running() && !first.is_leaving();
    if !alone {
        return None;
    }
    let after = Some(first.intention.intent);
    match wants.chain {
        Chain::None => None,
        Chain::Begin => Some((Begin::At(first.walltime_end()?), after, Why::Chained)),
        Chain::Singleton => Some((Begin::Singleton, after, Why::Chained)),
    }
}

pub(crate) fn intention(
    look: &Look<'_>,
    replica: &ReplicaName,
    shape: &Shape,
    begin: Begin,
    after: Option<crate::IntentId>,
    why: Why,
) -> Intention {
    let links = look.site.slots.get(replica).map_or(0, |slot| slot.links);
    let excluded = look.site.excluded.iter();
    let excluded = excluded.filter(|(_, until)| **until > look.now);
    Intention {
        intent: look.state.next_intent,
        site: look.name.clone(),
        replica: replica.clone(),
        shape: shape.clone(),
        link: links.saturating_add(1),
        begin,
        after,
        exclude: excluded
            .map(|(node, _)| node.clone())
            .take(EXCLUDE_MAX)
            .collect(),
        why,
    }
}

/// The first reason for not submitting.
pub(crate) fn held_back(
    look: &Look<'_>,
    profile: &SiteProfile,
    replica: Option<&ReplicaName>,
    shape: &Shape,
    begin: Begin,
) -> Option<Held> {
    held_by_run(look)
        .or_else(|| held_by_site(look, replica))
        .or_else(|| held_by_queue(look, profile, shape))
        .or_else(|| held_by_budget(look, replica, shape, begin))
}

fn held_by_run(look: &Look<'_>) -> Option<Held> {
    let run = look.run;
    if run.ended {
        return Some(Held::RunEnded);
    }
    if let Some(why) = &run.paused {
        return Some(Held::RunPaused(why.clone()));
    }
    if run.windows_left == 0 {
        return Some(Held::NoWork);
    }
    let drained = run.drained.get(look.name);
    drained.map(|why| Held::SiteDrained(why.clone()))
}

fn held_by_site(look: &Look<'_>, replica: Option<&ReplicaName>) -> Option<Held> {
    if let Some(paused) = &look.site.paused {
        return Some(Held::QueuePaused(Line::new(&paused.to_string())));
    }
    if !look.attended {
        return Some(Held::NoSiteProcess);
    }
    let slot = look.site.slots.get(replica?)?;
    let (until, why) = slot.wait.as_ref()?;
    (*until > look.now).then(|| Held::Backoff {
        until: *until,
        why: why.clone(),
    })
}

fn held_by_queue(look: &Look<'_>, profile: &SiteProfile, shape: &Shape) -> Option<Held> {
    if let Some((_, partition)) = look.site.partitions.get(&shape.partition) {
        let state = partition.state.as_str();
        if matches!(state, "DRAIN" | "INACTIVE") {
            let text = format!("{} is {state}", shape.partition);
            return Some(Held::Partition(Line::new(&text)));
        }
        if let Some(max) = partition
            .walltime_max_s
            .filter(|max| *max < shape.walltime_s)
        {
            let text = format!(
                "{} takes jobs of at most {max} s, the shape asks for {} s",
                shape.partition, shape.walltime_s
            );
            return Some(Held::Partition(Line::new(&text)));
        }
    }
    if let Some(probed) = look.site.probe_at(shape, look.now)
        && let ProbeAnswer::Refused(refusal) = &probed.probe.answer
        && refusal.lasting
        && look.now.since_s(probed.at) < profile.probe_every_s.saturating_mul(PROBE_INTERVALS)
    {
        return Some(Held::ShapeRefused(refusal.clone()));
    }
    let waiting = look
        .state
        .live(look.name)
        .filter(|intent| !intent.is_running());
    let pending = u32::try_from(waiting.count()).unwrap_or(u32::MAX);
    let max = profile.max_pending;
    (pending >= max).then_some(Held::Pending { pending, max })
}

fn held_by_budget(
    look: &Look<'_>,
    replica: Option<&ReplicaName>,
    shape: &Shape,
    begin: Begin,
) -> Option<Held> {
    let needed = shape.cost();
    if let Some(free) = look.state.free(look.name)
        && free < needed
    {
        return Some(Held::Budget { needed, free });
    }
    let from = match begin {
        Begin::Now => look.now,
        Begin::At(begin) => begin.max(look.now),
        // Its link may run until its walltime is over.
        Begin::Singleton => {
            let live = replica.map(|replica| look.state.live_of(look.name, replica));
            let ends = live.into_iter().flatten().filter_map(Intent::walltime_end);
            ends.fold(look.now, UnixS::max)
        }
    };
    let at = look.site.budget_said().ends_at?;
    (from.after_s(shape.walltime_s) > at).then_some(Held::AllocationEnds { at })
}

/// The replica of a slot: `r1`, `r2`, …
pub(crate) fn slot_name(number: u32) -> Option<ReplicaName> {
    format!("r{number}").parse().ok()
}

pub(crate) fn slot_number(replica: &ReplicaName) -> Option<u32> {
    replica.as_str().strip_prefix('r')?.parse().ok()
}

/// A shape by name, or the preferred one.
pub(crate) fn shape_of<'a>(
    profile: &'a SiteProfile,
    name: Option<&ShapeName>,
) -> Option<&'a Shape> {
    profile.shape(name.unwrap_or(&profile.preferred))
}
