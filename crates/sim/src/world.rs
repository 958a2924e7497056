//! Time and what happens in it: a queue of happenings, handled one by one.

use crate::coordinator::Coordinator;
use crate::host::{Host, Life, Process};
use crate::network::{Answer, Request};
use crate::random::Random;
use crate::setting::Setting;
use crate::trainer::{Disk, DiskWrite};
use crate::{Options, Report, Seen, Spent};
use hansa_base::MonoMs;
use hansa_protocol::replica::{CallNo, Input};
use hansa_protocol::{End, Merged, Order};
use std::collections::{BTreeMap, BinaryHeap};

/// After the faults are over, a run must end within this, and so much for each round that one
/// replica alone would need.
const CALM_MS: u64 = 120_000;
const ROUND_MS: u64 = 10_000;
const STEP_MS: u64 = 2000;
const HAPPENINGS_MAX: u64 = 2_000_000;

/// Something that happens.
#[derive(Clone, Debug)]
pub enum Happening {
    Tick(Life),
    MergeDone(Life, Merged),
    CoordinatorStarts,
    CoordinatorStalls,
    Arrives(Request),
    Replied(Life, CallNo, Answer),
    TimedOut(Life, CallNo),
    Wakes(Life),
    Reports(Life, Input),
    Writes(Life, Box<DiskWrite>),
    Steps(Life, u64),
    JobEnds(Life),
    Starts(usize),
    Crashes(usize),
    Stops(usize),
    TakenOver(usize),
    Dies,
    DiskFills(usize),
    ClockJumps(usize),
    Orders(Order),
    FaultsEnd,
}

#[derive(Debug)]
struct Due {
    at: u64,
    order: u64,
    what: Happening,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    /// The soonest is the greatest: the heap gives it first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// Everything.
pub struct World {
    pub seed: u64,
    pub options: Options,
    pub setting: Setting,
    pub random: Random,
    pub now: u64,
    pub coordinator: Coordinator,
    pub hosts: Vec<Host>,
    pub processes: BTreeMap<Life, Process>,
    pub lives: u64,
    pub seen: Seen,
    pub spent: Spent,
    pub failure: Option<String>,
    queue: BinaryHeap<Due>,
    order: u64,
    steps: u64,
    /// Journaled commands.
    pub commands: u64,
    trace: u64,
    story: Vec<String>,
}

impl World {
    pub fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let setting = match (&options.rates, &options.weather) {
            (Some(rates), _) => Setting::of_rates(&mut random, rates),
            (_, Some(weather)) => Setting::of_weather(&mut random, weather),
            _ => Setting::new(&mut random),
        };
        let hosts = (0..setting.hosts).map(|n| Host::new(n, &options, &mut random));
        let mut world = Self {
            seed,
            options,
            hosts: hosts.collect(),
            coordinator: Coordinator::new(&setting.spec),
            setting,
            random,
            now: 0,
            processes: BTreeMap::new(),
            lives: 0,
            seen: Seen::default(),
            spent: Spent::default(),
            failure: None,
            queue: BinaryHeap::new(),
            order: 0,
            steps: 0,
            commands: 0,
            trace: 0xCBF2_9CE4_8422_2325,
            story: Vec::new(),
        };
        world.tell(|world| format!("{:?}", world.setting));
        world.at(0, Happening::CoordinatorStarts);
        for host in 0..world.hosts.len() {
            let late = if host == 0 || options.rates.is_some() || options.weather.is_some() {
                0
            } else {
                world.random.between(0, 20_000)
            };
            world.after(late, Happening::Starts(host));
        }
        world.plan_faults();
        world.next_death();
        world.plan_orders();
        world
    }

    pub fn run(mut self) -> Report {
        let end = self.setting.faults_until + self.calm_ms();
        while let Some(due) = self.queue.pop() {
            self.account(due.at);
            self.now = due.at;
            self.steps += 1;
            self.note(&due.what);
            self.happen(due.what);
            if self.failure.is_some() || self.finished() {
                break;
            }
            if self.now > end || self.order > HAPPENINGS_MAX {
                let state = &self.coordinator.twin;
                let what = format!(
                    "no progress (invariant 13): generation {}, {:?}, round {:?}, ending {:?}",
                    state.current.generation,
                    state.ledger.counts(),
                    state.round,
                    state.ending
                );
                self.fail(what);
                break;
            }
        }
        self.check_the_end();
        self.report()
    }

