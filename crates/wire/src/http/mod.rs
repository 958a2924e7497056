//! The messages of the `/v1` API: JSON over HTTPS, every request short.
//!
//! ```text
//! GET  /v1/hello                       Hello; needs no token
//! GET  /v1/recipe                      RecipeAnswer
//! POST /v1/register                    RegisterRequest   → Registered
//! POST /v1/lease                       LeaseRequest      → LeaseAnswer
//! POST /v1/heartbeat                   Heartbeat         → Standing
//! POST /v1/announce                    AnnounceRequest   → Verdict
//! POST /v1/evaluated                   Evaluated         → Done
//! POST /v1/goodbye                     Goodbye           → Done
//! POST /v1/operate                     Operate           → Done   (an operator's token)
//! GET  /v1/status                      Status
//! GET  /v1/blobs/{hash}/manifest, /data                   (transfer: download)
//! GET  /v1/uploads/{id}; PUT …/chunks/{index}; POST …/complete → Verdict   (transfer: upload)
//! ```
//!
//! Every request carries [`WIRE_HEADER`], [`VERSION_HEADER`] and [`CLIENT_HEADER`]; another wire
//! version is refused by name. A refusal's body is an [`ErrorBody`].

mod error;

use hansa_base::{Hash, ReplicaId};
use hansa_protocol::{Announce, Caller, DigestFields, Order, Register};
use serde::{Deserialize, Serialize};

use crate::mirror::mirror_struct;
use crate::{BadValue, PayloadManifest, WIRE_VERSION, Wire};

pub use error::{Code, ErrorBody, ErrorDetail};

/// The sender's wire version, a number.
pub const WIRE_HEADER: &str = "hansa-wire";
/// The sender's hansa version.
pub const VERSION_HEADER: &str = "hansa-version";
/// The sender's name, `site/replica`, or `hansa` for a tool.
pub const CLIENT_HEADER: &str = "hansa-client";

/// No request but a chunk is longer.
pub const REQUEST_BYTES_MAX: usize = 16 << 20;

/// Paths of the API.
pub mod path {
    use hansa_base::Hash;

    /// [`super::Hello`].
    pub const HELLO: &str = "/v1/hello";
    /// [`super::RecipeAnswer`].
    pub const RECIPE: &str = "/v1/recipe";
    /// [`super::RegisterRequest`].
    pub const REGISTER: &str = "/v1/register";
    /// A lease request.
    pub const LEASE: &str = "/v1/lease";
    /// A heartbeat.
    pub const HEARTBEAT: &str = "/v1/heartbeat";
    /// [`super::AnnounceRequest`].
    pub const ANNOUNCE: &str = "/v1/announce";
    /// An evaluation's result.
    pub const EVALUATED: &str = "/v1/evaluated";
    /// A goodbye.
    pub const GOODBYE: &str = "/v1/goodbye";
    /// [`super::Operate`].
    pub const OPERATE: &str = "/v1/operate";
    /// [`crate::status::Status`].
    pub const STATUS: &str = "/v1/status";

    /// Where a blob is downloaded from, by its manifest's hash.
    #[must_use]
    pub fn blob(manifest: Hash) -> String {
        format!("/v1/blobs/{manifest}")
    }

    /// Where an announced contribution is uploaded to, by its id.
    #[must_use]
    pub fn upload(id: Hash) -> String {
        format!("/v1/uploads/{id}")
    }
}

/// What the sender of a request says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// `site/replica`, or `hansa` for a tool.
    pub name: String,
    /// Its hansa version.
    pub version: String,
}

impl Client {
    /// The headers of each of its requests.
    #[must_use]
    pub fn headers(&self) -> [(&'static str, String); 3] {
        [
            (WIRE_HEADER, WIRE_VERSION.to_string()),
            (VERSION_HEADER, self.version.clone()),
            (CLIENT_HEADER, self.name.clone()),
        ]
    }
}

/// Who answers here; also for who has no token yet, or another version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Always `hansa`.
    pub service: String,
    /// [`WIRE_VERSION`] of the coordinator.
    pub wire: u32,
    /// Its hansa version.
    pub hansa: String,
    /// The run's name.
    pub run: String,
    /// The run's identity, 64 hexadecimal digits.
    pub run_id: String,
}

