//! Contributions: announced, uploaded, staged. And the goodbye that ends a replica cleanly.

use super::{Answer, Effect, Machine};
use crate::{
    Announce, ContributionParts, Event, FreedCause, Goodbye, LeftReason, Norm, Problem, Refusal,
    RefusedBecause, Reply, RoundPhase, Span, Stage, Verdict,
};
use hansa_base::{Hash, MonoMs, ReplicaKey, Windows};

impl Machine {
    pub(super) fn announce(&mut self, now: MonoMs, announce: Announce) -> Answer {
        let key = self.authenticate(now, &announce.caller)?;
        let parts = announce.parts;
        let id = parts.id();
        self.revive_for(now, key, &parts)?;
        let fits = self.check_announcement(key, &parts);
        match self.known_verdict(key, id)? {
            Some(verdict) if fits.is_err() || stays(&verdict) => {
                self.watch_upload(now, key);
                self.renew(now, key);
                if fits.is_ok() {
                    self.refuse_again(now, key, &verdict)?;
                }
                return Ok(Reply::Verdict(verdict));
            }
            _ => fits?,
        }
        if let Some((no, earlier)) = self.state.announced_by(key) {
            let earlier = earlier.id;
            self.emit(Event::Refused {
                no,
                because: RefusedBecause::Replaced,
            })?;
            self.effects.push(Effect::DropUpload(earlier));
        }
        let no = self.state.last_contribution.next();
        let incarnation = announce.caller.incarnation;
        self.emit(Event::Announced {
            no,
            key,
            incarnation,
            parts,
        })?;
        self.renew(now, key);
        self.watch_upload(now, key);
        Ok(Reply::Verdict(Verdict::Upload))
    }

    /// What was said of this id before.
    fn known_verdict(&self, key: ReplicaKey, id: Hash) -> Result<Option<Verdict>, Refusal> {
        if let Some((_, open)) = self.state.contribution(id).filter(|(_, c)| c.key == key) {
            let staged = open.stage == Stage::Staged;
            return Ok(Some(if staged {
                Verdict::Staged
            } else {
                Verdict::Upload
            }));
        }
        let decided = &self.replica(key)?.decided;
        Ok(decided
            .as_ref()
            .filter(|(known, _)| *known == id)
            .map(|(_, verdict)| verdict.clone()))
    }

    fn check_announcement(
        &self,
        key: ReplicaKey,
        parts: &ContributionParts,
    ) -> Result<(), Refusal> {
        let (current, base) = (self.state.current, parts.generation);
        if base > current.generation {
            let generation = base;
            return Err(Refusal::NoSuchGeneration { generation });
        }
        if let Some(reason) = self.state.ending {
            return Err(Refusal::RunOver(reason));
        }
        let replica = self.replica(key)?;
        if replica.contributed == Some(self.state.round.base) {
            return Err(Refusal::ContributedAlready {
                replica: replica.id.clone(),
            });
        }
        let open = self.state.round.phase == RoundPhase::Open;
        if base != current.generation || parts.base != current.manifest || !open {
            return Err(Refusal::Stale {
                base,
                current: current.generation,
            });
        }
        let lease = self.state.lease_of(key);
        let head = lease.map(|lease| Span::split(&lease.spans, parts.windows()).0);
        if parts.spans.is_empty() || head.as_ref() != Some(&parts.spans) {
            return Err(Refusal::NotFromFront {
                lease: replica.lease,
            });
        }
        let reserved = lease.map_or(Windows(0), crate::Lease::reserved);
        if parts.windows() > reserved {
            let said = parts.windows();
            return Err(Refusal::BeyondMark { said, reserved });
        }
        let (said, real) = (parts.tokens, self.spec.tokens(parts.windows()));
        if said != real {
            return Err(Refusal::WrongTokens { said, real });
        }
        Ok(())
    }

    pub(super) fn upload_complete(
        &mut self,
        now: MonoMs,
        id: Hash,
        found: &Result<Norm, Problem>,
    ) -> Answer {
        let Some((no, contribution)) = self.state.contribution(id) else {
            return self.verdict_of_the_past(id);
        };
        if contribution.stage == Stage::Staged {
            return Ok(Reply::Verdict(Verdict::Staged));
        }
        let (key, windows) = (contribution.key, contribution.parts.windows());
        if let Some(because) = self.gate(contribution.parts.steps, found) {
            return self.refuse(now, no, key, windows, because);
        }
        let norm = found.as_ref().copied().unwrap_or_default();
        self.emit(Event::Staged { no, norm })?;
        self.renew(now, key);
        if self.state.round.staged.len() == 1 {
            let window = self.grace();
            self.clocks.grace = Some(now.after(self.early_by(now, key, windows)).after(window));
        }
        self.close_if_due(now)?;
        Ok(Reply::Verdict(Verdict::Staged))
    }

