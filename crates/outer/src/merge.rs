//! The merge's arithmetic over one chunk, and the cutting of a model into chunks.
//!
//! Picture all files of a round laid side by side, element under element: master weights, momentum,
//! every contribution, the outgoing model. A chunk is a vertical slice through all of them, and no
//! slice needs anything of another. So the shell may take slices of any size, in any order, on any
//! number of threads, and always gets the same bytes.
//!
//! The shell's contract, for each [`Chunk`] of a [`MergePlan`]: read the chunk's bytes
//! ([`Header::byte_range`](crate::Header::byte_range)) of each contribution in turn and
//! [`accumulate`](Merge::accumulate) it; read those of the old master weights and the old momentum
//! (zeros if there is none); take the [`step`](Merge::step); write the new weights, momentum and
//! outgoing model at the same elements of *new* files. Old files are never written, so a merge killed
//! halfway is simply run again. Nothing here does I/O.

use std::ops::Range;

use hansa_base::Tokens;
use thiserror::Error;

use crate::codec::each_int8_block;
use crate::dtype::{f32_from, f32_from_bf16};
use crate::scan::{all_finite, first_non_finite};
use crate::wide::wide;
use crate::{Codec, Dtype, OuterStep};

/// Elements taken at once through the passes of a step: they stay in the first-level cache.
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
    codec: Codec,
    model_dtype: Dtype,
}

impl Merge {
    /// A merge of contributions encoded as `codec` into a model that travels as
    /// `model_dtype`; the master weights are f32 whatever that is.
    ///
    /// # Errors
    /// If the step's coefficients are out of range, or it adopts more than one contribution.
    pub fn new(
        step: OuterStep,
        weights: Weights,
        codec: impl Into<Codec>,
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
            codec: codec.into(),
            model_dtype,
        })
    }

    /// Contributions that every chunk must bring.
    pub fn contributions(&self) -> usize {
        self.weights.0.len()
    }

    /// How contributions are encoded.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Merges one chunk in place: every contribution's [`Merge::accumulate`], then [`Merge::step`].
    /// `contributions` are the chunk's encoded bytes in the order of the close record.
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
        model: Option<&mut [u8]>,
    ) -> Result<(), MergeError> {
        let expected = self.weights.0.len();
        assert_eq!(contributions.len(), expected, "one chunk per contribution");
        let mut mean = vec![0.0; theta.len()];
        for (index, bytes) in contributions.iter().enumerate() {
            self.accumulate(index, bytes, &mut mean);
        }
        self.step(&mean, theta, momentum, model)
    }

    /// Adds a contribution's elements to the weighted mean: `mean ← w·Δ` for the first of the close
    /// record, `mean ← mean + w·Δ` for the others, to be called in their order. So one buffer serves any
    /// number of contributions. `bytes` begin with a block of the codec.
    ///
    /// # Panics
    /// If there is no such contribution, or `bytes` do not hold as many elements as `mean`.
    pub fn accumulate(&self, index: usize, bytes: &[u8], mean: &mut [f32]) {
        self.codec.assert_fits(mean.len(), bytes.len());
        let (weight, first) = (self.weights.0[index], index == 0);
        wide(
            #[inline(always)]
            || match self.codec {
                Codec::F32 => accumulate_with(bytes.as_chunks().0, f32_from, weight, first, mean),
                Codec::Bf16 => {
                    accumulate_with(bytes.as_chunks().0, f32_from_bf16, weight, first, mean)
                }
                Codec::Int8 if first => each_int8_block(bytes, mean, |mean, v| *mean = weight * v),
                Codec::Int8 => each_int8_block(bytes, mean, |mean, v| *mean += weight * v),
            },
        );
    }

    /// Takes the outer step with a mean over all contributions, and encodes what travels.
    ///
    /// `theta` and `momentum` hold the old values and receive the new ones; `model`, if given, receives
    /// the new weights as they travel (leave it out where the f32 master file is itself the outgoing
    /// model). Works in pieces that stay in the first-level cache, and allocates nothing.
    ///
    /// # Errors
    /// If a new weight is not finite. The buffers then hold nothing of use.
    ///
    /// # Panics
    /// If a buffer's length does not fit.
    pub fn step(
        &self,
        mean: &[f32],
        theta: &mut [f32],
        momentum: &mut [f32],
        mut model: Option<&mut [u8]>,
    ) -> Result<(), MergeError> {
        let elements = mean.len();
        let lengths = (theta.len(), momentum.len());
        assert_eq!(lengths, (elements, elements), "buffers differ in length");
        let model_size = self.model_dtype.bytes_per_element();
        if let Some(model) = &model {
            let (found, needed) = (model.len(), elements * model_size);
            assert_eq!(found, needed, "the outgoing chunk does not fit theta");
        }
        let blocks = theta.chunks_mut(BLOCK).zip(momentum.chunks_mut(BLOCK));
        for (number, ((theta, momentum), mean)) in blocks.zip(mean.chunks(BLOCK)).enumerate() {
            let start = number * BLOCK;
            let finite = wide(
                #[inline(always)]
                || {
                    self.step.apply(mean, theta, momentum);
                    all_finite(theta)
                },
            );
            if !finite {
                let index = (start + first_non_finite(theta).unwrap_or(0)) as u64;
                return Err(MergeError::NonFinite { index });
            }
            if let Some(model) = model.as_deref_mut() {
                let end = start + theta.len();
                let bytes = &mut model[start * model_size..end * model_size];
                wide(
                    #[inline(always)]
                    || self.model_dtype.encode(theta, bytes),
                );
            }
        }
        Ok(())
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
