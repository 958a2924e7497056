//! Deadlines. They live only here, on the coordinator's monotonic clock, and start afresh after a
//! restart or a stall: nobody loses a lease because the coordinator was away.

use super::deadlines::Deadlines;
use super::upload::{Upload, uploads};
use crate::{GraceRule, PhaseTimes, Progress, RoundPhase, RoundSummary, RunSpec, State};
use hansa_base::{ContributionNo, MonoMs, ReplicaKey};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub(super) struct Clocks {
    /// When each lease holder and each member of the open round is given up without progress.
    pub work: Deadlines<ReplicaKey>,
    /// When each live incarnation is given up without a call.
    pub sessions: Deadlines<ReplicaKey>,
    /// When the round closes without those who have not contributed.
    pub grace: Option<MonoMs>,
    /// The grace window, after so many rounds and reports of how they went.
    window: Option<((usize, usize), Duration)>,
    /// When each member of the open round was first told what to train.
    pub started: BTreeMap<ReplicaKey, MonoMs>,
    /// Who was told to train again after a refusal.
    pub retried: BTreeSet<ReplicaKey>,
    /// When the evaluation that is due is taken from whom was asked, or given up at the run's end.
    pub evaluation: Option<MonoMs>,
    /// Announced contributions whose bytes are awaited.
    pub uploads: BTreeMap<ContributionNo, Upload>,
    /// Until then each loss is one of many: they end within a heartbeat's interval of each other.
    pub many_until: MonoMs,
    /// The last tick: a long gap is a stall of the coordinator itself.
    pub ticked: MonoMs,
}

impl Clocks {
    pub fn fresh(spec: &RunSpec, state: &State, now: MonoMs) -> Self {
        let timing = &spec.timing;
        let work = now.after(timing.ttl_max);
        let holders = state.leases.values().map(|lease| lease.key);
        let members = state.awaited().map(|(key, _)| key);
        let session = now.after(timing.session_ttl);
        Self {
            work: Deadlines::all(holders.chain(members), work),
            sessions: Deadlines::all(state.live().map(|(key, _)| key), session),
            grace: waits_for_more(state).then(|| now.after(grace(spec, state))),
            window: None,
            // Whoever has a plan may be training by it.
            started: state.awaited().map(|(key, _)| (key, now)).collect(),
            retried: BTreeSet::new(),
            evaluation: state
                .evaluations
                .due
                .map(|_| now.after(timing.evaluation_budget)),
            uploads: uploads(spec, state, now),
            many_until: MonoMs(0),
            ticked: now,
        }
    }

    pub fn heard(&mut self, spec: &RunSpec, key: ReplicaKey, now: MonoMs) {
        self.sessions.set(key, now.after(spec.timing.session_ttl));
    }

    /// Moves a deadline out, never in.
    pub fn renew(&mut self, key: ReplicaKey, now: MonoMs, ttl: Duration) {
        let last = self.work.get(key).unwrap_or_default();
        self.work.set(key, last.max(now.after(ttl)));
    }

    /// [`grace`], computed again only when more was observed.
    pub fn grace_window(&mut self, spec: &RunSpec, state: &State) -> Duration {
        let seen = state.rounds.iter().rev().take(ROUNDS_SEEN);
        let seen = (
            state.rounds.len(),
            seen.map(|round| round.times.len()).sum(),
        );
        match self.window {
            Some((then, window)) if then == seen => window,
            _ => {
                let window = grace(spec, state);
                self.window = Some((seen, window));
                window
            }
        }
    }

    /// True if so much time has passed since the last tick that the coordinator was away.
    pub fn stalled(&mut self, spec: &RunSpec, now: MonoMs) -> bool {
        let gap = now.since(self.ticked);
        self.ticked = now;
        gap > spec.timing.ttl_min.min(spec.timing.session_ttl) / 2
    }
}

/// `α·(expected time to the next progress report) + β·RTT`, clamped. Progress is reported with each
/// heartbeat, but not more often than a step ends.
pub(super) fn lease_ttl(spec: &RunSpec, progress: Option<&Progress>) -> Duration {
    let timing = &spec.timing;
    let step = progress.and_then(|p| p.step).unwrap_or_default();
    let rtt = progress.and_then(|p| p.rtt).unwrap_or_default();
    let report = step.max(timing.heartbeat_every()).as_secs_f64();
    clamped(
        spec,
        timing.alpha * report + timing.beta * rtt.as_secs_f64(),
    )
}

/// So many seconds, within the shortest and the longest lease.
pub(super) fn clamped(spec: &RunSpec, ttl_s: f64) -> Duration {
    let timing = &spec.timing;
    // A measured time comes from the network: clamp before it becomes a duration.
    let (least, most) = (timing.ttl_min.as_secs_f64(), timing.ttl_max.as_secs_f64());
    Duration::from_secs_f64(ttl_s.clamp(least, most))
}

/// True if the open round has something, and would take more.
fn waits_for_more(state: &State) -> bool {
    state.round.phase == RoundPhase::Open && !state.round.staged.is_empty()
}

/// Rounds that an adaptive grace window looks back on, and observations that it needs.
const ROUNDS_SEEN: usize = 8;
const LAGS_MIN: usize = 4;

/// How long a round stays open after its first staged contribution: `median + 4 · spread` of how far
/// members lagged behind the first one, where the spread is the median distance from the median.
fn grace(spec: &RunSpec, state: &State) -> Duration {
    let fixed = spec.timing.grace;
    let mut lags_ms: Vec<u64> = match spec.timing.grace_rule {
        GraceRule::Fixed => Vec::new(),
        GraceRule::Adaptive => {
            let rounds = state.rounds.iter().rev().take(ROUNDS_SEEN);
            rounds.flat_map(lags_ms).collect()
        }
    };
    if lags_ms.len() < LAGS_MIN {
        return fixed;
    }
    let middle_ms = median(&mut lags_ms);
    let mut off_ms: Vec<u64> = lags_ms.iter().map(|lag| lag.abs_diff(middle_ms)).collect();
    let window_ms = middle_ms.saturating_add(median(&mut off_ms).saturating_mul(4));
    Duration::from_millis(window_ms).clamp(fixed / 4, fixed * 4)
}

/// How much longer than the first each other member needed for phase and exchange.
fn lags_ms(round: &RoundSummary) -> Vec<u64> {
    let merged: BTreeSet<ReplicaKey> = round.merged.iter().map(|merged| merged.0).collect();
    let total = |times: &PhaseTimes| {
        let parts = [times.download_ms, times.train_ms, times.checkpoint_ms];
        parts
            .iter()
            .fold(times.upload_ms, |sum, part| sum.saturating_add(*part))
    };
    let times = round.times.iter().filter(|(key, _)| merged.contains(key));
    let mut totals_ms: Vec<u64> = times.map(|(_, times)| total(times)).collect();
    totals_ms.sort_unstable();
    let first = totals_ms.first().copied().unwrap_or_default();
    totals_ms
        .iter()
        .skip(1)
        .map(|total| total - first)
        .collect()
}

/// The middle of at least one value.
fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
