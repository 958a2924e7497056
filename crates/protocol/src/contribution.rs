//! Contributions and their ids.

use crate::Span;
use hansa_base::{Bytes, Generation, Hash, Incarnation, ReplicaKey, Steps, Tokens, Windows};

/// What the replica says of its contribution; its id is the hash of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContributionParts {
    /// The base generation.
    pub generation: Generation,
    /// Manifest hash of the base generation's model, as it was downloaded.
    pub base: Hash,
    /// The positions trained, from the lease's front, without gaps.
    pub spans: Vec<Span>,
    /// Target tokens trained.
    pub tokens: Tokens,
    /// Inner steps taken.
    pub steps: Steps,
    /// Manifest hash of the encoded pseudo-gradient.
    pub payload: Hash,
    /// Its size.
    pub bytes: Bytes,
}

impl ContributionParts {
    /// The id: BLAKE3 (derive-key mode) over the fields in order, numbers as little-endian u64,
    /// spans preceded by their number.
    #[must_use]
    pub fn id(&self) -> Hash {
        let mut hasher = blake3::Hasher::new_derive_key("hansa 1 contribution id");
        let mut number = |value: u64| {
            hasher.update(&value.to_le_bytes());
        };
        number(self.generation.0);
        number(self.spans.len() as u64);
        for span in &self.spans {
            number(span.start.0);
            number(span.end.0);
        }
        [self.tokens.0, self.steps.0, self.bytes.0]
            .into_iter()
            .for_each(number);
        hasher.update(&self.base.0);
        hasher.update(&self.payload.0);
        Hash(*hasher.finalize().as_bytes())
    }

    /// Windows trained.
    #[must_use]
    pub fn windows(&self) -> Windows {
        Span::total(&self.spans)
    }
}

/// Where a contribution of the open round stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Accepted for upload.
    Announced,
    /// Complete; its author is needed no more.
    Staged,
}

/// An accepted announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contribution {
    /// Who made it.
    pub key: ReplicaKey,
    /// The incarnation that announced it, or inherited it.
    pub incarnation: Incarnation,
    /// [`ContributionParts::id`].
    pub id: Hash,
    /// What it consists of.
    pub parts: ContributionParts,
    /// How far it is.
    pub stage: Stage,
}
