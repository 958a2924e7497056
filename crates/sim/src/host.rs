//! Hosts and their processes: each executes what its replica's machine says.

use crate::random::Random;
use crate::trainer::{Disk, DiskWrite, Trainer};
use crate::world::{Happening, World};
use hansa_base::{Hash, ReplicaId, RetryPolicy};
use hansa_protocol::replica::{
    Action, CallNo, ExitReason, Found, Input, Notice, Options, ReplicaMachine, WhenBusy,
};
use hansa_protocol::{Refusal, Wait};
use std::collections::BTreeSet;
use std::time::Duration;

/// One process lifetime, of a replica or of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life(pub u64);

/// Where replicas of one name run.
pub struct Host {
    pub id: ReplicaId,
    pub ranks: u32,
    /// Milliseconds for a step of the base phase.
    pub step_ms: u64,
    /// The last is in use; a process that was taken over keeps its own.
    pub disks: Vec<Disk>,
    /// The process that should run.
    pub current: Option<Life>,
    /// It never comes back.
    pub dead: bool,
    /// No message passes until then.
    pub cut_off_until: u64,
    /// Nothing can be written until then.
    pub full_until: u64,
}

impl Host {
    pub fn new(number: u64, options: &crate::Options, random: &mut Random) -> Self {
        let name = format!("site{}/r{number}", number % 2);
        let (mut ranks, mut step_ms) = (random.between(1, 2) as u32, random.between(20, 600));
        if let Some(rates) = options.rates {
            (ranks, step_ms) = (1, rates.step_ms[number as usize % 3]);
        }
        if options.weather.is_some() {
            (ranks, step_ms) = (1, crate::goodput::STEP_MS);
        }
        Self {
            id: name.parse().unwrap_or_else(|_| unreachable!()),
            ranks,
            step_ms,
            disks: vec![Disk::default()],
            current: None,
            dead: false,
            cut_off_until: 0,
            full_until: 0,
        }
    }
}

/// A running replica.
pub struct Process {
    pub host: usize,
    /// Host and disk.
    pub disk: (usize, usize),
    pub born: u64,
    /// Its clock has jumped so far ahead.
    pub ahead: u64,
    /// It was asked to stop.
    pub stopped: bool,
    pub machine: ReplicaMachine,
    pub trainer: Trainer,
    /// Calls that are not answered yet.
    pub open_calls: BTreeSet<CallNo>,
    /// When the next wake-up is planned.
    wakes_at: Option<u64>,
}

impl World {
    pub fn new_life(&mut self) -> Life {
        self.lives += 1;
        Life(self.lives)
    }

    pub fn start_process(&mut self, host: usize) {
        if self.hosts[host].current.is_some() || self.hosts[host].dead {
            return;
        }
        let life = self.new_life();
        let Host {
            id, ranks, disks, ..
        } = &self.hosts[host];
        let (id, ranks) = (id.clone(), *ranks);
        let last = disks.len() - 1;
        let disk = &disks[last];
        let found = Found {
            registration: disk.registration.clone(),
            latest: disk.latest.as_ref().map(|saved| saved.state.clone()),
            accepted: disk.accepted.is_some(),
        };
        let options = self.options();
        let spec = self.setting.spec.clone();
        let clock = self.clock(self.now);
        let (machine, actions) = ReplicaMachine::start(spec, id, ranks, options, found, clock);
        let process = Process {
            host,
            disk: (host, last),
            born: self.now,
            ahead: 0,
            stopped: false,
            machine,
            trainer: Trainer::default(),
            open_calls: BTreeSet::new(),
            wakes_at: None,
        };
        self.processes.insert(life, process);
        self.hosts[host].current = Some(life);
        self.act(life, actions);
    }

    fn options(&mut self) -> Options {
        let entropy: Hash = self.random.hash();
        let (least, most) = self.setting.costs.checkpoint_ms;
        Options {
            entropy,
            checkpoint_every: Duration::from_millis(self.random.between(least, most)),
            retry: RetryPolicy {
                first: Duration::from_millis(100),
                longest: Duration::from_secs(2),
                retries_max: None,
            },
            when_busy: WhenBusy::Wait,
            leave_within: Duration::from_millis(self.random.between(500, 15_000)),
        }
    }

