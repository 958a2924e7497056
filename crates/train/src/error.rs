//! What can go wrong in the trainer, in words a user can act on.

use std::path::PathBuf;

/// An error of the embedded trainer. After one, the trainer's weights and moments are unchanged.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A model, optimiser or schedule setting that cannot work.
    #[error("{field} is {value}: {problem}")]
    Config {
        /// The setting's name, as in `config.json` or the recipe.
        field: &'static str,
        /// Its value as given.
        value: String,
        /// What it must be instead.
        problem: String,
    },
    /// A training or evaluation call without any window.
    #[error("no windows were given: a step needs at least one")]
    NoWindows,
    /// A window of the wrong length.
    #[error(
        "window {window} has {actual} tokens, but seq_len + 1 = {expected} are needed: build the corpus with this model's seq_len"
    )]
    WindowLength {
        /// Index of the window in the call.
        window: usize,
        /// Tokens it has.
        actual: usize,
        /// Tokens it must have.
        expected: usize,
    },
    /// A token id that the embedding has no row for.
    #[error(
        "window {window} holds token id {token} at offset {offset}, but vocab_size is {vocab_size}: the corpus was built with another tokenizer, or vocab_size is too small"
    )]
    TokenOutOfRange {
        /// Index of the window in the call.
        window: usize,
        /// Offset of the token in it.
        offset: usize,
        /// The offending id.
        token: u32,
        /// The model's vocabulary size.
        vocab_size: usize,
    },
    /// A NaN or an infinity; nothing was applied.
    #[error(
        "{what} of {tensor} is not finite: the step was not applied; lower the learning rate or inspect the windows of this step"
    )]
    NonFinite {
        /// `"loss"`, `"gradient"` or `"weight"`.
        what: &'static str,
        /// The first tensor, in layout order, that holds such a value.
        tensor: String,
    },
    /// A buffer, tensor or file whose contents do not fit the model.
    #[error("{what} does not fit the model: {problem}")]
    Mismatch {
        /// What was given: a file or a buffer.
        what: String,
        /// The first difference found.
        problem: String,
    },
    /// A file that is not what its name claims.
    #[error("{} is not a usable {kind}: {problem}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What it was read as.
        kind: &'static str,
        /// Why it cannot be used.
        problem: String,
    },
    /// The operating system refused a file operation.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// Bare verb phrase: what was attempted.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The thread pool could not be started.
    #[error("start the trainer's thread pool: {0}")]
    ThreadPool(#[from] rayon::ThreadPoolBuildError),
}

impl TrainError {
    /// Attaches the path and the attempted action to an I/O error.
    pub(crate) fn io(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(std::io::Error) -> TrainError {
        let path = path.to_owned();
        move |source| TrainError::Io {
            action,
            path,
            source,
        }
    }
}
