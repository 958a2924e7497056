//! What goes wrong, and when it stops.

use crate::world::{Happening, World};
use hansa_protocol::Command;
use hansa_protocol::replica::Input;

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
            let what = match self.random.between(0, 9) {
                0..=3 => Happening::Crashes(host),
                4..=5 => Happening::Stops(host),
                6..=7 => Happening::TakenOver(host),
                _ => Happening::CoordinatorStalls,
            };
            self.at(at, what);
        }
    }

    pub fn end_faults(&mut self) {
        self.tell(|_| "no more faults".into());
        self.hosts
            .iter_mut()
            .for_each(|host| host.cut_off_until = 0);
        self.coordinator.stalled_until = self.coordinator.stalled_until.min(self.now + 1);
        self.start_coordinator();
        if self.random.one_in(2) {
            // An operator, who has repaired the data.
            let windows = Vec::new();
            self.command(Command::LetOut { windows });
        }
        (0..self.hosts.len()).for_each(|host| self.start_process(host));
    }

    /// A process dies, and another one starts on its disk, soon or late. Or it is only cut off.
    pub fn crash(&mut self, host: usize) {
        if self.random.one_in(4) {
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

    /// A signal.
    pub fn stop(&mut self, host: usize) {
        if let Some(life) = self.hosts[host].current {
            self.seen.stops += 1;
            self.input(life, Input::Stop);
        }
    }

    /// A new process starts on a copy of the disk while the old one, thought dead, lives on.
    pub fn take_over(&mut self, host: usize) {
        if self.hosts[host].current.take().is_some() {
            self.seen.takeovers += 1;
            let copy = self.hosts[host].disks.last().cloned().unwrap_or_default();
            self.hosts[host].disks.push(copy);
            let soon = self.random.between(1, 3000);
            self.after(soon, Happening::Starts(host));
        }
    }
}
