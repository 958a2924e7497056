//! The recipe's tables, key by key. `docs` and error messages use these names.

use std::path::PathBuf;
use std::time::Duration;

use hansa_base::{Steps, Tokens, Windows};
use hansa_outer::{Codec, Dtype};
use hansa_protocol::{GraceRule, OuterSpec, PhaseSpec, Solo};
use hansa_train::{AdamWConfig, Schedule};
use serde::{Deserialize, Serialize};

/// `[corpus]`: what is trained on, in which order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorpusSection {
    /// The corpus directory or its `manifest.json`, relative to the recipe's file.
    pub path: PathBuf,
    /// Target tokens of a window; that of the corpus.
    pub seq_len: u32,
    /// `K`: consecutive windows of a block. Default 16.
    #[serde(default = "default_block_windows")]
    pub block_windows: u64,
    /// `s`: the seed of each epoch's permutation. Default 0.
    #[serde(default)]
    pub seed: u64,
}

fn default_block_windows() -> u64 {
    16
}

/// `[phase]`: what one replica does between two exchanges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseSection {
    /// `H`: inner steps of a phase.
    pub steps: u64,
    /// `B`: windows a rank takes per micro-batch.
    pub batch: u64,
    /// `A`: micro-batches of a step. Default 1.
    #[serde(default = "one")]
    pub accumulation: u32,
    /// Whether faster replicas get more accumulation, by measured rates, so that all finish a phase
    /// together. Default true.
    #[serde(default = "yes")]
    pub balance: bool,
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

impl PhaseSection {
    pub(super) fn spec(&self) -> PhaseSpec {
        PhaseSpec {
            steps: Steps(self.steps),
            batch: Windows(self.batch),
            accumulation: self.accumulation,
            balance: self.balance,
        }
    }
}

/// `[inner]`: AdamW and its learning rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InnerSection {
    /// Highest learning rate.
    pub peak_lr: f64,
    /// Inner steps of linear warm-up. Default 100.
    #[serde(default = "default_warmup_steps")]
    pub warmup_steps: u64,
    /// Share of the run, counted from its end, over which the cosine falls. Default 1.
    #[serde(default = "default_decay_fraction")]
    pub decay_fraction: f64,
    /// Learning rate at the run's end, as a fraction of the peak. Default 0.1.
    #[serde(default = "default_floor")]
    pub floor: f64,
    /// Decay of the first moment. Default 0.9.
    #[serde(default = "default_beta1")]
    pub beta1: f64,
    /// Decay of the second moment. Default 0.95.
    #[serde(default = "default_beta2")]
    pub beta2: f64,
    /// Decoupled weight decay. Default 0.1.
    #[serde(default = "default_weight_decay")]
    pub weight_decay: f64,
    /// Added to the root of the second moment. Default 1e-8.
    #[serde(default = "default_eps")]
    pub eps: f64,
    /// Gradients with a larger global norm are scaled down to it. Default 1.
    #[serde(default = "default_clip_norm")]
    pub clip_norm: f64,
    /// Seed of freshly drawn weights. Default 0.
    #[serde(default)]
    pub init_seed: u64,
    /// A safetensors file to start from instead, relative to the recipe's file. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_from: Option<PathBuf>,
}

fn default_warmup_steps() -> u64 {
    100
}
fn default_decay_fraction() -> f64 {
    1.0
}
fn default_floor() -> f64 {
    0.1
}
fn default_beta1() -> f64 {
    AdamWConfig::default().beta1
}
fn default_beta2() -> f64 {
    AdamWConfig::default().beta2
}
fn default_weight_decay() -> f64 {
    AdamWConfig::default().weight_decay
}
fn default_eps() -> f64 {
    AdamWConfig::default().eps
}
fn default_clip_norm() -> f64 {
    AdamWConfig::default().clip_norm
}

impl InnerSection {
    /// The optimiser's settings.
    #[must_use]
    pub fn adamw(&self) -> AdamWConfig {
        AdamWConfig {
            beta1: self.beta1,
            beta2: self.beta2,
            weight_decay: self.weight_decay,
            eps: self.eps,
            clip_norm: self.clip_norm,
        }
    }

    /// The learning rate's course.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        Schedule {
            peak_lr: self.peak_lr,
            warmup_steps: self.warmup_steps,
            decay_fraction: self.decay_fraction,
            floor: self.floor,
        }
    }
}

