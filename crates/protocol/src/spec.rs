//! What the protocol needs to know of a run's recipe; immutable for the run.

use crate::{BlockSpace, DigestFields};
use hansa_base::{Epoch, Hash, Steps, Tokens, Windows};
use std::time::Duration;

/// The protocol's part of a run's recipe.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSpec {
    /// Hash of the whole recipe: the run's identity.
    pub run: Hash,
    /// Positions and corpus.
    pub digest: DigestFields,
    /// The base phase.
    pub phase: PhaseSpec,
    /// The outer step.
    pub outer: OuterSpec,
    /// Time limits.
    pub timing: Timing,
    /// How often a window may be lost with who trains it, by two replicas or more, before it is
    /// quarantined.
    pub attempts_max: u32,
    /// Staged contributions that a round waits for, if it has that many members.
    pub min_quorum: u32,
    /// When the run is complete.
    pub end: End,
    /// Every how many generations one is evaluated on the held-out windows; 0 means never.
    pub evaluate_every: u64,
}

/// `H`, `B` and `A` of a phase; `W` is each replica's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseSpec {
    /// `H`: inner steps between two exchanges.
    pub steps: Steps,
    /// `B`: windows a rank takes per micro-batch.
    pub batch: Windows,
    /// `A`: micro-batches of a step.
    pub accumulation: u32,
    /// Whether faster replicas get more accumulation, so that all finish together.
    pub balance: bool,
}

/// The outer optimiser.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OuterSpec {
    /// `η`.
    pub lr: f64,
    /// `μ`.
    pub momentum: f64,
    /// What a round with one contribution does.
    pub solo: Solo,
}

/// What a round with a single contribution does (there is nothing to average).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Solo {
    /// The full outer step: `η = 1`, with momentum.
    Full,
    /// `θ ← θᵢ`; the momentum decays by `μ`.
    Adopt,
    /// No special case.
    Same,
}

/// Time limits of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// `α`: how many expected report intervals a lease lives.
    pub alpha: f64,
    /// `β`: how many round trips are added.
    pub beta: f64,
    /// The shortest lease.
    pub ttl_min: Duration,
    /// The longest lease, and the budget of an activity that reports no counter.
    pub ttl_max: Duration,
    /// How long an incarnation lives without any call.
    pub session_ttl: Duration,
    /// How far ahead of its cursor, in time spent training, a replica's reserve mark is kept: so long
    /// it trains on without the coordinator.
    pub mark_lead: Duration,
    /// How long a round stays open after its first staged contribution.
    pub grace: Duration,
    /// Whether that is fixed, or only where to begin.
    pub grace_rule: GraceRule,
    /// How long one replica may take to evaluate a generation.
    pub evaluation_budget: Duration,
}

impl Timing {
    /// How often a replica that works reports.
    #[must_use]
    pub fn heartbeat_every(&self) -> Duration {
        let third = self.ttl_min.min(self.session_ttl) / 3;
        third.clamp(Duration::from_millis(20), Duration::from_secs(10))
    }

    /// How often a replica that waits for others asks: soon, so that no accelerator idles long.
    #[must_use]
    pub fn poll_every(&self) -> Duration {
        (self.heartbeat_every() / 4).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }
}

/// How the grace window follows what is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraceRule {
    /// [`Timing::grace`], always.
    Fixed,
    /// Median and spread of how far members lag behind the first one, over the last rounds; at least
    /// a quarter and at most four times of [`Timing::grace`], which holds until enough was observed.
    Adaptive,
}

/// When the run is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// After this many rounds.
    Rounds(u64),
    /// When so many tokens are committed.
    Tokens(Tokens),
    /// After so many passes over the corpus.
    Epochs(u32),
}

/// Why a spec cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct SpecError {
    /// The recipe's key.
    pub key: &'static str,
    /// What is wrong with its value.
    pub problem: &'static str,
}

impl RunSpec {
    /// The rule behind [`DigestFields::epoch_rule`].
    pub const EPOCH_RULE: &'static str =
        "xoshiro256**/splitmix64(seed+epoch*golden)/mask/durstenfeld-1";

    /// Checks what the machine relies on.
    ///
    /// # Errors
    /// The first value that cannot work, by its key.
    pub fn validate(&self) -> Result<(), SpecError> {
        let (digest, phase, timing) = (&self.digest, &self.phase, &self.timing);
        let positive = |d: Duration| !d.is_zero();
        let rules = [
            (digest.windows.0 > 0, "corpus", "it has no windows to train"),
            (digest.block.0 > 0, "block_windows", "must be at least 1"),
            (
                digest.windows.0 < 1 << 32,
                "corpus",
                "has 2^32 windows or more",
            ),
            (phase.steps.0 > 0, "steps", "must be at least 1"),
            (phase.batch.0 > 0, "batch", "must be at least 1"),
            (phase.accumulation > 0, "accumulation", "must be at least 1"),
            (self.min_quorum > 0, "min_quorum", "must be at least 1"),
            (self.attempts_max > 0, "max_attempts", "must be at least 1"),
            (timing.alpha >= 1.0, "alpha", "must be at least 1"),
            (timing.beta >= 0.0, "beta", "must not be negative"),
            (positive(timing.ttl_min), "ttl_min_s", "must be more than 0"),
            (
                timing.ttl_min <= timing.ttl_max,
                "ttl_max_s",
                "is shorter than ttl_min_s",
            ),
            (
                positive(timing.session_ttl),
                "session_ttl_s",
                "must be more than 0",
            ),
            (
                positive(timing.mark_lead),
                "mark_lead_s",
                "must be more than 0",
            ),
            (self.outer.lr > 0.0, "outer lr", "must be more than 0"),
            (
                (0.0..1.0).contains(&self.outer.momentum),
                "outer momentum",
                "must be in 0..1",
            ),
        ];
        let broken = rules.iter().find(|(holds, ..)| !holds);
        broken.map_or(Ok(()), |&(_, key, problem)| Err(SpecError { key, problem }))
    }

    /// The order of positions in an epoch.
    #[must_use]
    pub fn space(&self, epoch: Epoch) -> BlockSpace {
        BlockSpace::new(
            self.digest.windows,
            self.digest.block,
            self.digest.seed,
            epoch,
        )
    }

    /// The windows of one step of a replica with `ranks` accelerators: `B·W·A`.
    #[must_use]
    pub fn step_windows(&self, ranks: u32) -> Windows {
        Windows(self.phase.batch.0 * u64::from(ranks) * u64::from(self.phase.accumulation))
    }

    /// The target tokens of so many windows.
    #[must_use]
    pub fn tokens(&self, windows: Windows) -> Tokens {
        Tokens(windows.0 * u64::from(self.digest.seq_len))
    }
}
