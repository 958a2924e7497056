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
mod goodput;
mod host;
mod network;
mod operator;
mod random;
mod seen;
mod setting;
mod trainer;
mod weights;
mod world;

pub use goodput::{Spent, Weather};
use hansa_protocol::State;
pub use seen::Seen;
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
    /// A world of eight replicas in which processes die at a known rate, in place of the seed's own.
    pub weather: Option<Weather>,
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
    /// A steal takes what its victim may be training, too.
    StealsAcrossTheMark,
    /// A lease is revived with what others have got since.
    RevivesWhatIsTaken,
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
    /// How many things happened: messages, steps of trainers, writes, ticks, faults.
    pub steps: u64,
    /// Virtual milliseconds.
    pub time_ms: u64,
    /// What happened how often.
    pub seen: Seen,
    /// What the replicas' time went into.
    pub spent: Spent,
    /// The run's durable state at the end.
    pub state: State,
    /// The story, if it was asked for.
    pub story: Vec<String>,
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
