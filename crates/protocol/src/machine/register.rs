//! Registration: a name gets an incarnation, and perhaps its predecessor's lease.

use super::{Answer, Machine};
use crate::{Event, LeaseView, Presence, Refusal, Register, Registered, Reply};
use hansa_base::{Hash, MonoMs, ReplicaKey};

/// How a registration relates to what is known of its name.
enum Standing {
    /// The name is new, or its last incarnation has left.
    Fresh(ReplicaKey),
    /// It was answered before, and the answer was lost.
    Repeated(ReplicaKey),
    /// It presents the name's current token: it takes over.
    Successor(ReplicaKey),
}

impl Machine {
    pub(super) fn register(&mut self, now: MonoMs, register: Register) -> Answer {
        if let Some(mismatch) = self.spec.digest.first_difference(&register.digest) {
            return Err(Refusal::OtherData(mismatch));
        }
        if let Some(held) = &register.held {
            let last = self.state.last_incarnation;
            self.state.lineage.admit(self.spec.run, last, held)?;
        }
        if let (true, Some(reason)) = (self.state.ended, self.state.ending) {
            return Err(Refusal::RunOver(reason));
        }
        let standing = self.standing_of(now, &register)?;
        // Who carries on for one that lives finishes what that had begun; it is told to leave then.
        let carries_on = match standing {
            Standing::Repeated(_) => true,
            Standing::Fresh(_) => false,
            Standing::Successor(key) => self.replica(key)?.presence == Presence::Live,
        };
        if !carries_on {
            self.may_enter(&register.replica)?;
        }
        let key = match standing {
            Standing::Repeated(key) => key,
            Standing::Fresh(key) => self.admit(key, register, false)?,
            Standing::Successor(key) => self.admit(key, register, true)?,
        };
        self.clocks.heard(&self.spec, key, now);
        self.renew(now, key);
        self.registered_answer(key)
    }

    fn standing_of(&self, now: MonoMs, register: &Register) -> Result<Standing, Refusal> {
        let Some((key, replica)) = self.state.find(&register.replica) else {
            return Ok(Standing::Fresh(
                ReplicaKey(self.state.replicas.len() as u32),
            ));
        };
        let alive = replica.presence == Presence::Live;
        let repeated = (replica.presented, replica.nonce) == (register.resume, register.nonce);
        if repeated && alive {
            return Ok(Standing::Repeated(key));
        }
        if repeated {
            // Perhaps an old message that was long on its way: it must not fence a process that
            // lives. A process that means it comes back with another nonce.
            let replica = register.replica.clone();
            return Err(Refusal::Gone { replica });
        }
        if register.resume == Some(replica.token) {
            return Ok(Standing::Successor(key));
        }
        if !alive {
            return Ok(Standing::Fresh(key));
        }
        let until = self.clocks.sessions.get(key).unwrap_or(now);
        Err(Refusal::Busy {
            replica: register.replica.clone(),
            retry: until.since(now),
        })
    }

    fn admit(
        &mut self,
        key: ReplicaKey,
        register: Register,
        heir: bool,
    ) -> Result<ReplicaKey, Refusal> {
        let lease = self.state.replica(key).and_then(|replica| replica.lease);
        self.emit(Event::Registered {
            key,
            id: register.replica,
            incarnation: self.state.last_incarnation.next(),
            ranks: register.ranks.max(1),
            nonce: register.nonce,
            presented: register.resume,
            token: register.fresh_token,
            inherited: lease.filter(|_| heir),
        })?;
        self.vitals.remove(&key);
        Ok(key)
    }

    fn registered_answer(&self, key: ReplicaKey) -> Answer {
        let replica = self.replica(key)?;
        let lease: Option<LeaseView> = self.state.lease_of(key).map(crate::Lease::view);
        let announced: Option<Hash> = self.state.announced_by(key).map(|(_, c)| c.id);
        let caller =
            self.state
                .lineage
                .caller(self.spec.run, replica.id.clone(), replica.incarnation);
        Ok(Reply::Registered(Registered {
            incarnation: caller.incarnation,
            timeline: caller.timeline,
            seal: caller.seal,
            token: replica.token,
            lease,
            announced,
            current: self.state.current,
        }))
    }
}
