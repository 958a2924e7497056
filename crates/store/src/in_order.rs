//! The manifest of a file that is written from its beginning to its end, made meanwhile.

use hansa_base::Hash;

use crate::manifest::{ChunkHasher, Manifest, ManifestError};

/// Cuts bytes that come in their order into chunks, and hashes these.
#[derive(Debug)]
pub struct ManifestHasher {
    chunk_bytes: u64,
    total_bytes: u64,
    /// Of the chunk that is under way.
    hasher: ChunkHasher,
    left_bytes: u64,
    chunks: Vec<Hash>,
}

impl ManifestHasher {
    /// For chunks of this size. [`Self::finish`] says whether it is one.
    #[must_use]
    pub fn new(chunk_bytes: u64) -> Self {
        Self {
            chunk_bytes,
            total_bytes: 0,
            hasher: ChunkHasher::new(),
            left_bytes: chunk_bytes.max(1),
            chunks: Vec::new(),
        }
    }

    /// Takes what comes next in the file.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.total_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let count = self.left_bytes.min(bytes.len() as u64);
            let (now, later) = bytes.split_at(count as usize);
            self.hasher.update(now);
            self.left_bytes -= count;
            if self.left_bytes == 0 {
                self.end_chunk();
            }
            bytes = later;
        }
    }

    /// The manifest of all that came.
    ///
    /// # Errors
    /// If a manifest cannot have chunks of this size, or so many.
    pub fn finish(mut self) -> Result<Manifest, ManifestError> {
        if self.left_bytes < self.chunk_bytes {
            self.end_chunk();
        }
        Manifest::new(self.total_bytes, self.chunk_bytes, self.chunks)
    }

    fn end_chunk(&mut self) {
        self.chunks.push(self.hasher.finish());
        self.hasher = ChunkHasher::new();
        self.left_bytes = self.chunk_bytes.max(1);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn whatever_the_pieces_it_is_the_manifest_of_the_whole() {
        for length in [0, 1, 1023, 1024, 1025, 5000] {
            let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            for piece in [1, 7, 1024, 3000] {
                let mut hasher = ManifestHasher::new(1024);
                bytes.chunks(piece).for_each(|piece| hasher.update(piece));
                let expected = Manifest::of_bytes(&bytes, 1024).unwrap();
                assert_eq!(hasher.finish().unwrap(), expected, "{length} by {piece}");
            }
        }
    }

    #[test]
    fn chunks_of_an_impossible_size_are_refused() {
        let mut hasher = ManifestHasher::new(0);
        hasher.update(b"abc");
        assert_eq!(
            hasher.finish().unwrap_err(),
            Manifest::of_bytes(b"abc", 0).unwrap_err()
        );
    }
}
