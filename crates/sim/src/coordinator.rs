//! The coordinator's process: a machine over a journal, killed at every awkward moment.

use crate::Mutation;
use crate::host::Life;
use crate::weights::Weights;
use crate::world::{Happening, World};
use hansa_base::{Hash, Windows};
use hansa_protocol::{
    CloseRecord, Command, Effect, End, EndReason, Event, ExcusedBecause, Machine, Merged,
    Ownership, Presence, Refusal, RefusedBecause, Reply, RunSpec, State, check_invariants,
};
use std::collections::{BTreeMap, BTreeSet};

/// Weights and ledger are compared at each publication, and after so many commands in any case.
const FULL_CHECK: u64 = 1000;

pub struct Coordinator {
    /// Durable.
    pub journal: Vec<Event>,
    /// Durable: what the journal makes of the first state, kept up event by event.
    pub twin: State,
    /// Durable: models by manifest hash.
    pub models: BTreeMap<Hash, Weights>,
    /// Durable: payloads by manifest hash.
    pub payloads: BTreeMap<Hash, Weights>,
    /// Epochs and positions that were in quarantine when their epoch ended.
    pub left_out: BTreeSet<(u32, u64)>,
    /// Ids that were ever staged.
    pub staged: Vec<Hash>,
    first: State,
    snapshot: (usize, State),
    process: Option<Running>,
    /// Deaf until then.
    pub stalled_until: u64,
    /// Its disk takes nothing until then.
    pub full_until: u64,
    /// What the journal ends with, if that is no whole transaction.
    torn: Vec<Event>,
}

struct Running {
    life: Life,
    born: u64,
    machine: Machine,
}

impl Coordinator {
    pub fn new(spec: &RunSpec) -> Self {
        let model = Weights::default();
        let manifest = model.hash("model", Hash::default());
        let first = State::new(spec, manifest);
        Self {
            journal: Vec::new(),
            twin: first.clone(),
            models: BTreeMap::from([(manifest, model)]),
            payloads: BTreeMap::new(),
            left_out: BTreeSet::new(),
            staged: Vec::new(),
            snapshot: (0, first.clone()),
            first,
            process: None,
            stalled_until: 0,
            full_until: 0,
            torn: Vec::new(),
        }
    }

    pub fn runs(&self) -> bool {
        self.process.is_some()
    }

    fn replay(&self, spec: &RunSpec, from: &State, at: usize) -> Result<State, String> {
        let mut state = from.clone();
        for event in &self.journal[at..] {
            let applied = state.apply(spec, event);
            applied.map_err(|error| format!("replay: {event:?}: {error}"))?;
        }
        Ok(state)
    }
}

impl World {
    pub fn start_coordinator(&mut self) {
        if self.coordinator.runs() {
            return;
        }
        // What is no whole transaction never happened.
        let torn = std::mem::take(&mut self.coordinator.torn);
        self.tell(|_| format!("the coordinator starts; torn off: {torn:?}"));
        let (spec, twin) = (&self.setting.spec, &self.coordinator.twin);
        let (at, snapshot) = &self.coordinator.snapshot;
        let whole = self.coordinator.replay(spec, &self.coordinator.first, 0);
        let short = self.coordinator.replay(spec, snapshot, *at);
        let state = match (whole, short) {
            (Ok(whole), Ok(short)) if whole == *twin && short == *twin => whole,
            (Err(error), _) | (_, Err(error)) => return self.fail(error),
            _ => return self.fail("a replay gives another state (invariant 10)".into()),
        };
        let life = self.new_life();
        let spec = self.setting.spec.clone();
        let machine = Machine::new(spec, state, hansa_base::MonoMs(0));
        let merge = machine.merge_due().cloned();
        let born = self.now;
        self.coordinator.process = Some(Running {
            life,
            born,
            machine,
        });
        if let Some(record) = merge {
            self.merge(&record);
        }
        self.after(50, Happening::Tick(life));
    }

    pub fn kill_coordinator(&mut self) {
        self.seen.coordinator_crashes += 1;
        self.tell(|_| "the coordinator dies".into());
        self.coordinator.process = None;
        let away = self.random.between(100, 9000);
        self.after(away, Happening::CoordinatorStarts);
    }

    pub fn stall(&mut self) {
        self.seen.stalls += 1;
        let stall = self.random.between(500, 12_000);
        self.coordinator.stalled_until = self.now + stall;
    }

    pub fn tick(&mut self, life: Life) {
        if self
            .coordinator
            .process
            .as_ref()
            .is_none_or(|p| p.life != life)
        {
            return;
        }
        if self.options.mutation != Some(Mutation::NeverTicks) {
            let until = self.coordinator.stalled_until;
            if self.now < until {
                // What arrived during the stall comes first.
                return self.at(until + 1, Happening::Tick(life));
            }
            self.command(Command::Tick);
        }
        self.after(200, Happening::Tick(life));
    }

