//! What is asked of the coordinator's machine, and what it answers.

use crate::operator::because;
use crate::{
    ContributionParts, DigestFields, EndReason, FreedCause, GenerationInfo, LeaseView, Mismatch,
    Norm, Order, Plan, RefusedBecause,
};
use hansa_base::{
    Bytes, Generation, Hash, Incarnation, LeaseId, ReplicaId, SiteName, Timeline, Tokens, Windows,
};
use std::time::Duration;

/// A replica's incarnation, on every call after registration: what [`Lineage::caller`] makes of it.
///
/// [`Lineage::caller`]: crate::Lineage::caller
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The name.
    pub replica: ReplicaId,
    /// The run: recipe and digest.
    pub run: Hash,
    /// The history of it that issued the incarnation.
    pub timeline: Timeline,
    /// The fencing token.
    pub incarnation: Incarnation,
    /// Proof that it was issued by who has this run's data directory.
    pub seal: Hash,
}

/// The end of a process that still can say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goodbye {
    /// Who ends.
    pub caller: Caller,
    /// It ends because what it trained is not finite: the data may be the reason.
    pub not_finite: bool,
}

impl From<Caller> for Goodbye {
    /// Nothing is wrong.
    fn from(caller: Caller) -> Self {
        Self {
            caller,
            not_finite: false,
        }
    }
}

/// One input of the machine. Those marked *shell* come from the coordinator itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// A process wants to be a replica.
    Register(Register),
    /// A replica wants positions for its next phase.
    Lease(LeaseRequest),
    /// A replica lives, and says what it has done.
    Heartbeat(Heartbeat),
    /// A replica has a contribution.
    Announce(Announce),
    /// *Shell*: bytes of an announced contribution arrived.
    UploadProgress {
        /// The contribution.
        id: Hash,
        /// How many of its bytes are there by now.
        bytes: Bytes,
    },
    /// *Shell*: all bytes of an announced contribution are durable and were checked.
    UploadComplete {
        /// The contribution.
        id: Hash,
        /// The pseudo-gradient's norm, or what makes it unfit to be merged.
        found: Result<Norm, Problem>,
    },
    /// *Operator*: an order.
    Operate(Order),
    /// A replica has evaluated a generation.
    Evaluated(Evaluated),
    /// A replica ends cleanly.
    Goodbye(Goodbye),
    /// *Shell*: the files of the next generation are durable.
    Merged(Merged),
    /// *Shell*: this is a copy that is restored from a backup, and goes its own way from here.
    Restored {
        /// Later than any before.
        timeline: Timeline,
    },
    /// *Shell*: time has passed, and all input received before it was handled.
    Tick,
}

/// A registration.
#[derive(Clone, Debug, PartialEq)]
pub struct Register {
    /// The name.
    pub replica: ReplicaId,
    /// What it will read.
    pub digest: DigestFields,
    /// `W`: its accelerators.
    pub ranks: u32,
    /// Random; made durable by the replica before it registers, so that a lost answer can be asked
    /// for again.
    pub nonce: Hash,
    /// The resume token of its local checkpoint.
    pub resume: Option<Hash>,
    /// The incarnation that it was last; none if it is new to the run.
    pub held: Option<Caller>,
    /// The resume token to hand out (randomness is an argument).
    pub fresh_token: Hash,
}

/// The answer to a registration.
#[derive(Clone, Debug, PartialEq)]
pub struct Registered {
    /// The fencing token for every further call.
    pub incarnation: Incarnation,
    /// The history of the run that it is of.
    pub timeline: Timeline,
    /// Goes with it.
    pub seal: Hash,
    /// To be made durable before the first lease request.
    pub token: Hash,
    /// The predecessor's lease, if it was inherited.
    pub lease: Option<LeaseView>,
    /// The predecessor's announced contribution, to be finished by its id.
    pub announced: Option<Hash>,
    /// The current generation.
    pub current: GenerationInfo,
}

