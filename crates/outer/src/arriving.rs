//! A contribution looked at while it arrives: is every value one that may be merged, how long is the
//! whole vector?
//!
//! Chunks of a file arrive side by side and in any order, each from its first byte to its last. Each is
//! looked at on its own ([`Arriving`]); what was found in it ([`Part`]) is small and waits until all are
//! there. Then the parts are put together in the order of the file ([`combine`]), so that the answer does
//! not depend on who came first. A unit of the codec that two chunks share (a block of `int8`, or an
//! element in a file of odd head) waits as bytes at the edges of their parts.

use std::ops::Range;

use crate::codec::BLOCK_ELEMENTS;
use crate::scan::Scan;
use crate::{Codec, first_bad};

/// Elements decoded at a time.
const PIECE_ELEMENTS: u64 = 8 * BLOCK_ELEMENTS as u64;

/// Where the units of a file lie.
#[derive(Clone, Copy, Debug)]
struct Units {
    codec: Codec,
    elements: u64,
    data_offset: u64,
}

impl Units {
    /// The unit that holds byte `at` of the file.
    fn around(&self, at: u64) -> Unit {
        let (elements, bytes) = self.codec.unit();
        let first = (at - self.data_offset) / bytes * elements;
        let elements = first..(first + elements).min(self.elements);
        let range = self.codec.byte_range(elements.clone());
        Unit {
            elements,
            bytes: range.start + self.data_offset..range.end + self.data_offset,
        }
    }

    fn data_end(&self) -> u64 {
        self.data_offset + self.codec.bytes(self.elements)
    }
}

/// What is read at once: its elements of the flat array, its bytes of the file.
struct Unit {
    elements: Range<u64>,
    bytes: Range<u64>,
}

/// What was found in the whole units of a part of the data, or in all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Found {
    /// The first value that is not finite or beyond [`VALUE_MAX`](crate::VALUE_MAX), by its place in the flat array.
    pub first_bad: Option<(u64, f32)>,
    /// Sum of the squares of all values; of no use if one of them is bad.
    pub squared_norm: f64,
}

/// What was found in a chunk, and bytes of units that it shares with its neighbours.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    found: Found,
    /// Where they begin in the file, and what they are; ascending, at most two.
    edges: Vec<(u64, Vec<u8>)>,
}

/// A chunk that is being looked at: give it the bytes in order, then [`Arriving::finish`].
#[derive(Debug)]
pub struct Arriving {
    units: Units,
    at: u64,
    /// The last bytes before `at`, where they are not yet a whole unit.
    carry: Vec<u8>,
    part: Part,
    scan: Scan,
}

impl Arriving {
    /// A chunk that begins at byte `offset` of a file whose data begin at `data_offset`
    /// ([`data_offset`](crate::data_offset)) and hold `elements` in `codec`.
    pub fn new(codec: Codec, elements: u64, data_offset: u64, offset: u64) -> Arriving {
        let units = Units {
            codec,
            elements,
            data_offset,
        };
        Arriving {
            units,
            at: offset,
            carry: Vec::new(),
            part: Part::default(),
            scan: Scan::new(),
        }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        // The head of the file, and whatever is said to come behind its data, is not for here.
        let skip = self.units.data_offset.saturating_sub(self.at);
        let skip = skip.min(bytes.len() as u64);
        self.at += skip;
        bytes = &bytes[skip as usize..];
        let left = self.units.data_end().saturating_sub(self.at);
        bytes = &bytes[..left.min(bytes.len() as u64) as usize];
        while !bytes.is_empty() {
            let unit = self.units.around(self.at);
            let whole = self.at == unit.bytes.start
                && bytes.len() as u64 >= unit.bytes.end - unit.bytes.start;
            bytes = match whole {
                true => self.push_whole(&unit, bytes),
                false => self.push_partial(&unit, bytes),
            };
        }
    }

