//! Events into state: the only way that state changes, live and in replay.
//!
//! `apply` believes nothing: an event that does not fit the state is an error, so that a corrupt or
//! forged journal is found by replaying it. After an error the state is of no further use.

use crate::attempts;
use crate::ledger::WrongState;
use crate::state::{Evaluation, Presence, Replica, RoundSummary, State, Tally};
use crate::{
    CloseRecord, Contribution, ContributionParts, EndReason, Event, LeftReason, Norm, Ownership,
    Pace, PhaseTimes, Plan, RefusedBecause, Round, RoundPhase, RunSpec, Span, Stage, Verdict,
};
use hansa_base::{
    ContributionNo, Generation, Hash, Incarnation, ReplicaKey, Steps, Timeline, Tokens, Windows,
};
use std::collections::BTreeMap;

/// An event that does not fit the state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The ledger has something else.
    #[error(transparent)]
    Ledger(#[from] Box<WrongState>),
    /// The event names something that is not there.
    #[error("the event names {0}, which is not there")]
    Missing(String),
    /// The event comes out of order.
    #[error("the event comes out of order: {0}")]
    Order(String),
}

pub(crate) type Applied = Result<(), ApplyError>;

pub(crate) fn missing(what: impl std::fmt::Display) -> ApplyError {
    ApplyError::Missing(what.to_string())
}

pub(crate) fn in_order(holds: bool, what: &str) -> Applied {
    if holds {
        Ok(())
    } else {
        Err(ApplyError::Order(what.to_owned()))
    }
}

impl State {
    /// Applies one event.
    ///
    /// # Errors
    /// If the event does not fit; the state must then be discarded.
    pub fn apply(&mut self, spec: &RunSpec, event: &Event) -> Applied {
        let touched = self.touched(event);
        self.change(spec, event)?;
        self.note(&touched);
        Ok(())
    }

    fn change(&mut self, spec: &RunSpec, event: &Event) -> Applied {
        match event {
            Event::Registered { .. } => self.registered(event),
            Event::Left {
                key,
                incarnation,
                reason,
            } => self.left(*key, *incarnation, *reason),
            Event::Granted { .. }
            | Event::Stolen(_)
            | Event::Revived { .. }
            | Event::Absolved { .. }
            | Event::Marked { .. }
            | Event::Freed { .. } => self.apply_to_leases(spec, event),
            Event::Quarantined { spans } => self.quarantined(spec, spans),
            Event::LetOut { windows } => self.let_out(spec, windows),
            Event::Planned { key, plan } => self.planned(*key, *plan),
            Event::Excused { key, .. } => self.replica_mut(*key).map(|replica| replica.plan = None),
            Event::Announced {
                no,
                key,
                incarnation,
                parts,
            } => self.announced(*no, *key, *incarnation, parts),
            Event::Refused { no, because } => self.refused(*no, *because),
            Event::Staged { no, norm } => self.staged(*no, *norm),
            Event::RefusedAgain { key } => self.refused_again(*key),
            Event::Closed(record) => self.closed(record),
            Event::Published {
                generation,
                manifest,
                merge_ms,
            } => self.published(spec, *generation, *manifest, *merge_ms),
            Event::Timed {
                key,
                generation,
                times,
            } => self.timed(*key, *generation, *times),
            Event::EvaluationAsked { generation, key } => self.asked(*generation, Some(*key)),
            Event::EvaluationLost { generation } => self.asked(*generation, None),
            Event::Evaluated {
                generation,
                loss_sum_nats,
                tokens,
                ..
            } => self.evaluated((*generation, *loss_sum_nats, *tokens)),
            Event::EpochStarted { epoch } => self.epoch_started(spec, *epoch),
            Event::Restored { timeline } => self.restored(*timeline),
            Event::Paused(_)
            | Event::Resumed { .. }
            | Event::Drained { .. }
            | Event::DrainEnds { .. }
            | Event::Undrained { .. }
            | Event::Evicted { .. }
            | Event::Readmitted { .. }
            | Event::Stopping { .. } => self.ordered(event),
            Event::Ending(reason) => self.ending(spec, *reason),
            Event::Ended => self.end(),
        }
    }