/// `[outer]`: the step from one generation to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OuterSection {
    /// `η`. Default 0.7.
    pub lr: f64,
    /// `μ`. Default 0.9.
    pub momentum: f64,
    /// What a round with one contribution does: `"adopt"` (default; take over its weights), `"full"`
    /// (`η = 1`, with momentum) or `"same"` (no special case). The default was measured: see
    /// `docs/adr/0001-solo-rounds-adopt.md`.
    #[serde(with = "solo")]
    pub solo: Solo,
}

impl Default for OuterSection {
    fn default() -> Self {
        Self {
            lr: 0.7,
            momentum: 0.9,
            solo: Solo::Adopt,
        }
    }
}

impl OuterSection {
    pub(super) fn spec(&self) -> OuterSpec {
        OuterSpec {
            lr: self.lr,
            momentum: self.momentum,
            solo: self.solo,
        }
    }
}

/// `[exchange]`: how weights travel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExchangeSection {
    /// Pseudo-gradients: `"f32"` (default), `"bf16"` or `"int8"`; contributions in another are refused.
    #[serde(with = "named")]
    pub contribution: Codec,
    /// Models: `"f32"` (default) or `"bf16"`.
    #[serde(with = "named")]
    pub model: Dtype,
    /// Size of a chunk, in MiB: 1 to 256. Default 16.
    pub chunk_mib: u64,
}

impl Default for ExchangeSection {
    fn default() -> Self {
        Self {
            contribution: Codec::F32,
            model: Dtype::F32,
            chunk_mib: 16,
        }
    }
}

impl ExchangeSection {
    /// Size of a chunk, in bytes.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_mib << 20
    }
}

/// `[rounds]`: when a round closes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoundsSection {
    /// Contributions that a round waits for, if it has that many members. Default 1.
    pub min_quorum: u32,
    /// Seconds that a round stays open after its first contribution. Default 60.
    pub grace_s: f64,
    /// Whether that is `"fixed"` (default), or `"adaptive"`: the window follows what is observed,
    /// between a quarter and four times of `grace_s`.
    #[serde(with = "grace_rule")]
    pub grace: GraceRule,
}

impl Default for RoundsSection {
    fn default() -> Self {
        Self {
            min_quorum: 1,
            grace_s: 60.0,
            grace: GraceRule::Fixed,
        }
    }
}

/// `[lease]`: how long leases and sessions live.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseSection {
    /// `α`: expected report intervals that a lease lives. Default 2.5.
    pub alpha: f64,
    /// `β`: round trips that are added. Default 10.
    pub beta: f64,
    /// The shortest lease, in seconds. Default 60.
    pub ttl_min_s: f64,
    /// The longest lease, in seconds. Default 1800.
    pub ttl_max_s: f64,
    /// Seconds that a replica counts as alive without any call. Default 300.
    pub session_ttl_s: f64,
    /// Seconds of training that a replica may be ahead of what the coordinator has heard: so long it
    /// trains on when it cannot reach it. Default 300.
    pub mark_lead_s: f64,
    /// How often a window may be lost with who trains it, by two replicas or more, before it is
    /// quarantined. Default 3.
    pub max_attempts: u32,
}

impl Default for LeaseSection {
    fn default() -> Self {
        Self {
            alpha: 2.5,
            beta: 10.0,
            ttl_min_s: 60.0,
            ttl_max_s: 1800.0,
            session_ttl_s: 300.0,
            mark_lead_s: 300.0,
            max_attempts: 3,
        }
    }
}

/// `[evaluation]`: held-out loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvaluationSection {
    /// Every how many generations one is evaluated; 0 means never. Default 1.
    pub every: u64,
    /// Seconds that one replica may take for it. Default 600.
    pub budget_s: f64,
    /// At most so many held-out windows are used, from the first on. Default all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows_max: Option<u64>,
}

impl Default for EvaluationSection {
    fn default() -> Self {
        Self {
            every: 1,
            budget_s: 600.0,
            windows_max: None,
        }
    }
}

/// `[checkpoint]`: the replicas' own checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointSection {
    /// Seconds between two checkpoints within a phase. Default 60.
    pub every_s: f64,
}

impl Default for CheckpointSection {
    fn default() -> Self {
        Self { every_s: 60.0 }
    }
}

impl CheckpointSection {
    /// The time between two checkpoints within a phase.
    #[must_use]
    pub fn every(&self) -> Duration {
        seconds(self.every_s).unwrap_or(Duration::MAX)
    }
}

