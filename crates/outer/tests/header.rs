//! Headers against the `safetensors` crate, and against whatever a network may send.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use hansa_outer::{
    Dtype, Header, HeaderError, Layout, LayoutError, MAX_HEADER_BYTES, Metadata, TensorSpec,
};
use proptest::prelude::*;
use safetensors::tensor::TensorView;
use safetensors::{SafeTensors, serialize};

fn layout(tensors: &[(&str, &[usize])]) -> Layout {
    let spec = |(name, shape): &(&str, &[usize])| TensorSpec {
        name: (*name).to_owned(),
        shape: shape.to_vec(),
    };
    Layout::new(tensors.iter().map(spec)).unwrap()
}

fn small_model() -> Layout {
    layout(&[
        ("model.norm.weight", &[5]),
        ("model.embed_tokens.weight", &[7, 5]),
        ("Größe \"1\"\n", &[]),
        ("model.layers.0.mlp.up_proj.weight", &[3, 5]),
    ])
}

fn metadata() -> Metadata {
    Metadata::from([("generation".to_owned(), "12 \"é\"".to_owned())])
}

/// A file around a header written by hand.
fn file(json: &str) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes
}

fn refusal(json: &str) -> HeaderError {
    Header::parse(&file(json)).unwrap_err()
}

#[test]
fn the_safetensors_crate_reads_what_is_built() {
    for (dtype, theirs) in [
        (Dtype::F32, safetensors::Dtype::F32),
        (Dtype::Bf16, safetensors::Dtype::BF16),
    ] {
        let layout = small_model();
        let (header, mut bytes) = Header::build(&layout, dtype, metadata()).unwrap();
        assert_eq!(header.data_offset(), bytes.len() as u64);
        assert_eq!(header.data_offset() % 4096, 0);
        let values: Vec<f32> = (0..layout.elements()).map(|i| i as f32).collect();
        let mut data = vec![0; values.len() * dtype.bytes_per_element()];
        dtype.encode(&values, &mut data);
        bytes.extend_from_slice(&data);
        header.check_file_bytes(bytes.len() as u64).unwrap();

        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.len(), layout.tensors().len());
        for (tensor, elements) in layout.iter() {
            let view = read.tensor(&tensor.name).unwrap();
            assert_eq!(view.dtype(), theirs);
            assert_eq!(view.shape(), tensor.shape);
            let range = header.byte_range(elements);
            let range = range.start as usize..range.end as usize;
            assert_eq!(view.data(), &bytes[range]);
        }
        let (_, their_metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let strings = their_metadata.metadata().as_ref().unwrap();
        assert_eq!(strings["generation"], "12 \"é\"");
        assert_eq!(strings["format"], "pt");
    }
}

#[test]
fn what_the_safetensors_crate_writes_is_read() {
    let (a, b) = ([0u8; 24], [1u8; 4]);
    let view = |shape, data| TensorView::new(safetensors::Dtype::BF16, shape, data).unwrap();
    let tensors = [("z", view(vec![2, 6], &a)), ("a", view(vec![2], &b))];
    let strings = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = serialize(tensors, Some(strings)).unwrap();

    let header = Header::parse(&bytes).unwrap();
    let expected = layout(&[("a", &[2]), ("z", &[2, 6])]);
    header.check(&expected, Dtype::Bf16).unwrap();
    header.check_file_bytes(bytes.len() as u64).unwrap();
    assert_eq!(header.metadata()["format"], "pt");
    let range = header.byte_range(header.layout().range("a").unwrap());
    assert_eq!(&bytes[range.start as usize..range.end as usize], &b);

    // The JSON that Hansa builds for the same tensors, but for the spaces behind it.
    let (_, built) = Header::build(&expected, Dtype::Bf16, Metadata::new()).unwrap();
    let json = |head: &[u8]| String::from_utf8(head[8..].to_vec()).unwrap();
    let data = header.data_offset() as usize;
    assert_eq!(json(&built).trim_end(), json(&bytes[..data]).trim_end());
}

#[test]
fn a_header_reads_back_and_is_the_same_every_time() {
    let layout = small_model();
    let (header, bytes) = Header::build(&layout, Dtype::Bf16, metadata()).unwrap();
    assert_eq!(Header::parse(&bytes).unwrap(), header);
    let reversed = Layout::new(layout.tensors().iter().rev().cloned()).unwrap();
    let (_, again) = Header::build(&reversed, Dtype::Bf16, metadata()).unwrap();
    assert_eq!(again, bytes);
    let prefix = *bytes.first_chunk().unwrap();
    assert_eq!(Header::bytes_needed(prefix).unwrap(), bytes.len());
}

#[test]
fn a_cut_header_and_a_cut_file_are_noticed() {
    let (header, bytes) = Header::build(&small_model(), Dtype::F32, metadata()).unwrap();
    for end in 0..bytes.len() {
        let error = Header::parse(&bytes[..end]).unwrap_err();
        assert!(matches!(error, HeaderError::Truncated { found, .. } if found == end));
    }
    let cut = header.check_file_bytes(header.file_bytes() - 1);
    assert!(matches!(cut, Err(HeaderError::FileSize { .. })));
}

