//! The server's half, as plain functions over the store: routes call them, whatever the framework.
//!
//! Bodies are streamed in pieces, so that memory grows with the number of requests, not with blobs.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use hansa_store::{Blob, ChunkOutcome, ChunkWriter, StoreError, Upload};

use crate::bucket::Bandwidth;

/// `complete` came before all chunks; the client asks what is missing and goes on.
pub const CODE_INCOMPLETE: &str = "incomplete";
/// A chunk's bytes do not match the manifest; the client sends it again.
pub const CODE_CHUNK_MISMATCH: &str = "chunk_mismatch";

/// A part of a chunk does not begin where the last one ended; the client asks and goes on from there.
pub const CODE_CHUNK_MOVED: &str = "chunk_moved";
/// The server's disk is full; trying again helps once somebody has made room.
pub const CODE_DISK_FULL: &str = "disk_full";

/// What a request holds in memory: large enough to keep disks busy, small enough for hundreds of requests.
const PIECE_BYTES: u64 = 256 << 10;
/// Under a cap: all who share it wait for each other's pieces.
const PIECE_BYTES_CAPPED: u64 = 64 << 10;

/// A part of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// The number of bytes; at least 1 when it comes from a header.
    pub length: u64,
}

impl ByteRange {
    /// The value of a `Range` header that asks for it.
    #[must_use]
    pub fn to_header(self) -> String {
        format!(
            "bytes={}-{}",
            self.start,
            self.start + self.length.saturating_sub(1)
        )
    }

    /// The value of the `Content-Range` header that answers it with status 206.
    #[must_use]
    pub fn content_range(self, total_bytes: u64) -> String {
        let last = self.start + self.length.saturating_sub(1);
        format!("bytes {}-{last}/{total_bytes}", self.start)
    }
}

/// Why a `Range` header is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Not one range of bytes: status 400.
    #[error("the Range header is not a single range of bytes, as in \"bytes=0-1023\"")]
    Malformed,
    /// It lies outside the blob: status 416.
    #[error("the range asked for lies outside the blob's {total_bytes} bytes")]
    Outside {
        /// The blob's size.
        total_bytes: u64,
    },
}

/// Reads a `Range` header by RFC 9110 §14: `bytes=a-b`, `bytes=a-` or `bytes=-n`, one range only.
pub fn parse_range(header: &str, total_bytes: u64) -> Result<ByteRange, RangeError> {
    let spec = header
        .trim()
        .strip_prefix("bytes=")
        .ok_or(RangeError::Malformed)?;
    let (first, last) = spec.split_once('-').ok_or(RangeError::Malformed)?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let parsed = digits.then(|| text.parse::<u64>().ok()).flatten();
        parsed.ok_or(RangeError::Malformed)
    };
    let outside = RangeError::Outside { total_bytes };
    let (start, end) = match (first, last) {
        ("", count) => (total_bytes.saturating_sub(number(count)?), total_bytes),
        (first, "") => (number(first)?, total_bytes),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return Err(RangeError::Malformed);
            }
            (first, last.saturating_add(1).min(total_bytes))
        }
    };
    if start >= end {
        return Err(outside);
    }
    Ok(ByteRange {
        start,
        length: end - start,
    })
}

/// A part of a blob in small pieces, read as the connection takes them and the caps allow.
pub fn stream_blob(
    blob: Blob,
    range: ByteRange,
    bandwidth: Vec<Bandwidth>,
) -> impl Stream<Item = Result<Bytes, StoreError>> + Send + 'static {
    let end = range.start.saturating_add(range.length);
    let piece_bytes = match bandwidth.iter().any(Bandwidth::is_capped) {
        true => PIECE_BYTES_CAPPED,
        false => PIECE_BYTES,
    };
    let bandwidth = Arc::new(bandwidth);
    stream::try_unfold((blob, range.start), move |(blob, offset)| {
        let bandwidth = bandwidth.clone();
        async move {
            let length = end.saturating_sub(offset).min(piece_bytes);
            if length == 0 {
                return Ok(None);
            }
            for cap in bandwidth.iter() {
                cap.pass(length as usize).await;
            }
            let mut piece = vec![0; length as usize];
            // A model that was just merged is in memory, and then another thread only costs time.
            if blob.read_cached_at(&mut piece, offset) {
                return Ok(Some((Bytes::from(piece), (blob, offset + length))));
            }
            let read = move || {
                blob.read_exact_at(&mut piece, offset)?;
                Ok((Bytes::from(piece), (blob, offset + length)))
            };
            off_the_network(read).await.map(Some)
        }
    })
}

