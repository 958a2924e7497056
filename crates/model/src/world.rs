//! The state of the model, and what can happen in it.

use crate::process::{Disk, Process};
use crate::{Bounds, Mutation};
use hansa_base::{Epoch, Hash, MonoMs, ReplicaId, Steps, Windows};
use hansa_protocol::{
    BlockSpace, Command, DigestFields, End, GraceRule, Machine, OuterSpec, PhaseSpec, RunSpec,
    Solo, State, Timing,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// A step of time: half of every TTL, and all of the grace window.
pub const STEP: Duration = Duration::from_secs(1);

/// Everything.
#[derive(Clone, Debug)]
pub struct World {
    pub machine: Machine,
    pub now: MonoMs,
    /// What the journal makes of the first state.
    pub twin: State,
    /// How often each position is in the current generation.
    pub weights: Vec<u8>,
    /// Durable payloads: the positions in them.
    pub payloads: BTreeMap<Hash, Vec<u64>>,
    pub names: Vec<Name>,
    /// Copies of requests that may yet arrive, once each.
    pub late: Vec<Command>,
    /// How much more may go wrong.
    pub faults: u8,
    /// The rule that does not hold, and how.
    pub broken: Option<(u8, String)>,
    /// Nonces and tokens made so far.
    pub fresh: u64,
}

/// A replica's name: at most one process that should run, and one thought dead.
#[derive(Clone, Debug)]
pub struct Name {
    pub id: ReplicaId,
    /// The disk while no process uses it.
    pub idle: Option<Disk>,
    pub current: Option<Process>,
    pub zombie: Option<Process>,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// It is handled; the answer is lost.
    Unanswered,
    /// It arrives some other time, and the answer is lost.
    Late,
    /// It is answered, and arrives a second time later.
    Twice,
    /// It is journaled; then the coordinator dies.
    CoordinatorDies,
}

impl Fate {
    pub const ALL: [Self; 5] = [
        Self::Answered,
        Self::Unanswered,
        Self::Late,
        Self::Twice,
        Self::CoordinatorDies,
    ];

    pub const fn cost(self) -> u8 {
        !matches!(self, Self::Answered) as u8
    }
}

/// Which process of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Current,
    Zombie,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A process makes the call of its state.
    Call(usize, Which, Fate),
    /// It uploads what is not finite.
    UploadsBad(usize, Which),
    /// A sign of life is on its way for long.
    Heartbeat(usize, Which),
    /// It trains one window.
    Step(usize, Which),
    /// It writes a checkpoint.
    Save(usize, Which),
    /// It has trained what it may: it encodes and writes its checkpoint.
    Finish(usize, Which),
    /// A signal.
    Stop(usize, Which),
    Crash(usize, Which),
    /// A process starts, from the newest checkpoint or from the one before.
    Start(usize, bool),
    /// A process starts on a copy of the disk while another lives.
    TakeOver(usize),
    /// Half a TTL passes, and everybody who lives is heard of.
    Pass,
    /// A TTL passes in which nothing is heard of this process.
    Silent(usize, Which),
    /// A TTL passes in which this process shows no progress.
    Stuck(usize, Which),
    /// A TTL passes in which nothing is heard of anybody.
    Cut,
    Merge,
    /// The coordinator dies and comes back.
    Restart,
    /// A late request arrives.
    Arrives(usize),
}

impl World {
    pub fn new(spec: &RunSpec, bounds: &Bounds) -> Self {
        let twin = State::new(spec, manifest(0));
        let name = |n: u32| Name {
            id: format!("site/r{n}")
                .parse()
                .unwrap_or_else(|_| unreachable!()),
            idle: Some(Disk::default()),
            current: None,
            zombie: None,
        };
        Self {
            machine: Machine::new(spec.clone(), twin.clone(), MonoMs(0)),
            now: MonoMs(0),
            twin,
            weights: vec![0; bounds.windows as usize],
            payloads: BTreeMap::new(),
            names: (0..bounds.replicas).map(name).collect(),
            late: Vec::new(),
            faults: bounds.faults,
            broken: None,
            fresh: 0,
        }
    }

    pub fn process(&self, name: usize, which: Which) -> Option<&Process> {
        match which {
            Which::Current => self.names[name].current.as_ref(),
            Which::Zombie => self.names[name].zombie.as_ref(),
        }
    }

    pub fn process_mut(&mut self, name: usize, which: Which) -> Option<&mut Process> {
        match which {
            Which::Current => self.names[name].current.as_mut(),
            Which::Zombie => self.names[name].zombie.as_mut(),
        }
    }

