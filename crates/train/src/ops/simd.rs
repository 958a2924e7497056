//! Run-time choice of instruction set for element-wise loops, and the reductions they share.
//!
//! A loop inside `vectorised!` is compiled three times (AVX-512, AVX2, baseline) and the best version
//! the CPU has is called, so a plain release build is fast everywhere. The helpers are `inline(always)`:
//! they take on the instruction set of the loop around them. Reductions use sixteen fixed lanes, so
//! that their result does not depend on the width of the registers.

/// Independent partial sums in a reduction.
const LANES: usize = 16;

/// Runs its body compiled for the best instruction set of this CPU.
///
/// A macro, because only a closure marked `inline(always)` takes on the instruction set of its caller;
/// without the mark the body would silently stay at the baseline.
macro_rules! vectorised {
    ($($body:tt)*) => {
        $crate::ops::simd::dispatch(
            #[inline(always)]
            || { $($body)* },
        )
    };
}
pub(crate) use vectorised;

/// The function behind `vectorised!`. `FnMut`, because calling a closure by value goes through a shim
/// that is not inlined.
#[inline(always)]
pub(crate) fn dispatch<R>(body: impl FnMut() -> R) -> R {
    struct Body<F>(F);
    impl<R, F: FnMut() -> R> pulp::WithSimd for Body<F> {
        type Output = R;

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(mut self, _: S) -> R {
            (self.0)()
        }
    }
    pulp::Arch::new().dispatch(Body(body))
}

/// `Σ f(i)` over `0..len` in the fixed order: sixteen strided sums, added pairwise at the end.
#[inline(always)]
pub fn sum_by(len: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let whole = len / LANES * LANES;
    let mut start = 0;
    while start < whole {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += f(start + lane);
        }
        start += LANES;
    }
    for (lane, i) in (whole..len).enumerate() {
        lanes[lane] += f(i);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Scalar product of two slices of one length.
#[inline(always)]
pub fn dot(x: &[f32], y: &[f32]) -> f32 {
    let y = &y[..x.len()];
    sum_by(x.len(), |i| x[i] * y[i])
}

/// Largest value of a slice, or the lowest `f32` if it is empty. NaNs are passed over here and surface
/// in the loss.
#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    let mut lanes = [f32::MIN; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (largest, &value) in lanes.iter_mut().zip(chunk) {
            *largest = if value > *largest { value } else { *largest };
        }
    }
    lanes
        .iter()
        .chain(rest)
        .fold(f32::MIN, |a, &b| if b > a { b } else { a })
}

/// `e^x` to about one unit in the last place: range reduction by `ln 2` in two parts and a polynomial
/// of degree five (Cephes `expf`). Clamped to the finite range; NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5·2^23 rounds to an integer that then stands in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let y = p * r * r + r + 1.0;
    // Scale by 2^n through the exponent field.
    f32::from_bits(y.to_bits().wrapping_add(shifted.to_bits() << 23))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_over_its_range() {
        for i in -8_600..8_800 {
            let x = i as f32 * 0.01;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2e-7, "exp({x}) is off by {error}");
        }
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn reductions_take_every_length() {
        for len in 0..70 {
            let x: Vec<f32> = (0..len).map(|i| (i * 7 % 11) as f32).collect();
            assert_eq!(
                dot(&x, &x),
                x.iter().map(|v| v * v).sum::<f32>(),
                "length {len}"
            );
            assert_eq!(
                max(&x),
                x.iter().copied().fold(f32::MIN, f32::max),
                "length {len}"
            );
        }
    }
}