#[test]
fn an_absurd_length_is_refused_before_anything_is_read() {
    for claimed in [u64::MAX, MAX_HEADER_BYTES as u64] {
        let error = Header::parse(&claimed.to_le_bytes()).unwrap_err();
        assert!(matches!(error, HeaderError::TooLong { .. }));
    }
}

#[test]
fn ranges_must_tile_the_data() {
    let pair = |a: &str, b: &str| {
        refusal(&format!(
            r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{a}}},
                "b":{{"dtype":"F32","shape":[1],"data_offsets":{b}}}}}"#
        ))
    };
    let overlap = pair("[0,8]", "[4,8]");
    assert!(
        matches!(&overlap, HeaderError::Misplaced { name, problem: "overlap", .. } if name == "b")
    );
    let gap = pair("[0,8]", "[12,16]");
    assert!(matches!(&gap, HeaderError::Misplaced { name, found: 12, .. } if name == "b"));
    let late = pair("[4,12]", "[12,16]");
    assert!(matches!(&late, HeaderError::Misplaced { name, expected: 0, .. } if name == "a"));
    for b in ["[8,16]", "[8,8]", "[8,4]", "[8,18446744073709551615]"] {
        let size = pair("[0,8]", b);
        assert!(matches!(&size, HeaderError::WrongSize { name, .. } if name == "b"));
    }
}

#[test]
fn entries_that_are_no_tensors_are_named() {
    let one = |entry: &str| refusal(&format!(r#"{{"w":{entry}}}"#)).to_string();
    assert!(one("7").contains("\"w\" is malformed"));
    assert!(one(r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#).contains("\"w\""));
    assert!(one(r#"{"dtype":"F32","shape":[1]}"#).contains("data_offsets"));
    assert!(one(r#"{"dtype":"F16","shape":[1],"data_offsets":[0,2]}"#).contains("\"F16\""));
    let huge = r#"{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}"#;
    assert!(one(huge).contains("\"w\" is too large"));
    assert!(
        refusal(r#"{"__metadata__":{"a":1}}"#)
            .to_string()
            .contains("__metadata__")
    );
    assert!(matches!(refusal(" {}"), HeaderError::Json { .. }));
    assert!(matches!(
        refusal("{}"),
        HeaderError::Layout(LayoutError::NoTensors)
    ));
    let twice = refusal(
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
            "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
    );
    assert!(matches!(twice, HeaderError::Layout(LayoutError::Duplicate { name }) if name == "a"));
    let mixed = refusal(
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
            "b":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]}}"#,
    );
    assert!(matches!(mixed, HeaderError::WrongDtype { name, .. } if name == "b"));
    // A message stays fit for a log line whatever was sent.
    assert!(one(&format!("\"{}\"", "x".repeat(1 << 20))).len() < 1000);
}

#[test]
fn a_file_of_another_model_or_dtype_is_refused() {
    let run = small_model();
    let (header, _) = Header::build(&run, Dtype::F32, Metadata::new()).unwrap();
    header.check(&run, Dtype::F32).unwrap();
    assert!(matches!(
        header.check(&run, Dtype::Bf16),
        Err(HeaderError::WrongDtype {
            expected: Dtype::Bf16,
            found: Dtype::F32,
            ..
        })
    ));
    assert!(matches!(
        header.check(&layout(&[("model.norm.weight", &[5])]), Dtype::F32),
        Err(HeaderError::Layout(LayoutError::Unexpected { .. }))
    ));
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Header::parse(&bytes);
    }

    #[test]
    fn random_text_behind_an_honest_length_never_panics(json in "\\{[\\[\\]{}:,\"a-z0-9_ ]{0,80}") {
        let _ = Header::parse(&file(&json));
    }

    #[test]
    fn a_damaged_header_never_panics_and_never_lies(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let (_, mut bytes) = Header::build(&small_model(), Dtype::F32, metadata()).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        // What is still accepted tiles its data section exactly.
        if let Ok(header) = Header::parse(&bytes) {
            let mut end = 0;
            for (_, elements) in header.layout().iter() {
                prop_assert_eq!(elements.start, end);
                end = elements.end;
            }
            prop_assert_eq!(end, header.layout().elements());
        }
    }

    #[test]
    fn any_layout_reads_back(
        shapes in prop::collection::btree_map("[a-z.]{1,12}", prop::collection::vec(0usize..6, 0..4), 1..12),
        bf16 in any::<bool>(),
    ) {
        let dtype = if bf16 { Dtype::Bf16 } else { Dtype::F32 };
        let specs = shapes.into_iter().map(|(name, shape)| TensorSpec { name, shape });
        let layout = Layout::new(specs).unwrap();
        let (header, bytes) = Header::build(&layout, dtype, Metadata::new()).unwrap();
        prop_assert_eq!(Header::parse(&bytes).unwrap(), header);
    }
}
