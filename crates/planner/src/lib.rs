//! Which sites, which shapes, when, and how the rounds will go.
//!
//! Every batch system places jobs on its own machine; none knows that a run spans several. This crate
//! takes a [`Snapshot`] (what is known of queues, speeds, costs and the run, each number with its
//! source and age) and answers with plans and with the reason for everything it leaves out.
//!
//! - [`candidates`]: which shapes can be used, with waits ([`wait()`]); why not the others.
//! - [`waterfill()`]: outstanding units to the soonest sites, if nobody ever waited for anybody.
//! - [`simulate`]: the run round by round, under the barrier; [`without_barrier`] beside it.
//! - [`plan()`], [`replan`], [`sensitivity`]: the decision, whether to keep it, and what flips it.
//! - [`news()`]: whether it is time to decide again.
//!
//! Never here: clocks, files, sockets, randomness, serialisation. Time is the snapshot's `now`; the
//! same snapshot gives the same plan.

mod candidate;
mod cast;
mod chain;
mod fact;
mod fluid;
mod input;
mod level;
mod news;
mod options;
mod plan;
mod reasons;
mod rounds;
mod run;
mod score;
mod search;
mod site;
mod wait;
mod waterfill;

pub use candidate::{Candidate, ExchangeCost, Excluded, Exclusion, RateOf, Speed, candidates};
pub use cast::{Terms, Unplannable};
pub use chain::{Bounds, FirstJob, Member, Tally, Then};
pub use fact::{Cost, Fact, Source, Spell, WallMs};
pub use fluid::{Fluid, without_barrier};
pub use input::{Input, inputs};
pub use news::{News, news};
pub use plan::{
    Ask, Change, Flip, Held, HeldPick, Objective, Pick, Plan, Replan, Verdict, plan, replan,
    sensitivity,
};
pub use reasons::{Alternative, Trap, Why, traps};
pub use rounds::{Balance, Ended, Outcome, Part, Stretch, World, simulate};
pub use run::{Evaluation, Exchange, Invalid, Phase, Policy, Quantile, RunState, Snapshot};
pub use site::{
    Answer, Budget, ChainPolicy, Closed, Job, JobState, Limits, Partition, PartitionState, Shape,
    ShapeName, ShapeState, Site, WaitPair, WindowsPerGpuS,
};
pub use wait::{Basis, Wait, wait};
pub use waterfill::{Lost, PassedOver, Request, Share, Waterfill, waterfill};
