//! A coordinator's machine and the story that is told to it: every command is checked against the
//! invariants, and its events against a replay.
#![allow(dead_code, clippy::unwrap_used)]

pub mod process;
pub mod tale;

use hansa_base::{
    Bytes, Epoch, Generation, Hash, Incarnation, LeaseId, MonoMs, ReplicaId, ReplicaKey, Steps,
    Timeline, Tokens, Windows,
};
use hansa_protocol::*;
use std::collections::BTreeMap;
use std::time::Duration;

pub const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn hash(byte: u8) -> Hash {
    Hash([byte; 32])
}

pub fn span(start: u64, end: u64) -> Span {
    Span::new(start, end)
}

/// 24 windows in blocks of 4; a phase is 2 steps of 2 windows.
pub fn spec() -> RunSpec {
    let (windows, block, seed) = (Windows(24), Windows(4), 7);
    RunSpec {
        run: hash(0xAA),
        digest: DigestFields {
            format_version: 1,
            windows,
            block,
            seed,
            epoch_rule: RunSpec::EPOCH_RULE.to_owned(),
            permutation_check: BlockSpace::new(windows, block, seed, Epoch(0)).check_value(),
            tokenizer: hash(1),
            dtype: "u16".to_owned(),
            seq_len: 8,
            shards: vec![ShardIdentity {
                name: "train-000.bin".to_owned(),
                hash: hash(2),
            }],
            held_out: Vec::new(),
        },
        phase: PhaseSpec {
            steps: Steps(2),
            batch: Windows(2),
            accumulation: 1,
            balance: true,
        },
        outer: OuterSpec {
            lr: 0.7,
            momentum: 0.9,
            solo: Solo::Same,
        },
        timing: Timing {
            alpha: 2.5,
            beta: 10.0,
            ttl_min: s(6),
            ttl_max: s(30),
            session_ttl: s(20),
            mark_lead: s(300),
            grace: s(8),
            grace_rule: GraceRule::Fixed,
            evaluation_budget: s(12),
        },
        attempts_max: 3,
        min_quorum: 1,
        end: End::Rounds(100),
        evaluate_every: 0,
    }
}

pub struct Story {
    pub spec: RunSpec,
    pub machine: Machine,
    pub now: MonoMs,
    pub journal: Vec<Event>,
    pub effects: Vec<Effect>,
    incarnations: BTreeMap<String, Incarnation>,
    tokens: u8,
    counter: u64,
}

impl Story {
    pub fn of(spec: RunSpec) -> Self {
        spec.validate().unwrap();
        let state = State::new(&spec, manifest(Generation(0)));
        let now = MonoMs(1000);
        Self {
            machine: Machine::new(spec.clone(), state, now),
            spec,
            now,
            journal: Vec::new(),
            effects: Vec::new(),
            incarnations: BTreeMap::new(),
            tokens: 0,
            counter: 0,
        }
    }

    /// As a data directory that was just made: its key, and its first timeline.
    pub fn begin(&mut self, key: Hash, timeline: Timeline) {
        let mut state = self.state().clone();
        state.lineage = Lineage::begun(key, timeline);
        self.take_over(state);
    }

    /// A machine that starts over this state.
    pub fn take_over(&mut self, state: State) {
        self.machine = Machine::new(self.spec.clone(), state, self.now);
    }

    pub fn new() -> Self {
        Self::of(spec())
    }

    pub fn with(change: impl FnOnce(&mut RunSpec)) -> Self {
        let mut spec = spec();
        change(&mut spec);
        Self::of(spec)
    }

    pub fn state(&self) -> &State {
        self.machine.state()
    }

    pub fn counts(&self) -> Counts {
        self.state().ledger.counts()
    }

    pub fn replica(&self, name: &str) -> &Replica {
        self.state().find(&id(name)).unwrap().1
    }

    pub fn key(&self, name: &str) -> ReplicaKey {
        self.state().find(&id(name)).unwrap().0
    }

    pub fn send(&mut self, command: Command) -> Result<Reply, Refusal> {
        let mut twin = self.state().clone();
        let outcome = self.machine.handle(self.now, command);
        for event in &outcome.events {
            twin.apply(&self.spec, event).unwrap();
        }
        assert_eq!(twin, *self.state());
        check_invariants(&self.spec, &twin).unwrap();
        self.journal.extend(outcome.events);
        self.effects = outcome.effects;
        outcome.reply
    }

