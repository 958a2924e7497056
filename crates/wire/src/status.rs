//! What `GET /v1/status` says, for `hansa status`, progress bars and the web page.
//!
//! A report, not a command: plain data, built from durable state and live progress, never read back by
//! the coordinator. Numbers that mean windows, tokens or milliseconds say so in their names.

use serde::{Deserialize, Serialize};

/// The state of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`crate::WIRE_VERSION`].
    pub wire: u32,
    /// The coordinator's hansa version.
    pub hansa: String,
    /// The run's name.
    pub run: String,
    /// The run's identity, 64 hexadecimal digits.
    pub run_id: String,
    /// The history of the run: a restore begins another.
    pub timeline: u64,
    /// Seconds since this coordinator process started; 0 if nobody serves the run.
    pub uptime_s: u64,
    /// The current generation.
    pub generation: GenerationStatus,
    /// The running pass over the corpus, from 0.
    pub epoch: u32,
    /// How many windows of the epoch are in which state.
    pub ledger: LedgerStatus,
    /// All names that ever registered, in order of first registration.
    pub replicas: Vec<ReplicaStatus>,
    /// The newest completed rounds, oldest of them first.
    pub rounds: Vec<RoundStatus>,
    /// All held-out evaluations.
    pub evaluations: Vec<EvaluationStatus>,
    /// Windows of the corpus that were taken out, lowest first, the first thousand.
    pub quarantined_windows: Vec<u64>,
    /// What the run waits for.
    pub waiting: Waiting,
    /// Why the run is paused, if it is.
    pub paused: Option<String>,
    /// Sites that are drained, each with the operator's reason.
    pub drained: Vec<(String, String)>,
    /// Of these, those whose drain ends by itself, and when, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drain_ends_s: Vec<(String, u64)>,
    /// The operator's reason, once the run is to end after the open round.
    pub stopping: Option<String>,
    /// Why the run ends or ended.
    pub ending: Option<String>,
    /// True once it is over.
    pub ended: bool,
    /// Where the exported model lies, once it is.
    pub export: Option<String>,
}

/// The current generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerationStatus {
    /// Its number.
    pub number: u64,
    /// Its model's manifest hash.
    pub manifest: String,
    /// Cumulative inner step.
    pub inner_step: u64,
    /// Tokens committed up to it.
    pub tokens: u64,
    /// Part of the run that is done, `0..=1`.
    pub progress: f64,
}

/// Windows of the epoch by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerStatus {
    /// All.
    pub windows: u64,
    /// Nobody has them.
    pub free: u64,
    /// Under a lease.
    pub leased: u64,
    /// In a contribution that waits for its merge.
    pub staged: u64,
    /// In the published weights.
    pub committed: u64,
    /// Taken out.
    pub quarantined: u64,
    /// Committed in earlier epochs.
    pub committed_before: u64,
    /// Target tokens of a window.
    pub seq_len: u32,
}

/// One replica name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// The facility.
    pub site: String,
    /// The replica at it.
    pub replica: String,
    /// Its latest incarnation.
    pub incarnation: u64,
    /// Accelerators.
    pub ranks: u32,
    /// Whether the incarnation lives.
    pub live: bool,
    /// Why it does not.
    pub left: Option<String>,
    /// Why an operator does not let it in, if that is so.
    pub evicted: Option<String>,
    /// Contributions of it that the gate refused since it last accepted one.
    pub refused_in_a_row: u32,
    /// What it was doing when last heard of; only while it lives.
    pub activity: Option<String>,
    /// Milliseconds since it was last heard of.
    pub heard_ms_ago: Option<u64>,
    /// Milliseconds since it last showed progress.
    pub progressed_ms_ago: Option<u64>,
    /// The counter of its activity: windows trained in the phase, bytes moved.
    pub counter: u64,
    /// Inner steps of its phase, as planned.
    pub phase_steps: Option<u64>,
    /// Windows of its phase, as planned.
    pub phase_windows: Option<u64>,
    /// Duration of a step.
    pub step_ms: Option<f64>,
    /// Loss of its last step, in nats per token.
    pub loss: Option<f64>,
    /// Target tokens per second spent training.
    pub tokens_per_s: Option<f64>,
    /// Its lease.
    pub lease: Option<LeaseStatus>,
    /// Why it lost its lease, if it did in the open round.
    pub lost: Option<String>,
    /// The open round is being waited for this replica.
    pub awaited: bool,
    /// It has contributed to the open round.
    pub contributed: bool,
    /// Its share of the run.
    pub tally: TallyStatus,
}

/// A live lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// Its number.
    pub id: u64,
    /// Windows from its front on.
    pub windows: u64,
    /// First and one past the last position of each range.
    pub spans: Vec<(u64, u64)>,
}

/// What a name has been given and has given, in windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TallyStatus {
    /// Leased to it.
    pub granted: u64,
    /// In the published weights.
    pub committed: u64,
    /// Taken back because it was lost.
    pub reclaimed: u64,
    /// Of those, lost in a way that the data may be to blame for: a crash, a hang, or values that are
    /// not finite.
    pub failed: u64,
    /// Given back.
    pub released: u64,
    /// Taken back, and given to it again when it was heard of.
    pub revived: u64,
    /// Taken from its leases by idle replicas.
    pub stolen: u64,
    /// Taken over from a predecessor's lease.
    pub inherited: u64,
    /// Contributions refused after they were announced.
    pub refused: u32,
    /// Process lifetimes.
    pub incarnations: u32,
}

/// A completed round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundStatus {
    /// Its base generation; it made the next.
    pub base: u64,
    /// Why it closed.
    pub reason: String,
    /// Windows that it committed.
    pub windows: u64,
    /// Tokens that it committed.
    pub tokens: u64,
    /// How long the merge took.
    pub merge_ms: u64,
    /// Who contributed, and how each spent the round.
    pub members: Vec<RoundMember>,
}

/// One contributor of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundMember {
    /// `site/replica`.
    pub replica: String,
    /// Windows.
    pub windows: u64,
    /// Inner steps.
    pub steps: u64,
    /// How it spent the round, once it has said so.
    pub times: Option<TimesStatus>,
}

/// How a replica spent a round, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimesStatus {
    /// Fetching and loading the base generation.
    pub download_ms: u64,
    /// Held-out evaluation.
    pub evaluate_ms: u64,
    /// Inner steps.
    pub train_ms: u64,
    /// Checkpoints and encoding.
    pub checkpoint_ms: u64,
    /// Sending the contribution.
    pub upload_ms: u64,
    /// Waiting for the others and for the merge.
    pub wait_ms: u64,
}

/// A held-out evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationStatus {
    /// The generation.
    pub generation: u64,
    /// Mean loss, in nats per token.
    pub loss: f64,
    /// `e^loss`.
    pub perplexity: f64,
    /// Target tokens.
    pub tokens: u64,
}

/// What a run waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// For programs.
    pub reason: WaitReason,
    /// For people.
    pub text: String,
}

/// What a run can wait for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// Nobody serves the run.
    Coordinator,
    /// An operator: the run is paused.
    Operator,
    /// No replica is live.
    Replicas,
    /// These members train or send.
    Members(Vec<String>),
    /// The merge of this round.
    Merge(u64),
    /// Live replicas that have not asked for positions.
    Requests,
    /// The evaluation of this generation, the last thing to do.
    Evaluation(u64),
    /// Live replicas to leave.
    Farewell(Vec<String>),
    /// Nothing: the run is over.
    Nothing,
}
