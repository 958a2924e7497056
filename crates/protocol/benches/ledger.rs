//! How fast the coordinator's machine decides, with many replicas and positions:
//! `cargo bench -p hansa-protocol`.
//!
//! 10,000 replicas of 100 sites share 10 million positions. Each measured call is one command of one
//! replica, in the middle of a run whose rounds go on outside of what is timed; the machine alone, no
//! journal and no socket. Never here: the server as a whole (see the example `load` of the coordinator).
#![allow(clippy::unwrap_used, missing_docs)]

use divan::Bencher;
use hansa_base::{Bytes, Epoch, Generation, Hash, MonoMs, Steps, Windows};
use hansa_protocol::*;
use std::cell::RefCell;
use std::time::Duration;

const REPLICAS: u32 = 10_000;
const WINDOWS: Windows = Windows(10_000_000);
const CALLS: u32 = 20_000;

fn main() {
    divan::main();
}

fn spec() -> RunSpec {
    let (block, seed, s) = (Windows(16), 7, Duration::from_secs);
    RunSpec {
        run: Hash([1; 32]),
        digest: DigestFields {
            format_version: 1,
            windows: WINDOWS,
            block,
            seed,
            epoch_rule: RunSpec::EPOCH_RULE.to_owned(),
            permutation_check: BlockSpace::new(WINDOWS, block, seed, Epoch(0)).check_value(),
            tokenizer: Hash([2; 32]),
            dtype: "u16".to_owned(),
            seq_len: 1024,
            shards: Vec::new(),
            held_out: Vec::new(),
        },
        phase: PhaseSpec {
            steps: Steps(4),
            batch: Windows(4),
            accumulation: 1,
            balance: true,
        },
        outer: OuterSpec {
            lr: 0.7,
            momentum: 0.9,
            solo: Solo::Full,
        },
        timing: Timing {
            alpha: 2.5,
            beta: 10.0,
            ttl_min: s(60),
            ttl_max: s(1800),
            session_ttl: s(60),
            grace: s(60),
            grace_rule: GraceRule::Adaptive,
            evaluation_budget: s(600),
            mark_lead: s(300),
        },
        attempts_max: 3,
        min_quorum: 1,
        end: End::Epochs(1_000_000),
        evaluate_every: 0,
    }
}

/// A run under way, and whose turn it is.
struct World {
    spec: RunSpec,
    machine: Machine,
    callers: Vec<Caller>,
    grants: Vec<Option<Grant>>,
    next: usize,
    now: MonoMs,
    beats: u64,
}

impl World {
    fn new() -> Self {
        let spec = spec();
        let state = State::new(&spec, Hash([9; 32]));
        let machine = Machine::new(spec.clone(), state, MonoMs(0));
        let mut world = Self {
            spec,
            machine,
            callers: Vec::new(),
            grants: vec![None; REPLICAS as usize],
            next: 0,
            now: MonoMs(0),
            beats: 0,
        };
        for n in 0..REPLICAS {
            let register = world.registration(n);
            let name = register.replica.clone();
            let Reply::Registered(registered) = world.send(Command::Register(register)) else {
                panic!("{name} is not registered");
            };
            let caller = registered.caller(world.spec.run, name);
            world.callers.push(caller);
        }
        world
    }

    fn registration(&self, n: u32) -> Register {
        let mut unique = [0; 32];
        unique[..4].copy_from_slice(&n.to_le_bytes());
        Register {
            replica: format!("site-{}/replica-{n}", n % 100).parse().unwrap(),
            digest: self.spec.digest.clone(),
            ranks: 1,
            nonce: Hash(unique),
            resume: None,
            held: None,
            fresh_token: Hash(unique),
        }
    }

    fn send(&mut self, command: Command) -> Reply {
        let outcome = self.machine.handle(self.now, command);
        outcome.reply.unwrap()
    }

    /// The next replica in turn; `None` when all had theirs.
    fn turn(&mut self) -> Option<usize> {
        let who = (self.next < self.callers.len()).then_some(self.next);
        self.next = who.map_or(0, |who| who + 1);
        who
    }

    /// Rates from 1 to 5.5, as different as real accelerators are.
    fn times(who: usize) -> PhaseTimes {
        PhaseTimes {
            train_ms: 1_000_000 / (100 + who as u64 % 450),
            upload_ms: 1000 + who as u64 % 700,
            trained: Windows(16),
            ..PhaseTimes::default()
        }
    }

    fn request(&self, who: usize) -> Command {
        let current = self.machine.state().current;
        let last = current.generation.0.checked_sub(1);
        Command::Lease(LeaseRequest {
            caller: self.callers[who].clone(),
            base: current.manifest,
            times: last.map(|last| (Generation(last), Self::times(who))),
        })
    }

    fn grant(&mut self, who: usize) -> Grant {
        let request = self.request(who);
        let Reply::Lease(LeaseAnswer::Train(grant)) = self.send(request) else {
            panic!("nothing to train");
        };
        grant
    }

    fn parts(&self, who: usize, grant: &Grant) -> ContributionParts {
        let spans = Span::split(&grant.lease.spans, grant.plan.windows).0;
        let mut payload = Hash([7; 32]);
        payload.0[..8].copy_from_slice(&(who as u64).to_le_bytes());
        ContributionParts {
            generation: grant.base.generation,
            base: grant.base.manifest,
            tokens: self.spec.tokens(Span::total(&spans)),
            steps: grant.plan.steps,
            payload,
            bytes: Bytes(1),
            spans,
        }
    }

    fn announcement(&mut self, who: usize) -> Command {
        let grant = match self.grants[who].take() {
            Some(grant) => grant,
            None => self.grant(who),
        };
        Command::Announce(Announce {
            caller: self.callers[who].clone(),
            parts: self.parts(who, &grant),
        })
    }

