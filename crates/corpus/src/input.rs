//! Files to documents: JSON lines, C4's json.gz, plain text; gzip is recognised by its content.
//!
//! Reads forwards in bounded memory, hashing the raw bytes on the way. Decides where documents
//! begin and end, never what their tokens are.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use hansa_base::Hash;

use crate::{Error, Result};

/// No line and no document may be larger: what one of them costs in memory.
const MAX_DOCUMENT_BYTES: usize = 64 << 20;
const READ_BUFFER_BYTES: usize = 256 << 10;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How input files become documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputOptions {
    /// The JSON field that holds a document's text. C4 and most others: `text`.
    pub field: String,
    /// Plain-text files are cut into documents of at most this many bytes, after the last line end
    /// that fits (a longer line is cut between characters), so that a held-out split by documents
    /// works for a single long file. `None`: one file is one document.
    pub text_document_bytes: Option<usize>,
}

impl Default for InputOptions {
    fn default() -> Self {
        Self {
            field: "text".to_owned(),
            text_document_bytes: Some(16 << 10),
        }
    }
}

impl InputOptions {
    pub(crate) fn check(&self) -> Result<()> {
        match self.text_document_bytes {
            // Four bytes hold any character, so that every cut makes progress.
            Some(bytes) if !(4..=MAX_DOCUMENT_BYTES).contains(&bytes) => Err(Error::BadOption {
                name: "text_document_bytes",
                value: bytes.to_string(),
                expected: "from 4 to 67108864",
            }),
            _ => Ok(()),
        }
    }
}

/// An input file as it was when the work began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputFile {
    pub path: PathBuf,
    /// The last part of the path: what manifests keep, equal on every machine.
    pub name: String,
    pub bytes: u64,
    pub modified_ns: u128,
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    JsonLines,
    Text,
}

/// A document before its text is taken out of it (parsing is the workers' part).
#[derive(Debug)]
pub(crate) struct RawDocument {
    /// Index into the inputs.
    pub input: usize,
    /// Index among the documents of its input.
    pub index: u64,
    /// The line it begins on, from 1.
    line: u64,
    format: Format,
    bytes: Vec<u8>,
}

impl RawDocument {
    /// Bytes held in memory.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The document's text; `path` is its input's.
    pub fn text<'a>(&'a self, path: &Path, field: &str) -> Result<Cow<'a, str>> {
        let text = utf8(&self.bytes, path, self.line)?;
        match self.format {
            Format::Text => Ok(Cow::Borrowed(text)),
            Format::JsonLines => json_field(text, field, path, self.line).map(Cow::Owned),
        }
    }
}

/// Looks at every input before any work is done, so that a wrong name is noticed at once.
pub(crate) fn stat_inputs(paths: &[PathBuf]) -> Result<Vec<InputFile>> {
    if paths.is_empty() {
        return Err(Error::NoInputs);
    }
    paths.iter().map(|path| stat_input(path)).collect()
}

fn stat_input(path: &Path) -> Result<InputFile> {
    let meta = std::fs::metadata(path).map_err(Error::io("read", path))?;
    let unsupported = |what: &str| Error::UnsupportedInput {
        path: path.to_owned(),
        what: what.to_owned(),
    };
    if !meta.is_file() {
        return Err(unsupported("a directory"));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let lower = name.to_lowercase();
    let bare = lower.strip_suffix(".gz").unwrap_or(&lower);
    let format = match bare.rsplit_once('.').map(|(_, extension)| extension) {
        Some("jsonl" | "json" | "ndjson") => Format::JsonLines,
        Some(
            other @ ("parquet" | "arrow" | "tar" | "tgz" | "zip" | "zst" | "bz2" | "xz" | "7z"),
        ) => return Err(unsupported(&format!("a .{other} file"))),
        _ => Format::Text,
    };
    Ok(InputFile {
        path: path.to_owned(),
        name: name.into_owned(),
        bytes: meta.len(),
        modified_ns: meta
            .modified()
            .ok()
            .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
            .map_or(0, |age| age.as_nanos()),
        format,
    })
}

/// The documents of one file, in order.
pub(crate) struct Documents<'a> {
    lines: Lines<'a>,
    input: usize,
    format: Format,
    bound: Option<usize>,
    next_index: u64,
    /// The line being cut up (plain text), and how much of it is used.
    line: Vec<u8>,
    used: usize,
}

