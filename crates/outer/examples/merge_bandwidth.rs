//! How fast the merge's arithmetic runs beside a plain copy of as many bytes, in the same process.
//!
//! `cargo run --release -p hansa-outer --example merge_bandwidth [ELEMENTS [CONTRIBUTIONS [THREADS]]]`
//!
//! Prints gigabytes moved per second, reads and writes counted, best of several alternating repeats.
//! The copy is `memcpy` on the same number of threads; it bounds what memory can do.

use std::num::NonZeroU32;
use std::thread;
use std::time::Instant;

use hansa_base::Tokens;
use hansa_outer::{Dtype, Merge, MergeError, MergePlan, OuterStep, Weights};

const REPEATS: usize = 5;
const CHUNK_ELEMENTS: NonZeroU32 = NonZeroU32::new(1 << 20).expect("not zero");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    let elements = argument(16 << 20)?;
    let contributions = argument(3)?;
    let threads = argument(2)?.max(1);
    println!("{elements} elements, {contributions} contributions, {threads} threads");
    for (codec, model) in [(Dtype::F32, Dtype::F32), (Dtype::Bf16, Dtype::Bf16)] {
        let mut round = Round::new(elements, contributions, codec, model)?;
        let (mut merge_s, mut copy_s) = (f64::INFINITY, f64::INFINITY);
        let half = round.bytes_moved() / 2;
        let source = vec![1u8; half];
        let mut target = vec![0u8; half];
        for _ in 0..REPEATS {
            let start = Instant::now();
            round.merge(threads)?;
            merge_s = start.elapsed().as_secs_f64().min(merge_s);

            let start = Instant::now();
            copy(&source, &mut target, threads);
            copy_s = start.elapsed().as_secs_f64().min(copy_s);
        }
        let gb = round.bytes_moved() as f64 / 1e9;
        println!(
            "contributions {codec}, model {model}: merge {:.2} GB/s, memcpy {:.2} GB/s, ratio {:.2}",
            gb / merge_s,
            gb / copy_s,
            copy_s / merge_s
        );
    }
    Ok(())
}

/// A round in memory.
struct Round {
    merge: Merge,
    codec: Dtype,
    theta: Vec<f32>,
    momentum: Vec<f32>,
    /// Empty where the f32 master is itself the outgoing model.
    model: Vec<u8>,
    contributions: Vec<Vec<u8>>,
}

impl Round {
    fn new(
        elements: usize,
        contributions: usize,
        codec: Dtype,
        model: Dtype,
    ) -> Result<Round, MergeError> {
        let step = OuterStep::Nesterov {
            lr: 0.7,
            momentum: 0.9,
        };
        let values: Vec<f32> = (0..elements).map(|i| (i % 1013) as f32 * 1e-5).collect();
        let mut encoded = vec![0; elements * codec.bytes_per_element()];
        codec.encode(&values, &mut encoded);
        let weights = Weights::from_tokens(&vec![Tokens(1000); contributions])?;
        let model_bytes = match model {
            Dtype::F32 => 0,
            other => elements * other.bytes_per_element(),
        };
        Ok(Round {
            merge: Merge::new(step, weights, codec, model)?,
            codec,
            momentum: vec![0.0; elements],
            theta: values,
            model: vec![0; model_bytes],
            contributions: vec![encoded; contributions],
        })
    }

    /// Reads of everything, writes of weights, momentum and model.
    fn bytes_moved(&self) -> usize {
        let state = 4 * (self.theta.len() + self.momentum.len());
        let read: usize = self.contributions.iter().map(Vec::len).sum();
        2 * state + read + self.model.len()
    }

    /// Every thread takes one contiguous part and walks it chunk by chunk.
    fn merge(&mut self, threads: usize) -> Result<(), MergeError> {
        let elements = self.theta.len();
        let part = elements.div_ceil(threads).max(1);
        let model_size = self.model.len() / elements.max(1);
        let (merge, contributions) = (&self.merge, &self.contributions);
        let codec_size = self.codec.bytes_per_element();
        let mut theta_parts = self.theta.chunks_mut(part);
        let mut momentum_parts = self.momentum.chunks_mut(part);
        let mut rest = &mut self.model[..];
        thread::scope(|scope| {
            let mut workers = Vec::new();
            for (number, theta) in theta_parts.by_ref().enumerate() {
                let Some(momentum) = momentum_parts.next() else {
                    break;
                };
                let (model, later) = rest.split_at_mut(theta.len() * model_size);
                rest = later;
                workers.push(scope.spawn(move || {
                    let plan = MergePlan::new(theta.len() as u64, CHUNK_ELEMENTS);
                    for chunk in plan.chunks() {
                        let range = chunk.elements.start as usize..chunk.elements.end as usize;
                        let start = (number * part + range.start) * codec_size;
                        let end = (number * part + range.end) * codec_size;
                        let slices: Vec<&[u8]> =
                            contributions.iter().map(|c| &c[start..end]).collect();
                        let model = (model_size > 0)
                            .then(|| &mut model[range.start * model_size..range.end * model_size]);
                        let theta = &mut theta[range.clone()];
                        merge.merge_chunk(&slices, theta, &mut momentum[range], model)?;
                    }
                    Ok(())
                }));
            }
            workers
                .into_iter()
                .try_for_each(|worker| match worker.join() {
                    Ok(result) => result,
                    Err(panic) => std::panic::resume_unwind(panic),
                })
        })
    }
}

fn copy(source: &[u8], target: &mut [u8], threads: usize) {
    let part = source.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        for (source, target) in source.chunks(part).zip(target.chunks_mut(part)) {
            scope.spawn(move || target.copy_from_slice(source));
        }
    });
}