/// A request for positions.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseRequest {
    /// Who.
    pub caller: Caller,
    /// Manifest hash of the generation that it has loaded.
    pub base: Hash,
    /// How its last round went, once.
    pub times: Option<(Generation, PhaseTimes)>,
}

/// How a replica spent a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimes {
    /// Fetching the base generation and loading it.
    pub download_ms: u64,
    /// Held-out evaluation.
    pub evaluate_ms: u64,
    /// Inner steps.
    pub train_ms: u64,
    /// Local checkpoints and encoding.
    pub checkpoint_ms: u64,
    /// Sending the contribution.
    pub upload_ms: u64,
    /// Waiting for the others and for the merge.
    pub wait_ms: u64,
    /// Windows trained in `train_ms`, whatever became of them.
    pub trained: Windows,
    /// Bytes of the contribution that was sent in `upload_ms`.
    pub uploaded: Bytes,
}

/// The answer to a [`LeaseRequest`].
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseAnswer {
    /// Train this.
    Train(Grant),
    /// Load this generation first.
    Adopt(GenerationInfo),
    /// Evaluate the generation that you have loaded, report, and ask again.
    Evaluate(Generation),
    /// Nothing to do now; ask again.
    Wait(Wait),
    /// Contribute what is there and leave: why, for people.
    Leave(String),
    /// The run is over.
    Finish(EndReason),
}

/// What to train.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// The whole lease.
    pub lease: LeaseView,
    /// The part of it that is this phase.
    pub plan: Plan,
    /// The base generation, for the schedule.
    pub base: GenerationInfo,
}

/// Why there is nothing to train.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The round's contributions are being merged.
    Merging,
    /// This replica has contributed; these have not yet, and perhaps further ones.
    Members(Vec<ReplicaId>),
    /// Everything left of the epoch is with others.
    NothingFree,
    /// No step of this replica would fit before the round closes; it takes part in the next.
    NextRound,
    /// Sending a contribution takes this replica longer than a whole round may last.
    ExchangeTooLong {
        /// What it was measured to need.
        exchange: Duration,
        /// A round of the others, with the grace window.
        round: Duration,
    },
    /// This replica was refused again and again; it takes part again in that round.
    SetBack {
        /// Refusals in a row.
        refusals: u32,
        /// The round.
        until: Generation,
    },
    /// The run is paused: why, for people.
    Paused(String),
    /// The run is ending; the last generation is being evaluated.
    Ending,
}

/// A sign of life, with what was done since.
#[derive(Clone, Debug, PartialEq)]
pub struct Heartbeat {
    /// Who.
    pub caller: Caller,
    /// What it does.
    pub progress: Progress,
    /// The lease whose windows its weights or its checkpoint contain, and the offset in it of the
    /// next window to train (`cursor`).
    pub at: Option<(LeaseId, Windows)>,
}

/// What a replica does, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// The activity.
    pub activity: Activity,
    /// Grows as the activity proceeds: windows trained or evaluated, bytes moved. 0 where there is
    /// nothing to count.
    pub counter: u64,
    /// Measured duration of a step.
    pub step: Option<Duration>,
    /// Measured duration of the last call.
    pub rtt: Option<Duration>,
    /// Loss of the last step, in nats per token.
    pub loss: Option<f64>,
    /// Target tokens per second spent training.
    pub tokens_per_s: Option<f64>,
}

/// What a replica can be doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activity {
    /// Loading its state.
    Starting,
    /// Fetching a generation.
    Downloading,
    /// Inner steps.
    Training,
    /// Writing a local checkpoint or encoding a contribution.
    Checkpointing,
    /// Sending a contribution.
    Uploading,
    /// Held-out evaluation.
    Evaluating,
    /// Waiting for the coordinator or for other replicas.
    Waiting,
    /// Contributing what is there, before it ends.
    Leaving,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// The lease, if it still has one.
    pub lease: Option<LeaseView>,
    /// Why it lost its lease, if it did in this round.
    pub lost: Option<FreedCause>,
    /// The current generation; if it is not the base, what is trained on that base is void.
    pub current: GenerationInfo,
    /// True while the open round is being merged.
    pub merging: bool,
    /// The run's end, once it is decided.
    pub ending: Option<EndReason>,
    /// What the round waits for.
    pub waits_for: Vec<ReplicaId>,
    /// When the next heartbeat is wanted.
    pub next: Duration,
    /// How long the lease lives without progress.
    pub ttl: Duration,
    /// Contribute what is there and leave: why, for people.
    pub leave: Option<String>,
}

