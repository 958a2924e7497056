//! A site process and a batch system in random trouble, from a seed: processes are killed between any
//! two steps, replies and requests are lost, a controller hangs and takes the request later, two
//! processes run at once, spools are lost, the coordinator restarts. Whatever happens, no intent has two
//! jobs, no budget is exceeded, every replica without a job has a reason, and once the trouble is over
//! the wanted jobs are there.
#![allow(clippy::unwrap_used)]

mod common;
mod slurm;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use common::*;
use hansa_queue::*;
use slurm::*;

/// A request that hangs is taken within this time, or never: `sbatch` lives as long as `timeout` lets it, and
/// the controller may take what it wrote a message time-out later.
const HANG_MAX_S: u64 = 45 + 10;
/// From the confirmation of an order to `sbatch`.
const ACT_MAX_S: u64 = 10;
/// An end is heard of, and judged, within this time once nothing goes wrong any more.
const JUDGED_WITHIN_S: u64 = 600;
/// How long a process waits after an attempt whose end is not known, before it believes its search.
const SETTLE_S: u64 = ACT_MAX_S + HANG_MAX_S + 1;

/// What survives a process at a site.
#[derive(Default)]
struct Disk {
    spool: String,
    seq: u64,
    reports: VecDeque<Stamped>,
    attempts: BTreeMap<u64, u64>,
    settled: BTreeSet<u64>,
    /// Jobs that are followed to their end.
    followed: BTreeSet<String>,
    told: BTreeMap<String, (String, u32)>,
}

/// One process.
struct Process {
    holder: String,
    lease: Option<LeaseNo>,
    take_over: bool,
    orders: Vec<Order>,
    confirmed: u64,
    seen: BTreeMap<u64, u64>,
}

struct World {
    random: Random,
    desk: Desk,
    slurm: Slurm,
    disk: Disk,
    processes: Vec<Process>,
    born: u64,
    trouble: bool,
    /// Somebody starts the next process at once, with `--take-over`.
    hasty: bool,
    seen: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut profile = profile();
        profile.chain = [Chain::None, Chain::Begin, Chain::Singleton][random.below(3) as usize];
        profile.wanted_jobs = 1 + random.below(3) as u32;
        profile.max_pending = [1, 2, 8][random.below(3) as usize];
        let counted = random.below(2) == 0;
        if counted {
            profile.budget.gpu_s_left = Some(GpuS(8 * HOUR * (2 + random.below(20))));
            profile.budget.reserve_gpu_s = GpuS(HOUR);
        }
        let mut desk = Desk::open(profile);
        let mut leave = desk.request(Vec::new());
        leave.leave = true;
        desk.call(leave).unwrap();
        Self {
            random,
            desk,
            slurm: Slurm::new(!counted),
            disk: Disk {
                spool: "s0".to_owned(),
                ..Disk::default()
            },
            processes: Vec::new(),
            born: 0,
            trouble: true,
            hasty: false,
            seen: BTreeMap::new(),
        }
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.trouble && self.random.below(one_in) == 0
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn step(&mut self) {
        self.desk.now_s += 1 + self.random.below(4);
        let now = self.desk.now_s;
        self.slurm.step(now, &mut self.random, self.trouble);
        if self.processes.is_empty() || (self.processes.len() < 2 && self.chance(300)) {
            self.start_process();
        }
        if self.chance(200) {
            self.saw("process killed");
            self.processes.remove(0);
        }
        if self.chance(2000) {
            self.saw("spool lost");
            self.lose_spool();
            self.processes.clear();
        }
        if self.chance(400) {
            self.saw("coordinator restarted");
            self.desk.restart();
        }
        for at in 0..self.processes.len() {
            self.live(at);
        }
        self.check();
    }

    /// The login node is reinstalled.
    fn lose_spool(&mut self) {
        self.born += 1;
        let spool = format!("s{}", self.born);
        self.disk = Disk {
            spool,
            ..Disk::default()
        };
    }

    fn start_process(&mut self) {
        self.born += 1;
        let take_over = self.random.below(3) == 0 || std::mem::take(&mut self.hasty);
        self.processes.push(Process {
            holder: format!("login {}", self.born),
            lease: None,
            take_over,
            orders: Vec::new(),
            confirmed: 0,
            seen: BTreeMap::new(),
        });
    }

    /// One thing that a process does: call, or execute what was confirmed a moment ago.
    fn live(&mut self, at: usize) {
        let Some(process) = self.processes.get(at) else {
            return;
        };
        let fresh = self.desk.now_s - process.confirmed <= ACT_MAX_S;
        if fresh && !process.orders.is_empty() {
            let which = self.random.below(process.orders.len() as u64) as usize;
            let order = self.processes[at].orders[which].clone();
            self.processes[at].confirmed = 0;
            if !self.execute(at, &order) && at < self.processes.len() {
                self.saw("killed while executing");
                self.processes.remove(at);
            }
        } else {
            self.follow();
            self.call(at);
        }
    }

    fn spool(&mut self, report: Report) {
        self.disk.seq += 1;
        let (seq, at) = (self.disk.seq, UnixS(self.desk.now_s));
        self.disk.reports.push_back(Stamped { seq, at, report });
    }

