//! Checkpoints: everything a trainer needs to go on as if it had never stopped, in one safetensors file.
//!
//! Weights, both moments, the step counter, and a string of the caller's that this crate never looks
//! into (data cursor, resume token). Tensors carry a prefix before their Hugging Face name, so that a
//! checkpoint is not taken for an exported model or the other way round.

pub(crate) mod file;

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    config::ModelConfig,
    error::TrainError,
    layout::layout,
    trainer::{Moments, Trainer},
    weights::{Weights, append_tensor, split_flat},
};

/// Version of the file's contents; a reader refuses others by number.
const VERSION: u32 = 1;

/// The metadata key under which [`Header`] lies; only checkpoints have it.
const KEY: &str = "hansa_checkpoint";

/// Prefixes, in the sorted order in which the sections follow each other.
const FIRST_MOMENT: &str = "adamw.exp_avg.";
const SECOND_MOMENT: &str = "adamw.exp_avg_sq.";
const WEIGHTS: &str = "weights.";

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    config: ModelConfig,
    adam_step: u64,
    meta: Value,
}

/// Writes the trainer's state and `meta` durably (temporary name, fsync, rename, fsync of the
/// directory).
///
/// # Errors
/// Any failed file operation; an existing checkpoint at `path` is then untouched.
pub fn save_checkpoint(path: &Path, trainer: &Trainer, meta: &Value) -> Result<(), TrainError> {
    let header = Header {
        version: VERSION,
        config: trainer.config().clone(),
        adam_step: trainer.adam_step(),
        meta: meta.clone(),
    };
    let metadata = BTreeMap::from([(KEY.to_owned(), serde_json::json!(header).to_string())]);
    let moments = trainer.moments();
    let tensors = layout(trainer.config());
    let sections = [
        (FIRST_MOMENT, moments.exp_avg),
        (SECOND_MOMENT, moments.exp_avg_sq),
        (WEIGHTS, trainer.weights().as_slice()),
    ];
    let mut entries = Vec::with_capacity(3 * tensors.len());
    for (prefix, flat) in sections {
        entries.extend(
            split_flat(&tensors, flat).map(|(spec, values)| file::Entry {
                name: format!("{prefix}{}", spec.name),
                shape: spec.shape.clone(),
                values,
            }),
        );
    }
    file::write(path, &metadata, &entries)
}

/// Restores what [`save_checkpoint`] wrote into a trainer of the same model and returns `meta`.
///
/// # Errors
/// A file that is cut short, is not a checkpoint, has another version, or belongs to another model; the
/// trainer is then unchanged.
pub fn load_checkpoint(path: &Path, trainer: &mut Trainer) -> Result<Value, TrainError> {
    let bytes = file::map(path)?;
    let file = file::parse(path, "checkpoint", &bytes)?;
    let header = read_header(path, &bytes)?;
    if header.config != *trainer.config() {
        return Err(TrainError::Mismatch {
            what: path.display().to_string(),
            problem: format!("it is of the model {}", header.config.to_hf_json()),
        });
    }
    let tensors = layout(trainer.config());
    let read = |prefix: &str| -> Result<Vec<f32>, TrainError> {
        let mut flat = Vec::with_capacity(trainer.config().parameter_count());
        for spec in &tensors {
            append_tensor(path, &file, prefix, spec, &mut flat)?;
        }
        Ok(flat)
    };
    let (exp_avg, exp_avg_sq) = (read(FIRST_MOMENT)?, read(SECOND_MOMENT)?);
    let weights = Weights::from_flat(trainer.config(), read(WEIGHTS)?)?;
    trainer.set_weights(&weights)?;
    let moments = Moments {
        exp_avg: &exp_avg,
        exp_avg_sq: &exp_avg_sq,
    };
    trainer.set_moments(moments, header.adam_step)?;
    Ok(header.meta)
}

fn read_header(path: &Path, bytes: &[u8]) -> Result<Header, TrainError> {
    let bad = |problem: String| TrainError::BadFile {
        path: path.to_owned(),
        kind: "checkpoint",
        problem,
    };
    let (_, metadata) =
        safetensors::SafeTensors::read_metadata(bytes).map_err(|error| bad(error.to_string()))?;
    let text = (metadata.metadata().as_ref())
        .and_then(|entries| entries.get(KEY))
        .ok_or_else(|| bad(format!("its metadata has no {KEY}: it is some other file")))?;
    let value: Value = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
    let version = value.get("version").and_then(Value::as_u64);
    if version != Some(u64::from(VERSION)) {
        let found = version.map_or("unknown".to_owned(), |version| version.to_string());
        return Err(bad(format!(
            "its version is {found}, this program reads {VERSION}"
        )));
    }
    serde_json::from_value(value).map_err(|error| bad(error.to_string()))
}
