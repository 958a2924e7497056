//! Chunks that lanes are bringing, and who goes on with one whose lane is slow.
//!
//! When no chunk is left to begin, the slowest lane would keep everybody waiting: over a long way a
//! connection that others have crowded out stays slow for many seconds after these are gone. So a lane
//! that has nothing to do asks how much of such a chunk is there, and takes it over if it would be done
//! in half the time. What was on its way then travels twice. Never here: moving bytes, clocks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Taking over must gain more than this, whatever the speeds: it takes some round trips, and a busy server
/// may pause.
const GAIN_MIN_S: f64 = 2.0;
/// Nobody looks at a chunk again within this time.
const LOOKS_APART: Duration = Duration::from_millis(250);

/// One chunk that a lane is bringing.
struct Chunk {
    lane: u64,
    /// Bytes of it that were there when that lane began.
    from: u64,
    length: u64,
    began: Instant,
    looked: Option<Instant>,
    taken: Arc<Notify>,
}

/// What a lane has to do: a chunk, of which so much is there.
pub(crate) struct Task {
    pub chunk: u32,
    pub from: u64,
    /// Told when another lane has taken it.
    pub taken: Arc<Notify>,
}

/// A chunk that a lane could take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub chunk: u32,
    lane: u64,
    from: u64,
    length: u64,
    began: Instant,
}

/// All chunks that are being brought.
#[derive(Default)]
pub(crate) struct UnderWay(Mutex<BTreeMap<u32, Chunk>>);

impl UnderWay {
    pub(crate) fn begin(&self, now: Instant, chunk: u32, length: u64, lane: u64) -> Task {
        put(&mut self.lock(), now, chunk, (0, length), lane)
    }

    /// The lane has brought the chunk, which is noted once; false if it was another's already.
    pub(crate) fn end(&self, chunk: u32, lane: u64, note: impl FnOnce()) -> bool {
        let mut chunks = self.lock();
        let own = is_of(&chunks, chunk, lane);
        if own {
            note();
            chunks.remove(&chunk);
        }
        own
    }

    /// Whether the chunk is this lane's.
    pub(crate) fn is_of(&self, chunk: u32, lane: u64) -> bool {
        is_of(&self.lock(), chunk, lane)
    }

    /// Whether nobody brings anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The chunk for a lane of this speed, in bytes per second, to ask about: one that it would have brought
    /// by now, and of these the one that nobody has looked at for longest.
    pub(crate) fn look(&self, now: Instant, per_s: f64) -> Option<Look> {
        let mut chunks = self.lock();
        let due = chunks.iter_mut().filter(|(_, entry)| {
            let rested = |looked| now.saturating_duration_since(looked) >= LOOKS_APART;
            let elapsed = now.saturating_duration_since(entry.began);
            entry.looked.is_none_or(rested) && is_late(elapsed, entry.length - entry.from, per_s)
        });
        let (chunk, entry) = due.min_by_key(|(_, entry)| (entry.looked, entry.began))?;
        entry.looked = Some(now);
        Some(Look {
            chunk: *chunk,
            lane: entry.lane,
            from: entry.from,
            length: entry.length,
            began: entry.began,
        })
    }

