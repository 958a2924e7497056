//! The merge on real files: right, repeatable, unharmed by SIGKILL, and flat in memory.
#![allow(clippy::unwrap_used)]

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use hansa_base::{Hash, Tokens};
use hansa_coordinator::merge::{
    MergeFailure, MergeInputs, MergeOptions, Merged, encode_model, merge_blobs, read_header,
};
use hansa_outer::{
    Codec, Dither, Dtype, Header, Layout, Merge, Metadata, OuterStep, PayloadHeader, TensorSpec,
    Weights,
};
use hansa_store::{Blob, BlobStore, DataDir};
use safetensors::SafeTensors;

const STEP: OuterStep = OuterStep::Nesterov {
    lr: 0.7,
    momentum: 0.9,
};
const ROWS_SMALL: usize = 1237;

fn layout(rows: usize) -> Layout {
    let tensor = |name: &str, shape: &[usize]| TensorSpec {
        name: name.to_owned(),
        shape: shape.to_vec(),
    };
    Layout::new([
        tensor("model.embed_tokens.weight", &[rows, 16]),
        tensor("model.norm.weight", &[7]),
    ])
    .unwrap()
}

/// Numbers without pattern: element `index` of file `file`.
fn noise(file: u32, index: u64) -> f32 {
    let mixed = (index as u32 ^ file.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    ((mixed ^ (mixed >> 13)) >> 8) as f32 / (1 << 24) as f32 - 0.5
}

fn noise_of(file: u32, layout: &Layout) -> Vec<f32> {
    (0..layout.elements()).map(|i| noise(file, i)).collect()
}

fn tokens_of(contribution: u32) -> Tokens {
    Tokens(u64::from(contribution) * 1000 + 1)
}

/// A data directory with the files of one round.
struct Round {
    store: BlobStore,
    _lock: DataDir,
    layout: Layout,
    theta: Blob,
    momentum: Blob,
    contributions: Vec<(Blob, Tokens)>,
    contribution_dtype: Dtype,
    model_dtype: Dtype,
}

impl Round {
    fn new(dir: &Path, rows: usize, contributions: u32, dtype: Dtype) -> Round {
        let lock = DataDir::lock(dir).unwrap();
        let store = BlobStore::open(&lock).unwrap();
        let layout = layout(rows);
        let contribution = |number| {
            let blob = put(&store, &layout, dtype, &noise_of(number + 2, &layout));
            (blob, tokens_of(number))
        };
        Round {
            theta: put(&store, &layout, Dtype::F32, &noise_of(0, &layout)),
            momentum: put(&store, &layout, Dtype::F32, &noise_of(1, &layout)),
            contributions: (0..contributions).map(contribution).collect(),
            contribution_dtype: dtype,
            model_dtype: dtype,
            layout,
            store,
            _lock: lock,
        }
    }

    /// Opens the round that [`Round::names`] names.
    fn open(dir: &Path, names: &str, dtype: Dtype) -> Round {
        let lock = DataDir::lock(dir).unwrap();
        let store = BlobStore::open(&lock).unwrap();
        let mut blobs = names
            .split(' ')
            .map(|name| store.open_blob(name.parse().unwrap()).unwrap());
        let (theta, momentum) = (blobs.next().unwrap(), blobs.next().unwrap());
        let contributions = blobs.zip((0..).map(tokens_of)).collect();
        Round {
            layout: read_header(&theta, "theta").unwrap().layout().clone(),
            theta,
            momentum,
            contributions,
            contribution_dtype: dtype,
            model_dtype: dtype,
            store,
            _lock: lock,
        }
    }

    fn names(&self) -> String {
        let contributions = self.contributions.iter().map(|(blob, _)| blob);
        let blobs = [&self.theta, &self.momentum]
            .into_iter()
            .chain(contributions);
        let names: Vec<String> = blobs.map(|blob| blob.hash().to_string()).collect();
        names.join(" ")
    }

    fn inputs(&self) -> MergeInputs<'_> {
        MergeInputs {
            theta: &self.theta,
            momentum: Some(&self.momentum),
            contributions: &self.contributions,
            step: STEP,
            codec: self.contribution_dtype.into(),
            model_dtype: self.model_dtype,
            metadata: Metadata::from([("generation".to_owned(), "1".to_owned())]),
        }
    }

    fn merge(&self, options: &MergeOptions) -> Merged {
        merge_blobs(&self.store, &self.inputs(), options).unwrap()
    }

    fn refusal(&self, inputs: &MergeInputs<'_>) -> String {
        let blobs = self.store.list().unwrap();
        let error = merge_blobs(&self.store, inputs, &MergeOptions::default()).unwrap_err();
        assert_eq!(self.store.list().unwrap(), blobs, "something was published");
        error.to_string()
    }
}

