//! Stops and kills: whatever was acknowledged is there again.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::Generation;
use hansa_coordinator::{Error, replay_journal, verify_journal};
use hansa_protocol::{Event, LeaseAnswer, Verdict};
use hansa_store::{BlobStore, Bring, DataDir, Journal, Record, Seq, StoreError};
use hansa_wire::journal::{Entry, Events, JOURNAL_VERSION, decode_entry, encode_entry};

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_mid_round_loses_nothing() {
    let world = World::new();
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
    let before = server.stop().await.status;
    assert!(!before.ended);

    let server = world.serve().await;
    let again = world.replica(&server, "snellius");
    let b = Process {
        client: again.client,
        ..b
    };
    // Same lease, same announcement; the bytes go on where they stopped, by id alone.
    assert_eq!(b.heartbeat().await.unwrap().lease, Some(grant.lease));
    assert_eq!(b.upload(&payload).await.unwrap(), Verdict::Staged);
    // It was the last of its round, which may be merged by now.
    let repeated = b.announce(&payload).await.unwrap();
    assert!(
        matches!(repeated, Verdict::Staged | Verdict::Merged(Generation(1))),
        "{repeated:?}"
    );
    next_generation(&b, Generation(0)).await;
    assert_eq!(
        b.announce(&payload).await.unwrap(),
        Verdict::Merged(Generation(1))
    );
    assert_eq!(
        b.upload(&payload).await.unwrap(),
        Verdict::Merged(Generation(1))
    );
    server.stop().await;
    let report = verify_journal(&world.data()).unwrap();
    assert!(report.is_good() && report.committed == 16, "{report:?}");
}