    fn calm_ms(&self) -> u64 {
        let spec = &self.setting.spec;
        let steps = spec.phase.steps.0;
        let phase = spec.step_windows(1).0 * steps;
        let windows = spec.digest.windows.0;
        // A round takes a phase, or what is left of the epoch.
        let rounds = match spec.end {
            End::Rounds(rounds) => rounds,
            End::Tokens(tokens) => {
                let windows_wanted = tokens.0.div_ceil(u64::from(spec.digest.seq_len));
                windows_wanted.div_ceil(phase.min(windows)) + windows_wanted / windows
            }
            End::Epochs(epochs) => u64::from(epochs) * windows.div_ceil(phase.min(windows)),
        };
        CALM_MS + rounds * (ROUND_MS + steps * STEP_MS)
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Tick(life) => self.tick(life),
            Happening::MergeDone(life, merged) => self.merge_done(life, merged),
            Happening::CoordinatorStarts => self.start_coordinator(),
            Happening::CoordinatorStalls => self.stall(),
            Happening::Arrives(request) => self.arrives(request),
            Happening::Replied(life, no, answer) => self.replied(life, no, answer),
            Happening::TimedOut(life, no) => self.timed_out(life, no),
            Happening::Wakes(life) => self.input(life, Input::Wake),
            Happening::Reports(life, input) => self.input(life, input),
            Happening::Writes(life, write) => self.write(life, *write),
            Happening::Steps(life, took_ms) => self.steps(life, took_ms),
            Happening::JobEnds(life) => self.job_ends(life),
            Happening::Starts(host) => self.start_process(host),
            Happening::Crashes(host) => self.crash(host),
            Happening::Stops(host) => self.stop(host),
            Happening::TakenOver(host) => self.take_over(host),
            Happening::Dies => self.one_dies(),
            Happening::DiskFills(host) => self.fill_disk(host),
            Happening::ClockJumps(host) => self.jump(host),
            Happening::Orders(order) => self.order(order),
            Happening::FaultsEnd => self.end_faults(),
        }
    }

    pub fn at(&mut self, at: u64, what: Happening) {
        self.order += 1;
        let order = self.order;
        self.queue.push(Due { at, order, what });
    }

    pub fn after(&mut self, ms: u64, what: Happening) {
        self.at(self.now + ms, what);
    }

    pub fn faulty(&self) -> bool {
        self.now < self.setting.faults_until
    }

    pub fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    /// A process's own monotonic clock.
    pub fn clock(&self, born: u64) -> MonoMs {
        MonoMs(self.now - born)
    }

    pub fn tell(&mut self, line: impl FnOnce(&Self) -> String) {
        if self.options.verbose {
            let line = format!("{:>9.3}  {}", self.now as f64 / 1000.0, line(self));
            self.story.push(line);
        }
    }

    fn note(&mut self, what: &Happening) {
        let text = format!("{} {what:?}", self.now);
        for byte in text.bytes() {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
        if !matches!(what, Happening::Tick(_) | Happening::Wakes(_)) {
            self.tell(|_| format!("{what:?}"));
        }
    }

    fn finished(&self) -> bool {
        self.coordinator.twin.ended && self.processes.is_empty()
    }

    fn report(mut self) -> Report {
        self.seen.generations = self.coordinator.twin.current.generation.0;
        self.seen.epochs = u64::from(self.coordinator.twin.epoch.0);
        for replica in &self.coordinator.twin.replicas {
            self.seen.inherited_windows += replica.tally.inherited.0;
            self.seen.reclaimed_windows += replica.tally.reclaimed.0;
            self.seen.failed_windows += replica.tally.failed.0;
            self.seen.released_windows += replica.tally.released.0;
            self.seen.refused += u64::from(replica.tally.refused);
        }
        self.seen.evaluations = self.coordinator.twin.evaluations.done.len() as u64;
        Report {
            seed: self.seed,
            failure: self.failure,
            trace: self.trace,
            steps: self.steps,
            time_ms: self.now,
            seen: self.seen,
            spent: self.spent,
            state: self.coordinator.twin,
            story: self.story,
        }
    }

    /// The disk of a process.
    pub fn disk(&mut self, life: Life) -> Option<&mut Disk> {
        let disk = self.processes.get(&life)?.disk;
        self.hosts.get_mut(disk.0)?.disks.get_mut(disk.1)
    }
}
