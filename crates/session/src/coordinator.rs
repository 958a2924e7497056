//! The coordinator as a session sees it: one function per call, and what a failure means.
//!
//! A refusal of the protocol goes to the machine, which knows what to do; a lost answer, too, and it
//! asks again. What no repetition can mend (a revoked token, another certificate, another version)
//! ends the session.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hansa_base::{Hash, ReplicaId};
use hansa_protocol::replica::{Call, CallFailed};
use hansa_protocol::{Announce, Caller, DigestFields, Refusal, Reply, Verdict};
use hansa_store::{Manifest, ManifestJson};
use hansa_transfer::{Bandwidth, Client, Endpoint, Progress, TransferError, TransferOptions};
use hansa_wire::http::{
    self, AnnounceRequest, Code, Done, Hello, RecipeAnswer, RegisterRequest, path,
};
use hansa_wire::{BadValue, PayloadManifest, Wire};

use crate::cache;
use crate::error::Error;
use crate::options::LinkOptions;

/// A control call is given up after this; the machine repeats it.
const CALL_MAX: Duration = Duration::from_secs(30);
/// An attempt of the first contact: several fit into its time.
const HELLO_MAX: Duration = Duration::from_secs(10);

/// Another process may remove a model from the cache before it is taken, but not again and again.
const CACHE_ATTEMPTS: u32 = 2;

/// Why a call gave no reply.
pub(crate) enum CallError {
    /// The machine's business.
    Failed(CallFailed),
    /// The session's end.
    Fatal(Error),
}

impl From<BadValue> for CallError {
    fn from(error: BadValue) -> Self {
        let why = format!("the coordinator's answer cannot be read: {error}");
        Self::Failed(CallFailed::Unreachable(why))
    }
}

impl From<TransferError> for CallError {
    fn from(error: TransferError) -> Self {
        if let Some(refusal) = refusal_of(&error) {
            return Self::Failed(CallFailed::Refused(refusal));
        }
        match &error {
            TransferError::Unreachable { .. }
            | TransferError::Proxy { .. }
            | TransferError::TimedOut { .. }
            | TransferError::Cut { .. }
            | TransferError::BadAnswer { .. }
            | TransferError::BadChunk { .. }
            | TransferError::NeverComplete { .. } => Self::unreachable(&error),
            TransferError::Refused { status, code, .. } => match Code::from_text(code) {
                Some(Code::NotFound) | None if *status != 400 => Self::unreachable(&error),
                _ if error.is_transient() => Self::unreachable(&error),
                _ => Self::Fatal(error.into()),
            },
            _ => Self::Fatal(error.into()),
        }
    }
}

impl CallError {
    fn unreachable(error: &TransferError) -> Self {
        Self::Failed(CallFailed::Unreachable(error.to_string()))
    }
}

/// The protocol's refusal, if the error is one.
fn refusal_of(error: &TransferError) -> Option<Refusal> {
    let TransferError::Refused { more, .. } = error else {
        return None;
    };
    let json = more.get("refusal")?.clone();
    Refusal::from_json(serde_json::from_value(json).ok()?).ok()
}

/// Whether a download failed because the blob is no longer served.
pub(crate) fn is_not_found(error: &TransferError) -> bool {
    matches!(error, TransferError::Refused { status: 404, .. })
}

/// The coordinator. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Coordinator {
    client: Client,
    replica: ReplicaId,
    transfer: TransferOptions,
    cache: Option<PathBuf>,
}