    /// Nobody is at work in a copy that begins its own history.
    fn restored(&mut self, timeline: Timeline) -> Applied {
        let at_work = self.live().next().is_some() || !self.leases.is_empty();
        in_order(!at_work, "somebody is at work in a restored copy")?;
        let raised = self.lineage.restored(timeline);
        in_order(raised, "a restore does not raise the timeline")
    }

    fn ending(&mut self, spec: &RunSpec, reason: EndReason) -> Applied {
        in_order(self.ending.is_none(), "the run ends twice")?;
        self.orders.paused = None;
        self.ending = Some(reason);
        self.evaluate_the_last(spec);
        Ok(())
    }

    fn end(&mut self) -> Applied {
        let asked = self.ending.is_some() && !self.ended;
        in_order(asked, "the run is over unasked")?;
        self.ended = true;
        Ok(())
    }

    fn evaluated(&mut self, result: (Generation, f64, Tokens)) -> Applied {
        self.evaluation_due(result.0)?;
        self.evaluations.due = None;
        self.evaluations.done.push(result);
        Ok(())
    }

    fn left(&mut self, key: ReplicaKey, incarnation: Incarnation, reason: LeftReason) -> Applied {
        let replica = self.incarnation_mut(key, incarnation)?;
        in_order(replica.lease.is_none(), "a lease outlives its holder")?;
        replica.presence = Presence::Left(reason);
        replica.plan = None;
        Ok(())
    }

    fn timed(&mut self, key: ReplicaKey, generation: Generation, times: PhaseTimes) -> Applied {
        let round = self.rounds.get_mut(generation.0 as usize);
        let round = round.ok_or_else(|| missing(format!("round {generation}")))?;
        let before = round.times.insert(key, times);
        in_order(before.is_none(), "a round is timed twice")?;
        let replica = self.replica_mut(key)?;
        replica.pace = Pace::after(replica.pace, &times);
        Ok(())
    }

    fn asked(&mut self, generation: Generation, whom: Option<ReplicaKey>) -> Applied {
        if let Some(key) = whom {
            self.replica_mut(key)?;
        }
        self.evaluation_due(generation)?.asked = whom;
        Ok(())
    }

    fn registered(&mut self, event: &Event) -> Applied {
        let Event::Registered {
            key,
            id,
            incarnation,
            ranks,
            nonce,
            presented,
            token,
            inherited,
        } = event
        else {
            return Ok(());
        };
        in_order(
            *incarnation == self.last_incarnation.next(),
            "an incarnation is left out",
        )?;
        self.last_incarnation = *incarnation;
        if key.0 as usize == self.replicas.len() {
            in_order(self.find(id).is_none(), "a name gets a second key")?;
            self.replicas.push(new_replica(id.clone()));
        }
        let windows = match inherited {
            Some(lease) => self.hand_on(*lease, *key, *incarnation)?,
            None => Windows(0),
        };
        let replica = self.replica_mut(*key)?;
        in_order(replica.id == *id, "a key gets a second name")?;
        in_order(replica.evicted.is_none(), "one who was evicted is let in")?;
        in_order(
            replica.lease == *inherited,
            "a lease is lost by a registration",
        )?;
        replica.incarnation = *incarnation;
        if replica.ranks != *ranks {
            replica.pace = None;
        }
        replica.ranks = *ranks;
        replica.presence = Presence::Live;
        (replica.nonce, replica.presented, replica.token) = (*nonce, *presented, *token);
        replica.tally.incarnations += 1;
        replica.tally.inherited += windows;
        replica.lost = None;
        if inherited.is_none() {
            replica.plan = None;
        }
        Ok(())
    }

    fn planned(&mut self, key: ReplicaKey, plan: Plan) -> Applied {
        in_order(
            plan.generation == self.round.base,
            "a plan for another round",
        )?;
        self.replica_mut(key)?.plan = Some(plan);
        Ok(())
    }

