//! The merge's arithmetic over one chunk, and the cutting of a model into chunks.
//!
//! Picture all files of a round laid side by side, element under element: master weights, momentum,
//! every contribution, the outgoing model. A chunk is a vertical slice through all of them, and no
//! slice needs anything of another. So the shell may take slices of any size, in any order, on any
//! number of threads, and always gets the same bytes.
//!
//! The shell's contract, for each [`Chunk`] of a [`MergePlan`]: read the chunk's bytes
//! ([`Header::byte_range`](crate::Header::byte_range)) of the old master weights, the old momentum
//! (zeros if there is none) and each contribution; call [`Merge::merge_chunk`]; write the new
//! weights, momentum and outgoing model at the same elements of *new* files. Old files are never
//! written, so a merge killed halfway is simply run again. Nothing here does I/O.

use std::ops::Range;

use hansa_base::Tokens;
use thiserror::Error;

use crate::dtype::{f32_from, f32_from_bf16};
use crate::scan::{all_finite, first_non_finite};
use crate::{Dtype, OuterStep};

/// Elements taken at once through all passes: the running mean stays in the first-level cache.
const BLOCK: usize = 4096;

/// Why a merge cannot be set up, or must not be published.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum MergeError {
    /// A round closes only with at least one contribution.
    #[error("nothing to merge: a round needs at least one contribution")]
    NoContributions,
    /// Tokens are the weight of a contribution, so it needs some.
    #[error(
        "contribution {index} of the close record has no tokens: it should not have been staged"
    )]
    NoTokens {
        /// Which, in the order of the close record.
        index: usize,
    },
    /// Coefficients outside their range.
    #[error(
        "outer step {0:?} is impossible: the learning rate must be positive, momentum in [0, 1)"
    )]
    BadStep(OuterStep),
    /// Adopting weights makes sense for one replica only.
    #[error(
        "a round with {contributions} contributions cannot adopt one replica's weights: close it with a Nesterov step"
    )]
    AdoptNotSolo {
        /// How many there are.
        contributions: usize,
    },
    /// The step produced a NaN or an infinity.
    #[error(
        "the merged weights are not finite at element {index} of the model: a contribution or the base is damaged; nothing was published"
    )]
    NonFinite {
        /// Flat index in the slice handed in; the shell adds the chunk's start.
        index: u64,
    },
}

/// Normalised weights of a round's contributions, in the order of its close record.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights(Vec<f32>);

impl Weights {
    /// `wᵢ / Σ wᵢ` with `wᵢ` = tokens: summed exactly, divided in f64, rounded once to f32.
    ///
    /// # Errors
    /// If there is none, or one without tokens.
    pub fn from_tokens(tokens: &[Tokens]) -> Result<Weights, MergeError> {
        if tokens.is_empty() {
            return Err(MergeError::NoContributions);
        }
        if let Some(index) = tokens.iter().position(|tokens| tokens.0 == 0) {
            return Err(MergeError::NoTokens { index });
        }
        let total: u128 = tokens.iter().map(|tokens| u128::from(tokens.0)).sum();
        let weight = |tokens: &Tokens| (tokens.0 as f64 / total as f64) as f32;
        Ok(Weights(tokens.iter().map(weight).collect()))
    }

    /// The weights, which sum to 1 up to rounding.
    pub fn as_slice(&self) -> &[f32] {
        &self.0
    }
}

/// One round's merge: everything that is the same for all chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct Merge {
    step: OuterStep,
    weights: Weights,
    contribution_dtype: Dtype,
    model_dtype: Dtype,
}

impl Merge {
    /// A merge of contributions encoded as `contribution_dtype` into a model that travels as
    /// `model_dtype`; the master weights are f32 whatever that is.
    ///
    /// # Errors
    /// If the step's coefficients are out of range, or it adopts more than one contribution.
    pub fn new(
        step: OuterStep,
        weights: Weights,
        contribution_dtype: Dtype,
        model_dtype: Dtype,
    ) -> Result<Merge, MergeError> {
        if !step.is_valid() {
            return Err(MergeError::BadStep(step));
        }
        let contributions = weights.0.len();
        if matches!(step, OuterStep::Adopt { .. }) && contributions > 1 {
            return Err(MergeError::AdoptNotSolo { contributions });
        }
        Ok(Merge {
            step,
            weights,
            contribution_dtype,
            model_dtype,
        })
    }

    /// Contributions that every chunk must bring.
    pub fn contributions(&self) -> usize {
        self.weights.0.len()
    }

