//! `hansa train`: one replica with the embedded trainer.

use crate::credentials::CoordinatorArguments;
use crate::ui;
use crate::ui::{note, out};
use anyhow::Context as _;
use clap::Args;
use hansa_base::{ReplicaId, ReplicaName, SiteName};
use hansa_session::{EventSink, LinkOptions, Options, Outcome, Session, SessionEvent};
use hansa_transfer::{HttpVersion, Proxy};
use indicatif::ProgressBar;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// `hansa train`.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    coordinator: CoordinatorArguments,
    #[command(flatten)]
    replica: ReplicaArguments,
    /// Threads of the trainer [default: all cores].
    #[arg(long)]
    threads: Option<usize>,
    /// Train at most this many windows per second: to play a slower site on one machine.
    #[arg(long, hide_short_help = true)]
    pace: Option<f64>,
}

/// What every replica needs, whatever trains it.
#[derive(Args)]
pub struct ReplicaArguments {
    /// The facility's name.
    #[arg(long)]
    site: SiteName,
    /// This replica's name at its site.
    #[arg(long)]
    replica: ReplicaName,
    /// The corpus directory at this site.
    #[arg(long)]
    corpus: PathBuf,
    /// Where this replica keeps checkpoints and its place in the run; the next job of the same
    /// replica must find it there [default: hansa-state/SITE-REPLICA].
    #[arg(long)]
    state: Option<PathBuf>,
    /// Let uploads and downloads take at most so many Mbit/s of the site's link, together.
    #[arg(long, value_name = "MBIT", value_parser = ui::positive)]
    bulk_mbit: Option<f64>,
    /// A folder that replicas of this site share, so that each model travels to the site once.
    #[arg(long)]
    cache: Option<PathBuf>,
    /// A file that names the proxy to the coordinator and how to log in there, as `hansa site run` writes it
    /// for its relay; it is read anew for each connection.
    #[arg(long, env = "HANSA_PROXY_FILE", value_name = "FILE")]
    proxy_file: Option<PathBuf>,
    /// Speak HTTP/2, where a proxy or a firewall likes that better than HTTP/1.1.
    #[arg(long, hide_short_help = true)]
    http2: bool,
    /// If another process trains under this name, wait until it is gone.
    #[arg(long)]
    wait_if_busy: bool,
    /// If the coordinator does not answer for so many minutes, end with exit code 75: a later job goes
    /// on. Once a replica was told that the run is over, it ends with 0 instead, and sooner.
    #[arg(long, default_value_t = 30.0, value_parser = minutes)]
    give_up_after_min: f64,
    /// How many seconds a stop may take: finish the step, encode, upload, say goodbye. What is not done by
    /// then is left to a successor.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 120,
        overrides_with = "leave_within_s"
    )]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    leave_within_s: u64,
    /// Print what happens as JSON lines on stdout instead of a progress bar.
    #[arg(long)]
    pub json: bool,
}

impl ReplicaArguments {
    /// The session's options that the arguments describe.
    pub fn options(self, coordinator: &CoordinatorArguments) -> anyhow::Result<Options> {
        let endpoint = coordinator.endpoint()?;
        let state = self.state.unwrap_or_else(|| {
            PathBuf::from("hansa-state").join(format!("{}-{}", self.site, self.replica))
        });
        let replica = ReplicaId {
            site: self.site,
            replica: self.replica,
        };
        let mut options = Options::new(endpoint, replica, self.corpus, state);
        options.give_up_after = Duration::from_secs_f64(60.0 * self.give_up_after_min);
        options.first_contact_within = options.first_contact_within.min(options.give_up_after);
        options.link = LinkOptions {
            bulk_mbit: self.bulk_mbit,
            cache: self.cache,
            ..LinkOptions::default()
        };
        if let Some(file) = self.proxy_file {
            options.link.route.proxy = Proxy::File(file);
        }
        if self.http2 {
            options.link.route.http = HttpVersion::Two;
        }
        options.wait_if_busy = self.wait_if_busy;
        options.leave_within = Duration::from_secs(self.leave_within_s);
        options.events = if self.json {
            json_lines()
        } else {
            progress_bar()
        };
        Ok(options)
    }
}

/// Trains until the run is over or a signal asks for a goodbye.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let json = arguments.replica.json;
    let mut options = arguments.replica.options(&arguments.coordinator)?;
    options.threads = arguments.threads;
    options.pace = arguments.pace;
    let outcome = Session::new(options).run().await?;
    say(&outcome, json);
    Ok(())
}

/// How it ended, unless the events have said it.
pub fn say(outcome: &Outcome, json: bool) {
    if !json {
        note!("{outcome}");
    }
}

