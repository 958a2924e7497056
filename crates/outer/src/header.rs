//! The head of a safetensors file: written the same way every time, believed never.
//!
//! ```text
//! ┌────────────┬──────────────────────────────────────┬───────────────────────────────┐
//! │ u64 LE: n  │ n bytes of JSON, padded with spaces  │ elements, tensor after tensor │
//! └────────────┴──────────────────────────────────────┴───────────────────────────────┘
//!   PREFIX_BYTES                                        ^ data_offset
//! ```
//!
//! Files are ordinary Hugging Face safetensors of one dtype. Hansa keeps its own small parser because
//! the merge needs offsets without the data in memory, and because a header comes from the network:
//! its size is bounded, ranges must tile the data section, and every refusal names the tensor.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use thiserror::Error;

use crate::layout::elements_of;
use crate::{Codec, Dtype, Layout, LayoutError, TensorSpec};

/// Bytes before the JSON: its length.
pub const PREFIX_BYTES: usize = 8;
/// Longest header accepted, prefix included. A tensor takes about 130 bytes, so this is room for
/// some 100,000 of them; a longer one is an attack or not a safetensors file.
pub const MAX_HEADER_BYTES: usize = 16 << 20;

/// Where data begin in files of ours: on a page, so that writing them touches whole pages, and hashing
/// them whole chunks of BLAKE3. Files of others may begin anywhere.
const DATA_ALIGNMENT: usize = 4096;

const METADATA_KEY: &str = "__metadata__";

/// The free-form strings of a safetensors header, sorted by key.
pub type Metadata = BTreeMap<String, String>;

/// What a file's head says: its tensors, their dtype, where the data starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    layout: Layout,
    dtype: Dtype,
    metadata: Metadata,
    data_offset: u64,
}

