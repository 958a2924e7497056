//! The merge alone: as a coordinator does it, on a model of real shapes.
//!
//! Every run takes the merge and its floor in turns, each in a process of its own, and the merged files
//! go at once. All runs of as many contributions must make the same files, whatever their threads: a
//! figure of a merge that is not right is of no use.

mod prepare;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hansa_base::Tokens;
use hansa_coordinator::merge::{MergeInputs, MergeOptions, merge_blobs};
use hansa_outer::{Codec, Dtype, Metadata, OuterStep};
use hansa_store::{Blob, BlobStore, DataDir};
use serde::{Deserialize, Serialize};

use crate::floor::Traffic;
use crate::measure::median;
use crate::model;
use crate::process::{Report, Starter, Task};
use prepare::Round;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// One of [`model::NAMES`].
    pub model: String,
    /// Numbers of contributions, each measured alone.
    pub contributions: Vec<usize>,
    /// How contributions are encoded.
    pub codec: Codec,
    /// How the merged model travels.
    pub model_dtype: Dtype,
    /// Numbers of threads; the first gives the figures, the others must make the same files.
    pub threads: Vec<NonZeroUsize>,
    /// Where a temporary folder with all files is made.
    pub dir: PathBuf,
    /// How often merge and floor are measured.
    pub runs: usize,
    /// Whether new files are made durable: each of these is measured.
    pub synced: Vec<bool>,
}

/// One line of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// How many contributions were merged.
    pub contributions: usize,
    /// Whether new files were durable before the clock stopped.
    pub synced: bool,
    /// Threads of both.
    pub threads: usize,
    /// Bytes read and written, by either.
    pub bytes: u64,
    /// Median of the merge.
    pub merge_s: f64,
    /// Median of the floor.
    pub floor_s: f64,
    /// Median of merge over floor, run by run.
    pub ratio: f64,
    /// Bytes over seconds of the merge, in 10⁹.
    pub merge_gb_per_s: f64,
    /// Bytes over seconds of the floor, in 10⁹.
    pub floor_gb_per_s: f64,
    /// Largest of all runs.
    pub peak_anon_shmem_bytes: u64,
    /// Largest of all runs: the program itself included.
    pub peak_resident_bytes: u64,
    /// Every run of the merge, in seconds.
    pub merge_runs_s: Vec<f64>,
    /// Every run of the floor, in seconds.
    pub floor_runs_s: Vec<f64>,
}

/// The whole result.
#[derive(Clone, Debug, Serialize)]
pub struct Result {
    /// The model's name.
    pub model: String,
    /// Its parameters.
    pub parameters: u64,
    /// Its tensors.
    pub tensors: usize,
    /// How contributions were encoded.
    pub codec: String,
    /// How the merged model travels.
    pub model_dtype: String,
    /// Files of contributions that differ; more contributions read these again.
    pub distinct_contributions: usize,
    /// One for each number of contributions, and with and without sync.
    pub lines: Vec<Line>,
}

/// Measures; `tell` hears what is going on.
///
/// # Errors
/// If there is no such model, a disk is full, a process fails, or two runs make different files.
pub fn run(
    options: &Options,
    starter: &Starter,
    tell: &mut dyn FnMut(&str),
) -> anyhow::Result<Result> {
    ensure!(
        options.runs > 0,
        "nothing to measure: ask for at least one run"
    );
    let most = options.contributions.iter().copied().max().unwrap_or(0);
    ensure!(
        most > 0 && options.contributions.iter().all(|count| *count > 0),
        "nothing to merge: name numbers of contributions from 1"
    );
    let layout = model::layout(&options.model)?;
    let dir = tempfile::Builder::new()
        .prefix("hansa-bench-")
        .tempdir_in(&options.dir)
        .with_context(|| format!("make a folder in {}", options.dir.display()))?;
    tell("writing weights of the model's shapes");
    let round = prepare::round(dir.path(), &layout, options.codec, most)?;
    let mut lines = Vec::new();
    for &synced in &options.synced {
        for &contributions in &options.contributions {
            let durable = if synced { "durable" } else { "not synced" };
            tell(&format!("merging {contributions} contributions, {durable}"));
            let bench = Bench {
                options,
                starter,
                round: &round,
                dir: dir.path(),
                contributions,
                synced,
            };
            lines.push(bench.line()?);
        }
    }
    Ok(Result {
        model: options.model.clone(),
        parameters: layout.elements(),
        tensors: layout.tensors().len(),
        codec: options.codec.to_string(),
        model_dtype: options.model_dtype.to_string(),
        distinct_contributions: round.distinct,
        lines,
    })
}

/// One line under way.
struct Bench<'a> {
    options: &'a Options,
    starter: &'a Starter,
    round: &'a Round,
    dir: &'a Path,
    contributions: usize,
    synced: bool,
}

