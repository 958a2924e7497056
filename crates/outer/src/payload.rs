//! The head of a contribution's file, whatever its codec.
//!
//! An `f32` or `bf16` contribution is an ordinary safetensors file of the model's tensors ([`Header`]).
//! Blocks of `int8` are no tensors of one element type; such a file is still one that any reader opens:
//!
//! ```text
//! {"__metadata__": {"codec": "int8", "format": "pt", "tensors": "[[\"model.norm.weight\",[1024]],…]"},
//!  "blocks": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}
//! ```
//!
//! with the model's tensors, in the order of the flat array, as JSON in a string, and the n bytes of
//! [`Codec::Int8`] as one tensor. The data are always the file's last bytes, and their number follows from
//! the layout; so where they begin is known from the file's size, before its head has arrived.

use std::ops::Range;

use serde_json::Value;

use crate::header::{self, Header, HeaderError, Metadata};
use crate::{Codec, Layout, PREFIX_BYTES, TensorSpec};

/// The one tensor of an `int8` file.
const BLOCKS: &str = "blocks";
const CODEC_KEY: &str = "codec";
const TENSORS_KEY: &str = "tensors";

/// What a contribution's head says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadHeader {
    layout: Layout,
    codec: Codec,
    data_offset: u64,
}

impl PayloadHeader {
    /// Makes the head of a file, and its bytes, which end where the data begin. Same arguments, same bytes.
    ///
    /// # Errors
    /// If the head would be too long.
    pub fn build(layout: &Layout, codec: Codec) -> Result<(PayloadHeader, Vec<u8>), HeaderError> {
        let bytes = match codec.dtype() {
            Some(dtype) => Header::build(layout, dtype, Metadata::new())?.1,
            None => header::framed(&int8_json(layout, codec))?,
        };
        let head = PayloadHeader {
            layout: layout.clone(),
            codec,
            data_offset: bytes.len() as u64,
        };
        Ok((head, bytes))
    }

    /// Reads the head at the start of `bytes`, which may go on behind it.
    ///
    /// # Errors
    /// Whatever is wrong, with the tensor's name. Never panics, whatever the bytes.
    pub fn parse(bytes: &[u8]) -> Result<PayloadHeader, HeaderError> {
        let (metadata, entries, data_offset) = header::entries(bytes)?;
        if metadata.get(CODEC_KEY).map(String::as_str) != Some(Codec::Int8.name()) {
            let header = Header::parse(bytes)?;
            return Ok(PayloadHeader {
                codec: header.dtype().into(),
                data_offset,
                layout: header.into_layout(),
            });
        }
        let layout = layout_of(&metadata)?;
        check_blocks(&entries, Codec::Int8.bytes(layout.elements()))?;
        Ok(PayloadHeader {
            layout,
            codec: Codec::Int8,
            data_offset,
        })
    }

    /// The model's tensors, in the order of the flat array.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How the elements are encoded.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Byte of the file at which the data begin.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.data_offset + self.codec.bytes(self.layout.elements())
    }

    /// The bytes of the file that hold these elements, which begin at a block's start.
    pub fn byte_range(&self, elements: Range<u64>) -> Range<u64> {
        let range = self.codec.byte_range(elements);
        range.start + self.data_offset..range.end + self.data_offset
    }

    /// Checks that the file holds the tensors of `layout`, in its order, in `codec`.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self, layout: &Layout, codec: Codec) -> Result<(), HeaderError> {
        self.layout.check_same(layout)?;
        if self.codec != codec {
            let (found, expected) = (self.codec, codec);
            return Err(HeaderError::WrongCodec { found, expected });
        }
        Ok(())
    }

    /// Checks that a file of `found` bytes is exactly as long as this head says.
    ///
    /// # Errors
    /// [`HeaderError::FileSize`] if not.
    pub fn check_file_bytes(&self, found: u64) -> Result<(), HeaderError> {
        let expected = self.file_bytes();
        if found == expected {
            return Ok(());
        }
        Err(HeaderError::FileSize { expected, found })
    }
}

fn int8_json(layout: &Layout, codec: Codec) -> String {
    let tensor = |tensor: &TensorSpec| {
        Value::from(vec![
            Value::from(tensor.name.as_str()),
            Value::from(tensor.shape.clone()),
        ])
    };
    let tensors: Vec<Value> = layout.tensors().iter().map(tensor).collect();
    let tensors = Value::from(Value::from(tensors).to_string());
    let bytes = codec.bytes(layout.elements());
    format!(
        "{{\"__metadata__\":{{\"{CODEC_KEY}\":\"{codec}\",\"format\":\"pt\",\"{TENSORS_KEY}\":{tensors}}},\
         \"{BLOCKS}\":{{\"dtype\":\"U8\",\"shape\":[{bytes}],\"data_offsets\":[0,{bytes}]}}}}"
    )
}

