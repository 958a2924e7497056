//! What came of a job, and what follows.

use crate::event::Event;
use crate::outcome::{COME_BACK_LATER, Outcome, PauseWhy, Then};
use crate::phase::Phase;
use crate::policy::Look;
use crate::state::{Intent, Tail};
use crate::{JobReport, Refusal, RefusalKind, Retry};

/// A job that lost its nodes is back in the queue within this time, if it is requeued at all.
const REQUEUE_GRACE_S: u64 = 120;
/// A full queue is asked again at least so often: a place lost to others is lost for hours.
const FULL_WAIT_MAX_S: u64 = 900;
/// Which of more nodes failed is not said, so none is left out.
const NODES_BLAMED_MAX: usize = 2;

/// The outcome of a job that is over.
pub(crate) fn outcome_of(intent: &Intent) -> Option<Outcome> {
    let job = intent.job.as_ref()?;
    if job.gone {
        return Some(match intent.is_leaving() {
            true => Outcome::CancelledAsOrdered,
            false => Outcome::Lost,
        });
    }
    let report = job.report.as_ref()?;
    if Phase::of(report) != Phase::Ended {
        return None;
    }
    let ran_s = match (report.started, report.ended) {
        (Some(started), Some(ended)) => ended.since_s(started),
        _ => 0,
    };
    Some(match report.state.as_str() {
        "COMPLETED" => Outcome::Completed { ran_s },
        "TIMEOUT" => Outcome::TimedOut,
        "CANCELLED" if intent.is_leaving() => Outcome::CancelledAsOrdered,
        "CANCELLED" => Outcome::Cancelled {
            by: report.cancelled_by,
        },
        "OUT_OF_MEMORY" => Outcome::OutOfMemory,
        "DEADLINE" => Outcome::Deadline,
        "REVOKED" => Outcome::Lost,
        _ if report.exit_code == Some(COME_BACK_LATER) => Outcome::ComeBackLater,
        _ => Outcome::Failed {
            ran_s,
            exit_code: report.exit_code,
            signal: report.signal,
        },
    })
}

/// A job that lost its nodes and did not come back.
pub(crate) fn judge_interrupted(look: &Look<'_>) -> Option<Event> {
    look.state.live(look.name).find_map(|intent| {
        let job = intent.job.as_ref()?;
        let report = job.report.as_ref()?;
        // While nobody there calls, nobody would say that it is back.
        let over = Phase::of(report) == Phase::Interrupted
            && look.now.since_s(job.heard) >= REQUEUE_GRACE_S
            && look.attended
            && look.heard_s >= REQUEUE_GRACE_S;
        let outcome = match report.state.as_str() {
            _ if intent.is_leaving() => Outcome::CancelledAsOrdered,
            "PREEMPTED" => Outcome::Preempted,
            _ => Outcome::NodeFailed {
                nodes: report.nodes.clone(),
            },
        };
        over.then(|| judged(look, intent, outcome))
    })
}

/// The judgement of an outcome.
pub(crate) fn judged(look: &Look<'_>, intent: &Intent, outcome: Outcome) -> Event {
    let then = then(look, intent, &outcome);
    Event::Judged {
        intent: intent.intention.intent,
        outcome,
        then,
    }
}

fn then(look: &Look<'_>, intent: &Intent, outcome: &Outcome) -> Then {
    let retry = look
        .site
        .profile
        .as_ref()
        .map_or_else(Retry::default, |p| p.retry);
    let failures = look.site.slots.get(&intent.intention.replica);
    let failures = failures.map_or(0, |slot| slot.failures);
    let again = failures.saturating_add(1);
    let wait = |failures: u32| Then::Wait {
        until: look.now.after_s(backoff_s(&retry, failures)),
        failures,
    };
    // A job that starts then is sent away, and has done nothing wrong.
    let sent_away =
        look.run.ended || look.run.paused.is_some() || look.run.drained.contains_key(look.name);
    if sent_away && is_about_the_job(outcome) {
        return Then::Next;
    }
    let quick = outcome.is_quick_failure(retry.quick_run_s);
    let quick_failures = look.site.quick_failures.saturating_add(1);
    match outcome {
        Outcome::NotSubmitted(refusal) if refusal.kind == RefusalKind::JobLimit => Then::Wait {
            until: look.now.after_s(full_s(look, intent, &retry)),
            failures,
        },
        Outcome::NotSubmitted(refusal) => after_refusal(refusal, wait(again)),
        Outcome::Withdrawn | Outcome::CancelledAsOrdered => Then::Next,
        Outcome::TimedOut | Outcome::Preempted => Then::Next,
        _ if quick == Some(true) && quick_failures >= retry.quick_failures_max => {
            Then::Pause(PauseWhy::QuickFailures(quick_failures))
        }
        Outcome::Completed { .. } if quick == Some(false) => Then::Next,
        Outcome::OutOfMemory => Then::Pause(PauseWhy::OutOfMemory),
        Outcome::Completed { .. }
        | Outcome::ComeBackLater
        | Outcome::Cancelled { .. }
        | Outcome::Failed { .. }
        | Outcome::NodeFailed { .. }
        | Outcome::Deadline
        | Outcome::Lost => wait(again),
    }
}

