//! Large things over HTTPS, in hashed chunks.
//!
//! ```text
//! client                                             server
//! download  GET {prefix}/manifest                    the blob's manifest, checked against its hash
//!           GET {prefix}/data, Range           ×n  parallel; a chunk in one request or several,
//!                                                    checked against the manifest
//! upload    GET {prefix}                             {"missing": [indices]}
//!           PUT {prefix}/chunks/{index},             parallel; a chunk in one request or several,
//!               Content-Range: part of the chunk ×n  checked before it counts
//!           GET {prefix}/chunks/{index}              after a cut: {"held_bytes": how much arrived}
//!           POST {prefix}/complete                   the server's answer; again from the top if it
//!                                                    says `incomplete`
//! ```
//!
//! ```text
//! download, upload ──► lanes ──► lane, lane, …   each a connection, a chunk at a time
//!                        ▲
//!                   lane_control                 how many: more while more carry more
//!                   under_way                    at the end of an upload, fast lanes take over from slow ones
//! ```
//!
//! Requests are short and connections retire, so proxies pass them and a cut costs little; every wait ends
//! when nothing moves. Never here: routes, tokens' meaning, what a blob contains, and when to transfer it.

mod bucket;
mod client;
mod download;
mod endpoint;
mod error;
mod lane;
mod lane_control;
mod lanes;
pub mod names;
mod options;
mod partial;
mod pinning;
mod queueing;
mod retire;
mod retry;
pub mod serve;
mod spare;
pub mod tls;
mod under_way;
mod upload;
mod upstream;

pub use bucket::Bandwidth;
pub use client::{Client, HttpVersion, Proxy, ProxyFile, Route};
pub use download::{Downloaded, download};
pub use endpoint::{Endpoint, Fingerprint, ParseFingerprintError, Token, Trust};
pub use error::{ErrorBody, ErrorDetail, TransferError};
pub use lane_control::LaneLimits;
pub use options::{Progress, TransferOptions};
pub use pinning::WrongFingerprint;
pub use retry::with_retries;
pub use spare::{give_back_spare, leave_spare};
pub use upload::{HeldBytes, MissingChunks, Uploaded, upload};
pub use upstream::Upstream;
