//! After the run's end: whom the coordinator still has to tell.
//!
//! Who lives hears of it with its next call, and says goodbye; or its session ends. Who was lost before,
//! or said goodbye to a coordinator that is started again on an ended run, may be on its way back: for
//! them the coordinator stays a while. Never here: deciding that the run is over.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hansa_base::ReplicaId;
use hansa_protocol::{LeftReason, Presence, Replica, State};

use crate::shell::Shell;

pub(crate) struct Farewell {
    within: Duration,
    /// Who said goodbye may come back, too: nobody starts a coordinator of an ended run for nothing.
    served_again: bool,
    told: BTreeSet<ReplicaId>,
    began: Option<Instant>,
}

impl Farewell {
    pub fn new(shell: &Shell, state: &State) -> Self {
        let ttl = shell.spec.timing.session_ttl;
        Self {
            within: shell.options.farewell.unwrap_or(ttl),
            served_again: state.ended,
            told: BTreeSet::new(),
            began: None,
        }
    }

    /// One who came back was told.
    pub fn told(&mut self, replica: ReplicaId) {
        self.told.insert(replica);
    }

    /// True once everybody knows, or was waited for long enough.
    pub fn is_over(&mut self, state: &State) -> bool {
        if state.live().next().is_some() {
            return false;
        }
        let waits = state.replicas.iter().any(|replica| self.waits_for(replica));
        let began = *self.began.get_or_insert_with(Instant::now);
        !waits || began.elapsed() >= self.within
    }

    fn waits_for(&self, replica: &Replica) -> bool {
        let may_come_back = match replica.presence {
            Presence::Live | Presence::Left(LeftReason::RunEnded) => false,
            Presence::Left(LeftReason::Goodbye) => self.served_again,
            Presence::Left(_) => true,
        };
        may_come_back && !self.told.contains(&replica.id)
    }
}
