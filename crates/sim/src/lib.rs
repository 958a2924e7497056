//! A seeded world in which both halves of the protocol run against each other, with faults.
//!
//! ```text
//!   hosts (disk, process: ReplicaMachine, trainer) ── network ──► coordinator (Machine, journal)
//! ```
//!
//! Everything follows from one seed: the recipe, the hosts, the faults, every delay. After each
//! command the coordinator's state is checked against the invariants and against a replay of its
//! journal; after each merge the weights are checked against the ledger (invariant 12); once the
//! faults are over the run has to end in time (invariant 13). Never here: sockets, threads, clocks.

mod coordinator;
mod faults;
mod host;
mod network;
mod random;
mod setting;
mod trainer;
mod weights;
mod world;

use hansa_protocol::State;
use std::fmt;

/// How to run a seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A bug to put in, to see whether it is found.
    pub mutation: Option<Mutation>,
    /// Keep a line of text per happening.
    pub verbose: bool,
    /// A world without faults in which only speeds differ, in place of the seed's own.
    pub rates: Option<Rates>,
}

/// Three replicas of known speed.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Milliseconds that each takes for a step of the base phase, which has 10 steps of 2 windows.
    pub step_ms: [u64; 3],
    /// Windows of an epoch.
    pub windows: u64,
    /// Epochs of the run.
    pub epochs: u32,
    /// Whether the phase plan balances accumulation.
    pub balance: bool,
}

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The coordinator acts on an event that it does not journal.
    ForgetsAnEvent,
    /// The coordinator never looks at the time.
    NeverTicks,
    /// A merge takes one contribution twice.
    MergesTwice,
    /// The trainer trains one window more than it was told to.
    TrainsBeyondTheLease,
    /// The trainer keeps its weights when it is told to load others.
    KeepsStaleWeights,
    /// The trainer keeps its moments when it is told to go back to the accepted ones.
    KeepsBadMoments,
    /// A step that was reported is not in the weights.
    LosesAStep,
}

/// What came of a seed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// What went wrong, if anything did.
    pub failure: Option<String>,
    /// Hash of everything that happened, in order.
    pub trace: u64,
    /// Virtual milliseconds.
    pub time_ms: u64,
    /// What happened how often.
    pub seen: Seen,
    /// The run's durable state at the end.
    pub state: State,
    /// The story, if it was asked for.
    pub story: Vec<String>,
}

/// What happened how often: shows that the seeds reach what they are to reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Seen {
    pub generations: u64,
    pub epochs: u64,
    pub coordinator_crashes: u64,
    pub stalls: u64,
    pub crashes: u64,
    pub stops: u64,
    pub takeovers: u64,
    pub fenced: u64,
    pub inherited_windows: u64,
    pub reclaimed_windows: u64,
    pub released_windows: u64,
    pub refused: u64,
    pub voids: u64,
    pub too_late_to_join: u64,
    pub short_plans: u64,
    pub quarantined: u64,
    pub let_out: u64,
    pub failed_windows: u64,
    pub restores: u64,
    pub evaluations: u64,
    pub evaluations_lost: u64,
    pub lost_messages: u64,
    pub doubled_messages: u64,
}

impl Seen {
    /// Adds what another run has seen.
    pub fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.generations, other.generations),
            (&mut self.epochs, other.epochs),
            (&mut self.coordinator_crashes, other.coordinator_crashes),
            (&mut self.stalls, other.stalls),
            (&mut self.crashes, other.crashes),
            (&mut self.stops, other.stops),
            (&mut self.takeovers, other.takeovers),
            (&mut self.fenced, other.fenced),
            (&mut self.inherited_windows, other.inherited_windows),
            (&mut self.reclaimed_windows, other.reclaimed_windows),
            (&mut self.released_windows, other.released_windows),
            (&mut self.refused, other.refused),
            (&mut self.voids, other.voids),
            (&mut self.too_late_to_join, other.too_late_to_join),
            (&mut self.short_plans, other.short_plans),
            (&mut self.quarantined, other.quarantined),
            (&mut self.let_out, other.let_out),
            (&mut self.failed_windows, other.failed_windows),
            (&mut self.restores, other.restores),
            (&mut self.evaluations, other.evaluations),
            (&mut self.evaluations_lost, other.evaluations_lost),
            (&mut self.lost_messages, other.lost_messages),
            (&mut self.doubled_messages, other.doubled_messages),
        ];
        for (sum, more) in pairs {
            *sum += more;
        }
    }

    /// Names of what was never seen.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let text = format!("{self:?}");
        let fields = text.trim_start_matches("Seen {").trim_end_matches('}');
        let never = fields
            .split(',')
            .filter(|field| field.trim().ends_with(": 0"));
        never.map(|field| field.trim().to_owned()).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, s) = (self.seed, self.time_ms as f64 / 1000.0);
        match &self.failure {
            None => write!(f, "seed {seed}: {s:.1} s, {:?}", self.seen),
            Some(what) => write!(f, "seed {seed} fails after {s:.1} s: {what}"),
        }
    }
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, options: Options) -> Report {
    world::World::new(seed, options).run()
}