/// Writes a tensor file and brings it into the store.
fn put(store: &BlobStore, layout: &Layout, dtype: Dtype, values: &[f32]) -> Blob {
    let (header, head) = Header::build(layout, dtype, Metadata::new()).unwrap();
    let mut data = vec![0; values.len() * dtype.bytes_per_element()];
    dtype.encode(values, &mut data);
    let writer = store.writer(header.file_bytes()).unwrap();
    writer.write_all_at(&head, 0).unwrap();
    writer.write_all_at(&data, header.data_offset()).unwrap();
    writer.finish(1 << 20).unwrap()
}

fn values_of(blob: &Blob) -> Vec<f32> {
    let header = read_header(blob, "a result").unwrap();
    let bytes = std::fs::read(blob.path()).unwrap();
    let mut values = vec![0.0; header.layout().elements() as usize];
    header
        .dtype()
        .decode(&bytes[header.data_offset() as usize..], &mut values);
    values
}

fn options(threads: usize, buffer_bytes_per_thread: usize) -> MergeOptions {
    MergeOptions {
        threads: NonZeroUsize::new(threads).unwrap(),
        buffer_bytes_per_thread,
        ..MergeOptions::default()
    }
}

fn hashes(merged: &Merged) -> [Hash; 3] {
    [&merged.theta, &merged.momentum, &merged.model].map(Blob::hash)
}

#[test]
fn the_files_hold_what_the_formula_gives() {
    let dir = tempfile::tempdir().unwrap();
    let round = Round::new(dir.path(), ROWS_SMALL, 3, Dtype::Bf16);
    let merged = round.merge(&options(2, 100_000));

    let tokens: Vec<Tokens> = round.contributions.iter().map(|c| c.1).collect();
    let weights = Weights::from_tokens(&tokens).unwrap();
    let merge = Merge::new(STEP, weights, Dtype::Bf16, Dtype::Bf16).unwrap();
    let encoded: Vec<Vec<u8>> = (0..3)
        .map(|number| {
            let values = noise_of(number + 2, &round.layout);
            let mut bytes = vec![0; values.len() * 2];
            Dtype::Bf16.encode(&values, &mut bytes);
            bytes
        })
        .collect();
    let slices: Vec<&[u8]> = encoded.iter().map(Vec::as_slice).collect();
    let (mut theta, mut momentum) = (noise_of(0, &round.layout), noise_of(1, &round.layout));
    merge
        .merge_chunk(&slices, &mut theta, &mut momentum, None)
        .unwrap();
    assert_eq!(values_of(&merged.theta), theta);
    assert_eq!(values_of(&merged.momentum), momentum);

    // What travels is the master rounded, in a file that any reader of safetensors takes.
    let bytes = std::fs::read(merged.model.path()).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let norm = read.tensor("model.norm.weight").unwrap();
    assert_eq!(norm.dtype(), safetensors::Dtype::BF16);
    let range = round.layout.range("model.norm.weight").unwrap();
    let mut rounded = vec![0; 14];
    Dtype::Bf16.encode(&theta[range.start as usize..], &mut rounded);
    assert_eq!(norm.data(), rounded);
    let again = encode_model(
        &round.store,
        &merged.theta,
        Dtype::Bf16,
        &round.inputs().metadata,
        MergeOptions::default().chunk_bytes,
    );
    assert_eq!(again.unwrap().hash(), merged.model.hash());
}

