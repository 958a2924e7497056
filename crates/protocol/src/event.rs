//! What has happened. Events are journaled before anybody is told, and [`crate::State::apply`] is
//! the only way that state changes.

use crate::{CloseRecord, ContributionParts, Norm, Pause, PhaseTimes, Plan, Span};
use hansa_base::{
    ContributionNo, Epoch, Generation, Hash, Incarnation, LeaseId, ReplicaId, ReplicaKey, SiteName,
    Timeline, Tokens, WallS, Windows,
};

/// One change of the run's state.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A process registered and got an incarnation. A predecessor is fenced by this.
    Registered {
        /// The name's key; a new one is appended to the table of names.
        key: ReplicaKey,
        /// The name.
        id: ReplicaId,
        /// Its new incarnation.
        incarnation: Incarnation,
        /// `W`: its accelerators.
        ranks: u32,
        /// The registration's nonce.
        nonce: Hash,
        /// The resume token that it presented.
        presented: Option<Hash>,
        /// The resume token that it received.
        token: Hash,
        /// The lease that it inherited.
        inherited: Option<LeaseId>,
    },
    /// An incarnation is no longer alive; its name holds no lease any more.
    Left {
        /// Whose.
        key: ReplicaKey,
        /// Which.
        incarnation: Incarnation,
        /// Why.
        reason: LeftReason,
    },
    /// A lease was made or topped up.
    Granted {
        /// The lease; a new one if nobody holds it yet.
        lease: LeaseId,
        /// Its holder.
        key: ReplicaKey,
        /// Its holder's incarnation.
        incarnation: Incarnation,
        /// What was added at its end.
        spans: Vec<Span>,
    },
    /// Its holder may touch more of a lease.
    Marked {
        /// The lease.
        lease: LeaseId,
        /// Offset of the end of what it may touch.
        mark: Windows,
    },
    /// An idle replica took the tail of another's lease.
    Stolen(Steal),
    /// A replica that was given up got the first part of its lease back, as nobody else had it.
    Revived {
        /// Who.
        key: ReplicaKey,
        /// Its incarnation, still the same.
        incarnation: Incarnation,
        /// How much of it, from its front.
        windows: Windows,
    },
    /// A replica that was given up was there all the time: what it lost is not held against the data.
    Absolved {
        /// Who.
        key: ReplicaKey,
    },
    /// What was left of a lease is free again, and the lease is over.
    Freed {
        /// The lease.
        lease: LeaseId,
        /// Why.
        cause: FreedCause,
        /// So many windows from its front on may be the reason: they were being trained.
        at_risk: Windows,
    },
    /// Positions were lost too often: nobody gets them any more, in no epoch.
    Quarantined {
        /// Which, in the running epoch.
        spans: Vec<Span>,
    },
    /// Windows were let out of quarantine, into the running epoch.
    LetOut {
        /// Which windows of the corpus.
        windows: Vec<u64>,
    },
    /// A replica became a member of the round.
    Planned {
        /// Who.
        key: ReplicaKey,
        /// What it is to train.
        plan: Plan,
    },
    /// A replica is not waited for in this round.
    Excused {
        /// Who.
        key: ReplicaKey,
        /// Why.
        because: ExcusedBecause,
    },
    /// A contribution was accepted for upload.
    Announced {
        /// Its number.
        no: ContributionNo,
        /// Who.
        key: ReplicaKey,
        /// Who, exactly.
        incarnation: Incarnation,
        /// What.
        parts: ContributionParts,
    },
    /// An announced contribution will not be merged; its positions stay with the lease.
    Refused {
        /// Its number.
        no: ContributionNo,
        /// Why.
        because: RefusedBecause,
    },
    /// A contribution is complete and durable.
    Staged {
        /// Its number.
        no: ContributionNo,
        /// The pseudo-gradient's norm.
        norm: Norm,
    },
    /// A replica trained the same again that had been refused.
    RefusedAgain {
        /// Who.
        key: ReplicaKey,
    },
    /// The round takes no more contributions and is merged.
    Closed(CloseRecord),
    /// The merge is durable: the next generation exists, and its positions are committed.
    Published {
        /// The new generation.
        generation: Generation,
        /// Manifest hash of the model that travels.
        manifest: Hash,
        /// How long the merge took.
        merge_ms: u64,
    },
    /// A replica reported how it spent a round.
    Timed {
        /// Who.
        key: ReplicaKey,
        /// The round's base generation.
        generation: Generation,
        /// How long what took.
        times: PhaseTimes,
    },
    /// A replica was asked to evaluate a generation.
    EvaluationAsked {
        /// Which.
        generation: Generation,
        /// Whom.
        key: ReplicaKey,
    },
    /// It did not answer in time, or left; another may be asked.
    EvaluationLost {
        /// Which.
        generation: Generation,
    },
    /// A generation was evaluated on the held-out windows.
    Evaluated {
        /// Which.
        generation: Generation,
        /// By whom.
        key: ReplicaKey,
        /// Sum of the loss, in nats.
        loss_sum_nats: f64,
        /// Over so many tokens.
        tokens: Tokens,
    },
    /// Everything of an epoch is committed or quarantined; the next begins.
    EpochStarted {
        /// The new epoch.
        epoch: Epoch,
    },
    /// A copy was restored from a backup; it goes its own way.
    Restored {
        /// The timeline that begins.
        timeline: Timeline,
    },
    /// Nothing is granted, closed or given up for lost any more.
    Paused(Pause),
    /// The run goes on.
    Resumed {
        /// An operator's reason.
        why: String,
    },
    /// The site's replicas are told to leave, and none is let in.
    Drained {
        /// Which.
        site: SiteName,
        /// An operator's reason.
        why: String,
    },
    /// The drain ends by itself.
    DrainEnds {
        /// Of which site.
        site: SiteName,
        /// When.
        at: WallS,
    },
    /// They are let in again.
    Undrained {
        /// Which.
        site: SiteName,
        /// An operator's reason.
        why: String,
    },
    /// A replica that is no longer alive is not let in any more.
    Evicted {
        /// Which.
        key: ReplicaKey,
        /// An operator's reason.
        why: String,
    },
    /// It is let in again.
    Readmitted {
        /// Which.
        key: ReplicaKey,
        /// An operator's reason.
        why: String,
    },
    /// The run is to end after the open round; a pause is over.
    Stopping {
        /// An operator's reason.
        why: String,
    },
    /// The end condition is reached: nothing is granted any more.
    Ending(EndReason),
    /// The run is over.
    Ended,
}