/// Why a header was refused.
#[derive(Debug, Error)]
pub enum HeaderError {
    /// Fewer bytes than the header claims to have.
    #[error(
        "safetensors header is cut: it needs {needed} bytes, found {found}; fetch the file again"
    )]
    Truncated {
        /// Bytes that the header takes.
        needed: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// The length field is beyond the bound.
    #[error(
        "safetensors header claims {claimed} bytes, at most {MAX_HEADER_BYTES} are accepted; check that this is a safetensors file"
    )]
    TooLong {
        /// The length it claims, prefix included.
        claimed: u64,
    },
    /// The header is not a JSON object of the right form.
    #[error(
        "safetensors header is not valid JSON: {reason}; check that this is a safetensors file"
    )]
    Json {
        /// The parser's words.
        reason: String,
    },
    /// One entry is not a tensor description.
    #[error("safetensors entry {name:?} is malformed: {reason}")]
    Entry {
        /// The entry.
        name: String,
        /// The parser's words.
        reason: String,
    },
    /// A dtype that Hansa does not exchange.
    #[error("tensor {name:?} has dtype {dtype:?}; Hansa exchanges F32 and BF16")]
    UnknownDtype {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: String,
    },
    /// The tensor is not of the dtype that was agreed on, or not of that of the tensors before it.
    #[error(
        "tensor {name:?} has dtype {found}, expected {expected}: write every tensor as {expected}"
    )]
    WrongDtype {
        /// The tensor.
        name: String,
        /// The dtype wanted.
        expected: Dtype,
        /// Its dtype.
        found: Dtype,
    },
    /// The contribution is not encoded as the run's recipe says.
    #[error(
        "the contribution is encoded as {found}, the run's recipe says {expected}: encode it so"
    )]
    WrongCodec {
        /// What the recipe says.
        expected: Codec,
        /// What the file says.
        found: Codec,
    },
    /// The tensor's bytes do not follow those of the tensor before it.
    #[error(
        "tensor {name:?} starts at byte {found} of the data, expected {expected}: tensors {problem}"
    )]
    Misplaced {
        /// The tensor.
        name: String,
        /// Where the tensor before it ends.
        expected: u64,
        /// Where this one says it starts.
        found: u64,
        /// "overlap" or "leave a gap".
        problem: &'static str,
    },
    /// The tensor's range does not hold its shape.
    #[error("tensor {name:?} spans bytes {begin}..{end}, its shape needs {expected} bytes")]
    WrongSize {
        /// The tensor.
        name: String,
        /// First byte.
        begin: u64,
        /// One past its last byte.
        end: u64,
        /// Bytes that shape and dtype need.
        expected: u64,
    },
    /// The file is not as long as its header says.
    #[error(
        "file has {found} bytes, its header needs {expected}: it is cut or padded; fetch it again"
    )]
    FileSize {
        /// Bytes needed.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The tensors do not form a layout, or not the expected one.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

impl Header {
    /// Makes the header of a file of `layout` in `dtype`, and its bytes, which end where the data
    /// begins. Same arguments, same bytes. `metadata` gets `format = "pt"`, without which
    /// `transformers` refuses to load a file, unless it has a `format` already.
    ///
    /// # Errors
    /// If the header would be longer than [`MAX_HEADER_BYTES`].
    pub fn build(
        layout: &Layout,
        dtype: Dtype,
        mut metadata: Metadata,
    ) -> Result<(Header, Vec<u8>), HeaderError> {
        metadata
            .entry("format".to_owned())
            .or_insert_with(|| "pt".to_owned());
        let bytes = framed(&header_json(layout, dtype, &metadata))?;
        let header = Header {
            layout: layout.clone(),
            dtype,
            metadata,
            data_offset: bytes.len() as u64,
        };
        Ok((header, bytes))
    }

    /// How many bytes the whole header takes, prefix included, from a file's first bytes.
    ///
    /// # Errors
    /// If that is more than [`MAX_HEADER_BYTES`].
    pub fn bytes_needed(prefix: [u8; PREFIX_BYTES]) -> Result<usize, HeaderError> {
        let claimed = u64::from_le_bytes(prefix).saturating_add(PREFIX_BYTES as u64);
        match usize::try_from(claimed) {
            Ok(needed) if needed <= MAX_HEADER_BYTES => Ok(needed),
            _ => Err(HeaderError::TooLong { claimed }),
        }
    }

    /// Reads the header at the start of `bytes`, which may go on behind it. Tensors come in the
    /// order of their data and must tile it without gap or overlap.
    ///
    /// # Errors
    /// Whatever is wrong, with the tensor's name. Never panics, whatever the bytes.
    pub fn parse(bytes: &[u8]) -> Result<Header, HeaderError> {
        let (metadata, entries, data_offset) = entries(bytes)?;
        let (layout, dtype) = place(entries)?;
        Ok(Header {
            layout,
            dtype,
            metadata,
            data_offset,
        })
    }

    pub(crate) fn into_layout(self) -> Layout {
        self.layout
    }

    /// The tensors, in the order of their data.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The dtype of all tensors.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The free-form strings.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Byte of the file at which element 0 begins.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.byte_range(0..self.layout.elements()).end
    }

    /// The bytes of the file that hold these elements of the flat array.
    pub fn byte_range(&self, elements: Range<u64>) -> Range<u64> {
        let byte_at = |element| self.data_offset + element * self.dtype.bytes_per_element() as u64;
        byte_at(elements.start)..byte_at(elements.end)
    }

    /// Checks that the file holds the tensors of `layout`, in its order, as `dtype`.
    ///
    /// # Errors
    /// The first difference, by tensor.
    pub fn check(&self, layout: &Layout, dtype: Dtype) -> Result<(), HeaderError> {
        self.layout.check_same(layout)?;
        match self.layout.tensors().first() {
            Some(first) if self.dtype != dtype => Err(HeaderError::WrongDtype {
                name: first.name.clone(),
                expected: dtype,
                found: self.dtype,
            }),
            _ => Ok(()),
        }
    }

    /// Checks that a file of `found` bytes is exactly as long as this header says.
    ///
    /// # Errors
    /// [`HeaderError::FileSize`] if not.
    pub fn check_file_bytes(&self, found: u64) -> Result<(), HeaderError> {
        let expected = self.file_bytes();
        if found == expected {
            Ok(())
        } else {
            Err(HeaderError::FileSize { expected, found })
        }
    }
}

/// Prefix, JSON and the spaces that fill it up to [`DATA_ALIGNMENT`].
pub(crate) fn framed(json: &str) -> Result<Vec<u8>, HeaderError> {
    let total = (PREFIX_BYTES + json.len()).next_multiple_of(DATA_ALIGNMENT);
    if total > MAX_HEADER_BYTES {
        let claimed = total as u64;
        return Err(HeaderError::TooLong { claimed });
    }
    let mut bytes = Vec::with_capacity(total);
    bytes.extend_from_slice(&((total - PREFIX_BYTES) as u64).to_le_bytes());
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(total, b' ');
    Ok(bytes)
}

