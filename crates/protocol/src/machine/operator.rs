//! Operator's orders: pause and resume the run, drain a site, evict a replica, stop.
//!
//! An order that makes no sense is refused with the reason; one that is in force already is done.
//! Never here: who may give orders.

use super::clocks::Clocks;
use super::{Answer, Machine};
use crate::operator::because;
use crate::{
    EndReason, Event, ExcusedBecause, FreedCause, LeaseAnswer, LeftReason, Order, Pause, Presence,
    Refusal, Reply, RoundPhase, Wait,
};
use hansa_base::{MonoMs, ReplicaId, ReplicaKey, SiteName, WallS};

impl Machine {
    pub(super) fn operate(&mut self, now: MonoMs, order: Order) -> Answer {
        if let (true, Some(reason)) = (self.state.ended, self.state.ending) {
            return Err(Refusal::RunOver(reason));
        }
        match order {
            Order::Pause { why } => self.pause(Pause::Operator(why))?,
            Order::Resume { why } => self.resume(now, why)?,
            Order::Drain { site, why, until } => self.drain(site, why, until)?,
            Order::Undrain { site, why } => self.undrain(site, why)?,
            Order::Evict { replica, why } => self.evict(now, replica, why)?,
            Order::Readmit { replica, why } => self.readmit(replica, why)?,
            Order::Stop { why } => self.stop(now, why)?,
            Order::LetOut { windows } => self.let_out(windows)?,
        }
        Ok(Reply::Done)
    }

    fn pause(&mut self, pause: Pause) -> Result<(), Refusal> {
        if let Some(reason) = self.state.ending {
            return Err(Refusal::RunOver(reason));
        }
        let orders = &self.state.orders;
        if let Some(paused) = &orders.paused {
            return pointless(format!("the run is paused already: {paused}"));
        }
        if let Some(why) = &orders.stopping {
            return pointless(format!("the run is being stopped{}", because(why)));
        }
        self.emit(Event::Paused(pause))
    }

    /// Fresh deadlines for everybody: nobody is to blame for what passed meanwhile.
    fn resume(&mut self, now: MonoMs, why: String) -> Result<(), Refusal> {
        if self.state.orders.paused.is_none() {
            return pointless("the run is not paused".to_owned());
        }
        self.emit(Event::Resumed { why })?;
        self.clocks = Clocks::fresh(&self.spec, &self.state, now);
        self.close_if_due(now)
    }

    fn drain(&mut self, site: SiteName, why: String, until: Option<WallS>) -> Result<(), Refusal> {
        if !self.state.orders.drained.contains_key(&site) {
            let mut replicas = self.state.replicas.iter();
            if !replicas.any(|replica| replica.id.site == site) {
                return Err(Refusal::UnknownSite { site });
            }
            let site = site.clone();
            self.emit(Event::Drained { site, why })?;
        }
        let before = self.state.orders.drain_end(&site);
        match until.filter(|until| before != Some(*until)) {
            Some(at) => self.emit(Event::DrainEnds { site, at }),
            None => Ok(()),
        }
    }

    fn undrain(&mut self, site: SiteName, why: String) -> Result<(), Refusal> {
        if !self.state.orders.drained.contains_key(&site) {
            return pointless(format!("site {site} is not drained"));
        }
        self.emit(Event::Undrained { site, why })
    }

    fn evict(&mut self, now: MonoMs, id: ReplicaId, why: String) -> Result<(), Refusal> {
        let key = self.known(id)?;
        let replica = self.replica(key)?;
        if replica.evicted.is_some() {
            return Ok(());
        }
        if replica.presence == Presence::Live {
            self.leave(key, LeftReason::Evicted, FreedCause::Evicted)?;
        }
        self.emit(Event::Evicted { key, why })?;
        self.close_if_due(now)?;
        self.end_if_stopped(now)
    }

    fn readmit(&mut self, id: ReplicaId, why: String) -> Result<(), Refusal> {
        let name = id.to_string();
        let key = self.known(id)?;
        if self.replica(key)?.evicted.is_none() {
            return pointless(format!("{name} is not evicted"));
        }
        self.emit(Event::Readmitted { key, why })
    }