#[test]
fn threads_and_buffers_do_not_change_a_bit() {
    let dir = tempfile::tempdir().unwrap();
    let round = Round::new(dir.path(), ROWS_SMALL, 5, Dtype::F32);
    let first = round.merge(&options(1, usize::MAX));
    assert_eq!(first.model.hash(), first.theta.hash());
    for (threads, buffer) in [(1, 0), (2, 200_000), (5, 0)] {
        assert_eq!(
            hashes(&round.merge(&options(threads, buffer))),
            hashes(&first)
        );
    }
}

#[test]
fn every_codec_is_merged_as_it_decodes() {
    for codec in Codec::ALL {
        let dir = tempfile::tempdir().unwrap();
        let mut round = Round::new(dir.path(), ROWS_SMALL, 0, Dtype::F32);
        let elements = round.layout.elements() as usize;
        let (mut blobs, mut decoded) = (Vec::new(), Vec::new());
        for number in 0..3 {
            let values = noise_of(number + 2, &round.layout);
            let (header, mut bytes) = PayloadHeader::build(&round.layout, codec).unwrap();
            bytes.resize(header.file_bytes() as usize, 0);
            let data = &mut bytes[header.data_offset() as usize..];
            let dither = Dither::new([number as u8; 8]);
            codec.encode(dither, 0, &values, data).unwrap();
            let mut back = vec![0.0; elements];
            codec.decode(data, &mut back);
            decoded.push(back);
            let writer = round.store.writer(header.file_bytes()).unwrap();
            writer.write_all_at(&bytes, 0).unwrap();
            blobs.push((writer.finish(1 << 20).unwrap(), tokens_of(number)));
        }
        round.contributions = blobs;
        let inputs = MergeInputs {
            codec,
            ..round.inputs()
        };
        let made: Vec<_> = [(1, 1 << 20), (3, 0)]
            .map(|(threads, buffer)| {
                merge_blobs(&round.store, &inputs, &options(threads, buffer)).unwrap()
            })
            .into_iter()
            .collect();
        assert_eq!(hashes(&made[0]), hashes(&made[1]), "{codec}");

        let weights = Weights::from_tokens(&[0, 1, 2].map(tokens_of)).unwrap();
        let merge = Merge::new(STEP, weights, Codec::F32, Dtype::F32).unwrap();
        let exact: Vec<Vec<u8>> = decoded
            .iter()
            .map(|values| values.iter().flat_map(|v| v.to_le_bytes()).collect())
            .collect();
        let slices: Vec<&[u8]> = exact.iter().map(Vec::as_slice).collect();
        let (mut theta, mut momentum) = (noise_of(0, &round.layout), noise_of(1, &round.layout));
        merge
            .merge_chunk(&slices, &mut theta, &mut momentum, None)
            .unwrap();
        assert_eq!(values_of(&made[0].theta), theta, "{codec}");
        for blob in [&made[0].theta, &made[0].momentum, &made[0].model] {
            blob.verify().unwrap();
        }
    }
}

#[test]
fn no_momentum_is_a_momentum_of_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let round = Round::new(dir.path(), 100, 2, Dtype::F32);
    let zeros = vec![0.0; round.layout.elements() as usize];
    let zeros = put(&round.store, &round.layout, Dtype::F32, &zeros);
    let merge = |momentum| {
        let inputs = MergeInputs {
            momentum,
            ..round.inputs()
        };
        let merged = merge_blobs(&round.store, &inputs, &MergeOptions::default());
        hashes(&merged.unwrap())
    };
    assert_eq!(merge(None), merge(Some(&zeros)));
    assert_ne!(merge(None), merge(Some(&round.momentum)));
}

