//! One partition of a machine, and its batch system.
//!
//! Jobs are considered in order of submission. A pass goes through the queue: whoever fits now starts;
//! whoever does not gets a place in the plan, as far as running jobs hold their width to the end of
//! their limits, and nobody who comes later may delay it (conservative backfilling, as Slurm's backfill
//! scheduler does it, for the first [`DEPTH`] jobs). A pass follows each arrival and each end.
//!
//! What it leaves out: priorities other than age, fair share, topology, the time that Slurm's own
//! passes take.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use crate::profile::Profile;
use crate::trace::TraceJob;

/// Pending jobs that a pass looks at: Slurm's `bf_max_job_test` has a bound like it.
const DEPTH: usize = 100;

/// How long jobs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walltimes {
    /// To their limit: what the batch system must assume.
    Full,
    /// As long as they really did.
    Realised,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    id: usize,
    job: TraceJob,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Running {
    ends_s: u64,
    limit_s: u64,
    width: u32,
    started_s: u64,
}

/// A partition at one instant. A copy is another world with the same past.
#[derive(Clone, Debug)]
pub struct Queue {
    width: u32,
    walltimes: Walltimes,
    arrivals: Arc<[TraceJob]>,
    next: usize,
    now_s: u64,
    free: u32,
    running: BinaryHeap<Reverse<Running>>,
    pending: VecDeque<Pending>,
    /// Starts of jobs that were submitted by hand, by id.
    started: Vec<Option<u64>>,
    /// (end, realised, requested) of jobs that ended, newest last.
    ended: VecDeque<(u64, u64, u64)>,
}

/// Ids from here on are submitted by hand.
const BY_HAND: usize = usize::MAX / 2;

/// Ends are remembered for so long: what usage is taken over.
const TRAILING_S: u64 = 48 * 3600;

impl Queue {
    /// An empty machine before the first arrival. Jobs wider than it never come.
    #[must_use]
    pub fn new(width: u32, walltimes: Walltimes, jobs: &[TraceJob]) -> Self {
        let mut arrivals: Vec<TraceJob> = jobs.to_vec();
        arrivals.retain(|job| (1..=width).contains(&job.width));
        arrivals.sort_by_key(|job| job.submit_s);
        Self {
            width,
            walltimes,
            arrivals: arrivals.into(),
            next: 0,
            now_s: 0,
            free: width,
            running: BinaryHeap::new(),
            pending: VecDeque::new(),
            started: Vec::new(),
            ended: VecDeque::new(),
        }
    }

    /// A machine as it was found: jobs with when they started, and jobs that wait.
    #[must_use]
    pub fn found(
        width: u32,
        now_s: u64,
        running: &[(TraceJob, u64)],
        waiting: &[TraceJob],
    ) -> Self {
        let mut queue = Self::new(width, Walltimes::Realised, &[]);
        for (job, started_s) in running {
            queue.now_s = *started_s;
            queue.start(Pending { id: 0, job: *job });
        }
        let waiting = waiting.iter().map(|&job| Pending { id: 0, job });
        queue.pending = waiting.collect();
        queue.now_s = now_s;
        queue
    }

    /// The time.
    #[must_use]
    pub const fn now_s(&self) -> u64 {
        self.now_s
    }

