//! The trainer: weights, gradients, moments and buffers of one replica, and the step that joins them.
//!
//! It never reads data, clocks or schedules: windows and learning rates are arguments.

use rayon::{ThreadPool, ThreadPoolBuilder, prelude::*};

use crate::{
    adamw::{AdamWConfig, Buffers, adamw},
    arena::{Arena, Sizes},
    config::{ModelConfig, check},
    error::TrainError,
    model::Model,
    ops::{TASK_VALUES, simd},
    weights::{Weights, split_flat},
};

/// What one training step reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepStats {
    /// Mean cross-entropy over the step's target tokens, in nats per token, before the update.
    pub loss: f64,
    /// Global L2 norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Target tokens in the step.
    pub tokens: u64,
}

/// What an evaluation reports; sums, so that several can be added.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvalStats {
    /// Sum of the cross-entropy over all target tokens, in nats.
    pub loss_sum_nats: f64,
    /// Target tokens.
    pub tokens: u64,
}

/// AdamW's moments as flat buffers in layout order.
#[derive(Debug, Clone, Copy)]
pub struct Moments<'a> {
    /// Running mean of the gradient.
    pub exp_avg: &'a [f32],
    /// Running mean of its square.
    pub exp_avg_sq: &'a [f32],
}

/// One replica's model and optimiser.
pub struct Trainer {
    model: Model,
    adamw: AdamWConfig,
    seq_len: usize,
    max_batch: usize,
    pool: ThreadPool,
    weights: Weights,
    grads: Vec<f32>,
    exp_avg: Vec<f32>,
    exp_avg_sq: Vec<f32>,
    adam_step: u64,
    arena: Arena,
}

