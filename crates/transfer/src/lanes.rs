//! Drives the lanes of a transfer: as many as the control says, each taking the next chunk until none is
//! left; the first error that no retry mends ends them all.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::Client;
use crate::error::TransferError;
use crate::lane::Lane;
use crate::lane_control::LaneControl;
use crate::options::{Meter, Progress, TransferOptions};
use crate::queueing::Prober;
use crate::retire::Retirement;

/// How often progress is told and the number of lanes looked at.
const TICK: Duration = Duration::from_millis(100);

/// What a lane does with a chunk.
pub(crate) trait Work: Send + Sync + 'static {
    /// Moves one chunk, retries included.
    fn chunk(
        &self,
        lane: &mut Lane,
        chunk: u32,
    ) -> impl Future<Output = Result<(), TransferError>> + Send;
}

/// What the lanes share.
struct Shared<W> {
    work: W,
    left: Mutex<VecDeque<u32>>,
    wanted: AtomicUsize,
    running: AtomicUsize,
}

impl<W> Shared<W> {
    fn next(&self) -> Option<u32> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.pop_front()
    }

    fn left(&self) -> usize {
        self.left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Whether this lane is one too many; if so, it is not counted any more.
    fn leaves(&self) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let fewer = |running: usize| (running > wanted).then(|| running - 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.running.fetch_update(set, fetch, fewer).is_ok()
    }
}

/// Moves these chunks. Dropped, it ends at once.
pub(crate) async fn run<W: Work>(
    client: &Client,
    chunks: Vec<u32>,
    work: W,
    meter: &Meter,
    options: &TransferOptions,
    on_progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<(), TransferError> {
    let began = Instant::now();
    let mut control = LaneControl::new(options.lanes, Duration::ZERO);
    let before_bytes = meter.now().travelled_bytes;
    let shared = Arc::new(Shared {
        work,
        left: Mutex::new(chunks.into()),
        wanted: control.lanes().into(),
        running: 0.into(),
    });
    let retirement = Arc::new(Mutex::new(Retirement::new(client.behind_proxy())));
    let prober = Prober::start(client.clone());
    let mut lanes = JoinSet::new();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let running = shared.running.load(Ordering::Relaxed);
        for _ in running..control.lanes().min(running + shared.left()) {
            shared.running.fetch_add(1, Ordering::Relaxed);
            let lane = Lane::new(client.clone(), retirement.clone());
            lanes.spawn(drive(lane, shared.clone()));
        }
        tokio::select! {
            ended = lanes.join_next() => match ended {
                None => break,
                Some(Ok(result)) => result?,
                Some(Err(error)) => {
                    return Err(TransferError::io("go on with", "a lane")(error.into()));
                }
            },
            _ = tick.tick() => {
                let progress = meter.now();
                on_progress(progress);
                let bytes = progress.travelled_bytes - before_bytes;
                let wanted = control.observe(began.elapsed(), bytes, prober.is_queueing());
                if shared.wanted.swap(wanted, Ordering::Relaxed) != wanted {
                    tracing::debug!(lanes = wanted, "another number of connections");
                }
            }
        }
    }
    on_progress(meter.now());
    Ok(())
}

async fn drive<W: Work>(mut lane: Lane, shared: Arc<Shared<W>>) -> Result<(), TransferError> {
    while !shared.leaves() {
        let Some(chunk) = shared.next() else {
            shared.running.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        };
        shared.work.chunk(&mut lane, chunk).await?;
    }
    Ok(())
}
