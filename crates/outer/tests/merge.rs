//! The merge is the same whatever the chunks, and refuses what must not be published.
#![allow(clippy::unwrap_used)]

use std::num::NonZeroU32;

use hansa_base::Tokens;
use hansa_outer::{
    BLOCK_ELEMENTS, Codec, Dither, Dtype, Merge, MergeError, MergePlan, OuterStep, Weights,
};

const NESTEROV: OuterStep = OuterStep::Nesterov {
    lr: 0.7,
    momentum: 0.9,
};

/// Numbers without pattern, from a fixed linear congruence.
fn noise(seed: u32, elements: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..elements).map(|_| next()).collect()
}

fn weights(tokens: &[u64]) -> Result<Weights, MergeError> {
    let tokens: Vec<Tokens> = tokens.iter().copied().map(Tokens).collect();
    Weights::from_tokens(&tokens)
}

fn encode(codec: Codec, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; codec.bytes(values.len() as u64) as usize];
    let dither = Dither::new([9; 8]);
    codec.encode(dither, 0, values, &mut bytes).unwrap();
    bytes
}

/// A round with everything it reads.
struct Round {
    merge: Merge,
    codec: Codec,
    theta: Vec<f32>,
    momentum: Vec<f32>,
    contributions: Vec<Vec<u8>>,
}

/// What a round writes, as bits.
#[derive(Debug, PartialEq)]
struct Outcome {
    theta: Vec<u32>,
    momentum: Vec<u32>,
    model: Vec<u8>,
}

impl Round {
    fn new(elements: usize, tokens: &[u64], codec: Codec) -> Round {
        let weights = weights(tokens).unwrap();
        let contribution = |seed| encode(codec, &noise(seed + 10, elements));
        Round {
            merge: Merge::new(NESTEROV, weights, codec, Dtype::Bf16).unwrap(),
            codec,
            theta: noise(1, elements),
            momentum: noise(2, elements),
            contributions: (0..tokens.len() as u32).map(contribution).collect(),
        }
    }

    /// Merges in chunks of `chunk_elements`, last chunk first if `backwards`.
    fn run(&self, chunk_elements: u32, backwards: bool) -> Outcome {
        let elements = self.theta.len();
        let (mut theta, mut momentum) = (self.theta.clone(), self.momentum.clone());
        let mut model = vec![0; elements * 2];
        let plan = MergePlan::new(elements as u64, NonZeroU32::new(chunk_elements).unwrap());
        let mut chunks: Vec<_> = plan.chunks().collect();
        assert_eq!(chunks.len() as u64, plan.len());
        if backwards {
            chunks.reverse();
        }
        for chunk in chunks {
            assert!(chunk.len() <= plan.max_chunk_elements());
            let range = chunk.elements.start as usize..chunk.elements.end as usize;
            let part = self.codec.byte_range(chunk.elements.clone());
            let bytes: Vec<&[u8]> = self
                .contributions
                .iter()
                .map(|bytes| &bytes[part.start as usize..part.end as usize])
                .collect();
            self.merge
                .merge_chunk(
                    &bytes,
                    &mut theta[range.clone()],
                    &mut momentum[range.clone()],
                    Some(&mut model[range.start * 2..range.end * 2]),
                )
                .unwrap();
        }
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect();
        Outcome {
            theta: bits(&theta),
            momentum: bits(&momentum),
            model,
        }
    }
}

#[test]
fn chunks_of_any_size_in_any_order_give_the_same_bits() {
    for codec in Codec::ALL {
        let round = Round::new(20_011, &[3, 1_000_003, 77], codec);
        let whole = round.run(u32::MAX, false);
        // Whole blocks only, where a codec has them.
        let block = BLOCK_ELEMENTS as u32;
        let sizes = [1, 2, 3, 7, 64, 4095, 4096, 4097, 10_000, 20_011].into_iter();
        let fits = |size: &u32| codec != Codec::Int8 || size.is_multiple_of(block);
        for chunk_elements in sizes.chain([block, 39 * block]).filter(fits) {
            assert_eq!(
                round.run(chunk_elements, false),
                whole,
                "{codec} {chunk_elements}"
            );
        }
        assert_eq!(round.run(1024, true), whole);
    }
}

