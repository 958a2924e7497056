//! A trainer that does not train: its weights are the base model's, a little changed.
//!
//! It holds an open file and no weights, so that the memory of its process is the exchange's alone.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use hansa_base::Tokens;
use hansa_outer::Layout;
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
}

/// A model's file: where its numbers begin, and whether they are bf16.
struct Base {
    file: File,
    offset: u64,
    is_bf16: bool,
}

impl Synthetic {
    pub fn new(layout: Layout, seed: u64, seq_len: u64) -> Self {
        Self {
            layout,
            seed,
            seq_len,
            base: None,
        }
    }
}

fn open(path: &Path) -> std::io::Result<Base> {
    let file = File::open(path)?;
    let mut length = [0; 8];
    file.read_exact_at(&mut length, 0)?;
    let length = u64::from_le_bytes(length);
    let mut header = vec![0; usize::try_from(length.min(64 << 20)).unwrap_or(0)];
    file.read_exact_at(&mut header, 8)?;
    let header: Value = serde_json::from_slice(&header)?;
    let mut tensors = header.as_object().into_iter().flatten();
    let first = tensors.find(|(name, _)| *name != "__metadata__");
    let is_bf16 = first.is_some_and(|(_, tensor)| tensor["dtype"] == "BF16");
    Ok(Base {
        file,
        offset: 8 + length,
        is_bf16,
    })
}

impl Base {
    fn read(&self, first: u64, values: &mut [f32]) -> std::io::Result<()> {
        let width = if self.is_bf16 { 2 } else { 4 };
        let mut bytes = vec![0; PIECE_ELEMENTS * width];
        let mut at = first;
        for piece in values.chunks_mut(PIECE_ELEMENTS) {
            let bytes = &mut bytes[..piece.len() * width];
            let offset = self.offset + at * width as u64;
            self.file.read_exact_at(bytes, offset)?;
            for (value, raw) in piece.iter_mut().zip(bytes.chunks_exact(width)) {
                let bits = match raw {
                    [a, b] => u32::from(u16::from_le_bytes([*a, *b])) << 16,
                    [a, b, c, d] => u32::from_le_bytes([*a, *b, *c, *d]),
                    _ => 0,
                };
                *value = f32::from_bits(bits);
            }
            at += piece.len() as u64;
        }
        Ok(())
    }
}

/// A number between -1 and 1 that looks random.
fn noise(seed: u64, index: u64) -> f32 {
    let mut z = (seed ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z >> 40) as f32 / (1 << 23) as f32 - 1.0
}

impl Trainer for Synthetic {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn load_weights(&mut self, model: &Path) -> Result<(), TrainerError> {
        self.base = Some(open(model).map_err(TrainerError::failed)?);
        self.seed = self.seed.wrapping_add(1);
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
        for (index, value) in (first..).zip(values) {
            *value += CHANGE * noise(self.seed, index);
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
