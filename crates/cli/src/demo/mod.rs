//! `hansa demo`: a whole run on one machine, with deaths and returns. Nothing in it is special: it
//! builds a corpus, starts `hansa serve` and three `hansa train`, and kills them now and then.

mod children;
mod prepare;
mod report;
mod screen;
mod stage;
mod story;
mod text;

use crate::ui::note;
pub use report::{ledger_table, plain_table, rounds_table};

use anyhow::bail;
use clap::Args;
use prepare::Places;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// `hansa demo`.
#[derive(Args)]
pub struct Arguments {
    /// Train on this text (JSON lines, json.gz or plain) instead of the demo's own.
    #[arg(long, num_args = 1.., value_name = "FILE")]
    text: Vec<PathBuf>,
    /// Where the demo keeps everything; if a demo was stopped there, it goes on.
    #[arg(long, default_value = "hansa-demo")]
    dir: PathBuf,
    /// Rounds to train.
    #[arg(long, default_value_t = 20)]
    rounds: u64,
}

/// How a demo ends.
enum End {
    /// The run is complete.
    Complete,
    /// Somebody wants it to stop.
    Interrupted,
}

/// Plays the demo.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let start = Instant::now();
    let places = Places::new(&std::path::absolute(&arguments.dir)?);
    let mut found = std::fs::read_dir(places.root()).into_iter().flatten();
    if found.next().is_some() && !places.root().join("logs").exists() {
        bail!(
            "{} exists and is no demo's folder: choose another one with --dir",
            places.root().display()
        );
    }
    let prepared = places.clone();
    let (text, rounds) = (arguments.text, arguments.rounds);
    tokio::task::spawn_blocking(move || prepare::prepare(&prepared, &text, rounds)).await??;
    if is_complete(&places)? {
        note!("this demo is complete; to play another one, give it another folder with --dir");
        return report_end(&places, start.elapsed());
    }
    let mut stage = stage::Stage::open(places.clone())?;
    let end = stage.play().await;
    stage.clear();
    match end? {
        End::Complete => report_end(&places, start.elapsed()),
        End::Interrupted => {
            note!(
                "stopped; every process has ended. To go on: hansa demo --dir {}",
                arguments.dir.display()
            );
            std::process::exit(130)
        }
    }
}

/// The run is over, and its model is there: whoever was killed in between has yet to export it.
fn is_complete(places: &Places) -> anyhow::Result<bool> {
    let exported = places.data().join("export/model.safetensors").exists();
    Ok(exported
        && hansa_coordinator::replay_journal(&places.data())?
            .state
            .ended)
}

fn report_end(places: &Places, took: Duration) -> anyhow::Result<()> {
    report::print(places, &story::Story::load(&places.story())?, took)
}
