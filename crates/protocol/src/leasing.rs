//! What happens to leases: made, topped up, marked, stolen from, handed on, used up, taken back, revived.

use crate::apply::{Applied, ApplyError, in_order, missing};
use crate::{
    Event, FreedCause, Lease, Lost, Ownership, Plan, Presence, RunSpec, Span, State, Steal,
    attempts,
};
use hansa_base::{Incarnation, LeaseId, ReplicaKey, Windows};

impl State {
    /// The part of [`State::apply`] that is about leases.
    pub(crate) fn apply_to_leases(&mut self, spec: &RunSpec, event: &Event) -> Applied {
        match event {
            Event::Granted {
                lease,
                key,
                incarnation,
                spans,
            } => self.granted(*lease, *key, *incarnation, spans),
            Event::Stolen(steal) => self.stolen(spec, steal),
            Event::Revived {
                key,
                incarnation,
                windows,
            } => self.revived(spec, *key, *incarnation, *windows),
            Event::Absolved { key } => self.absolved(*key),
            Event::Marked { lease, mark } => self.marked(*lease, *mark),
            Event::Freed {
                lease,
                cause,
                at_risk,
            } => self.freed(*lease, *cause, *at_risk),
            _ => Ok(()),
        }
    }

    fn granted(
        &mut self,
        id: LeaseId,
        key: ReplicaKey,
        incarnation: Incarnation,
        spans: &[Span],
    ) -> Applied {
        self.lease_out(id, (key, incarnation), spans, Ownership::Free)
    }

    /// Puts spans that are in state `from` at the end of a lease, which is made if it is new.
    fn lease_out(
        &mut self,
        id: LeaseId,
        (key, incarnation): (ReplicaKey, Incarnation),
        spans: &[Span],
        from: Ownership,
    ) -> Applied {
        let replica = self.incarnation_mut(key, incarnation)?;
        in_order(
            replica.presence == Presence::Live,
            "a grant to one who left",
        )?;
        in_order(
            replica.lease.is_none_or(|held| held == id),
            "a second lease",
        )?;
        replica.lease = Some(id);
        replica.lost = None;
        replica.tally.granted += Span::total(spans);
        if id == self.last_lease.next() {
            self.last_lease = id;
            let (front, spans) = (Windows(0), Vec::new());
            let epoch = self.epoch;
            self.leases.insert(
                id,
                Lease {
                    id,
                    epoch,
                    key,
                    incarnation,
                    front,
                    spans,
                    mark: front,
                    seq: 0,
                },
            );
        }
        let lease = self.lease_mut(id)?;
        in_order(
            lease.key == key && lease.incarnation == incarnation,
            "another's lease",
        )?;
        lease.seq += 1;
        for span in spans {
            Span::push_joined(&mut lease.spans, *span);
        }
        for span in spans {
            self.ledger.change(*span, from, Ownership::Leased(id))?;
        }
        Ok(())
    }

    fn stolen(&mut self, spec: &RunSpec, steal: &Steal) -> Applied {
        let Steal {
            from,
            mark,
            windows,
            lease,
            key,
            incarnation,
        } = *steal;
        in_order(from != lease, "a lease steals from itself")?;
        let victim = self.lease_mut(from)?;
        let beyond = victim.end().0.saturating_sub(mark.0);
        in_order(
            victim.mark == mark && (1..=beyond).contains(&windows.0),
            "a steal crosses its victim's mark (invariant 7)",
        )?;
        let keep = Windows(victim.left().0 - windows.0);
        let (head, tail) = Span::split(&victim.spans, keep);
        victim.spans = head;
        victim.seq += 1;
        let holder = victim.key;
        let base = self.round.base;
        let replica = self.replica_mut(holder)?;
        replica.tally.stolen += windows;
        if replica.contributed != Some(base) {
            replica.plan = replica
                .plan
                .map(|plan| shorter(spec, replica.ranks, plan, keep));
        }
        self.lease_out(lease, (key, incarnation), &tail, Ownership::Leased(from))
    }