    /// Width that runs no job.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.free
    }

    /// Jobs that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Lets everything happen up to `until_s`, that moment included.
    pub fn run_until(&mut self, until_s: u64) {
        while let Some(at_s) = self.next_event().filter(|&at_s| at_s <= until_s) {
            self.step(at_s);
        }
        self.now_s = self.now_s.max(until_s);
    }

    /// Submits a job now; its number, for [`Queue::start_of`].
    pub fn submit(&mut self, width: u32, limit_s: u64, run_s: u64) -> usize {
        let hand = self.started.len();
        self.started.push(None);
        let job = TraceJob {
            submit_s: self.now_s,
            width,
            limit_s,
            run_s,
        };
        let id = BY_HAND + hand;
        self.pending.push_back(Pending { id, job });
        self.pass();
        hand
    }

    /// Takes back a job submitted by hand; nothing if it has started.
    pub fn cancel(&mut self, hand: usize) {
        self.pending.retain(|waiting| waiting.id != BY_HAND + hand);
        self.pass();
    }

    /// When a job submitted by hand started, if it has.
    #[must_use]
    pub fn start_of(&self, hand: usize) -> Option<u64> {
        self.started.get(hand).copied().flatten()
    }

    /// Goes on until the job has started, at most to `until_s`.
    pub fn until_started(&mut self, hand: usize, until_s: u64) -> Option<u64> {
        loop {
            if let Some(start_s) = self.start_of(hand) {
                return Some(start_s);
            }
            let at_s = self.next_event().filter(|&at_s| at_s <= until_s)?;
            self.step(at_s);
        }
    }

    /// When a job of this width would start, as `sbatch --test-only` answers: when it fits, with
    /// running jobs at the end of their limits, plus the work that waits (limits in whole minutes) spread
    /// over the whole machine, in whole minutes. That is added even to a job that would fit now. No
    /// backfilling; the job's own length does not enter. Fitted to twelve answers of one Slurm 22.05, of
    /// which it gives eleven to the second; in the other two ends within a minute were taken for one.
    #[must_use]
    pub fn test_only(&self, width: u32) -> Option<u64> {
        if width > self.width {
            return None;
        }
        let mut ends: Vec<(u64, u32)> = self.limits().collect();
        ends.sort_unstable();
        let (mut free, mut fits_s) = (self.free, self.now_s);
        for (end_s, freed) in ends {
            if free >= width {
                break;
            }
            free += freed;
            fits_s = end_s.max(self.now_s);
        }
        let minutes = |p: &Pending| u64::from(p.job.width) * p.job.limit_s.div_ceil(60);
        let work: u64 = self.pending.iter().map(minutes).sum();
        Some(fits_s + work / u64::from(self.width) * 60)
    }

    /// Realised over requested walltime of what ended in the last two days; `None` if nothing did.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // Seconds are far below 2^53.
    pub fn usage(&self) -> Option<f64> {
        let from_s = self.now_s.saturating_sub(TRAILING_S);
        let recent = self.ended.iter().filter(|(end_s, ..)| *end_s >= from_s);
        let (real, asked) = recent.fold((0, 0), |(real, asked), (_, r, a)| (real + r, asked + a));
        (asked > 0).then(|| (real as f64 / asked as f64).min(1.0))
    }

    fn limits(&self) -> impl Iterator<Item = (u64, u32)> {
        self.running
            .iter()
            .map(|Reverse(run)| (run.started_s + run.limit_s, run.width))
    }

    fn next_event(&self) -> Option<u64> {
        let arrival = self.arrivals.get(self.next).map(|job| job.submit_s);
        let end = self.running.peek().map(|Reverse(run)| run.ends_s);
        arrival.into_iter().chain(end).min()
    }

    fn step(&mut self, at_s: u64) {
        self.now_s = at_s;
        while let Some(&Reverse(run)) = self.running.peek()
            && run.ends_s <= at_s
        {
            self.running.pop();
            self.free += run.width;
            let realised = run.ends_s - run.started_s;
            self.ended.push_back((run.ends_s, realised, run.limit_s));
        }
        let from_s = at_s.saturating_sub(TRAILING_S);
        while self
            .ended
            .front()
            .is_some_and(|(end_s, ..)| *end_s < from_s)
        {
            self.ended.pop_front();
        }
        while let Some(&job) = self.arrivals.get(self.next)
            && job.submit_s <= at_s
        {
            self.pending.push_back(Pending { id: self.next, job });
            self.next += 1;
        }
        self.pass();
    }

    /// Starts whoever may start now.
    fn pass(&mut self) {
        if self.pending.is_empty() || self.free == 0 {
            return;
        }
        let mut profile = Profile::new(self.now_s, self.free, self.limits());
        let mut left = VecDeque::with_capacity(self.pending.len());
        let pending = std::mem::take(&mut self.pending);
        for (i, waiting) in pending.into_iter().enumerate() {
            let job = waiting.job;
            if i >= DEPTH || self.free == 0 {
                left.push_back(waiting);
                continue;
            }
            let start_s = profile.fits(job.width, job.limit_s);
            if start_s == u64::MAX {
                left.push_back(waiting);
                continue;
            }
            profile.take(job.width, start_s, job.limit_s);
            if start_s == self.now_s {
                self.start(waiting);
            } else {
                left.push_back(waiting);
            }
        }
        self.pending = left;
    }

    fn start(&mut self, waiting: Pending) {
        let Pending { id, job } = waiting;
        let length_s = match self.walltimes {
            Walltimes::Realised => job.run_s.min(job.limit_s),
            Walltimes::Full => job.limit_s,
        };
        self.free -= job.width;
        self.running.push(Reverse(Running {
            ends_s: self.now_s + length_s.max(1),
            limit_s: job.limit_s,
            width: job.width,
            started_s: self.now_s,
        }));
        if let Some(hand) = id.checked_sub(BY_HAND)
            && let Some(start) = self.started.get_mut(hand)
        {
            *start = Some(self.now_s);
        }
    }
}
