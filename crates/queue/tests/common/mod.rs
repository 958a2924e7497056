//! A coordinator's desk: the machine, its journal, and a site process that says what a test tells it.
#![allow(clippy::unwrap_used, dead_code)]

use std::time::Duration;

use hansa_base::{MonoMs, ReplicaId, SiteName};
use hansa_queue::*;

pub const START: u64 = 1_764_000_000;
pub const HOUR: u64 = 3600;

pub fn site() -> SiteName {
    "lumi".parse().unwrap()
}

pub fn shape(name: &str, walltime_s: u64) -> Shape {
    Shape {
        name: name.into(),
        partition: "small-g".into(),
        account: Some("project_1".into()),
        qos: None,
        nodes: 1,
        gpus_per_node: 8,
        walltime_s,
    }
}

/// Two jobs of two hours each, chained by `--begin`, without a budget.
pub fn profile() -> SiteProfile {
    SiteProfile {
        wanted_jobs: 2,
        preferred: "small".into(),
        shapes: vec![shape("small", 2 * HOUR), shape("short", HOUR / 2)],
        chain: Chain::Begin,
        max_pending: 8,
        budget: Budget::default(),
        probe_every_s: 300,
        usage_every_s: HOUR,
        retry: Retry::default(),
        stated: None,
        accounting_lag_s: None,
    }
}

pub struct Desk {
    pub machine: Machine,
    pub run: RunView,
    pub now_s: u64,
    pub journal: Vec<(UnixS, Event)>,
    pub holder: String,
    pub lease: Option<LeaseNo>,
    pub spooled: u64,
}

impl Desk {
    /// A run with work, and a site process that has told `profile`.
    pub fn open(profile: SiteProfile) -> Self {
        let run = RunView {
            run_id: "ab".repeat(32),
            windows_left: 1000,
            ..RunView::default()
        };
        let mut desk = Self {
            machine: Machine::new(State::new(), Timing::default(), MonoMs(0)),
            run,
            now_s: START,
            journal: Vec::new(),
            holder: "uan02 1 aaaa".to_owned(),
            lease: None,
            spooled: 0,
        };
        let mut request = desk.request(Vec::new());
        request.profile = Some(profile);
        let reply = desk.call(request).unwrap();
        desk.lease = Some(reply.lease);
        desk
    }

    pub fn now(&self) -> Now {
        Now {
            wall: UnixS(self.now_s),
            mono: MonoMs((self.now_s - START) * 1000),
        }
    }

    pub fn request(&mut self, reports: Vec<Report>) -> SyncRequest {
        let at = UnixS(self.now_s);
        let stamped = reports.into_iter().map(|report| {
            self.spooled += 1;
            let seq = self.spooled;
            Stamped { seq, at, report }
        });
        let reports = stamped.collect();
        SyncRequest {
            site: site(),
            holder: Line::new(&self.holder),
            lease: self.lease,
            take_over: false,
            leave: false,
            profile: None,
            spool: "spool".into(),
            reports,
        }
    }

    pub fn call(&mut self, request: SyncRequest) -> Result<SyncReply, QueueRefusal> {
        let now = self.now();
        let handled = self.machine.sync(request, &self.run, now);
        self.record(handled.events);
        handled.reply
    }

    /// The site says something, and gets its orders.
    pub fn say(&mut self, reports: Vec<Report>) -> Vec<Order> {
        let request = self.request(reports);
        self.call(request).unwrap().orders
    }

    pub fn order(&mut self, order: QueueOrder) -> Result<(), QueueRefusal> {
        let now = self.now();
        let handled = self.machine.operate(order, &self.run, now);
        self.record(handled.events);
        handled.reply
    }

    /// Time passes, in steps short enough for the lease; the site keeps calling.
    pub fn wait(&mut self, seconds: u64) -> Vec<Order> {
        let end = self.now_s + seconds;
        let mut orders = Vec::new();
        while self.now_s < end {
            self.now_s = end.min(self.now_s + 60);
            orders = self.say(Vec::new());
        }
        orders
    }

