//! What a session tells whoever watches: typed, one after another, ready to be drawn or sent as JSON
//! lines. Watching never slows training down: events are handed over and forgotten.

use serde::Serialize;

/// One thing that happened. Numbers are plain, units stand in the names: this travels.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionEvent {
    /// The corpus is hashed once before it is trusted.
    CheckingCorpus {
        /// Bytes hashed.
        done_bytes: u64,
        /// Bytes of all files.
        total_bytes: u64,
    },
    /// The coordinator knows this process.
    Registered {
        /// Its fencing token.
        incarnation: u64,
        /// The coordinator's generation.
        generation: u64,
        /// Windows of the predecessor's lease that this process goes on with; 0 if it inherits none.
        inherited_windows: u64,
    },
    /// A generation's model arrives.
    Downloading {
        /// Bytes that are here.
        done_bytes: u64,
        /// Bytes of the file.
        total_bytes: u64,
    },
    /// A generation is loaded; training goes on from it.
    Adopted {
        /// Which.
        generation: u64,
        /// Inner steps that led to it.
        inner_step: u64,
        /// Tokens in it.
        tokens: u64,
        /// Part of the run that is done, 0 to 1.
        progress: f64,
    },
    /// Training goes on in the middle of a phase, from the local checkpoint.
    Resumed {
        /// The base generation.
        generation: u64,
        /// Steps of the phase that are done.
        step: u64,
        /// Windows of the phase that are done.
        windows: u64,
    },
    /// A phase begins.
    PhaseStarted {
        /// The base generation.
        generation: u64,
        /// Inner steps planned.
        steps: u64,
        /// Windows planned.
        windows: u64,
    },
    /// An inner step is done.
    Step {
        /// The base generation.
        generation: u64,
        /// Steps done in the phase, this one included.
        step: u64,
        /// Steps of the phase.
        steps: u64,
        /// Windows done in the phase.
        windows: u64,
        /// Mean loss before the update, in nats per token.
        loss: f64,
        /// Learning rate of the step.
        lr: f64,
        /// Target tokens per second, smoothed, waiting excluded.
        tokens_per_s: f64,
    },
    /// A contribution is on its way.
    Uploading {
        /// Bytes that the coordinator has.
        done_bytes: u64,
        /// Bytes of the file.
        total_bytes: u64,
    },
    /// A contribution is complete at the coordinator.
    Contributed {
        /// The base generation.
        generation: u64,
        /// Steps taken.
        steps: u64,
        /// Windows trained.
        windows: u64,
        /// Target tokens trained.
        tokens: u64,
    },
    /// A contribution will not be merged; its windows are trained again.
    ContributionRefused {
        /// Why.
        reason: String,
    },
    /// What was trained since the last contribution is void.
    WorkDropped {
        /// Windows trained in vain by this process.
        windows: u64,
        /// Why.
        reason: String,
    },
    /// A generation is being measured on held-out windows.
    Evaluating {
        /// Which.
        generation: u64,
        /// Windows measured.
        done_windows: u64,
        /// Windows to measure.
        total_windows: u64,
    },
    /// A generation was measured on held-out windows.
    Evaluated {
        /// Which.
        generation: u64,
        /// Mean loss in nats per token.
        loss: f64,
        /// `exp(loss)`.
        perplexity: f64,
        /// Target tokens measured.
        tokens: u64,
    },
    /// Nothing to do at the moment. Repeated now and then.
    Waiting {
        /// For what.
        reason: String,
    },
    /// The coordinator does not answer; training goes on as far as it can. Repeated now and then.
    CoordinatorAway {
        /// For how long, in seconds.
        for_s: f64,
        /// The last error.
        reason: String,
    },
    /// The coordinator answers again.
    CoordinatorBack {
        /// How long it was away, in seconds.
        after_s: f64,
    },
    /// The coordinator answered a sign of life. However full the link is, that should take little.
    HeartbeatAnswered {
        /// From the call to its answer, in milliseconds.
        took_ms: f64,
    },
    /// A signal asked for the end: the running step is finished and contributed.
    Leaving {
        /// What will be contributed: steps of the running phase.
        steps: u64,
    },
    /// The coordinator wants this replica to leave: what is trained is contributed first.
    ToldToLeave {
        /// Why.
        reason: String,
    },
    /// The trainer crashed or hangs; it is started again from the last checkpoint.
    TrainerLost {
        /// Why.
        reason: String,
        /// When it is started again, in seconds.
        again_in_s: f64,
    },
    /// The session is over.
    Ended {
        /// How, in words.
        outcome: String,
    },
}