    fn verdict_of_the_past(&self, id: Hash) -> Answer {
        let decided = self.state.decided(id);
        let verdict = decided.and_then(|replica| replica.decided.clone());
        let verdict = verdict.map(|(_, verdict)| Reply::Verdict(verdict));
        verdict.ok_or(Refusal::UnknownContribution(id))
    }

    /// Moves the deadline of a replica that showed progress out, if it has anything to lose.
    pub(super) fn renew(&mut self, now: MonoMs, key: ReplicaKey) {
        let works = |replica: &crate::Replica| replica.lease.is_some() || replica.plan.is_some();
        if self.state.replica(key).is_some_and(works) {
            let budget = self.budget(key, self.vitals.get(&key).map(|v| &v.progress));
            self.clocks.renew(key, now, budget);
        }
    }

    pub(super) fn goodbye(&mut self, now: MonoMs, goodbye: &Goodbye) -> Answer {
        let key = self.authenticate(now, &goodbye.caller)?;
        let (reason, cause) = if self.state.ended {
            (LeftReason::RunEnded, FreedCause::RunEnding)
        } else if goodbye.not_finite {
            (LeftReason::Goodbye, FreedCause::NotFinite)
        } else if self.told_to_leave(key)?.is_some() {
            (LeftReason::Drained, FreedCause::Goodbye)
        } else {
            (LeftReason::Goodbye, FreedCause::Goodbye)
        };
        self.leave(key, reason, cause)?;
        self.close_if_due(now)?;
        self.end_if_stopped(now)?;
        Ok(Reply::Done)
    }

    /// Ends an incarnation: what it announced is void, what it leased is free.
    pub(super) fn leave(
        &mut self,
        key: ReplicaKey,
        reason: LeftReason,
        cause: FreedCause,
    ) -> Result<(), Refusal> {
        self.free_lease(key, cause)?;
        let incarnation = self.replica(key)?.incarnation;
        self.emit(Event::Left {
            key,
            incarnation,
            reason,
        })?;
        self.clocks.sessions.remove(key);
        self.vitals.remove(&key);
        self.evaluator_left(key)
    }

    /// Ends a replica's lease; an announced contribution of it is void.
    pub(super) fn free_lease(&mut self, key: ReplicaKey, cause: FreedCause) -> Result<(), Refusal> {
        if let Some((no, contribution)) = self.state.announced_by(key) {
            let id = contribution.id;
            let because = match cause {
                FreedCause::RunEnding => RefusedBecause::RunEnding,
                _ => RefusedBecause::LeaseLost,
            };
            self.emit(Event::Refused { no, because })?;
            self.effects.push(Effect::DropUpload(id));
        }
        // A replica touches nothing beyond its mark and its plan, and nothing between two plans.
        let replica = self.replica(key)?;
        let open = replica.contributed != Some(self.state.round.base);
        let at_risk = replica
            .plan
            .filter(|_| open)
            .map_or(Windows(0), |p| p.windows);
        self.lose_lease(key, cause, at_risk)
    }

    /// Ends a replica's lease, of which so many windows were being trained.
    pub(super) fn lose_lease(
        &mut self,
        key: ReplicaKey,
        cause: FreedCause,
        at_risk: Windows,
    ) -> Result<(), Refusal> {
        let Some(lease) = self.state.lease_of(key) else {
            return Ok(());
        };
        let counts = cause.is_attempt() && !self.state.ended;
        let at_risk = if counts {
            at_risk.min(lease.reserved())
        } else {
            Windows(0)
        };
        let lease = lease.id;
        self.emit(Event::Freed {
            lease,
            cause,
            at_risk,
        })?;
        self.clocks.work.remove(key);
        self.clocks.started.remove(&key);
        self.reported.remove(&lease);
        self.quarantine_poison()
    }
}

/// False for a refusal that was not for the contribution's own sake: the same windows may have been
/// leased and trained again since, to the same bytes and so the same id.
const fn stays(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Refused(because) => {
            matches!(because, RefusedBecause::Gate | RefusedBecause::Norm { .. })
        }
        Verdict::Upload | Verdict::Staged | Verdict::Merged(_) => true,
    }
}
