//! A model's weights: drawn from a seed, or read from and written to Hugging Face safetensors.

use std::{collections::BTreeMap, path::Path};

use safetensors::SafeTensors;

use crate::{
    checkpoint::file,
    config::ModelConfig,
    error::TrainError,
    layout::{TensorSpec, layout},
    random::SplitMix64,
};

/// One flat `f32` buffer and the tensors it holds, in [`layout`] order.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    tensors: Vec<TensorSpec>,
    values: Vec<f32>,
}

impl Weights {
    /// Draws every matrix from `normal(0, initializer_range)` and sets every norm to one.
    ///
    /// Bit for bit the same on every machine: tensor `i` of the layout takes stream `i` of the seed, in
    /// row-major order, each `f64` draw times the range rounded once to `f32`.
    ///
    /// # Errors
    /// A configuration that does not validate.
    pub fn init(config: &ModelConfig, seed: u64) -> Result<Weights, TrainError> {
        config.validate()?;
        let tensors = layout(config);
        let mut values = Vec::with_capacity(config.parameter_count());
        for (stream, tensor) in tensors.iter().enumerate() {
            if tensor.shape.len() == 1 {
                values.resize(values.len() + tensor.len(), 1.0);
                continue;
            }
            let mut generator = SplitMix64::new(seed, stream as u64);
            let draw = || (generator.normal() * config.initializer_range) as f32;
            values.extend(std::iter::repeat_with(draw).take(tensor.len()));
        }
        Ok(Weights { tensors, values })
    }

    /// Takes a flat buffer in [`layout`] order.
    ///
    /// # Errors
    /// A configuration that does not validate, or a buffer of another length.
    pub fn from_flat(config: &ModelConfig, values: Vec<f32>) -> Result<Weights, TrainError> {
        config.validate()?;
        let expected = config.parameter_count();
        if values.len() != expected {
            return Err(TrainError::Mismatch {
                what: "the flat buffer".to_owned(),
                problem: format!("it holds {} values, the model {expected}", values.len()),
            });
        }
        Ok(Weights {
            tensors: layout(config),
            values,
        })
    }

    /// Reads a safetensors file with Hugging Face names; `F32` and `BF16` tensors are accepted.
    ///
    /// A tied model's file may repeat the embedding as `lm_head.weight`; that copy is passed over.
    ///
    /// # Errors
    /// An unreadable or damaged file; a tensor that is missing, unknown, or of another shape or type.
    pub fn load_safetensors(path: &Path, config: &ModelConfig) -> Result<Weights, TrainError> {
        config.validate()?;
        let bytes = file::map(path)?;
        let file = file::parse(path, "safetensors file", &bytes)?;
        let tensors = layout(config);
        let mut values = Vec::with_capacity(config.parameter_count());
        for tensor in &tensors {
            append_tensor(path, &file, "", tensor, &mut values)?;
        }
        let tied_copy = |name: &str| config.tie_word_embeddings && name == "lm_head.weight";
        for name in file.names() {
            if !tied_copy(name) && !tensors.iter().any(|tensor| tensor.name == name) {
                return Err(mismatch(path, format!("the model has no tensor {name}")));
            }
        }
        Ok(Weights { tensors, values })
    }

    /// Writes `F32` tensors under their Hugging Face names, durably: a temporary file in the same
    /// directory is fsynced and renamed.
    ///
    /// `metadata` goes into the header beside `format = pt`, which `transformers` asks for. The same
    /// weights and metadata give the same bytes.
    ///
    /// # Errors
    /// Any failed file operation; an existing file at `path` is then untouched.
    pub fn save_safetensors(
        &self,
        path: &Path,
        metadata: &BTreeMap<String, String>,
    ) -> Result<(), TrainError> {
        let mut metadata = metadata.clone();
        metadata
            .entry("format".to_owned())
            .or_insert_with(|| "pt".to_owned());
        let tensors = self.iter().map(|(spec, values)| file::Entry {
            name: spec.name.clone(),
            shape: spec.shape.clone(),
            values,
        });
        file::write(path, &metadata, &tensors.collect::<Vec<_>>())
    }

    /// All values, tensor after tensor in [`layout`] order.
    pub fn as_slice(&self) -> &[f32] {
        &self.values
    }

    /// All values, to write to.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// The flat buffer itself.
    pub fn into_flat(self) -> Vec<f32> {
        self.values
    }

    /// The tensors, in the order in which their values follow each other.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// The values of one tensor, row-major, if the model has it.
    pub fn tensor(&self, name: &str) -> Option<&[f32]> {
        self.iter()
            .find(|(spec, _)| spec.name == name)
            .map(|(_, values)| values)
    }

    /// Each tensor with its values.
    pub fn iter(&self) -> impl Iterator<Item = (&TensorSpec, &[f32])> {
        split_flat(&self.tensors, &self.values)
    }
}

/// Cuts a flat buffer into the tensors of its layout.
pub(crate) fn split_flat<'a>(
    tensors: &'a [TensorSpec],
    mut flat: &'a [f32],
) -> impl Iterator<Item = (&'a TensorSpec, &'a [f32])> {
    tensors.iter().map(move |spec| {
        let (values, rest) = flat.split_at(spec.len());
        flat = rest;
        (spec, values)
    })
}

/// Appends the tensor `prefix + spec.name` of a file, converted to `f32`.
pub(crate) fn append_tensor(
    path: &Path,
    file: &SafeTensors,
    prefix: &str,
    spec: &TensorSpec,
    values: &mut Vec<f32>,
) -> Result<(), TrainError> {
    let name = format!("{prefix}{}", spec.name);
    let Ok(view) = file.tensor(&name) else {
        return Err(mismatch(path, format!("tensor {name} is missing")));
    };
    if view.shape() != spec.shape {
        let (has, needs) = (view.shape(), &spec.shape);
        return Err(mismatch(
            path,
            format!("{name} has shape {has:?}, the model {needs:?}"),
        ));
    }
    match view.dtype() {
        safetensors::Dtype::F32 => {
            let (words, _) = view.data().as_chunks::<4>();
            values.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
        }
        safetensors::Dtype::BF16 => {
            let (words, _) = view.data().as_chunks::<2>();
            let widen = |word: &[u8; 2]| u32::from(u16::from_le_bytes(*word)) << 16;
            values.extend(words.iter().map(|word| f32::from_bits(widen(word))));
        }
        other => {
            return Err(mismatch(
                path,
                format!("{name} is {other:?}; F32 and BF16 are read"),
            ));
        }
    }
    Ok(())
}

fn mismatch(path: &Path, problem: String) -> TrainError {
    TrainError::Mismatch {
        what: path.display().to_string(),
        problem,
    }
}
