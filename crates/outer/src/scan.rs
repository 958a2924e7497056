//! One look at every number of a contribution: is it finite, and how long is the whole vector?
//!
//! The gate asks both before a contribution may be staged. The answer must not depend on how the
//! file was cut into chunks, so the sum of squares runs in eight lanes by *position in the file*:
//! element `i` always goes to lane `i mod 8`, in order, in f64. It never decides anything.

use crate::wide::wide;

const LANES: usize = 8;

/// A streaming scan of one tensor file, fed in order with slices of any length.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Sums of squares of the elements whose index is `lane` modulo [`LANES`].
    lanes: [f64; LANES],
    elements: u64,
    first_non_finite: Option<u64>,
}

impl Scan {
    /// A scan that has seen nothing.
    pub fn new() -> Scan {
        Scan::default()
    }

    /// Takes the next elements of the flat array.
    pub fn push(&mut self, values: &[f32]) {
        let phase = (self.elements % LANES as u64) as usize;
        // Up to the next multiple of eight one by one, then whole groups, then the rest.
        let head = ((LANES - phase) % LANES).min(values.len());
        let (head, body) = values.split_at(head);
        let (groups, tail) = body.as_chunks::<LANES>();
        for (lane, value) in self.lanes[phase..].iter_mut().zip(head) {
            *lane += square(*value);
        }
        self.lanes = wide(
            #[inline(always)]
            || {
                let mut lanes = self.lanes;
                for group in groups {
                    for (lane, value) in lanes.iter_mut().zip(group) {
                        *lane += square(*value);
                    }
                }
                lanes
            },
        );
        for (lane, value) in self.lanes.iter_mut().zip(tail) {
            *lane += square(*value);
        }
        // Squares of finite f32 stay far inside f64's range: the sum tells whether to search.
        if self.first_non_finite.is_none() && !self.squared_norm().is_finite() {
            self.first_non_finite =
                first_non_finite(values).map(|index| self.elements + index as u64);
        }
        self.elements += values.len() as u64;
    }

    /// Elements seen so far.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Flat index of the first NaN or infinity; [`crate::Layout::tensor_at`] gives its tensor.
    pub fn first_non_finite(&self) -> Option<u64> {
        self.first_non_finite
    }

    /// Sum of the squares of all elements.
    pub fn squared_norm(&self) -> f64 {
        self.lanes.iter().sum()
    }
}

/// Sum of squares in f64, in the order that [`Scan`] uses.
pub fn squared_norm(values: &[f32]) -> f64 {
    let mut scan = Scan::new();
    scan.push(values);
    scan.squared_norm()
}

/// Index of the first NaN or infinity.
pub fn first_non_finite(values: &[f32]) -> Option<usize> {
    const BLOCK: usize = 1024;
    // Look at whole blocks without branches, then search the block that has one.
    for (number, block) in values.chunks(BLOCK).enumerate() {
        if !all_finite(block) {
            let within = block.iter().position(|value| !value.is_finite())?;
            return Some(number * BLOCK + within);
        }
    }
    None
}

/// Whether all are finite, as one branch-free reduction: an exponent of all ones is NaN or infinity.
#[inline(always)]
pub(crate) fn all_finite(values: &[f32]) -> bool {
    const MAGNITUDE: u32 = 0x7fff_ffff;
    let largest = values.iter().fold(0, |largest, value| {
        (value.to_bits() & MAGNITUDE).max(largest)
    });
    largest < f32::INFINITY.to_bits()
}

#[inline(always)]
fn square(value: f32) -> f64 {
    let value = f64::from(value);
    value * value
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_non_finite_value_is_found_wherever_it_is() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 1, 1023, 1024, 2999] {
                let mut values = vec![f32::MAX; 3000];
                values[at] = bad;
                values[2999] = bad;
                assert_eq!(first_non_finite(&values), Some(at));
                let mut scan = Scan::new();
                values.chunks(7).for_each(|chunk| scan.push(chunk));
                assert_eq!(scan.first_non_finite(), Some(at as u64));
            }
        }
        let finite = [f32::MAX, f32::MIN, 0.0, f32::MIN_POSITIVE / 2.0];
        assert_eq!(first_non_finite(&finite), None);
        assert_eq!(first_non_finite(&[]), None);
    }

    proptest! {
        #[test]
        fn the_norm_does_not_depend_on_the_cuts(
            values in prop::collection::vec(-1e3f32..1e3, 0..200),
            cuts in prop::collection::vec(0usize..40, 0..20),
        ) {
            let mut scan = Scan::new();
            let mut rest = &values[..];
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                scan.push(now);
                rest = later;
            }
            scan.push(rest);
            prop_assert_eq!(scan.elements(), values.len() as u64);
            prop_assert_eq!(scan.squared_norm().to_bits(), squared_norm(&values).to_bits());
            let plain: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
            prop_assert!((scan.squared_norm() - plain).abs() <= 1e-12 * plain);
        }
    }
}
