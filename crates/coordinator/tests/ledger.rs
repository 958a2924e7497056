//! What a journal alone shows: who trained what, and that nothing in it is forged. The journals are
//! written by the deciding machine, without a server.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::time::Duration;

use common::{World, hash};
use hansa_base::{
    Bytes, ContributionNo, Epoch, Generation, Hash, Incarnation, LeaseId, MonoMs, ReplicaKey,
    Windows,
};
use hansa_coordinator::trace::{Subject, Trace, trace};
use hansa_coordinator::{Error, VerifyReport, replay_journal, verify_journal};
use hansa_protocol::*;
use hansa_store::{DataDir, Journal, Record, Snapshot};
use hansa_wire::journal::{
    Entry, Events, GenerationFiles, JOURNAL_VERSION, SnapshotState, encode_entry, encode_snapshot,
};

/// A journal that grows, and the machine that decides what is in it.
struct Book {
    world: World,
    journal: Journal,
    machine: Machine,
    now: MonoMs,
    nonce: u8,
}

impl Book {
    /// 40 windows in blocks of 4; a phase is 8 windows.
    fn new() -> Self {
        let world = World::new()
            .with("min_quorum = 2", "min_quorum = 1")
            .with("rounds = 2", "epochs = 2");
        let coordinator = world.open().unwrap();
        let spec = coordinator.spec().clone();
        drop(coordinator);
        let journal = Journal::open(&DataDir::journal_path(&world.data())).unwrap();
        let state = replay_journal(&world.data()).unwrap().state;
        let machine = Machine::new(spec, state, MonoMs(0));
        Self {
            world,
            journal,
            machine,
            now: MonoMs(0),
            nonce: 0,
        }
    }

    fn data(&self) -> PathBuf {
        self.world.data()
    }

    fn state(&self) -> &State {
        self.machine.state()
    }

    fn send(&mut self, command: Command) -> Reply {
        let outcome = self.machine.handle(self.now, command);
        let published = outcome.events.iter().find_map(|event| match event {
            Event::Published {
                generation,
                manifest,
                ..
            } => Some(files(*generation, *manifest)),
            _ => None,
        });
        if !outcome.events.is_empty() {
            self.append(outcome.events, published);
        }
        outcome.reply.unwrap()
    }

    fn append(&mut self, events: Vec<Event>, files: Option<GenerationFiles>) {
        let entry = Entry::Events(Events { events, files });
        let record = Record {
            wall_ms: 1_800_000_000_000,
            version: JOURNAL_VERSION,
            payload: encode_entry(&entry),
        };
        self.journal.append_batch(&[record]).unwrap();
    }

    fn register(&mut self, name: &str) -> Caller {
        self.nonce += 1;
        let register = Register {
            replica: name.parse().unwrap(),
            digest: self.machine.spec().digest.clone(),
            ranks: 1,
            nonce: hash(self.nonce),
            resume: None,
            held: None,
            fresh_token: hash(self.nonce),
        };
        let Reply::Registered(registered) = self.send(Command::Register(register)) else {
            panic!("{name} is not registered");
        };
        registered.caller(self.machine.spec().run, name.parse().unwrap())
    }

    fn grant(&mut self, caller: &Caller) -> Grant {
        let request = LeaseRequest {
            caller: caller.clone(),
            base: self.state().current.manifest,
            times: None,
        };
        match self.send(Command::Lease(request)) {
            Reply::Lease(LeaseAnswer::Train(grant)) => grant,
            other => panic!("{other:?}"),
        }
    }

    fn parts(&self, grant: &Grant) -> ContributionParts {
        let spans = Span::split(&grant.lease.spans, grant.plan.windows).0;
        ContributionParts {
            generation: grant.base.generation,
            base: grant.base.manifest,
            tokens: self.machine.spec().tokens(Span::total(&spans)),
            steps: grant.plan.steps,
            payload: hash(9),
            bytes: Bytes(1),
            spans,
        }
    }

    fn contribute(&mut self, caller: &Caller) -> ContributionParts {
        let grant = self.grant(caller);
        let (parts, caller) = (self.parts(&grant), caller.clone());
        let id = parts.id();
        self.send(Command::Announce(Announce {
            caller,
            parts: parts.clone(),
        }));
        let found = Ok(Norm::default());
        self.send(Command::UploadComplete { id, found });
        parts
    }

