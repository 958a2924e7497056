//! Time: leases and sessions that run out, rounds that close.

use super::clocks::Clocks;
use super::{Answer, Effect, Machine};
use crate::{
    CloseReason, CloseRecord, ClosedContribution, Event, ExcusedBecause, FreedCause, LeftReason,
    OuterStep, Refusal, RefusedBecause, Reply, RoundPhase, Stage,
};
use hansa_base::{ContributionNo, LeaseId, MonoMs, ReplicaKey};
use std::collections::BTreeSet;

impl Machine {
    pub(super) fn tick(&mut self, now: MonoMs) -> Answer {
        let stalled = self.clocks.stalled(&self.spec, now);
        if self.state.orders.paused.is_some() {
            return Ok(Reply::Done);
        }
        if stalled {
            let evaluation = self.clocks.evaluation;
            self.clocks = Clocks::fresh(&self.spec, &self.state, now);
            self.clocks.evaluation = self.clocks.evaluation.or(evaluation);
            return Ok(Reply::Done);
        }
        let many = self.many_end_at_once(now);
        self.expire_sessions(now, many)?;
        self.expire_work(now, many)?;
        self.expire_uploads(now)?;
        self.end_epoch_if_done(now)?;
        self.expire_evaluation(now)?;
        self.close_if_due(now)?;
        self.end_if_stopped(now)?;
        self.pause_if_refused()?;
        Ok(Reply::Done)
    }

    /// True if half of all leases or more end now, and more than one: that is nobody's data. Replicas
    /// that an outage cut off at one moment were last heard of within a heartbeat's interval, so
    /// their deadlines are so far apart.
    fn many_end_at_once(&mut self, now: MonoMs) -> bool {
        let interval = self.spec.timing.heartbeat_every();
        let nobody = self.clocks.work.over(now).next().is_none()
            && self.clocks.sessions.over(now).next().is_none();
        if nobody || now < self.clocks.many_until {
            return !nobody;
        }
        let many = self.many_end_by(now.after(interval));
        if many {
            self.clocks.many_until = now.after(interval);
        }
        many
    }

    fn many_end_by(&self, end: MonoMs) -> bool {
        let gone = self.clocks.sessions.over(end);
        let of_the_gone = gone.filter_map(|key| self.state.replica(key)?.lease);
        let stuck = self.clocks.work.over(end);
        let stuck = stuck.filter_map(|key| self.state.replica(key)?.lease);
        let ending: BTreeSet<LeaseId> = stuck.chain(of_the_gone).collect();
        ending.len() > 1 && ending.len() * 2 >= self.state.leases.len()
    }

    fn expire_sessions(&mut self, now: MonoMs, many: bool) -> Result<(), Refusal> {
        let over: Vec<ReplicaKey> = self.clocks.sessions.over(now).collect();
        let cause = if many {
            FreedCause::ManyAtOnce
        } else {
            FreedCause::SessionExpired
        };
        over.into_iter()
            .try_for_each(|key| self.leave(key, LeftReason::SessionExpired, cause))
    }

    /// Who shows no progress loses its lease, and leaves the round even if it has none.
    fn expire_work(&mut self, now: MonoMs, many: bool) -> Result<(), Refusal> {
        let over: Vec<ReplicaKey> = self.clocks.work.over(now).collect();
        for key in over {
            self.clocks.work.remove(key);
            let cause = if many {
                FreedCause::ManyAtOnce
            } else {
                FreedCause::LeaseExpired
            };
            self.free_lease(key, cause)?;
            if self.state.awaited().any(|(awaited, _)| awaited == key) {
                let because = ExcusedBecause::NoProgress;
                self.emit(Event::Excused { key, because })?;
            }
        }
        Ok(())
    }

    /// Closes the round if its rule holds: at least one staged contribution, and at least
    /// `min(min_quorum, members)`; then when nobody is awaited, or when the grace window is over and
    /// no accepted upload is under way.
    pub(super) fn close_if_due(&mut self, now: MonoMs) -> Result<(), Refusal> {
        let round = &self.state.round;
        let staged = round.staged.len();
        let held = self.state.orders.paused.is_some() || self.state.ending.is_some();
        if staged == 0 || round.phase != RoundPhase::Open || held {
            return Ok(());
        }
        let awaited = self.state.awaited_count();
        let members = staged + awaited;
        if staged < members.min(self.spec.min_quorum as usize) {
            return Ok(());
        }
        let uploading = self.state.is_uploading();
        let grace_over = self.clocks.grace.is_some_and(|end| end <= now) && !uploading;
        let reason = if awaited == 0 {
            CloseReason::AllContributed {
                members: members as u32,
            }
        } else if grace_over {
            CloseReason::GraceOver {
                staged: staged as u32,
                members: members as u32,
            }
        } else {
            return Ok(());
        };
        self.close(reason)
    }

    fn close(&mut self, reason: CloseReason) -> Result<(), Refusal> {
        let late = self
            .state
            .contributions
            .iter()
            .filter(|(_, c)| c.stage == Stage::Announced);
        let late: Vec<_> = late.map(|(no, c)| (*no, c.id)).collect();
        for (no, id) in late {
            self.emit(Event::Refused {
                no,
                because: RefusedBecause::Late,
            })?;
            self.effects.push(Effect::DropUpload(id));
        }
        let staged = self.state.round.staged.clone();
        let contributions: Vec<_> = staged
            .into_iter()
            .filter_map(|no| self.closed_contribution(no))
            .collect();
        let step = OuterStep::resolve(&self.spec.outer, contributions.len());
        let base = self.state.round.base;
        let record = CloseRecord {
            base,
            contributions,
            step,
            reason,
        };
        self.emit(Event::Closed(record.clone()))?;
        self.clocks.grace = None;
        self.effects.push(Effect::Merge(record));
        Ok(())
    }

    fn closed_contribution(&self, no: ContributionNo) -> Option<ClosedContribution> {
        let contribution = self.state.contributions.get(&no)?;
        let parts = &contribution.parts;
        Some(ClosedContribution {
            no,
            key: contribution.key,
            id: contribution.id,
            payload: parts.payload,
            tokens: parts.tokens,
            steps: parts.steps,
        })
    }
}