    pub fn input(&mut self, life: Life, input: Input) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&life) else {
            return;
        };
        let clock = hansa_base::MonoMs(now - process.born + process.ahead);
        let actions = process.machine.handle(clock, input);
        self.act(life, actions);
    }

    fn act(&mut self, life: Life, actions: Vec<Action>) {
        for action in actions {
            if let Action::Exit(reason) = action {
                return self.exit(life, reason);
            }
            self.execute(life, action);
        }
        self.plan_wake(life);
    }

    fn plan_wake(&mut self, life: Life) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&life) else {
            return;
        };
        let at = process.machine.wake_at().map(|at| {
            (process.born + at.0)
                .saturating_sub(process.ahead)
                .max(now + 1)
        });
        let planned = process.wakes_at.filter(|planned| *planned > now);
        if let Some(at) = at
            && planned.is_none_or(|planned| at < planned)
        {
            process.wakes_at = Some(at);
            self.at(at, Happening::Wakes(life));
        }
    }

    fn execute(&mut self, life: Life, action: Action) {
        match action {
            Action::Save(record) => {
                let write = DiskWrite::Registration(record);
                self.write_later(life, write, Input::Saved);
            }
            Action::Call { no, call } => self.call(life, no, call),
            Action::Tell(notice) => {
                self.seen.voids += u64::from(matches!(notice, Notice::Void(_)));
                self.seen.waits_at_a_mark += u64::from(notice == Notice::AtMark);
                let late = matches!(notice, Notice::Waiting(Wait::NextRound));
                self.seen.too_late_to_join += u64::from(late);
                self.tell(|_| format!("{life:?}: {notice}"));
            }
            Action::Promote => self.promote(life),
            Action::Forget => {
                if let Some(disk) = self.disk(life) {
                    (disk.latest, disk.accepted) = (None, None);
                    disk.payloads.clear();
                }
            }
            Action::Exit(_) => {}
            action => self.job(life, action),
        }
    }

    /// The write takes a while, and its report a while more: a crash may fall between them.
    pub fn write_later(&mut self, life: Life, write: DiskWrite, report: Input) {
        let (least, most) = self.setting.costs.write_ms;
        let takes = self.random.between(least, most);
        self.after(takes, Happening::Writes(life, Box::new(write)));
        let told = takes + self.random.between(1, 50);
        self.after(told, Happening::Reports(life, report));
    }

    fn exit(&mut self, life: Life, reason: ExitReason) {
        self.tell(|_| format!("{life:?} exits: {reason}"));
        let Some(process) = self.processes.remove(&life) else {
            return;
        };
        let host = process.host;
        let was_current = self.hosts[host].current == Some(life);
        if was_current {
            self.hosts[host].current = None;
        }
        let late = reason == ExitReason::Stopped { goodbye: false };
        self.seen.late_stops += u64::from(late);
        match reason {
            ExitReason::RunComplete(_) => {}
            ExitReason::Fenced if !was_current => self.seen.fenced += 1,
            // The one thought dead found itself given up, and registered once more; or a message
            // that was very long on its way did.
            ExitReason::Fenced => {
                self.after(1000, Happening::Starts(host));
            }
            ExitReason::Drained(_)
            | ExitReason::Evicted(_)
            | ExitReason::Refused(Refusal::Drained { .. }) => {
                let drained = u64::from(matches!(reason, ExitReason::Drained(_)));
                let evicted = u64::from(matches!(reason, ExitReason::Evicted(_)));
                self.seen.drained_exits += drained;
                self.seen.evicted_exits += evicted;
                if was_current {
                    let back = self.random.between(100, 20_000);
                    self.after(back, Happening::Starts(host));
                }
            }
            ExitReason::Stopped { .. } if was_current => {
                let back = self.random.between(100, 30_000);
                self.after(back, Happening::Starts(host));
            }
            ExitReason::Stopped { .. } => {}
            ExitReason::Failed(_) | ExitReason::NotFinite(_) if was_current => {
                let back = self.random.between(100, 30_000);
                self.after(back, Happening::Starts(host));
            }
            ExitReason::Failed(_) | ExitReason::NotFinite(_) => {}
            reason => self.fail(format!("{life:?} ends: {reason}")),
        }
    }
}
