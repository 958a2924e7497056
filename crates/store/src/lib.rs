//! What a coordinator must not forget: journal, snapshots, blobs.
//!
//! ```text
//! DATA/lock                        one writing process at a time          DataDir
//!      journal.sqlite (+ -wal …)   records chained by hash, snapshots     Journal
//!      journal.head                the last acknowledged record           Journal
//!      blobs/<manifest hash>/      data, manifest.json                    BlobStore, Blob
//!      uploads/<id>/               data, manifest.json, until complete    Upload
//!      tmp/                        writes in progress, files to write over; emptied on open
//! ```
//!
//! Everything acknowledged is on disk before the call returns, and a reader is told which record or
//! file is damaged. Never here: the meaning of a payload, the network, clocks, a shorter history than
//! the one acknowledged.

mod blob;
mod data_dir;
mod error;
mod files;
mod in_order;
mod journal;
mod manifest;
mod spares;
mod tree;
mod upload;
mod watch;

pub use blob::{Blob, BlobStore, BlobWriter, Bring, HashingWriter, open_in as open_blob_in};
pub use data_dir::{DataDir, host};
pub use error::{Damage, StoreError};
pub use files::{
    is_nobody_elses, read_cached_at, remove_synced, replace_file, reserve, start_writeback,
};
pub use in_order::ManifestHasher;
pub use journal::{Journal, Record, Records, Seq, Snapshot, StoredRecord};
pub use manifest::{
    CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, CHUNKS_MAX, ChunkHasher, MANIFEST_VERSION, Manifest,
    ManifestError, ManifestJson, hash_bytes,
};
pub use spares::fits;
pub use upload::{ChunkOutcome, ChunkWriter, Upload, UploadId};
pub use watch::{Watch, WatchChunk};