impl Bench<'_> {
    fn line(&self) -> anyhow::Result<Line> {
        let threads = self.options.threads.first().map_or(1, |t| t.get());
        let writes = self.round.sizes_written(self.options.model_dtype)?;
        let reads = self.round.files_read(self.contributions);
        let bytes = writes.iter().sum::<u64>() + self.round.bytes_read(self.contributions)?;
        let floor = Task::Floor(Traffic {
            reads,
            writes,
            dir: self.dir.to_owned(),
            threads,
            synced: self.synced,
        });
        let (mut merges, mut floors) = (Vec::new(), Vec::new());
        for _ in 0..self.options.runs {
            floors.push(self.measure(&floor)?);
            merges.push(self.measure(&self.merge_task(threads))?);
        }
        let others = self.options.threads.iter().skip(1);
        let others = others.map(|threads| self.measure(&self.merge_task(threads.get())));
        let others = others.collect::<anyhow::Result<Vec<_>>>()?;
        for merge in merges.iter().chain(&others) {
            ensure!(
                merge.made == merges[0].made,
                "two merges of the same files differ: {:?} and {:?}",
                merge.made,
                merges[0].made
            );
        }
        let seconds = |reports: &[Report]| reports.iter().map(|r| r.seconds).collect::<Vec<_>>();
        let (merge_runs_s, floor_runs_s) = (seconds(&merges), seconds(&floors));
        let ratios = merge_runs_s.iter().zip(&floor_runs_s).map(|(m, f)| m / f);
        let ratios: Vec<f64> = ratios.collect();
        let (merge_s, floor_s) = (median(&merge_runs_s), median(&floor_runs_s));
        let peak = |of: fn(&Report) -> u64| merges.iter().map(of).max().unwrap_or(0);
        Ok(Line {
            contributions: self.contributions,
            synced: self.synced,
            threads,
            bytes,
            merge_s,
            floor_s,
            ratio: median(&ratios),
            merge_gb_per_s: bytes as f64 / 1e9 / merge_s,
            floor_gb_per_s: bytes as f64 / 1e9 / floor_s,
            peak_anon_shmem_bytes: peak(|report| report.peak_anon_shmem_bytes),
            peak_resident_bytes: peak(|report| report.peak_resident_bytes),
            merge_runs_s,
            floor_runs_s,
        })
    }

    /// Nothing that others left to be written may count.
    fn measure(&self, task: &Task) -> anyhow::Result<Report> {
        let dir = std::fs::File::open(self.dir).context("open the folder")?;
        rustix::fs::syncfs(&dir).context("sync the filesystem")?;
        self.starter.run(self.dir, task)
    }

    fn merge_task(&self, threads: usize) -> Task {
        Task::Merge(MergeTask {
            data: self.round.data.clone(),
            theta: self.round.theta.clone(),
            momentum: self.round.momentum.clone(),
            contributions: self.round.contributions(self.contributions),
            codec: self.options.codec.to_string(),
            model_dtype: self.options.model_dtype.to_string(),
            threads,
            synced: self.synced,
        })
    }
}

/// One merge, told to a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MergeTask {
    /// A data directory that nobody has open.
    pub data: PathBuf,
    /// The blob of the master weights.
    pub theta: String,
    /// The blob of the momentum.
    pub momentum: String,
    /// Blobs of contributions, in order.
    pub contributions: Vec<String>,
    /// How they are encoded.
    pub codec: String,
    /// How the model travels.
    pub model_dtype: String,
    /// Threads of the merge.
    pub threads: usize,
    /// Whether the new files are made durable.
    pub synced: bool,
}

impl MergeTask {
    /// Merges, removes what was made, and says how long the merge took and what it made.
    ///
    /// # Errors
    /// If a file is not there or the merge fails.
    pub fn run(&self) -> anyhow::Result<(Duration, Vec<String>)> {
        let lock = DataDir::lock(&self.data)?;
        let store = match self.synced {
            true => BlobStore::open(&lock)?,
            false => BlobStore::open_without_sync(&lock)?,
        };
        let open = |name: &String| anyhow::Ok(store.open_blob(name.parse()?)?);
        let weighed = |(index, name): (usize, &String)| {
            anyhow::Ok((open(name)?, Tokens(1_000_000 + index as u64)))
        };
        let contributions = self.contributions.iter().enumerate().map(weighed);
        let contributions = contributions.collect::<anyhow::Result<Vec<_>>>()?;
        let inputs = MergeInputs {
            theta: &open(&self.theta)?,
            momentum: Some(&open(&self.momentum)?),
            contributions: &contributions,
            step: OuterStep::Nesterov {
                lr: 0.7,
                momentum: 0.9,
            },
            codec: self.codec.parse()?,
            model_dtype: self.model_dtype.parse()?,
            metadata: Metadata::from([("generation".to_owned(), "1".to_owned())]),
        };
        let options = MergeOptions {
            threads: NonZeroUsize::new(self.threads).unwrap_or(NonZeroUsize::MIN),
            ..MergeOptions::default()
        };
        let merged = merge_blobs(&store, &inputs, &options)?;
        let made = [&merged.theta, &merged.momentum, &merged.model].map(Blob::hash);
        for hash in made {
            store.remove(hash)?;
        }
        let names = made.iter().map(ToString::to_string).collect();
        Ok((merged.elapsed, names))
    }
}