    /// The merge that is due is done.
    fn merge(&mut self) -> Generation {
        let generation = self.machine.merge_due().unwrap().base.next();
        self.send(Command::Merged(Merged {
            generation,
            manifest: hash(200 + generation.0 as u8),
            merge_ms: 5,
        }));
        generation
    }

    /// Time passes; those named are heard of, and nobody else.
    fn pass(&mut self, seconds: u64, alive: &[&Caller]) {
        for second in 0..seconds {
            self.now = self.now.after(Duration::from_secs(1));
            for caller in alive {
                self.send(Command::Heartbeat(Heartbeat {
                    caller: (*caller).clone(),
                    at: None,
                    progress: Progress {
                        activity: Activity::Training,
                        counter: self.now.0 + second,
                        step: None,
                        rtt: None,
                        loss: None,
                        tokens_per_s: None,
                    },
                }));
            }
            self.send(Command::Tick);
        }
    }

    fn verify(&self) -> VerifyReport {
        verify_journal(&self.data()).unwrap()
    }

    fn trace(&self, subject: &Subject) -> Trace {
        trace(&self.data(), subject).unwrap()
    }
}

fn files(generation: Generation, model: Hash) -> GenerationFiles {
    GenerationFiles {
        generation,
        theta: hash(1),
        momentum: None,
        model,
    }
}

fn whats(trace: &Trace) -> Vec<&'static str> {
    trace
        .history
        .iter()
        .map(|happening| happening.what)
        .collect()
}

/// `lumi/r0` has committed 8 windows and staged 8, `snellius/r0` holds a lease.
fn busy() -> (Book, Caller, Caller) {
    let mut book = Book::new();
    let lumi = book.register("lumi/r0");
    book.contribute(&lumi);
    book.merge();
    let snellius = book.register("snellius/r0");
    book.grant(&snellius);
    book.contribute(&lumi);
    (book, lumi, snellius)
}

#[test]
fn a_block_that_was_lost_is_followed_to_the_generation_that_has_it() {
    let mut book = Book::new();
    let snellius = book.register("snellius/r0");
    let first = book.grant(&snellius).lease.spans[0];
    let ttl = book.machine.spec().timing.session_ttl.as_secs();
    book.pass(ttl + 1, &[]);
    let lumi = book.register("lumi/r0");
    while book.state().current.generation < Generation(3) {
        book.contribute(&lumi);
        book.merge();
    }
    let space = book.machine.spec().space(Epoch(0));
    let window = space.window_at(first.start).unwrap();

    let found = book.trace(&Subject::Block(window / 4));
    assert_eq!(
        whats(&found)[..2],
        ["granted", "lost"],
        "{:#?}",
        found.history
    );
    assert_eq!(whats(&found).last(), Some(&"committed"));
    let commits = &found.committed;
    assert!(
        commits
            .iter()
            .all(|commit| commit.replica == "lumi/r0" && commit.epoch == 0)
    );
    let windows: u64 = commits
        .iter()
        .flat_map(|c| &c.spans)
        .map(|(a, b)| b - a)
        .sum();
    assert_eq!(windows, 4, "{commits:?}");
    assert!(
        found.now[0].state.starts_with("committed by lumi/r0"),
        "{:?}",
        found.now
    );

    // Its first window alone, and its first position, tell the same.
    for subject in [Subject::Window(window), Subject::Position(first.start.0)] {
        let one = book.trace(&subject);
        assert_eq!(one.committed.len(), 1, "{one:?}");
        assert_eq!(one.committed[0].spans, [(first.start.0, first.start.0 + 1)]);
        assert_eq!(one.history[0].replica.as_deref(), Some("snellius/r0"));
    }
    // And the replica's own story ends with its loss.
    let own = book.trace(&Subject::Replica(snellius.replica));
    assert_eq!(whats(&own), ["registered", "granted", "lost", "left"]);
    assert!(own.committed.is_empty() && own.now.is_empty());
}

#[test]
fn a_window_is_followed_through_every_epoch() {
    let mut book = Book::new();
    let lumi = book.register("lumi/r0");
    while book.state().ending.is_none() {
        book.contribute(&lumi);
        book.merge();
    }
    for window in [0, 17, 39] {
        let found = book.trace(&Subject::Window(window));
        let epochs: Vec<u32> = found.committed.iter().map(|commit| commit.epoch).collect();
        assert_eq!(epochs, [0, 1], "window {window}: {found:#?}");
        for commit in &found.committed {
            let space = book.machine.spec().space(Epoch(commit.epoch));
            let at = space.position_of(window).unwrap().0;
            assert_eq!(commit.spans, [(at, at + 1)]);
        }
    }
    let all = book.trace(&Subject::Replica(lumi.replica));
    let windows = all.committed.iter().flat_map(|commit| &commit.spans);
    assert_eq!(windows.map(|(start, end)| end - start).sum::<u64>(), 80);
    assert!(book.verify().is_good());
}

