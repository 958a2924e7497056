//! The protocol of a run: who trains on what, who is in, what the weights contain.
//!
//! ```text
//!   command ──► Machine ──► events ──► (the shell journals them) ──► reply
//!                  ▲           │
//!                  └── State ◄─┘ apply: the only way that state changes, live and in replay
//! ```
//!
//! The coordinator's half is [`Machine`] over [`State`]; the replica's half is in [`replica`].
//! Both are pure: time, tokens and nonces are arguments. Never here: I/O, clocks, randomness,
//! serialisation (`wire` mirrors what travels or is journaled).

mod apply;
mod attempts;
mod command;
mod contribution;
mod digest;
mod epoch;
mod event;
mod generation;
mod index;
mod invariant;
mod lease;
mod leasing;
mod ledger;
mod lineage;
mod machine;
mod norm;
mod operator;
mod permutation;
mod phase;
pub mod replica;
mod round;
mod space;
mod spec;
mod state;

pub use apply::ApplyError;
pub use attempts::{Attempt, Attempts};
pub use command::{
    Activity, Announce, Caller, Command, Evaluated, Goodbye, Grant, Heartbeat, LeaseAnswer,
    LeaseRequest, Merged, PhaseTimes, Problem, Progress, Refusal, Register, Registered, Reply,
    Standing, Verdict, Wait,
};
pub use contribution::{Contribution, ContributionParts, Stage};
pub use digest::{DigestFields, Mismatch, ShardIdentity};
pub use event::{
    CloseReason, EndReason, Event, ExcusedBecause, FreedCause, LeftReason, RefusedBecause, Steal,
};
pub use generation::GenerationInfo;
pub use index::Index;
pub use invariant::{Violation, check as check_invariants};
pub use lease::{Lease, LeaseView, Lost, Plan};
pub use ledger::{Counts, Ledger, Ownership};
pub use lineage::Lineage;
pub use machine::{Effect, Machine, Outcome, ReplicaVitals, Volatile};
pub use norm::{Norm, Norms, Setback};
pub use operator::{Order, Orders, Pause};
pub use permutation::Permutation;
pub use phase::Pace;
pub use round::{CloseRecord, ClosedContribution, OuterStep, Round, RoundPhase};
pub use space::{BlockSpace, Span, WindowRun};
pub use spec::{End, GraceRule, OuterSpec, PhaseSpec, RunSpec, Solo, SpecError, Timing};
pub use state::{Evaluation, Evaluations, Presence, Replica, RoundSummary, State, Tally};
