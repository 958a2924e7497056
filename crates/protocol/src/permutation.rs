//! The order in which blocks are trained, specified bit for bit so that any language can
//! reproduce it.
//!
//! - Generator: xoshiro256** (Blackman and Vigna, <https://prng.di.unimi.it>), its four state words
//!   being the first four outputs of SplitMix64 started at `seed + epoch · 0x9E3779B97F4A7C15`
//!   (wrapping).
//! - Bounded integer in `0..n`: the low `b` bits of the next output, where `b` is the number of bits
//!   of `n − 1`; drawn again until it is below `n`.
//! - Shuffle: Durstenfeld's Fisher–Yates over the full blocks, from the last index `i` down to 1,
//!   exchanging `i` with a bounded integer in `0..i + 1`. A short last block stays last.

use hansa_base::Epoch;

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// `π_s` of one epoch: position's block → block on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permutation {
    order: Vec<u32>,
}

impl Permutation {
    /// The permutation of `blocks` blocks, of which the last is short (and stays last) if
    /// `short_last`.
    #[must_use]
    pub fn new(blocks: u32, short_last: bool, seed: u64, epoch: Epoch) -> Self {
        let mut order: Vec<u32> = (0..blocks).collect();
        let mut generator = Xoshiro::new(seed, epoch);
        let full = blocks as usize - usize::from(short_last && blocks > 0);
        for i in (1..full).rev() {
            order.swap(i, generator.below(i as u64 + 1) as usize);
        }
        Self { order }
    }

    /// The block on disk at place `index` of the order.
    #[must_use]
    pub fn block_at(&self, index: u64) -> u64 {
        self.order[index as usize].into()
    }

    /// A check value over the whole order: FNV-1a (64 bits) over the blocks as little-endian u32.
    #[must_use]
    pub fn check_value(&self) -> u64 {
        let bytes = self.order.iter().flat_map(|block| block.to_le_bytes());
        bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        })
    }
}

struct Xoshiro([u64; 4]);

impl Xoshiro {
    fn new(seed: u64, epoch: Epoch) -> Self {
        let mut state = seed.wrapping_add(u64::from(epoch.0).wrapping_mul(GOLDEN));
        Self(std::array::from_fn(|_| split_mix(&mut state)))
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        out
    }

    fn below(&mut self, n: u64) -> u64 {
        let mask = u64::MAX.checked_shr((n - 1).leading_zeros()).unwrap_or(0);
        loop {
            let drawn = self.next() & mask;
            if drawn < n {
                return drawn;
            }
        }
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(GOLDEN);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_published_one() {
        // First outputs of xoshiro256** whose state words are 1, 2, 3, 4, from the reference code.
        let mut generator = Xoshiro([1, 2, 3, 4]);
        let first: [u64; 4] = std::array::from_fn(|_| generator.next());
        assert_eq!(first, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
        let mut state = 1_234_567;
        assert_eq!(split_mix(&mut state), 6_457_827_717_110_365_317);
    }

    #[test]
    fn every_block_occurs_once_and_a_short_one_stays_last() {
        for (blocks, short) in [(0, false), (1, true), (2, true), (97, false), (97, true)] {
            let permutation = Permutation::new(blocks, short, 42, Epoch(3));
            let mut seen = permutation.order.clone();
            seen.sort_unstable();
            assert_eq!(seen, (0..blocks).collect::<Vec<_>>());
            if short {
                assert_eq!(permutation.order.last(), Some(&(blocks - 1)));
            }
        }
    }
}
