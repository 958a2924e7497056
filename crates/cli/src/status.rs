//! `hansa status`: what a run is doing, and what it waits for.

use crate::credentials::{Credentials, RemoteArguments};
use crate::demo::{ledger_table, plain_table, rounds_table};
use crate::token::OPERATOR_FILE;
use crate::ui;
use crate::ui::{note, out};
use anyhow::Context as _;
use clap::Args;
use hansa_coordinator::replay_journal;
use hansa_store::DataDir;
use hansa_transfer::{Client, Endpoint, Route};
use hansa_wire::http::{Client as Caller, path};
use hansa_wire::status::{ReplicaStatus, Status};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LISTENING_FILE: &str = "listening.json";
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Rounds shown to people; `--json` has all that the coordinator tells.
const ROUNDS_SHOWN: usize = 8;

/// `hansa status`.
#[derive(Args)]
pub struct Arguments {
    /// The coordinator's data directory, on its own machine; nothing else is needed then.
    #[arg(long)]
    data: Option<PathBuf>,
    #[command(flatten)]
    remote: RemoteArguments,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

/// Where a coordinator listens: its first event, and a file in its data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    /// `https://…` or, on loopback, `http://…`.
    pub url: String,
    /// Of its certificate; absent for plain HTTP.
    pub fingerprint: Option<String>,
}

impl Listening {
    /// From a line of `hansa serve --json`.
    pub fn from_event(event: &serde_json::Value) -> Option<Self> {
        let listening = event["event"] == "listening";
        listening
            .then(|| serde_json::from_value(event.clone()).ok())
            .flatten()
    }

    /// Address and port, to listen there again.
    pub fn address(&self) -> String {
        self.url.rsplit('/').next().unwrap_or_default().to_owned()
    }

    /// The address on its own machine. "Every address" is none to call: a client would look for a way
    /// to it through the site's proxy.
    fn url_here(&self) -> String {
        let url = self.url.replacen("://0.0.0.0:", "://127.0.0.1:", 1);
        url.replacen("://[::]:", "://[::1]:", 1)
    }

    /// Notes it in the data directory.
    pub fn save(&self, data: &Path) -> anyhow::Result<()> {
        let file = data.join(LISTENING_FILE);
        let text = serde_json::to_vec(self).context("write JSON")?;
        // Others read it at any time.
        Ok(hansa_store::replace_file(&file, &text, 0o644)?)
    }

    /// As noted in a data directory.
    pub fn load(data: &Path) -> anyhow::Result<Self> {
        let file = data.join(LISTENING_FILE);
        let text = std::fs::read(&file).with_context(|| {
            format!(
                "read {}: has `hansa serve` been started with this --data?",
                file.display()
            )
        })?;
        serde_json::from_slice(&text).with_context(|| format!("understand {}", file.display()))
    }
}

/// Prints a run's status.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let status = match arguments.data {
        // The environment may name a coordinator for `hansa train`; what was asked for wins.
        Some(data) => status_in(&data).await?,
        None => {
            let route = arguments.remote.route();
            ask(&route, &arguments.remote.endpoint()?).await?
        }
    };
    if arguments.json {
        return ui::print_json(&status);
    }
    print(&status);
    Ok(())
}

/// From the coordinator that serves a data directory; if nobody does, from its journal.
async fn status_in(data: &Path) -> anyhow::Result<Status> {
    let journal = DataDir::journal_path(data);
    if DataDir::is_locked(data) || !journal.exists() {
        return fetch(&Listening::load(data)?, data).await;
    }
    note!(
        "nobody serves {}: this is what its journal says",
        data.display()
    );
    Ok(replay_journal(data)?.status())
}

/// The status of the run in a data directory, from the coordinator that serves it.
pub async fn fetch(listening: &Listening, data: &Path) -> anyhow::Result<Status> {
    ask(&Route::default(), &operator_endpoint(listening, data)?).await
}

/// The coordinator of a data directory on this machine, with its operator's credentials.
pub fn operator_endpoint(listening: &Listening, data: &Path) -> anyhow::Result<Endpoint> {
    let credentials = Credentials::read(&data.join(OPERATOR_FILE))?;
    credentials.endpoint(&listening.url_here(), listening.fingerprint.as_deref())
}

/// A client that says it is a tool.
pub fn tool(endpoint: &Endpoint) -> anyhow::Result<Client> {
    tool_over(&Route::default(), endpoint)
}

