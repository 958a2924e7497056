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
