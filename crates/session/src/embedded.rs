//! The embedded trainer behind the session's interface: the same process, one memory-mapped corpus.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use hansa_base::Tokens;
use hansa_corpus::{Corpus, Split};
use hansa_outer::{Layout, TensorSpec};
use hansa_train::{AdamWConfig, ModelConfig, TrainError, Weights};
use serde_json::Value;

use crate::trainer::{EvaluationReport, StepReport, Trainer, TrainerError};

/// [`hansa_train::Trainer`] over a [`Corpus`].
pub struct Embedded {
    inner: hansa_train::Trainer,
    corpus: Arc<Corpus>,
    layout: Layout,
    /// One buffer per window of a step, kept from step to step.
    windows: Vec<Vec<u32>>,
}

impl Embedded {
    /// A trainer with zero weights and fresh moments. `max_batch` windows are computed at once;
    /// neither it nor `threads` (`None`: all cores) changes a result.
    ///
    /// # Errors
    /// Settings that cannot work.
    pub fn new(
        model: ModelConfig,
        adamw: AdamWConfig,
        corpus: Arc<Corpus>,
        max_batch: usize,
        threads: Option<usize>,
    ) -> Result<Self, TrainerError> {
        let layout = layout_of(&model)?;
        let seq_len = corpus.seq_len();
        let inner = hansa_train::Trainer::new(model, adamw, seq_len, max_batch, threads)
            .map_err(of_train)?;
        Ok(Self {
            inner,
            corpus,
            layout,
            windows: Vec::new(),
        })
    }

    fn read_windows(
        &mut self,
        split: Split,
        numbers: impl ExactSizeIterator<Item = u64>,
    ) -> Result<(), TrainerError> {
        self.windows.resize(numbers.len(), Vec::new());
        for (buffer, number) in self.windows.iter_mut().zip(numbers) {
            self.corpus
                .read(split, number, buffer)
                .map_err(TrainerError::failed)?;
        }
        Ok(())
    }
}

/// The run's layout of a model: Hugging Face's names, in the order of the run's files.
///
/// # Errors
/// Sizes that cannot be laid out.
pub fn layout_of(model: &ModelConfig) -> Result<Layout, TrainerError> {
    let tensors = hansa_train::layout(model).into_iter();
    let tensors = tensors.map(|spec| TensorSpec {
        name: spec.name,
        shape: spec.shape,
    });
    Layout::new(tensors).map_err(TrainerError::failed)
}

fn of_train(error: TrainError) -> TrainerError {
    match error {
        TrainError::NonFinite { .. } => TrainerError::NonFinite(error.to_string()),
        other => TrainerError::failed(other),
    }
}

impl Trainer for Embedded {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn load_weights(&mut self, model: &Path) -> Result<(), TrainerError> {
        let weights = Weights::load_safetensors(model, self.inner.config()).map_err(of_train)?;
        self.inner.set_weights(&weights).map_err(of_train)
    }

    fn train_step(&mut self, windows: &[u64], lr: f64) -> Result<StepReport, TrainerError> {
        self.read_windows(Split::Train, windows.iter().copied())?;
        let windows: Vec<&[u32]> = self.windows.iter().map(Vec::as_slice).collect();
        let stats = self.inner.train_step(&windows, lr).map_err(of_train)?;
        Ok(StepReport {
            loss: stats.loss,
            grad_norm: stats.grad_norm,
            tokens: Tokens(stats.tokens),
        })
    }

    fn evaluate(&mut self, held_out: Range<u64>) -> Result<EvaluationReport, TrainerError> {
        let count = held_out.end.saturating_sub(held_out.start) as usize;
        self.read_windows(
            Split::HeldOut,
            (0..count).map(|i| held_out.start + i as u64),
        )?;
        let windows: Vec<&[u32]> = self.windows.iter().map(Vec::as_slice).collect();
        let stats = self.inner.evaluate(&windows).map_err(of_train)?;
        Ok(EvaluationReport {
            loss_sum_nats: stats.loss_sum_nats,
            tokens: Tokens(stats.tokens),
        })
    }

    fn read_weights(&mut self, first: u64, values: &mut [f32]) -> Result<(), TrainerError> {
        let flat = self.inner.weights().as_slice();
        let range = first as usize..first as usize + values.len();
        let wanted = flat.get(range).ok_or_else(|| {
            of_train(TrainError::Mismatch {
                what: "a range of weights".to_owned(),
                problem: format!("it ends beyond the model's {} values", flat.len()),
            })
        })?;
        values.copy_from_slice(wanted);
        Ok(())
    }

    fn save_checkpoint(&mut self, path: &Path, meta: &Value) -> Result<(), TrainerError> {
        hansa_train::save_checkpoint(path, &self.inner, meta).map_err(of_train)
    }

    fn load_checkpoint(&mut self, path: &Path) -> Result<Value, TrainerError> {
        hansa_train::load_checkpoint(path, &mut self.inner).map_err(of_train)
    }

    fn restore_moments(&mut self, checkpoint: Option<&Path>) -> Result<(), TrainerError> {
        let Some(path) = checkpoint else {
            self.inner.reset_moments();
            return Ok(());
        };
        let weights = self.inner.weights().clone();
        hansa_train::load_checkpoint(path, &mut self.inner).map_err(of_train)?;
        self.inner.set_weights(&weights).map_err(of_train)
    }
}