    fn complete(&mut self, who: usize) -> Command {
        let announcement = self.announcement(who);
        let Command::Announce(Announce { parts, .. }) = &announcement else {
            unreachable!()
        };
        let id = parts.id();
        if self.machine.state().contribution(id).is_none() {
            self.send(announcement);
        }
        Command::UploadComplete {
            id,
            found: Ok(Norm::default()),
        }
    }

    fn merged(&self) -> Command {
        let generation = self.machine.state().current.generation.next();
        let mut manifest = Hash([3; 32]);
        manifest.0[..8].copy_from_slice(&generation.0.to_le_bytes());
        Command::Merged(Merged {
            generation,
            manifest,
            merge_ms: 1,
        })
    }

    fn has_contributed(&self, who: usize) -> bool {
        let state = self.machine.state();
        let (_, replica) = state.find(&self.callers[who].replica).unwrap();
        replica.contributed == Some(state.round.base)
    }

    /// Everybody that has not contributed does; first all become members, so that none is left out.
    fn finish_round(&mut self) {
        for who in 0..self.callers.len() {
            if !self.has_contributed(who) && self.grants[who].is_none() {
                self.grants[who] = Some(self.grant(who));
            }
        }
        for who in 0..self.callers.len() {
            if !self.has_contributed(who) {
                let complete = self.complete(who);
                self.send(complete);
            }
        }
        assert!(self.machine.merge_due().is_some());
    }

    fn next_round(&mut self) {
        self.finish_round();
        let merged = self.merged();
        self.send(merged);
        self.next = 0;
        self.grants.fill(None);
    }

    fn heartbeat(&mut self, who: usize) -> Command {
        self.beats += 1;
        Command::Heartbeat(Heartbeat {
            caller: self.callers[who].clone(),
            at: None,
            progress: Progress {
                activity: Activity::Training,
                counter: self.beats,
                step: Some(Duration::from_secs(1)),
                rtt: Some(Duration::from_millis(80)),
                loss: Some(3.0),
                tokens_per_s: Some(1e5),
            },
        })
    }
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

fn with<T>(body: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| body(world.get_or_insert_with(World::new)))
}

fn handle(command: Command) -> Outcome {
    with(|world| world.machine.handle(world.now, command))
}

/// Each call is one command of the next replica in turn; a new round begins when all had theirs.
fn in_turn(bencher: Bencher<'_, '_>, command: fn(&mut World, usize) -> Command) {
    with(World::next_round);
    let make = || {
        with(|world| {
            let who = world.turn().or_else(|| {
                world.next_round();
                world.turn()
            });
            command(world, who.unwrap())
        })
    };
    bencher.with_inputs(make).bench_local_values(handle);
}

#[divan::bench(sample_count = CALLS, sample_size = 1)]
fn grant(bencher: Bencher<'_, '_>) {
    in_turn(bencher, |world, who| world.request(who));
}

#[divan::bench(sample_count = CALLS, sample_size = 1)]
fn heartbeat(bencher: Bencher<'_, '_>) {
    in_turn(bencher, World::heartbeat);
}

#[divan::bench(sample_count = CALLS, sample_size = 1)]
fn announce(bencher: Bencher<'_, '_>) {
    in_turn(bencher, World::announcement);
}

#[divan::bench(sample_count = CALLS, sample_size = 1)]
fn stage(bencher: Bencher<'_, '_>) {
    in_turn(bencher, World::complete);
}

/// A whole generation: all members' positions committed, all of them planned anew.
#[divan::bench(sample_count = 4, sample_size = 1)]
fn publish(bencher: Bencher<'_, '_>) {
    let make = || {
        with(|world| {
            world.finish_round();
            world.merged()
        })
    };
    bencher.with_inputs(make).bench_local_values(handle);
}

/// One that joins while all others train.
#[divan::bench(sample_count = 200, sample_size = 1)]
fn join(bencher: Bencher<'_, '_>) {
    with(|world| {
        world.next_round();
        for who in 0..world.callers.len() {
            world.grants[who] = Some(world.grant(who));
        }
    });
    let mut names = REPLICAS..;
    let make = || {
        with(|world| {
            let n = names.next().unwrap();
            let register = world.registration(n);
            let replica = register.replica.clone();
            let Reply::Registered(registered) = world.send(Command::Register(register)) else {
                panic!("{replica} is not registered");
            };
            let caller = registered.caller(world.spec.run, replica);
            Command::Lease(LeaseRequest {
                caller,
                base: world.machine.state().current.manifest,
                times: None,
            })
        })
    };
    bencher.with_inputs(make).bench_local_values(handle);
    // The others of this file know of the first ones only.
    WORLD.set(None);
}

#[divan::bench(sample_count = CALLS, sample_size = 1)]
fn tick(bencher: Bencher<'_, '_>) {
    bencher
        .with_inputs(|| Command::Tick)
        .bench_local_values(handle);
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn check_invariants_of_all(bencher: Bencher<'_, '_>) {
    bencher.bench_local(|| with(|world| check_invariants(&world.spec, world.machine.state())));
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn copy_the_state(bencher: Bencher<'_, '_>) {
    bencher.bench_local(|| with(|world| world.machine.state().clone()));
}

/// The order of 10 million windows, in blocks of 16.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn permutation(bencher: Bencher<'_, '_>) {
    bencher.bench_local(|| BlockSpace::new(WINDOWS, Windows(16), 7, Epoch(1)).check_value());
}

#[divan::bench(sample_count = 1, sample_size = 1)]
fn register_all(bencher: Bencher<'_, '_>) {
    bencher.bench_local(World::new);
}