impl<'a> Documents<'a> {
    /// Opens input number `input`; raw bytes read are added to `bytes_read`.
    pub fn open(
        file: &'a InputFile,
        input: usize,
        options: &InputOptions,
        bytes_read: &'a AtomicU64,
    ) -> Result<Self> {
        Ok(Self {
            lines: Lines::open(&file.path, bytes_read)?,
            input,
            format: file.format,
            bound: options.text_document_bytes,
            next_index: 0,
            line: Vec::new(),
            used: 0,
        })
    }

    /// The next document, or `None` at the end of the file.
    pub fn next(&mut self) -> Result<Option<RawDocument>> {
        let found = match self.format {
            Format::JsonLines => self.next_json()?,
            Format::Text => self.next_text()?,
        };
        Ok(found.map(|(line, bytes)| {
            let index = self.next_index;
            self.next_index += 1;
            RawDocument {
                input: self.input,
                index,
                line,
                format: self.format,
                bytes,
            }
        }))
    }

    /// The file's BLAKE3 hash and length as read; call after `next` has returned `None`.
    pub fn finish(self) -> (Hash, u64) {
        let raw = self.lines.stream.raw();
        (Hash(*raw.hasher.finalize().as_bytes()), raw.bytes)
    }

    fn next_json(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
        let mut bytes = Vec::new();
        while self.lines.next(&mut bytes)? {
            if !bytes.iter().all(u8::is_ascii_whitespace) {
                return Ok(Some((self.lines.number, bytes)));
            }
        }
        Ok(None)
    }

    fn next_text(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
        let limit = self.bound.unwrap_or(MAX_DOCUMENT_BYTES);
        let mut document = Vec::new();
        let mut first_line = 0;
        loop {
            if self.used == self.line.len() {
                self.used = 0;
                if !self.lines.next(&mut self.line)? {
                    return Ok((!document.is_empty()).then_some((first_line, document)));
                }
            }
            let rest = &self.line[self.used..];
            if document.is_empty() {
                first_line = self.lines.number;
            }
            if document.len() + rest.len() <= limit {
                document.extend_from_slice(rest);
                self.used = self.line.len();
                continue;
            }
            if self.bound.is_none() {
                return Err(Error::DocumentTooLong {
                    path: self.lines.path.to_owned(),
                    line: self.lines.number,
                    limit,
                });
            }
            if document.is_empty() {
                if self.used == 0 {
                    utf8(&self.line, self.lines.path, self.lines.number)?;
                }
                let cut = char_boundary(&self.line, self.used + limit);
                document.extend_from_slice(&self.line[self.used..cut]);
                self.used = cut;
            }
            return Ok(Some((first_line, document)));
        }
    }
}

/// Lines of a file, decompressed if need be, without a byte order mark.
struct Lines<'a> {
    path: &'a Path,
    stream: Stream<'a>,
    /// The line read last, from 1.
    number: u64,
}

