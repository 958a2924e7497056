//! Everything that can go wrong between a text file and a window, each with where and what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::Split;

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why corpus work stopped. Lines and columns count from 1; for gzip inputs they are those of the
/// decompressed text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// A bare verb phrase, such as `read`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A gzip stream holds bytes that do not decompress, or a checksum that does not match.
    #[error("{}:{line}: broken gzip ({detail}); fetch the file again", path.display())]
    BrokenGzip {
        /// The input file.
        path: PathBuf,
        /// The line being read.
        line: u64,
        /// What the decompressor said.
        detail: String,
    },
    /// A gzip stream ends before its end.
    #[error(
        "{}:{line}: the gzip file ends too early, a download was probably cut short; fetch it again",
        path.display()
    )]
    TruncatedGzip {
        /// The input file.
        path: PathBuf,
        /// The line being read.
        line: u64,
    },
    /// A line is not one JSON value.
    #[error(
        "{}:{line}: bad JSON ({detail}); one JSON object per line is expected",
        path.display()
    )]
    BadJson {
        /// The input file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// What the parser said.
        detail: String,
    },
    /// A line's object lacks the text field.
    #[error(
        "{}:{line}: no field `{field}` (the fields are: {found}); name the field that holds the text",
        path.display()
    )]
    MissingField {
        /// The input file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The field that was looked for.
        field: String,
        /// The fields that the object has.
        found: String,
    },
    /// A line's text field holds something else than a string.
    #[error(
        "{}:{line}: field `{field}` is {kind}, not a string; name the field that holds the text",
        path.display()
    )]
    FieldNotAString {
        /// The input file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The text field.
        field: String,
        /// What it holds.
        kind: &'static str,
    },
    /// Text is not UTF-8.
    #[error("{}:{line}:{column}: invalid UTF-8; convert the file to UTF-8 first", path.display())]
    InvalidUtf8 {
        /// The input file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The first bad byte in the line.
        column: usize,
    },
    /// One document is too large to be held in memory.
    #[error(
        "{}:{line}: the document is larger than {limit} bytes; split it into smaller ones",
        path.display()
    )]
    DocumentTooLong {
        /// The input file.
        path: PathBuf,
        /// The line at which the limit was passed.
        line: u64,
        /// The limit in bytes.
        limit: usize,
    },
    /// The input is of a kind that is not read.
    #[error(
        "{}: {what} is not read; unpack or convert it to JSON lines (.jsonl, .json.gz) or text first",
        path.display()
    )]
    UnsupportedInput {
        /// The input file.
        path: PathBuf,
        /// The kind of file.
        what: String,
    },
    /// No input file was named.
    #[error("no input files; name at least one")]
    NoInputs,
    /// The inputs hold no text at all.
    #[error("the inputs hold no documents: every file is empty; name files with text")]
    NoDocuments,
    /// A split is too short for a single window.
    #[error(
        "the {split} split has {tokens} tokens and one window needs {needed}; {}",
        too_few_hint(*split)
    )]
    TooFewTokens {
        /// Which split.
        split: Split,
        /// Its tokens.
        tokens: u64,
        /// The tokens of one window.
        needed: u64,
    },
    /// An option is out of range.
    #[error("option `{name}` is {value}: it must be {expected}")]
    BadOption {
        /// The option.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A `tokenizer.json` cannot be used.
    #[error("{}: not a usable tokenizer ({detail})", path.display())]
    BadTokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// A tokenizer lacks the end-of-document token.
    #[error(
        "{}: the tokenizer has no token `{wanted}` to end documents with; name one of its own \
         (its special tokens are: {specials})",
        path.display()
    )]
    NoEndOfDocument {
        /// The file.
        path: PathBuf,
        /// The token that was looked for.
        wanted: String,
        /// The special tokens that it has.
        specials: String,
    },
    /// Something is already there.
    #[error("{} already exists; remove it or choose another path", path.display())]
    OutputExists {
        /// The path.
        path: PathBuf,
    },
    /// Another process is building there.
    #[error("{} is being written by another process; wait for it or choose another path", path.display())]
    BuildInProgress {
        /// The directory of the unfinished build.
        path: PathBuf,
    },
    /// The directory for unfinished work holds somebody else's files.
    #[error("{} is in the way and was not made by a corpus build; move it away", path.display())]
    PartialInTheWay {
        /// The directory.
        path: PathBuf,
    },
    /// A directory holds no manifest.
    #[error("{} is not a corpus: it has no manifest.json{}", path.display(), hint)]
    NotACorpus {
        /// The directory.
        path: PathBuf,
        /// What to do, or empty.
        hint: &'static str,
    },
    /// A manifest cannot be understood.
    #[error("{}: bad manifest ({detail}); copy the corpus again or rebuild it", path.display())]
    BadManifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// A manifest of another format version.
    #[error(
        "{}: corpus format {found}, this version of Hansa reads {expected}; rebuild the corpus or \
         use the version that built it",
        path.display()
    )]
    ManifestVersion {
        /// The manifest.
        path: PathBuf,
        /// The version found.
        found: u64,
        /// The version that is read.
        expected: u32,
    },
    /// Files of a corpus are not what its manifest says.
    #[error("{} does not match its manifest: {}; copy the damaged files again or rebuild it",
        dir.display(), list(damage))]
    Damaged {
        /// The corpus.
        dir: PathBuf,
        /// Every file that differs.
        damage: Vec<Damage>,
    },
    /// A window beyond the end was asked for.
    #[error("the {split} split has {count} windows, window {index} was asked for")]
    NoSuchWindow {
        /// Which split.
        split: Split,
        /// The index asked for.
        index: u64,
        /// The windows there are.
        count: u64,
    },
    /// A window holds a token that the tokenizer does not have.
    #[error(
        "window {index} of the {split} split holds token {token}, the vocabulary ends at {vocab_size}: \
         the shard is damaged; verify the corpus"
    )]
    TokenOutOfRange {
        /// Which split.
        split: Split,
        /// The window.
        index: u64,
        /// The impossible token.
        token: u32,
        /// Entries of the vocabulary.
        vocab_size: u32,
    },
    /// The corpus was built without a held-out split.
    #[error("the corpus has no held-out windows; build it with a held-out fraction above 0")]
    NoHeldOut,
    /// The worker threads could not be started.
    #[error("cannot start worker threads: {0}")]
    Threads(String),
}