    fn announced(
        &mut self,
        no: ContributionNo,
        key: ReplicaKey,
        incarnation: Incarnation,
        parts: &ContributionParts,
    ) -> Applied {
        in_order(
            no == self.last_contribution.next(),
            "a contribution is left out",
        )?;
        in_order(self.round.phase == RoundPhase::Open, "the round is closed")?;
        in_order(
            self.announced_by(key).is_none(),
            "a second contribution is announced beside the first",
        )?;
        in_order(
            parts.generation == self.round.base,
            "a contribution to another round",
        )?;
        self.incarnation_mut(key, incarnation)?;
        let lease = self
            .lease_of(key)
            .ok_or_else(|| missing("the author's lease"))?;
        let (head, _) = Span::split(&lease.spans, parts.windows());
        in_order(
            head == parts.spans,
            "a contribution does not start at its lease's front",
        )?;
        in_order(
            parts.windows() <= lease.reserved(),
            "a contribution goes beyond its lease's mark",
        )?;
        self.last_contribution = no;
        let (id, parts) = (parts.id(), parts.clone());
        let stage = Stage::Announced;
        self.contributions.insert(
            no,
            Contribution {
                key,
                incarnation,
                id,
                parts,
                stage,
            },
        );
        Ok(())
    }

    fn refused(&mut self, no: ContributionNo, because: RefusedBecause) -> Applied {
        let gone = self.contributions.remove(&no);
        let gone = gone.ok_or_else(|| missing(format!("contribution {no}")))?;
        in_order(
            gone.stage == Stage::Announced,
            "a staged contribution is refused",
        )?;
        let base = self.round.base;
        let replica = self.replica_mut(gone.key)?;
        replica.decide(gone.id, Replica::refused(because));
        replica.set_back(because, base);
        if because == RefusedBecause::TooSlow {
            replica.pace = replica.pace.map(Pace::with_slower_link);
        }
        Ok(())
    }

    fn refused_again(&mut self, key: ReplicaKey) -> Applied {
        let base = self.round.base;
        let replica = self.replica_mut(key)?;
        let Some((_, Verdict::Refused(because))) = replica.decided else {
            return in_order(false, "nothing was refused before");
        };
        replica.set_back(because, base);
        Ok(())
    }

    fn staged(&mut self, no: ContributionNo, norm: Norm) -> Applied {
        in_order(self.round.phase == RoundPhase::Open, "the round is closed")?;
        let base = self.round.base;
        let contribution = self.contributions.get_mut(&no);
        let contribution = contribution.ok_or_else(|| missing(format!("contribution {no}")))?;
        in_order(contribution.stage == Stage::Announced, "it is staged twice")?;
        contribution.stage = Stage::Staged;
        let (key, id) = (contribution.key, contribution.id);
        self.norms.accept(contribution.parts.steps, norm);
        let spans = contribution.parts.spans.clone();
        let replica = self.replica_mut(key)?;
        in_order(
            replica.contributed != Some(base),
            "a name contributes twice",
        )?;
        replica.contributed = Some(base);
        replica.setback = None;
        replica.decide(id, Verdict::Staged);
        let lease = replica.lease.ok_or_else(|| missing("the author's lease"))?;
        self.take_front(lease, &spans)?;
        for span in &spans {
            self.ledger
                .change(*span, Ownership::Leased(lease), Ownership::Staged(no))?;
        }
        attempts::forget(&mut self.attempts, &spans);
        self.round.staged.push(no);
        Ok(())
    }

    fn closed(&mut self, record: &CloseRecord) -> Applied {
        in_order(
            self.round.phase == RoundPhase::Open,
            "the round is closed twice",
        )?;
        in_order(record.base == self.round.base, "another round is closed")?;
        let numbers: Vec<_> = record.contributions.iter().map(|c| c.no).collect();
        in_order(
            !numbers.is_empty() && numbers == self.round.staged,
            "it merges what is not staged",
        )?;
        in_order(
            !self.is_uploading(),
            "an announced contribution is neither merged nor refused",
        )?;
        self.round.phase = RoundPhase::Closed(record.clone());
        Ok(())
    }