#[test]
fn what_must_not_be_merged_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let round = Round::new(dir.path(), 100, 2, Dtype::F32);
    let with = |blob: Blob| vec![round.contributions[0].clone(), (blob, Tokens(5))];
    let refusal = |contributions: &[(Blob, Tokens)]| {
        round.refusal(&MergeInputs {
            contributions,
            ..round.inputs()
        })
    };
    assert!(refusal(&[]).contains("at least one contribution"));

    let other = layout(101);
    let other = put(&round.store, &other, Dtype::F32, &noise_of(9, &other));
    let message = refusal(&with(other));
    assert!(message.contains("contribution 1") && message.contains("model.embed_tokens.weight"));

    let bf16 = put(
        &round.store,
        &round.layout,
        Dtype::Bf16,
        &noise_of(9, &round.layout),
    );
    assert!(refusal(&with(bf16)).contains("the run's recipe says f32"));

    let mut values = noise_of(9, &round.layout);
    values[1603] = f32::NAN;
    let poison = put(&round.store, &round.layout, Dtype::F32, &values);
    let message = refusal(&with(poison));
    assert!(
        message.contains("1603") && message.contains("model.norm.weight"),
        "{message}"
    );

    let short = round.store.writer(5).unwrap().finish(1 << 20).unwrap();
    assert!(refusal(&with(short)).contains("header is cut"));
    assert!(matches!(
        read_header(
            &round.store.writer(99).unwrap().finish(1 << 20).unwrap(),
            "a file"
        ),
        Err(MergeFailure::Header { .. })
    ));
}

/// Runs this test binary again as the process that merges the round in `dir`, to be killed or
/// measured. Nobody else may have the directory open.
fn spawn_merger(dir: &Path, names: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_merging_child"])
        .env("HANSA_MERGE_CHILD_DIR", dir)
        .env("HANSA_MERGE_CHILD_BLOBS", names)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a story of its own: what [`spawn_merger`] starts. Without its variables it does nothing.
#[test]
fn the_merging_child() {
    let Some(dir) = std::env::var_os("HANSA_MERGE_CHILD_DIR") else {
        return;
    };
    let dir = Path::new(&dir);
    let names = std::env::var("HANSA_MERGE_CHILD_BLOBS").unwrap();
    let round = Round::open(dir, &names, Dtype::F32);
    round.merge(&options(2, 1 << 20));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak_kib = peak.and_then(|rest| rest.split_whitespace().next());
    std::fs::write(dir.join("peak_kib"), peak_kib.unwrap_or_default()).unwrap();
}

#[test]
fn a_merge_killed_halfway_and_run_again_makes_the_same_blobs() {
    const ROWS: usize = 200_000;
    let elsewhere = tempfile::tempdir().unwrap();
    let undisturbed = Round::new(elsewhere.path(), ROWS, 4, Dtype::F32).merge(&options(2, 1 << 20));

    let dir = tempfile::tempdir().unwrap();
    let names = Round::new(dir.path(), ROWS, 4, Dtype::F32).names();
    let mut child = spawn_merger(dir.path(), &names);
    // Wait for the first output file, so that the kill falls into the merge.
    let tmp = dir.path().join("tmp");
    while std::fs::read_dir(&tmp).map_or(0, Iterator::count) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "the child ended early");
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "the child came through");

    let round = Round::open(dir.path(), &names, Dtype::F32);
    let merged = round.merge(&options(1, 3 << 20));
    assert_eq!(hashes(&merged), hashes(&undisturbed));
    assert_eq!(
        std::fs::read_dir(&tmp).unwrap().count(),
        0,
        "rubbish is left"
    );
}

#[test]
fn more_contributions_take_no_more_memory() {
    const ROWS: usize = 100_000;
    const FILE_KIB: u64 = 6250;
    let peak_kib = |contributions| -> Option<u64> {
        let dir = tempfile::tempdir().unwrap();
        let names = Round::new(dir.path(), ROWS, contributions, Dtype::F32).names();
        let status = spawn_merger(dir.path(), &names).wait().unwrap();
        assert!(status.success());
        let peak = std::fs::read_to_string(dir.path().join("peak_kib")).unwrap();
        peak.parse().ok()
    };
    let (Some(few), Some(many)) = (peak_kib(2), peak_kib(24)) else {
        eprintln!("skipped: this system does not tell peak memory");
        return;
    };
    // Less than half of one contribution for 22 more of them.
    assert!(
        many < few + FILE_KIB / 2,
        "{few} KiB for 2, {many} KiB for 24"
    );
}