/// Whether an outcome is the job's own doing, not the batch system's.
const fn is_about_the_job(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Completed { .. } | Outcome::Failed { .. } | Outcome::ComeBackLater
    )
}

/// How long to wait for a place in a queue that takes no more of our jobs. It will be free when another job
/// ends: nothing is wrong here, so this counts no failure, and never waits long.
fn full_s(look: &Look<'_>, intent: &Intent, retry: &Retry) -> u64 {
    let replica = &intent.intention.replica;
    let before = look.state.intents.values().rev().filter(|before| {
        before.intention.replica == *replica
            && before.intention.site == *look.name
            && before.intention.intent != intent.intention.intent
    });
    let full = |before: &&Intent| {
        let outcome = before.outcome.as_ref().map(|(_, outcome)| outcome);
        matches!(outcome, Some(Outcome::NotSubmitted(refusal)) if refusal.kind == RefusalKind::JobLimit)
    };
    let refused = before.take_while(full).count();
    let refused = u32::try_from(refused).unwrap_or(u32::MAX).saturating_add(1);
    let longest = retry.backoff_first_s.max(FULL_WAIT_MAX_S);
    backoff_s(retry, refused).min(longest)
}

fn after_refusal(refusal: &Refusal, wait: Then) -> Then {
    match &refusal.kind {
        RefusalKind::Withdrawn => Then::Next,
        RefusalKind::AllocationExhausted => {
            Then::Pause(PauseWhy::AllocationExhausted(refusal.text.clone()))
        }
        _ if refusal.lasting => Then::Pause(PauseWhy::Refused(refusal.clone())),
        _ => wait,
    }
}

/// Doubled with each failure, from the first.
fn backoff_s(retry: &Retry, failures: u32) -> u64 {
    let doublings = failures.saturating_sub(1).min(30);
    let wait = retry.backoff_first_s.saturating_mul(1 << doublings);
    wait.min(retry.backoff_longest_s)
}

/// What follows from a judgement beside it: nodes to leave out, last lines to ask for.
pub(crate) fn follow_up(look: &Look<'_>, intent: &Intent, outcome: &Outcome) -> Vec<Event> {
    let mut events = Vec::new();
    if let Outcome::NodeFailed { nodes } = outcome
        && nodes.len() <= NODES_BLAMED_MAX
    {
        let retry = look
            .site
            .profile
            .as_ref()
            .map_or_else(Retry::default, |p| p.retry);
        let until = look.now.after_s(retry.exclude_node_s);
        events.extend(nodes.iter().map(|node| Event::Excluded {
            site: look.name.clone(),
            node: node.clone(),
            until,
        }));
    }
    let of_interest = matches!(
        outcome,
        Outcome::Failed { .. } | Outcome::OutOfMemory | Outcome::NodeFailed { .. }
    ) || matches!(outcome, Outcome::Completed { ran_s } if *ran_s < 60);
    if of_interest && intent.job.is_some() && intent.tail == Tail::No {
        let intent = intent.intention.intent;
        events.push(Event::TailOrdered { intent });
    }
    events
}

/// The start of a job against what the last probe before its submission had promised.
pub(crate) fn join(look: &Look<'_>, intent: &Intent, report: &JobReport) -> Option<Event> {
    let job = intent.job.as_ref()?;
    if job.joined || Phase::of(report) == Phase::Pending {
        return None;
    }
    let started = report.started?;
    let submitted = report.submitted.unwrap_or(job.submitted);
    let probed = look.site.probe_at(&intent.intention.shape, submitted)?;
    let crate::ProbeAnswer::Starts(predicted) = probed.probe.answer else {
        return None;
    };
    Some(Event::Joined(crate::event::Joined {
        intent: intent.intention.intent,
        probed: probed.at,
        predicted,
        submitted,
        started,
        usage_permille: probed.usage_permille,
        deferred: intent.intention.begin != crate::Begin::Now || report.restarts > 0,
    }))
}