    fn call(&mut self, at: usize) {
        let now_s = self.desk.now_s;
        if self.chance(10) {
            return;
        }
        let process = &self.processes[at];
        let request = SyncRequest {
            site: site(),
            holder: Line::new(&process.holder),
            lease: process.lease,
            take_over: process.take_over && process.lease.is_none(),
            leave: false,
            profile: None,
            spool: Line::new(&self.disk.spool),
            reports: self.disk.reports.iter().take(5).cloned().collect(),
        };
        let answer = self.desk.call(request);
        if self.chance(10) {
            self.saw("reply lost");
            return;
        }
        let process = &mut self.processes[at];
        match answer {
            Ok(reply) => {
                process.lease = Some(reply.lease);
                process.orders = reply.orders;
                process.confirmed = now_s;
                process.take_over = false;
                for order in &process.orders {
                    let id = intent_of(order);
                    process.seen.entry(id).or_insert(now_s);
                }
                let through = reply.accepted_through;
                self.disk.reports.retain(|stamped| stamped.seq > through);
                if self.disk.reports.is_empty() {
                    self.take_up(&reply.jobs.unwrap_or_default());
                }
            }
            Err(QueueRefusal::Busy { .. }) => {
                process.orders.clear();
                self.saw("busy");
            }
            Err(QueueRefusal::Fenced { .. }) => {
                process.lease = None;
                process.orders.clear();
                self.saw("fenced");
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// The coordinator waits for the end of these.
    fn take_up(&mut self, jobs: &[LiveJob]) {
        let reports = self.slurm.reports();
        for wanted in jobs {
            let job = wanted.job.to_string();
            let report = reports.iter().find(|report| report.job == wanted.job);
            let over = report.is_some_and(|report| Phase::of(report) == Phase::Ended);
            if over && self.disk.followed.insert(job.clone()) {
                self.saw("end of a job that only the coordinator remembered");
            }
            if over {
                self.disk.told.remove(&job);
            }
        }
    }

    /// False if the process is killed on the way.
    fn execute(&mut self, at: usize, order: &Order) -> bool {
        match order {
            Order::Submit(submission) => self.submit(at, submission),
            Order::Withdraw { intent, .. } => {
                let id = intent.0;
                if self.found(id) || !self.is_settled(at, id, true) {
                    return true;
                }
                self.disk.settled.insert(id);
                self.spool(not_submitted(id, "withdrawn", true));
                true
            }
            Order::Cancel { intent, job, .. } | Order::Recall { intent, job, .. } => {
                match order {
                    Order::Recall { .. } => self.slurm.recall(job.as_str(), self.desk.now_s),
                    _ => self.slurm.cancel(job.as_str(), self.desk.now_s, None),
                }
                if self.chance(20) {
                    return false;
                }
                self.spool(Report::Cancelled {
                    intent: *intent,
                    job: job.clone(),
                });
                true
            }
            Order::Release { intent, job } => {
                self.slurm.release(job.as_str(), self.desk.now_s);
                self.spool(Report::Released {
                    intent: *intent,
                    job: job.clone(),
                });
                true
            }
            Order::Tail { intent, job } => {
                self.spool(Report::Tail {
                    intent: *intent,
                    job: job.clone(),
                    text: "the end".into(),
                });
                true
            }
            Order::Probe { .. } => true,
        }
    }

    /// Looks for the job by its name, and reports it.
    fn found(&mut self, id: u64) -> bool {
        let Some(job) = self.slurm.by_intent(id) else {
            return false;
        };
        self.saw("found by name");
        self.disk.settled.insert(id);
        self.spool(Report::Submitted {
            intent: IntentId(id),
            job: job.as_str().into(),
            how: How::Found,
            raw: "".into(),
        });
        true
    }

    /// Whether no request for this intent can be under way any more.
    fn is_settled(&self, at: usize, id: u64, tried: bool) -> bool {
        let attempt = self.disk.attempts.get(&id).copied();
        let since = match (attempt, tried) {
            (Some(attempt), _) => attempt.max(self.processes[at].seen[&id]),
            (None, true) => self.processes[at].seen[&id],
            (None, false) => return true,
        };
        self.desk.now_s >= since + SETTLE_S
    }

    fn submit(&mut self, at: usize, submission: &Submission) -> bool {
        let id = submission.intent.0;
        if self.disk.settled.contains(&id) || self.found(id) {
            return true;
        }
        if !self.is_settled(at, id, submission.tried) {
            return true;
        }
        self.disk.attempts.insert(id, self.desk.now_s);
        self.spool(Report::Attempting {
            intent: submission.intent,
        });
        if self.chance(15) {
            return false;
        }
        if self.chance(12) {
            self.saw("controller hung");
            let lands = self.random.below(HANG_MAX_S);
            if self.random.below(3) > 0 {
                self.slurm.land_later(self.desk.now_s + lands, submission);
            }
            if self.chance(3) {
                self.saw("spool lost while a request hung");
                self.lose_spool();
                self.hasty = true;
                return false;
            }
            return true;
        }
        if self.chance(20) {
            self.saw("refused");
            self.disk.settled.insert(id);
            self.spool(not_submitted(id, "policy", false));
            return true;
        }
        let job = self.slurm.accept(self.desk.now_s, submission);
        if self.chance(8) {
            self.saw("killed between sbatch and its report");
            return false;
        }
        self.disk.settled.insert(id);
        self.spool(submitted(id, &job));
        true
    }

    /// Reports what has changed of the jobs in the queue, and of those that left it while they were followed.
    fn follow(&mut self) {
        if self.disk.reports.len() > 20 {
            return;
        }
        for report in self.slurm.reports() {
            let state = (report.state.to_string(), report.restarts);
            let job = report.job.to_string();
            if Phase::of(&report) != Phase::Ended {
                self.disk.followed.insert(job.clone());
            } else if !self.disk.followed.contains(&job) {
                continue;
            }
            if self.disk.told.get(&job) != Some(&state) {
                self.disk.told.insert(job, state);
                self.spool(Report::Job(report));
            }
        }
    }

    fn check(&self) {
        for (intent, jobs) in &self.slurm.accepted {
            assert_eq!(jobs.len(), 1, "intent {intent} has jobs {jobs:?}");
        }
        let here = self.desk.here();
        let loud = here
            .decisions
            .iter()
            .find(|d| d.text.as_str().starts_with("DEFECT"));
        assert_eq!(loud, None);
        let profile = here.profile.as_ref().unwrap();
        if let Some(left) = profile.budget.gpu_s_left {
            let cost = self.slurm.cost_at_most(self.desk.now_s);
            assert!(
                cost + profile.budget.reserve_gpu_s.0 <= left.0,
                "{cost} of {left}"
            );
        }
        let state = self.desk.machine.state();
        for number in 1..=profile.wanted_jobs {
            let replica = format!("r{number}").parse().unwrap();
            let live = state.live_of(&site(), &replica).count();
            let slot = here.slots.get(&replica);
            let reason = slot.is_some_and(|slot| slot.held.is_some());
            assert!(live > 0 || reason, "{replica} has neither job nor reason");
            assert!(live <= 2, "{replica} has {live} live intents");
        }
    }

    /// Nothing goes wrong any more; an operator looks after what is paused.
    fn recover(&mut self) {
        self.trouble = false;
        self.processes.truncate(1);
        for _ in 0..1500 {
            self.step();
            if self.desk.here().paused.is_some() {
                let why = "looked after".into();
                self.desk
                    .order(QueueOrder::Resume { site: site(), why })
                    .unwrap();
            }
        }
        self.nobody_waits_for_a_job_that_is_over();
        let here = self.desk.here();
        let profile = here.profile.as_ref().unwrap();
        let counted = profile.budget.gpu_s_left.is_some();
        for number in 1..=profile.wanted_jobs {
            let replica = format!("r{number}").parse().unwrap();
            let state = self.desk.machine.state();
            let site = site();
            let mut live = state.live_of(&site, &replica);
            let held = &here.slots[&replica].held;
            let spent = counted && matches!(held, Some(Held::Budget { .. }));
            assert!(
                live.any(|intent| intent.job.is_some()) || spent,
                "{replica}: {held:?}\n{}",
                self.desk.decisions()
            );
        }
    }
}

impl World {
    /// Whatever was lost on the way: each end was heard of, and judged.
    fn nobody_waits_for_a_job_that_is_over(&self) {
        for intent in self.desk.machine.state().live(&site()) {
            let job = intent.job.as_ref();
            let ended = job.and_then(|job| self.slurm.ended(&job.id));
            let lately = |ended: u64| self.desk.now_s - ended < JUDGED_WITHIN_S;
            assert!(ended.is_none_or(lately), "{job:?} ended at {ended:?}");
        }
    }
}

fn intent_of(order: &Order) -> u64 {
    match order {
        Order::Submit(submission) => submission.intent.0,
        Order::Withdraw { intent, .. }
        | Order::Cancel { intent, .. }
        | Order::Recall { intent, .. }
        | Order::Release { intent, .. }
        | Order::Tail { intent, .. } => intent.0,
        Order::Probe { .. } => 0,
    }
}

#[test]
fn whatever_is_killed_when_no_intent_has_two_jobs() {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    let mut jobs = 0;
    for seed in 0..40 {
        let mut world = World::new(seed);
        for _ in 0..1500 {
            world.step();
        }
        world.recover();
        jobs += world.slurm.accepted.len();
        for (what, times) in world.seen {
            *seen.entry(what).or_default() += times;
        }
    }
    println!("{jobs} jobs; {seen:?}");
    for what in [
        "process killed",
        "killed while executing",
        "killed between sbatch and its report",
        "spool lost",
        "spool lost while a request hung",
        "coordinator restarted",
        "reply lost",
        "busy",
        "fenced",
        "found by name",
        "controller hung",
        "refused",
        "end of a job that only the coordinator remembered",
    ] {
        assert!(seen.contains_key(what), "never seen: {what}");
    }
}