    /// One command: decided, journaled, checked, and only then answered. `None` if the process dies
    /// on the way.
    pub fn command(&mut self, command: Command) -> Option<Result<Reply, Refusal>> {
        let born = self.coordinator.process.as_ref()?.born;
        let now = self.clock(born);
        let outcome = self
            .coordinator
            .process
            .as_mut()?
            .machine
            .handle(now, command);
        if let Err(Refusal::Broken(what)) = &outcome.reply {
            self.fail(format!("the coordinator's machine is broken: {what}"));
        }
        let changed = !outcome.events.is_empty();
        if changed && self.append_fails(&outcome.events) {
            self.kill_coordinator();
            return None;
        }
        self.journal(outcome.events);
        if changed && self.dies() {
            self.seen.crashes_before_reply += 1;
            self.kill_coordinator();
            return None;
        }
        for effect in outcome.effects {
            if let Effect::Merge(record) = effect {
                self.merge(&record);
            }
        }
        Some(outcome.reply)
    }

    /// True if the process ends before its events are durable.
    fn append_fails(&mut self, events: &[Event]) -> bool {
        if self.now < self.coordinator.full_until {
            self.seen.journal_full += 1;
            return true;
        }
        if !self.dies() {
            return false;
        }
        match self.random.between(0, 2) {
            0 => self.seen.crashes_before_append += 1,
            1 => {
                self.seen.torn_tails += 1;
                let written = self.random.next() as usize % events.len();
                self.coordinator.torn = events[..written].to_vec();
            }
            _ => {
                self.seen.journal_full += 1;
                self.coordinator.full_until = self.now + self.random.between(100, 20_000);
            }
        }
        true
    }

    fn dies(&mut self) -> bool {
        self.faulty() && self.random.one_in(self.setting.coordinator_crash)
    }

    fn journal(&mut self, mut events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let forgets = self.options.mutation == Some(Mutation::ForgetsAnEvent);
        if forgets && self.random.one_in(20) {
            let which = self.random.next() as usize % events.len();
            events.remove(which);
        }
        let mut weights_may_differ = false;
        for mut event in events {
            self.spoil(&mut event);
            weights_may_differ |= matches!(
                event,
                Event::Published { .. } | Event::EpochStarted { .. } | Event::LetOut { .. }
            );
            self.tell(|_| format!("    {event:?}"));
            self.saw_order(&event);
            match &event {
                Event::EvaluationLost { .. } => self.seen.evaluations_lost += 1,
                Event::Quarantined { .. } => self.seen.quarantined += 1,
                Event::LetOut { .. } => self.seen.let_out += 1,
                Event::EpochStarted { .. } => {
                    let twin = &self.coordinator.twin;
                    let left_out = quarantined(twin);
                    self.coordinator.left_out.extend(left_out);
                }
                Event::Stolen(_) => self.seen.steals += 1,
                Event::Revived { .. } => self.seen.revivals += 1,
                Event::Absolved { .. } => self.seen.absolved += 1,
                Event::Excused { because, .. } => {
                    let hung = *because == ExcusedBecause::NoProgress;
                    self.seen.excused_without_progress += u64::from(hung);
                }
                Event::Refused { because, .. } => {
                    let slow = *because == RefusedBecause::TooSlow;
                    self.seen.uploads_too_slow += u64::from(slow);
                }
                Event::Marked { lease, .. } => {
                    let lease = self.coordinator.twin.leases.get(lease);
                    let again = lease.is_some_and(|lease| lease.mark > lease.front);
                    self.seen.marks_raised += u64::from(again);
                }
                Event::Planned { plan, .. } => {
                    let short = plan.steps < self.setting.spec.phase.steps;
                    self.seen.short_plans += u64::from(short);
                }
                Event::Closed(record) => self.spent.round(&self.processes, record),
                Event::Staged { no, .. } => {
                    let staged = self.coordinator.twin.contributions.get(no);
                    self.coordinator.staged.extend(staged.map(|c| c.id));
                }
                _ => {}
            }
            let spec = &self.setting.spec;
            if let Err(error) = self.coordinator.twin.apply(spec, &event) {
                return self.fail(format!("{event:?}: {error}"));
            }
            self.coordinator.journal.push(event);
        }
        if self.random.one_in(15) {
            let length = self.coordinator.journal.len();
            self.coordinator.snapshot = (length, self.coordinator.twin.clone());
        }
        self.commands += 1;
        self.check_state();
        if weights_may_differ || self.commands.is_multiple_of(FULL_CHECK) {
            self.check_weights();
        }
    }

