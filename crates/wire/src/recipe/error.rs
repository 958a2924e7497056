//! What is wrong with a recipe, said so that its author finds the line.

use crate::strict::FileError;

/// Why a recipe is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RecipeError {
    /// Its text is wrong.
    #[error(transparent)]
    File(#[from] FileError),
    /// The recipe and the corpus do not fit.
    #[error("the recipe does not fit its corpus: {key} is {recipe}, but {corpus}")]
    Corpus {
        /// The recipe's key.
        key: &'static str,
        /// Its value.
        recipe: String,
        /// What the corpus has, and what to do.
        corpus: String,
    },
    /// The corpus cannot be trained on.
    #[error("{key}: {problem}")]
    Spec {
        /// The recipe's key.
        key: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
}
