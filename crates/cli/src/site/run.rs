//! `hansa site run`: the process on the login node.

use super::endpoint;
use crate::ui::{note, out};
use anyhow::Context as _;
use clap::Args;
use hansa_site::{Note, Notes, Options, Profile, default_home};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// `hansa site run`.
#[derive(Args)]
pub struct Arguments {
    /// The site's profile.
    profile: PathBuf,
    /// Where the process keeps what it must not forget; on storage that all login nodes see
    /// [default: hansa-site-NAME beside the profile].
    #[arg(long)]
    home: Option<PathBuf>,
    /// Do what is due, and end: for small jobs that submit themselves again.
    #[arg(long)]
    once: bool,
    /// End the turn of another process that runs this site.
    #[arg(long)]
    take_over: bool,
    /// Print what happens as JSON lines on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs until a signal asks for the end; jobs go on without it.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let profile = Profile::load(&arguments.profile)?;
    let endpoint = endpoint(&profile)?;
    let home = arguments.home;
    let options = Options {
        home: home.unwrap_or_else(|| default_home(&arguments.profile)),
        endpoint,
        take_over: arguments.take_over,
        once: arguments.once,
        notes: match arguments.json {
            true => Arc::new(|note: &Note| out!("{}", event(note))),
            false => plain(&profile.name),
        },
        profile,
    };
    let (ask, asked) = watch::channel(false);
    let mut signals = Vec::new();
    for kind in [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ] {
        signals.push(signal(kind).context("listen for signals")?);
    }
    for mut signal in signals {
        let ask = ask.clone();
        tokio::spawn(async move {
            if signal.recv().await.is_some() {
                let _ = ask.send(true);
            }
        });
    }
    Ok(hansa_site::run(options, asked).await?)
}

fn plain(site: &str) -> Notes {
    let site = site.to_owned();
    Arc::new(move |happened| {
        let line = match happened {
            Note::Started { run } => format!("runs jobs of run {}", run.get(..8).unwrap_or(run)),
            Note::Away(why) => format!("the coordinator is away, jobs go on: {why}"),
            Note::Busy(who) => format!("executes nothing: {who}"),
            Note::Trouble(text) => format!("Slurm does not answer: {text}"),
            Note::Recovered => "Slurm answers again".to_owned(),
            Note::Fails { what, why } => format!("{what} does not work: {why}"),
            Note::Works { what } => format!("{what} works again"),
            Note::Submitted { intent, job, found } => {
                let how = if *found { "found" } else { "submitted" };
                format!("{how} job {job} for intent {intent}")
            }
            Note::Refused { intent, why } => format!("no job for intent {intent}: {why}"),
            Note::Job { intent, job, state } => format!("job {job} of intent {intent} is {state}"),
            Note::Cancelled { intent, job, why } => {
                format!("job {job} of intent {intent} is cancelled: {why}")
            }
            Note::Ended => "the run is over, and so are its jobs here".to_owned(),
            Note::Relay { address } => format!("relays compute nodes at {address}"),
        };
        note!("{site}: {line}");
    })
}

fn event(note: &Note) -> serde_json::Value {
    use serde_json::json;
    match note {
        Note::Started { run } => json!({ "event": "started", "run": run }),
        Note::Away(why) => json!({ "event": "away", "why": why }),
        Note::Busy(who) => json!({ "event": "busy", "who": who }),
        Note::Trouble(text) => json!({ "event": "trouble", "text": text }),
        Note::Recovered => json!({ "event": "recovered" }),
        Note::Fails { what, why } => json!({ "event": "fails", "what": what, "why": why }),
        Note::Works { what } => json!({ "event": "works", "what": what }),
        Note::Submitted { intent, job, found } => {
            json!({ "event": "submitted", "intent": intent, "job": job, "found": found })
        }
        Note::Refused { intent, why } => {
            json!({ "event": "refused", "intent": intent, "why": why })
        }
        Note::Job { intent, job, state } => {
            json!({ "event": "job", "intent": intent, "job": job, "state": state })
        }
        Note::Cancelled { intent, job, why } => {
            json!({ "event": "cancelled", "intent": intent, "job": job, "why": why })
        }
        Note::Ended => json!({ "event": "ended" }),
        Note::Relay { address } => json!({ "event": "relay", "address": address }),
    }
}
