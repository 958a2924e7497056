//! What goes into a replica's machine and what comes out of it.

use crate::replica::{LocalState, RegistrationRecord};
use crate::{
    Announce, Caller, EndReason, Evaluated, FreedCause, GenerationInfo, Goodbye, Heartbeat,
    LeaseRequest, Mismatch, Refusal, RefusedBecause, Reply, Span, Wait,
};
use hansa_base::{Bytes, Epoch, Generation, Hash, Steps, Tokens, Windows};
use std::time::Duration;

/// The number of a call: its answer carries it back, so that an answer that nobody waits for any
/// more is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallNo(pub u64);

/// One input of the machine.
#[derive(Clone, Debug, PartialEq)]
// There is one at a time; a box would only be in the way.
#[allow(clippy::large_enum_variant)]
pub enum Input {
    /// The time that [`super::ReplicaMachine::wake_at`] named has come (any other time is fine too).
    Wake,
    /// A call ended. Exactly one of these follows each [`Action::Call`].
    Answered {
        /// Which.
        no: CallNo,
        /// The coordinator's answer; a lost, timed-out or garbled one is
        /// [`CallFailed::Unreachable`].
        answer: Result<Reply, CallFailed>,
    },
    /// [`Action::Save`] is done.
    Saved,
    /// [`Action::Load`] or [`Action::Restore`] is done.
    Loaded,
    /// [`Action::Load`] cannot be done: the generation is no longer served, a newer one is current.
    Superseded,
    /// A step of [`Action::Train`] was taken.
    Stepped {
        /// Windows that it trained.
        windows: Windows,
        /// How long it took.
        duration: Duration,
        /// Its loss, in nats per token.
        loss: f64,
    },
    /// [`Action::Train`] ended: all of it is trained, or [`Action::Halt`] came. All its steps have
    /// been reported before.
    TrainingEnded,
    /// The activity under way has come so far: bytes moved, windows evaluated. Any growing number.
    Advanced(u64),
    /// [`Action::Encode`] is done: the payload is durable beside the checkpoints.
    Encoded {
        /// Manifest hash of the payload.
        payload: Hash,
        /// Its size.
        bytes: Bytes,
    },
    /// [`Action::Checkpoint`] is done: it is durable.
    CheckpointDurable,
    /// [`Action::Evaluate`] is done.
    Measured {
        /// Sum of the loss over all held-out target tokens, in nats.
        loss_sum_nats: f64,
        /// How many.
        tokens: Tokens,
    },
    /// The trainer or the local disk cannot go on: why, for people.
    Failed(String),
    /// What was trained since the last contribution is not finite: why, for people.
    NotFinite(String),
    /// A signal asks the process to end: contribute what is there and say goodbye. A second one
    /// ends it at once.
    Stop,
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq)]
pub enum CallFailed {
    /// The coordinator refused it.
    Refused(Refusal),
    /// Nothing, or nothing usable, came back: for people.
    Unreachable(String),
}

/// A call to the coordinator. The shell adds name, ranks and digest to a registration, and the site's
/// credentials to all.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Answered by [`Reply::Registered`].
    Register {
        /// Durable before this is sent.
        nonce: Hash,
        /// The resume token held.
        resume: Option<Hash>,
        /// The incarnation held last.
        held: Option<Caller>,
    },
    /// Answered by [`Reply::Lease`].
    Lease(LeaseRequest),
    /// Answered by [`Reply::Standing`]. May be under way beside another call.
    Heartbeat(Heartbeat),
    /// Answered by [`Reply::Verdict`].
    Announce(Announce),
    /// Send the missing chunks of the payload that [`Action::Encode`] made (its manifest hash is in
    /// the parts) and complete it. Answered by [`Reply::Verdict`]; a failure is followed by another
    /// one of these, which goes on where this one stopped.
    Upload {
        /// Who.
        caller: Caller,
        /// The contribution.
        id: Hash,
        /// Manifest hash of the payload.
        payload: Hash,
    },
    /// Answered by [`Reply::Done`].
    Evaluated(Evaluated),
    /// Answered by [`Reply::Done`].
    Goodbye(Goodbye),
}