impl<'a> Lines<'a> {
    fn open(path: &'a Path, bytes_read: &'a AtomicU64) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let raw = HashingReader {
            file,
            hasher: blake3::Hasher::new(),
            bytes: 0,
            bytes_read,
        };
        let mut raw = BufReader::with_capacity(READ_BUFFER_BYTES, raw);
        let start = raw.fill_buf().map_err(Error::io("read", path))?;
        let stream = if start.starts_with(&GZIP_MAGIC) {
            Stream::Gzip(BufReader::with_capacity(
                READ_BUFFER_BYTES,
                MultiGzDecoder::new(raw),
            ))
        } else {
            Stream::Plain(raw)
        };
        Ok(Self {
            path,
            stream,
            number: 0,
        })
    }

    /// Reads the next line with its end into `line`; false at the end of the file.
    fn next(&mut self, line: &mut Vec<u8>) -> Result<bool> {
        line.clear();
        let mut bounded = (&mut self.stream).take(MAX_DOCUMENT_BYTES as u64 + 1);
        if let Err(error) = bounded.read_until(b'\n', line) {
            return Err(self.read_error(error));
        }
        if line.is_empty() {
            return Ok(false);
        }
        self.number += 1;
        if line.len() > MAX_DOCUMENT_BYTES {
            return Err(Error::DocumentTooLong {
                path: self.path.to_owned(),
                line: self.number,
                limit: MAX_DOCUMENT_BYTES,
            });
        }
        if self.number == 1 && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
            if line.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read_error(&self, error: io::Error) -> Error {
        let (path, line) = (self.path.to_owned(), self.number + 1);
        match (&self.stream, error.kind()) {
            (Stream::Gzip(_), io::ErrorKind::UnexpectedEof) => Error::TruncatedGzip { path, line },
            (Stream::Gzip(_), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => {
                Error::BrokenGzip {
                    path,
                    line,
                    detail: error.to_string(),
                }
            }
            _ => Error::io("read", self.path)(error),
        }
    }
}

enum Stream<'a> {
    Plain(BufReader<HashingReader<'a>>),
    Gzip(BufReader<MultiGzDecoder<BufReader<HashingReader<'a>>>>),
}

impl<'a> Stream<'a> {
    fn raw(&self) -> &HashingReader<'a> {
        match self {
            Self::Plain(reader) => reader.get_ref(),
            Self::Gzip(reader) => reader.get_ref().get_ref().get_ref(),
        }
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => reader.read(buffer),
            Self::Gzip(reader) => reader.read(buffer),
        }
    }
}

impl BufRead for Stream<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self {
            Self::Plain(reader) => reader.fill_buf(),
            Self::Gzip(reader) => reader.fill_buf(),
        }
    }

    fn consume(&mut self, amount: usize) {
        match self {
            Self::Plain(reader) => reader.consume(amount),
            Self::Gzip(reader) => reader.consume(amount),
        }
    }
}

struct HashingReader<'a> {
    file: File,
    hasher: blake3::Hasher,
    bytes: u64,
    bytes_read: &'a AtomicU64,
}

impl Read for HashingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.bytes += count as u64;
        self.bytes_read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// The last boundary between characters of valid UTF-8 that is not after `at`.
fn char_boundary(text: &[u8], mut at: usize) -> usize {
    while at > 0 && text[at] & 0b1100_0000 == 0b1000_0000 {
        at -= 1;
    }
    at
}

/// `first_line` is the line that `bytes` begins on.
fn utf8<'a>(bytes: &'a [u8], path: &Path, first_line: u64) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|error| {
        let good = &bytes[..error.valid_up_to()];
        let line_start = good
            .iter()
            .rposition(|&b| b == b'\n')
            .map_or(0, |at| at + 1);
        let newlines = good.iter().filter(|&&b| b == b'\n').count();
        Error::InvalidUtf8 {
            path: path.to_owned(),
            line: first_line + newlines as u64,
            column: good.len() - line_start + 1,
        }
    })
}

fn json_field(json: &str, field: &str, path: &Path, line: u64) -> Result<String> {
    use serde_json::Value;
    let path = || path.to_owned();
    let bad = |detail: String| Error::BadJson {
        path: path(),
        line,
        detail,
    };
    let value: Value = serde_json::from_str(json).map_err(|error| {
        // The parser's own "line 1" would contradict ours.
        let text = error.to_string();
        let what = text.split(" at line ").next().unwrap_or(&text);
        bad(format!("{what}, column {}", error.column()))
    })?;
    let Value::Object(mut object) = value else {
        return Err(bad(format!("{}, not an object", kind(&value))));
    };
    match object.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(Error::FieldNotAString {
            path: path(),
            line,
            field: field.to_owned(),
            kind: kind(&other),
        }),
        None => Err(Error::MissingField {
            path: path(),
            line,
            field: field.to_owned(),
            found: match object.len() {
                0 => "none".to_owned(),
                _ => object
                    .keys()
                    .take(12)
                    .cloned()
                    .collect::<Vec<_>>()
                    .join(", "),
            },
        }),
    }
}

fn kind(value: &serde_json::Value) -> &'static str {
    use serde_json::Value;
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