/// A number of minutes, up to a year.
pub fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    let fits = (0.0..=366.0 * 24.0 * 60.0).contains(&minutes);
    fits.then_some(minutes)
        .ok_or_else(|| "it must be 0 to a year of minutes".to_owned())
}

fn json_lines() -> EventSink {
    Arc::new(|event| {
        if let Ok(line) = serde_json::to_string(event) {
            out!("{line}");
        }
    })
}

/// A bar for what is going on, and a line for what is worth keeping.
fn progress_bar() -> EventSink {
    let bar = ProgressBar::new(0);
    bar.set_style(ui::bar_style("{prefix:<12} {bar:32} {msg}"));
    bar.enable_steady_tick(Duration::from_millis(200));
    let plain = bar.is_hidden();
    Arc::new(move |event| draw(&bar, plain, event))
}

fn draw(bar: &ProgressBar, plain: bool, event: &SessionEvent) {
    if let Some((prefix, done, total, message)) = bar_of(event) {
        bar.set_prefix(prefix);
        bar.set_length(total.max(1));
        bar.set_position(done);
        bar.set_message(message);
    } else if let Some(line) = line_of(event) {
        if plain {
            note!("{line}")
        } else {
            bar.println(line)
        }
    }
}

/// What the bar shows of an event: activity, how much of how much, and the rest in words.
fn bar_of(event: &SessionEvent) -> Option<(&'static str, u64, u64, String)> {
    Some(match event {
        SessionEvent::Step {
            generation,
            step,
            steps,
            loss,
            tokens_per_s,
            ..
        } => {
            let speed = ui::count(*tokens_per_s as u64);
            let rest = format!("step {step}/{steps} · loss {loss:.4} · {speed} tokens/s");
            let message = format!("generation {generation} · {rest}");
            ("training", *step, *steps, message)
        }
        SessionEvent::Downloading {
            done_bytes: done,
            total_bytes: total,
        } => ("downloading", *done, *total, ui::bytes(*total)),
        SessionEvent::Uploading {
            done_bytes: done,
            total_bytes: total,
        } => ("uploading", *done, *total, ui::bytes(*total)),
        SessionEvent::Evaluating {
            generation,
            done_windows: done,
            total_windows: total,
        } => {
            let message = format!("generation {generation} on held-out windows");
            ("evaluating", *done, *total, message)
        }
        SessionEvent::CheckingCorpus {
            done_bytes: done,
            total_bytes: total,
        } => {
            let message = "the corpus against its manifest".to_owned();
            ("checking", *done, *total, message)
        }
        SessionEvent::Waiting { reason } => ("waiting", 0, 0, reason.clone()),
        _ => return None,
    })
}

/// What is worth a line of its own.
fn line_of(event: &SessionEvent) -> Option<String> {
    Some(match event {
        SessionEvent::Registered {
            incarnation,
            generation,
            inherited_windows: 0,
        } => {
            format!("joined as incarnation {incarnation}; the run is at generation {generation}")
        }
        SessionEvent::Registered {
            incarnation,
            inherited_windows,
            ..
        } => format!(
            "joined as incarnation {incarnation}, going on with {inherited_windows} leased windows"
        ),
        SessionEvent::Resumed { step, .. } => format!("resumed in mid-phase after step {step}"),
        SessionEvent::Contributed {
            generation,
            windows,
            steps,
            ..
        } => {
            format!(
                "contributed {windows} windows, {steps} steps, to generation {}",
                generation + 1
            )
        }
        SessionEvent::ContributionRefused { reason } => format!("contribution refused: {reason}"),
        SessionEvent::WorkDropped { windows, reason } => {
            format!("{windows} trained windows are void: {reason}")
        }
        SessionEvent::Evaluated {
            generation,
            perplexity,
            ..
        } => {
            format!("generation {generation}: held-out perplexity {perplexity:.2}")
        }
        SessionEvent::CoordinatorAway { for_s, reason } => {
            format!("the coordinator has been away for {for_s:.0} s: {reason}")
        }
        SessionEvent::CoordinatorBack { after_s } => {
            format!("the coordinator answers again after {after_s:.0} s")
        }
        SessionEvent::TrainerLost { reason, again_in_s } => {
            format!("{reason}; the trainer is started again in {again_in_s:.0} s")
        }
        SessionEvent::ToldToLeave { reason } => reason.clone(),
        SessionEvent::Leaving { steps } => {
            format!("leaving: the {steps} steps of this phase are contributed first")
        }
        _ => return None,
    })
}

/// A runtime for a command that talks to the network.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build();
    runtime.context("start the runtime")?.block_on(work)
}
