//! `hansa bench exchange`: one whole exchange of weights, step by step, beside its floor.

use crate::demo::plain_table;
use crate::train::block_on;
use crate::ui;
use crate::ui::{note, out, print_json};
use anyhow::Context as _;
use clap::Args;
use hansa_bench::exchange::{self, Plan, Programs, ReplicaTask, Report};
use std::net::SocketAddr;
use std::path::PathBuf;

/// `hansa bench exchange`.
#[derive(Args)]
pub struct Arguments {
    /// The model whose shapes are used: qwen3-0.6b, qwen3-172m, qwen3-60m or tiny.
    #[arg(long, default_value = "qwen3-0.6b")]
    model: String,
    /// Sites, of one replica each.
    #[arg(long, default_value_t = 2)]
    sites: usize,
    /// How contributions travel: a value of the recipe's `exchange.contribution`.
    #[arg(long, default_value = "bf16")]
    codec: String,
    /// How models travel: f32 or bf16.
    #[arg(long, default_value = "bf16")]
    model_dtype: String,
    /// How many rounds are measured, and how often the floor is.
    #[arg(long, default_value_t = 5)]
    runs: u64,
    /// Plain HTTP instead of HTTPS.
    #[arg(long)]
    plain: bool,
    /// Where the coordinator listens; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where replicas find it instead: a relay with delay and rate, started before, which leads there.
    #[arg(long)]
    via: Option<SocketAddr>,
    /// Words to put before a replica's program, such as "ip netns exec far-away".
    #[arg(long, value_name = "WORDS", default_value = "")]
    replicas_with: String,
    /// All replicas share one folder of downloads.
    #[arg(long)]
    share_cache: bool,
    /// Cap each replica's transfers.
    #[arg(long, value_name = "MBIT", value_parser = ui::positive)]
    bulk_mbit: Option<f64>,
    /// Where a temporary folder with everything is made: on the disk, or the file system in memory, that
    /// is to be measured [default: the system's]. With qwen3-0.6b and two sites, files take up to 30 GB.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// `hansa bench replica`.
#[derive(Args)]
pub struct ReplicaArguments {
    /// The file that describes it.
    task: PathBuf,
}

/// Measures, prints, and removes what it wrote.
pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    let temporary = match &arguments.dir {
        None => tempfile::tempdir(),
        Some(dir) => {
            std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
            tempfile::tempdir_in(dir)
        }
    };
    let temporary = temporary.context("make a folder to work in")?;
    let plan = Plan {
        model: arguments.model,
        codec: arguments.codec,
        model_dtype: arguments.model_dtype,
        sites: arguments.sites.max(1),
        runs: arguments.runs.max(1),
        dir: temporary.path().to_owned(),
        plain: arguments.plain,
        listen: arguments.listen,
        via: arguments.via,
        share_cache: arguments.share_cache,
        bulk_mbit: arguments.bulk_mbit,
    };
    let programs = Programs {
        exe: std::env::current_exe().context("find this program")?,
        replicas_with: arguments
            .replicas_with
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
    };
    note!(
        "exchanging {} with {} sites, {} rounds",
        plan.model,
        plan.sites,
        plan.runs
    );
    let report = exchange::run(&plan, &programs)?;
    match arguments.json {
        true => print_json(&report),
        false => {
            print(&report);
            Ok(())
        }
    }
}

/// The process of one replica.
pub fn replica(arguments: &ReplicaArguments) -> anyhow::Result<()> {
    let path = &arguments.task;
    let json = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let task: ReplicaTask = serde_json::from_slice(&json).context("read a task")?;
    block_on(exchange::run_replica(task, |line| out!("{line}")))
}

fn print(report: &Report) {
    let Report { median, floor, .. } = report;
    let sites = report.sites as u64;
    let (up, down) = (
        sites * report.contribution_bytes,
        sites * report.model_bytes,
    );
    let mut steps = plain_table(&["step", "seconds", "bytes", "goodput"]);
    let rate = |per_s: f64| format!("{}/s", ui::bytes(per_s as u64));
    for (step, seconds, bytes, goodput) in [
        ("encode", median.encode_s, None, None),
        (
            "upload",
            median.upload_s,
            Some(up),
            Some(report.upload_goodput_bytes_per_s),
        ),
        ("verify", median.verify_s, None, None),
        ("merge", median.merge_s, None, None),
        ("publish", median.publish_s, None, None),
        (
            "download",
            median.download_s,
            Some(down),
            Some(report.download_goodput_bytes_per_s),
        ),
        ("all of it", median.total_s, None, None),
        ("floor: up", floor.up_s, Some(up), None),
        ("floor: state", floor.state_s, None, None),
        ("floor: down", floor.down_s, Some(down), None),
        ("floor", floor.total_s, None, None),
    ] {
        steps.add_row([
            step.to_owned(),
            format!("{seconds:.2}"),
            bytes.map(ui::bytes).unwrap_or_default(),
            goodput.map(rate).unwrap_or_default(),
        ]);
    }
    out!("{steps}");
    let mut processes = plain_table(&["process", "peak MiB", "resident MiB"]);
    let mib = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
    for process in &report.memory {
        processes.add_row([
            process.process.clone(),
            mib(process.peak_anon_shmem_bytes),
            mib(process.peak_resident_bytes),
        ]);
    }
    out!("{processes}");
    out!("{:.2} times the floor", report.ratio);
    let beats = report.heartbeats;
    out!(
        "{} heartbeats: {:.1} ms, at the most {:.1} ms",
        beats.count,
        beats.median_ms,
        beats.longest_ms
    );
    note!(
        "{}: medians of {} rounds, in each the slowest replica; peak is anonymous and shared memory",
        report.model,
        report.rounds.len()
    );
}
