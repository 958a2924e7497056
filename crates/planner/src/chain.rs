//! The jobs of replicas, one after the other, and what they cost.
//!
//! A walltime cap cuts a replica's life into jobs. Each waits in the queue, starts up, trains until
//! its walltime is over or it is let go, and may be followed by the next; all jobs of a site are paid
//! from one purse. Never here: rounds; the simulators ask when a replica is there.

use std::time::Duration;

use hansa_base::Windows;

const MINUTE: Duration = Duration::from_secs(60);

/// Replicas that take part in a run and run alike, job by job. Times are from the snapshot's now.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Index of its site, as in the snapshot.
    pub site: usize,
    /// How many replicas, each in a job of its own.
    pub replicas: u32,
    /// Accelerators of one job.
    pub gpus: u32,
    /// `B·W`: windows of one micro-batch over all ranks of one replica.
    pub micro_windows: Windows,
    /// How long that takes.
    pub micro_step: Duration,
    /// `A`: micro-batches of a step, where balancing does not ask for more.
    pub accumulation: u32,
    /// Transfer and evaluation of one replica, per round.
    pub exchange: Duration,
    /// Its first job.
    pub first: FirstJob,
    /// The walltime of all later ones.
    pub walltime: Duration,
    /// From a later job's start until it can train.
    pub startup: Duration,
    /// What follows a job.
    pub then: Then,
    /// Jobs of one replica at most, the first included.
    pub jobs_max: u32,
}

/// A job that is planned, pending or running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstJob {
    /// It starts, or started: then this is zero and what ran before costs the plan nothing.
    pub starts_in: Duration,
    /// Its replica can train.
    pub ready_in: Duration,
    /// Its walltime is over.
    pub ends_in: Duration,
    /// The batch system has it already: the budget that is left does not pay for it again.
    pub paid: bool,
}

/// What follows a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// A job submitted when this one ends, which then waits.
    AfterEnd {
        /// Its wait.
        wait: Duration,
    },
    /// A job submitted when this one starts: it waits while this one runs, and starts no earlier than
    /// this one ends.
    Ahead {
        /// Its wait.
        wait: Duration,
    },
}

impl Member {
    /// `B·W·A`: windows of one step of `accumulation` micro-batches, over all replicas.
    #[must_use]
    pub fn step_windows(&self, accumulation: u32) -> u64 {
        let micro = self.micro_windows.0.max(1);
        let replica = micro.saturating_mul(accumulation.max(1).into());
        replica.saturating_mul(self.replicas.max(1).into())
    }

    /// Accelerators of all replicas.
    #[must_use]
    pub fn all_gpus(&self) -> f64 {
        f64::from(self.gpus.max(1)) * f64::from(self.replicas.max(1))
    }

    /// How long a step of `accumulation` micro-batches takes.
    #[must_use]
    pub fn step(&self, accumulation: u32) -> Duration {
        let step = self.micro_step.saturating_mul(accumulation.max(1));
        step.max(Duration::from_nanos(1))
    }

    /// Windows per second while it trains.
    #[allow(clippy::cast_precision_loss)] // Windows are far below 2^53.
    pub(crate) fn windows_per_s(&self) -> f64 {
        self.step_windows(1) as f64 / self.step(1).as_secs_f64()
    }
}

/// What became of a member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Jobs that started, over all replicas.
    pub jobs: u32,
    /// Rounds it contributed to.
    pub rounds: u64,
    /// Windows that were trained and committed, over all replicas.
    pub windows: Windows,
    /// When it was ready for the first time; `None` if never before the end.
    pub ready_in: Option<Duration>,
    /// Ready time over all jobs: training, exchanging and waiting.
    pub active: Duration,
    /// Time training.
    pub computing: Duration,
    /// Time on nodes, start-up included: what is billed, per accelerator.
    pub billed: Duration,
    /// What its last job had left of its walltime when all was over: billed, too, if nobody lets it go.
    pub over: Duration,
}

/// What bounds the jobs of a site, whoever's they are. Times are from the snapshot's now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    /// GPU-seconds that jobs may use; `None` where nobody counts.
    pub budget_gpu_s: Option<f64>,
    /// No job runs beyond this: the allocation ends.
    pub ends_in: Option<Duration>,
    /// From and until when no job can run, in any order.
    pub closed: Vec<(Duration, Duration)>,
}

impl Bounds {
    /// The first start from `start` on whose whole walltime meets no closed time, and the index of
    /// the closed time that moved it.
    pub(crate) fn open_start(
        &self,
        start: Duration,
        walltime: Duration,
    ) -> (Duration, Option<usize>) {
        let mut order: Vec<usize> = (0..self.closed.len()).collect();
        order.sort_by_key(|&i| self.closed[i]);
        let (mut start, mut moved_by) = (start, None);
        for i in order {
            let (from, until) = self.closed[i];
            if start < until && start.saturating_add(walltime) > from {
                (start, moved_by) = (until, Some(i));
            }
        }
        (start, moved_by)
    }
}

/// A job on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub start: Duration,
    pub ready: Duration,
    pub end: Duration,
}

/// A member and the job it has now.
pub(crate) struct Seat<'a> {
    pub member: &'a Member,
    pub run: Option<Run>,
    pub tally: Tally,
    made: u32,
}

/// All members and what bounds their sites.
pub(crate) struct Seats<'a> {
    pub seats: Vec<Seat<'a>>,
    sites: Vec<Bounds>,
}

impl<'a> Seats<'a> {
    /// Submits every member's first job.
    pub(crate) fn new(members: &'a [Member], sites: &[Bounds]) -> Self {
        let seat = |member| Seat {
            member,
            run: None,
            tally: Tally::default(),
            made: 0,
        };
        let mut seats = Self {
            seats: members.iter().map(seat).collect(),
            sites: sites.to_vec(),
        };
        for i in 0..members.len() {
            seats.submit_first(i);
        }
        seats
    }

