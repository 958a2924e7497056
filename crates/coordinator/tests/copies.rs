//! Backups of a served run, restores, and what becomes of those who were ahead of a backup.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};

use common::*;
use hansa_base::Generation;
use hansa_coordinator::{Error, backup, restore, verify_journal};
use hansa_protocol::{Event, Verdict};
use hansa_store::{BlobStore, Bring, DataDir, Journal, Seq};
use hansa_wire::journal::{Entry, decode_entry};

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The same process, which now finds another coordinator at its address.
fn at(world: &World, server: &Server, site: &str, process: Process) -> Process {
    Process {
        client: world.replica(server, site).client,
        ..process
    }
}

fn code<T: std::fmt::Debug>(answer: Result<T, hansa_transfer::TransferError>) -> Code {
    code_of(answer.unwrap_err())
}

struct Places {
    backup: PathBuf,
    restored: PathBuf,
}

fn places(world: &World) -> Places {
    let place = |name: &str| world.dir.path().join(name);
    Places {
        backup: place("backup"),
        restored: place("restored"),
    }
}

/// One site at a time closes a round.
fn solo() -> World {
    World::new()
        .with("min_quorum = 2", "min_quorum = 1")
        .with("rounds = 2", "rounds = 4")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_from_a_backup_and_nothing_of_the_lost_history_comes_back() {
    let world = solo();
    let Places {
        backup: to,
        restored,
    } = places(&world);
    let server = world.serve().await;
    let mut a = world.replica(&server, "lumi");
    let mut current = a.register().await.unwrap().current;
    a.contribute(current.manifest, 0.01).await;
    current = next_generation(&a, current.generation).await;
    // Beside the living coordinator.
    let (list, copied_bytes) = backup(&world.data(), &to).unwrap();
    assert_eq!((list.generation, list.blob_bytes), (1, copied_bytes));
    // The run goes on, and its machine burns down.
    a.contribute(current.manifest, 0.02).await;
    current = next_generation(&a, current.generation).await;
    let ahead = a.grant(current.manifest).await;
    let model = a.download(current.manifest).await;
    let payload = a.encode(&ahead, &model, &vec![0.5; model.values.len()]);
    server.stop().await;
    let old = world.dir.path().join("old");
    std::fs::rename(world.data(), &old).unwrap();

    let report = restore(&to, &restored).unwrap();
    assert!(report.timeline > report.from_timeline);
    assert_eq!((report.generation, report.committed), (1, 8));
    let server = world.serve_from(&restored).await;
    let mut a = at(&world, &server, "lumi", a);
    // Whatever it says, it is told to begin afresh; and nothing that it has gets in.
    assert_eq!(code(a.heartbeat().await), "restored");
    assert_eq!(code(a.announce(&payload).await), "restored");
    assert_eq!(code(a.upload(&payload).await), "unknown_contribution");
    assert_eq!(code(a.register().await), "restored");
    (a.held, a.token, a.nonce) = (None, None, hash(101));
    let afresh = a.register().await.unwrap();
    assert_eq!(afresh.current.generation, Generation(1));
    let mut current = afresh.current;
    for _ in 1..4 {
        a.contribute(current.manifest, 0.03).await;
        current = next_generation(&a, current.generation).await;
    }
    a.goodbye().await.unwrap();
    assert!(server.end().await.unwrap().run_over);
    let report = verify_journal(&restored).unwrap();
    assert!(report.is_good() && report.committed == 32, "{report:?}");

    // The burnt machine's disk turns up and is served again: who moved on proves that it is old.
    let server = world.serve_from(&old).await;
    let a = at(&world, &server, "lumi", a);
    assert_eq!(code(a.heartbeat().await), "never_issued");
    let ended = server.end().await.unwrap_err();
    assert!(matches!(ended, Error::OldJournal(_)), "{ended}");
    assert!(ended.to_string().contains("an old copy of its journal"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_copy_of_a_directory_is_shown_by_a_replica_that_registered_later() {
    let world = World::new();
    let copied = world.dir.path().join("copied");
    world.serve().await.stop().await;
    copy_tree(&world.data(), &copied);
    let server = world.serve().await;
    let mut a = world.replica(&server, "lumi");
    a.register().await.unwrap();
    server.stop().await;
    let server = world.serve_from(&copied).await;
    let a = at(&world, &server, "lumi", a);
    assert_eq!(code(a.heartbeat().await), "never_issued");
    let ended = server.end().await.unwrap_err();
    assert!(matches!(ended, Error::OldJournal(_)), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_repeated_cheaply_and_what_a_broken_one_left_does_not_matter() {
    let world = solo();
    let Places {
        backup: to,
        restored,
    } = places(&world);
    let server = world.serve().await;
    let mut a = world.replica(&server, "lumi");
    let current = a.register().await.unwrap().current;
    // A first backup that was broken off: half of its blobs, no list.
    let journal = Journal::open_read_only(&DataDir::journal_path(&world.data())).unwrap();
    {
        let dir = DataDir::lock(&to).unwrap();
        let store = BlobStore::open(&dir).unwrap();
        let (from, chunk) = (world.data().join("blobs"), 16 << 20);
        let file = from.join(current.manifest.to_string()).join("data");
        store.put_file(&file, Bring::Copy, chunk).unwrap();
        std::fs::write(to.join("journal-1.sqlite"), b"half").unwrap();
    }
    let none = restore(&to, &restored).unwrap_err();
    assert!(matches!(none, Error::NoBackup(_)), "{none}");
    let (first, copied) = backup(&world.data(), &to).unwrap();
    assert_eq!((first.generation, copied), (0, 0), "{first:?}");
    assert_eq!(first.chain, journal.chain().to_string());
    // Nothing new: nothing copied. Then a generation: its files, and the old ones go.
    assert_eq!(backup(&world.data(), &to).unwrap().1, 0);
    a.contribute(current.manifest, 0.01).await;
    next_generation(&a, current.generation).await;
    let (second, copied) = backup(&world.data(), &to).unwrap();
    assert!(copied == second.blob_bytes && second.records > first.records);
    let blobs = std::fs::read_dir(to.join("blobs")).unwrap().count();
    assert_eq!(blobs, second.blobs.len());
    restore(&to, &restored).unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_staged_contribution_is_in_the_backup_and_is_merged_after_the_restore() {
    let world = World::new();
    let Places {
        backup: to,
        restored,
    } = places(&world);
    let server = world.serve().await;
    let (mut a, mut b) = (
        world.replica(&server, "lumi"),
        world.replica(&server, "snellius"),
    );
    let base = a.register().await.unwrap().current.manifest;
    b.register().await.unwrap();
    let grant = b.grant(base).await;
    a.contribute(base, 0.01).await;
    let model = b.download(base).await;
    let payload = b.encode(&grant, &model, &vec![0.02; model.values.len()]);
    assert_eq!(b.announce(&payload).await.unwrap(), Verdict::Upload);
    backup(&world.data(), &to).unwrap();
    server.stop().await;
    restore(&to, &restored).unwrap();
    let server = world.serve_from(&restored).await;
    let mut c = world.replica(&server, "snellius");
    c.nonce = hash(102);
    c.register().await.unwrap();
    let merged = next_generation(&c, Generation(0)).await;
    // What was announced and not complete is free again, and is trained by whoever comes.
    let again = c.grant(merged.manifest).await;
    assert_eq!(again.lease.spans[0].start.0, grant.lease.spans[0].start.0);
    server.stop().await;
    let report = verify_journal(&restored).unwrap();
    assert!(report.is_good() && report.committed == 8, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_overwrites_nothing_and_serves_nothing_unfinished() {
    let world = World::new();
    let Places {
        backup: to,
        restored,
    } = places(&world);
    world.serve().await.stop().await;
    let error = backup(&world.data(), &world.data()).unwrap_err();
    assert!(matches!(error, Error::NotABackup { .. }), "{error}");
    backup(&world.data(), &to).unwrap();
    let error = restore(&to, &world.data()).unwrap_err();
    assert!(matches!(error, Error::TargetNotEmpty { .. }), "{error}");

    // One chunk of the backup has rotted: the restore stops there, and what it made is not served.
    let list = std::fs::read_dir(to.join("blobs")).unwrap();
    let data = list.last().unwrap().unwrap().path().join("data");
    let good = std::fs::read(&data).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    std::fs::write(&data, &bad).unwrap();
    let error = restore(&to, &restored).unwrap_err();
    assert!(error.to_string().contains("is damaged in chunk"), "{error}");
    let error = hansa_coordinator::Coordinator::open(world.options(&restored))
        .err()
        .unwrap();
    assert!(matches!(error, Error::HalfRestored(_)), "{error}");
    // Mended, the same command goes on; and once it is done, it is not done again.
    std::fs::write(&data, &good).unwrap();
    restore(&to, &restored).unwrap();
    world.serve_from(&restored).await.stop().await;
    let error = restore(&to, &restored).unwrap_err();
    assert!(matches!(error, Error::TargetNotEmpty { .. }), "{error}");

    // Another run's backup is left alone.
    let other = World::new().with("steps = 2", "steps = 3");
    other.serve().await.stop().await;
    let error = backup(&other.data(), &to).unwrap_err();
    assert!(matches!(error, Error::OtherBackup { .. }), "{error}");
    // A small file that is not what was listed.
    std::fs::write(to.join("files/auth.toml"), b"").unwrap();
    let third = world.dir.path().join("third");
    let error = restore(&to, &third).unwrap_err();
    assert!(error.to_string().contains("auth.toml"), "{error}");
}

#[test]
fn a_restored_journal_says_so_in_its_last_record() {
    let world = World::new();
    drop(world.open().unwrap());
    let Places {
        backup: to,
        restored,
    } = places(&world);
    backup(&world.data(), &to).unwrap();
    let report = restore(&to, &restored).unwrap();
    let journal = Journal::open_read_only(&DataDir::journal_path(&restored)).unwrap();
    let last = journal.read_from(Seq(2)).unwrap().last().unwrap().unwrap();
    let entry = decode_entry(last.record.version, &last.record.payload).unwrap();
    let Entry::Events(events) = entry else {
        panic!("{entry:?}")
    };
    let timeline = hansa_base::Timeline(report.timeline);
    assert_eq!(events.events, [Event::Restored { timeline }]);
}