    /// Takes this unit and as many whole ones behind it as are here and fit the buffer.
    fn push_whole<'a>(&mut self, unit: &Unit, bytes: &'a [u8]) -> &'a [u8] {
        let (elements, unit_bytes) = self.units.codec.unit();
        let first = unit.elements.start;
        let here = (bytes.len() as u64 / unit_bytes * elements).min(PIECE_ELEMENTS);
        // The last unit is whole even where it is short.
        let last = (first + here)
            .min(self.units.elements)
            .max(unit.elements.end);
        let count = self.units.codec.bytes(last - first);
        let (now, later) = bytes.split_at(count as usize);
        look(
            self.units.codec,
            first..last,
            now,
            &mut self.scan,
            &mut self.part.found,
        );
        self.at += count;
        later
    }

    /// Takes bytes of a unit of which the others came before, or are still to come.
    fn push_partial<'a>(&mut self, unit: &Unit, bytes: &'a [u8]) -> &'a [u8] {
        let wanted = (unit.bytes.end - self.at).min(bytes.len() as u64);
        let (now, later) = bytes.split_at(wanted as usize);
        self.carry.extend_from_slice(now);
        self.at += wanted;
        if self.at == unit.bytes.end {
            let carry = std::mem::take(&mut self.carry);
            let start = self.at - carry.len() as u64;
            if start == unit.bytes.start {
                let (codec, elements) = (self.units.codec, unit.elements.clone());
                look(
                    codec,
                    elements,
                    &carry,
                    &mut self.scan,
                    &mut self.part.found,
                );
            } else {
                self.part.edges.push((start, carry));
            }
        }
        later
    }

    /// What was found in the bytes given.
    pub fn finish(mut self) -> Part {
        if !self.carry.is_empty() {
            let start = self.at - self.carry.len() as u64;
            self.part.edges.push((start, self.carry));
        }
        self.part.found.squared_norm = self.scan.squared_norm();
        self.part
    }
}

/// What was found in a whole file, from the parts of all its chunks in order.
pub fn combine<'a>(
    codec: Codec,
    elements: u64,
    data_offset: u64,
    parts: impl IntoIterator<Item = &'a Part>,
) -> Found {
    let units = Units {
        codec,
        elements,
        data_offset,
    };
    let (mut all, mut scan) = (Found::default(), Scan::new());
    let mut shared: Vec<u8> = Vec::new();
    for part in parts {
        all.squared_norm += part.found.squared_norm;
        note_bad(&mut all, part.found.first_bad);
        for (start, bytes) in &part.edges {
            let unit = units.around(*start);
            if *start == unit.bytes.start {
                shared.clear();
            }
            shared.extend_from_slice(bytes);
            if shared.len() as u64 == unit.bytes.end - unit.bytes.start {
                look(codec, unit.elements, &shared, &mut scan, &mut all);
            }
        }
    }
    all.squared_norm += scan.squared_norm();
    all
}

/// Decodes some whole units and looks at their values.
fn look(codec: Codec, elements: Range<u64>, bytes: &[u8], scan: &mut Scan, found: &mut Found) {
    let mut values = [0.0; PIECE_ELEMENTS as usize];
    let values = &mut values[..(elements.end - elements.start) as usize];
    codec.decode(bytes, values);
    match first_bad(values) {
        None => scan.push(values),
        Some(index) => {
            let place = elements.start + index as u64;
            note_bad(found, Some((place, values[index])));
        }
    }
}