/// Why a chunk was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// More bytes than the chunk has.
    #[error(
        "the body is longer than chunk {chunk}, which has {length} bytes; send that chunk alone"
    )]
    TooLong {
        /// The chunk's index.
        chunk: u32,
        /// Its size.
        length: u64,
    },
    /// The body ended with an error: the client or the network went away.
    #[error("the body of chunk {chunk} broke off ({why}); send it again")]
    Broken {
        /// The chunk's index.
        chunk: u32,
        /// The connection's reason.
        why: String,
    },
    /// Nothing came for too long.
    #[error("nothing of chunk {chunk} came for {} s; send it again", limit.as_secs_f64())]
    Stalled {
        /// The chunk's index.
        chunk: u32,
        /// The limit.
        limit: Duration,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ReceiveError {
    /// HTTP status and code for the answer.
    #[must_use]
    pub fn status_and_code(&self) -> (u16, &'static str) {
        match self {
            Self::TooLong { .. } => (413, "too_long"),
            Self::Broken { .. } => (400, "broken_body"),
            Self::Stalled { .. } => (408, "stalled"),
            Self::Store(error) => status_and_code(error),
        }
    }
}

/// HTTP status and code for an error of the store.
#[must_use]
pub fn status_and_code(error: &StoreError) -> (u16, &'static str) {
    match error {
        StoreError::NoBlob(_) => (404, "no_blob"),
        StoreError::NoChunk { .. } => (404, "no_chunk"),
        StoreError::BadUploadId(_) => (400, "bad_upload_id"),
        StoreError::ChunkMismatch(_) => (422, CODE_CHUNK_MISMATCH),
        StoreError::UploadIncomplete { .. } => (409, CODE_INCOMPLETE),
        StoreError::UploadConflict(_) => (409, "upload_conflict"),
        StoreError::WrongOffset { .. } | StoreError::ChunkTakenOver(_) => (409, CODE_CHUNK_MOVED),
        error if error.is_disk_full() => (507, CODE_DISK_FULL),
        _ => (500, "store"),
    }
}

/// Reads the `Content-Range` of a part of a chunk, `bytes first-last/length`, against the chunk's length.
pub fn parse_content_range(header: &str, chunk_bytes: u64) -> Result<ByteRange, RangeError> {
    let spec = header.trim().strip_prefix("bytes ");
    let (range, length) = spec
        .and_then(|spec| spec.split_once('/'))
        .ok_or(RangeError::Malformed)?;
    if length.parse() != Ok(chunk_bytes) {
        return Err(RangeError::Malformed);
    }
    let part = parse_range(&format!("bytes={range}"), chunk_bytes)?;
    // What a request may leave open, or ask beyond the end, a body may not.
    if part.content_range(chunk_bytes) == header.trim() {
        return Ok(part);
    }
    Err(RangeError::Malformed)
}

/// How a server takes bodies.
#[derive(Debug, Clone)]
pub struct Receiving {
    /// A body in which nothing comes for so long is given up.
    pub stall_max: Duration,
    /// Caps, all of which hold.
    pub bandwidth: Vec<Bandwidth>,
}

/// What became of the body of a `PUT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// The chunk is there.
    Whole(ChunkOutcome),
    /// A part of it is there, this many bytes from its beginning.
    Part(u64),
}

/// Takes the body of `PUT …/chunks/{chunk}`, the whole chunk or a part of it: bounded by its size, given
/// up when nothing comes for long, written as it comes and checked before it counts. Holds one piece in
/// memory, not the chunk: many replicas end a phase, and send, at the same time. What came before a body
/// broke off is kept for a request that goes on there.
pub async fn receive_chunk<B, E>(
    upload: Arc<Upload>,
    chunk: u32,
    part: Option<ByteRange>,
    body: impl Stream<Item = Result<B, E>> + Send,
    receiving: &Receiving,
) -> Result<Received, ReceiveError>
where
    B: Buf + Send,
    E: std::fmt::Display,
{
    let start = part.map_or(0, |part| part.start);
    let mut writer = upload.chunk_writer_at(chunk, start)?;
    let length = part.map_or(writer.left_bytes(), |part| part.length);
    let mut left_bytes = length;
    let mut body = std::pin::pin!(body);
    let mut buffer = BytesMut::with_capacity(PIECE_BYTES as usize);
    loop {
        let piece = tokio::time::timeout(receiving.stall_max, body.next()).await;
        let stalled = |_| ReceiveError::Stalled {
            chunk,
            limit: receiving.stall_max,
        };
        let broken = |why: String| ReceiveError::Broken { chunk, why };
        let mut piece = match piece.map_err(stalled) {
            Ok(None) => break,
            Ok(Some(Ok(piece))) => piece,
            Ok(Some(Err(error))) => {
                write_down(writer, buffer).await?;
                return Err(broken(error.to_string()));
            }
            Err(error) => {
                write_down(writer, buffer).await?;
                return Err(error);
            }
        };
        if piece.remaining() as u64 > left_bytes {
            return Err(ReceiveError::TooLong { chunk, length });
        }
        left_bytes -= piece.remaining() as u64;
        for cap in &receiving.bandwidth {
            cap.pass(piece.remaining()).await;
        }
        while piece.has_remaining() {
            let room = PIECE_BYTES as usize - buffer.len();
            let count = piece.remaining().min(room);
            buffer.put((&mut piece).take(count));
            if count == room {
                (writer, buffer) = write_down(writer, buffer).await?;
            }
        }
    }
    let (writer, _) = write_down(writer, buffer).await?;
    match part {
        Some(part) if writer.left_bytes() > 0 => {
            Ok(Received::Part(part.start + length - left_bytes))
        }
        _ => Ok(Received::Whole(writer.finish()?)),
    }
}

