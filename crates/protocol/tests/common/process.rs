//! One replica's machine, told what came back and asked what it does.

use super::*;
use hansa_base::{LeaseId, RetryPolicy};
use hansa_protocol::replica::*;

/// One process of replica `a`.
pub struct Process {
    pub machine: ReplicaMachine,
    pub now: MonoMs,
    pub actions: Vec<Action>,
    /// The heartbeat under way.
    pub heartbeat: Option<CallNo>,
}

pub fn options() -> Options {
    Options {
        entropy: hash(0x11),
        checkpoint_every: s(60),
        retry: RetryPolicy {
            first: Duration::from_millis(100),
            longest: s(5),
            retries_max: None,
        },
        when_busy: WhenBusy::Wait,
        leave_within: s(30),
    }
}

pub fn current(number: u64) -> GenerationInfo {
    GenerationInfo {
        generation: Generation(number),
        ..GenerationInfo::first(&spec(), manifest(Generation(number)))
    }
}

pub fn lease(front: u64) -> LeaseView {
    LeaseView {
        id: LeaseId(1),
        epoch: Epoch(0),
        front: Windows(front),
        spans: vec![span(front, front + 4)],
        mark: Windows(front + 4),
        seq: front + 1,
    }
}

pub fn grant(generation: u64, front: u64) -> Reply {
    let (steps, windows) = (Steps(2), Windows(4));
    let plan = Plan {
        generation: Generation(generation),
        steps,
        accumulation: 1,
        windows,
    };
    let (lease, base) = (lease(front), current(generation));
    Reply::Lease(LeaseAnswer::Train(Grant { lease, plan, base }))
}

pub fn registered(lease: Option<LeaseView>, announced: Option<Hash>) -> Reply {
    Reply::Registered(Registered {
        incarnation: Incarnation(3),
        timeline: Timeline(0),
        seal: hash(0x5e),
        token: hash(0x22),
        lease,
        announced,
        current: current(0),
    })
}

/// The incarnation of a predecessor.
pub fn held() -> Caller {
    Lineage::begun(hash(1), Timeline(0)).caller(spec().run, id("a"), Incarnation(2))
}

/// What a predecessor left: a step of two windows on generation 0.
pub fn mid_phase() -> LocalState {
    LocalState {
        run: spec().run,
        replica: id("a"),
        incarnation: Incarnation(2),
        base: current(0),
        lease: LeaseId(1),
        epoch: Epoch(0),
        front: Windows(0),
        cursor: Windows(2),
        steps: Steps(1),
        contribution: None,
    }
}

impl Process {
    pub fn start(found: Found) -> Self {
        let now = MonoMs(0);
        let (machine, actions) = ReplicaMachine::start(spec(), id("a"), 1, options(), found, now);
        Self {
            machine,
            now,
            actions,
            heartbeat: None,
        }
    }

    pub fn tell(&mut self, input: Input) -> &mut Self {
        self.now = self.now.after(Duration::from_millis(10));
        self.actions = self.machine.handle(self.now, input);
        let heartbeat = self.actions.iter().find_map(|action| match action {
            Action::Call {
                no,
                call: Call::Heartbeat(_),
            } => Some(*no),
            _ => None,
        });
        self.heartbeat = heartbeat.or(self.heartbeat);
        self
    }

    pub fn pulse(&mut self, answer: Result<Reply, CallFailed>) -> &mut Self {
        let no = self.heartbeat.take().expect("a heartbeat");
        self.tell(Input::Answered { no, answer })
    }

    /// The last call that is no heartbeat.
    pub fn call(&self) -> (CallNo, Call) {
        let calls = self.actions.iter().filter_map(|action| match action {
            Action::Call { no, call } => Some((*no, call.clone())),
            _ => None,
        });
        let mut calls = calls.filter(|(_, call)| !matches!(call, Call::Heartbeat(_)));
        calls.next_back().expect("a call")
    }

    pub fn reply(&mut self, reply: Reply) -> &mut Self {
        let (no, _) = self.call();
        self.tell(Input::Answered {
            no,
            answer: Ok(reply),
        })
    }

    pub fn refuse(&mut self, refusal: Refusal) -> &mut Self {
        let (no, _) = self.call();
        let answer = Err(CallFailed::Refused(refusal));
        self.tell(Input::Answered { no, answer })
    }

    /// Registered, and free to go on.
    pub fn joined(found: Found, reply: Reply) -> Self {
        let mut process = Self::start(found);
        process.tell(Input::Saved).reply(reply).tell(Input::Saved);
        process
    }

    /// Has trained a step of generation 0 and goes on training.
    pub fn training() -> Self {
        let mut process = Self::joined(Found::default(), registered(None, None));
        process.reply(Reply::Lease(LeaseAnswer::Adopt(current(0))));
        process.tell(Input::Loaded).reply(grant(0, 0)).step();
        process.pulse(unreachable());
        process
    }

    pub fn step(&mut self) -> &mut Self {
        self.tell(Input::Stepped {
            windows: Windows(2),
            duration: s(1),
            loss: 2.0,
        })
    }

    /// From the end of training to the announcement.
    pub fn wrap_up(&mut self) -> &mut Self {
        let (payload, bytes) = (hash(9), Bytes(10));
        self.tell(Input::TrainingEnded)
            .tell(Input::Encoded { payload, bytes });
        self.tell(Input::CheckpointDurable)
    }

    pub fn beat(&mut self, standing: Standing) -> &mut Self {
        self.now = self.now.after(s(5));
        self.tell(Input::Wake).pulse(Ok(Reply::Standing(standing)))
    }

    pub fn has(&self, wanted: impl Fn(&Action) -> bool) -> bool {
        self.actions.iter().any(wanted)
    }
}

pub fn standing(lease: Option<LeaseView>, current: GenerationInfo) -> Standing {
    Standing {
        lease,
        lost: None,
        current,
        merging: false,
        ending: None,
        waits_for: Vec::new(),
        next: s(2),
        ttl: s(6),
        leave: None,
    }
}

pub fn unreachable() -> Result<Reply, CallFailed> {
    Err(CallFailed::Unreachable("no route".to_owned()))
}
