//! Hashes of a file's chunks, made of pieces that are written in any order and by many threads.
//!
//! BLAKE3 is a tree: parts of a chunk that begin at multiples of 1024 bytes are hashed alone, and their
//! values joined later. So whoever writes a file has hashed it when the last piece is written, while the
//! bytes were still in the cache, and nobody reads it again:
//!
//! ```text
//!            chunk's hash                 a piece is cut into the largest aligned parts of a
//!           ┌─────┴─────┐                 power-of-two length; the last of a chunk may be shorter
//!        ┌──┴──┐     ┌──┴──┐
//!        0..4  4..8  8..12 12..15   KiB
//! ```
//!
//! Pieces that are not aligned so, that overlap or that never came leave their chunks to be read. Never
//! here: files.

use std::sync::{Mutex, PoisonError};

use blake3::hazmat::{
    ChainingValue, HasherExt as _, Mode, left_subtree_len, merge_subtrees_non_root,
    merge_subtrees_root,
};
use hansa_base::Hash;

use crate::manifest::hash_bytes;

const LEAF_BYTES: u64 = blake3::CHUNK_LEN as u64;

/// What is known of a chunk's part.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// In the chunk.
    offset: u64,
    length: u64,
    value: Value,
}

#[derive(Debug, Clone, Copy)]
enum Value {
    /// The part is the whole chunk.
    Root(Hash),
    Inner(ChainingValue),
}

/// What is known of a chunk. Parts are joined when the last one comes, so that memory grows with the chunks
/// under way and not with the file.
#[derive(Debug)]
enum Chunk {
    Open {
        parts: Vec<Part>,
        known_bytes: u64,
    },
    Whole(Hash),
    /// Something came twice, or not at the border of a part.
    Unclear,
}

/// Collects the hashes of a file's parts.
#[derive(Debug)]
pub(crate) struct PartHashes {
    total_bytes: u64,
    chunk_bytes: u64,
    chunks: Vec<Mutex<Chunk>>,
}

impl PartHashes {
    /// For a file of so many bytes in `count` chunks of `chunk_bytes`.
    pub(crate) fn new(total_bytes: u64, chunk_bytes: u64, count: u32) -> Self {
        let open = || Chunk::Open {
            parts: Vec::new(),
            known_bytes: 0,
        };
        Self {
            total_bytes,
            chunk_bytes,
            chunks: (0..count).map(|_| Mutex::new(open())).collect(),
        }
    }

    /// Hashes bytes that were written at this offset of the file.
    pub(crate) fn add(&self, mut bytes: &[u8], mut offset: u64) {
        while !bytes.is_empty() {
            let index = offset / self.chunk_bytes;
            let start = index * self.chunk_bytes;
            let length = self.chunk_bytes.min(self.total_bytes.saturating_sub(start));
            let Some(chunk) = self.chunks.get(index as usize) else {
                return;
            };
            // Zero behind the end of the file.
            let left = (start + length).saturating_sub(offset);
            let here = left.min(bytes.len() as u64);
            if here == 0 {
                return;
            }
            let (now, later) = bytes.split_at(here as usize);
            let parts = hash_parts(now, offset - start, length);
            let mut chunk = chunk.lock().unwrap_or_else(PoisonError::into_inner);
            chunk.add(parts, length);
            (bytes, offset) = (later, offset + here);
        }
    }

    /// The hash of every chunk of which all was given once; `None` for the others.
    pub(crate) fn finish(self) -> Vec<Option<Hash>> {
        let hash = |chunk: Mutex<Chunk>| match chunk
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
        {
            Chunk::Whole(hash) => Some(hash),
            Chunk::Open { .. } | Chunk::Unclear => None,
        };
        self.chunks.into_iter().map(hash).collect()
    }
}

impl Chunk {
    /// Adds parts of a chunk of so many bytes; none stand for bytes that are not aligned.
    fn add(&mut self, more: Vec<Part>, length: u64) {
        match self {
            Chunk::Open { parts, known_bytes } if !more.is_empty() => {
                *known_bytes += more.iter().map(|part| part.length).sum::<u64>();
                parts.extend(more);
                if *known_bytes >= length {
                    let joined = join(std::mem::take(parts), length);
                    *self = joined.map_or(Chunk::Unclear, Chunk::Whole);
                }
            }
            _ => *self = Chunk::Unclear,
        }
    }
}

/// Hashes the bytes at `offset` of a chunk of `length` bytes, in aligned parts; nothing if they are not
/// aligned themselves.
fn hash_parts(bytes: &[u8], offset: u64, length: u64) -> Vec<Part> {
    let end = offset + bytes.len() as u64;
    if offset == 0 && end == length {
        let value = Value::Root(hash_bytes(bytes));
        let whole = Part {
            offset,
            length,
            value,
        };
        return vec![whole];
    }
    let aligned =
        offset.is_multiple_of(LEAF_BYTES) && (end == length || end.is_multiple_of(LEAF_BYTES));
    let mut parts = Vec::new();
    let mut at = offset;
    while aligned && at < end {
        let size = part_length(at, end, length);
        let from = (at - offset) as usize;
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(at);
        hasher.update(&bytes[from..from + size as usize]);
        parts.push(Part {
            offset: at,
            length: size,
            value: Value::Inner(hasher.finalize_non_root()),
        });
        at += size;
    }
    parts
}