impl Coordinator {
    pub fn new(
        endpoint: &Endpoint,
        replica: &ReplicaId,
        link: &LinkOptions,
        seed: u64,
    ) -> Result<Self, Error> {
        let headers = http::Client {
            name: replica.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Ok(Self {
            client: Client::over(&link.route, endpoint, &headers.headers())?,
            replica: replica.clone(),
            transfer: TransferOptions {
                bandwidth: Bandwidth::capped_mbit(link.bulk_mbit),
                ..TransferOptions::new(seed)
            },
            cache: link.cache.clone(),
        })
    }

    pub fn url(&self) -> &str {
        self.client.base_url()
    }

    pub async fn hello(&self) -> Result<Hello, TransferError> {
        self.client.get_json(path::HELLO, HELLO_MAX).await
    }

    pub async fn recipe(&self) -> Result<RecipeAnswer, TransferError> {
        let json = self.client.get_json(path::RECIPE, CALL_MAX).await?;
        RecipeAnswer::from_json(json).map_err(|error| TransferError::BadAnswer {
            url: format!("{}{}", self.url(), path::RECIPE),
            why: error.to_string(),
        })
    }

    pub async fn register(
        &self,
        digest: DigestFields,
        ranks: u32,
        nonce: Hash,
        resume: Option<Hash>,
        held: Option<Caller>,
    ) -> Result<Reply, CallError> {
        let request = RegisterRequest {
            replica: self.replica.clone(),
            digest,
            ranks,
            nonce,
            resume,
            held,
        };
        self.post(path::REGISTER, &request)
            .await
            .map(Reply::Registered)
    }

    pub async fn announce(
        &self,
        announce: Announce,
        payload: &Manifest,
    ) -> Result<Reply, CallError> {
        let json = ManifestJson::from(payload);
        let payload = PayloadManifest {
            format_version: json.format_version,
            total_bytes: json.total_bytes,
            chunk_bytes: json.chunk_bytes,
            chunks: json.chunks,
        };
        let request = AnnounceRequest { announce, payload };
        self.post(path::ANNOUNCE, &request)
            .await
            .map(Reply::Verdict)
    }

    pub async fn upload(
        &self,
        id: Hash,
        file: &Path,
        payload: &Manifest,
        on_progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Reply, CallError> {
        let prefix = path::upload(id);
        let sent = hansa_transfer::upload(
            &self.client,
            &prefix,
            file,
            payload,
            &self.transfer,
            on_progress,
        );
        let verdict = serde_json::from_value(sent.await?.answer).map_err(BadValue::new)?;
        Ok(Reply::Verdict(Verdict::from_json(verdict)?))
    }

    pub async fn download(
        &self,
        manifest: Hash,
        dest: &Path,
        on_progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(), TransferError> {
        let Some(cache) = self.cache.as_ref().filter(|_| !dest.exists()) else {
            return self.bring(manifest, dest, on_progress).await;
        };
        let cached = cache::path_of(cache, manifest)?;
        for _ in 0..CACHE_ATTEMPTS {
            self.bring(manifest, &cached, on_progress).await?;
            if cache::take(&cached, dest).await? {
                return Ok(());
            }
        }
        self.bring(manifest, dest, on_progress).await
    }

    /// Makes `dest` that model; if it is there, it is hashed and nothing travels.
    async fn bring(
        &self,
        manifest: Hash,
        dest: &Path,
        on_progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(), TransferError> {
        let prefix = path::blob(manifest);
        let options = &self.transfer;
        hansa_transfer::download(&self.client, &prefix, manifest, dest, options, on_progress)
            .await
            .map(drop)
    }

    /// The calls that need nothing but what they carry.
    pub async fn plain(&self, call: Call) -> Result<Reply, CallError> {
        match call {
            Call::Lease(request) => self.post(path::LEASE, &request).await.map(Reply::Lease),
            Call::Heartbeat(beat) => self.post(path::HEARTBEAT, &beat).await.map(Reply::Standing),
            Call::Evaluated(result) => {
                let done: Result<Done, _> = self.post(path::EVALUATED, &result).await;
                done.map(|_| Reply::Done)
            }
            Call::Goodbye(goodbye) => {
                let done: Result<Done, _> = self.post(path::GOODBYE, &goodbye).await;
                done.map(|_| Reply::Done)
            }
            Call::Register { .. } | Call::Announce(_) | Call::Upload { .. } => {
                let why = "this call needs more than it carries".to_owned();
                Err(CallError::Failed(CallFailed::Unreachable(why)))
            }
        }
    }

    async fn post<Q, A>(&self, path: &str, request: &Q) -> Result<A, CallError>
    where
        Q: Wire<Json: Send + Sync>,
        A: Wire,
    {
        let body = request.to_json();
        let answer = self.client.post_json(path, &body, CALL_MAX).await?;
        Ok(A::from_json(answer)?)
    }
}
