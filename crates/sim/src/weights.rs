//! Weights as what they are made of: how often each position was trained into them.

use hansa_base::{Hash, Windows};
use hansa_protocol::{Ownership, RunSpec, State};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// `(epoch, position)` → how often; a pseudo-gradient of bad weights has negative numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights(Arc<BTreeMap<(u32, u64), i64>>);

impl Weights {
    pub fn add(&mut self, epoch: u32, position: u64, times: i64) {
        let counts = Arc::make_mut(&mut self.0);
        let count = counts.entry((epoch, position)).or_default();
        *count += times;
        if *count == 0 {
            counts.remove(&(epoch, position));
        }
    }

    pub fn add_all(&mut self, other: &Self, times: i64) {
        for (&(epoch, position), &count) in other.0.iter() {
            self.add(epoch, position, count * times);
        }
    }

    /// True if the position was trained into them.
    pub fn has(&self, epoch: u32, position: u64) -> bool {
        self.0.contains_key(&(epoch, position))
    }

    /// A content hash.
    pub fn hash(&self, purpose: &str, salt: Hash) -> Hash {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        hasher.update(&salt.0);
        for (&(epoch, position), &count) in self.0.iter() {
            hasher.update(&epoch.to_le_bytes());
            hasher.update(&position.to_le_bytes());
            hasher.update(&count.to_le_bytes());
        }
        Hash(*hasher.finalize().as_bytes())
    }

    /// What the ledger says that the current generation contains: each committed position once.
    /// `left_out` are those that were in quarantine when their epoch ended.
    pub fn committed(spec: &RunSpec, state: &State, left_out: &BTreeSet<(u32, u64)>) -> Self {
        let mut weights = Self::default();
        let Windows(windows) = spec.digest.windows;
        for epoch in 0..state.epoch.0 {
            (0..windows)
                .filter(|position| !left_out.contains(&(epoch, *position)))
                .for_each(|position| weights.add(epoch, position, 1));
        }
        for (span, ownership) in state.ledger.intervals() {
            if let Ownership::Committed(..) = ownership {
                let positions = span.start.0..span.end.0;
                positions.for_each(|position| weights.add(state.epoch.0, position, 1));
            }
        }
        weights
    }

    /// The first difference, for people.
    pub fn difference(&self, other: &Self) -> String {
        let mut rest = self.clone();
        rest.add_all(other, -1);
        let first = rest.0.iter().next();
        first.map_or("nothing".into(), |((epoch, position), count)| {
            format!("position {position} of epoch {epoch}: {count:+}")
        })
    }
}