/// The longest part that begins at `at`, ends by `end` and is a node of the tree over `length` bytes.
fn part_length(at: u64, end: u64, length: u64) -> u64 {
    let rest = end - at;
    let most = match at {
        0 => u64::MAX,
        _ => 1 << at.trailing_zeros(),
    };
    if end == length && at > 0 && rest <= most {
        return rest;
    }
    // The largest power of two that is not longer than the rest.
    most.min(1 << rest.ilog2())
}

/// The chunk's hash, if the parts tile it.
fn join(mut parts: Vec<Part>, length: u64) -> Option<Hash> {
    parts.sort_unstable_by_key(|part| part.offset);
    let mut end = 0;
    for part in &parts {
        if part.offset != end {
            return None;
        }
        end += part.length;
    }
    if end != length {
        return None;
    }
    if let [
        Part {
            value: Value::Root(hash),
            ..
        },
    ] = parts.as_slice()
    {
        return Some(*hash);
    }
    if length <= LEAF_BYTES {
        return None;
    }
    let left = left_subtree_len(length);
    let (a, b) = (node(&parts, 0, left)?, node(&parts, left, length - left)?);
    let root = merge_subtrees_root(&a, &b, Mode::Hash);
    Some(Hash(*root.as_bytes()))
}

fn node(parts: &[Part], offset: u64, length: u64) -> Option<ChainingValue> {
    let index = parts
        .binary_search_by_key(&offset, |part| part.offset)
        .ok()?;
    let part = &parts[index];
    match part.value {
        Value::Inner(value) if part.length == length => return Some(value),
        _ if length <= LEAF_BYTES => return None,
        _ => {}
    }
    let left = left_subtree_len(length);
    let a = node(parts, offset, left)?;
    let b = node(parts, offset + left, length - left)?;
    Some(merge_subtrees_non_root(&a, &b, Mode::Hash))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::manifest::Manifest;

    /// Cuts of a file in a fixed pseudo-random order; all but the last at multiples of `unit`.
    fn pieces(length: usize, unit: usize, seed: usize) -> Vec<(usize, usize)> {
        let (mut cuts, mut state) = (vec![0], seed);
        while *cuts.last().unwrap() < length {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            cuts.push((cuts.last().unwrap() + (1 + (state >> 33) % 9) * unit).min(length));
        }
        let mut pieces: Vec<_> = cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
        pieces.sort_by_key(|(start, _)| start.wrapping_mul(2_654_435_761 + seed) % 10_007);
        pieces
    }

    #[test]
    fn pieces_in_any_order_give_the_hashes_of_the_whole() {
        let bytes: Vec<u8> = (0..70_001_u32).map(|i| (i * 31 % 251) as u8).collect();
        for length in [1, 1023, 1024, 1025, 2048, 7 * 1024, 16_384, 65_536, 70_001] {
            for chunk_bytes in [1024, 3 * 1024, 16 * 1024, 1 << 20] {
                let bytes = &bytes[..length];
                let manifest = Manifest::of_bytes(bytes, chunk_bytes).unwrap();
                for seed in 0..20 {
                    let count = manifest.chunk_count();
                    let hashes = PartHashes::new(length as u64, chunk_bytes, count);
                    for (start, end) in pieces(length, 1024, seed) {
                        hashes.add(&bytes[start..end], start as u64);
                    }
                    let found: Vec<Hash> =
                        hashes.finish().into_iter().map(Option::unwrap).collect();
                    assert_eq!(found, manifest.chunks(), "{length} {chunk_bytes} {seed}");
                }
            }
        }
    }

    #[test]
    fn what_was_not_given_or_given_twice_or_not_aligned_is_not_claimed() {
        let bytes = vec![9; 10 * 1024];
        let known = |pieces: &[(usize, usize)]| -> Vec<bool> {
            let hashes = PartHashes::new(bytes.len() as u64, 4096, 3);
            for (start, end) in pieces {
                hashes.add(&bytes[*start..*end], *start as u64);
            }
            hashes.finish().iter().map(Option::is_some).collect()
        };
        assert_eq!(known(&[(0, 10_240)]), [true, true, true]);
        assert_eq!(
            known(&[(0, 5 * 1024), (6 * 1024, 10_240)]),
            [true, false, true]
        );
        assert_eq!(known(&[(0, 10_240), (4096, 5120)]), [true, false, true]);
        assert_eq!(
            known(&[(0, 4096), (0, 4096), (4096, 10_240)]),
            [false, true, true]
        );
        assert_eq!(known(&[(0, 5000), (5000, 10_240)]), [true, false, true]);
        assert_eq!(known(&[(0, 20)]), [false; 3]);
    }
}
