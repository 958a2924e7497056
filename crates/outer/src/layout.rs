//! Which tensors a model has and where each lies in the flat array of all its elements.
//!
//! Think of the model as one long line of numbers: the tensors one behind another, sorted by name.
//! Master weights, momentum, models and contributions of a run all share that line, so the merge
//! can walk it in chunks without knowing where tensors begin. A [`Layout`] is the legend of the
//! line; it holds no values and knows no dtype (see [`crate::Header`]).

use std::collections::BTreeSet;
use std::ops::Range;

use thiserror::Error;

/// Longest tensor name accepted, in bytes.
const MAX_NAME_BYTES: usize = 512;
/// Most dimensions accepted.
const MAX_RANK: usize = 16;

/// Name and shape of one tensor, as in a Hugging Face model: `model.norm.weight`, `[hidden]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The tensor's name, unique in its layout.
    pub name: String,
    /// Its dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
}

/// Why tensors do not form a layout, or not the expected one. Always names the tensor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// There is nothing to lay out.
    #[error("a model needs at least one tensor, found none")]
    NoTensors,
    /// The name is empty, too long, or reserved by the file format.
    #[error("tensor name {name:?} is {reason}: rename the tensor")]
    BadName {
        /// The name, cut to a printable length.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Two tensors share a name.
    #[error("tensor {name:?} appears twice: names must be unique")]
    Duplicate {
        /// The shared name.
        name: String,
    },
    /// The shape has too many dimensions, or more elements than a file can hold.
    #[error("tensor {name:?} is too large: {reason}")]
    TooLarge {
        /// The tensor.
        name: String,
        /// Which bound it breaks.
        reason: &'static str,
    },
    /// The run's model has a tensor that this one lacks.
    #[error("tensor {name:?} is missing: export every tensor of the run's model")]
    Missing {
        /// The tensor that is not there.
        name: String,
    },
    /// This model has a tensor that the run's model lacks.
    #[error("tensor {name:?} is not part of the run's model: export only the model's own tensors")]
    Unexpected {
        /// The tensor that should not be there.
        name: String,
    },
    /// Shapes differ.
    #[error("tensor {name:?} has shape {found:?}, the run's model has {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape in the run's model.
        expected: Vec<usize>,
        /// Its shape here.
        found: Vec<usize>,
    },
    /// Same tensors, other order: a flat merge would mix them.
    #[error("tensor {found:?} lies where {expected:?} belongs: write tensors sorted by name")]
    Order {
        /// The tensor that belongs there.
        expected: String,
        /// The tensor that lies there.
        found: String,
    },
}

/// The tensors of a model in file order, with each one's range in the flat array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    tensors: Vec<TensorSpec>,
    /// `tensors.len() + 1` ascending element indices: tensor `i` is `starts[i]..starts[i + 1]`.
    starts: Vec<u64>,
}

impl Layout {
    /// Lays `tensors` out sorted by name (by bytes), which is the order of every file of a run.
    ///
    /// # Errors
    /// If there are none, or a name or shape cannot stand in a file.
    pub fn new(tensors: impl IntoIterator<Item = TensorSpec>) -> Result<Layout, LayoutError> {
        let mut tensors: Vec<TensorSpec> = tensors.into_iter().collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        Layout::in_order(tensors)
    }

    /// Keeps the order given: that of an existing file.
    pub(crate) fn in_order(tensors: Vec<TensorSpec>) -> Result<Layout, LayoutError> {
        if tensors.is_empty() {
            return Err(LayoutError::NoTensors);
        }
        let mut names = BTreeSet::new();
        let mut starts = Vec::with_capacity(tensors.len() + 1);
        let mut end = 0u64;
        starts.push(end);
        for tensor in &tensors {
            check_name(&tensor.name)?;
            if !names.insert(tensor.name.as_str()) {
                return Err(LayoutError::Duplicate {
                    name: tensor.name.clone(),
                });
            }
            end = elements_of(tensor)?
                .checked_add(end)
                // Byte offsets are at most four times this and must stay far from overflow.
                .filter(|end| *end <= u64::MAX >> 8)
                .ok_or_else(|| too_large(tensor, "the model's element count overflows"))?;
            starts.push(end);
        }
        drop(names);
        Ok(Layout { tensors, starts })
    }

    /// The tensors in file order.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Elements of all tensors together.
    pub fn elements(&self) -> u64 {
        self.starts[self.tensors.len()]
    }

