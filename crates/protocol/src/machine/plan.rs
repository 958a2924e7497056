//! How much a replica is to train in the open round: by the phase plan, and, for one that joins while
//! others train, by what still fits before the round closes.

use super::Machine;
use crate::phase::{Crowd, Member, PhasePlan, Wanted};
use crate::{Plan, Refusal, Replica, Wait};
use hansa_base::{MonoMs, ReplicaKey, Windows};
use std::time::Duration;

impl Machine {
    /// What a replica that asks is to train; or why it is not to train in this round.
    pub(super) fn wanted(
        &mut self,
        now: MonoMs,
        key: ReplicaKey,
    ) -> Result<Result<Wanted, Wait>, Refusal> {
        let replica = self.replica(key)?;
        let plan = replica.plan;
        let asks = Member {
            key,
            ranks: replica.ranks,
            pace: replica.pace,
        };
        let Some(plan) = plan.filter(|plan| plan.generation == self.state.round.base) else {
            let grace_s = self.grace().as_secs_f64();
            return Ok(self.joining(now, &asks, grace_s));
        };
        let wanted = self.phase_plan(&asks).wanted(&asks);
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
    fn joining(&self, now: MonoMs, joins: &Member, grace_s: f64) -> Result<Wanted, Wait> {
        let phase_plan = self.phase_plan(joins);
        let wanted = phase_plan.wanted(joins);
        let others = self.phase_plan_of(self.state.crowd(), self.state.members().copied());
        let (Some(round_s), Some(closes_in_s)) =
            (others.round_s(), self.closes_in_s(now, joins.key, &others))
        else {
            return Ok(wanted);
        };
        let exchange_s = phase_plan.exchange_s(joins);
        let longest_s = round_s + grace_s;
        if exchange_s > longest_s {
            let (exchange, round) = (rounded(exchange_s), rounded(longest_s));
            return Err(Wait::ExchangeTooLong { exchange, round });
        }
        let windows = phase_plan.fitting(joins, wanted, closes_in_s - exchange_s);
        if windows.0 == 0 {
            return Err(Wait::NextRound);
        }
        Ok(Wanted { windows, ..wanted })
    }

    /// When the round will close without one that joins now; `None` if that cannot be said, or if
    /// nobody else has begun to train. Walks over all members: a replica joins once.
    fn closes_in_s(&self, now: MonoMs, joins: ReplicaKey, others: &PhasePlan<'_>) -> Option<f64> {
        others.period_s()?;
        let awaited = || self.state.awaited().filter(|(key, _)| *key != joins);
        let started = |key: &ReplicaKey| self.clocks.started.get(key);
        awaited().find(|(key, _)| started(key).is_some())?;
        let mut longest_s: f64 = 0.0;
        for (key, replica) in awaited() {
            let (ranks, pace) = (replica.ranks, replica.pace);
            let member = Member { key, ranks, pace };
            let takes_s = others.takes_s(&member, replica.plan?.windows)?;
            let since_s = started(&key).map_or(0.0, |at| now.since(*at).as_secs_f64());
            longest_s = longest_s.max(takes_s - since_s);
        }
        let grace = self.clocks.grace.filter(|_| !self.state.is_uploading());
        let grace_s = grace.map_or(f64::INFINITY, |end| end.since(now).as_secs_f64());
        Some(longest_s.min(grace_s))
    }

    /// How much earlier than with a whole phase a replica is done that contributed so many windows, as
    /// far as others still need that long by their plans. The grace window is for those who are late,
    /// not for those who have more to do. Zero while nobody is measured. Walks over all members, once
    /// a round.
    pub(super) fn early_by(&self, now: MonoMs, key: ReplicaKey, done: Windows) -> Duration {
        let member = |key, replica: &Replica| {
            let (ranks, pace) = (replica.ranks, replica.pace);
            Member { key, ranks, pace }
        };
        let Some(author) = self.state.replica(key).map(|replica| member(key, replica)) else {
            return Duration::ZERO;
        };
        let phase_plan = self.phase_plan(&author);
        let takes_s = |windows| phase_plan.takes_s(&author, windows).unwrap_or(0.0);
        let early_s = takes_s(phase_plan.wanted(&author).windows) - takes_s(done);
        let needs_s = |(key, replica): (ReplicaKey, &Replica)| {
            let takes_s = phase_plan.takes_s(&member(key, replica), replica.plan?.windows)?;
            let started = self.clocks.started.get(&key);
            Some(takes_s - started.map_or(0.0, |at| now.since(*at).as_secs_f64()))
        };
        let others_s = self.state.awaited().filter_map(needs_s).fold(0.0, f64::max);
        Duration::from_secs_f64(early_s.min(others_s).clamp(0.0, 1e9))
    }

    /// The phase plan of the open round's members, and of the one who asks.
    fn phase_plan(&self, asks: &Member) -> PhasePlan<'_> {
        let new = (!self.state.is_member(asks.key)).then_some(*asks);
        let crowd = self.state.crowd();
        let crowd = new.map_or(crowd, |new| crowd.with(&new));
        self.phase_plan_of(crowd, self.state.members().copied().chain(new))
    }

    fn phase_plan_of(
        &self,
        crowd: Crowd,
        members: impl Iterator<Item = Member> + Clone,
    ) -> PhasePlan<'_> {
        let counts = self.state.ledger.counts();
        let left = counts.free + counts.leased + counts.staged;
        PhasePlan::new(&self.spec, crowd, left, members)
    }

    /// Plans for members that go on to the next round; those that can get no windows have none.
    pub(super) fn next_plans(&self, keys: &[ReplicaKey]) -> Vec<(ReplicaKey, Plan)> {
        let member = |key: &ReplicaKey| {
            let replica = self.state.replica(*key)?;
            let (ranks, pace) = (replica.ranks, replica.pace);
            let key = *key;
            Some(Member { key, ranks, pace })
        };
        let members: Vec<Member> = keys.iter().filter_map(member).collect();
        let crowd = Crowd::of(members.iter().copied());
        let phase_plan = self.phase_plan_of(crowd, members.iter().copied());
        let free = self.state.ledger.counts().free;
        let plan = |member: &Member| {
            let held = self.state.lease_of(member.key);
            let reachable = held.map_or(Windows(0), crate::Lease::left) + free;
            let wanted = phase_plan.wanted(member);
            let windows = wanted.windows.min(reachable);
            let base = self.state.round.base;
            let plan = self
                .spec
                .plan(base, member.ranks, wanted.accumulation, windows);
            (windows.0 > 0).then_some((member.key, plan))
        };
        members.iter().filter_map(plan).collect()
    }

    /// How long the round stays open after its first staged contribution.
    pub(super) fn grace(&mut self) -> Duration {
        self.clocks.grace_window(&self.spec, &self.state)
    }
}

/// To whole seconds, so that the reason does not change with every question.
fn rounded(seconds: f64) -> Duration {
    Duration::from_secs(seconds.ceil().clamp(0.0, 1e9) as u64)
}
