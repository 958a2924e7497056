//! A trainer that does not train: its weights are the base model's, a little changed.
//!
//! It holds an open file and no weights, so that the memory of its process is the exchange's alone.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use hansa_base::Tokens;
use hansa_outer::{Dtype, Header, Layout, PREFIX_BYTES};
use hansa_session::{EvaluationReport, StepReport, Trainer, TrainerError};
use serde_json::Value;

/// The size of a change, relative to nothing: weights are about 0.02.
const CHANGE: f32 = 1e-4;
const PIECE_ELEMENTS: usize = 64 << 10;

pub(super) struct Synthetic {
    layout: Layout,
    seed: u64,
    seq_len: u64,
    base: Option<Base>,
    changes: Vec<f32>,
}

/// A model's file: where its numbers begin, and what they are.
struct Base {
    file: File,
    offset: u64,
    dtype: Dtype,
}

impl Synthetic {
    pub fn new(layout: Layout, seed: u64, seq_len: u64) -> Self {
        Self {
            layout,
            seed,
            seq_len,
            base: None,
            changes: changes(seed),
        }
    }
}

fn open(path: &Path) -> Result<Base, TrainerError> {
    let file = File::open(path).map_err(TrainerError::failed)?;
    let mut prefix = [0; PREFIX_BYTES];
    let read = file.read_exact_at(&mut prefix, 0);
    read.map_err(TrainerError::failed)?;
    let needed = Header::bytes_needed(prefix).map_err(TrainerError::failed)?;
    let mut head = vec![0; needed];
    let read = file.read_exact_at(&mut head, 0);
    read.map_err(TrainerError::failed)?;
    let header = Header::parse(&head).map_err(TrainerError::failed)?;
    Ok(Base {
        file,
        offset: header.data_offset(),
        dtype: header.dtype(),
    })
}

impl Base {
    fn read(&self, first: u64, values: &mut [f32]) -> std::io::Result<()> {
        let width = self.dtype.bytes_per_element();
        let mut bytes = vec![0; PIECE_ELEMENTS * width];
        let mut at = first;
        for piece in values.chunks_mut(PIECE_ELEMENTS) {
            let bytes = &mut bytes[..piece.len() * width];
            let offset = self.offset + at * width as u64;
            self.file.read_exact_at(bytes, offset)?;
            self.dtype.decode(bytes, piece);
            at += piece.len() as u64;
        }
        Ok(())
    }
}

/// Changes that look random, the same for every piece: making new ones would cost more than the exchange.
fn changes(seed: u64) -> Vec<f32> {
    let change = |index: u64| {
        let mut z = (seed ^ (index << 20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        CHANGE * ((z >> 40) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..PIECE_ELEMENTS as u64).map(change).collect()
}

impl Trainer for Synthetic {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn load_weights(&mut self, model: &Path) -> Result<(), TrainerError> {
        self.base = Some(open(model)?);
        self.seed = self.seed.wrapping_add(1);
        self.changes = changes(self.seed);
        Ok(())
    }

    fn train_step(&mut self, windows: &[u64], _: f64) -> Result<StepReport, TrainerError> {
        Ok(StepReport {
            loss: 1.0,
            grad_norm: 1.0,
            tokens: Tokens(windows.len() as u64 * self.seq_len),
        })
    }

    fn evaluate(&mut self, held_out: Range<u64>) -> Result<EvaluationReport, TrainerError> {
        let tokens = (held_out.end - held_out.start) * self.seq_len;
        Ok(EvaluationReport {
            loss_sum_nats: tokens as f64,
            tokens: Tokens(tokens),
        })
    }

    fn read_weights(&mut self, first: u64, values: &mut [f32]) -> Result<(), TrainerError> {
        if let Some(base) = &self.base {
            base.read(first, values).map_err(TrainerError::failed)?;
        }
        for piece in values.chunks_mut(PIECE_ELEMENTS) {
            for (value, change) in piece.iter_mut().zip(&self.changes) {
                *value += change;
            }
        }
        Ok(())
    }

    /// The exchange is measured, not checkpoints: only what names the contribution is kept.
    fn save_checkpoint(&mut self, path: &Path, meta: &Value) -> Result<(), TrainerError> {
        let json = serde_json::to_vec(meta).map_err(TrainerError::failed)?;
        std::fs::write(path, json).map_err(TrainerError::failed)
    }

    fn load_checkpoint(&mut self, path: &Path) -> Result<Value, TrainerError> {
        let json = std::fs::read(path).map_err(TrainerError::failed)?;
        serde_json::from_slice(&json).map_err(TrainerError::failed)
    }

    fn restore_moments(&mut self, _: Option<&Path>) -> Result<(), TrainerError> {
        Ok(())
    }
}
