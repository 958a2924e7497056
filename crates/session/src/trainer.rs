//! The one small interface between a session and whatever trains the model.
//!
//! A trainer holds weights and an inner optimiser, and finds windows by their number in the corpus.
//! Everything above a single inner step (phases, schedules, leases, exchange) is the session's.
//! A trainer is owned by one thread; it never talks to the coordinator and never chooses a rate.

use std::ops::Range;
use std::path::Path;

use hansa_base::Tokens;
use hansa_outer::Layout;
use serde_json::Value;

/// What one inner step reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Mean cross-entropy over the step's target tokens before the update, in nats per token.
    pub loss: f64,
    /// Global L2 norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Target tokens of the step.
    pub tokens: Tokens,
}

/// Loss over held-out windows, as sums, so that several can be added.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EvaluationReport {
    /// Sum of the cross-entropy over all target tokens, in nats.
    pub loss_sum_nats: f64,
    /// Target tokens.
    pub tokens: Tokens,
}

/// Why a trainer could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum TrainerError {
    /// A NaN or an infinity. Nothing was applied.
    #[error("{0}")]
    NonFinite(String),
    /// The trainer is gone: it crashed, hangs or cannot be reached. The session ends without a word to
    /// the coordinator, so that the next one goes on with what is leased, from the last checkpoint.
    #[error("{0}")]
    Lost(String),
    /// Anything else, in the trainer's own words.
    #[error(transparent)]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl TrainerError {
    /// Wraps a trainer's own error.
    pub fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Failed(Box::new(error))
    }
}

/// Trains one model copy. After an error the weights are those of before the call.
pub trait Trainer: Send {
    /// `W`: the accelerators that share a step.
    fn ranks(&self) -> u32 {
        1
    }

    /// The model's tensors, in the order of the run's files.
    fn layout(&self) -> &Layout;

    /// Replaces the weights by those of a safetensors file of [`Trainer::layout`] in `f32` or `bf16`;
    /// the inner optimiser stays as it is.
    ///
    /// # Errors
    /// A file that cannot be read or belongs to another model.
    fn load_weights(&mut self, model: &Path) -> Result<(), TrainerError>;

    /// One inner step over these train windows (at least one) at learning rate `lr`.
    ///
    /// # Errors
    /// Windows that cannot be read; a loss or gradient that is not finite.
    fn train_step(&mut self, windows: &[u64], lr: f64) -> Result<StepReport, TrainerError>;

    /// Loss of a range of held-out windows, without training on them.
    ///
    /// # Errors
    /// Windows that cannot be read; a loss that is not finite.
    fn evaluate(&mut self, held_out: Range<u64>) -> Result<EvaluationReport, TrainerError>;

    /// Copies the weights from element `first` of the flat array on, as many as `values` holds.
    /// Called in order over the whole array, so a trainer may stream.
    ///
    /// # Errors
    /// A range that the model does not have.
    fn read_weights(&mut self, first: u64, values: &mut [f32]) -> Result<(), TrainerError>;

    /// Writes weights, optimiser and `meta` durably: after a crash `path` holds all of the new
    /// checkpoint or all of the old one.
    ///
    /// # Errors
    /// Any failed file operation.
    fn save_checkpoint(&mut self, path: &Path, meta: &Value) -> Result<(), TrainerError>;

    /// Restores weights and optimiser, and returns `meta`.
    ///
    /// # Errors
    /// A file that is damaged or belongs to another model.
    fn load_checkpoint(&mut self, path: &Path) -> Result<Value, TrainerError>;

    /// Takes the inner optimiser, but not the weights, from a checkpoint; without one it starts
    /// fresh.
    ///
    /// # Errors
    /// As [`Trainer::load_checkpoint`].
    fn restore_moments(&mut self, checkpoint: Option<&Path>) -> Result<(), TrainerError>;
}
