//! How contributions travel: the codecs of pseudo-gradients, and how well each keeps the numbers.
//!
//! | codec | bytes an element | an element comes back with an error of at most |
//! |---|---|---|
//! | `f32` | 4 | 0 |
//! | `bf16` | 2 | 2⁻⁷ of it, at random up or down, right on average |
//! | `int8` | 1.03 | 1/127 of the largest magnitude in its block, right on average |
//!
//! `int8` cuts the flat array of all elements into blocks of [`BLOCK_ELEMENTS`], the last one shorter:
//!
//! ```text
//!  ┌───────────────┬─────────────────────┐┌───────────────┬──────────── …
//!  │ scale: f32 LE │ 128 × q: i8         ││ scale: f32 LE │ 128 × q
//!  └───────────────┴─────────────────────┘└───────────────┴──────────── …
//!    an element is q · scale;  |q| ≤ 127
//! ```
//!
//! A scale lies before its numbers, so that a block can be read where it is, in whatever order the parts
//! of a file arrive. Rounding is stochastic: a mean over replicas and rounds loses nothing systematically,
//! however small a step is beside the grid. Which way an element goes depends on the contribution's
//! [`Dither`] and the element's place alone, so any cutting, any thread and any machine give the same
//! bytes. What a contribution must not hold ([`VALUE_MAX`]) is refused, never clipped in silence. A value
//! whose block's scale would be below the normal range (block maximum under 1.5e-36) becomes zero.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use thiserror::Error;

use crate::Dtype;
use crate::wide::wide;

mod dither;
pub use dither::Dither;

/// Elements that share a scale, and a draw of randomness.
pub const BLOCK_ELEMENTS: usize = 128;
/// The largest magnitude of a contribution's value. No weight that can still train is anywhere near;
/// sums of such values, and momentum over any number of rounds, stay finite in f32 (3.4e38).
pub const VALUE_MAX: f32 = 1e30;

const SCALE_BYTES: usize = 4;
/// The largest magnitude of a quantised number.
const Q_MAX: f32 = 127.0;
/// Adding 1.5 · 2²³ leaves the nearest integer in the low bits, on every machine and without a cast.
const TO_INTEGER: f32 = 12_582_912.0;

/// The form of a pseudo-gradient in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// IEEE 754 single precision: lossless.
    F32,
    /// bfloat16, rounded up or down at random.
    Bf16,
    /// Eight bits and a scale for each block, rounded up or down at random.
    Int8,
}

/// A codec's name that Hansa does not know.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown codec {0:?}: use \"f32\", \"bf16\" or \"int8\"")]
pub struct UnknownCodec(pub String);

/// A value that no contribution may hold: not finite, or beyond [`VALUE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("element {index} is {value:e}: values must be finite and at most {VALUE_MAX:e}")]
pub struct BadValue {
    /// Its place in the slice that was handed in.
    pub index: usize,
    /// What it is.
    pub value: f32,
}

impl Codec {
    /// Every codec, in order of decreasing size.
    pub const ALL: [Codec; 3] = [Codec::F32, Codec::Bf16, Codec::Int8];

    /// The name in a recipe or on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Codec::F32 => "f32",
            Codec::Bf16 => "bf16",
            Codec::Int8 => "int8",
        }
    }

    /// The element type of its files, where they are tensors of one.
    pub fn dtype(self) -> Option<Dtype> {
        match self {
            Codec::F32 => Some(Dtype::F32),
            Codec::Bf16 => Some(Dtype::Bf16),
            Codec::Int8 => None,
        }
    }

    /// The smallest unit that can be read alone: its elements, and its bytes when whole.
    pub(crate) fn unit(self) -> (u64, u64) {
        match self {
            Codec::F32 => (1, 4),
            Codec::Bf16 => (1, 2),
            Codec::Int8 => (BLOCK_ELEMENTS as u64, (SCALE_BYTES + BLOCK_ELEMENTS) as u64),
        }
    }

    /// Bytes of so many elements from the start of a block on.
    pub fn bytes(self, elements: u64) -> u64 {
        match self {
            Codec::F32 => elements.saturating_mul(4),
            Codec::Bf16 => elements.saturating_mul(2),
            Codec::Int8 => {
                let scales = elements.div_ceil(BLOCK_ELEMENTS as u64);
                elements.saturating_add(scales.saturating_mul(SCALE_BYTES as u64))
            }
        }
    }

    /// Where these elements of the flat array lie in the data; they begin at a block's start.
    pub fn byte_range(self, elements: Range<u64>) -> Range<u64> {
        let start = self.bytes(elements.start);
        start..start + self.bytes(elements.end - elements.start)
    }

    /// Writes `values`, which are the flat array's from `first` on, into `bytes`.
    ///
    /// # Errors
    /// The first value that is not finite or beyond [`VALUE_MAX`]; `bytes` then hold nothing of use.
    ///
    /// # Panics
    /// If `first` is not the start of a block, or `bytes` not [`Codec::bytes`] long.
    pub fn encode(
        self,
        dither: Dither,
        first: u64,
        values: &[f32],
        bytes: &mut [u8],
    ) -> Result<(), BadValue> {
        let block = BLOCK_ELEMENTS as u64;
        assert!(
            first.is_multiple_of(block),
            "{first} does not begin a block"
        );
        self.assert_fits(values.len(), bytes.len());
        if let Some(index) = first_bad(values) {
            let value = values[index];
            return Err(BadValue { index, value });
        }
        match self {
            Codec::F32 => Dtype::F32.encode(values, bytes),
            Codec::Bf16 => wide(
                #[inline(always)]
                || {
                    let slots = bytes.chunks_mut(BLOCK_ELEMENTS * 2);
                    let blocks = values.chunks(BLOCK_ELEMENTS).zip(first / block..);
                    for ((values, number), bytes) in blocks.zip(slots) {
                        bf16_block(&dither.block(number), values, bytes);
                    }
                },
            ),
            Codec::Int8 => wide(
                #[inline(always)]
                || {
                    let slots = bytes.chunks_mut(SCALE_BYTES + BLOCK_ELEMENTS);
                    let blocks = values.chunks(BLOCK_ELEMENTS).zip(first / block..);
                    for ((values, number), bytes) in blocks.zip(slots) {
                        int8_block(&dither.block(number), values, bytes);
                    }
                },
            ),
        }
        Ok(())
    }

    /// Reads `bytes`, which begin with a block, into `values`. Whatever the bytes, this does not fail;
    /// what they hold need not be finite.
    ///
    /// # Panics
    /// If `bytes` are not [`Codec::bytes`] long.
    pub fn decode(self, bytes: &[u8], values: &mut [f32]) {
        self.assert_fits(values.len(), bytes.len());
        match self.dtype() {
            Some(dtype) => dtype.decode(bytes, values),
            None => wide(
                #[inline(always)]
                || each_int8_block(bytes, values, |value, decoded| *value = decoded),
            ),
        }
    }

    pub(crate) fn assert_fits(self, elements: usize, bytes: usize) {
        assert_eq!(
            self.bytes(elements as u64),
            bytes as u64,
            "{elements} elements as {self} do not fill a buffer of {bytes} bytes"
        );
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Codec, UnknownCodec> {
        let found = Codec::ALL.into_iter().find(|codec| codec.name() == name);
        found.ok_or_else(|| UnknownCodec(name.to_owned()))
    }
}