impl Trainer {
    /// A trainer with zero weights (see [`Trainer::set_weights`]) and fresh moments.
    ///
    /// `max_batch` windows are computed at once; a step with more accumulates gradients. `threads` is
    /// the size of the trainer's own pool, or all of the machine; it never changes a result.
    ///
    /// # Errors
    /// A setting that cannot work, or a thread pool that does not start.
    pub fn new(
        config: ModelConfig,
        adamw: AdamWConfig,
        seq_len: usize,
        max_batch: usize,
        threads: Option<usize>,
    ) -> Result<Trainer, TrainError> {
        config.validate()?;
        adamw.validate()?;
        let longest = config.max_position_embeddings;
        let seq_len_ok = (1..=longest).contains(&seq_len);
        check(
            "seq_len",
            seq_len,
            seq_len_ok,
            "it must be 1 to max_position_embeddings",
        )?;
        check(
            "max_batch",
            max_batch,
            max_batch >= 1,
            "it must be at least 1",
        )?;
        check(
            "threads",
            threads.unwrap_or(1),
            threads != Some(0),
            "it must be at least 1",
        )?;
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads.unwrap_or(0))
            .thread_name(|index| format!("train-{index}"))
            .build()?;
        let parameters = config.parameter_count();
        Ok(Trainer {
            weights: Weights::from_flat(&config, vec![0.0; parameters])?,
            grads: vec![0.0; parameters],
            exp_avg: vec![0.0; parameters],
            exp_avg_sq: vec![0.0; parameters],
            adam_step: 0,
            arena: Arena::new(&config, max_batch, seq_len),
            model: Model::new(config, seq_len),
            adamw,
            seq_len,
            max_batch,
            pool,
        })
    }

    /// One optimiser step on any number (at least one) of windows of `seq_len + 1` tokens.
    ///
    /// The loss is the mean over all target tokens of the step, however it is cut into micro-batches.
    ///
    /// # Errors
    /// Windows that do not fit, or a loss or gradient that is not finite; weights, moments and the step
    /// counter are then unchanged.
    pub fn train_step(&mut self, windows: &[&[u32]], lr: f64) -> Result<StepStats, TrainError> {
        check(
            "lr",
            lr,
            lr.is_finite() && lr >= 0.0,
            "it must be 0 or a positive number",
        )?;
        let (loss, tokens) = self.loss_and_gradient(windows)?;
        let grad_norm = self.grad_norm(loss)?;

        self.adam_step += 1;
        let buffers = Buffers {
            weights: self.weights.as_mut_slice(),
            grads: &self.grads,
            exp_avg: &mut self.exp_avg,
            exp_avg_sq: &mut self.exp_avg_sq,
        };
        let grad_scale = self.adamw.clip_factor(grad_norm);
        self.pool
            .install(|| adamw(&self.adamw, self.adam_step, lr, grad_scale, buffers));
        Ok(StepStats {
            loss,
            grad_norm,
            tokens,
        })
    }

    /// Mean loss and number of target tokens; leaves the gradient of that mean in [`Trainer::grads`].
    ///
    /// # Errors
    /// Windows that do not fit.
    pub fn loss_and_gradient(&mut self, windows: &[&[u32]]) -> Result<(f64, u64), TrainError> {
        self.check_windows(windows)?;
        let tokens = windows.len() * self.seq_len;
        let scale = (1.0 / tokens as f64) as f32;
        let Trainer {
            model,
            weights,
            grads,
            arena,
            ..
        } = self;
        let loss_sum = self.pool.install(|| {
            grads
                .par_chunks_mut(TASK_VALUES)
                .for_each(|chunk| chunk.fill(0.0));
            let mut loss_sum = 0.0;
            for batch in windows.chunks(self.max_batch) {
                load_batch(arena, batch);
                let z = Sizes::of(&model.config, batch.len(), self.seq_len);
                loss_sum += model.loss_and_gradient(z, weights.as_slice(), grads, scale, arena);
            }
            loss_sum
        });
        Ok((loss_sum / tokens as f64, tokens as u64))
    }

    /// Loss of any number (at least one) of windows, without training on them.
    ///
    /// # Errors
    /// Windows that do not fit, or a loss that is not finite.
    pub fn evaluate(&mut self, windows: &[&[u32]]) -> Result<EvalStats, TrainError> {
        self.check_windows(windows)?;
        let Trainer {
            model,
            weights,
            arena,
            ..
        } = self;
        let loss_sum_nats = self.pool.install(|| {
            let mut loss_sum = 0.0;
            for batch in windows.chunks(self.max_batch) {
                load_batch(arena, batch);
                let z = Sizes::of(&model.config, batch.len(), self.seq_len);
                loss_sum += model.loss(z, weights.as_slice(), arena);
            }
            loss_sum
        });
        if !loss_sum_nats.is_finite() {
            return Err(self.non_finite_loss());
        }
        Ok(EvalStats {
            loss_sum_nats,
            tokens: (windows.len() * self.seq_len) as u64,
        })
    }

    /// Logits after each token of one window but the last, `[seq_len, vocab_size]`: for comparing with another
    /// implementation.
    ///
    /// # Errors
    /// A window that does not fit.
    pub fn logits(&mut self, window: &[u32]) -> Result<Vec<f32>, TrainError> {
        self.check_windows(&[window])?;
        let Trainer {
            model,
            weights,
            arena,
            ..
        } = self;
        load_batch(arena, &[window]);
        let z = Sizes::of(&model.config, 1, self.seq_len);
        let logits_sv = self
            .pool
            .install(|| model.logits(z, weights.as_slice(), arena));
        Ok(logits_sv)
    }

    /// Global norm of the gradient; fixed chunks in a fixed order, added in `f64`.
    fn grad_norm(&self, loss: f64) -> Result<f64, TrainError> {
        if !loss.is_finite() {
            return Err(self.non_finite_loss());
        }
        let sum_of_squares = |chunk: &[f32]| -> f64 {
            simd::vectorised! {
                chunk.chunks(4096).map(|part| f64::from(simd::dot(part, part))).sum()
            }
        };
        let chunks: Vec<f64> = self.pool.install(|| {
            self.grads
                .par_chunks(TASK_VALUES)
                .map(sum_of_squares)
                .collect()
        });
        let norm = chunks.iter().sum::<f64>().sqrt();
        if norm.is_finite() {
            return Ok(norm);
        }
        let tensor = self.first_non_finite(&self.grads);
        let tensor =
            tensor.unwrap_or_else(|| "all tensors together (their norm overflows)".to_owned());
        Err(TrainError::NonFinite {
            what: "gradient",
            tensor,
        })
    }

    /// Says whether a bad loss comes from the weights or from what was computed with them.
    fn non_finite_loss(&self) -> TrainError {
        match self.first_non_finite(self.weights.as_slice()) {
            Some(tensor) => TrainError::NonFinite {
                what: "weight",
                tensor,
            },
            None => TrainError::NonFinite {
                what: "loss",
                tensor: "the step".to_owned(),
            },
        }
    }

    fn first_non_finite(&self, flat: &[f32]) -> Option<String> {
        split_flat(self.weights.tensors(), flat)
            .find(|(_, values)| values.iter().any(|value| !value.is_finite()))
            .map(|(spec, _)| spec.name.clone())
    }

    fn check_windows(&self, windows: &[&[u32]]) -> Result<(), TrainError> {
        if windows.is_empty() {
            return Err(TrainError::NoWindows);
        }
        let (expected, vocab_size) = (self.seq_len + 1, self.model.config.vocab_size);
        for (window, tokens) in windows.iter().enumerate() {
            if tokens.len() != expected {
                return Err(TrainError::WindowLength {
                    window,
                    actual: tokens.len(),
                    expected,
                });
            }
            if let Some(offset) = tokens
                .iter()
                .position(|&token| token as usize >= vocab_size)
            {
                let token = tokens[offset];
                return Err(TrainError::TokenOutOfRange {
                    window,
                    offset,
                    token,
                    vocab_size,
                });
            }
        }
        Ok(())
    }

    /// Replaces the weights; moments stay (see [`Trainer::reset_moments`]).
    ///
    /// # Errors
    /// Weights of another model.
    pub fn set_weights(&mut self, weights: &Weights) -> Result<(), TrainError> {
        if weights.tensors() != self.weights.tensors() {
            return Err(TrainError::Mismatch {
                what: "the given weights".to_owned(),
                problem: "their tensors have other names or shapes".to_owned(),
            });
        }
        self.weights
            .as_mut_slice()
            .copy_from_slice(weights.as_slice());
        Ok(())
    }

    /// The current weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The gradient of the last step before clipping, in layout order.
    pub fn grads(&self) -> &[f32] {
        &self.grads
    }

    /// The moments of AdamW.
    pub fn moments(&self) -> Moments<'_> {
        Moments {
            exp_avg: &self.exp_avg,
            exp_avg_sq: &self.exp_avg_sq,
        }
    }

    /// Replaces the moments and the number of steps that led to them.
    ///
    /// # Errors
    /// Buffers of another length.
    pub fn set_moments(&mut self, moments: Moments, adam_step: u64) -> Result<(), TrainError> {
        let expected = self.exp_avg.len();
        for flat in [moments.exp_avg, moments.exp_avg_sq] {
            if flat.len() != expected {
                return Err(TrainError::Mismatch {
                    what: "a moment buffer".to_owned(),
                    problem: format!("it holds {} values, the model {expected}", flat.len()),
                });
            }
        }
        self.exp_avg.copy_from_slice(moments.exp_avg);
        self.exp_avg_sq.copy_from_slice(moments.exp_avg_sq);
        self.adam_step = adam_step;
        Ok(())
    }

    /// Forgets moments and step counter, as a joiner starts.
    pub fn reset_moments(&mut self) {
        self.exp_avg.fill(0.0);
        self.exp_avg_sq.fill(0.0);
        self.adam_step = 0;
    }

    /// Steps of AdamW since the moments were fresh.
    pub fn adam_step(&self) -> u64 {
        self.adam_step
    }

    /// The model's sizes.
    pub fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    /// Target tokens of a window.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }
}

/// Splits windows into inputs and targets, the same tokens shifted by one.
fn load_batch(arena: &mut Arena, windows: &[&[u32]]) {
    arena.tokens_n.clear();
    arena.targets_n.clear();
    for window in windows {
        arena
            .tokens_n
            .extend_from_slice(&window[..window.len() - 1]);
        arena.targets_n.extend_from_slice(&window[1..]);
    }
}
