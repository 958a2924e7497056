//! What goes wrong, and when it stops.

use crate::host::Process;
use crate::world::{Happening, World};
use hansa_protocol::replica::Input;
use hansa_protocol::{Activity, Command, Order};

impl World {
    /// Everything that will go wrong by itself is planned at the start.
    pub fn plan_faults(&mut self) {
        let until = self.setting.faults_until;
        self.at(until, Happening::FaultsEnd);
        if until == 0 {
            return;
        }
        for _ in 0..self.random.between(0, until / 1200) {
            let at = self.random.between(0, until - 1);
            let host = self.random.next() as usize % self.hosts.len();
            let what = match self.random.between(0, 12) {
                0..=3 => Happening::Crashes(host),
                4..=5 => Happening::Stops(host),
                6..=7 => Happening::TakenOver(host),
                8 => Happening::DiskFills(host),
                9..=10 => Happening::ClockJumps(host),
                _ => Happening::CoordinatorStalls,
            };
            self.at(at, what);
        }
    }

    pub fn end_faults(&mut self) {
        self.tell(|_| "no more faults".into());
        self.hosts
            .iter_mut()
            .for_each(|host| (host.cut_off_until, host.full_until) = (0, 0));
        self.coordinator.stalled_until = self.coordinator.stalled_until.min(self.now + 1);
        self.coordinator.full_until = self.now;
        self.start_coordinator();
        self.take_orders_back();
        if self.random.one_in(2) {
            // An operator, who has repaired the data.
            let windows = Vec::new();
            self.command(Command::Operate(Order::LetOut { windows }));
        }
        (0..self.hosts.len()).for_each(|host| self.start_process(host));
    }

    /// A process dies, and another one starts on its disk, soon or late. Or it is only cut off.
    pub fn crash(&mut self, host: usize) {
        if self.random.one_in(4) {
            self.seen.partitions += 1;
            self.hosts[host].cut_off_until = self.now + self.random.between(500, 20_000);
            return;
        }
        if let Some(life) = self.hosts[host].current.take() {
            self.seen.crashes += 1;
            self.processes.remove(&life);
        }
        if host > 0 && self.random.one_in(6) {
            self.hosts[host].dead = true;
            return;
        }
        let soon = self.random.one_in(2);
        let back = if soon {
            self.random.between(50, 2500)
        } else {
            self.random.between(2500, 40_000)
        };
        self.after(back, Happening::Starts(host));
    }

    /// A signal, and sometimes a second one from an impatient batch system.
    pub fn stop(&mut self, host: usize) {
        let Some(life) = self.hosts[host].current else {
            return;
        };
        self.seen.stops += 1;
        let leaving = |process: &Process| process.machine.activity() == Activity::Leaving;
        let stopped = self.processes.get(&life).is_some_and(|p| p.stopped);
        self.seen.second_stops += u64::from(stopped);
        self.tell(|world| {
            let leaves = world.processes.get(&life).is_some_and(leaving);
            format!("{life:?} is to stop; leaving: {leaves}")
        });
        if let Some(process) = self.processes.get_mut(&life) {
            process.stopped = true;
        }
        if self.random.one_in(3) {
            let soon = self.random.between(1, 3000);
            self.after(soon, Happening::Stops(host));
        }
        self.input(life, Input::Stop);
    }

    /// A new process starts on a copy of the disk while the old one, thought dead, lives on.
    /// Sometimes two do, each on a copy of its own.
    pub fn take_over(&mut self, host: usize) {
        let Some(old) = self.hosts[host].current.take() else {
            return;
        };
        self.seen.takeovers += 1;
        let starting = |process: &Process| process.machine.activity() == Activity::Starting;
        let races = self.processes.get(&old).is_some_and(starting);
        self.seen.takeover_races += u64::from(races);
        let copy = self.hosts[host].disks.last().cloned().unwrap_or_default();
        self.hosts[host].disks.push(copy);
        let soon = self.random.between(1, 3000);
        self.after(soon, Happening::Starts(host));
        if self.random.one_in(3) {
            let next = soon + self.random.between(1, 150);
            self.after(next, Happening::TakenOver(host));
        }
    }

    /// Nothing more can be written: a process that tries ends, and comes back when it is repaired.
    pub fn fill_disk(&mut self, host: usize) {
        self.hosts[host].full_until = self.now + self.random.between(100, 10_000);
    }

    /// The machine slept, say: all of a sudden it is later.
    pub fn jump(&mut self, host: usize) {
        let Some(life) = self.hosts[host].current else {
            return;
        };
        self.seen.clock_jumps += 1;
        let by_ms = self.random.between(50, 30_000);
        if let Some(process) = self.processes.get_mut(&life) {
            process.ahead += by_ms;
        }
        self.input(life, Input::Wake);
    }
}
