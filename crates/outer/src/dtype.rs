//! How numbers travel: the element types of models and contributions, and their conversions.
//!
//! Arithmetic is always fp32; a [`Dtype`] is only the form in a file or on a wire. fp16 is left
//! out on purpose: its range (65,504) invites `inf`. Conversions never fail and never look for
//! non-finite values; [`crate::Scan`] does.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The element type of a tensor file. Little-endian, as safetensors has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 single precision: 4 bytes an element, lossless.
    F32,
    /// bfloat16, rounded to nearest, ties to even: 2 bytes an element, relative error ≤ 2⁻⁸.
    Bf16,
}

/// A dtype name that Hansa does not exchange.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown exchange dtype {0:?}: use \"f32\" or \"bf16\"")]
pub struct UnknownDtype(pub String);

impl Dtype {
    /// Every dtype, in order of decreasing size.
    pub const ALL: [Dtype; 2] = [Dtype::F32, Dtype::Bf16];

    /// The name in a recipe or on a command line: `f32`, `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
        }
    }

    /// The name in a safetensors header: `F32`, `BF16`.
    pub fn safetensors_name(self) -> &'static str {
        match self {
            Dtype::F32 => "F32",
            Dtype::Bf16 => "BF16",
        }
    }

    /// The dtype that a safetensors header names, if it is one that Hansa exchanges.
    pub fn from_safetensors_name(name: &str) -> Option<Dtype> {
        Dtype::ALL
            .into_iter()
            .find(|dtype| dtype.safetensors_name() == name)
    }

    /// Bytes that one element takes.
    pub const fn bytes_per_element(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
        }
    }

    /// Writes `values` into `bytes`.
    ///
    /// # Panics
    /// If `bytes` is not exactly [`bytes_per_element`](Self::bytes_per_element) × `values.len()` long.
    #[inline(always)]
    pub fn encode(self, values: &[f32], bytes: &mut [u8]) {
        self.assert_fits(values.len(), bytes.len());
        match self {
            Dtype::F32 => {
                for (slot, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                    *slot = value.to_le_bytes();
                }
            }
            Dtype::Bf16 => {
                for (slot, value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                    *slot = bf16_bits(*value).to_le_bytes();
                }
            }
        }
    }

    /// Reads `bytes` into `values`.
    ///
    /// # Panics
    /// If `bytes` is not exactly [`bytes_per_element`](Self::bytes_per_element) × `values.len()` long.
    pub fn decode(self, bytes: &[u8], values: &mut [f32]) {
        self.assert_fits(values.len(), bytes.len());
        match self {
            Dtype::F32 => {
                for (value, slot) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *value = f32_from(*slot);
                }
            }
            Dtype::Bf16 => {
                for (value, slot) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *value = f32_from_bf16(*slot);
                }
            }
        }
    }

    fn assert_fits(self, elements: usize, bytes: usize) {
        assert_eq!(
            elements * self.bytes_per_element(),
            bytes,
            "{elements} elements of {self} do not fill a buffer of {bytes} bytes"
        );
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = UnknownDtype;

    fn from_str(name: &str) -> Result<Dtype, UnknownDtype> {
        Dtype::ALL
            .into_iter()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| UnknownDtype(name.to_owned()))
    }
}

#[inline(always)]
pub(crate) fn f32_from(bytes: [u8; 4]) -> f32 {
    f32::from_le_bytes(bytes)
}

/// A bfloat16 is the upper half of the f32 of the same value.
#[inline(always)]
pub(crate) fn f32_from_bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// The nearest bfloat16, ties to even. Written without branches so that the loop vectorises:
/// adding `0x7fff` plus the lowest kept bit carries into the upper half exactly when rounding up.
/// A NaN stays a (quiet) NaN instead of carrying over into infinity.
#[inline(always)]
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let quiet_nan = bits | 0x0040_0000;
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    ((if is_nan { quiet_nan } else { rounded }) >> 16) as u16
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn through(dtype: Dtype, values: &[f32]) -> Vec<f32> {
        let mut bytes = vec![0; values.len() * dtype.bytes_per_element()];
        let mut back = vec![0.0; values.len()];
        dtype.encode(values, &mut bytes);
        dtype.decode(&bytes, &mut back);
        back
    }

    #[test]
    fn every_bf16_survives_and_ties_go_to_even() {
        let all: Vec<f32> = (0..=u16::MAX)
            .map(|bits| f32::from_bits(u32::from(bits) << 16))
            .collect();
        for (before, after) in all.iter().zip(through(Dtype::Bf16, &all)) {
            assert!(before.to_bits() == after.to_bits() || (before.is_nan() && after.is_nan()));
        }
        // 1 + 2⁻⁸ lies between 1 and 1 + 2⁻⁷: down to even; 1 + 3·2⁻⁸: up to even.
        let ties = [1.0 + 2f32.powi(-8), 1.0 + 3.0 * 2f32.powi(-8)];
        assert_eq!(through(Dtype::Bf16, &ties), [1.0, 1.0 + 2f32.powi(-6)]);
    }

    #[test]
    fn names_are_read_back() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse::<Dtype>().unwrap(), dtype);
            assert_eq!(
                Dtype::from_safetensors_name(dtype.safetensors_name()),
                Some(dtype)
            );
        }
        assert!("fp16".parse::<Dtype>().is_err());
    }

    proptest! {
        #[test]
        fn f32_travels_unchanged(bits in prop::collection::vec(any::<u32>(), 0..70)) {
            let values: Vec<f32> = bits.iter().map(|bits| f32::from_bits(*bits)).collect();
            let back: Vec<u32> = through(Dtype::F32, &values).iter().map(|v| v.to_bits()).collect();
            prop_assert_eq!(back, bits);
        }

        #[test]
        fn bf16_rounds_as_the_half_crate_does(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            prop_assert_eq!(bf16_bits(value), half::bf16::from_f32(value).to_bits());
        }

        #[test]
        fn bf16_error_is_bounded(value in -1e38f32..1e38) {
            let back = through(Dtype::Bf16, &[value])[0];
            let error = (f64::from(back) - f64::from(value)).abs();
            // Below the normal range the bound is absolute: half of the smallest step.
            prop_assert!(error <= f64::from(value.abs()) / 256.0 + f64::from(f32::MIN_POSITIVE) / 256.0);
        }
    }
}
