//! Every way in which a call or a transfer can fail, with what to do about it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hansa_base::Hash;
use hansa_store::{ManifestError, StoreError};
use serde::{Deserialize, Serialize};

use crate::pinning::{WrongFingerprint, find_wrong_fingerprint};

/// The body of every refusal: `{"error": {"code": "…", "message": "…"}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The refusal.
    pub error: ErrorDetail,
}

/// Why a server refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// For programs: a word such as `fenced`.
    pub code: String,
    /// For people: what happened, to what, and what to do next.
    pub message: String,
    /// Whatever else the server says, for programs.
    #[serde(default, flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

impl ErrorBody {
    /// A refusal.
    #[must_use]
    pub fn new(code: &str, message: impl ToString) -> Self {
        let message = message.to_string();
        Self {
            error: ErrorDetail {
                code: code.to_owned(),
                message,
                more: serde_json::Map::new(),
            },
        }
    }
}

/// An error of a call, a download or an upload.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The address is no URL that a client can use.
    #[error("{url:?} is not the address of a coordinator ({why}); it looks like https://host:8443")]
    BadUrl {
        /// As given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// Plain HTTP to another machine.
    #[error(
        "{0} is plain HTTP to another machine, which would show token and weights to the network; use \
         https:// and the fingerprint that the coordinator prints"
    )]
    PlainNotLoopback(String),
    /// HTTPS without a pinned certificate.
    #[error("{0} needs the fingerprint of its certificate; copy it from the coordinator's output")]
    FingerprintMissing(String),
    /// A pinned certificate for plain HTTP.
    #[error(
        "{0} is plain HTTP, which has no certificate to check; use https:// or drop the fingerprint"
    )]
    FingerprintUnused(String),
    /// Plain HTTP to a server that speaks something else.
    #[error(
        "{0} does not answer in plain HTTP; a coordinator speaks HTTPS unless told otherwise: use https:// \
         and the fingerprint that it prints"
    )]
    NotPlain(String),
    /// The token cannot be sent.
    #[error("the token holds characters that cannot be sent; copy the token file again")]
    BadToken,
    /// The HTTP client could not be set up.
    #[error("set up the HTTP client: {0}")]
    SetUp(String),
    /// The server is not the one whose certificate is pinned.
    #[error(
        "{url} is not the pinned coordinator: {mismatch}; if its certificate was renewed, copy the new \
         fingerprint from the coordinator's output, else somebody may be listening in"
    )]
    WrongFingerprint {
        /// The server.
        url: String,
        /// Both fingerprints.
        mismatch: WrongFingerprint,
    },
    /// Nobody answers.
    #[error("cannot reach {url} ({why}); is the coordinator running, and the address right?")]
    Unreachable {
        /// The server.
        url: String,
        /// The innermost reason.
        why: String,
    },
    /// The file that names the proxy cannot be used.
    #[error(
        "the proxy file {} cannot be used ({why}); `hansa site run` writes it while its relay runs",
        path.display()
    )]
    ProxyFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The proxy does not let the connection through.
    #[error(
        "the proxy on the way to {url} opens no tunnel ({why}); ask whoever runs it to allow this host and \
         port, or name the host in NO_PROXY if it can be reached directly"
    )]
    Proxy {
        /// The server.
        url: String,
        /// What is known of the reason.
        why: String,
    },
    /// Nothing moved for too long.
    #[error("{url} did not answer within {} s; it or the network may be overloaded", limit.as_secs_f64())]
    TimedOut {
        /// The request's address.
        url: String,
        /// The limit.
        limit: Duration,
    },
    /// The connection broke during a request.
    #[error("the connection to {url} broke ({why}); trying again is safe")]
    Cut {
        /// The request's address.
        url: String,
        /// The innermost reason.
        why: String,
    },
    /// The token is not accepted.
    #[error("{url} does not accept the token; check this site's token file with the operator")]
    Unauthorized {
        /// The request's address.
        url: String,
    },
    /// The server refused and said why.
    #[error("{message} [{code}, status {status}]")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The server's code; `status` if it gave none.
        code: String,
        /// The server's message.
        message: String,
        /// Whatever else the server said, for programs.
        more: serde_json::Map<String, serde_json::Value>,
    },
    /// The answer is not what the protocol says.
    #[error("{url} answered something else than expected: {why}; are both sides the same version?")]
    BadAnswer {
        /// The request's address.
        url: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// The server's manifest is malformed.
    #[error("{url}: {source}")]
    Manifest {
        /// The request's address.
        url: String,
        /// What is wrong with it.
        source: ManifestError,
    },
    /// The server's manifest has another hash than the blob asked for.
    #[error("{url} gave the manifest {got} instead of {expected}; nothing was kept")]
    WrongManifest {
        /// The request's address.
        url: String,
        /// The hash asked for.
        expected: Hash,
        /// The hash of the answer.
        got: Hash,
    },
    /// A chunk arrived with other bytes than the manifest names.
    #[error("chunk {chunk} from {url} does not match its hash; it was not kept")]
    BadChunk {
        /// The request's address.
        url: String,
        /// The chunk's index.
        chunk: u32,
    },
    /// A file changed while it was being sent.
    #[error("{path} changed in chunk {chunk} while it was sent; write it anew and start again")]
    SourceChanged {
        /// The file.
        path: PathBuf,
        /// The chunk's index.
        chunk: u32,
    },
    /// The server keeps missing chunks that were sent.
    #[error(
        "{url} still misses chunks after {rounds} rounds of sending; look at the coordinator's log"
    )]
    NeverComplete {
        /// The upload's address.
        url: String,
        /// Rounds tried.
        rounds: u32,
    },
    /// Another process downloads to the same file.
    #[error("{0} is being downloaded by another process; wait for that one")]
    Busy(PathBuf),
    /// A local file operation failed.
    #[error("{what} {path}: {source}")]
    Io {
        /// A bare verb phrase.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A local file could not be hashed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl TransferError {
    /// Whether the same call may succeed later without anybody's doing.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Proxy { .. }
            | Self::TimedOut { .. }
            | Self::Cut { .. }
            | Self::BadChunk { .. }
            // It may be the end of an own attempt that was given up: its last write is under way.
            | Self::Busy(_) => true,
            Self::Refused { status, code, .. } => {
                let again = [crate::serve::CODE_CHUNK_MISMATCH, crate::serve::CODE_CHUNK_MOVED];
                matches!(status, 408 | 429 | 500..) || again.contains(&code.as_str())
            }
            _ => false,
        }
    }

    /// The server's code, if it refused.
    #[must_use]
    pub fn refusal_code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            _ => None,
        }
    }

    pub(crate) fn io(
        what: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Io { what, path, source }
    }

    pub(crate) fn from_http(error: &reqwest::Error, url: &str, limit: Duration) -> Self {
        let url = url.to_owned();
        if let Some(mismatch) = find_wrong_fingerprint(error) {
            return Self::WrongFingerprint { url, mismatch };
        }
        let why = innermost(error);
        if let Some(why) = tunnel_failure(error) {
            return Self::Proxy { url, why };
        }
        match () {
            () if url.starts_with("http://") && is_no_http(error) => Self::NotPlain(url),
            () if error.is_connect() => Self::Unreachable { url, why },
            () if error.is_timeout() => Self::TimedOut { url, limit },
            () => Self::Cut { url, why },
        }
    }
}

/// Whether what was answered is no HTTP at all, such as a TLS alert.
fn is_no_http(error: &reqwest::Error) -> bool {
    let mut inner: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = inner {
        if error
            .downcast_ref::<hyper::Error>()
            .is_some_and(hyper::Error::is_parse)
        {
            return true;
        }
        inner = error.source();
    }
    false
}

/// What a proxy said instead of opening a tunnel. The HTTP client has no type for it.
fn tunnel_failure(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut inner = Some(error);
    while let Some(error) = inner {
        let text = error.to_string();
        if let Some(why) = text.strip_prefix("tunnel error: ") {
            return Some(why.to_owned());
        }
        inner = error.source();
    }
    None
}

fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
