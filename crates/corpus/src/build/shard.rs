//! A stream of tokens to shards of whole windows, hashed while they are written.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use hansa_base::{Bytes, Hash, Tokens, Windows};
use serde::{Deserialize, Serialize};

use crate::manifest::{shard_bytes, shard_file};
use crate::{Error, Result, ShardRecord, Split, SplitRecord, TokenDtype};

const WRITE_BUFFER_BYTES: usize = 1 << 20;

/// What is constant while a split is written.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub dir: PathBuf,
    pub split: Split,
    pub dtype: TokenDtype,
    pub seq_len: u32,
    pub windows_per_shard: u64,
}

impl Layout {
    /// Windows of `seq_len` targets that fit a shard of about `bytes`; at least one.
    pub fn windows_per_shard(bytes: u64, seq_len: u32, dtype: TokenDtype) -> u64 {
        let tokens = bytes / dtype.width() as u64;
        (tokens.saturating_sub(1) / u64::from(seq_len)).max(1)
    }

    fn file_bytes(&self, windows: u64) -> Result<u64> {
        shard_bytes(windows, self.seq_len, self.dtype).ok_or(Error::BadOption {
            name: "seq_len",
            value: self.seq_len.to_string(),
            expected: "small enough for a shard to have a size",
        })
    }
}

/// How far a split is: enough to go on after an interruption.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SplitState {
    /// Finished shards; `windows` counts theirs only.
    record: SplitRecord,
    /// Windows in the shard being written.
    open_windows: u64,
    /// Tokens not yet part of a whole window; the first is the last one written, if any was.
    pending: Vec<u32>,
}

/// Writes one split.
pub(crate) struct SplitWriter {
    layout: Layout,
    state: SplitState,
    shard: Option<OpenShard>,
}

struct OpenShard {
    path: PathBuf,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
}

impl SplitWriter {
    /// Begins a split, or goes on from `state`; fails if the files it speaks of are not there.
    pub fn resume(layout: Layout, state: SplitState) -> Result<Self> {
        for shard in &state.record.shards {
            let path = layout.dir.join(&shard.file);
            let found = std::fs::metadata(&path)
                .map_err(Error::io("read", &path))?
                .len();
            if found != shard.bytes.0 {
                return Err(Error::io("reopen", &path)(ErrorKind::UnexpectedEof.into()));
            }
        }
        let mut writer = Self {
            layout,
            state,
            shard: None,
        };
        if writer.state.open_windows > 0 {
            let path = writer.open_path();
            let bytes = writer.layout.file_bytes(writer.state.open_windows)?;
            writer.shard = Some(OpenShard::reopen(path, bytes)?);
        }
        Ok(writer)
    }

    /// Tokens of the stream so far.
    pub fn tokens(&self) -> Tokens {
        self.state.record.tokens
    }

    /// Appends one document's tokens, its end-of-document token included.
    pub fn push(&mut self, mut tokens: &[u32]) -> Result<()> {
        self.state.record.documents += 1;
        self.state.record.tokens += Tokens(tokens.len() as u64);
        let window_tokens = self.layout.seq_len as usize + 1;
        while !tokens.is_empty() {
            let room = window_tokens - self.state.pending.len();
            let (now, later) = tokens.split_at(room.min(tokens.len()));
            self.state.pending.extend_from_slice(now);
            tokens = later;
            if self.state.pending.len() == window_tokens {
                self.write_window()?;
            }
        }
        Ok(())
    }

    /// Makes what was written durable and returns the state to go on from.
    pub fn checkpoint(&mut self) -> Result<&SplitState> {
        if let Some(shard) = &mut self.shard {
            shard.sync()?;
        }
        Ok(&self.state)
    }

    /// Closes the last shard; the tail too short for a window is left out.
    pub fn finish(mut self) -> Result<SplitRecord> {
        self.close_shard()?;
        Ok(self.state.record)
    }

    fn write_window(&mut self) -> Result<()> {
        let path = self.open_path();
        // A shard begins with its first window's first token; later windows have theirs there.
        let known = usize::from(self.shard.is_some());
        let shard = match &mut self.shard {
            Some(shard) => shard,
            None => self.shard.insert(OpenShard::create(path)?),
        };
        shard.write(&encode(&self.state.pending[known..], self.layout.dtype))?;
        let last = self.state.pending.len() - 1;
        self.state.pending.drain(..last);
        self.state.open_windows += 1;
        if self.state.open_windows == self.layout.windows_per_shard {
            self.close_shard()?;
        }
        Ok(())
    }

    fn close_shard(&mut self) -> Result<()> {
        let Some(mut shard) = self.shard.take() else {
            return Ok(());
        };
        shard.sync()?;
        let windows = Windows(self.state.open_windows);
        let record = &mut self.state.record;
        record.shards.push(ShardRecord {
            file: shard_file(self.layout.split, record.shards.len()),
            windows,
            bytes: Bytes(self.layout.file_bytes(windows.0)?),
            hash: Hash(*shard.hasher.finalize().as_bytes()),
        });
        record.windows += windows;
        self.state.open_windows = 0;
        Ok(())
    }

    fn open_path(&self) -> PathBuf {
        let number = self.state.record.shards.len();
        self.layout.dir.join(shard_file(self.layout.split, number))
    }
}

impl OpenShard {
    fn create(path: PathBuf) -> Result<Self> {
        let file = File::create(&path).map_err(Error::io("create", &path))?;
        Ok(Self::new(path, file, blake3::Hasher::new()))
    }

    /// Cuts off what was written after the state was, and hashes the rest again.
    fn reopen(path: PathBuf, bytes: u64) -> Result<Self> {
        let (file, hasher) = Self::cut(&path, bytes).map_err(Error::io("reopen", &path))?;
        Ok(Self::new(path, file, hasher))
    }

    fn cut(path: &Path, bytes: u64) -> std::io::Result<(File, blake3::Hasher)> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() < bytes {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        file.set_len(bytes)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(Read::by_ref(&mut file))?;
        file.seek(SeekFrom::Start(bytes))?;
        Ok((file, hasher))
    }

    fn new(path: PathBuf, file: File, hasher: blake3::Hasher) -> Self {
        Self {
            path,
            file: BufWriter::with_capacity(WRITE_BUFFER_BYTES, file),
            hasher,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.file
            .write_all(bytes)
            .map_err(Error::io("write", &self.path))
    }

    fn sync(&mut self) -> Result<()> {
        self.file
            .flush()
            .and_then(|()| self.file.get_ref().sync_all())
            .map_err(Error::io("write", &self.path))
    }
}

fn encode(tokens: &[u32], dtype: TokenDtype) -> Vec<u8> {
    match dtype {
        // The dtype was chosen for the vocabulary: every token fits.
        TokenDtype::U16 => tokens
            .iter()
            .flat_map(|&token| (token as u16).to_le_bytes())
            .collect(),
        TokenDtype::U32 => tokens
            .iter()
            .flat_map(|token| token.to_le_bytes())
            .collect(),
    }
}
