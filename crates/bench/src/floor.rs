//! The floor: as many bytes read and written with nothing but reads and writes.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// Bytes of one read or write. Larger ones were slower: they fall out of the cache.
const PIECE_BYTES: u64 = 256 << 10;

/// What is to be moved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Traffic {
    /// Files that are read from end to end.
    pub reads: Vec<PathBuf>,
    /// Sizes of the files that are written, in bytes.
    pub writes: Vec<u64>,
    /// Where they are written; they go afterwards.
    pub dir: PathBuf,
    /// Threads that share the pieces.
    pub threads: usize,
    /// Whether the new files are made durable before the clock stops.
    pub synced: bool,
}

/// One piece of work: a part of a file.
struct Piece<'a> {
    file: &'a File,
    offset: u64,
    length: usize,
    write: bool,
}

/// Moves the bytes and says how long that took. Space for the new files is reserved before, as a store
/// does; reads and writes take turns, as in a merge.
///
/// # Errors
/// If a file cannot be read or written.
pub fn move_bytes(traffic: &Traffic) -> anyhow::Result<Duration> {
    let open = |path: &PathBuf| {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        let length = file.metadata().context("inspect an input")?.len();
        anyhow::Ok((file, length))
    };
    let inputs = traffic.reads.iter().map(open);
    let inputs = inputs.collect::<anyhow::Result<Vec<_>>>()?;
    let start = Instant::now();
    let outputs = create(&traffic.dir, &traffic.writes)?;
    let pieces = in_turns(&inputs, &outputs);
    let next = AtomicU64::new(0);
    let work = || -> std::io::Result<()> {
        let mut buffer = vec![0x5a; PIECE_BYTES as usize];
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed) as usize;
            let Some(piece) = pieces.get(index) else {
                return Ok(());
            };
            let buffer = &mut buffer[..piece.length];
            match piece.write {
                true => piece.file.write_all_at(buffer, piece.offset)?,
                false => piece.file.read_exact_at(buffer, piece.offset)?,
            }
        }
    };
    std::thread::scope(|scope| {
        let workers = (0..traffic.threads.max(1)).map(|_| scope.spawn(work));
        let workers: Vec<_> = workers.collect();
        let joined = workers.into_iter().map(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.fold(Ok(()), Result::and)
    })
    .context("move bytes")?;
    if traffic.synced {
        for (file, _) in &outputs {
            file.sync_all().context("sync an output")?;
        }
    }
    let took = start.elapsed();
    for index in 0..outputs.len() {
        std::fs::remove_file(name(&traffic.dir, index)).context("remove an output")?;
    }
    Ok(took)
}

fn name(dir: &Path, index: usize) -> PathBuf {
    dir.join(format!("floor-{index}"))
}

fn create(dir: &Path, sizes: &[u64]) -> anyhow::Result<Vec<(File, u64)>> {
    let files = sizes.iter().enumerate().map(|(index, &length)| {
        let file = File::create(name(dir, index)).context("create an output")?;
        let flags = rustix::fs::FallocateFlags::empty();
        if length > 0 {
            // Where a filesystem cannot reserve, the size alone must do.
            let _ = rustix::fs::fallocate(&file, flags, 0, length);
        }
        file.set_len(length).context("size an output")?;
        Ok((file, length))
    });
    files.collect()
}

/// The pieces of all files, in an order in which every file is done at about the same time.
fn in_turns<'a>(inputs: &'a [(File, u64)], outputs: &'a [(File, u64)]) -> Vec<Piece<'a>> {
    let all = || {
        let inputs = inputs.iter().map(|file| (file, false));
        inputs.chain(outputs.iter().map(|file| (file, true)))
    };
    let longest = all().map(|((_, length), _)| *length).max().unwrap_or(0);
    let turns = longest.div_ceil(PIECE_BYTES);
    let mut pieces = Vec::new();
    for turn in 0..turns {
        for ((file, length), write) in all() {
            // A file of half the length gets a piece every other turn.
            let total = length.div_ceil(PIECE_BYTES);
            for number in turn * total / turns..(turn + 1) * total / turns {
                let offset = number * PIECE_BYTES;
                let length = (length - offset).min(PIECE_BYTES) as usize;
                pieces.push(Piece {
                    file,
                    offset,
                    length,
                    write,
                });
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_byte_is_moved_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, length: u64| {
            let file = File::create_new(dir.path().join(name)).unwrap();
            file.set_len(length).unwrap();
            (file, length)
        };
        let inputs = [file("a", 3 * PIECE_BYTES + 1), file("b", 10), file("c", 0)];
        let outputs = [file("d", 7 * PIECE_BYTES)];
        let pieces = in_turns(&inputs, &outputs);
        let bytes = |write| -> u64 {
            let pieces = pieces.iter().filter(|piece| piece.write == write);
            pieces.map(|piece| piece.length as u64).sum()
        };
        assert_eq!(bytes(false), 3 * PIECE_BYTES + 11);
        assert_eq!(bytes(true), 7 * PIECE_BYTES);
        let mut places: Vec<_> = pieces
            .iter()
            .map(|piece| (std::ptr::from_ref(piece.file), piece.offset))
            .collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), pieces.len(), "a piece comes twice");
    }

    #[test]
    fn nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in");
        std::fs::write(&input, vec![1; 1000]).unwrap();
        let traffic = Traffic {
            reads: vec![input.clone(), input],
            writes: vec![2000, 0],
            dir: dir.path().to_owned(),
            threads: 3,
            synced: true,
        };
        move_bytes(&traffic).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