/// Copies the journal up to its close record, and the contributions, into an otherwise new directory:
/// what a SIGKILL right after the close leaves behind.
fn killed_after_the_close(world: &World, payloads: &[Payload]) -> std::path::PathBuf {
    let killed = world.dir.path().join("killed");
    let dir = DataDir::lock(&killed).unwrap();
    let whole = Journal::open_read_only(&DataDir::journal_path(&world.data())).unwrap();
    let mut journal = Journal::create(&DataDir::journal_path(&killed), whole.identity()).unwrap();
    for record in whole.read_from(Seq(1)).unwrap() {
        let record = record.unwrap().record;
        let entry = decode_entry(record.version, &record.payload).unwrap();
        journal.append_batch(&[record]).unwrap();
        let Entry::Events(events) = entry else {
            continue;
        };
        if events
            .events
            .iter()
            .any(|event| matches!(event, Event::Closed(_)))
        {
            break;
        }
    }
    let store = BlobStore::open(&dir).unwrap();
    let first = world
        .data()
        .join("blobs")
        .join(payloads[0].parts.base.to_string());
    store
        .put_file(&first.join("data"), Bring::Copy, 16 << 20)
        .unwrap();
    for payload in payloads {
        let stored = store.put_file(&payload.file, Bring::Copy, 1 << 20).unwrap();
        assert_eq!(stored.hash(), payload.parts.payload);
    }
    std::fs::copy(world.data().join("auth.toml"), killed.join("auth.toml")).unwrap();
    killed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_was_killed_is_run_again_and_gives_the_same_bits() {
    let world = World::new();
    let server = world.serve().await;
    let (mut a, mut b) = (
        world.replica(&server, "lumi"),
        world.replica(&server, "snellius"),
    );
    let base = a.register().await.unwrap().current.manifest;
    b.register().await.unwrap();
    b.grant(base).await;
    let payloads = [
        a.contribute(base, 0.01).await,
        b.contribute(base, 0.02).await,
    ];
    let published = next_generation(&a, Generation(0)).await;
    server.stop().await;

    let killed = killed_after_the_close(&world, &payloads);
    let server = world.serve_from(&killed).await;
    let a = Process {
        client: world.replica(&server, "lumi").client,
        ..a
    };
    let again = next_generation(&a, Generation(0)).await;
    assert_eq!(again, published);
    let answer = a.lease(again.manifest).await.unwrap();
    assert!(matches!(answer, LeaseAnswer::Train(_)), "{answer:?}");
    server.stop().await;
    assert!(verify_journal(&killed).unwrap().is_good());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_recipe_or_corpus_is_refused_at_a_restart() {
    let world = World::new();
    world.serve().await.stop().await;
    let world = world.with("steps = 2", "steps = 3");
    let error = world.open().err().unwrap().to_string();
    assert!(error.contains("-steps = 2\n+steps = 3\n"), "{error}");
    let world = world.with("steps = 3", "steps = 2");
    world.write_corpus(40, 0xee);
    let error = world.open().err().unwrap();
    assert!(matches!(error, Error::CorpusChanged(_)), "{error}");
    assert!(error.to_string().contains("tokenizer differs"), "{error}");
    // A coordinator needs no corpus to go on.
    std::fs::remove_dir_all(world.dir.path().join("corpus")).unwrap();
    world.serve().await.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_coordinator_is_refused_at_directory_and_port() {
    let world = World::new();
    let server = world.serve().await;
    let error = world.open().err().unwrap();
    assert!(
        matches!(error, Error::Store(StoreError::AlreadyOpen { .. })),
        "{error}"
    );
    let other = World::new();
    let port = server.base_url.rsplit(':').next().unwrap().to_owned();
    let address = format!("127.0.0.1:{port}").parse().unwrap();
    let listen = hansa_coordinator::Listen::Tls(address);
    let error = other.open().unwrap().listen(listen).await.err().unwrap();
    assert!(matches!(error, Error::PortInUse(_)), "{error}");
    assert!(
        error
            .to_string()
            .contains(&format!("port {port} of 127.0.0.1 is in use")),
        "{error}"
    );
    let everywhere = hansa_coordinator::Listen::PlainLoopback("0.0.0.0:0".parse().unwrap());
    let error = other
        .open()
        .unwrap()
        .listen(everywhere)
        .await
        .err()
        .unwrap();
    assert!(matches!(error, Error::PlainNotLoopback(_)), "{error}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_journal_is_named_and_a_good_one_is_proved() {
    let world = World::new();
    let server = world.serve().await;
    let mut a = world.replica(&server, "lumi");
    let base = a.register().await.unwrap().current.manifest;
    a.grant(base).await;
    // Beside the living writer.
    assert!(verify_journal(&world.data()).unwrap().is_good());
    server.stop().await;
    let report = verify_journal(&world.data()).unwrap();
    assert!(report.is_good() && report.records >= 3, "{report:?}");
    assert_eq!((report.lost, report.doubled, report.committed), (0, 0, 0));
    let empty = tempfile::tempdir().unwrap();
    let error = verify_journal(empty.path()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("is this the data directory of a run?"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_the_state_that_the_records_give() {
    let world = World::new();
    let server = world.serve().await;
    let mut a = world.replica(&server, "lumi");
    let base = a.register().await.unwrap().current.manifest;
    a.grant(base).await;
    // Each successor is one record: more than there are between two snapshots.
    for number in 0..=255 {
        a.nonce = hash(number);
        a.register().await.unwrap();
    }
    let lease = a.heartbeat().await.unwrap().lease;
    assert!(verify_journal(&world.data()).unwrap().is_good());
    server.stop().await;
    let path = DataDir::journal_path(&world.data());
    let snapshot = Journal::open_read_only(&path)
        .unwrap()
        .latest_snapshot()
        .unwrap();
    assert!(snapshot.is_some_and(|snapshot| snapshot.seq > Seq(256)));
    assert!(verify_journal(&world.data()).unwrap().is_good());

    let server = world.serve().await;
    let a = Process {
        client: world.replica(&server, "lumi").client,
        ..a
    };
    assert_eq!(a.heartbeat().await.unwrap().lease, lease);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_record_is_a_violation_and_stops_a_start() {
    let world = World::new();
    let server = world.serve().await;
    let mut a = world.replica(&server, "lumi");
    a.register().await.unwrap();
    server.stop().await;
    let path = DataDir::journal_path(&world.data());
    let forged = Entry::Events(Events {
        events: vec![Event::Published {
            generation: Generation(1),
            manifest: hash(1),
            merge_ms: 1,
        }],
        files: None,
    });
    let record = Record {
        wall_ms: 1,
        version: JOURNAL_VERSION,
        payload: encode_entry(&forged),
    };
    Journal::open(&path)
        .unwrap()
        .append_batch(&[record])
        .unwrap();
    let report = verify_journal(&world.data()).unwrap();
    assert!(!report.is_good());
    assert!(
        report.violations[0].contains("a generation without a close record"),
        "{report:?}"
    );
    let error = world.open().err().unwrap();
    assert!(matches!(error, Error::Replay { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn old_generations_are_pruned_and_the_newest_are_served() {
    let world = World::new()
        .with("min_quorum = 2", "min_quorum = 1")
        .with("rounds = 2", "rounds = 6");
    let server = world.serve().await;
    let mut a = world.replica(&server, "lumi");
    let mut current = a.register().await.unwrap().current;
    let first = current.manifest;
    // As an announcement leaves it that was refused after its caller had hung up.
    std::fs::create_dir(world.data().join("uploads").join(hash(9).to_string())).unwrap();
    // Five rounds of eight windows each are the whole epoch; the sixth is of the next one.
    for _ in 0..6 {
        a.contribute(current.manifest, 0.01).await;
        current = next_generation(&a, current.generation).await;
    }
    a.download(current.manifest).await;
    let gone = format!("{}/manifest", hansa_wire::http::path::blob(first));
    let limit = std::time::Duration::from_secs(10);
    let refused = a.client.get_json::<serde_json::Value>(&gone, limit).await;
    assert_eq!(code_of(refused.unwrap_err()), "no_blob");
    a.goodbye().await.unwrap();
    assert!(server.end().await.unwrap().run_over);
    // Three models, which are the weights, and the momentum of two generations.
    assert_eq!(
        std::fs::read_dir(world.data().join("blobs"))
            .unwrap()
            .count(),
        5
    );
    assert_eq!(
        std::fs::read_dir(world.data().join("uploads"))
            .unwrap()
            .count(),
        0
    );
    let report = verify_journal(&world.data()).unwrap();
    assert!(report.is_good(), "{report:?}");
    assert_eq!((report.committed, report.epoch), (48, 1));
    // A finished run is finished at once when it is served again.
    assert!(world.serve().await.end().await.unwrap().run_over);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_keeps_all_can_be_merged_again_from_its_first_generation() {
    let mut world = World::new().with("min_quorum = 2", "min_quorum = 1");
    world.keep_all = true;
    let server = world.serve().await;
    let mut a = world.replica(&server, "lumi");
    let mut current = a.register().await.unwrap().current;
    let mut contributed = Vec::new();
    for delta in [0.01, 0.02] {
        contributed.push(a.contribute(current.manifest, delta).await);
        current = next_generation(&a, current.generation).await;
    }
    a.goodbye().await.unwrap();
    assert!(server.end().await.unwrap().run_over);
    // Nor does a start delete anything.
    assert!(world.serve().await.end().await.unwrap().run_over);
    let dir = DataDir::lock(&world.data()).unwrap();
    let store = BlobStore::open(&dir).unwrap();
    for payload in contributed {
        store.open_blob(payload.manifest.hash()).unwrap();
    }
    for files in replay_journal(&world.data()).unwrap().files.values() {
        store.open_blob(files.theta).unwrap();
        files.momentum.map(|hash| store.open_blob(hash).unwrap());
    }
}
