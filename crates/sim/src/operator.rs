//! An operator who gives orders while faults happen, and takes all of them back in the end.

use crate::random::Random;
use crate::world::{Happening, World};
use hansa_base::Hash;
use hansa_protocol::{Command, Event, Norm, Order, Pause, RefusedBecause};

/// So that a seed's other dice fall as if there were no operator.
const OWN_DICE: u64 = 0x0BE7_A702;

impl World {
    /// What the operator will do.
    pub fn plan_orders(&mut self) {
        let mut random = Random::new(self.seed ^ OWN_DICE);
        let until = self.setting.faults_until;
        if until == 0 || random.one_in(2) {
            return;
        }
        for _ in 0..random.between(1, 4) {
            let at = random.between(0, until - 1);
            let host = random.next() as usize % self.hosts.len();
            let replica = self.hosts[host].id.clone();
            let (site, why) = (replica.site.clone(), String::new);
            let (first, second) = match random.between(0, 8) {
                0..=3 => (Order::Pause { why: why() }, Order::Resume { why: why() }),
                4..=5 => {
                    let undrain = Order::Undrain {
                        site: site.clone(),
                        why: why(),
                    };
                    let (why, until) = (why(), None);
                    (Order::Drain { site, why, until }, undrain)
                }
                6..=7 => {
                    let readmit = Order::Readmit {
                        replica: replica.clone(),
                        why: why(),
                    };
                    let why = why();
                    (Order::Evict { replica, why }, readmit)
                }
                _ => (Order::Stop { why: why() }, Order::Stop { why: why() }),
            };
            self.at(at, Happening::Orders(first));
            let later = at + random.between(100, 20_000);
            self.at(later, Happening::Orders(second));
        }
    }

    /// Refused or not: the operator reads the answer, and lives with it.
    pub fn order(&mut self, order: Order) {
        let takes_back = matches!(
            order,
            Order::Resume { .. } | Order::Undrain { .. } | Order::Readmit { .. }
        );
        if !self.faulty() && !takes_back {
            return;
        }
        let until = self.coordinator.stalled_until;
        if self.now < until {
            return self.at(until, Happening::Orders(order));
        }
        if takes_back && !self.coordinator.runs() {
            return self.after(500, Happening::Orders(order));
        }
        self.command(Command::Operate(order));
    }

    /// The norm of a contribution: between the square root of its steps and their number, now more and
    /// now less; while there are faults, sometimes far more.
    pub fn norm(&mut self, id: Hash) -> Norm {
        let contribution = self.coordinator.twin.contribution(id);
        let steps = contribution.map_or(1, |(_, c)| c.parts.steps.0) as f64;
        let mut dice = Random::new(self.seed ^ OWN_DICE ^ (u64::from(id.0[0]) << 32) ^ self.now);
        let percent = dice.between(50, 150) as f64 / 100.0;
        let exponent = dice.between(50, 100) as f64 / 100.0;
        let outlier = self.setting.outliers && self.faulty() && dice.one_in(3);
        self.seen.norm_outliers += u64::from(outlier);
        let far = if outlier { 1e4 } else { 1.0 };
        Norm::new(far * percent * steps.powf(exponent)).unwrap_or_default()
    }

    /// The faults are over: whatever was ordered is taken back, but for a stop.
    pub fn take_orders_back(&mut self) {
        let why = String::new;
        let orders = &self.coordinator.twin.orders;
        let mut back: Vec<Order> = Vec::new();
        back.extend(orders.paused.iter().map(|_| Order::Resume { why: why() }));
        let drained = orders.drained.keys().cloned();
        back.extend(drained.map(|site| Order::Undrain { site, why: why() }));
        let replicas = self.coordinator.twin.replicas.iter();
        let evicted = replicas.filter(|replica| replica.evicted.is_some());
        back.extend(evicted.map(|replica| Order::Readmit {
            replica: replica.id.clone(),
            why: why(),
        }));
        for order in back {
            self.command(Command::Operate(order));
        }
    }

    /// Counts what was ordered.
    pub fn saw_order(&mut self, event: &Event) {
        let seen = &mut self.seen;
        match event {
            Event::Paused(pause) => {
                let by_norms = matches!(pause, Pause::Norms(_));
                let by_refusals = matches!(pause, Pause::Refusals(_));
                seen.pauses += 1;
                seen.norm_pauses += u64::from(by_norms);
                seen.refusal_pauses += u64::from(by_refusals);
                if by_norms || by_refusals {
                    // The operator is told, and thinks about it.
                    let why = String::new();
                    self.after(3000, Happening::Orders(Order::Resume { why }));
                }
            }
            Event::RefusedAgain { .. } => seen.refused_again += 1,
            Event::Refused {
                because: RefusedBecause::Norm { .. },
                ..
            } => {
                seen.norm_refusals += 1;
                if !self.faulty() {
                    self.fail("an ordinary norm is refused".to_owned());
                }
            }
            Event::Resumed { .. } => seen.resumes += 1,
            Event::Drained { .. } => seen.drains += 1,
            Event::Evicted { .. } => seen.evictions += 1,
            Event::Stopping { .. } => seen.stopped_runs += 1,
            _ => {}
        }
    }
}