/// An announcement.
#[derive(Clone, Debug, PartialEq)]
pub struct Announce {
    /// Who.
    pub caller: Caller,
    /// What; its id is the hash of this.
    pub parts: ContributionParts,
}

/// The answer to an announcement. The same id gets the same answer, unless it was refused for a
/// reason that holds no longer, such as a lost lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send the bytes.
    Upload,
    /// It is complete; it waits for the merge.
    Staged,
    /// It is in this generation's weights.
    Merged(Generation),
    /// It will not be merged; load the current generation and start again from the lease's front.
    Refused(RefusedBecause),
}

/// What the gate found in a contribution's file; the text is for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It is no file of the run's model: header, names, shapes, types, size.
    #[error("{0}")]
    Form(String),
    /// It has values that are not finite: the data may be the reason.
    #[error("{0}")]
    NotFinite(String),
}

/// An evaluation's result.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// Who.
    pub caller: Caller,
    /// The generation.
    pub generation: Generation,
    /// Sum of the loss over all target tokens, in nats.
    pub loss_sum_nats: f64,
    /// How many target tokens.
    pub tokens: Tokens,
}

/// The result of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The new generation.
    pub generation: Generation,
    /// Manifest hash of the model that travels.
    pub manifest: Hash,
    /// How long the merge took.
    pub merge_ms: u64,
}