/// An answer that says nothing but that the call took effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

impl Wire for Done {
    type Json = Self;
    fn to_json(&self) -> Self {
        *self
    }
    fn from_json(json: Self) -> Result<Self, BadValue> {
        Ok(json)
    }
}

/// The run's recipe, and what a replica's corpus must be.
#[derive(Clone, Debug, PartialEq)]
pub struct RecipeAnswer {
    /// The run's identity.
    pub run: Hash,
    /// The recipe, canonical ([`crate::Recipe::to_toml`]).
    pub recipe: String,
    /// Positions and corpus.
    pub digest: DigestFields,
}

/// A registration.
#[derive(Clone, Debug, PartialEq)]
pub struct RegisterRequest {
    /// The name.
    pub replica: ReplicaId,
    /// What it will read.
    pub digest: DigestFields,
    /// `W`: its accelerators.
    pub ranks: u32,
    /// Random, durable at the replica.
    pub nonce: Hash,
    /// The resume token of its local checkpoint.
    pub resume: Option<Hash>,
    /// The incarnation that it was last.
    pub held: Option<Caller>,
}

impl RegisterRequest {
    /// As a command; the coordinator adds the token that it will hand out.
    #[must_use]
    pub fn into_register(self, fresh_token: Hash) -> Register {
        let Self {
            replica,
            digest,
            ranks,
            nonce,
            resume,
            held,
        } = self;
        Register {
            replica,
            digest,
            ranks,
            nonce,
            resume,
            held,
            fresh_token,
        }
    }
}

/// An operator's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operate {
    /// The order.
    pub order: Order,
}

/// Characters of an order's reason.
const REASON_MAX: usize = 500;

/// A reason is a line in logs and tables.
fn check_order(operate: &Operate) -> Result<(), &'static str> {
    let why = match &operate.order {
        Order::Pause { why }
        | Order::Resume { why }
        | Order::Drain { why, .. }
        | Order::Undrain { why, .. }
        | Order::Evict { why, .. }
        | Order::Readmit { why, .. }
        | Order::Stop { why } => why.as_str(),
        Order::LetOut { .. } => "",
    };
    let fits = why.chars().count() <= REASON_MAX && !why.chars().any(char::is_control);
    let rule = "a reason is one line of at most 500 characters";
    fits.then_some(()).ok_or(rule)
}

/// An announcement, with what will be uploaded.
#[derive(Clone, Debug, PartialEq)]
pub struct AnnounceRequest {
    /// Who, and what.
    pub announce: Announce,
    /// The payload's manifest; its hash and size are those in `announce`.
    pub payload: PayloadManifest,
}

mirror_struct!(
    RecipeAnswerJson = RecipeAnswer {
        run: Hash,
        recipe: String,
        digest: DigestFields
    }
);
mirror_struct!(RegisterRequestJson = RegisterRequest {
    replica: ReplicaId,
    digest: DigestFields,
    ranks: u32,
    nonce: Hash,
    resume: Option<Hash>,
    held: Option<Caller>,
} check |request| {
    // B·W·A must not overflow, and nobody has a job of a million accelerators.
    let some = (1..=1 << 20).contains(&request.ranks);
    some.then_some(()).ok_or("ranks must be 1 to 2^20")?;
    let own = request.held.as_ref().is_none_or(|held| held.replica == request.replica);
    own.then_some(()).ok_or("what it holds is another replica's")
});
mirror_struct!(OperateJson = Operate { order: Order } check check_order);
mirror_struct!(AnnounceRequestJson = AnnounceRequest {
    announce: Announce,
    payload: PayloadManifest,
} check |request| {
    let same = request.payload.total_bytes == request.announce.parts.bytes.0;
    same.then_some(()).ok_or("the announced size is not that of the payload's manifest")
});
