//! Lease requests: what a replica is to do next.

use super::{Answer, Machine};
use crate::phase::Wanted;
use crate::{
    Event, ExcusedBecause, Grant, LeaseAnswer, LeaseRequest, Refusal, Reply, RoundPhase, Wait,
};
use hansa_base::{LeaseId, MonoMs, ReplicaId, ReplicaKey, Windows};

/// Names in an answer.
const NAMES_MAX: usize = 8;

impl Machine {
    pub(super) fn lease(&mut self, now: MonoMs, request: LeaseRequest) -> Answer {
        let key = self.authenticate(now, &request.caller)?;
        self.note_times(key, &request)?;
        self.renew(now, key);
        let answer = self.next_task(now, key, &request)?;
        Ok(Reply::Lease(answer))
    }

    fn next_task(
        &mut self,
        now: MonoMs,
        key: ReplicaKey,
        request: &LeaseRequest,
    ) -> Result<LeaseAnswer, Refusal> {
        if let (true, Some(reason)) = (self.state.ended, self.state.ending) {
            return Ok(LeaseAnswer::Finish(reason));
        }
        if let Some(answer) = self.ordered(key)? {
            return Ok(answer);
        }
        if request.base != self.state.current.manifest {
            return Ok(LeaseAnswer::Adopt(self.state.current));
        }
        if let Some(generation) = self.ask_to_evaluate(now, key)? {
            return Ok(LeaseAnswer::Evaluate(generation));
        }
        if self.state.ending.is_some() {
            return Ok(LeaseAnswer::Wait(Wait::Ending));
        }
        if self.state.round.phase != RoundPhase::Open {
            return Ok(LeaseAnswer::Wait(Wait::Merging));
        }
        if self.replica(key)?.contributed == Some(self.state.round.base) {
            return Ok(LeaseAnswer::Wait(Wait::Members(self.waits_for())));
        }
        if self.begins_too_late(key)? {
            self.excuse(now, key)?;
            return Ok(LeaseAnswer::Wait(Wait::Ending));
        }
        self.grant_phase(now, key)
    }

    /// Who is waited for, as many as people want to read.
    pub(super) fn waits_for(&self) -> Vec<ReplicaId> {
        let awaited = self.state.awaited();
        let names = awaited.map(|(_, replica)| replica.id.clone());
        names.take(NAMES_MAX).collect()
    }

    fn grant_phase(&mut self, now: MonoMs, key: ReplicaKey) -> Result<LeaseAnswer, Refusal> {
        let ranks = self.replica(key)?.ranks;
        let wanted = match self.wanted(now, key)? {
            Ok(wanted) => wanted,
            Err(wait) => return Ok(LeaseAnswer::Wait(wait)),
        };
        self.top_up(now, key, wanted)?;
        if self
            .state
            .lease_of(key)
            .is_none_or(|lease| lease.spans.is_empty())
        {
            self.steal(now, key, wanted)?;
        }
        let Some(lease) = self.state.lease_of(key).filter(|l| !l.spans.is_empty()) else {
            return self.excuse(now, key);
        };
        let front = lease.front;
        let windows = Windows(wanted.windows.0.min(lease.left().0));
        let base = self.state.round.base;
        let plan = self.spec.plan(base, ranks, wanted.accumulation, windows);
        if self.replica(key)?.plan != Some(plan) {
            self.emit(Event::Planned { key, plan })?;
        }
        self.raise_mark(key, front)?;
        self.clocks.started.entry(key).or_insert(now);
        if self.replica(key)?.setback.is_some() {
            self.clocks.retried.insert(key);
        }
        let Some(lease) = self.state.lease_of(key).map(crate::Lease::view) else {
            return self.excuse(now, key);
        };
        Ok(LeaseAnswer::Train(Grant {
            lease,
            plan,
            base: self.state.current,
        }))
    }

    /// Tops the lease up to what is wanted: in whole blocks, unless that is a share of what is left
    /// of the epoch.
    fn top_up(&mut self, now: MonoMs, key: ReplicaKey, wanted: Wanted) -> Result<(), Refusal> {
        let held = self
            .state
            .lease_of(key)
            .map_or(Windows(0), crate::Lease::left);
        if self.holds_suspects(key) {
            return Ok(());
        }
        let missing = wanted.windows.0.saturating_sub(held.0);
        let block = if wanted.last {
            1
        } else {
            self.spec.digest.block.0
        };
        let missing = missing.div_ceil(block).saturating_mul(block);
        let spans = self.choose(held, Windows(missing));
        if spans.is_empty() {
            return Ok(());
        }
        let replica = self.replica(key)?;
        let incarnation = replica.incarnation;
        let lease: LeaseId = replica
            .lease
            .unwrap_or_else(|| self.state.last_lease.next());
        self.emit(Event::Granted {
            lease,
            key,
            incarnation,
            spans,
        })?;
        self.renew(now, key);
        Ok(())
    }

    fn excuse(&mut self, now: MonoMs, key: ReplicaKey) -> Result<LeaseAnswer, Refusal> {
        if self.replica(key)?.plan.is_some() {
            let because = ExcusedBecause::NothingFree;
            self.emit(Event::Excused { key, because })?;
            self.close_if_due(now)?;
        }
        Ok(LeaseAnswer::Wait(Wait::NothingFree))
    }

    fn note_times(&mut self, key: ReplicaKey, request: &LeaseRequest) -> Result<(), Refusal> {
        let Some((generation, times)) = request.times else {
            return Ok(());
        };
        let round = self.state.rounds.get(generation.0 as usize);
        // Sent once; a repeated request must not count it twice.
        if round.is_some_and(|round| !round.times.contains_key(&key)) {
            self.emit(Event::Timed {
                key,
                generation,
                times,
            })?;
        }
        Ok(())
    }
}