    /// Who trains in the open round may end its phase; whoever has not begun does not begin.
    fn stop(&mut self, now: MonoMs, why: String) -> Result<(), Refusal> {
        if self.state.orders.stopping.is_some() || self.state.ending.is_some() {
            return Ok(());
        }
        self.emit(Event::Stopping { why })?;
        let begun = |key: &ReplicaKey| self.clocks.started.contains_key(key);
        let awaited = self.state.awaited().map(|(key, _)| key);
        let idle: Vec<ReplicaKey> = awaited.filter(|key| !begun(key)).collect();
        // Deadlines stood still while the run was paused.
        let started = std::mem::take(&mut self.clocks.started);
        self.clocks = Clocks::fresh(&self.spec, &self.state, now);
        self.clocks.started = started;
        for key in idle {
            let because = ExcusedBecause::Stopping;
            self.emit(Event::Excused { key, because })?;
        }
        self.close_if_due(now)?;
        self.end_if_stopped(now)
    }

    /// A run that is being stopped ends when its open round has nothing and waits for nobody; if it
    /// has something, it ends with the merge.
    pub(super) fn end_if_stopped(&mut self, now: MonoMs) -> Result<(), Refusal> {
        let state = &self.state;
        let stopping = state.orders.stopping.is_some() && state.ending.is_none();
        let empty = state.round.phase == RoundPhase::Open && state.round.staged.is_empty();
        if !stopping || !empty || state.awaited().next().is_some() {
            return Ok(());
        }
        self.start_ending(now, EndReason::Stopped)
    }

    /// What an order makes of a request for work, if it makes anything of it.
    pub(super) fn ordered(&self, key: ReplicaKey) -> Result<Option<LeaseAnswer>, Refusal> {
        if let Some(why) = self.told_to_leave(key)? {
            return Ok(Some(LeaseAnswer::Leave(why)));
        }
        if let Some(pause) = &self.state.orders.paused {
            return Ok(Some(LeaseAnswer::Wait(Wait::Paused(pause.to_string()))));
        }
        self.sits_out(key)
    }

    /// True if a replica that asks for work is to get none, because the run is being stopped and it
    /// has not begun its phase.
    pub(super) fn begins_too_late(&self, key: ReplicaKey) -> Result<bool, Refusal> {
        let stopping = self.state.orders.stopping.is_some();
        let replica = self.replica(key)?;
        let member = replica.plan.is_some() && replica.lease.is_some();
        Ok(stopping && !(member && self.clocks.started.contains_key(&key)))
    }

    /// Why a replica is to contribute what it has and leave, if it is.
    pub(super) fn told_to_leave(&self, key: ReplicaKey) -> Result<Option<String>, Refusal> {
        let site = &self.replica(key)?.id.site;
        let drained = self.state.orders.drained.get(site);
        Ok(drained.map(|why| format!("site {site} is drained{}", because(why))))
    }

    /// Whether a name may register.
    pub(super) fn may_enter(&self, id: &ReplicaId) -> Result<(), Refusal> {
        if let Some((_, replica)) = self.state.find(id) {
            refuse_evicted(replica)?;
        }
        match self.state.orders.drained.get(&id.site) {
            None => Ok(()),
            Some(why) => Err(Refusal::Drained {
                site: id.site.clone(),
                why: why.clone(),
            }),
        }
    }

    fn known(&self, id: ReplicaId) -> Result<ReplicaKey, Refusal> {
        let found = self.state.find(&id).map(|(key, _)| key);
        found.ok_or(Refusal::Unknown { replica: id })
    }
}

/// Refuses every call of an evicted replica.
pub(super) fn refuse_evicted(replica: &crate::Replica) -> Result<(), Refusal> {
    match &replica.evicted {
        None => Ok(()),
        Some(why) => Err(Refusal::Evicted {
            replica: replica.id.clone(),
            why: why.clone(),
        }),
    }
}

fn pointless(what: String) -> Result<(), Refusal> {
    Err(Refusal::Pointless { what })
}