    /// A process ends; its disk stays, unless another one has taken its place.
    pub fn end_process(&mut self, name: usize, which: Which) {
        let name = &mut self.names[name];
        match which {
            Which::Current => name.idle = name.current.take().map(|process| process.disk),
            Which::Zombie => name.zombie = None,
        }
    }

    pub fn fresh_hash(&mut self) -> Hash {
        self.fresh += 1;
        hash("fresh", self.fresh)
    }

    pub fn break_rule(&mut self, number: u8, what: String) {
        self.broken.get_or_insert((number, what));
    }

    /// Takes one from what may go wrong; false if there is nothing left.
    pub fn pay(&mut self, faults: u8) -> bool {
        let left = self.faults.checked_sub(faults);
        self.faults = left.unwrap_or(0);
        left.is_some()
    }

    /// Everything that can happen now.
    pub fn actions(&self, mutation: Option<Mutation>, actions: &mut Vec<Action>) {
        if self.broken.is_some() || self.twin.ended {
            return;
        }
        for name in 0..self.names.len() {
            self.actions_of(name, mutation, actions);
        }
        actions.push(Action::Pass);
        if self.faults > 0 {
            actions.push(Action::Cut);
        }
        if self.machine.merge_due().is_some() {
            actions.push(Action::Merge);
        }
        if self.faults > 0 {
            actions.push(Action::Restart);
        }
        actions.extend((0..self.late.len()).map(Action::Arrives));
    }

    fn actions_of(&self, name: usize, mutation: Option<Mutation>, actions: &mut Vec<Action>) {
        let faulty = self.faults > 0;
        for which in [Which::Current, Which::Zombie] {
            let Some(process) = self.process(name, which) else {
                continue;
            };
            let fates = || Fate::ALL.into_iter().filter(|f| f.cost() <= self.faults);
            if process.calls() {
                actions.extend(fates().map(|fate| Action::Call(name, which, fate)));
            }
            if process.uploads() && faulty {
                actions.push(Action::UploadsBad(name, which));
            }
            if process.caller.is_some() && faulty {
                actions.push(Action::Heartbeat(name, which));
                actions.push(Action::Silent(name, which));
                actions.push(Action::Stuck(name, which));
            }
            if process.may_step(mutation) {
                actions.push(Action::Step(name, which));
            }
            if process.may_save() && faulty {
                actions.push(Action::Save(name, which));
            }
            if process.may_finish(mutation) {
                actions.push(Action::Finish(name, which));
            }
            if faulty {
                actions.push(Action::Crash(name, which));
            }
            if faulty && !process.leaves {
                actions.push(Action::Stop(name, which));
            }
        }
        let Name {
            idle,
            current,
            zombie,
            ..
        } = &self.names[name];
        if let Some(disk) = idle {
            actions.push(Action::Start(name, false));
            if disk.older.is_some() && faulty {
                actions.push(Action::Start(name, true));
            }
        }
        if current.is_some() && zombie.is_none() && faulty {
            actions.push(Action::TakeOver(name));
        }
    }
}

pub fn manifest(generation: u64) -> Hash {
    hash("model", generation)
}

pub fn hash(purpose: &str, number: u64) -> Hash {
    let mut hasher = blake3::Hasher::new_derive_key(purpose);
    hasher.update(&number.to_le_bytes());
    Hash(*hasher.finalize().as_bytes())
}

/// One epoch; a step is one window; every TTL is two steps of time, the grace window one.
pub fn spec(bounds: &Bounds) -> RunSpec {
    let (windows, block) = (Windows(bounds.windows), Windows(1));
    RunSpec {
        run: hash("run", 0),
        digest: DigestFields {
            format_version: 1,
            windows,
            block,
            seed: 0,
            epoch_rule: RunSpec::EPOCH_RULE.to_owned(),
            permutation_check: BlockSpace::new(windows, block, 0, Epoch(0)).check_value(),
            tokenizer: Hash::default(),
            dtype: "u16".to_owned(),
            seq_len: 1,
            shards: Vec::new(),
            held_out: Vec::new(),
        },
        phase: PhaseSpec {
            steps: Steps(bounds.steps),
            batch: Windows(1),
            accumulation: 1,
            balance: false,
        },
        outer: OuterSpec {
            lr: 0.7,
            momentum: 0.9,
            solo: Solo::Full,
        },
        timing: Timing {
            alpha: 1.0,
            beta: 0.0,
            ttl_min: STEP * 2,
            ttl_max: STEP * 2,
            session_ttl: STEP * 2,
            grace: STEP,
            grace_rule: GraceRule::Fixed,
            evaluation_budget: STEP,
            mark_lead: STEP / 2,
        },
        attempts_max: 2,
        min_quorum: 1,
        end: End::Epochs(1),
        evaluate_every: 0,
    }
}
