//! The perplexity that knows only how frequent tokens are: what any model must beat.

use rayon::prelude::*;

use crate::{Corpus, Error, Result, Split};

/// Windows counted by one thread in one go.
const CHUNK_WINDOWS: u64 = 1024;

/// Perplexity of the held-out targets under the train split's unigram distribution with add-one
/// (Laplace) smoothing:
///
/// ```text
/// p(v) = (c_v + 1) / (T + V)          c_v: train targets equal to v, T = Σ c_v, V: vocabulary
/// ppl  = exp( −1/n · Σ_{held-out targets t} ln p(t) )      n: held-out targets
/// ```
///
/// A window's targets are its tokens but the first. The counts are exact integers and the sum runs
/// in the order of the vocabulary, so the result does not depend on the number of threads.
///
/// # Errors
/// If there are no held-out windows, or a shard holds a token outside the vocabulary.
pub fn unigram_perplexity(corpus: &Corpus) -> Result<f64> {
    let held_out = count_targets(corpus, Split::HeldOut)?;
    let targets: u64 = held_out.iter().sum();
    if targets == 0 {
        return Err(Error::NoHeldOut);
    }
    let train = count_targets(corpus, Split::Train)?;
    let mass = (train.iter().sum::<u64>() + train.len() as u64) as f64;
    let log_likelihood: f64 = held_out
        .iter()
        .zip(&train)
        .map(|(&times, &count)| times as f64 * ((count + 1) as f64 / mass).ln())
        .sum();
    Ok((-log_likelihood / targets as f64).exp())
}

/// How often each token of the vocabulary is a target.
fn count_targets(corpus: &Corpus, split: Split) -> Result<Vec<u64>> {
    let vocab_size = corpus.manifest().tokenizer.vocab_size as usize;
    let windows = corpus.windows(split).0;
    (0..windows.div_ceil(CHUNK_WINDOWS))
        .into_par_iter()
        .try_fold(
            || vec![0; vocab_size],
            |mut counts, chunk| {
                let first = chunk * CHUNK_WINDOWS;
                let mut window = Vec::new();
                for index in first..windows.min(first + CHUNK_WINDOWS) {
                    corpus.read(split, index, &mut window)?;
                    for &target in &window[1..] {
                        counts[target as usize] += 1;
                    }
                }
                Ok(counts)
            },
        )
        .try_reduce(
            || vec![0; vocab_size],
            |mut all, part| {
                all.iter_mut()
                    .zip(part)
                    .for_each(|(sum, count)| *sum += count);
                Ok(all)
            },
        )
}
