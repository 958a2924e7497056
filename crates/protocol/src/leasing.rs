//! What happens to leases: made, topped up, marked, handed on, used up, taken back.

use crate::apply::{Applied, ApplyError, in_order, missing};
use crate::{FreedCause, Lease, Ownership, Presence, Span, State, attempts};
use hansa_base::{Incarnation, LeaseId, ReplicaKey, Windows};

impl State {
    pub(crate) fn granted(
        &mut self,
        id: LeaseId,
        key: ReplicaKey,
        incarnation: Incarnation,
        spans: &[Span],
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
            self.ledger
                .change(*span, Ownership::Free, Ownership::Leased(id))?;
        }
        Ok(())
    }

    pub(crate) fn marked(&mut self, id: LeaseId, mark: Windows) -> Applied {
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

    pub(crate) fn freed(&mut self, id: LeaseId, cause: FreedCause, at_risk: Windows) -> Applied {
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
        Ok(())
    }

    pub(crate) fn lease_mut(&mut self, id: LeaseId) -> Result<&mut Lease, ApplyError> {
        self.leases
            .get_mut(&id)
            .ok_or_else(|| missing(format!("lease {id}")))
    }
}