#[test]
fn what_is_not_there_is_an_error_that_says_what_is() {
    let (book, ..) = busy();
    let said = |subject| trace(&book.data(), &subject).unwrap_err().to_string();
    let name = said(Subject::Replica("lumi/ro".parse().unwrap()));
    assert!(name.contains("did you mean lumi/r0?"), "{name}");
    let block = said(Subject::Block(10));
    assert!(block.contains("blocks 0 to 9"), "{block}");
    let window = said(Subject::Window(40));
    assert!(window.contains("windows 0 to 39"), "{window}");
    // The journal alone is enough.
    let alone = tempfile::tempdir().unwrap();
    let file = alone.path().join("journal.sqlite");
    let (data, path) = (book.data(), DataDir::journal_path(&book.data()));
    drop(book.journal);
    std::fs::copy(&path, &file).unwrap();
    let both = [&data, &file].map(|path| trace(path, &Subject::Block(0)).unwrap());
    assert_eq!(both[0].history, both[1].history);
}

#[test]
fn shares_are_told_by_site() {
    let (book, ..) = busy();
    let report = book.verify();
    assert!(report.is_good(), "{report:?}");
    let sites: Vec<_> = report
        .sites
        .iter()
        .map(|site| (site.site.as_str(), site.granted, site.committed))
        .collect();
    assert_eq!(sites, [("lumi", 16, 8), ("snellius", 8, 0)]);
}

/// Appends forged events to a good journal, of which the first is to be named with what is wrong.
fn forged(number: u8, says: &str, events: impl FnOnce(&Book, &Caller, &Caller) -> Vec<Event>) {
    let (mut book, lumi, snellius) = busy();
    assert!(book.verify().is_good());
    let events = events(&book, &lumi, &snellius);
    let kind = format!("{:?}", events[events.len() - 1]).to_lowercase();
    let kind: String = kind.chars().take_while(|c| c.is_alphabetic()).collect();
    book.append(events, None);
    let report = book.verify();
    let first = report.violations.first().cloned().unwrap_or_default();
    assert!(
        !report.is_good() && first.contains(says),
        "invariant {number}: {report:?}"
    );
    assert!(
        first.replace('_', "").contains(&kind),
        "invariant {number} names its event: {first}"
    );
    let seq = format!("record {}", book.journal.last_seq());
    assert!(
        first.contains(&seq),
        "invariant {number} names its record: {first}"
    );
}

fn granted(lease: LeaseId, key: u32, incarnation: Incarnation, span: Span) -> Event {
    Event::Granted {
        lease,
        key: ReplicaKey(key),
        incarnation,
        spans: vec![span],
    }
}

/// Each invariant that a journal can show, broken by a record whose hashes are right.
#[test]
fn every_forgery_is_named_with_its_record_and_event() {
    let lease_of = |book: &Book, key| book.state().lease_of(ReplicaKey(key)).unwrap().id;
    forged(1, "were to go from Free", |book, _, snellius| {
        let beyond = Span::new(36, 44);
        vec![granted(lease_of(book, 1), 1, snellius.incarnation, beyond)]
    });
    forged(2, "Leased", |book, lumi, _| {
        let theirs = book.state().lease_of(ReplicaKey(1)).unwrap().spans[0];
        let own = book.state().lease_of(ReplicaKey(0)).map(|lease| lease.id);
        let own = own.unwrap_or(book.state().last_lease.next());
        vec![granted(own, 0, lumi.incarnation, theirs)]
    });
    forged(3, "Committed", |book, lumi, _| {
        let own = book.state().lease_of(ReplicaKey(0)).map(|lease| lease.id);
        let own = own.unwrap_or(book.state().last_lease.next());
        vec![granted(own, 0, lumi.incarnation, Span::new(0, 8))]
    });
    forged(6, "front", |book, _, snellius| {
        let stolen = book.state().contributions.values().next().unwrap();
        vec![Event::Announced {
            no: book.state().last_contribution.next(),
            key: ReplicaKey(1),
            incarnation: snellius.incarnation,
            parts: stolen.parts.clone(),
        }]
    });
    forged(7, "crosses its victim's mark", |book, lumi, _| {
        let victim = book.state().lease_of(ReplicaKey(1)).unwrap();
        vec![Event::Stolen(Steal {
            from: victim.id,
            mark: victim.mark,
            windows: victim.left(),
            lease: book.state().last_lease.next(),
            key: ReplicaKey(0),
            incarnation: lumi.incarnation,
        })]
    });
}

