//! How much a replica is to train in the open round: by the phase plan, and, for one that joins while
//! others train, by what still fits before the round closes.

use super::Machine;
use super::clocks::grace;
use crate::phase::{Member, PhasePlan, Wanted};
use crate::{Plan, Refusal, Replica, Stage, Wait};
use hansa_base::{MonoMs, ReplicaKey, Windows};
use std::time::Duration;

impl Machine {
    /// What a replica that asks is to train; or why it is not to train in this round.
    pub(super) fn wanted(
        &self,
        now: MonoMs,
        key: ReplicaKey,
    ) -> Result<Result<Wanted, Wait>, Refusal> {
        let phase_plan = self.phase_plan(Some(key));
        let wanted = phase_plan.wanted(key);
        let plan = self.replica(key)?.plan;
        let Some(plan) = plan.filter(|plan| plan.generation == self.state.round.base) else {
            return Ok(self.joining(now, key, &phase_plan, wanted));
        };
        if !self.clocks.started.contains_key(&key) {
            return Ok(Ok(wanted));
        }
        // What was handed out holds: the answer may have been lost, or a successor asks.
        Ok(Ok(Wanted {
            accumulation: plan.accumulation,
            windows: plan.windows,
            ..wanted
        }))
    }

    /// As many steps as fit before the predicted close, the joiner's own exchange included.
    fn joining(
        &self,
        now: MonoMs,
        key: ReplicaKey,
        phase_plan: &PhasePlan<'_>,
        wanted: Wanted,
    ) -> Result<Wanted, Wait> {
        let others = self.phase_plan_of(phase_plan.keys().filter(|other| *other != key));
        let (Some(closes_in_s), Some(round_s)) =
            (self.closes_in_s(now, key, &others), others.round_s())
        else {
            return Ok(wanted);
        };
        let exchange_s = phase_plan.exchange_s(key);
        let longest_s = round_s + grace(&self.spec, &self.state).as_secs_f64();
        if exchange_s > longest_s {
            let (exchange, round) = (rounded(exchange_s), rounded(longest_s));
            return Err(Wait::ExchangeTooLong { exchange, round });
        }
        let windows = phase_plan.fitting(key, wanted, closes_in_s - exchange_s);
        if windows.0 == 0 {
            return Err(Wait::NextRound);
        }
        Ok(Wanted { windows, ..wanted })
    }

    /// When the round will close without one that joins now; `None` if that cannot be said, or if
    /// nobody else has begun to train.
    fn closes_in_s(&self, now: MonoMs, joins: ReplicaKey, others: &PhasePlan<'_>) -> Option<f64> {
        let awaited = || self.state.awaited().filter(|(key, _)| *key != joins);
        let started = |key: &ReplicaKey| self.clocks.started.get(key);
        awaited().find(|(key, _)| started(key).is_some())?;
        let mut longest_s: f64 = 0.0;
        for (key, replica) in awaited() {
            let takes_s = others.takes_s(key, replica.plan?.windows)?;
            let since_s = started(&key).map_or(0.0, |at| now.since(*at).as_secs_f64());
            longest_s = longest_s.max(takes_s - since_s);
        }
        let announced = |c: &crate::Contribution| c.stage == Stage::Announced;
        let uploading = self.state.contributions.values().any(announced);
        let grace = self.clocks.grace.filter(|_| !uploading);
        let grace_s = grace.map_or(f64::INFINITY, |end| end.since(now).as_secs_f64());
        Some(longest_s.min(grace_s))
    }

    /// The phase plan of the open round's members, and of one more who asks.
    fn phase_plan(&self, asks: Option<ReplicaKey>) -> PhasePlan<'_> {
        let base = self.state.round.base;
        let takes_part = |key: ReplicaKey, replica: &Replica| {
            replica.plan.is_some_and(|plan| plan.generation == base)
                || replica.contributed == Some(base)
                || asks == Some(key)
        };
        let members = self.state.live();
        let members = members.filter(|(key, replica)| takes_part(*key, replica));
        self.phase_plan_of(members.map(|(key, _)| key))
    }

    fn phase_plan_of(&self, members: impl Iterator<Item = ReplicaKey>) -> PhasePlan<'_> {
        let counts = self.state.ledger.counts();
        let member = |key: ReplicaKey| {
            let replica = self.state.replica(key)?;
            Some(Member {
                key,
                ranks: replica.ranks,
                pace: replica.pace,
            })
        };
        PhasePlan {
            spec: &self.spec,
            members: members.filter_map(member).collect(),
            left: counts.free + counts.leased + counts.staged,
        }
    }

    /// Plans for members that go on to the next round; those that can get no windows have none.
    pub(super) fn next_plans(&self, members: &[ReplicaKey]) -> Vec<(ReplicaKey, Plan)> {
        let phase_plan = self.phase_plan_of(members.iter().copied());
        let free = self.state.ledger.counts().free;
        let plan = |key: &ReplicaKey| {
            let held = self.state.lease_of(*key);
            let reachable = held.map_or(Windows(0), crate::Lease::left) + free;
            let wanted = phase_plan.wanted(*key);
            let windows = wanted.windows.min(reachable);
            let (base, ranks) = (self.state.round.base, self.state.replica(*key)?.ranks);
            let plan = self.spec.plan(base, ranks, wanted.accumulation, windows);
            (windows.0 > 0).then_some((*key, plan))
        };
        members.iter().filter_map(plan).collect()
    }
}

/// To whole seconds, so that the reason does not change with every question.
fn rounded(seconds: f64) -> Duration {
    Duration::from_secs(seconds.ceil().clamp(0.0, 1e9) as u64)
}
