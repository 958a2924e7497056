//! What an event changes of one site.

use hansa_base::ReplicaName;

use crate::apply::{NAMES_MAX, push};
use crate::outcome::{Outcome, PauseWhy, Then};
use crate::state::{Paused, Probed, Site, budget_of};
use crate::{BudgetReport, GpuS, Line, Report, SiteProfile, UnixS};

/// Probes of a shape that are kept.
const PROBES_MAX: usize = 288;
/// Spools of a site that are remembered.
const SPOOLS_MAX: usize = 16;
/// What was used is kept by the quarter of an hour.
const SPENT_EVERY_S: u64 = 900;
/// A site's figure of what is left may lack what ended shortly before, if its profile says no other time.
const ACCOUNTING_LAG_S: u64 = 900;

impl Site {
    pub(crate) fn spool(&mut self, spool: &Line, seq: u64) {
        self.spools.retain(|(name, _)| name != spool);
        self.spools.push((spool.clone(), seq));
        if self.spools.len() > SPOOLS_MAX {
            self.spools.remove(0);
        }
    }

    /// Another statement about the allocation counts from now on; the same one counts on.
    pub(crate) fn profile(&mut self, at: UnixS, profile: &SiteProfile) {
        let before = self.profile.replace(profile.clone());
        self.profiled = Some(at);
        if let Some(paused) = self.paused.as_mut().filter(|_| before.is_some()) {
            paused.also = None;
        }
        if before.is_none_or(|before| before.budget != profile.budget) {
            self.budget.said = profile.budget;
            self.budget.said_at = at;
            self.budget.source = Line::new("the profile");
            self.budget.spent.clear();
        }
    }

    /// An operator's pause is ended by an operator only: whatever else comes up stands beside it.
    pub(crate) fn pause(&mut self, at: UnixS, why: &PauseWhy) {
        let by_operator = |why: &PauseWhy| matches!(why, PauseWhy::Operator(_));
        let (since, before) = (at, self.paused.take());
        let (why, also) = (why.clone(), before.as_ref().and_then(|b| b.also.clone()));
        self.paused = Some(match before {
            Some(before) if by_operator(&before.why) && !by_operator(&why) => Paused {
                also: Some(why),
                ..before
            },
            Some(before) if !by_operator(&before.why) && by_operator(&why) => Paused {
                why,
                since,
                also: Some(before.why),
            },
            _ => Paused { why, since, also },
        });
    }

    pub(crate) fn resume(&mut self) {
        self.paused = None;
        self.quick_failures = 0;
        for slot in self.slots.values_mut() {
            slot.wait = None;
            slot.failures = 0;
        }
    }

    pub(crate) fn judged(
        &mut self,
        at: UnixS,
        replica: &ReplicaName,
        outcome: &Outcome,
        then: &Then,
    ) {
        let quick_s = self.profile.as_ref().map_or(60, |p| p.retry.quick_run_s);
        match outcome.is_quick_failure(quick_s) {
            // One that nothing follows from does not count.
            Some(true) if *then == Then::Next => {}
            Some(true) => self.quick_failures = self.quick_failures.saturating_add(1),
            Some(false) => self.quick_failures = 0,
            None => {}
        }
        let slot = self.slots.entry(replica.clone()).or_default();
        match then {
            Then::Next => {
                slot.failures = 0;
                slot.wait = None;
            }
            Then::Wait { until, failures } => {
                slot.failures = *failures;
                slot.wait = Some((*until, Line::new(&outcome.to_string())));
            }
            Then::Pause(why) => self.pause(at, why),
        }
    }

    pub(crate) fn spend(&mut self, ended: UnixS, cost: GpuS) {
        let quarter = UnixS(ended.0.div_ceil(SPENT_EVERY_S) * SPENT_EVERY_S);
        let spent = self.budget.spent.entry(quarter).or_default();
        spent.0 = spent.0.saturating_add(cost.0);
    }

    pub(crate) fn learn(&mut self, at: UnixS, said: UnixS, report: &Report) {
        match report {
            Report::Probe(probe) => {
                let usage_permille = self.profile.as_ref().and_then(|profile| {
                    let shape = profile.shape(&probe.shape)?;
                    self.usage_permille(probe.partition.as_ref().unwrap_or(&shape.partition))
                });
                let (at, probe) = (said, probe.clone());
                if self.probes.len() >= NAMES_MAX && !self.probes.contains_key(&probe.shape) {
                    return;
                }
                let known = self.probes.entry(probe.shape.clone()).or_default();
                let probed = Probed {
                    at,
                    probe,
                    usage_permille,
                };
                push(known, probed, PROBES_MAX);
            }
            Report::Usage(usage) => {
                let name = usage.partition.clone();
                put(&mut self.usage, name, (said, usage.clone()));
            }
            Report::Partition(partition) => {
                let name = partition.name.clone();
                put(&mut self.partitions, name, (said, partition.clone()));
            }
            Report::Reservation(reservation) => {
                let name = reservation.name.clone();
                put(&mut self.reservations, name, reservation.clone());
                // One that was called off ends when that is seen.
                self.reservations.retain(|_, known| known.end > at);
            }
            Report::Budget(report) => self.budget_report(said, report),
            Report::Trouble { what, text } => {
                let since = self.troubles.get(what).map_or(said, |(since, _)| *since);
                put(&mut self.troubles, what.clone(), (since, text.clone()));
            }
            Report::Recovered { what } => {
                self.troubles.remove(what);
            }
            _ => {}
        }
    }

    fn budget_report(&mut self, said: UnixS, report: &BudgetReport) {
        let lag_s = self.profile.as_ref().and_then(|p| p.accounting_lag_s);
        let lag_s = lag_s.unwrap_or(ACCOUNTING_LAG_S);
        let state = &mut self.budget;
        state.said = budget_of(report, &state.said);
        state.said_at = said;
        state.source = report.source.clone();
        if report.gpu_s_left.is_some() {
            // What ended before is in the figure, but for what accounting had not seen yet.
            let from = UnixS(said.0.saturating_sub(lag_s));
            state.spent.retain(|ended, _| *ended >= from);
        }
    }
}

fn put<T>(names: &mut std::collections::BTreeMap<Line, T>, name: Line, item: T) {
    if names.len() < NAMES_MAX || names.contains_key(&name) {
        names.insert(name, item);
    }
}