/// The strings and the entries of a head, and where the data begin.
pub(crate) fn entries(bytes: &[u8]) -> Result<(Metadata, NamedValues, u64), HeaderError> {
    let truncated = |needed| HeaderError::Truncated {
        needed,
        found: bytes.len(),
    };
    let prefix = bytes.first_chunk().ok_or(truncated(PREFIX_BYTES))?;
    let needed = Header::bytes_needed(*prefix)?;
    let json = bytes
        .get(PREFIX_BYTES..needed)
        .ok_or_else(|| truncated(needed))?;
    if json.first() != Some(&b'{') {
        return Err(HeaderError::Json {
            reason: "it does not begin with '{'".to_owned(),
        });
    }
    let Entries(entries) = serde_json::from_slice(json).map_err(|error| HeaderError::Json {
        reason: short(error),
    })?;
    let (metadata, entries) = split_metadata(entries)?;
    Ok((metadata, entries, needed as u64))
}

/// Written by hand, because the bytes must not depend on how a JSON library orders a map.
fn header_json(layout: &Layout, dtype: Dtype, metadata: &Metadata) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let strings: Vec<String> = metadata
        .iter()
        .map(|(key, value)| format!("{}:{}", quoted(key), quoted(value)))
        .collect();
    let mut json = format!("{{\"{METADATA_KEY}\":{{{}}}", strings.join(","));
    let bytes_per_element = dtype.bytes_per_element() as u64;
    for (tensor, elements) in layout.iter() {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        json += &format!(
            ",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
            quoted(&tensor.name),
            dtype.safetensors_name(),
            shape.join(","),
            elements.start * bytes_per_element,
            elements.end * bytes_per_element,
        );
    }
    json.push('}');
    json
}

/// The entries in the order of the text, duplicates included (a JSON map would hide them).
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// One tensor's entry, as the format has it.
#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

pub(crate) type NamedValues = Vec<(String, Value)>;

fn split_metadata(mut entries: NamedValues) -> Result<(Metadata, NamedValues), HeaderError> {
    let Some(at) = entries.iter().position(|(name, _)| name == METADATA_KEY) else {
        return Ok((Metadata::new(), entries));
    };
    let (name, value) = entries.remove(at);
    let metadata = serde_json::from_value(value).map_err(|error| malformed(&name, error))?;
    Ok((metadata, entries))
}

/// Orders the entries by their data and checks that they tile it, in one dtype.
fn place(entries: NamedValues) -> Result<(Layout, Dtype), HeaderError> {
    let mut placed = Vec::with_capacity(entries.len());
    for (name, value) in entries {
        let entry: Entry =
            serde_json::from_value(value).map_err(|error| malformed(&name, error))?;
        let dtype = Dtype::from_safetensors_name(&entry.dtype).ok_or_else(|| {
            HeaderError::UnknownDtype {
                name: short(&name),
                dtype: short(&entry.dtype),
            }
        })?;
        let shape = entry.shape;
        placed.push((entry.data_offsets, TensorSpec { name, shape }, dtype));
    }
    placed.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));

    let dtype = placed.first().map_or(Dtype::F32, |(_, _, dtype)| *dtype);
    let mut expected = 0;
    for (offsets, tensor, found) in &placed {
        if *found != dtype {
            return Err(HeaderError::WrongDtype {
                name: short(&tensor.name),
                expected: dtype,
                found: *found,
            });
        }
        expected = check_place(tensor, *offsets, expected, dtype)?;
    }
    let tensors = placed.into_iter().map(|(_, tensor, _)| tensor).collect();
    Ok((Layout::in_order(tensors)?, dtype))
}

/// Checks one tensor's byte range against where it must start and what its shape needs; returns
/// where the next one must start.
fn check_place(
    tensor: &TensorSpec,
    (begin, end): (u64, u64),
    expected: u64,
    dtype: Dtype,
) -> Result<u64, HeaderError> {
    if begin != expected {
        return Err(HeaderError::Misplaced {
            name: short(&tensor.name),
            expected,
            found: begin,
            problem: if begin < expected {
                "overlap"
            } else {
                "leave a gap"
            },
        });
    }
    let bytes = elements_of(tensor)?.saturating_mul(dtype.bytes_per_element() as u64);
    if end.checked_sub(begin) != Some(bytes) {
        return Err(HeaderError::WrongSize {
            name: short(&tensor.name),
            begin,
            end,
            expected: bytes,
        });
    }
    Ok(end)
}

pub(crate) fn malformed(name: &str, error: serde_json::Error) -> HeaderError {
    HeaderError::Entry {
        name: short(name),
        reason: short(error),
    }
}

/// Cuts what the network sent to a length fit for a log line.
fn short(text: impl ToString) -> String {
    const MAX_CHARS: usize = 200;
    let text = text.to_string();
    match text.char_indices().nth(MAX_CHARS) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