/// Why an incarnation left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftReason {
    /// It said goodbye.
    Goodbye,
    /// It was not heard of within the session TTL.
    SessionExpired,
    /// It said goodbye, because its site is drained.
    Drained,
    /// An operator evicted it.
    Evicted,
    /// The run ended.
    RunEnded,
    /// The run was restored from a backup.
    Restored,
}

/// A steal: no acknowledgement is needed, as the victim touches nothing at or beyond its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steal {
    /// The lease that becomes shorter.
    pub from: LeaseId,
    /// Its mark.
    pub mark: Windows,
    /// How many windows are taken from its end.
    pub windows: Windows,
    /// The lease that gets them; a new one if the thief holds none.
    pub lease: LeaseId,
    /// The thief.
    pub key: ReplicaKey,
    /// The thief's incarnation.
    pub incarnation: Incarnation,
}

/// Why a member of a round is not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExcusedBecause {
    /// It could get no positions.
    NothingFree,
    /// It is there, but shows no progress.
    NoProgress,
    /// The run is being stopped, and it had not begun.
    Stopping,
}

/// Why positions are free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreedCause {
    /// The lease's TTL passed without progress.
    LeaseExpired,
    /// Its holder was not heard of within the session TTL.
    SessionExpired,
    /// Half of all leases or more ended at once: the network's fault, or the coordinator's.
    ManyAtOnce,
    /// What its holder made of its positions was not finite.
    NotFinite,
    /// Its holder said goodbye.
    Goodbye,
    /// An operator evicted its holder.
    Evicted,
    /// What its holder made of them was refused again and again.
    Refused,
    /// The run needs them no more.
    RunEnding,
    /// The run was restored from a backup: its holder is of another history.
    Restored,
}

