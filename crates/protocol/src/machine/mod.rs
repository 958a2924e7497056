//! The coordinator's half of the protocol: one command in; events, a reply and effects out.
//!
//! The shell journals an outcome's events before it sends the reply or starts an effect, and ends
//! the process if it cannot. One file per command; this one only dispatches, fences and emits.

mod attempts;
mod clocks;
mod contribute;
mod deadlines;
mod evaluate;
mod heartbeat;
mod lease;
mod marks;
mod operator;
mod plan;
mod publish;
mod register;
mod restore;
mod revive;
mod setback;
mod steal;
mod tick;
mod upload;
mod volatile;

use crate::{
    ApplyError, Caller, CloseRecord, Command, Event, Presence, Progress, Refusal, Replica, Reply,
    RoundPhase, RunSpec, State,
};
use clocks::Clocks;
use hansa_base::{Hash, LeaseId, MonoMs, ReplicaKey};
use std::collections::{BTreeMap, BTreeSet};
pub use volatile::Volatile;

/// What the shell is to do once the events are durable.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Merge: a pure function of this record and the base generation's files. Answer with
    /// [`Command::Merged`].
    Merge(CloseRecord),
    /// The bytes of this contribution are of no further use.
    DropUpload(Hash),
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// To be journaled, all in one transaction, before anything else is done.
    pub events: Vec<Event>,
    /// The answer.
    pub reply: Result<Reply, Refusal>,
    /// What to do then.
    pub effects: Vec<Effect>,
}

/// What is known of a live replica that need not survive a restart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaVitals {
    /// Its last progress report.
    pub progress: Progress,
    /// When its activity or its counter last changed.
    pub progressed: MonoMs,
    /// When it was last heard of.
    pub heard: MonoMs,
}

/// State, deadlines and the rules that lead from commands to events.
#[derive(Clone, Debug)]
pub struct Machine {
    spec: RunSpec,
    state: State,
    clocks: Clocks,
    vitals: BTreeMap<ReplicaKey, ReplicaVitals>,
    /// Leases whose holder was heard of since this machine began.
    reported: BTreeSet<LeaseId>,
    events: Vec<Event>,
    effects: Vec<Effect>,
}

type Answer = Result<Reply, Refusal>;

impl Machine {
    /// A machine over a new or replayed state. Every deadline starts afresh at `now`.
    #[must_use]
    pub fn new(spec: RunSpec, state: State, now: MonoMs) -> Self {
        let clocks = Clocks::fresh(&spec, &state, now);
        let vitals = BTreeMap::new();
        Self {
            spec,
            state,
            clocks,
            vitals,
            reported: BTreeSet::new(),
            events: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// The run's spec.
    #[must_use]
    pub const fn spec(&self) -> &RunSpec {
        &self.spec
    }

    /// The durable state.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Live progress by replica.
    #[must_use]
    pub const fn vitals(&self) -> &BTreeMap<ReplicaKey, ReplicaVitals> {
        &self.vitals
    }

    /// The close record whose merge is due: after a restart the shell starts it again.
    #[must_use]
    pub const fn merge_due(&self) -> Option<&CloseRecord> {
        match &self.state.round.phase {
            RoundPhase::Closed(record) => Some(record),
            RoundPhase::Open => None,
        }
    }

    /// Handles one command received at `now`.
    pub fn handle(&mut self, now: MonoMs, command: Command) -> Outcome {
        let reply = match command {
            Command::Register(register) => self.register(now, register),
            Command::Lease(request) => self.lease(now, request),
            Command::Heartbeat(heartbeat) => self.heartbeat(now, &heartbeat),
            Command::Announce(announce) => self.announce(now, announce),
            Command::UploadProgress { id, bytes } => self.upload_progress(now, id, bytes),
            Command::UploadComplete { id, found } => self.upload_complete(now, id, &found),
            Command::Operate(order) => self.operate(now, order),
            Command::Evaluated(evaluated) => self.evaluated(now, &evaluated),
            Command::Goodbye(goodbye) => self.goodbye(now, &goodbye),
            Command::Merged(merged) => self.merged(now, merged),
            Command::Restored { timeline } => self.restored(now, timeline),
            Command::Tick => self.tick(now),
        };
        let events = std::mem::take(&mut self.events);
        Outcome {
            events,
            reply,
            effects: std::mem::take(&mut self.effects),
        }
    }

    /// Applies an event and puts it into the outcome.
    fn emit(&mut self, event: Event) -> Result<(), Refusal> {
        let applied = self.state.apply(&self.spec, &event);
        applied.map_err(|error: ApplyError| Refusal::Broken(error.to_string()))?;
        self.events.push(event);
        Ok(())
    }

    /// The one place where stale callers are stopped.
    fn authenticate(&mut self, now: MonoMs, caller: &Caller) -> Result<ReplicaKey, Refusal> {
        let replica = caller.replica.clone();
        let last = self.state.last_incarnation;
        self.state.lineage.admit(self.spec.run, last, caller)?;
        let found = self
            .state
            .find(&replica)
            .map(|(key, r)| (key, r.incarnation, r.presence));
        let (key, incarnation, presence) = found.ok_or_else(|| Refusal::Unknown {
            replica: replica.clone(),
        })?;
        if caller.incarnation != incarnation {
            return Err(Refusal::Fenced { replica });
        }
        operator::refuse_evicted(self.replica(key)?)?;
        if presence != Presence::Live {
            self.absolve_the_gone(key)?;
            return Err(Refusal::Gone { replica });
        }
        self.clocks.heard(&self.spec, key, now);
        if let Some(vitals) = self.vitals.get_mut(&key) {
            vitals.heard = now;
        }
        Ok(key)
    }

    fn replica(&self, key: ReplicaKey) -> Result<&Replica, Refusal> {
        let replica = self.state.replica(key);
        replica.ok_or_else(|| Refusal::Broken(format!("key {key} has no name")))
    }
}