    pub fn caller(&self, name: &str) -> Caller {
        self.caller_as(name, self.incarnations[name])
    }

    /// A caller with a good seal, whoever it is.
    pub fn caller_as(&self, name: &str, incarnation: Incarnation) -> Caller {
        self.state()
            .lineage
            .caller(self.spec.run, id(name), incarnation)
    }

    pub fn registration(&mut self, name: &str, nonce: u8, resume: Option<Hash>) -> Register {
        self.tokens += 1;
        Register {
            replica: id(name),
            digest: self.spec.digest.clone(),
            ranks: 1,
            nonce: hash(nonce),
            resume,
            held: None,
            fresh_token: hash(100 + self.tokens),
        }
    }

    pub fn try_register(
        &mut self,
        name: &str,
        nonce: u8,
        resume: Option<Hash>,
    ) -> Result<Registered, Refusal> {
        let register = self.registration(name, nonce, resume);
        match self.send(Command::Register(register))? {
            Reply::Registered(registered) => {
                self.incarnations
                    .insert(name.to_owned(), registered.incarnation);
                Ok(registered)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn register(&mut self, name: &str) -> Registered {
        let nonce = self.tokens + 1;
        self.try_register(name, nonce, None).unwrap()
    }

    pub fn ask_on(&mut self, name: &str, base: Hash) -> Result<LeaseAnswer, Refusal> {
        let caller = self.caller(name);
        let times = None;
        match self.send(Command::Lease(LeaseRequest {
            caller,
            base,
            times,
        }))? {
            Reply::Lease(answer) => Ok(answer),
            other => panic!("{other:?}"),
        }
    }

    /// Says, as one that has yet to adopt the current generation, how its last round went: it
    /// trained `windows` in `seconds`, and exchanged for another `exchange` seconds.
    pub fn took(&mut self, name: &str, windows: u64, seconds: u64, exchange: u64) {
        self.took_uploading(name, windows, seconds, exchange, 0);
    }

    /// The same, with so many bytes in its exchange.
    pub fn took_uploading(
        &mut self,
        name: &str,
        windows: u64,
        seconds: u64,
        exchange: u64,
        bytes: u64,
    ) {
        let last = self.state().current.generation.0 - 1;
        let times = PhaseTimes {
            train_ms: seconds * 1000,
            upload_ms: exchange * 1000,
            trained: Windows(windows),
            uploaded: Bytes(bytes),
            ..PhaseTimes::default()
        };
        let request = LeaseRequest {
            caller: self.caller(name),
            base: manifest(Generation(last)),
            times: Some((Generation(last), times)),
        };
        self.send(Command::Lease(request)).unwrap();
    }

    /// Asks with the current generation loaded.
    pub fn ask(&mut self, name: &str) -> LeaseAnswer {
        self.ask_on(name, self.state().current.manifest).unwrap()
    }

    pub fn grant(&mut self, name: &str) -> Grant {
        match self.ask(name) {
            LeaseAnswer::Train(grant) => grant,
            other => panic!("{name} gets {other:?}"),
        }
    }

    /// The contribution of the first `windows` windows of a grant.
    pub fn parts(&self, grant: &Grant, windows: u64) -> ContributionParts {
        let spans = Span::split(&grant.lease.spans, Windows(windows)).0;
        ContributionParts {
            generation: grant.base.generation,
            base: grant.base.manifest,
            tokens: self.spec.tokens(Span::total(&spans)),
            steps: Steps(Span::total(&spans).0.div_ceil(2)),
            payload: hash(9),
            bytes: Bytes(1),
            spans,
        }
    }

    pub fn announce(&mut self, name: &str, parts: &ContributionParts) -> Result<Verdict, Refusal> {
        let (caller, parts) = (self.caller(name), parts.clone());
        match self.send(Command::Announce(Announce { caller, parts }))? {
            Reply::Verdict(verdict) => Ok(verdict),
            other => panic!("{other:?}"),
        }
    }

    pub fn complete(&mut self, id: Hash) -> Result<Verdict, Refusal> {
        self.complete_with(id, None)
    }

    pub fn complete_with(&mut self, id: Hash, problem: Option<&str>) -> Result<Verdict, Refusal> {
        let problem = problem.map(|text| match text.contains("finite") {
            true => Problem::NotFinite(text.to_owned()),
            false => Problem::Form(text.to_owned()),
        });
        self.found(id, problem.map_or(Ok(norm(1.0)), Err))
    }

    /// What the gate found in what was uploaded.
    pub fn found(&mut self, id: Hash, found: Result<Norm, Problem>) -> Result<Verdict, Refusal> {
        match self.send(Command::UploadComplete { id, found })? {
            Reply::Verdict(verdict) => Ok(verdict),
            other => panic!("{other:?}"),
        }
    }

    /// Train, announce, upload.
    pub fn contribute(&mut self, name: &str) -> ContributionParts {
        let grant = self.grant(name);
        let parts = self.parts(&grant, grant.plan.windows.0);
        assert_eq!(self.announce(name, &parts), Ok(Verdict::Upload));
        assert_eq!(self.complete(parts.id()), Ok(Verdict::Staged));
        parts
    }

    /// The merge that is due is done.
    pub fn merge(&mut self) -> Generation {
        let record = self.machine.merge_due().expect("a merge is due").clone();
        let generation = record.base.next();
        let merged = Merged {
            generation,
            manifest: manifest(generation),
            merge_ms: 5,
        };
        assert_eq!(self.send(Command::Merged(merged)), Ok(Reply::Done));
        generation
    }

    pub fn beat(&mut self, name: &str, activity: Activity, counter: u64) -> Standing {
        self.beat_at(name, activity, counter, None)
    }

    pub fn beat_at(
        &mut self,
        name: &str,
        activity: Activity,
        counter: u64,
        at: Option<(LeaseId, Windows)>,
    ) -> Standing {
        self.beat_as(name, activity, counter, s(1), at)
    }

    pub fn beat_step(
        &mut self,
        name: &str,
        activity: Activity,
        counter: u64,
        step: Duration,
    ) -> Standing {
        self.beat_as(name, activity, counter, step, None)
    }

    fn beat_as(
        &mut self,
        name: &str,
        activity: Activity,
        counter: u64,
        step: Duration,
        at: Option<(LeaseId, Windows)>,
    ) -> Standing {
        let caller = self.caller(name);
        let progress = Progress {
            activity,
            counter,
            step: Some(step),
            rtt: None,
            loss: None,
            tokens_per_s: None,
        };
        match self.send(Command::Heartbeat(Heartbeat {
            caller,
            progress,
            at,
        })) {
            Ok(Reply::Standing(standing)) => standing,
            other => panic!("{other:?}"),
        }
    }

    /// Time passes, second by second; those named train and say so.
    pub fn pass(&mut self, seconds: u64, alive: &[&str]) {
        for _ in 0..seconds {
            self.now = self.now.after(s(1));
            self.counter += 1;
            for name in alive {
                self.beat(name, Activity::Training, self.counter);
            }
            assert_eq!(self.send(Command::Tick), Ok(Reply::Done));
        }
    }

    pub fn goodbye(&mut self, name: &str) {
        let caller = self.caller(name);
        assert_eq!(self.send(Command::Goodbye(caller.into())), Ok(Reply::Done));
    }

    pub fn evaluated(&mut self, name: &str, generation: u64) {
        let evaluated = Evaluated {
            caller: self.caller(name),
            generation: Generation(generation),
            loss_sum_nats: 40.0,
            tokens: Tokens(10),
        };
        assert_eq!(self.send(Command::Evaluated(evaluated)), Ok(Reply::Done));
    }

    /// The coordinator is killed and comes back, `seconds` later, from its journal.
    pub fn restart(&mut self, seconds: u64) {
        let mut state = State::new(&self.spec, manifest(Generation(0)));
        for event in &self.journal {
            state.apply(&self.spec, event).unwrap();
        }
        assert_eq!(state, *self.state(), "the journal is all there is");
        self.now = self.now.after(s(seconds));
        self.machine = Machine::new(self.spec.clone(), state, self.now);
    }
}

pub fn norm(value: f64) -> Norm {
    Norm::new(value).unwrap()
}

pub fn id(name: &str) -> ReplicaId {
    format!("lumi/{name}").parse().unwrap()
}

pub fn manifest(generation: Generation) -> Hash {
    let mut hash = hash(0xE0);
    hash.0[0] = generation.0 as u8;
    hash
}