/// What the shell is to do. Actions are started in the order given; [`Action::Promote`] and
/// [`Action::Forget`] end before the next one starts. There is never more than one job of the trainer at a time ([`Action::Load`]
/// to [`Action::Checkpoint`]), nor more than one call beside a heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make this durable in place of the last one; then [`Input::Saved`].
    Save(RegistrationRecord),
    /// Call the coordinator; then [`Input::Answered`].
    Call {
        /// The number that the answer carries.
        no: CallNo,
        /// What to call.
        call: Call,
    },
    /// Fetch this generation and make it the trainer's weights; then [`Input::Loaded`] (or
    /// [`Input::Superseded`]), with [`Input::Advanced`] on the way.
    Load {
        /// Which.
        generation: GenerationInfo,
        /// Where the optimiser's moments and step counter come from.
        moments: Moments,
    },
    /// Load weights, moments and step counter of the checkpoint `latest`; then [`Input::Loaded`].
    Restore,
    /// Train; [`Input::Stepped`] after each step, [`Input::TrainingEnded`] once at the end.
    Train(TrainOrder),
    /// End the training under way after its current step. Means nothing if none is.
    Halt,
    /// Evaluate the loaded weights on the held-out windows; then [`Input::Measured`], with
    /// [`Input::Advanced`] on the way.
    Evaluate(Generation),
    /// Encode base minus weights as a payload and make it durable beside the last one, which `latest`
    /// may still name; then [`Input::Encoded`].
    Encode {
        /// The base generation, as it was downloaded.
        base: GenerationInfo,
    },
    /// Write weights, moments and this state durably in place of the checkpoint `latest`; then
    /// payloads that it does not name may be deleted; then [`Input::CheckpointDurable`].
    Checkpoint(LocalState),
    /// Make the checkpoint `latest` also the checkpoint `accepted`, durably (link and rename).
    Promote,
    /// Remove the checkpoints and every payload, durably: they are of a history that the run was taken
    /// out of by a restore.
    Forget,
    /// Tell people.
    Tell(Notice),
    /// End the process; no further input is taken.
    Exit(ExitReason),
}

/// Where the inner optimiser's moments come from when a generation is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moments {
    /// Those in memory: they are of the end of the last accepted phase.
    Keep,
    /// Those of the checkpoint `accepted`.
    Accepted,
    /// Zero: nothing of this replica was accepted yet.
    Fresh,
}

/// What to train.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOrder {
    /// The epoch, whose permutation says which windows the positions are.
    pub epoch: Epoch,
    /// The positions, in order of training.
    pub spans: Vec<Span>,
    /// Windows of a step; the last step takes what is left.
    pub step_windows: Windows,
    /// Micro-batches of a step.
    pub accumulation: u32,
    /// The base generation: learning rates are functions of it and of the step within the phase.
    pub base: GenerationInfo,
    /// Steps of this phase that the weights already contain.
    pub steps_done: Steps,
    /// Steps of the whole phase: `base.progress_per_round` is spread over these.
    pub steps_planned: Steps,
}

/// What people may want to know.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// It registered.
    Joined {
        /// With this many windows of a predecessor's lease.
        inherited: Windows,
    },
    /// A call failed and is repeated.
    Retrying {
        /// What happened.
        why: String,
        /// When.
        after: Duration,
    },
    /// Another process has the name.
    Busy(Refusal),
    /// What was trained cannot be used; training starts again at the lease's front.
    Void(Void),
    /// A contribution is in.
    Accepted {
        /// To this round.
        base: Generation,
        /// Windows of it.
        windows: Windows,
    },
    /// All that was reserved is trained; the coordinator has yet to reserve more.
    AtMark,
    /// Nothing to do, and why.
    Waiting(Wait),
    /// It contributes what it has and leaves: why, for people.
    Leaving(String),
}

/// Why trained windows cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub enum Void {
    /// The lease is another, or none; and why it was taken, if that is known.
    LeaseLost(Option<FreedCause>),
    /// The round went on without them.
    RoundOver,
    /// The run was restored from a backup.
    Restored,
    /// The announcement was refused.
    NotAccepted(Refusal),
    /// The contribution was refused after it was announced.
    Refused(RefusedBecause),
}

/// Why the process ends.
#[derive(Clone, Debug, PartialEq)]
pub enum ExitReason {
    /// The run is over.
    RunComplete(EndReason),
    /// It was asked to stop.
    Stopped {
        /// True if the coordinator was told; otherwise its lease ends by TTL, or a successor
        /// inherits it.
        goodbye: bool,
    },
    /// It was told to leave, contributed what it had, and said goodbye: why it was told.
    Drained(String),
    /// An operator evicted it.
    Evicted(Refusal),
    /// A newer process has the name.
    Fenced,
    /// Another process has the name, and waiting was not wanted.
    Busy(Refusal),
    /// It would read other data than the run.
    OtherData(Mismatch),
    /// The local state is of another run or replica.
    OtherState(String),
    /// The coordinator is behind this replica in their common history.
    OlderCopy {
        /// The generation that this replica has.
        ours: Generation,
        /// The coordinator's.
        theirs: Generation,
    },
    /// The coordinator refused something that cannot be repaired from here.
    Refused(Refusal),
    /// The coordinator was not reached within the configured retries.
    Unreachable(String),
    /// The trainer or the local disk failed.
    Failed(String),
    /// What was trained is not finite, and its positions count as tried.
    NotFinite(String),
}

