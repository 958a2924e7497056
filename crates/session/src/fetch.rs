//! Calls and downloads, as tasks beside the loop.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hansa_base::Hash;
use hansa_protocol::replica::{Call, CallFailed, Input};
use hansa_protocol::{DigestFields, GenerationInfo, Reply};
use hansa_store::Manifest;
use hansa_transfer::{Progress, TransferError};
use tokio::sync::mpsc;

use crate::coordinator::{CallError, Coordinator, is_not_found};
use crate::error::Error;
use crate::event::SessionEvent;
use crate::shell::{Msg, Wanted};
use crate::startup::RETRY;
use crate::state_dir::StateDir;

/// Progress of a transfer is told this often.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Makes one call.
pub(crate) async fn call(
    coordinator: &Coordinator,
    sender: &mpsc::Sender<Msg>,
    call: Call,
    (digest, ranks): (DigestFields, u32),
    payload: Option<Manifest>,
    state: &StateDir,
) -> Result<Reply, CallError> {
    match (call, payload) {
        (
            Call::Register {
                nonce,
                resume,
                held,
            },
            _,
        ) => {
            coordinator
                .register(digest, ranks, nonce, resume, held)
                .await
        }
        (Call::Announce(announce), Some(payload)) => coordinator.announce(announce, &payload).await,
        (
            Call::Upload {
                id, payload: hash, ..
            },
            Some(payload),
        ) => {
            check_payload(hash, &payload)?;
            let meter = Meter::new(sender, |done_bytes, total_bytes| SessionEvent::Uploading {
                done_bytes,
                total_bytes,
            });
            let file = state.contribution(hash);
            let note = |progress| meter.note(progress);
            let sent = coordinator.upload(id, &file, &payload, &note).await;
            sent.map_err(|error| explain_loss(error, state, hash))
        }
        (Call::Announce(_) | Call::Upload { .. }, None) => Err(no_payload()),
        (call, _) => coordinator.plain(call).await,
    }
}

fn check_payload(hash: Hash, payload: &Manifest) -> Result<(), CallError> {
    if hash == payload.hash() {
        return Ok(());
    }
    Err(no_payload())
}

/// A contribution that is not there any more would be sent again at every start.
fn explain_loss(error: CallError, state: &StateDir, payload: Hash) -> CallError {
    let why = match error {
        CallError::Fatal(Error::Transfer(
            why @ (TransferError::SourceChanged { .. } | TransferError::Io { .. }),
        )) => why.to_string(),
        other => return other,
    };
    CallError::Fatal(Error::ContributionLost {
        path: state.contribution(payload),
        latest: state.latest(),
        why,
    })
}

/// The checkpoint names a contribution that this process does not have: both are written together.
fn no_payload() -> CallError {
    let why = "the contribution's manifest is not that of the checkpoint".to_owned();
    CallError::Failed(CallFailed::Unreachable(why))
}

/// Fetches a generation's model for as long as it takes, unless it is no longer served, or nothing comes
/// any more.
pub(crate) async fn model(
    coordinator: &Coordinator,
    sender: &mpsc::Sender<Msg>,
    generation: GenerationInfo,
    wanted: Wanted,
    give_up_after: Duration,
) -> Msg {
    let path = match &wanted {
        Wanted::Load { model, .. } => model,
        Wanted::Encode { base, .. } => base,
    };
    let meter = Meter::new(sender, |done_bytes, total_bytes| {
        SessionEvent::Downloading {
            done_bytes,
            total_bytes,
        }
    });
    let mut attempt = 0;
    let arrived = AtomicU64::new(0);
    let mut last = (0, Instant::now());
    loop {
        let note = |progress: Progress| {
            arrived.fetch_max(progress.done_bytes, Ordering::Relaxed);
            meter.note(progress);
        };
        let error = match coordinator.download(generation.manifest, path, &note).await {
            Ok(()) => return Msg::Fetched(wanted),
            Err(error) => error,
        };
        if is_not_found(&error) {
            return match wanted {
                Wanted::Load { .. } => Msg::Input(Input::Superseded),
                Wanted::Encode { .. } => Msg::Input(Input::Failed(format!(
                    "the base model {} is gone here and at the coordinator, so what was trained on \
                     it cannot be contributed; start again",
                    path.display()
                ))),
            };
        }
        if !error.is_transient() && !matches!(error, TransferError::BadAnswer { .. }) {
            return Msg::Fatal(Error::from(error));
        }
        let here = arrived.load(Ordering::Relaxed);
        if here > last.0 {
            last = (here, Instant::now());
        }
        let waited = last.1.elapsed();
        if waited >= give_up_after {
            let why = error.to_string();
            return Msg::Fatal(Error::Away { waited, why });
        }
        let _ = sender.send(Msg::Away(error.to_string())).await;
        let entropy = u64::from_le_bytes(std::array::from_fn(|i| generation.manifest.0[i]));
        let delay = RETRY.delay(attempt, entropy.rotate_left(attempt));
        tokio::time::sleep(delay.unwrap_or(RETRY.longest)).await;
        attempt = attempt.saturating_add(1);
    }
}

/// Hands a transfer's progress to the machine and to people, not too often.
struct Meter<'a, F> {
    sender: &'a mpsc::Sender<Msg>,
    event: F,
    told: Mutex<Option<Instant>>,
}

impl<'a, F: Fn(u64, u64) -> SessionEvent> Meter<'a, F> {
    fn new(sender: &'a mpsc::Sender<Msg>, event: F) -> Self {
        let told = Mutex::new(None);
        Self {
            sender,
            event,
            told,
        }
    }

    /// Never waits: what does not fit into the queue is told by the next call.
    fn note(&self, progress: Progress) {
        let (done, total) = (progress.done_bytes, progress.total_bytes);
        let Ok(mut told) = self.told.lock() else {
            return;
        };
        let soon = told.is_some_and(|at| at.elapsed() < TELL_EVERY);
        if soon && done < total {
            return;
        }
        *told = Some(Instant::now());
        let moved = done.max(progress.travelled_bytes);
        let _ = self.sender.try_send(Msg::Input(Input::Advanced(moved)));
        let _ = self.sender.try_send(Msg::Tell((self.event)(done, total)));
    }
}