#[test]
fn the_fused_pass_is_the_formula_written_out() {
    let round = Round::new(5000, &[10, 30], Codec::F32);
    let outcome = round.run(999, false);
    let (a, b) = (noise(10, 5000), noise(11, 5000));
    for i in 0..5000 {
        let mean = 0.25 * a[i] + 0.75 * b[i];
        let m = 0.9 * round.momentum[i] + mean;
        let theta = round.theta[i] - 0.7 * (mean + 0.9 * m);
        assert_eq!(outcome.momentum[i], m.to_bits());
        assert_eq!(outcome.theta[i], theta.to_bits());
    }
}

#[test]
fn the_order_of_the_close_record_is_what_counts() {
    // Sums in f32 depend on order; that is why the close record fixes it.
    let mut round = Round::new(4096, &[1, 1, 1], Codec::F32);
    let first = round.run(512, false);
    round.contributions.rotate_left(1);
    assert_ne!(round.run(512, false), first);
}

#[test]
fn weights_are_tokens_over_all_tokens() {
    let weights = |tokens: &[u64]| weights(tokens).map(|w| w.as_slice().to_vec());
    assert_eq!(weights(&[5]).unwrap(), [1.0]);
    assert_eq!(weights(&[1, 3]).unwrap(), [0.25, 0.75]);
    assert_eq!(weights(&[u64::MAX, u64::MAX]).unwrap(), [0.5, 0.5]);
    assert_eq!(weights(&[]), Err(MergeError::NoContributions));
    assert_eq!(weights(&[1, 0]), Err(MergeError::NoTokens { index: 1 }));
}

#[test]
fn a_merge_that_makes_no_sense_is_refused() {
    let merge = |step, tokens: &[u64]| {
        let weights = weights(tokens).unwrap();
        Merge::new(step, weights, Dtype::F32, Dtype::F32).map(|m| m.contributions())
    };
    let adopt = OuterStep::Adopt { momentum: 0.9 };
    assert_eq!(merge(adopt, &[7]), Ok(1));
    assert_eq!(
        merge(adopt, &[7, 7]),
        Err(MergeError::AdoptNotSolo { contributions: 2 })
    );
    let still = OuterStep::Nesterov {
        lr: 0.0,
        momentum: 0.9,
    };
    assert_eq!(merge(still, &[7]), Err(MergeError::BadStep(still)));
}

#[test]
fn weights_that_are_not_finite_are_not_published() {
    for (at, bad) in [(0, f32::NAN), (4999, f32::INFINITY), (9999, f32::MAX)] {
        let mut theta = noise(1, 10_000);
        let mut momentum = vec![0.0; 10_000];
        let mut delta = noise(3, 10_000);
        delta[at] = bad;
        let weights = weights(&[1]).unwrap();
        let merge = Merge::new(NESTEROV, weights, Dtype::F32, Dtype::F32).unwrap();
        let mut bytes = vec![0; 40_000];
        Dtype::F32.encode(&delta, &mut bytes);
        let result = merge.merge_chunk(&[&bytes], &mut theta, &mut momentum, None);
        assert_eq!(result, Err(MergeError::NonFinite { index: at as u64 }));
    }
}

#[test]
fn the_plan_covers_every_element_once() {
    let chunk_elements = NonZeroU32::new(10).unwrap();
    for elements in [0, 1, 9, 10, 11, 95, 100] {
        let plan = MergePlan::new(elements, chunk_elements);
        let mut end = 0;
        for chunk in plan.chunks() {
            assert_eq!(chunk.elements.start, end);
            assert!(!chunk.is_empty());
            end = chunk.elements.end;
        }
        assert_eq!(end, elements);
        assert_eq!(plan.chunk(plan.len()), None);
        assert_eq!(plan.is_empty(), elements == 0);
    }
}