fn layout_of(metadata: &Metadata) -> Result<Layout, HeaderError> {
    let text = metadata.get(TENSORS_KEY).map_or("", String::as_str);
    let tensors: Vec<(String, Vec<usize>)> =
        serde_json::from_str(text).map_err(|error| header::malformed(TENSORS_KEY, error))?;
    let tensors = tensors
        .into_iter()
        .map(|(name, shape)| TensorSpec { name, shape });
    Ok(Layout::in_order(tensors.collect())?)
}

/// There is one tensor, and it is all of the data.
fn check_blocks(entries: &[(String, Value)], bytes: u64) -> Result<(), HeaderError> {
    let wanted = serde_json::json!({"dtype": "U8", "shape": [bytes], "data_offsets": [0, bytes]});
    match entries {
        [(name, entry)] if name == BLOCKS && *entry == wanted => Ok(()),
        _ => Err(HeaderError::Entry {
            name: BLOCKS.to_owned(),
            reason: format!("a file of int8 blocks has this one tensor, with {bytes} bytes as U8"),
        }),
    }
}

/// Where the data of a file of `total_bytes` begin, if it can be one of so many elements in this codec.
pub fn data_offset(total_bytes: u64, codec: Codec, elements: u64) -> Option<u64> {
    let offset = total_bytes.checked_sub(codec.bytes(elements))?;
    (offset >= PREFIX_BYTES as u64).then_some(offset)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn layout() -> Layout {
        let tensor = |name: &str, shape: &[usize]| TensorSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
        };
        Layout::new([
            tensor("model.norm \"ü\"", &[300]),
            tensor("a", &[2, 3]),
            tensor("s", &[]),
        ])
        .unwrap()
    }

    #[test]
    fn what_is_built_is_read_back_and_opened_by_any_reader() {
        for codec in Codec::ALL {
            let (head, mut bytes) = PayloadHeader::build(&layout(), codec).unwrap();
            assert_eq!(PayloadHeader::parse(&bytes).unwrap(), head);
            assert_eq!(bytes.len() as u64, head.data_offset());
            head.check(&layout(), codec).unwrap();
            bytes.resize(head.file_bytes() as usize, 1);
            head.check_file_bytes(bytes.len() as u64).unwrap();
            let elements = layout().elements();
            assert_eq!(
                data_offset(bytes.len() as u64, codec, elements),
                Some(head.data_offset())
            );
            let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let data: usize = read.iter().map(|(_, tensor)| tensor.data().len()).sum();
            assert_eq!(data as u64, codec.bytes(elements));
            let range = head.byte_range(256..elements);
            assert_eq!(range.end, bytes.len() as u64);
        }
        assert_eq!(data_offset(100, Codec::F32, 25), None);
    }

    #[test]
    fn another_codec_or_model_is_refused_by_name() {
        let (head, _) = PayloadHeader::build(&layout(), Codec::Int8).unwrap();
        let error = head.check(&layout(), Codec::Bf16).unwrap_err().to_string();
        assert!(error.contains("int8") && error.contains("bf16"), "{error}");
        let other = TensorSpec {
            name: "b".to_owned(),
            shape: vec![7],
        };
        let other = Layout::new(layout().tensors().iter().cloned().chain([other])).unwrap();
        let error = head.check(&other, Codec::Int8).unwrap_err().to_string();
        assert!(error.contains("\"b\" is missing"), "{error}");
    }

    #[test]
    fn a_head_that_lies_is_refused() {
        let (_, bytes) = PayloadHeader::build(&layout(), Codec::Int8).unwrap();
        let text = String::from_utf8(bytes[PREFIX_BYTES..].to_vec()).unwrap();
        let refusal = |text: &str| {
            let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(text.as_bytes());
            PayloadHeader::parse(&bytes).unwrap_err().to_string()
        };
        let data = Codec::Int8.bytes(layout().elements()).to_string();
        for (from, to, says) in [
            (data.as_str(), "9", "blocks"),
            ("\"U8\"", "\"I8\"", "blocks"),
            ("[2,3]", "[2,4]", "blocks"),
            ("[2,3]", "[-2,3]", "tensors"),
            ("[2,3]", "[18446744073709551615,3]", "too large"),
            (TENSORS_KEY, "tensor", "tensors"),
            ("\"int8\"", "\"int4\"", "U8"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = refusal(&text.replace(from, to));
            assert!(error.contains(says), "{from} → {to}: {error}");
        }
        for end in 0..bytes.len() {
            assert!(PayloadHeader::parse(&bytes[..end]).is_err());
        }
    }
}