    /// Merges one chunk in place, in one pass: decode → weighted mean → outer step → encode.
    ///
    /// `contributions` are the chunk's encoded bytes in the order of the close record; `theta` and
    /// `momentum` hold the old values and receive the new ones; `model`, if given, receives the new
    /// weights as they travel (leave it out where the f32 master file is itself the outgoing model).
    /// Sums run over contributions in order, in f32; uses 16 KiB of stack and allocates nothing.
    ///
    /// # Errors
    /// If a new weight is not finite. The buffers then hold nothing of use.
    ///
    /// # Panics
    /// If the number of contributions or the length of a buffer does not fit.
    pub fn merge_chunk(
        &self,
        contributions: &[&[u8]],
        theta: &mut [f32],
        momentum: &mut [f32],
        mut model: Option<&mut [u8]>,
    ) -> Result<(), MergeError> {
        self.assert_fits(contributions, theta, momentum, model.as_deref());
        let contribution_size = self.contribution_dtype.bytes_per_element();
        let model_size = self.model_dtype.bytes_per_element();
        let mut mean_block = [0f32; BLOCK];
        let blocks = theta.chunks_mut(BLOCK).zip(momentum.chunks_mut(BLOCK));
        for (number, (theta, momentum)) in blocks.enumerate() {
            let start = number * BLOCK;
            let end = start + theta.len();
            let mean = &mut mean_block[..theta.len()];
            for (index, (bytes, weight)) in contributions.iter().zip(&self.weights.0).enumerate() {
                let bytes = &bytes[start * contribution_size..end * contribution_size];
                let first = index == 0;
                accumulate(self.contribution_dtype, bytes, *weight, first, mean);
            }
            self.step.apply(mean, theta, momentum);
            if !all_finite(theta) {
                let index = (start + first_non_finite(theta).unwrap_or(0)) as u64;
                return Err(MergeError::NonFinite { index });
            }
            if let Some(model) = model.as_deref_mut() {
                let bytes = &mut model[start * model_size..end * model_size];
                self.model_dtype.encode(theta, bytes);
            }
        }
        Ok(())
    }

    fn assert_fits(
        &self,
        contributions: &[&[u8]],
        theta: &[f32],
        momentum: &[f32],
        model: Option<&[u8]>,
    ) {
        let elements = theta.len();
        let contribution_bytes = elements * self.contribution_dtype.bytes_per_element();
        let model_bytes = elements * self.model_dtype.bytes_per_element();
        assert_eq!(
            contributions.len(),
            self.weights.0.len(),
            "one chunk per contribution"
        );
        assert!(
            contributions
                .iter()
                .all(|bytes| bytes.len() == contribution_bytes),
            "every contribution's chunk holds {contribution_bytes} bytes"
        );
        assert_eq!(
            momentum.len(),
            elements,
            "momentum and theta differ in length"
        );
        if let Some(model) = model {
            assert_eq!(
                model.len(),
                model_bytes,
                "the outgoing chunk does not fit theta"
            );
        }
    }
}

/// `mean ← weight · Δ`, or `mean ← mean + weight · Δ` after the first contribution.
fn accumulate(dtype: Dtype, bytes: &[u8], weight: f32, first: bool, mean: &mut [f32]) {
    match dtype {
        Dtype::F32 => accumulate_with(bytes.as_chunks().0, f32_from, weight, first, mean),
        Dtype::Bf16 => accumulate_with(bytes.as_chunks().0, f32_from_bf16, weight, first, mean),
    }
}

#[inline(always)]
fn accumulate_with<const N: usize>(
    encoded: &[[u8; N]],
    decode: impl Fn([u8; N]) -> f32,
    weight: f32,
    first: bool,
    mean: &mut [f32],
) {
    let elements = mean.iter_mut().zip(encoded);
    if first {
        elements.for_each(|(mean, bytes)| *mean = weight * decode(*bytes));
    } else {
        elements.for_each(|(mean, bytes)| *mean += weight * decode(*bytes));
    }
}

/// A vertical slice through all files of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The chunk's elements of the flat array.
    pub elements: Range<u64>,
}

impl Chunk {
    /// How many elements it has.
    pub fn len(&self) -> usize {
        (self.elements.end - self.elements.start) as usize
    }

    /// Whether it has none. No chunk of a [`MergePlan`] is empty.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }
}

/// A model cut into chunks of equal size, the last one shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergePlan {
    elements: u64,
    chunk_elements: u64,
}

impl MergePlan {
    /// Cuts `elements` into chunks of at most `chunk_elements`.
    pub fn new(elements: u64, chunk_elements: std::num::NonZeroU32) -> MergePlan {
        MergePlan {
            elements,
            chunk_elements: u64::from(chunk_elements.get()),
        }
    }

    /// Number of chunks.
    pub fn len(&self) -> u64 {
        self.elements.div_ceil(self.chunk_elements)
    }

    /// Whether there is nothing to do: a model without elements.
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// Elements of the largest chunk: what a buffer must hold.
    pub fn max_chunk_elements(&self) -> usize {
        self.chunk_elements.min(self.elements) as usize
    }

    /// Chunk number `index`, if there is one.
    pub fn chunk(&self, index: u64) -> Option<Chunk> {
        let start = index.checked_mul(self.chunk_elements)?;
        let end = start.saturating_add(self.chunk_elements).min(self.elements);
        (start < end).then_some(Chunk {
            elements: start..end,
        })
    }

    /// All chunks in order.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> {
        let plan = *self;
        (0..plan.len()).filter_map(move |index| plan.chunk(index))
    }
}
