//! `hansa bench merge`.

use super::starter;
use crate::demo::plain_table;
use crate::ui::{count, note, out, print_json};
use clap::{Args, ValueEnum};
use hansa_bench::merge::{Options, Result, run as measure};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Which syncs are measured.
#[derive(Clone, Copy, ValueEnum)]
enum Sync {
    /// New files are durable before the clock stops, as in a run.
    With,
    /// They are not, to see what memory and processor cost.
    Without,
    /// Both, one after the other.
    Both,
}

/// `hansa bench merge`.
#[derive(Args)]
pub struct Arguments {
    /// The model of which the shapes are taken: qwen3-0.6b, qwen3-172m, qwen3-60m or tiny.
    #[arg(long, default_value = "qwen3-0.6b")]
    model: String,
    /// Numbers of contributions, each measured alone.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    contributions: Vec<usize>,
    /// How contributions are encoded: f32, bf16 or int8.
    #[arg(long, default_value = "bf16")]
    codec: String,
    /// How the merged model travels: f32 or bf16.
    #[arg(long, default_value = "bf16")]
    model_dtype: String,
    /// Numbers of threads [default: one for each core]; after the first, one merge each, which must make
    /// the same files.
    #[arg(long, value_delimiter = ',')]
    threads: Vec<NonZeroUsize>,
    /// Where a temporary folder is made [default: the system's]. With qwen3-0.6b, files take up to 18 GB.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// How often merge and floor are measured.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Whether new files are made durable.
    #[arg(long, value_enum, default_value_t = Sync::Both)]
    sync: Sync,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the measurement.
pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut threads = arguments.threads;
    if threads.is_empty() {
        threads = vec![std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)];
    }
    let options = Options {
        model: arguments.model,
        contributions: arguments.contributions,
        codec: arguments.codec.parse()?,
        model_dtype: arguments.model_dtype.parse()?,
        threads,
        dir: arguments.dir.unwrap_or_else(std::env::temp_dir),
        runs: arguments.runs,
        synced: match arguments.sync {
            Sync::With => vec![true],
            Sync::Without => vec![false],
            Sync::Both => vec![false, true],
        },
    };
    let result = measure(&options, &starter()?, &mut |what| note!("{what} …"))?;
    if arguments.json {
        return print_json(&result);
    }
    print(&result);
    Ok(())
}

fn print(result: &Result) {
    let mut table = plain_table(&[
        "contributions",
        "sync",
        "merge s",
        "floor s",
        "ratio",
        "merge GB/s",
        "floor GB/s",
        "peak MiB",
        "resident MiB",
    ]);
    let mib = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
    for line in &result.lines {
        table.add_row([
            line.contributions.to_string(),
            (if line.synced { "yes" } else { "no" }).to_owned(),
            format!("{:.2}", line.merge_s),
            format!("{:.2}", line.floor_s),
            format!("{:.2}", line.ratio),
            format!("{:.2}", line.merge_gb_per_s),
            format!("{:.2}", line.floor_gb_per_s),
            mib(line.peak_anon_shmem_bytes),
            mib(line.peak_resident_bytes),
        ]);
    }
    out!("{table}");
    note!(
        "{}: {} parameters in {} tensors, contributions {}, model {}; medians; peak is anonymous and \
         shared memory of the merging process; {} files of contributions differ",
        result.model,
        count(result.parameters),
        result.tensors,
        result.codec,
        result.model_dtype,
        result.distinct_contributions,
    );
}