/// `[plan]`: who decides which jobs are wanted. It is no part of what makes the run this run, and may be
/// changed when the coordinator is started again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanSection {
    /// `"fixed"` (default): each site's profile; `"advise"`: the same, and plans are shown, until an
    /// operator applies one; `"auto"`: the planner.
    pub policy: PlanPolicy,
    /// Seconds between two regular plans. Default 300.
    pub every_s: f64,
    /// What a new plan must gain over the current one, as a share of the objective. Default 0.1.
    pub margin: f64,
    /// `"earliest_finish"` (default), `"most_tokens"` or `"fewest_gpu_hours"`.
    pub objective: PlanObjective,
    /// How far is looked ahead, counted from each plan, in days. Default 14.
    pub horizon_days: f64,
    /// Replicas at a site, at most; its profile's `jobs.wanted` is a limit, too. Default 8.
    pub replicas_max: u32,
    /// How much worse a run by one replica alone is than a federated one, 0 to 1. Default 0.
    pub solo_penalty: f64,
    /// Strength of the discount on probes, 0 to 1. Default 0.5.
    pub strength: f64,
    /// Whether the cautious wait (nine of ten jobs start earlier) is counted on. Default false.
    pub cautious: bool,
    /// A probe older than so many seconds excludes its shape. Default 21600.
    pub probe_age_max_s: f64,
    /// Seconds that a merge takes, until the run has measured one. Default: nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_s: Option<f64>,
}

/// Who decides which jobs are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanPolicy {
    /// Each site's profile.
    #[default]
    Fixed,
    /// An operator, who is shown plans.
    Advise,
    /// The planner.
    Auto,
}

impl std::fmt::Display for PlanPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fixed => "fixed",
            Self::Advise => "advise",
            Self::Auto => "auto",
        })
    }
}

/// What a plan is to reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum PlanObjective {
    #[default]
    EarliestFinish,
    MostTokens,
    FewestGpuHours,
}

impl Default for PlanSection {
    fn default() -> Self {
        Self {
            policy: PlanPolicy::Fixed,
            every_s: 300.0,
            margin: 0.1,
            objective: PlanObjective::EarliestFinish,
            horizon_days: 14.0,
            replicas_max: 8,
            solo_penalty: 0.0,
            strength: 0.5,
            cautious: false,
            probe_age_max_s: 21_600.0,
            merge_s: None,
        }
    }
}

impl PlanSection {
    /// True if nothing was said: then a recipe's text does not have it.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// `[end]`: when the run is complete; exactly one of the three.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndSection {
    /// After so many rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u64>,
    /// When so many target tokens are committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// After so many passes over the corpus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u32>,
}

impl EndSection {
    /// The protocol's form, unless not exactly one key is given, or that is 0.
    pub(super) fn end(&self) -> Option<hansa_protocol::End> {
        use hansa_protocol::End;
        match (self.rounds, self.tokens, self.epochs) {
            (Some(n @ 1..), None, None) => Some(End::Rounds(n)),
            (None, Some(n @ 1..), None) => Some(End::Tokens(Tokens(n))),
            (None, None, Some(n @ 1..)) => Some(End::Epochs(n)),
            _ => None,
        }
    }
}

/// Seconds of a recipe as a duration; `None` if negative, not a number, or beyond thirty years.
pub(super) fn seconds(value: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(value)
        .ok()
        .filter(|duration| duration.as_secs() < 1_000_000_000)
}

/// Types that are written as their names.
mod named {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

mod solo {
    use hansa_protocol::Solo;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(solo: &Solo, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match solo {
            Solo::Full => "full",
            Solo::Adopt => "adopt",
            Solo::Same => "same",
        })
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Solo, D::Error> {
        match String::deserialize(from)?.as_str() {
            "full" => Ok(Solo::Full),
            "adopt" => Ok(Solo::Adopt),
            "same" => Ok(Solo::Same),
            other => Err(D::Error::custom(format!(
                "unknown solo mode {other:?}: use \"full\", \"adopt\" or \"same\""
            ))),
        }
    }
}

mod grace_rule {
    use hansa_protocol::GraceRule;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(rule: &GraceRule, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match rule {
            GraceRule::Fixed => "fixed",
            GraceRule::Adaptive => "adaptive",
        })
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GraceRule, D::Error> {
        match String::deserialize(from)?.as_str() {
            "fixed" => Ok(GraceRule::Fixed),
            "adaptive" => Ok(GraceRule::Adaptive),
            other => Err(D::Error::custom(format!(
                "unknown grace rule {other:?}: use \"fixed\" or \"adaptive\""
            ))),
        }
    }
}
