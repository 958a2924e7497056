//! A trainer that holds weights and notes what it is asked, for this crate's own tests.

use std::ops::Range;
use std::path::Path;

use hansa_base::Tokens;
use hansa_outer::Layout;
use serde_json::Value;

use crate::trainer::{EvaluationReport, StepReport, Trainer, TrainerError};

pub(crate) struct Fake {
    pub layout: Layout,
    pub weights: Vec<f32>,
    /// Windows and learning rate of each step.
    pub steps: Vec<(Vec<u64>, f64)>,
    /// The window that makes a step's loss infinite.
    pub poison: Option<u64>,
    pub ranks: u32,
    /// Held-out windows of each evaluation.
    pub evaluated: Vec<Range<u64>>,
}

impl Fake {
    pub fn new(layout: Layout, weights: Vec<f32>) -> Self {
        Self {
            layout,
            weights,
            steps: Vec::new(),
            poison: None,
            ranks: 1,
            evaluated: Vec::new(),
        }
    }
}

impl Trainer for Fake {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn load_weights(&mut self, _: &Path) -> Result<(), TrainerError> {
        Ok(())
    }

    fn train_step(&mut self, windows: &[u64], lr: f64) -> Result<StepReport, TrainerError> {
        if let Some(window) = self.poison.filter(|poison| windows.contains(poison)) {
            return Err(TrainerError::NonFinite(format!("loss of window {window}")));
        }
        self.steps.push((windows.to_vec(), lr));
        Ok(StepReport {
            loss: 1.0,
            grad_norm: 1.0,
            tokens: Tokens(windows.len() as u64),
        })
    }

    fn evaluate(&mut self, held_out: Range<u64>) -> Result<EvaluationReport, TrainerError> {
        let windows = held_out.end - held_out.start;
        self.evaluated.push(held_out);
        Ok(EvaluationReport {
            loss_sum_nats: 2.0 * windows as f64,
            tokens: Tokens(windows),
        })
    }

    fn read_weights(&mut self, first: u64, values: &mut [f32]) -> Result<(), TrainerError> {
        values.copy_from_slice(&self.weights[first as usize..][..values.len()]);
        Ok(())
    }

    fn save_checkpoint(&mut self, _: &Path, _: &Value) -> Result<(), TrainerError> {
        Ok(())
    }

    fn load_checkpoint(&mut self, _: &Path) -> Result<Value, TrainerError> {
        Ok(Value::Null)
    }

    fn restore_moments(&mut self, _: Option<&Path>) -> Result<(), TrainerError> {
        Ok(())
    }
}
