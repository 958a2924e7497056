//! The manifest of a contribution's bytes, as it travels with the announcement.

use hansa_base::{Bytes, Hash};
use serde::{Deserialize, Serialize};

use crate::{BadValue, Wire};

/// What a blob consists of: the same JSON as the store's and the transfer's manifest, which check it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PayloadManifest {
    /// Version of the manifest's layout.
    pub format_version: u32,
    /// The blob's size.
    pub total_bytes: u64,
    /// The size of every chunk but the last.
    pub chunk_bytes: u64,
    /// One BLAKE3 per chunk, in order, hexadecimal.
    pub chunks: Vec<String>,
}

impl PayloadManifest {
    /// The blob's size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.total_bytes)
    }
}

impl Wire for PayloadManifest {
    type Json = Self;
    fn to_json(&self) -> Self {
        self.clone()
    }
    fn from_json(json: Self) -> Result<Self, BadValue> {
        for chunk in &json.chunks {
            chunk.parse::<Hash>().map_err(BadValue::new)?;
        }
        Ok(json)
    }
}