/// Writes what is buffered and empties the buffer.
async fn write_down(
    mut writer: ChunkWriter,
    mut buffer: BytesMut,
) -> Result<(ChunkWriter, BytesMut), StoreError> {
    off_the_network(move || {
        writer.write(&buffer)?;
        buffer.clear();
        Ok((writer, buffer))
    })
    .await
}

/// Runs store work on a thread that may block.
pub async fn off_the_network<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| {
            let (what, path) = ("finish store work on", "a worker thread".into());
            Err(StoreError::Io {
                what,
                path,
                source: error.into(),
            })
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hansa_store::{BlobStore, DataDir, Manifest, UploadId};

    use super::*;

    #[tokio::test]
    async fn a_chunk_is_on_disk_while_the_rest_of_it_is_still_to_come() {
        const PIECE: usize = PIECE_BYTES as usize;
        const SENT: usize = 10_000;
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(&DataDir::lock(dir.path()).unwrap()).unwrap();
        let bytes: Vec<u8> = (0..3 * PIECE + 9).map(|i| (i % 251) as u8).collect();
        let manifest = Manifest::of_bytes(&bytes, 1 << 20).unwrap();
        let id: UploadId = "u".parse().unwrap();
        let upload = store.begin_upload(id, manifest).unwrap();

        let on_disk = dir.path().join("uploads/u/data");
        let pieces = bytes.chunks(SENT).map(<[u8]>::to_vec).enumerate();
        let body = stream::iter(pieces).map(|(number, piece)| {
            // Asked for this piece, it has written down all before but what does not fill a piece.
            let sent = number * SENT;
            let written = sent - sent % PIECE;
            assert_eq!(
                std::fs::read(&on_disk).unwrap()[..written],
                bytes[..written]
            );
            Ok::<_, std::io::Error>(Bytes::from(piece))
        });
        let receiving = Receiving {
            stall_max: Duration::from_secs(60),
            bandwidth: Vec::new(),
        };
        let taken = receive_chunk(upload.clone(), 0, None, body, &receiving).await;
        assert_eq!(taken.unwrap(), Received::Whole(ChunkOutcome::Stored));
        store.complete_upload(&upload).unwrap().verify().unwrap();
    }

    #[test]
    fn a_part_of_a_chunk_says_exactly_what_it_is() {
        let part = ByteRange {
            start: 90,
            length: 10,
        };
        assert_eq!(parse_content_range("bytes 90-99/100", 100), Ok(part));
        for bad in [
            "bytes 90-99/101",
            "bytes 90-100/100",
            "bytes 90-/100",
            "bytes -10/100",
            "bytes 90-99/*",
            "bytes=90-99/100",
            "90-99/100",
            "",
        ] {
            assert!(parse_content_range(bad, 100).is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        let range = |start, length| Ok(ByteRange { start, length });
        let outside = Err(RangeError::Outside { total_bytes: 100 });
        let cases = [
            ("bytes=0-9", range(0, 10)),
            ("bytes=90-", range(90, 10)),
            ("bytes=90-1000", range(90, 10)),
            ("bytes=-10", range(90, 10)),
            ("bytes=-1000", range(0, 100)),
            ("bytes=99-18446744073709551615", range(99, 1)),
            ("bytes=100-", outside),
            ("bytes=100-200", outside),
            ("bytes=-0", outside),
            ("bytes=9-0", Err(RangeError::Malformed)),
            ("bytes=0-1,5-6", Err(RangeError::Malformed)),
            ("bytes=+1-5", Err(RangeError::Malformed)),
            ("bytes=-", Err(RangeError::Malformed)),
            ("bytes=99999999999999999999-", Err(RangeError::Malformed)),
            ("items=0-9", Err(RangeError::Malformed)),
            ("", Err(RangeError::Malformed)),
        ];
        for (header, expected) in cases {
            assert_eq!(parse_range(header, 100), expected, "{header}");
        }
        let part = ByteRange {
            start: 90,
            length: 10,
        };
        assert_eq!(parse_range(&part.to_header(), 100), Ok(part));
        assert_eq!(part.content_range(100), "bytes 90-99/100");
    }
}