/// How one file differs from the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// The file is not there.
    Missing {
        /// Its name in the corpus directory.
        file: String,
    },
    /// The file has another length.
    Size {
        /// Its name in the corpus directory.
        file: String,
        /// Its length in bytes.
        found: u64,
        /// The length in the manifest.
        expected: u64,
    },
    /// The file has the right length and another content.
    Content {
        /// Its name in the corpus directory.
        file: String,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { file } => write!(f, "{file} is missing"),
            Self::Size {
                file,
                found,
                expected,
            } => write!(f, "{file} has {found} bytes instead of {expected}"),
            Self::Content { file } => write!(f, "the content of {file} has changed"),
        }
    }
}

impl Error {
    /// For `map_err`: an I/O error with what was done to which path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

fn too_few_hint(split: Split) -> &'static str {
    match split {
        Split::Train => "add text, or lower seq_len or the held-out fraction",
        Split::HeldOut => "add text, raise the held-out fraction or lower seq_len",
    }
}

fn list(damage: &[Damage]) -> String {
    const SHOWN: usize = 5;
    let mut parts: Vec<String> = damage.iter().take(SHOWN).map(Damage::to_string).collect();
    if damage.len() > SHOWN {
        parts.push(format!("and {} more files", damage.len() - SHOWN));
    }
    parts.join(", ")
}
