//! A merge is durable: the next generation is published and its positions are committed, in one
//! record.

use super::{Answer, Effect, Machine};
use crate::{End, EndReason, Event, FreedCause, Merged, Refusal, Reply};
use hansa_base::{MonoMs, ReplicaKey, Windows};

impl Machine {
    pub(super) fn merged(&mut self, now: MonoMs, merged: Merged) -> Answer {
        if merged.generation == self.state.current.generation {
            return Ok(Reply::Done);
        }
        let members: Vec<ReplicaKey> = self.members();
        let payloads: Vec<_> = self.state.contributions.values().map(|c| c.id).collect();
        let Merged {
            generation,
            manifest,
            merge_ms,
        } = merged;
        self.emit(Event::Published {
            generation,
            manifest,
            merge_ms,
        })?;
        self.effects
            .extend(payloads.into_iter().map(Effect::DropUpload));
        self.clocks.evaluation = None;
        self.clocks.started.clear();
        self.clocks.grace = None;
        self.end_epoch(now)?;
        if self.state.ending.is_none() {
            self.carry_members_over(now, &members)?;
        }
        Ok(Reply::Done)
    }

    /// Ends the run if that is reached, or the epoch.
    pub(super) fn end_epoch(&mut self, now: MonoMs) -> Result<(), Refusal> {
        match self.end_reached() {
            Some(reason) => self.start_ending(now, reason),
            None => self.turn_epoch(),
        }
    }

    /// Who took part, but for those who are to leave.
    fn members(&self) -> Vec<ReplicaKey> {
        let drained = &self.state.orders.drained;
        let stays = |key: &ReplicaKey| {
            let site = self.state.replica(*key).map(|replica| &replica.id.site);
            site.is_some_and(|site| !drained.contains_key(site))
        };
        let members = self.state.members().map(|member| member.key);
        members.filter(stays).collect()
    }

    /// Who took part goes on: the next round waits for it while it downloads.
    fn carry_members_over(&mut self, now: MonoMs, members: &[ReplicaKey]) -> Result<(), Refusal> {
        for (key, plan) in self.next_plans(members) {
            self.emit(Event::Planned { key, plan })?;
            self.renew(now, key);
        }
        Ok(())
    }

    pub(super) fn epoch_is_done(&self) -> bool {
        let counts = self.state.ledger.counts();
        counts.free + counts.leased + counts.staged == Windows(0)
    }

    fn end_reached(&self) -> Option<EndReason> {
        if self.state.orders.stopping.is_some() {
            return Some(EndReason::Stopped);
        }
        let current = &self.state.current;
        let done = |reached: bool, reason| reached.then_some(reason);
        match self.spec.end {
            End::Rounds(rounds) => done(current.generation.0 >= rounds, EndReason::Rounds),
            End::Tokens(target) => done(current.tokens >= target, EndReason::Tokens),
            End::Epochs(epochs) => {
                let last = self.state.epoch.0 + 1 >= epochs;
                done(last && self.epoch_is_done(), EndReason::Epochs)
            }
        }
    }

    fn turn_epoch(&mut self) -> Result<(), Refusal> {
        if self.epoch_is_done() {
            self.reported.clear();
            let epoch = self.state.epoch.next();
            self.emit(Event::EpochStarted { epoch })?;
        }
        Ok(())
    }

    pub(super) fn start_ending(&mut self, now: MonoMs, reason: EndReason) -> Result<(), Refusal> {
        self.emit(Event::Ending(reason))?;
        let holders: Vec<ReplicaKey> = self.state.leases.values().map(|lease| lease.key).collect();
        holders
            .into_iter()
            .try_for_each(|key| self.free_lease(key, FreedCause::RunEnding))?;
        if self.state.evaluations.due.is_some() {
            self.clocks.evaluation = Some(now.after(self.spec.timing.evaluation_budget));
            return Ok(());
        }
        self.emit(Event::Ended)
    }
}