impl FreedCause {
    /// True if the holder was lost, false if it gave the positions back.
    #[must_use]
    pub const fn is_loss(self) -> bool {
        matches!(self, Self::ManyAtOnce | Self::Evicted) || self.is_attempt()
    }

    /// True if the data may be the reason: a crash, a hang, or numbers that are not finite.
    #[must_use]
    pub const fn is_attempt(self) -> bool {
        matches!(
            self,
            Self::LeaseExpired | Self::SessionExpired | Self::NotFinite
        )
    }
}

/// Why an announced contribution will not be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBecause {
    /// The round closed before it was complete.
    Late,
    /// Its lease was lost before it was complete.
    LeaseLost,
    /// Its author announced another one in its place.
    Replaced,
    /// Its form is not the run's.
    Gate,
    /// It has values that are not finite.
    NotFinite,
    /// Its norm is far above those accepted lately.
    Norm {
        /// Its norm.
        norm: Norm,
        /// The largest that it might have had.
        bound: Norm,
    },
    /// The run ended before it was complete.
    RunEnding,
    /// It took longer than twice the time that its size and the link's measured goodput allow.
    TooSlow,
}

/// Why a round closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Every member that was not excused had contributed.
    AllContributed {
        /// How many.
        members: u32,
    },
    /// The grace window was over.
    GraceOver {
        /// Contributions that were there.
        staged: u32,
        /// Members that it could have had.
        members: u32,
    },
}

/// Why a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// Its number of rounds is done.
    Rounds,
    /// Its tokens are committed.
    Tokens,
    /// Its epochs are done.
    Epochs,
    /// An operator stopped it.
    Stopped,
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
    LeftReason {
        Self::Goodbye => "it said goodbye";
        Self::SessionExpired => "it was not heard of within the session TTL";
        Self::Drained => "its site is drained";
        Self::Evicted => "an operator evicted it";
        Self::RunEnded => "the run ended";
        Self::Restored => "the run was restored from a backup";
    }
    FreedCause {
        Self::LeaseExpired => "the lease's TTL passed without progress";
        Self::SessionExpired => "the holder was not heard of within the session TTL";
        Self::ManyAtOnce => "half of all leases or more ended at once: a network or coordinator fault";
        Self::NotFinite => "what its holder made of its positions was not finite";
        Self::Goodbye => "the holder said goodbye";
        Self::Evicted => "an operator evicted the holder";
        Self::Refused => "what its holder made of them was refused again and again";
        Self::RunEnding => "the run needs them no more";
        Self::Restored => "the run was restored from a backup";
    }
    RefusedBecause {
        Self::Late => "the round closed before it was complete";
        Self::LeaseLost => "its lease was lost before it was complete";
        Self::Replaced => "its author announced another one in its place";
        Self::Gate => "its form is not the run's";
        Self::NotFinite => "it has values that are not finite";
        Self::Norm { norm, bound } =>
            "its norm, {norm}, is far above those accepted lately: at most {bound} would pass";
        Self::RunEnding => "the run ended before it was complete";
        Self::TooSlow =>
            "its upload took more than twice the time that the measured goodput of its link allows";
    }
    ExcusedBecause {
        Self::NothingFree => "there were no positions for it";
        Self::NoProgress => "it answers, but shows no progress";
        Self::Stopping => "the run is being stopped, and it had not begun";
    }
    CloseReason {
        Self::AllContributed { members } => "all {members} members contributed";
        Self::GraceOver { staged, members } =>
            "the grace window was over with {staged} of {members} members";
    }
    EndReason {
        Self::Rounds => "its number of rounds is done";
        Self::Tokens => "its token target is committed";
        Self::Epochs => "its epochs are done";
        Self::Stopped => "an operator stopped it";
    }
}