/// The same for invariants about the order of things.
#[test]
fn every_forgery_of_what_follows_what_is_named_with_its_record_and_event() {
    let lease_of = |book: &Book, key| book.state().lease_of(ReplicaKey(key)).unwrap().id;
    forged(8, "fenced", |book, lumi, _| {
        let span = Span::new(24, 28);
        vec![granted(lease_of(book, 1), 1, lumi.incarnation, span)]
    });
    forged(9, "a generation is left out", |_, _, _| {
        vec![Event::Published {
            generation: Generation(3),
            manifest: hash(3),
            merge_ms: 1,
        }]
    });
    forged(9, "without a close record", |_, _, _| {
        vec![Event::Published {
            generation: Generation(2),
            manifest: hash(3),
            merge_ms: 1,
        }]
    });
    forged(10, "an incarnation is left out", |book, _, snellius| {
        // The registration of snellius again.
        let replica = book.state().replica(ReplicaKey(1)).unwrap();
        vec![Event::Registered {
            key: ReplicaKey(1),
            id: snellius.replica.clone(),
            incarnation: snellius.incarnation,
            ranks: 1,
            nonce: replica.nonce,
            presented: None,
            token: replica.token,
            inherited: replica.lease,
        }]
    });
    forged(10, "contribution 9", |_, _, _| {
        // Its announcement is lost.
        let no = ContributionNo(9);
        vec![Event::Staged {
            no,
            norm: Norm::default(),
        }]
    });
    forged(11, "an epoch ends with open positions", |_, _, _| {
        vec![Event::EpochStarted { epoch: Epoch(1) }]
    });
}

/// 5: a generation whose files the journal does not name.
#[test]
fn a_generation_that_is_not_what_its_record_says_is_named() {
    let (mut book, _, snellius) = busy();
    book.contribute(&snellius);
    let published = Event::Published {
        generation: Generation(2),
        manifest: hash(3),
        merge_ms: 1,
    };
    book.append(vec![published], Some(files(Generation(2), hash(4))));
    let report = book.verify();
    assert!(!report.is_good(), "{report:?}");
    assert!(report.violations[0].contains("generation 2"), "{report:?}");
}

/// 4: events cannot say it, but a start believes a snapshot.
#[test]
fn a_snapshot_that_gives_a_replica_more_than_it_committed_is_named() {
    let (mut book, ..) = busy();
    let mut replayed = replay_journal(&book.data()).unwrap();
    replayed.state.replicas[1].tally.committed = Windows(8);
    let (state, files) = (replayed.state, replayed.files);
    let snapshot = Snapshot {
        seq: book.journal.last_seq(),
        version: JOURNAL_VERSION,
        bytes: encode_snapshot(&SnapshotState { state, files }),
    };
    book.journal.put_snapshot(&snapshot).unwrap();
    let report = book.verify();
    assert!(report.violations[0].contains("snapshot"), "{report:?}");
}

/// 10: a journal whose first half is another run's.
#[test]
fn the_records_of_another_run_are_no_records_of_this() {
    let (book, ..) = busy();
    let dir = tempfile::tempdir().unwrap();
    let path = DataDir::journal_path(dir.path());
    let mut other = Journal::create(&path, &hash(77).0).unwrap();
    let records = book.journal.read_from(hansa_store::Seq(1)).unwrap();
    for record in records {
        other.append_batch(&[record.unwrap().record]).unwrap();
    }
    let report = verify_journal(dir.path()).unwrap();
    assert!(!report.is_good(), "{report:?}");
    // A good journal without its third record is none.
    let path = DataDir::journal_path(&dir.path().join("gap"));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut gap = Journal::create(&path, book.journal.identity()).unwrap();
    for record in book.journal.read_from(hansa_store::Seq(1)).unwrap() {
        let record = record.unwrap();
        if record.seq.0 != 3 {
            gap.append_batch(&[record.record]).unwrap();
        }
    }
    let report = verify_journal(&path).unwrap();
    assert!(!report.is_good(), "{report:?}");
    assert!(matches!(
        trace(&path, &Subject::Block(0)),
        Err(Error::Replay { .. })
    ));
}