    /// Time passes at the coordinator, and no site calls.
    pub fn tick_for(&mut self, seconds: u64) {
        let end = self.now_s + seconds;
        while self.now_s < end {
            self.now_s = end.min(self.now_s + 60);
            let now = self.now();
            let handled = self.machine.tick(&self.run, now);
            self.record(handled.events);
            handled.reply.unwrap();
        }
    }

    /// Journaled; and a replay of the journal is the state.
    fn record(&mut self, events: Vec<Event>) {
        let at = UnixS(self.now_s);
        self.journal
            .extend(events.into_iter().map(|event| (at, event)));
        // Long journals are compared now and then: that takes longer with each event.
        if self.journal.len() < 200 || self.journal.len().is_multiple_of(101) {
            assert_eq!(&replay(&self.journal), self.machine.state());
        }
    }

    /// The journal of a restored copy has one record more.
    pub fn restore_with(&mut self, event: Event) {
        self.journal.push((UnixS(self.now_s), event));
        let state = replay(&self.journal);
        self.machine = Machine::new(state, Timing::default(), self.now().mono);
    }

    pub fn restart(&mut self) {
        let state = replay(&self.journal);
        assert_eq!(&state, self.machine.state());
        self.machine = Machine::new(state, Timing::default(), self.now().mono);
    }

    pub fn intent(&self, id: u64) -> &Intent {
        &self.machine.state().intents[&IntentId(id)]
    }

    pub fn here(&self) -> &Site {
        &self.machine.state().sites[&site()]
    }

    pub fn last_decision(&self) -> String {
        self.here().decisions.back().unwrap().text.to_string()
    }

    pub fn decisions(&self) -> String {
        let texts = self.here().decisions.iter();
        texts.map(|d| format!("{}\n", d.text)).collect()
    }

    pub fn observe(&mut self, replica: &str) {
        let id: ReplicaId = format!("lumi/{replica}").parse().unwrap();
        self.run.observed.insert(id);
    }

    /// What a job of an intent looks like now.
    pub fn job(&self, intent: u64, job: &str, state: &str) -> JobReport {
        JobReport {
            intent: IntentId(intent),
            job: job.into(),
            state: state.into(),
            cancelled_by: None,
            reason: "None".into(),
            source: JobSource::Squeue,
            submitted: Some(UnixS(self.now_s)),
            started: None,
            ended: None,
            limit_s: Some(2 * HOUR),
            nodes: Vec::new(),
            exit_code: None,
            signal: None,
            restarts: 0,
        }
    }

    pub fn running(&self, intent: u64, job: &str) -> Report {
        Report::Job(JobReport {
            started: Some(UnixS(self.now_s)),
            ..self.job(intent, job, "RUNNING")
        })
    }

    /// The end of a job that ran for `ran_s`.
    pub fn ended(&self, intent: u64, job: &str, state: &str, ran_s: u64) -> JobReport {
        JobReport {
            started: Some(UnixS(self.now_s - ran_s)),
            ended: Some(UnixS(self.now_s)),
            source: JobSource::Sacct,
            ..self.job(intent, job, state)
        }
    }
}

pub fn replay(journal: &[(UnixS, Event)]) -> State {
    let mut state = State::new();
    for (at, event) in journal {
        state.apply(*at, event).unwrap();
    }
    state
}

pub fn submitted(intent: u64, job: &str) -> Report {
    Report::Submitted {
        intent: IntentId(intent),
        job: job.into(),
        how: How::Reply,
        raw: job.into(),
    }
}

pub fn not_submitted(intent: u64, word: &str, lasting: bool) -> Report {
    Report::NotSubmitted {
        intent: IntentId(intent),
        refusal: refusal(word, lasting),
        raw: "".into(),
    }
}

pub fn refusal(word: &str, lasting: bool) -> Refusal {
    Refusal {
        kind: RefusalKind::from_word(word),
        lasting,
        text: "said Slurm".into(),
    }
}

/// Submissions among orders: intent, replica, begin, tried.
pub fn submissions(orders: &[Order]) -> Vec<(u64, String, Begin, bool)> {
    let of = |order: &Order| match order {
        Order::Submit(s) => Some((s.intent.0, s.replica.to_string(), s.begin, s.tried)),
        _ => None,
    };
    orders.iter().filter_map(of).collect()
}

pub fn ttl_s() -> u64 {
    Duration::from_secs(180).as_secs()
}