    /// Each tensor with its range in the flat array, in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&TensorSpec, Range<u64>)> {
        let ranges = self.starts.windows(2).map(|pair| pair[0]..pair[1]);
        self.tensors.iter().zip(ranges)
    }

    /// The range of one tensor in the flat array. Searches linearly: meant for set-up, not loops.
    pub fn range(&self, name: &str) -> Option<Range<u64>> {
        self.iter()
            .find(|(tensor, _)| tensor.name == name)
            .map(|(_, range)| range)
    }

    /// The tensor that element `index` of the flat array belongs to, and the index within it.
    pub fn tensor_at(&self, index: u64) -> Option<(&TensorSpec, u64)> {
        // The last tensor that starts at or before `index`; empty tensors before it share its start.
        let after = self.starts.partition_point(|start| *start <= index);
        let tensor = self.tensors.get(after.checked_sub(1)?)?;
        Some((tensor, index - self.starts[after - 1]))
    }

    /// Checks that this layout has exactly the tensors of `expected`, in the same order.
    ///
    /// # Errors
    /// The first tensor that is missing, unexpected, of another shape or out of order.
    pub fn check_same(&self, expected: &Layout) -> Result<(), LayoutError> {
        if self == expected {
            return Ok(());
        }
        let names = |layout: &Layout| -> BTreeSet<String> {
            layout.tensors.iter().map(|t| t.name.clone()).collect()
        };
        let (here, there) = (names(self), names(expected));
        if let Some(name) = there.difference(&here).next() {
            return Err(LayoutError::Missing { name: name.clone() });
        }
        if let Some(name) = here.difference(&there).next() {
            return Err(LayoutError::Unexpected { name: name.clone() });
        }
        for (found, wanted) in self.tensors.iter().zip(&expected.tensors) {
            if found.name != wanted.name {
                return Err(LayoutError::Order {
                    expected: wanted.name.clone(),
                    found: found.name.clone(),
                });
            }
            if found.shape != wanted.shape {
                return Err(LayoutError::Shape {
                    name: found.name.clone(),
                    expected: wanted.shape.clone(),
                    found: found.shape.clone(),
                });
            }
        }
        Ok(())
    }
}

/// Elements of one tensor: the product of its dimensions, 1 for a scalar.
pub(crate) fn elements_of(tensor: &TensorSpec) -> Result<u64, LayoutError> {
    if tensor.shape.len() > MAX_RANK {
        return Err(too_large(tensor, "more than 16 dimensions"));
    }
    tensor
        .shape
        .iter()
        .try_fold(1u64, |product, dim| product.checked_mul(*dim as u64))
        .ok_or_else(|| too_large(tensor, "its element count overflows"))
}

fn check_name(name: &str) -> Result<(), LayoutError> {
    let reason = match name {
        "" => "empty",
        "__metadata__" => "reserved by the safetensors format",
        name if name.len() > MAX_NAME_BYTES => "longer than 512 bytes",
        _ => return Ok(()),
    };
    Err(LayoutError::BadName {
        name: name.chars().take(64).collect(),
        reason,
    })
}

fn too_large(tensor: &TensorSpec, reason: &'static str) -> LayoutError {
    LayoutError::TooLarge {
        name: tensor.name.clone(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn layout(tensors: &[(&str, &[usize])]) -> Layout {
        Layout::new(specs(tensors)).unwrap()
    }

    fn specs(tensors: &[(&str, &[usize])]) -> Vec<TensorSpec> {
        tensors
            .iter()
            .map(|(name, shape)| TensorSpec {
                name: (*name).to_owned(),
                shape: shape.to_vec(),
            })
            .collect()
    }

    #[test]
    fn tensors_are_sorted_and_every_element_knows_its_tensor() {
        let layout = layout(&[("c", &[2, 3]), ("a", &[]), ("b", &[0]), ("d", &[1])]);
        assert_eq!(layout.elements(), 8);
        assert_eq!(layout.range("a"), Some(0..1));
        assert_eq!(layout.range("b"), Some(1..1));
        assert_eq!(layout.range("c"), Some(1..7));
        assert_eq!(layout.range("e"), None);
        let at = |index| layout.tensor_at(index).map(|(t, i)| (t.name.as_str(), i));
        assert_eq!(at(0), Some(("a", 0)));
        assert_eq!(at(1), Some(("c", 0)));
        assert_eq!(at(6), Some(("c", 5)));
        assert_eq!(at(7), Some(("d", 0)));
        assert_eq!(at(8), None);
    }

    #[test]
    fn differences_name_the_tensor() {
        let run = layout(&[("a", &[2]), ("b", &[3])]);
        let check = |tensors: Vec<TensorSpec>| {
            Layout::in_order(tensors)
                .unwrap()
                .check_same(&run)
                .unwrap_err()
                .to_string()
        };
        assert!(check(specs(&[("a", &[2])])).contains("\"b\" is missing"));
        let extra = check(specs(&[("a", &[2]), ("b", &[3]), ("z", &[1])]));
        assert!(extra.contains("\"z\" is not part of the run's model"));
        assert!(check(specs(&[("a", &[2]), ("b", &[1, 3])])).contains("\"b\" has shape [1, 3]"));
        assert!(check(specs(&[("b", &[3]), ("a", &[2])])).contains("\"b\" lies where \"a\""));
    }

    #[test]
    fn impossible_tensors_are_refused() {
        let refuse = |tensors: &[(&str, &[usize])]| Layout::new(specs(tensors)).unwrap_err();
        assert_eq!(refuse(&[]), LayoutError::NoTensors);
        assert!(matches!(
            refuse(&[("a", &[1]), ("a", &[2])]),
            LayoutError::Duplicate { name } if name == "a"
        ));
        for shape in [&[usize::MAX, 2][..], &[usize::MAX], &[1; 17]] {
            assert!(matches!(
                refuse(&[("a", shape)]),
                LayoutError::TooLarge { name, .. } if name == "a"
            ));
        }
        for name in ["", "__metadata__", &"x".repeat(513)] {
            assert!(matches!(
                refuse(&[(name, &[1])]),
                LayoutError::BadName { .. }
            ));
        }
    }
}
