//! Large things over HTTPS, in hashed chunks.
//!
//! ```text
//! client                                             server
//! download  GET {prefix}/manifest                    the blob's manifest, checked against its hash
//!           GET {prefix}/data, Range: one chunk  ×n  parallel, each checked against the manifest
//! upload    GET {prefix}                             {"missing": [indices]}
//!           PUT {prefix}/chunks/{index}          ×n  parallel, each checked before it counts
//!           POST {prefix}/complete                   the server's answer; again from the top if it
//!                                                    says `incomplete`
//! ```
//!
//! Requests are short, so a proxy passes them and a cut costs one chunk; every wait ends when nothing
//! moves. Never here: routes, tokens' meaning, what a blob contains, and when to transfer it.

mod client;
mod download;
mod endpoint;
mod error;
mod options;
mod pinning;
mod retry;
pub mod serve;
pub mod tls;
mod upload;

pub use client::Client;
pub use download::{Downloaded, download};
pub use endpoint::{Endpoint, Fingerprint, ParseFingerprintError, Token, Trust};
pub use error::{ErrorBody, ErrorDetail, TransferError};
pub use options::{Progress, TransferOptions};
pub use pinning::WrongFingerprint;
pub use retry::with_retries;
pub use upload::{MissingChunks, Uploaded, upload};