impl From<Dtype> for Codec {
    /// The codec whose files are tensors of this type.
    fn from(dtype: Dtype) -> Codec {
        match dtype {
            Dtype::F32 => Codec::F32,
            Dtype::Bf16 => Codec::Bf16,
        }
    }
}

/// Index of the first value that no contribution may hold.
pub fn first_bad(values: &[f32]) -> Option<usize> {
    const PIECE: usize = 1024;
    // Whole pieces without branches, then the one that has it.
    wide(
        #[inline(always)]
        || {
            let mut pieces = values.chunks(PIECE);
            let number = pieces.position(|piece| largest(piece) > VALUE_MAX.to_bits())?;
            let bad = |value: &f32| magnitude(*value) > VALUE_MAX.to_bits();
            let piece = &values[number * PIECE..];
            Some(number * PIECE + piece.iter().position(bad)?)
        },
    )
}

/// The largest magnitude, as its bits: they are ordered as magnitudes are, with infinity and NaN on top.
#[inline(always)]
fn largest(values: &[f32]) -> u32 {
    values
        .iter()
        .fold(0, |most, value| most.max(magnitude(*value)))
}

#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// Adds sixteen random bits below those that stay: the carry rounds up as often as it should.
#[inline(always)]
fn bf16_block(dither: &[u16; BLOCK_ELEMENTS], values: &[f32], bytes: &mut [u8]) {
    let slots = bytes.as_chunks_mut::<2>().0.iter_mut();
    for ((slot, value), random) in slots.zip(values).zip(dither) {
        let rounded = value.to_bits().wrapping_add(u32::from(*random));
        *slot = ((rounded >> 16) as u16).to_le_bytes();
    }
}

#[inline(always)]
fn int8_block(dither: &[u16; BLOCK_ELEMENTS], values: &[f32], bytes: &mut [u8]) {
    let largest = f32::from_bits(largest(values));
    let usable = largest >= Q_MAX * f32::MIN_POSITIVE;
    let (scale, inverse) = match usable {
        true => (largest / Q_MAX, Q_MAX / largest),
        false => (0.0, 0.0),
    };
    let (head, body) = bytes.split_at_mut(SCALE_BYTES);
    head.copy_from_slice(&scale.to_le_bytes());
    for ((slot, value), random) in body.iter_mut().zip(values).zip(dither) {
        // Between -1/2 and 1/2 exclusive, so that what is on the grid stays.
        let shift = (f32::from(*random) + 0.5) * (1.0 / 65_536.0) - 0.5;
        let shift = if usable { shift } else { 0.0 };
        let q = (value * inverse + shift).clamp(-Q_MAX, Q_MAX);
        *slot = (q + TO_INTEGER).to_bits() as u8;
    }
}

/// Visits each target with its decoded value.
#[inline(always)]
pub(crate) fn each_int8_block(bytes: &[u8], targets: &mut [f32], visit: impl Fn(&mut f32, f32)) {
    let blocks = bytes.chunks(SCALE_BYTES + BLOCK_ELEMENTS);
    for (bytes, targets) in blocks.zip(targets.chunks_mut(BLOCK_ELEMENTS)) {
        let Some((scale, body)) = bytes.split_first_chunk::<SCALE_BYTES>() else {
            return;
        };
        let scale = f32::from_le_bytes(*scale);
        for (target, q) in targets.iter_mut().zip(body) {
            visit(target, f32::from(*q as i8) * scale);
        }
    }
}

#[cfg(test)]
mod tests;