/// The machine's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// To [`Command::Register`].
    Registered(Registered),
    /// To [`Command::Lease`].
    Lease(LeaseAnswer),
    /// To [`Command::Heartbeat`].
    Standing(Standing),
    /// To [`Command::Announce`] and [`Command::UploadComplete`].
    Verdict(Verdict),
    /// To the others.
    Done,
}

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Another process of this name is alive.
    #[error("another process trains as {replica}; it counts as alive for {} s more unless it is heard of", .retry.as_secs_f64().ceil())]
    Busy {
        /// The name.
        replica: ReplicaId,
        /// When to try again.
        retry: Duration,
    },
    /// It would read other data.
    #[error("this replica cannot join: {0}")]
    OtherData(Mismatch),
    /// A newer incarnation of the name took over.
    #[error("a newer process trains as {replica}: this one must stop")]
    Fenced {
        /// The name.
        replica: ReplicaId,
    },
    /// The incarnation was declared dead, or said goodbye; it may register again.
    #[error("{replica} was given up as lost: register again")]
    Gone {
        /// The name.
        replica: ReplicaId,
    },
    /// The call names something that this coordinator never issued, and proves that a copy of its
    /// journal did: this one is old.
    #[error("the call names {what}, which this coordinator never issued: its data is an old copy")]
    NeverIssued {
        /// What.
        what: String,
    },
    /// The call is of another run.
    #[error(
        "the call is of run {}, this coordinator serves run {}: use that run's coordinator, or another \
         state directory for this one", .theirs.short(), .ours.short()
    )]
    OtherRun {
        /// The run served.
        ours: Hash,
        /// The caller's.
        theirs: Hash,
    },
    /// The run was restored from a backup since the caller registered: what it has may be of a part of
    /// the history that is no more.
    #[error(
        "the run was restored from a backup and goes on in timeline {timeline}: register afresh"
    )]
    Restored {
        /// The running timeline.
        timeline: Timeline,
    },
    /// The caller is of a history of the run that is not in this coordinator's past.
    #[error(
        "this coordinator serves another copy of the run (timeline {ours}) than the one that this \
         replica trained with (timeline {theirs}): name the coordinator of that copy, or, to take part \
         here, use another state directory"
    )]
    OtherHistory {
        /// The running timeline.
        ours: Timeline,
        /// The caller's.
        theirs: Timeline,
    },
    /// The call carries a seal that is not this run's: it is made up.
    #[error(
        "the seal of the call is not that of {replica}'s incarnation: use another state directory"
    )]
    NotSealed {
        /// The name.
        replica: ReplicaId,
    },
    /// A generation that this coordinator has not made. Anybody can name a number, so this says nothing
    /// of whose copy is old; the caller finds out when it is told to go back.
    #[error(
        "generation {generation} is later than this coordinator's: one of the two is an old copy"
    )]
    NoSuchGeneration {
        /// Which.
        generation: Generation,
    },
    /// No such replica is registered.
    #[error("{replica} is not registered")]
    Unknown {
        /// The name.
        replica: ReplicaId,
    },
    /// The announcement does not start at the front of the caller's lease, or has a gap.
    #[error("the contribution does not continue lease {lease:?} from its front without a gap")]
    NotFromFront {
        /// The caller's lease.
        lease: Option<LeaseId>,
    },
    /// The announcement goes beyond what was reserved for the caller.
    #[error(
        "the contribution holds {said} windows, but only {reserved} of the lease were reserved for it"
    )]
    BeyondMark {
        /// Windows of the contribution.
        said: Windows,
        /// Windows of the lease below its mark.
        reserved: Windows,
    },
    /// The base is not the current generation, or the round is closed.
    #[error(
        "the contribution is stale: it was trained on generation {base}, the run is at {current}"
    )]
    Stale {
        /// Its base.
        base: Generation,
        /// The current generation.
        current: Generation,
    },
    /// The name has contributed to this round.
    #[error("{replica} has contributed to this round")]
    ContributedAlready {
        /// The name.
        replica: ReplicaId,
    },
    /// Numbers that do not fit together.
    #[error("the contribution says {said} tokens, its positions hold {real}")]
    WrongTokens {
        /// What it says.
        said: Tokens,
        /// What its positions hold.
        real: Tokens,
    },
    /// No such contribution is announced.
    #[error("no contribution {0} is announced")]
    UnknownContribution(Hash),
    /// An operator named a window that is not quarantined.
    #[error("window {0} is not quarantined")]
    NotQuarantined(u64),
    /// The replica was evicted.
    #[error(
        "an operator evicted {replica}{}; it may come back after `hansa replica readmit {replica}`",
        because(why)
    )]
    Evicted {
        /// The name.
        replica: ReplicaId,
        /// The operator's reason.
        why: String,
    },
    /// The site is drained.
    #[error(
        "site {site} is drained{}; its replicas may come back after `hansa site undrain {site}`",
        because(why)
    )]
    Drained {
        /// The site.
        site: SiteName,
        /// The operator's reason.
        why: String,
    },
    /// An operator named a site of which no replica ever registered.
    #[error("no replica of site {site} ever registered")]
    UnknownSite {
        /// The site.
        site: SiteName,
    },
    /// An operator's order makes no sense now.
    #[error("there is nothing to do: {what}")]
    Pointless {
        /// Why.
        what: String,
    },
    /// The run is over.
    #[error("the run is over: {0}")]
    RunOver(EndReason),
    /// The machine found its own state broken: the process must end.
    #[error("an invariant is broken: {0}")]
    Broken(String),
}

impl Refusal {
    /// Whether the coordinator does not know the caller, and never will: it serves something else.
    #[must_use]
    pub const fn is_of_another_history(&self) -> bool {
        matches!(
            self,
            Self::NeverIssued { .. }
                | Self::NoSuchGeneration { .. }
                | Self::NotSealed { .. }
                | Self::OtherHistory { .. }
                | Self::OtherRun { .. }
                | Self::Unknown { .. }
        )
    }
}

impl Registered {
    /// What the replica shows with every further call.
    #[must_use]
    pub fn caller(&self, run: Hash, replica: ReplicaId) -> Caller {
        Caller {
            replica,
            run,
            timeline: self.timeline,
            incarnation: self.incarnation,
            seal: self.seal,
        }
    }
}