impl ExitReason {
    /// Whether the goodbye is tried again, should nothing come back: it says something that the coordinator
    /// would not find out by itself.
    pub(super) const fn is_worth_telling(&self) -> bool {
        matches!(
            self,
            Self::Stopped { .. } | Self::Drained(_) | Self::NotFinite(_)
        )
    }
}

macro_rules! display {
    ($($type:ty { $($pattern:pat => $($arg:expr),+;)+ })+) => {$(
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self { $($pattern => write!(f, $($arg),+),)+ }
            }
        }
    )+};
}

display! {
    Notice {
        Self::Joined { inherited: Windows(0) } => "joined the run";
        Self::Joined { inherited } => "joined the run and inherited {inherited} leased windows";
        Self::Retrying { why, after } => "{why}; trying again in {:.1} s", after.as_secs_f64();
        Self::Busy(refusal) => "{refusal}; waiting";
        Self::Void(why) => "trained windows cannot be used: {why}";
        Self::Accepted { base, windows } => "{windows} windows are accepted for round {base}";
        Self::AtMark => "trained all that is reserved; waiting for the coordinator to reserve more";
        Self::Waiting(Wait::Merging) => "waiting for the merge";
        Self::Waiting(Wait::NothingFree) => "waiting: all that is left of the epoch is with others";
        Self::Waiting(Wait::NextRound) =>
            "waiting for the next round: no step would fit before this one closes";
        Self::Waiting(Wait::ExchangeTooLong { exchange, round }) =>
            "taking no part: sending a contribution takes {} s, a round of the others at most {} s; \
             use a smaller codec or a better link", exchange.as_secs(), round.as_secs();
        Self::Waiting(Wait::SetBack { refusals, until }) =>
            "waiting until round {until}: the last {refusals} contributions were refused, one after \
             the other; the log says why";
        Self::Waiting(Wait::Paused(why)) => "waiting: the run is paused: {why}";
        Self::Leaving(why) => "leaving, with what is trained: {why}";
        Self::Waiting(Wait::Ending) => "waiting for the last evaluation";
        Self::Waiting(Wait::Members(who)) => "waiting for {}", names(who);
    }
    Void {
        Self::LeaseLost(None) => "their lease was lost";
        Self::LeaseLost(Some(cause)) => "their lease was lost: {cause}";
        Self::RoundOver => "the round ended without them";
        Self::Restored => "the run was restored from a backup, which may not have what they build on";
        Self::NotAccepted(refusal) => "{refusal}";
        Self::Refused(because) => "{because}";
    }
    ExitReason {
        Self::RunComplete(reason) => "the run is over: {reason}";
        Self::Stopped { goodbye: true } => "stopped, after a goodbye";
        Self::Stopped { goodbye: false } =>
            "stopped without a goodbye: start it again soon to keep its lease";
        Self::Drained(why) => "left, with what was trained contributed: {why}";
        Self::Evicted(refusal) => "{refusal}";
        Self::Fenced => "a newer process trains under this name";
        Self::Busy(refusal) => "{refusal}";
        Self::OtherData(mismatch) =>
            "this replica cannot join, its data is not the run's: {mismatch}";
        Self::OlderCopy { ours, theirs } =>
            "the coordinator is at generation {theirs} and this replica has seen generation {ours} of it: \
             it serves an old copy of its data; serve the newest, or restore a backup with `hansa \
             restore`, which replicas then follow";
        Self::OtherState(what) => "the local checkpoint is {what}: name another folder";
        Self::Refused(refusal) => "{refusal}";
        Self::Unreachable(why) => "the coordinator cannot be reached: {why}";
        Self::Failed(why) => "{why}";
        Self::NotFinite(why) => "{why}";
    }
}

fn names(who: &[hansa_base::ReplicaId]) -> String {
    let names: Vec<String> = who.iter().map(ToString::to_string).collect();
    names.join(", ")
}