    fn revived(
        &mut self,
        spec: &RunSpec,
        key: ReplicaKey,
        incarnation: Incarnation,
        windows: Windows,
    ) -> Applied {
        let (base, epoch) = (self.round.base, self.epoch);
        let replica = self.incarnation_mut(key, incarnation)?;
        let held = replica.lease.is_some() || replica.presence != Presence::Live;
        in_order(!held, "a lease is revived for one who has another, or left")?;
        let lost = replica.lost.clone();
        let Lost { lease, plan, .. } = lost.ok_or_else(|| missing("the lost lease"))?;
        in_order(
            lease.epoch == epoch && (1..=lease.left().0).contains(&windows.0),
            "a lease is revived in another epoch, or with more than it had",
        )?;
        let ranks = replica.ranks;
        replica.plan =
            plan.filter(|plan| plan.generation == base && replica.contributed != Some(base));
        replica.plan = replica.plan.map(|plan| shorter(spec, ranks, plan, windows));
        replica.lease = Some(lease.id);
        replica.tally.revived += windows;
        let (spans, _) = Span::split(&lease.spans, windows);
        for span in &spans {
            let to = Ownership::Leased(lease.id);
            self.ledger.change(*span, Ownership::Free, to)?;
        }
        let revived = Lease {
            mark: lease.mark.min(lease.front + windows),
            seq: lease.seq + 1,
            spans,
            ..lease
        };
        self.leases.insert(revived.id, revived);
        self.absolved(key)
    }

    fn absolved(&mut self, key: ReplicaKey) -> Applied {
        let replica = self.replica_mut(key)?;
        let lost = replica.lost.take();
        let Lost { lease, at_risk, .. } = lost.ok_or_else(|| missing("the lost lease"))?;
        let failed = replica.tally.failed.0;
        replica.tally.failed = Windows(failed.saturating_sub(at_risk.0));
        let (at_risk, _) = Span::split(&lease.spans, at_risk);
        attempts::absolve(&mut self.attempts, &at_risk, key);
        Ok(())
    }

    fn marked(&mut self, id: LeaseId, mark: Windows) -> Applied {
        let lease = self.lease_mut(id)?;
        let raised = lease.mark < mark && mark <= lease.end();
        in_order(raised, "a mark is not raised within its lease")?;
        lease.mark = mark;
        lease.seq += 1;
        Ok(())
    }

    pub(crate) fn hand_on(
        &mut self,
        lease: LeaseId,
        key: ReplicaKey,
        to: Incarnation,
    ) -> Result<Windows, ApplyError> {
        let announced = self.announced_by(key).map(|(no, _)| no);
        if let Some(open) = announced.and_then(|no| self.contributions.get_mut(&no)) {
            open.incarnation = to;
        }
        let lease = self.lease_mut(lease)?;
        in_order(lease.key == key, "a lease goes to another name")?;
        lease.incarnation = to;
        lease.seq += 1;
        Ok(lease.left())
    }

    pub(crate) fn take_front(&mut self, lease: LeaseId, spans: &[Span]) -> Applied {
        let lease = self.lease_mut(lease)?;
        let (head, tail) = Span::split(&lease.spans, Span::total(spans));
        in_order(
            head == spans,
            "a contribution does not start at its lease's front",
        )?;
        lease.front += Span::total(spans);
        lease.spans = tail;
        lease.seq += 1;
        Ok(())
    }

    fn freed(&mut self, id: LeaseId, cause: FreedCause, at_risk: Windows) -> Applied {
        let lease = self
            .leases
            .remove(&id)
            .ok_or_else(|| missing(format!("lease {id}")))?;
        for span in &lease.spans {
            self.ledger
                .change(*span, Ownership::Leased(id), Ownership::Free)?;
        }
        in_order(
            at_risk == Windows(0) || cause.is_attempt() && at_risk <= lease.reserved(),
            "more is at risk than can be",
        )?;
        let at_risk = Span::split(&lease.spans, at_risk).0;
        attempts::lost(&mut self.attempts, &at_risk, lease.key);
        let base = self.round.base;
        let replica = self.replica_mut(lease.key)?;
        replica.tally.failed += Span::total(&at_risk);
        replica.lease = None;
        let plan = replica.plan;
        if replica.contributed != Some(base) {
            replica.plan = None;
        }
        let tally = &mut replica.tally;
        let lost = if cause.is_loss() {
            &mut tally.reclaimed
        } else {
            &mut tally.released
        };
        *lost += lease.left();
        let given_up = matches!(
            cause,
            FreedCause::LeaseExpired | FreedCause::SessionExpired | FreedCause::ManyAtOnce
        );
        let at_risk = Span::total(&at_risk);
        replica.lost = given_up.then_some(Lost {
            lease,
            plan,
            at_risk,
            cause,
        });
        Ok(())
    }

    pub(crate) fn lease_mut(&mut self, id: LeaseId) -> Result<&mut Lease, ApplyError> {
        self.leases
            .get_mut(&id)
            .ok_or_else(|| missing(format!("lease {id}")))
    }
}

/// A plan for a lease that has become so short.
fn shorter(spec: &RunSpec, ranks: u32, plan: Plan, left: Windows) -> Plan {
    let windows = plan.windows.min(left);
    if windows == plan.windows {
        return plan;
    }
    spec.plan(plan.generation, ranks, plan.accumulation, windows)
}