fn tool_over(route: &Route, endpoint: &Endpoint) -> anyhow::Result<Client> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let caller = Caller {
        name: "hansa".to_owned(),
        version,
    };
    Ok(Client::over(route, endpoint, &caller.headers())?)
}

async fn ask(route: &Route, endpoint: &Endpoint) -> anyhow::Result<Status> {
    Ok(tool_over(route, endpoint)?
        .get_json(path::STATUS, ANSWER_WITHIN)
        .await?)
}

fn print(status: &Status) {
    let generation = &status.generation;
    let ledger = &status.ledger;
    out!(
        "run         {} ({})",
        status.run,
        status.run_id.chars().take(8).collect::<String>()
    );
    out!(
        "generation  {}, inner step {}, {} tokens, {:.1} % of the run",
        generation.number,
        ui::count(generation.inner_step),
        ui::count(generation.tokens),
        100.0 * generation.progress,
    );
    out!(
        "epoch {}     {} windows: {} free, {} leased, {} staged, {} committed, {} quarantined",
        status.epoch,
        ui::count(ledger.windows),
        ui::count(ledger.free),
        ui::count(ledger.leased),
        ui::count(ledger.staged),
        ui::count(ledger.committed),
        ui::count(ledger.quarantined),
    );
    if let Some(at) = status.evaluations.last() {
        out!(
            "held out    perplexity {:.2} at generation {}",
            at.perplexity,
            at.generation
        );
    }
    out!("waits for   {}", status.waiting.text);
    if let Some(text) = crate::ledger::quarantine(&status.quarantined_windows) {
        out!("{text}");
    }
    if let Some(pause) = &status.paused {
        out!("paused      {pause}");
    }
    for (site, why) in &status.drained {
        let ends = status.drain_ends_s.iter().find(|(of, _)| of == site);
        let until = ends.map(|(_, at)| format!(" until {}", ui::wall_time(at * 1000)));
        out!(
            "drained     {site}{}{}",
            until.unwrap_or_default(),
            because(why)
        );
    }
    if let (Some(why), None) = (&status.stopping, &status.ending) {
        out!("stopping    after the open round{}", because(why));
    }
    if let Some(ending) = &status.ending {
        out!("ending      {ending}");
    }
    out!("\n{}", members_table(&status.replicas));
    out!("\n{}", ledger_table(&status.replicas));
    let skipped = status.rounds.len().saturating_sub(ROUNDS_SHOWN);
    if !status.rounds.is_empty() {
        out!("\n{}", rounds_table(&status.rounds[skipped..]));
    }
}

/// An operator's reason as the end of a line.
fn because(why: &str) -> String {
    if why.is_empty() {
        String::new()
    } else {
        format!(": {why}")
    }
}

fn members_table(replicas: &[ReplicaStatus]) -> comfy_table::Table {
    let header = [
        "replica", "state", "windows", "loss", "tokens/s", "heard of",
    ];
    let mut table = plain_table(&header);
    for replica in replicas {
        let state = match (&replica.activity, &replica.left) {
            _ if replica.evicted.is_some() => {
                let why = replica.evicted.as_deref().unwrap_or_default();
                format!("evicted{}", because(why))
            }
            (_, Some(reason)) => format!("left: {reason}"),
            (Some(activity), None) if replica.refused_in_a_row > 1 => {
                let times = replica.refused_in_a_row;
                format!("{activity}; refused {times} times in a row")
            }
            (Some(activity), None) => activity.clone(),
            (None, None) => "live".to_owned(),
        };
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        table.add_row([
            format!("{}/{}", replica.site, replica.replica),
            state,
            or_dash(
                replica
                    .phase_windows
                    .filter(|_| replica.activity.as_deref() == Some("training"))
                    .map(|all| format!("{}/{all}", replica.counter)),
            ),
            or_dash(replica.loss.map(|loss| format!("{loss:.3}"))),
            or_dash(replica.tokens_per_s.map(|speed| ui::count(speed as u64))),
            or_dash(
                replica
                    .heard_ms_ago
                    .map(|ms| format!("{:.1} s ago", ms as f64 / 1e3)),
            ),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coordinator_on_every_address_is_asked_on_this_machine() {
        for (url, here) in [
            ("https://0.0.0.0:8443", "https://127.0.0.1:8443"),
            ("https://[::]:8443", "https://[::1]:8443"),
            ("https://10.0.0.1:8443", "https://10.0.0.1:8443"),
        ] {
            let listening = Listening {
                url: url.to_owned(),
                fingerprint: None,
            };
            assert_eq!(listening.url_here(), here);
        }
    }
}
