//! Contributions that the gate refuses: who repeats them sits rounds out, and a run in which they
//! spread is paused, so that nothing is trained in vain for ever.

use super::{Answer, Machine};
use crate::{
    Event, FreedCause, LeaseAnswer, Norm, Pause, Problem, Refusal, RefusedBecause, Reply, Setback,
    Verdict, Wait,
};
use hansa_base::{ContributionNo, MonoMs, ReplicaKey, Steps, Windows};

/// A refusal for norm is forgotten after so many rounds without another.
const REMEMBERED_ROUNDS: u64 = 8;

impl Machine {
    /// What the gate says of a contribution's bytes, with the bound on norms.
    pub(super) fn gate(
        &self,
        steps: Steps,
        found: &Result<Norm, Problem>,
    ) -> Option<RefusedBecause> {
        let norm = match found {
            Ok(norm) => *norm,
            Err(problem) => return Some(problem.because()),
        };
        let bound = self.state.norms.bound(self.state.rounds.len(), steps)?;
        (norm > bound).then_some(RefusedBecause::Norm { norm, bound })
    }

    /// The gate refuses an announced contribution.
    pub(super) fn refuse(
        &mut self,
        now: MonoMs,
        no: ContributionNo,
        key: ReplicaKey,
        windows: Windows,
        because: RefusedBecause,
    ) -> Answer {
        // No effect: the shell keeps the bytes, to be looked at.
        self.emit(Event::Refused { no, because })?;
        if because == RefusedBecause::NotFinite {
            self.lose_lease(key, FreedCause::NotFinite, windows)?;
        }
        self.set_back(now, key)?;
        Ok(Reply::Verdict(Verdict::Refused(because)))
    }

    /// The same was trained again after it had been refused, and is refused again.
    pub(super) fn refuse_again(
        &mut self,
        now: MonoMs,
        key: ReplicaKey,
        verdict: &Verdict,
    ) -> Result<(), Refusal> {
        if !matches!(verdict, Verdict::Refused(_)) || !self.clocks.retried.remove(&key) {
            return Ok(());
        }
        self.emit(Event::RefusedAgain { key })?;
        self.set_back(now, key)
    }

    /// Who is refused again and again leaves its positions to others, and the round.
    fn set_back(&mut self, now: MonoMs, key: ReplicaKey) -> Result<(), Refusal> {
        let setback = self.replica(key)?.setback.unwrap_or_default();
        if setback.until > self.state.round.base {
            // With what a predecessor announced under it, if this is the answer to another.
            self.free_lease(key, FreedCause::Refused)?;
        }
        self.close_if_due(now)?;
        self.pause_if_refused()
    }

    /// Why a replica gets no work in this round, if it sits it out.
    pub(super) fn sits_out(&self, key: ReplicaKey) -> Result<Option<LeaseAnswer>, Refusal> {
        let setback = self.replica(key)?.setback.unwrap_or_default();
        let until = setback.until;
        let out = until > self.state.round.base && self.state.ending.is_none();
        let refusals = setback.repeats();
        Ok(out.then_some(LeaseAnswer::Wait(Wait::SetBack { refusals, until })))
    }

    /// Pauses the run if norms alone refused two replicas, or if everybody who lives is refused again
    /// and again: the bound is wrong, or training is.
    pub(super) fn pause_if_refused(&mut self) -> Result<(), Refusal> {
        let orders = &self.state.orders;
        let held = orders.paused.is_some() || orders.stopping.is_some();
        if held || self.state.ending.is_some() {
            return Ok(());
        }
        let base = self.state.round.base;
        let replicas = self.state.replicas.iter();
        let replicas = replicas.filter(|replica| replica.evicted.is_none());
        let setbacks = replicas.filter_map(|replica| Some((replica, replica.setback?)));
        let recent = |setback: &Setback| setback.last.0 + REMEMBERED_ROUNDS >= base.0;
        let by_norm: Vec<_> = setbacks
            .filter(|(_, setback)| setback.norm > 0 && recent(setback))
            .map(|(replica, _)| replica.id.clone())
            .collect();
        let lasting = |setback: Option<Setback>| setback.is_some_and(|s| s.is_lasting());
        let live: Vec<_> = self.state.live().map(|(_, replica)| replica).collect();
        let everybody = !live.is_empty() && live.iter().all(|replica| lasting(replica.setback));
        let living = live.iter().map(|replica| replica.id.clone()).collect();
        if by_norm.len() < 2 && !everybody {
            return Ok(());
        }
        if !by_norm.is_empty() {
            return self.emit(Event::Paused(Pause::Norms(by_norm)));
        }
        self.emit(Event::Paused(Pause::Refusals(living)))
    }
}
