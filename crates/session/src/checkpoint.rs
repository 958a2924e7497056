//! What a checkpoint says beside weights and moments: the replica's state, and the manifest of the
//! contribution that was made of it, without which an announcement could not be repeated.

use hansa_protocol::replica::LocalState;
use hansa_store::{Manifest, ManifestJson};
use hansa_wire::Wire;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta {
    version: u32,
    state: <LocalState as Wire>::Json,
    payload: Option<ManifestJson>,
}

pub(crate) fn to_meta(state: &LocalState, payload: Option<&Manifest>) -> Value {
    let payload = payload.filter(|_| state.contribution.is_some());
    let meta = Meta {
        version: VERSION,
        state: state.to_json(),
        payload: payload.map(ManifestJson::from),
    };
    // A structure of numbers and strings cannot fail to serialise.
    serde_json::to_value(meta).unwrap_or_default()
}

/// The inverse; the error is for people.
pub(crate) fn from_meta(meta: Value) -> Result<(LocalState, Option<Manifest>), String> {
    let meta: Meta = serde_json::from_value(meta).map_err(|error| error.to_string())?;
    if meta.version != VERSION {
        let found = meta.version;
        return Err(format!(
            "its version is {found}, this hansa writes {VERSION}"
        ));
    }
    let state = LocalState::from_json(meta.state).map_err(|error| error.to_string())?;
    let payload = meta.payload.map(Manifest::try_from).transpose();
    let payload = payload.map_err(|error| error.to_string())?;
    let announced = state.contribution.as_ref().map(|parts| parts.payload);
    if announced != payload.as_ref().map(Manifest::hash) {
        return Err("its contribution and the manifest of it do not fit".to_owned());
    }
    Ok((state, payload))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hansa_base::{
        Bytes, Epoch, Generation, Hash, Incarnation, LeaseId, Steps, Tokens, Windows,
    };
    use hansa_protocol::{ContributionParts, GenerationInfo, Span};

    fn state(payload: Option<&Manifest>) -> LocalState {
        let base = GenerationInfo {
            generation: Generation(3),
            manifest: Hash([5; 32]),
            inner_step: Steps(30),
            tokens: Tokens(480),
            progress: 0.1 + 0.2,
            progress_per_round: 1.0 / 3.0,
        };
        let contribution = payload.map(|payload| ContributionParts {
            generation: base.generation,
            base: base.manifest,
            spans: vec![Span::new(4, 8)],
            tokens: Tokens(64),
            steps: Steps(2),
            payload: payload.hash(),
            bytes: Bytes(payload.total_bytes()),
        });
        LocalState {
            run: Hash([1; 32]),
            replica: "lumi/r0".parse().unwrap(),
            incarnation: Incarnation(7),
            base,
            lease: LeaseId(2),
            epoch: Epoch(0),
            front: Windows(4),
            cursor: Windows(8),
            steps: Steps(2),
            contribution,
        }
    }

    #[test]
    fn a_state_comes_back_with_the_manifest_of_its_contribution_only() {
        let payload = Manifest::of_bytes(b"pseudo-gradient", 4).unwrap();
        for contributed in [None, Some(&payload)] {
            let state = state(contributed);
            // A manifest of an earlier contribution may still be at hand.
            let text = to_meta(&state, Some(&payload)).to_string();
            let back = from_meta(serde_json::from_str(&text).unwrap()).unwrap();
            assert_eq!(back, (state, contributed.cloned()));
        }
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let payload = Manifest::of_bytes(b"pseudo-gradient", 4).unwrap();
        let mut meta = to_meta(&state(Some(&payload)), Some(&payload));
        meta["payload"] = Value::Null;
        assert!(from_meta(meta.clone()).unwrap_err().contains("do not fit"));
        meta["version"] = 2.into();
        assert!(from_meta(meta).unwrap_err().contains("its version is 2"));
        assert!(from_meta(Value::Null).is_err());
    }
}
