//! `hansa serve`: the coordinator of one run.

use crate::status::Listening;
use crate::token::{self, OPERATOR_FILE};
use crate::ui;
use crate::ui::{note, out};
use anyhow::Context as _;
use clap::Args;
use hansa_coordinator::{BulkCaps, Coordinator, Listen, Options, Scope, Summary};
use hansa_queue::Timing;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `hansa serve`.
#[derive(Args)]
pub struct Arguments {
    /// The run's recipe.
    recipe: PathBuf,
    /// Where the coordinator keeps journal, models and tokens; made on the first start.
    #[arg(long)]
    data: PathBuf,
    /// Address and port to listen on; port 0 takes a free one.
    #[arg(long, default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// Plain HTTP instead of HTTPS; on a loopback address only.
    #[arg(long)]
    plain: bool,
    /// Delete nothing: keep every generation and every contribution, so that all merges can be done
    /// again. Takes as much disk as everything that was ever exchanged.
    #[arg(long)]
    keep_all: bool,
    /// After the run's end, wait so many minutes for replicas that were lost before it, to tell them
    /// [default: the recipe's session_ttl_s].
    #[arg(long)]
    farewell_min: Option<u32>,
    /// Let uploads and downloads of all replicas together take at most so many Mbit/s.
    #[arg(long, value_name = "MBIT", value_parser = ui::positive)]
    bulk_mbit: Option<f64>,
    /// The same for each replica.
    #[arg(long, value_name = "MBIT", value_parser = ui::positive)]
    bulk_mbit_per_replica: Option<f64>,
    /// How often site processes (`hansa site run`) call. One that is silent nine times as long has lost
    /// its site to whoever asks next.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    site_sync_s: u32,
    /// Print what happens as JSON lines on stdout.
    #[arg(long)]
    json: bool,
}

/// Serves until the run is over or a signal asks for the end.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut options = Options::new(&arguments.recipe, &arguments.data);
    options.keep_all = arguments.keep_all;
    let minutes = |minutes| Duration::from_secs(60 * u64::from(minutes));
    options.farewell = arguments.farewell_min.map(minutes);
    options.bulk = BulkCaps {
        all_mbit: arguments.bulk_mbit,
        replica_mbit: arguments.bulk_mbit_per_replica,
    };
    options.queue = Timing::every(Duration::from_secs(u64::from(arguments.site_sync_s)));
    let opened = tokio::task::spawn_blocking(move || Coordinator::open(options));
    let coordinator = opened.await.context("open the run")??;
    let (name, generation) = (coordinator.recipe().name.clone(), coordinator.generation());
    let fingerprint = (!arguments.plain).then(|| coordinator.fingerprint().to_string());
    let listen = match arguments.plain {
        true => Listen::PlainLoopback(arguments.listen),
        false => Listen::Tls(arguments.listen),
    };
    let service = coordinator.listen(listen).await?;
    let scheme = if arguments.plain { "http" } else { "https" };
    let url = format!("{scheme}://{}", service.address());
    let listening = Listening { url, fingerprint };
    listening.save(&arguments.data)?;
    let operator = arguments.data.join(OPERATOR_FILE);
    if !operator.exists() {
        token::issue(&arguments.data, &Scope::Operator, &operator)?;
    }
    let asked_to_stop = asked_to_stop()?;
    announce(&arguments, &listening, &name, generation.0);
    let summary = service.run(asked_to_stop).await?;
    tell_end(&arguments, &summary);
    Ok(())
}

fn announce(arguments: &Arguments, listening: &Listening, name: &str, generation: u64) {
    let Listening { url, fingerprint } = listening;
    if arguments.json {
        let event = serde_json::json!({
            "event": "listening",
            "url": url,
            "fingerprint": fingerprint,
            "run": name,
            "generation": generation,
        });
        out!("{event}");
        return;
    }
    out!("run {name:?} is at generation {generation}; listening on {url}");
    if let Some(fingerprint) = fingerprint {
        out!("fingerprint {fingerprint}");
    }
    let data = arguments.data.display();
    note!("access for a site: hansa token add SITE --data {data}");
    note!("what goes on:      hansa status --data {data}");
}

fn tell_end(arguments: &Arguments, summary: &Summary) {
    let export = summary.export.as_deref().map(Path::display);
    if arguments.json {
        let event = serde_json::json!({
            "event": "ended",
            "run_over": summary.run_over,
            "generation": summary.status.generation.number,
            "quarantined_windows": summary.status.quarantined_windows,
            "export": export.map(|path| path.to_string()),
        });
        out!("{event}");
    } else if summary.run_over {
        let generation = summary.status.generation.number;
        let committed = summary.status.ledger.committed + summary.status.ledger.committed_before;
        let windows = ui::count(committed);
        out!("the run is over at generation {generation}, {windows} windows committed");
        let lost: u64 = summary.status.replicas.iter().map(|r| r.tally.failed).sum();
        if lost > 0 {
            out!(
                "{} windows were lost with who trained them, and trained again",
                ui::count(lost)
            );
        }
        if let Some(text) = crate::ledger::quarantine(&summary.status.quarantined_windows) {
            out!("{text}");
        }
        if let Some(export) = export {
            out!("model: {export}");
        }
    } else {
        note!("stopped; the same command goes on with the run");
    }
}

/// Resolves at SIGTERM or Ctrl-C. Both are listened for when this returns: whoever has read that the
/// coordinator listens may ask it to stop.
fn asked_to_stop() -> anyhow::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| signal(kind).context("listen for signals");
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
