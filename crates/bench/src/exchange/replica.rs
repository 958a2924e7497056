//! The process of one replica: a real session around the pretended trainer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context as _;
use hansa_session::{Options, Session, SessionEvent};
use hansa_transfer::{Endpoint, Fingerprint, Token, Trust};
use serde::{Deserialize, Serialize};

use super::synthetic::Synthetic;
use crate::model;

/// What a replica's process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReplicaTask {
    /// The coordinator's address.
    pub url: String,
    /// Its certificate's fingerprint; none for plain HTTP.
    pub fingerprint: Option<String>,
    /// The site's token, good for this run only.
    pub token: String,
    /// `site/replica`.
    pub replica: String,
    /// The corpus.
    pub corpus: PathBuf,
    /// The replica's state.
    pub state: PathBuf,
    /// The model's name.
    pub model: String,
    /// Target tokens of a window.
    pub seq_len: u64,
    /// Of the changes to the weights.
    pub seed: u64,
    /// A folder to share downloads in.
    pub cache: Option<PathBuf>,
    /// A cap on bulk transfers.
    pub bulk_mbit: Option<f64>,
}

/// Takes part until the run is over; prints each event with its time, `at_s` since 1970.
///
/// # Errors
/// If the task cannot be understood, or the session fails.
pub async fn run_replica(
    task: ReplicaTask,
    print: impl Fn(String) + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let trust = match &task.fingerprint {
        None => Trust::LoopbackPlain,
        Some(text) => Trust::Pinned(
            text.parse::<Fingerprint>()
                .context("read the fingerprint")?,
        ),
    };
    let endpoint = Endpoint {
        base_url: task.url.clone(),
        token: Token::new(&task.token),
        trust,
    };
    let replica = task.replica.parse().context("read the replica's name")?;
    let mut options = Options::new(endpoint, replica, task.corpus.clone(), task.state.clone());
    options.link.cache.clone_from(&task.cache);
    options.link.bulk_mbit = task.bulk_mbit;
    options.events = Arc::new(move |event| print(line(event)));
    let layout = model::layout(&task.model)?;
    let session = Session::with_trainer(
        options,
        Box::new(move |_, _| Ok(Box::new(Synthetic::new(layout, task.seed, task.seq_len)))),
    );
    session.run().await.context("take part in the run")?;
    Ok(())
}

fn line(event: &SessionEvent) -> String {
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut json = serde_json::to_value(event).unwrap_or_default();
    json["at_s"] = at.unwrap_or_default().as_secs_f64().into();
    json.to_string()
}