    fn published(
        &mut self,
        spec: &RunSpec,
        generation: Generation,
        manifest: Hash,
        merge_ms: u64,
    ) -> Applied {
        let next = self.current.generation.next();
        in_order(generation == next, "a generation is left out")?;
        let open = Round {
            base: next,
            staged: Vec::new(),
            phase: RoundPhase::Open,
        };
        let Round {
            phase: RoundPhase::Closed(record),
            ..
        } = std::mem::replace(&mut self.round, open)
        else {
            return in_order(false, "a generation without a close record");
        };
        let mut merged = Vec::new();
        for closed in &record.contributions {
            let windows = self.commit(closed.no, generation)?;
            merged.push((closed.key, closed.id, windows, closed.tokens, closed.steps));
        }
        let steps = merged.iter().map(|m| m.4).max().unwrap_or(Steps(0));
        let tokens = merged.iter().map(|m| m.3).sum();
        self.current = self.current.after_round(spec, manifest, steps, tokens);
        let (reason, times) = (record.reason, BTreeMap::new());
        let base = record.base;
        self.rounds.push(RoundSummary {
            base,
            manifest,
            reason,
            merged,
            merge_ms,
            times,
        });
        self.replicas
            .iter_mut()
            .for_each(|replica| (replica.plan, replica.lost) = (None, None));
        self.next_evaluation(spec, generation);
        Ok(())
    }

    fn commit(&mut self, no: ContributionNo, to: Generation) -> Result<Windows, ApplyError> {
        let done = self.contributions.remove(&no);
        let done = done.ok_or_else(|| missing(format!("contribution {no}")))?;
        let committed = Ownership::Committed(to, done.key);
        for span in &done.parts.spans {
            self.ledger
                .change(*span, Ownership::Staged(no), committed)?;
        }
        let windows = done.parts.windows();
        let replica = self.replica_mut(done.key)?;
        replica.tally.committed += windows;
        replica.decide(done.id, Verdict::Merged(to));
        Ok(windows)
    }

    fn next_evaluation(&mut self, spec: &RunSpec, generation: Generation) {
        let regular = spec.evaluate_every > 0 && generation.0.is_multiple_of(spec.evaluate_every);
        let due = &mut self.evaluations.due;
        // One that nobody was asked for is lost: nobody keeps those weights.
        if regular || due.is_some_and(|evaluation| evaluation.asked.is_none()) {
            *due = regular.then_some(Evaluation {
                generation,
                asked: None,
            });
        }
    }

    /// Whatever the rhythm, people want to know what came out in the end.
    fn evaluate_the_last(&mut self, spec: &RunSpec) {
        let generation = self.current.generation;
        let due = Evaluation {
            generation,
            asked: None,
        };
        if spec.evaluate_every > 0 {
            self.evaluations.due = Some(due);
        }
    }

    fn evaluation_due(&mut self, generation: Generation) -> Result<&mut Evaluation, ApplyError> {
        let due = self
            .evaluations
            .due
            .as_mut()
            .filter(|due| due.generation == generation);
        due.ok_or_else(|| missing(format!("the evaluation of generation {generation}")))
    }

    pub(crate) fn replica_mut(&mut self, key: ReplicaKey) -> Result<&mut Replica, ApplyError> {
        self.replicas
            .get_mut(key.0 as usize)
            .ok_or_else(|| missing(format!("replica {key}")))
    }

    pub(crate) fn incarnation_mut(
        &mut self,
        key: ReplicaKey,
        incarnation: Incarnation,
    ) -> Result<&mut Replica, ApplyError> {
        let replica = self.replica_mut(key)?;
        in_order(
            replica.incarnation == incarnation,
            "a fenced incarnation changes something",
        )?;
        Ok(replica)
    }
}

fn new_replica(id: hansa_base::ReplicaId) -> Replica {
    Replica {
        id,
        ranks: 1,
        incarnation: Incarnation(0),
        presence: Presence::Live,
        nonce: Hash::default(),
        presented: None,
        token: Hash::default(),
        lease: None,
        lost: None,
        plan: None,
        contributed: None,
        decided: None,
        tally: Tally::default(),
        pace: None,
        evicted: None,
        setback: None,
    }
}