    /// Deliberate bugs of the coordinator's decisions.
    fn spoil(&self, event: &mut Event) {
        let twin = &self.coordinator.twin;
        match (self.options.mutation, event) {
            (Some(Mutation::StealsAcrossTheMark), Event::Stolen(steal)) => {
                let victim = twin.leases.get(&steal.from);
                let all = victim.map_or(steal.windows, |lease| lease.left());
                steal.windows = all;
            }
            (Some(Mutation::RevivesWhatIsTaken), Event::Revived { key, windows, .. }) => {
                let lost = twin.replica(*key).and_then(|r| r.lost.as_ref());
                *windows = lost.map_or(*windows, |lost| lost.lease.left());
            }
            (Some(Mutation::RevivesWhatIsTaken), absolved @ Event::Absolved { .. }) => {
                let Event::Absolved { key } = *absolved else {
                    return;
                };
                let replica = twin.replica(key).filter(|r| r.presence == Presence::Live);
                if let Some((replica, lost)) = replica.and_then(|r| Some((r, r.lost.as_ref()?))) {
                    *absolved = Event::Revived {
                        key,
                        incarnation: replica.incarnation,
                        windows: lost.lease.left(),
                    };
                }
            }
            _ => {}
        }
    }

    fn check_state(&mut self) {
        let (spec, twin) = (&self.setting.spec, &self.coordinator.twin);
        let live = self.coordinator.process.as_ref().map(|p| p.machine.state());
        if live.is_some_and(|live| live != twin) {
            return self.fail("the journal lacks something (invariant 10)".into());
        }
        if let Err(violation) = check_invariants(spec, twin) {
            self.fail(violation.to_string());
        }
    }

    /// Invariant 12. What is committed changes only when a generation is published.
    fn check_weights(&mut self) {
        let (spec, twin) = (&self.setting.spec, &self.coordinator.twin);
        let should = Weights::committed(spec, twin, &self.coordinator.left_out);
        let Some(model) = self.coordinator.models.get(&twin.current.manifest) else {
            return self.fail("the current generation has no model".into());
        };
        if *model != should {
            let (generation, what) = (twin.current.generation, model.difference(&should));
            let what = format!("generation {generation} is not its ledger (invariant 12): {what}");
            self.fail(what);
        }
    }

    /// A pure function of the record and durable files; how long it takes is chance.
    fn merge(&mut self, record: &CloseRecord) {
        let Some(life) = self.coordinator.process.as_ref().map(|p| p.life) else {
            return;
        };
        let base = self.coordinator.twin.current.manifest;
        let mut model = self
            .coordinator
            .models
            .get(&base)
            .cloned()
            .unwrap_or_default();
        for (n, contribution) in record.contributions.iter().enumerate() {
            let Some(delta) = self.coordinator.payloads.get(&contribution.payload) else {
                return self.fail(format!("contribution {} has no payload", contribution.no));
            };
            let twice = n == 1 && self.options.mutation == Some(Mutation::MergesTwice);
            model.add_all(delta, if twice { 2 } else { 1 });
        }
        let generation = record.base.next();
        let mut salt = Hash::default();
        salt.0[..8].copy_from_slice(&generation.0.to_le_bytes());
        let manifest = model.hash("model", salt);
        self.coordinator.models.insert(manifest, model);
        let (least, most) = self.setting.costs.merge_ms;
        let merge_ms = self.random.between(least, most);
        let merged = Merged {
            generation,
            manifest,
            merge_ms,
        };
        self.after(merge_ms, Happening::MergeDone(life, merged));
    }

    pub fn merge_done(&mut self, life: Life, merged: Merged) {
        if self
            .coordinator
            .process
            .as_ref()
            .is_some_and(|p| p.life == life)
        {
            self.command(Command::Merged(merged));
        }
    }

    pub fn check_the_end(&mut self) {
        let state = &self.coordinator.twin;
        if self.failure.is_some() || !state.ended {
            return;
        }
        let (spec, committed) = (&self.setting.spec, state.committed());
        let reached = match spec.end {
            _ if state.ending == Some(EndReason::Stopped) => true,
            End::Rounds(rounds) => state.current.generation.0 == rounds,
            End::Tokens(tokens) => spec.tokens(committed) >= tokens,
            End::Epochs(epochs) => {
                let out = self.coordinator.left_out.len() + quarantined(state).len();
                let all = spec.digest.windows.0 * u64::from(epochs);
                committed + Windows(out as u64) == Windows(all)
            }
        };
        if !reached {
            self.fail(format!(
                "the run is over with {committed} windows committed"
            ));
        }
    }
}

/// Positions of the running epoch that are in quarantine.
fn quarantined(state: &State) -> Vec<(u32, u64)> {
    let out = |(span, ownership)| (ownership == Ownership::Quarantined).then_some(span);
    let spans = state.ledger.intervals().filter_map(out);
    let positions = spans.flat_map(|span: hansa_protocol::Span| span.start.0..span.end.0);
    positions
        .map(|position| (state.epoch.0, position))
        .collect()
}
