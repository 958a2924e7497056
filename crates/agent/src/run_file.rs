//! What a trainer must know before it can build its model: one JSON file that every rank can read.

use std::path::{Path, PathBuf};

use hansa_corpus::Corpus;
use hansa_outer::Layout;
use hansa_wire::Recipe;
use serde::Serialize;
use serde_json::Value;

use crate::protocol::{PROTOCOL_VERSION, TensorEntry};

/// The content of `run.json`; also sent with the welcome.
#[derive(Clone, Debug, Serialize)]
pub struct RunFile {
    /// The protocol's version.
    pub protocol: u32,
    /// The run's name.
    pub name: String,
    /// The replica, `SITE/NAME`.
    pub replica: String,
    /// The corpus directory at this site.
    pub corpus: PathBuf,
    /// Target tokens of a window.
    pub seq_len: usize,
    /// The whole recipe, every default written out.
    pub recipe: Value,
    /// The run's tensors, in the order of its files.
    pub tensors: Vec<TensorEntry>,
}

impl RunFile {
    /// Of a run at this site.
    ///
    /// # Errors
    /// A recipe that cannot be written as JSON.
    pub fn new(
        recipe: &Recipe,
        corpus: &Corpus,
        corpus_dir: &Path,
        layout: &Layout,
        replica: String,
    ) -> Result<Self, serde_json::Error> {
        let tensors = layout.tensors().iter().map(|tensor| TensorEntry {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
        });
        Ok(Self {
            protocol: PROTOCOL_VERSION,
            name: recipe.name.clone(),
            replica,
            corpus: corpus_dir.to_owned(),
            seq_len: corpus.seq_len(),
            recipe: serde_json::to_value(recipe)?,
            tensors: tensors.collect(),
        })
    }
}

/// Says how a trainer's tensors differ from the run's, by the first difference.
pub(crate) fn first_difference(run: &Layout, theirs: &[TensorEntry]) -> Option<String> {
    let find = |name: &str| theirs.iter().find(|tensor| tensor.name == name);
    for tensor in run.tensors() {
        match find(&tensor.name) {
            None => return Some(format!("it has no tensor {}", tensor.name)),
            Some(found) if found.shape != tensor.shape => {
                let (name, theirs, ours) = (&tensor.name, &found.shape, &tensor.shape);
                return Some(format!("its {name} is {theirs:?}, the run's is {ours:?}"));
            }
            Some(_) => {}
        }
    }
    let known = |name: &str| run.tensors().iter().any(|tensor| tensor.name == name);
    let extra = theirs.iter().find(|tensor| !known(&tensor.name));
    extra
        .map(|tensor| format!("it has a tensor {} that the run does not have", tensor.name))
        .or_else(|| {
            (theirs.len() != run.tensors().len()).then(|| "it names a tensor twice".to_owned())
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hansa_outer::TensorSpec;

    fn entry(name: &str, shape: &[usize]) -> TensorEntry {
        TensorEntry {
            name: name.to_owned(),
            shape: shape.to_vec(),
        }
    }

    #[test]
    fn the_first_difference_names_tensor_and_shapes() {
        let spec = |name: &str, shape: &[usize]| TensorSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
        };
        let run = Layout::new([spec("a", &[2, 3]), spec("b", &[4])]).unwrap();
        let same = [entry("b", &[4]), entry("a", &[2, 3])];
        assert_eq!(first_difference(&run, &same), None);
        let says = |theirs: &[TensorEntry]| first_difference(&run, theirs).unwrap();
        assert!(says(&same[..1]).contains("no tensor a"));
        assert!(says(&[entry("a", &[3, 2]), entry("b", &[4])]).contains("[3, 2]"));
        let more = [same.as_slice(), &[entry("c", &[1])]].concat();
        assert!(says(&more).contains("tensor c"));
        let twice = [same.as_slice(), &same[..1]].concat();
        assert!(says(&twice).contains("twice"));
    }
}