    /// Takes the chunk for `lane`, with what is there of it; `None` if its lane has done with it.
    pub(crate) fn take(&self, now: Instant, look: &Look, lane: u64, held: u64) -> Option<Task> {
        // All at once: a chunk that nobody brings is one that is there.
        let mut chunks = self.lock();
        let entry = chunks.get(&look.chunk)?;
        if entry.lane != look.lane {
            return None;
        }
        entry.taken.notify_one();
        let part = (held.min(look.length), look.length);
        Some(put(&mut chunks, now, look.chunk, part, lane))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Chunk>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_of(chunks: &BTreeMap<u32, Chunk>, chunk: u32, lane: u64) -> bool {
    chunks.get(&chunk).is_some_and(|entry| entry.lane == lane)
}

fn put(
    chunks: &mut BTreeMap<u32, Chunk>,
    now: Instant,
    chunk: u32,
    (from, length): (u64, u64),
    lane: u64,
) -> Task {
    let taken = Arc::new(Notify::new());
    let entry = Chunk {
        lane,
        from,
        length,
        began: now,
        looked: None,
        taken: taken.clone(),
    };
    chunks.insert(chunk, entry);
    Task { chunk, from, taken }
}

impl Look {
    /// Whether a lane of this speed should take over the chunk, of which `held` bytes are there.
    pub(crate) fn is_worth(&self, now: Instant, held: u64, per_s: f64) -> bool {
        let part = (self.from, held.min(self.length), self.length);
        is_worth(now.saturating_duration_since(self.began), part, per_s)
    }
}

/// Whether a lane of this speed would have brought so much, and some seconds ago. One that has only just
/// begun shows no speed.
fn is_late(elapsed: Duration, bytes: u64, per_s: f64) -> bool {
    elapsed.as_secs_f64() > bytes as f64 / per_s + GAIN_MIN_S
}

fn is_worth(elapsed: Duration, (from, held, length): (u64, u64, u64), per_s: f64) -> bool {
    let left = (length - held) as f64;
    let brought = held.saturating_sub(from);
    let theirs_s = left * elapsed.as_secs_f64() / brought.max(1) as f64;
    is_late(elapsed, length - from, per_s) && theirs_s > 2.0 * left / per_s + GAIN_MIN_S
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MB: u64 = 1_000_000;
    const FAST: f64 = 10.0 * MB as f64;

    #[test]
    fn what_a_fast_lane_would_do_in_half_the_time_is_worth_it() {
        let s = Duration::from_secs;
        // 1 MB/s: 12 s are left, and 1.2 s for the fast lane.
        assert!(is_worth(s(4), (0, 4 * MB, 16 * MB), FAST));
        assert!(is_worth(s(4), (8 * MB, 9 * MB, 16 * MB), FAST));
        // As fast, nearly done, only just begun, or all there.
        assert!(!is_worth(s(4), (0, 4 * MB, 16 * MB), 1.0 * MB as f64));
        assert!(!is_worth(s(14), (0, 15 * MB, 16 * MB), FAST));
        assert!(!is_worth(s(3), (0, 0, 16 * MB), FAST));
        assert!(!is_worth(s(60), (0, 16 * MB, 16 * MB), FAST));
        // One of which nothing has come at all.
        assert!(is_worth(s(9), (0, 0, 16 * MB), FAST));
    }

    #[test]
    fn only_who_is_late_is_looked_at_and_each_in_turn() {
        let all = UnderWay::default();
        let start = Instant::now();
        let now = start + Duration::from_secs(30);
        for (chunk, began_s) in [(1, 21), (2, 0), (3, 30), (4, 10)] {
            let began = start + Duration::from_secs(began_s);
            all.begin(began, chunk, 16 * MB, u64::from(chunk));
        }
        let looked = || all.look(now, FAST).map(|look| look.chunk);
        assert_eq!([looked(), looked(), looked()], [Some(2), Some(4), Some(1)]);
        assert_eq!(
            looked(),
            None,
            "3 has just begun, and the others were looked at"
        );
        assert!(
            all.look(now, 0.1 * MB as f64).is_none(),
            "a slow lane would not be done"
        );
        let later = all.look(now + LOOKS_APART, FAST).unwrap();
        assert_eq!(later.chunk, 2, "again, in time");
    }

    #[test]
    fn a_chunk_has_one_lane_and_who_lost_it_is_told() {
        let all = UnderWay::default();
        let now = Instant::now();
        let slow = all.begin(now, 7, 1000, 1);
        let other = all.begin(now, 9, 1000, 2);
        let look = Look {
            chunk: 7,
            lane: 1,
            from: 0,
            length: 1000,
            began: now,
        };
        let task = all.take(now, &look, 3, 500).unwrap();
        assert_eq!((task.chunk, task.from), (7, 500));
        assert!(all.take(now, &look, 4, 600).is_none(), "it is another's");
        let told = |task: &Task| {
            let mut waits = std::pin::pin!(task.taken.notified());
            waits.as_mut().enable()
        };
        assert!(told(&slow) && !told(&other) && !told(&task));
        let mut noted = Vec::new();
        for (chunk, lane, own) in [(7, 1, false), (7, 3, true), (9, 2, true), (9, 2, false)] {
            assert_eq!(all.end(chunk, lane, || noted.push((chunk, lane))), own);
        }
        assert_eq!(noted, [(7, 3), (9, 2)]);
        assert!(all.is_empty() && all.take(now, &look, 4, 0).is_none());
    }
}
