//! What is wrong with a profile, said so that its author finds the line.

use std::path::PathBuf;

use hansa_wire::strict::FileError;

/// Why a profile is refused.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("read the profile {}: {source}; `hansa site new` writes one", path.display())]
    Read {
        /// The profile's file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Its text is wrong.
    #[error(transparent)]
    File(#[from] FileError),
}