fn note_bad(found: &mut Found, bad: Option<(u64, f32)>) {
    let earlier = |(place, _): &(u64, f32)| found.first_bad.is_none_or(|(first, _)| *place < first);
    if let Some(bad) = bad.filter(earlier) {
        found.first_bad = Some(bad);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::{Dither, squared_norm};

    const HEAD_BYTES: u64 = 13;

    /// A file with an odd head, and what its values are when read back.
    fn file(codec: Codec, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let mut data = vec![0; codec.bytes(values.len() as u64) as usize];
        codec
            .encode(Dither::new([3; 8]), 0, values, &mut data)
            .unwrap();
        let mut back = vec![0.0; values.len()];
        codec.decode(&data, &mut back);
        ([vec![b' '; HEAD_BYTES as usize], data].concat(), back)
    }

    /// Looks at a file in chunks that come in pieces, the last chunk first.
    fn look_at(codec: Codec, elements: u64, file: &[u8], chunk: usize, piece: usize) -> Found {
        let offsets = (0..file.len()).step_by(chunk);
        let chunks = offsets.zip(file.chunks(chunk)).rev();
        let mut parts: Vec<Part> = chunks
            .map(|(offset, bytes)| {
                let mut arriving = Arriving::new(codec, elements, HEAD_BYTES, offset as u64);
                bytes.chunks(piece).for_each(|piece| arriving.push(piece));
                arriving.finish()
            })
            .collect();
        parts.reverse();
        combine(codec, elements, HEAD_BYTES, &parts)
    }

    proptest! {
        #[test]
        fn any_chunks_in_any_pieces_find_the_norm(
            values in prop::collection::vec(-1e3f32..1e3, 1..3000),
            chunk in 1usize..5000,
            piece in 1usize..3000,
        ) {
            for codec in Codec::ALL {
                let (file, back) = file(codec, &values);
                let found = look_at(codec, values.len() as u64, &file, chunk, piece);
                let expected = squared_norm(&back);
                prop_assert_eq!(found.first_bad, None);
                prop_assert!((found.squared_norm - expected).abs() <= 1e-12 * expected);
                // Neither pieces nor what else came between change a bit.
                let again = look_at(codec, values.len() as u64, &file, chunk, usize::MAX);
                prop_assert_eq!(found.squared_norm.to_bits(), again.squared_norm.to_bits());
            }
        }

        #[test]
        fn the_first_bad_value_is_found_wherever_chunks_end(
            elements in 1usize..2000,
            at in any::<prop::sample::Index>(),
            also in any::<prop::sample::Index>(),
            chunk in 1usize..3000,
            bad in prop::sample::select(vec![f32::NAN, f32::INFINITY, -1e31]),
        ) {
            let (at, also) = (at.index(elements), also.index(elements));
            let first = at.min(also) as u64;
            for codec in [Codec::F32, Codec::Bf16] {
                let dtype = codec.dtype().unwrap();
                let mut values = vec![1.0; elements];
                (values[at], values[also]) = (bad, bad);
                let mut data = vec![0; elements * dtype.bytes_per_element()];
                dtype.encode(&values, &mut data);
                let file = [vec![b' '; HEAD_BYTES as usize], data].concat();
                let found = look_at(codec, elements as u64, &file, chunk, 700);
                prop_assert_eq!(found.first_bad.map(|(place, _)| place), Some(first));
            }
        }
    }

    #[test]
    fn a_scale_that_is_not_finite_spoils_its_block() {
        let (mut file, _) = file(Codec::Int8, &[1.0; 300]);
        let scale = HEAD_BYTES as usize + 132;
        for bad in [f32::NAN, f32::INFINITY, 1e29] {
            file[scale..scale + 4].copy_from_slice(&bad.to_le_bytes());
            for chunk in [5, 140, 147, 1000] {
                let found = look_at(Codec::Int8, 300, &file, chunk, 1 << 20);
                assert_eq!(
                    found.first_bad.map(|(place, _)| place),
                    Some(128),
                    "{bad} {chunk}"
                );
            }
        }
    }

    #[test]
    fn bytes_before_and_behind_the_data_are_passed_over() {
        let (mut file, back) = file(Codec::Bf16, &[2.0; 10]);
        file.extend([255; 9]);
        let found = look_at(Codec::Bf16, 10, &file, 6, 5);
        assert_eq!(
            (found.first_bad, found.squared_norm),
            (None, squared_norm(&back))
        );
    }
}
