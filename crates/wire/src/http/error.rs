//! Refusals: a stable code for programs, a sentence for people, and the protocol's own refusal where
//! it is one.

use std::time::Duration;

use hansa_protocol::Refusal;
use serde::{Deserialize, Serialize};

use crate::{BadValue, Wire};

/// The body of every refusal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The refusal.
    pub error: ErrorDetail,
}

/// Why a request was refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// A word from [`Code`].
    pub code: String,
    /// What happened, to what, and what to do next.
    pub message: String,
    /// When the same request may succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The protocol's refusal, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<<Refusal as Wire>::Json>,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal $status:literal,)*) => {
        /// The codes of the API, each with its HTTP status.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The HTTP status.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }
        }
    };
}

codes! {
    /// Another process has the name.
    Busy = "busy" 409,
    /// Another corpus, tokenizer or order.
    OtherData = "other_data" 409,
    /// A newer incarnation took over.
    Fenced = "fenced" 409,
    /// The incarnation was given up; register again.
    Gone = "gone" 409,
    /// The coordinator runs on an old copy of its journal.
    NeverIssued = "never_issued" 409,
    /// The call is of another run.
    OtherRun = "other_run" 409,
    /// The run was restored from a backup; register afresh.
    Restored = "restored" 409,
    /// The caller is of another copy of the run.
    OtherHistory = "other_history" 409,
    /// The call's proof is not this run's.
    NotSealed = "not_sealed" 409,
    /// The coordinator has not made this generation.
    NoSuchGeneration = "no_such_generation" 409,
    /// The name never registered.
    UnknownReplica = "unknown_replica" 404,
    /// The contribution does not start at the lease's front.
    NotFromFront = "not_from_front" 409,
    /// The contribution goes beyond what was reserved for its author.
    BeyondMark = "beyond_mark" 409,
    /// The contribution's base is not current.
    Stale = "stale" 409,
    /// The name has contributed to this round.
    ContributedAlready = "contributed_already" 409,
    /// Tokens and positions do not fit.
    WrongTokens = "wrong_tokens" 409,
    /// No such contribution.
    UnknownContribution = "unknown_contribution" 404,
    /// The window is not quarantined.
    NotQuarantined = "not_quarantined" 404,
    /// An operator evicted the replica.
    Evicted = "evicted" 403,
    /// The site is drained.
    Drained = "drained" 403,
    /// No replica of the site ever registered.
    UnknownSite = "unknown_site" 404,
    /// The order makes no sense now.
    Pointless = "pointless" 409,
    /// The run is over.
    RunOver = "run_over" 409,
    /// The coordinator found its own state broken.
    Broken = "broken" 500,
    /// The other side speaks another wire version.
    OtherVersion = "other_version" 400,
    /// No token, or a wrong one.
    Unauthorized = "unauthorized" 401,
    /// The token is for another site, or not for this.
    Forbidden = "forbidden" 403,
    /// The request cannot be read, or holds a value that cannot be.
    BadRequest = "bad_request" 400,
    /// No such path, or nothing there.
    NotFound = "not_found" 404,
    /// The request is too long.
    TooLarge = "too_large" 413,
    /// Too much to do now.
    Overloaded = "overloaded" 503,
    /// The coordinator failed; its log says how.
    Internal = "internal" 500,
    /// The coordinator is being stopped.
    Stopping = "stopping" 503,
}

impl Code {
    /// The code of a word; `None` for one of a later version.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }

    /// The code of a protocol's refusal.
    #[must_use]
    pub const fn of(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Busy { .. } => Self::Busy,
            Refusal::OtherData(_) => Self::OtherData,
            Refusal::Fenced { .. } => Self::Fenced,
            Refusal::Gone { .. } => Self::Gone,
            Refusal::NeverIssued { .. } => Self::NeverIssued,
            Refusal::Unknown { .. } => Self::UnknownReplica,
            Refusal::OtherRun { .. } => Self::OtherRun,
            Refusal::Restored { .. } => Self::Restored,
            Refusal::OtherHistory { .. } => Self::OtherHistory,
            Refusal::NotSealed { .. } => Self::NotSealed,
            Refusal::NoSuchGeneration { .. } => Self::NoSuchGeneration,
            Refusal::NotFromFront { .. } => Self::NotFromFront,
            Refusal::BeyondMark { .. } => Self::BeyondMark,
            Refusal::Stale { .. } => Self::Stale,
            Refusal::ContributedAlready { .. } => Self::ContributedAlready,
            Refusal::WrongTokens { .. } => Self::WrongTokens,
            Refusal::UnknownContribution(_) => Self::UnknownContribution,
            Refusal::NotQuarantined(_) => Self::NotQuarantined,
            Refusal::Evicted { .. } => Self::Evicted,
            Refusal::Drained { .. } => Self::Drained,
            Refusal::UnknownSite { .. } => Self::UnknownSite,
            Refusal::Pointless { .. } => Self::Pointless,
            Refusal::RunOver(_) => Self::RunOver,
            Refusal::Broken(_) => Self::Broken,
        }
    }
}

impl ErrorBody {
    /// A refusal that is not the protocol's.
    #[must_use]
    pub fn new(code: Code, message: impl ToString) -> Self {
        Self {
            error: ErrorDetail {
                code: code.as_str().to_owned(),
                message: message.to_string(),
                retry_after_ms: None,
                refusal: None,
            },
        }
    }

    /// The same, with the time after which to try again.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.error.retry_after_ms = Some(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// The protocol's refusal.
    ///
    /// # Errors
    /// If this is another refusal, or one of a later version.
    pub fn refusal(&self) -> Result<Refusal, BadValue> {
        let json = self.error.refusal.clone();
        Refusal::from_json(json.ok_or_else(|| BadValue::new(&self.error.message))?)
    }
}

impl From<&Refusal> for ErrorBody {
    fn from(refusal: &Refusal) -> Self {
        let mut body = Self::new(Code::of(refusal), refusal);
        body.error.refusal = Some(refusal.to_json());
        match refusal {
            Refusal::Busy { retry, .. } => body.retry_after(*retry),
            _ => body,
        }
    }
}
