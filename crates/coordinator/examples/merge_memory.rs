//! Peak memory of the merge with few and with many contributions: it should not differ.
//!
//! `cargo run --release -p hansa-coordinator --example merge_memory [MILLION_PARAMETERS [DIR]]`
//!
//! Writes a model (default 100 million parameters) and 3, then 12 fp32 contributions of it into a
//! temporary directory (under DIR if given; 6 GB of disk for the default), merges each set in a child
//! process of its own, and prints the child's peak resident set (`VmHWM`, Linux). Files go at the end.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use hansa_base::{Hash, Tokens};
use hansa_coordinator::merge::{MergeInputs, MergeOptions, merge_blobs};
use hansa_outer::{Codec, Dtype, Header, Layout, Metadata, OuterStep, TensorSpec};
use hansa_store::{Blob, BlobStore, CHUNK_BYTES_DEFAULT, DataDir};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "child") {
        return child(&arguments[1..]);
    }
    let millions: usize = arguments.first().map_or(Ok(100), |text| text.parse())?;
    let parent = arguments
        .get(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(parent)?;
    let (theta, contributions) = write_round(dir.path(), millions * 1_000_000, 12)?;
    for count in [3, 12] {
        let mut child = Command::new(std::env::current_exe()?);
        child.arg("child").arg(dir.path()).arg(theta.to_string());
        child.args(contributions[..count].iter().map(Hash::to_string));
        ensure!(child.status()?.success(), "the merging process failed");
    }
    Ok(())
}

/// Fills a data directory with master weights and contributions; returns their names.
fn write_round(dir: &Path, elements: usize, count: u32) -> anyhow::Result<(Hash, Vec<Hash>)> {
    let lock = DataDir::lock(dir)?;
    let store = BlobStore::open(&lock)?;
    let layout = Layout::new([TensorSpec {
        name: "w".to_owned(),
        shape: vec![elements],
    }])?;
    let theta = write_file(&store, &layout, 0)?.hash();
    let contribution = |number| Ok(write_file(&store, &layout, number)?.hash());
    let contributions = (1..=count)
        .map(contribution)
        .collect::<anyhow::Result<_>>()?;
    Ok((theta, contributions))
}

fn write_file(store: &BlobStore, layout: &Layout, number: u32) -> anyhow::Result<Blob> {
    const PIECE: u64 = 1 << 20;
    let (header, head) = Header::build(layout, Dtype::F32, Metadata::new())?;
    let writer = store.writer(header.file_bytes())?;
    writer.write_all_at(&head, 0)?;
    let mut bytes = vec![0; PIECE as usize * 4];
    for start in (0..layout.elements()).step_by(PIECE as usize) {
        let end = (start + PIECE).min(layout.elements());
        let value = |i| ((i % 1009) as f32 + number as f32) * 1e-5;
        let values: Vec<f32> = (start..end).map(value).collect();
        let bytes = &mut bytes[..values.len() * 4];
        Dtype::F32.encode(&values, bytes);
        writer.write_all_at(bytes, header.byte_range(start..end).start)?;
    }
    Ok(writer.finish(CHUNK_BYTES_DEFAULT)?)
}

/// Merges the named blobs and says what that took.
fn child(arguments: &[String]) -> anyhow::Result<()> {
    let [dir, theta, contributions @ ..] = arguments else {
        anyhow::bail!("usage: child DIR THETA CONTRIBUTION…");
    };
    let lock = DataDir::lock(Path::new(dir))?;
    let store = BlobStore::open(&lock)?;
    let open = |name: &String| anyhow::Ok(store.open_blob(name.parse()?)?);
    let contributions = contributions
        .iter()
        .map(|name| anyhow::Ok((open(name)?, Tokens(1_000_000))))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let theta = open(theta)?;
    let before_kib = peak_resident_kib()?;
    let inputs = MergeInputs {
        theta: &theta,
        momentum: None,
        contributions: &contributions,
        step: OuterStep::Nesterov {
            lr: 0.7,
            momentum: 0.9,
        },
        codec: Codec::F32,
        model_dtype: Dtype::Bf16,
        metadata: Metadata::new(),
    };
    let merged = merge_blobs(&store, &inputs, &MergeOptions::default())?;
    let mib = |kib: u64| kib as f64 / 1024.0;
    println!(
        "{:>2} contributions of {:.0} MB: peak memory {:.1} MiB ({:.1} before), {:.1} s",
        contributions.len(),
        theta.manifest().total_bytes() as f64 / 1e6,
        mib(peak_resident_kib()?),
        mib(before_kib),
        merged.elapsed.as_secs_f64()
    );
    Ok(())
}

fn peak_resident_kib() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.context("find VmHWM")?.parse()?)
}
