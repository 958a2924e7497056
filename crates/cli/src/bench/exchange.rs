//! `hansa bench exchange`: one whole exchange of weights, step by step, beside its floor.

use crate::train::block_on;
use crate::ui;
use crate::ui::{note, out, print_json};
use anyhow::Context as _;
use clap::Args;
use hansa_bench::exchange::{self, Memory, Plan, Programs, ReplicaTask, Report};
use std::net::SocketAddr;
use std::path::PathBuf;

/// `hansa bench exchange`.
#[derive(Args)]
pub struct Arguments {
    /// The model whose shapes are used: qwen3-0.6b, qwen3-60m or tiny.
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
    /// Rounds to measure.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Plain HTTP instead of HTTPS.
    #[arg(long)]
    plain: bool,
    /// Where the coordinator listens; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where replicas find it instead: a relay with delay and rate, started before, which leads there.
    #[arg(long)]
    via: Option<SocketAddr>,
    /// All replicas share one folder of downloads.
    #[arg(long)]
    share_cache: bool,
    /// Cap each replica's transfers.
    #[arg(long, value_name = "MBIT", value_parser = ui::positive)]
    bulk_mbit: Option<f64>,
    /// A folder for everything, new or empty, on the disk that is to be measured; it is removed
    /// [default: one under the system's folder of temporary files].
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
        rounds: arguments.rounds.max(1),
        floors: usize::try_from(arguments.rounds.clamp(1, 5))?,
        dir: temporary.path().to_owned(),
        plain: arguments.plain,
        listen: arguments.listen,
        via: arguments.via,
        share_cache: arguments.share_cache,
        bulk_mbit: arguments.bulk_mbit,
    };
    let programs = Programs {
        exe: std::env::current_exe().context("find this program")?,
    };
    note!(
        "exchanging {} with {} sites, {} rounds",
        plan.model,
        plan.sites,
        plan.rounds
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
    let (up, down) = (
        report.sites as u64 * report.contribution_bytes,
        report.sites as u64 * report.model_bytes,
    );
    out!("step        seconds        bytes   goodput");
    let line = |name: &str, seconds: f64, bytes: u64, goodput: f64| match bytes {
        0 => out!("{name:<10} {seconds:>8.2}"),
        _ => out!(
            "{name:<10} {seconds:>8.2} {:>12} {:>7}/s",
            ui::bytes(bytes),
            ui::bytes(goodput as u64)
        ),
    };
    line("encode", median.encode_s, 0, 0.0);
    line(
        "upload",
        median.upload_s,
        up,
        report.upload_goodput_bytes_per_s,
    );
    line("verify", median.verify_s, 0, 0.0);
    line("merge", median.merge_s, 0, 0.0);
    line("publish", median.publish_s, 0, 0.0);
    line(
        "download",
        median.download_s,
        down,
        report.download_goodput_bytes_per_s,
    );
    out!(
        "total      {:>8.2}   medians of {} rounds",
        median.total_s,
        report.rounds.len()
    );
    out!(
        "floor      {:>8.2}   up {:.2}, state {:.2}, down {:.2}; ratio {:.2}",
        floor.total_s,
        floor.up_s,
        floor.state_s,
        floor.down_s,
        report.ratio
    );
    for Memory {
        process,
        peak_anon_shmem_bytes,
        peak_resident_bytes,
    } in &report.memory
    {
        let (anon, resident) = (
            ui::bytes(*peak_anon_shmem_bytes),
            ui::bytes(*peak_resident_bytes),
        );
        out!("{process:<12} peak {anon} anonymous and shared, {resident} resident");
    }
}
