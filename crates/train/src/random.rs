//! The generator that draws initial weights, specified bit for bit.
//!
//! SplitMix64 (Steele, Lea, Flood 2014) seeded per tensor, and Marsaglia's polar method in `f64` with
//! `libm`'s portable logarithm: every machine draws the same weights from the same seed. It never
//! serves as a source of secrets.

/// SplitMix64: 64 bits of state, a Weyl sequence passed through a finaliser.
pub(crate) struct SplitMix64 {
    state: u64,
    /// The second value of a pair from [`SplitMix64::normal`], if not yet handed out.
    spare: Option<f64>,
}

impl SplitMix64 {
    /// The stream number `stream` of `seed`: the state starts as the first output of a generator whose
    /// state is `seed`, plus that of one whose state is `stream + 2^63`, so that streams do not overlap
    /// by a shift.
    pub(crate) fn new(seed: u64, stream: u64) -> SplitMix64 {
        let mut of_seed = SplitMix64 {
            state: seed,
            spare: None,
        };
        let mut of_stream = SplitMix64 {
            state: stream.wrapping_add(1 << 63),
            spare: None,
        };
        let state = of_seed.next_u64().wrapping_add(of_stream.next_u64());
        SplitMix64 { state, spare: None }
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `[-1, 1)` with 53 random bits.
    fn symmetric(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (2.0 / (1u64 << 53) as f64) - 1.0
    }

    /// Standard normal, by Marsaglia's polar method.
    pub(crate) fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (x, y) = (self.symmetric(), self.symmetric());
            let r2 = x * x + y * y;
            if r2 > 0.0 && r2 < 1.0 {
                let scale = (-2.0 * libm::log(r2) / r2).sqrt();
                self.spare = Some(y * scale);
                return x * scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_raw_generator_matches_the_published_vector() {
        // First outputs for state 0, as in Vigna's splitmix64.c and the JDK.
        let mut generator = SplitMix64 {
            state: 0,
            spare: None,
        };
        assert_eq!(generator.next_u64(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(generator.next_u64(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn normal_draws_have_mean_zero_and_variance_one() {
        let mut generator = SplitMix64::new(7, 0);
        let draws: Vec<f64> = (0..100_000).map(|_| generator.normal()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| x * x).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.01, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.02, "variance {variance}");
    }
}
