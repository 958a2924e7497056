//! What two processes must agree on before they may train together: the order of positions and the
//! corpus behind them.

use hansa_base::{Hash, Windows};

/// One shard of the corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardIdentity {
    /// Its file name.
    pub name: String,
    /// BLAKE3 of its bytes.
    pub hash: Hash,
}

/// The fields of the digest. Registration sends them, so that a refusal names the first that
/// differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestFields {
    /// Version of the corpus format.
    pub format_version: u32,
    /// `N`: windows to train.
    pub windows: Windows,
    /// `K`: windows of a block.
    pub block: Windows,
    /// `s`: the permutation's seed.
    pub seed: u64,
    /// The rule that gives each epoch its permutation.
    pub epoch_rule: String,
    /// [`crate::BlockSpace::check_value`] of epoch 0.
    pub permutation_check: u64,
    /// BLAKE3 of the tokeniser's file.
    pub tokenizer: Hash,
    /// Type of a token on disk.
    pub dtype: String,
    /// Target tokens of a window.
    pub seq_len: u32,
    /// The shards of training windows, in order.
    pub shards: Vec<ShardIdentity>,
    /// The shards of held-out windows, in order.
    pub held_out: Vec<ShardIdentity>,
}

/// The first field in which two digests differ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} differs: the run has {ours}, this replica has {theirs}")]
pub struct Mismatch {
    /// The field.
    pub field: String,
    /// Its value at the coordinator.
    pub ours: String,
    /// Its value at the replica.
    pub theirs: String,
}

impl DigestFields {
    /// One hash over all fields, to name a run's data in a line.
    #[must_use]
    pub fn digest(&self) -> Hash {
        let mut hasher = blake3::Hasher::new_derive_key("hansa 1 block space and corpus");
        for (name, value) in self.named() {
            for text in [&name, &value] {
                hasher.update(&(text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
        }
        Hash(*hasher.finalize().as_bytes())
    }

    /// The first difference to what a replica sent, if there is one.
    #[must_use]
    pub fn first_difference(&self, theirs: &Self) -> Option<Mismatch> {
        let (ours, theirs) = (self.named(), theirs.named());
        let pair = ours.iter().zip(&theirs).find(|(a, b)| a != b);
        pair.map(|((field, ours), (_, theirs))| Mismatch {
            field: field.clone(),
            ours: ours.clone(),
            theirs: theirs.clone(),
        })
    }

    fn named(&self) -> Vec<(String, String)> {
        let field = |name: &str, value: &dyn std::fmt::Display| (name.into(), value.to_string());
        let mut all = vec![
            field("corpus format", &self.format_version),
            field("tokenizer", &self.tokenizer),
            field("seq_len", &self.seq_len),
            field("token dtype", &self.dtype),
            field("number of windows", &self.windows),
            field("block size", &self.block),
            field("seed", &self.seed),
            field("epoch rule", &self.epoch_rule),
            field("permutation", &self.permutation_check),
            field("number of shards", &self.shards.len()),
            field("number of held-out shards", &self.held_out.len()),
        ];
        let shards = self.shards.iter().chain(&self.held_out);
        all.extend(shards.map(|shard| (format!("shard {}", shard.name), shard.hash.to_string())));
        all
    }
}