    /// Ends what is over by `now`, and lets what follows begin.
    pub(crate) fn advance(&mut self, now: Duration) {
        for i in 0..self.seats.len() {
            while let Some(run) = self.seats[i].run
                && run.end <= now
            {
                self.release(i, run.end);
            }
        }
    }

    /// Ends a job at `at`; its successor, if any, takes its seat.
    pub(crate) fn release(&mut self, i: usize, at: Duration) {
        let Some(run) = self.close(i, at) else {
            return;
        };
        let member = self.seats[i].member;
        let end = run.end.min(at);
        let start = match member.then {
            Then::Nothing => return,
            Then::AfterEnd { wait } => end.saturating_add(wait),
            Then::Ahead { wait } => end.max(run.start.saturating_add(wait)),
        };
        self.submit(i, start, member.startup, member.walltime);
    }

    /// The run is over: every job is let go, and nothing follows.
    pub(crate) fn finish(mut self, at: Duration) -> Vec<Tally> {
        for i in 0..self.seats.len() {
            if let Some(run) = self.seats[i].run.filter(|run| run.start < at) {
                self.seats[i].tally.over = run.end.saturating_sub(at);
            }
            self.close(i, at);
        }
        self.seats.into_iter().map(|seat| seat.tally).collect()
    }

    /// The earliest time after `now` at which another replica is ready.
    pub(crate) fn next_ready(&self, now: Duration) -> Option<Duration> {
        let runs = self.seats.iter().filter_map(|seat| seat.run);
        runs.map(|run| run.ready).filter(|&t| t > now).min()
    }

    fn submit_first(&mut self, i: usize) {
        let first = self.seats[i].member.first;
        let startup = first.ready_in.saturating_sub(first.starts_in);
        let walltime = first.ends_in.saturating_sub(first.starts_in);
        if first.paid {
            self.sit(i, run(first.starts_in, startup, walltime));
        } else {
            self.submit(i, first.starts_in, startup, walltime);
        }
    }

    fn submit(&mut self, i: usize, start: Duration, startup: Duration, walltime: Duration) {
        let member = self.seats[i].member;
        let gpus = member.all_gpus();
        let (mut start, mut walltime, mut gpu_s) = (start, walltime, None);
        if let Some(site) = self.sites.get(member.site) {
            start = site.open_start(start, walltime).0;
            let ends = site.ends_in.unwrap_or(Duration::MAX);
            walltime = walltime.min(ends.saturating_sub(start));
            gpu_s = site.budget_gpu_s;
        }
        if let Some(gpu_s) = gpu_s {
            // A shorter job than the last full one is still worth having, if it can train.
            let paid = Duration::try_from_secs_f64((gpu_s / gpus).max(0.0));
            let paid = paid.unwrap_or(Duration::MAX);
            if paid < walltime {
                walltime = times(MINUTE, ratio(paid, MINUTE));
            }
        }
        if self.sit(i, run(start, startup, walltime))
            && let Some(gpu_s) = gpu_s
        {
            let left = gpu_s - walltime.as_secs_f64() * gpus;
            self.sites[member.site].budget_gpu_s = Some(left);
        }
    }

    /// Takes the seat for a job, unless the member has had all its jobs, or this one could not train
    /// a single step: others like it would follow for ever.
    fn sit(&mut self, i: usize, run: Run) -> bool {
        let seat = &mut self.seats[i];
        let member = seat.member;
        let worth = steps_until(member, member.accumulation, run.ready, run.end) > 0;
        if !worth || seat.made >= member.jobs_max {
            return false;
        }
        seat.made += 1;
        seat.run = Some(run);
        true
    }

    /// Takes the job off its seat and books it as far as it came by `at`.
    fn close(&mut self, i: usize, at: Duration) -> Option<Run> {
        let seat = &mut self.seats[i];
        let run = seat.run.take()?;
        let end = run.end.min(at);
        let site = self.sites.get_mut(seat.member.site);
        if let Some(gpu_s) = site.and_then(|site| site.budget_gpu_s.as_mut()) {
            let unused = run.end.saturating_sub(end.max(run.start));
            *gpu_s += unused.as_secs_f64() * seat.member.all_gpus();
        }
        if run.start < end {
            let tally = &mut seat.tally;
            tally.jobs += seat.member.replicas.max(1);
            tally.billed += end.saturating_sub(run.start);
            tally.active += end.saturating_sub(run.ready);
            if run.ready <= end {
                tally.ready_in = tally.ready_in.or(Some(run.ready));
            }
        }
        Some(run)
    }
}

fn run(start: Duration, startup: Duration, walltime: Duration) -> Run {
    Run {
        start,
        ready: start.saturating_add(startup),
        end: start.saturating_add(walltime),
    }
}

/// Whole steps between `from` and `end`, the exchange after them included.
pub(crate) fn steps_until(
    member: &Member,
    accumulation: u32,
    from: Duration,
    end: Duration,
) -> u64 {
    let left = end.saturating_sub(from).saturating_sub(member.exchange);
    ratio(left, member.step(accumulation))
}

/// How many whole times `part` fits into `whole`; `part` above 0.
pub(crate) fn ratio(whole: Duration, part: Duration) -> u64 {
    nanos(whole) / nanos(part).max(1)
}

/// A duration so many times.
pub(crate) fn times(duration: Duration, n: u64) -> Duration {
    Duration::from_nanos(nanos(duration).saturating_mul(n))
}

/// Ends at 584 years; the standard library's 128 bits take most of a simulation's time.
fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(duration.subsec_nanos().into())
}
