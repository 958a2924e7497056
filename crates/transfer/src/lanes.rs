//! Drives the lanes of a transfer: as many as the control says, each taking the next chunk until none is
//! left, and then those of slow lanes; the first error that no retry mends ends them all.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hansa_store::Manifest;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::error::TransferError;
use crate::lane::Lane;
use crate::lane_control::LaneControl;
use crate::options::{Meter, Progress, TransferOptions};
use crate::queueing::Prober;
use crate::retire::Retirement;
use crate::under_way::{Task, UnderWay};

/// How often progress is told and the number of lanes looked at.
const TICK: Duration = Duration::from_millis(100);
/// How often a lane that has nothing to do looks for one that is slow.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long it waits for an answer about one.
const ASK_MAX: Duration = Duration::from_secs(3);
/// So many of them look; the server has other things to do than to answer them.
const IDLE_MAX: usize = 4;

/// What a lane does with a chunk.
pub(crate) trait Work: Send + Sync + 'static {
    /// Whether a lane can go on with what another one has begun.
    const CAN_BE_TAKEN_OVER: bool;

    /// Moves one chunk, of which the first `from` bytes are there, retries included.
    fn chunk(
        &self,
        lane: &mut Lane,
        chunk: u32,
        from: u64,
    ) -> impl Future<Output = Result<(), TransferError>> + Send;

    /// What is moved.
    fn manifest(&self) -> &Manifest;

    /// Counts what has come.
    fn meter(&self) -> &Meter;

    /// How much is there of a chunk that another lane is bringing; `None` if that is not known now.
    fn held(&self, lane: &mut Lane, chunk: u32) -> impl Future<Output = Option<u64>> + Send;

    /// A chunk's length.
    fn bytes_of(&self, chunk: u32) -> u64 {
        let range = self.manifest().chunk_range(chunk);
        range.map_or(0, |(_, length)| length)
    }
}

/// What the lanes share.
struct Shared<W> {
    work: W,
    left: Mutex<VecDeque<u32>>,
    under_way: UnderWay,
    wanted: AtomicUsize,
    running: AtomicUsize,
    idle: AtomicUsize,
    lanes_made: AtomicU64,
    all_done: Notify,
}

impl<W: Work> Shared<W> {
    /// What a lane does next: a chunk that nobody has begun, or that of a slow lane.
    async fn task(&self, lane: &mut Lane, number: u64) -> Option<Task> {
        if let Some(task) = self.next(number) {
            return Some(task);
        }
        // A lane that has carried nothing does not know whether it is fast.
        let per_s = lane.bytes_per_s().filter(|_| W::CAN_BE_TAKEN_OVER)?;
        let task = match self.idle.fetch_add(1, Ordering::Relaxed) < IDLE_MAX {
            true => self.slow_ones_task(lane, number, per_s).await,
            false => None,
        };
        self.idle.fetch_sub(1, Ordering::Relaxed);
        task
    }

    /// Waits for a lane that is slow, and goes on with its chunk.
    async fn slow_ones_task(&self, lane: &mut Lane, number: u64, per_s: f64) -> Option<Task> {
        while !self.under_way.is_empty() {
            if let Some(look) = self.under_way.look(Instant::now(), per_s) {
                let held = tokio::time::timeout(ASK_MAX, self.work.held(lane, look.chunk));
                if let Ok(Some(held)) = held.await
                    && look.is_worth(Instant::now(), held, per_s)
                    && let Some(task) = self.under_way.take(Instant::now(), &look, number, held)
                {
                    tracing::debug!(
                        chunk = task.chunk,
                        held,
                        "taken over from a slow connection"
                    );
                    return Some(task);
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        None
    }

    /// A lane has brought its chunk; false if that was another's by then. After the last one nobody needs to
    /// wait for lanes that have nothing to do.
    fn done(&self, chunk: u32, number: u64) -> bool {
        let own = self.under_way.end(chunk, number, || {
            self.work.meter().done(self.work.bytes_of(chunk));
        });
        if own && self.left() == 0 && self.under_way.is_empty() {
            self.all_done.notify_one();
        }
        own
    }

    fn next(&self, number: u64) -> Option<Task> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let chunk = left.pop_front()?;
        // Before the lock is given back: what is neither left nor under way has come.
        let length = self.work.bytes_of(chunk);
        Some(self.under_way.begin(Instant::now(), chunk, length, number))
    }

    fn left(&self) -> usize {
        self.left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Whether this lane is one too many; if so, it is not counted any more. At the end nobody is who could
    /// take over: the first to be there are the fast ones.
    fn leaves(&self) -> bool {
        if W::CAN_BE_TAKEN_OVER && self.left() == 0 {
            return false;
        }
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
        under_way: UnderWay::default(),
        wanted: control.lanes().into(),
        running: 0.into(),
        idle: 0.into(),
        lanes_made: 0.into(),
        all_done: Notify::new(),
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
            () = shared.all_done.notified() => break,
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
    let number = shared.lanes_made.fetch_add(1, Ordering::Relaxed);
    while !shared.leaves() {
        let Some(task) = shared.task(&mut lane, number).await else {
            shared.running.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        };
        let moved = tokio::select! {
            moved = shared.work.chunk(&mut lane, task.chunk, task.from) => moved,
            () = task.taken.notified() => Ok(()),
        };
        // Whoever was taken a chunk from is slow, and what it says of that chunk is of no interest. One that
        // failed stays under way: it has not come.
        let own = match moved {
            Ok(()) => shared.done(task.chunk, number),
            Err(error) if shared.under_way.is_of(task.chunk, number) => return Err(error),
            Err(_) => false,
        };
        if !own {
            shared.running.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
    }
    Ok(())
}
