//! The randomness of stochastic rounding: a function of a contribution's identity and a place.
//!
//! A counter-based generator: nothing is carried from one number to the next, so blocks can be made in
//! any order and on any thread. 64 bits are mixed from key and block number (the finaliser of
//! SplitMix64), and from them and the lane 32 bits (the finaliser `lowbias32`, with the other half added
//! between its products), of which each half serves one element. Good enough to round with; not for
//! secrets.

use super::BLOCK_ELEMENTS;

/// The key of one contribution's rounding. Equal keys and values give equal bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dither(u64);

impl Dither {
    /// From bytes of a hash of whatever identifies the contribution: its base, its positions.
    pub fn new(identity: [u8; 8]) -> Dither {
        Dither(u64::from_le_bytes(identity))
    }

    /// Sixteen bits for each element of a block.
    #[inline(always)]
    pub(crate) fn block(self, number: u64) -> [u16; BLOCK_ELEMENTS] {
        let mut mixed = self.0 ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let (low, high) = (mixed as u32, (mixed >> 32) as u32);
        let mut bits = [0; BLOCK_ELEMENTS];
        let (first, second) = bits.split_at_mut(BLOCK_ELEMENTS / 2);
        for (lane, (a, b)) in (0..).zip(first.iter_mut().zip(second)) {
            let x = lane_bits(low, high, lane);
            (*a, *b) = (x as u16, (x >> 16) as u16);
        }
        bits
    }
}

#[inline(always)]
fn lane_bits(low: u32, high: u32, lane: u32) -> u32 {
    let mut x = low.wrapping_add(lane.wrapping_mul(0x9e37_79b1));
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = ((x ^ (x >> 15)) ^ high).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_a_promise_to_runs_in_progress() {
        let bits = Dither::new(*b"hansa\0\0\0").block(3);
        assert_eq!([bits[0], bits[1], bits[64], bits[127]], GOLDEN);
    }

    /// Computed from the description above by other code.
    const GOLDEN: [u16; 4] = [41254, 44614, 64946, 19926];

    #[test]
    fn draws_are_even_and_neighbours_do_not_follow_each_other() {
        const BLOCKS: u64 = 2000;
        let draws: Vec<f64> = (0..BLOCKS)
            .flat_map(|number| Dither::new([7; 8]).block(number))
            .map(|bits| f64::from(bits) / 65_536.0 - 0.5)
            .collect();
        let n = draws.len() as f64;
        // Five standard errors of the mean of n draws.
        let bound = 5.0 / (12.0 * n).sqrt();
        assert!((draws.iter().sum::<f64>() / n).abs() < bound);
        for distance in [1, 2, 63, 64, 65, 128] {
            let pairs = draws.iter().zip(&draws[distance..]);
            let product = pairs.map(|(a, b)| a * b).sum::<f64>() / n;
            assert!(
                product.abs() < 5.0 / (12.0 * n.sqrt()),
                "distance {distance}"
            );
        }
        let mut counts = [0_u32; 256];
        let bytes = draws.iter().map(|draw| ((draw + 0.5) * 256.0) as usize);
        bytes.for_each(|byte| counts[byte] += 1);
        let expected = n / 256.0;
        let chi: f64 = counts
            .iter()
            .map(|c| (f64::from(*c) - expected).powi(2) / expected)
            .sum();
        // 255 degrees of freedom: seven standard deviations.
        assert!(
            (chi - 255.0).abs() < 7.0 * (2.0_f64 * 255.0).sqrt(),
            "{chi}"
        );
    }

    #[test]
    fn other_keys_and_other_blocks_draw_otherwise() {
        let same = |a: [u16; 128], b: [u16; 128]| a.iter().zip(&b).filter(|(a, b)| a == b).count();
        let block = |key: u8, number| Dither::new([key; 8]).block(number);
        assert!(same(block(1, 0), block(2, 0)) < 4);
        assert!(same(block(1, 0), block(1, 1)) < 4);
    }
}
