//! The journal keeps what it acknowledged and names what is damaged.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hansa_store::{Damage, Journal, Record, Seq, Snapshot, StoreError, StoredRecord};

struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("journal.sqlite")
    }

    /// A closed journal with `count` records in batches of three.
    fn with_records(count: u64) -> Self {
        let home = Self::new();
        let mut journal = Journal::create(&home.path(), b"run").unwrap();
        let records: Vec<_> = (1..=count).map(record).collect();
        records
            .chunks(3)
            .for_each(|batch| drop(journal.append_batch(batch).unwrap()));
        home
    }

    /// Changes a closed journal as no Hansa would.
    fn sql(&self, statement: &str) {
        rusqlite::Connection::open(self.path())
            .unwrap()
            .execute_batch(statement)
            .unwrap();
    }
}

fn record(i: u64) -> Record {
    Record {
        wall_ms: 1_000 + i,
        version: 1,
        payload: format!("payload {i}").into_bytes(),
    }
}

fn read_all(journal: &Journal, from: u64) -> Result<Vec<StoredRecord>, StoreError> {
    journal.read_from(Seq(from))?.collect()
}

fn open_and_read(path: &Path) -> Result<usize, StoreError> {
    read_all(&Journal::open(path)?, 1).map(|records| records.len())
}

#[track_caller]
fn check_damage(path: &Path, expected: &Damage) {
    let read_only = Journal::open_read_only(path).and_then(|journal| read_all(&journal, 1));
    for error in [read_only.unwrap_err(), open_and_read(path).unwrap_err()] {
        match error {
            StoreError::Damaged { damage, .. } => assert_eq!(damage, *expected),
            other => panic!("expected {expected:?}, got {other:?}"),
        }
    }
}

#[test]
fn records_come_back_in_order_with_their_numbers_across_restarts() {
    let home = Home::new();
    let mut journal = Journal::create(&home.path(), b"run").unwrap();
    assert_eq!(journal.append_batch(&[]).unwrap(), []);
    assert_eq!(
        journal.append_batch(&[record(1), record(2)]).unwrap(),
        [Seq(1), Seq(2)]
    );
    drop(journal);
    let mut journal = Journal::open(&home.path()).unwrap();
    assert_eq!(journal.identity(), b"run");
    assert_eq!(journal.append_batch(&[record(3)]).unwrap(), [Seq(3)]);
    for from in 1..=4 {
        let records = read_all(&journal, from).unwrap();
        let expected: Vec<_> = (from..=3).map(record).collect();
        assert_eq!(
            records.iter().map(|r| r.record.clone()).collect::<Vec<_>>(),
            expected
        );
        assert!(records.iter().map(|r| r.seq.0).eq(from..=3));
    }
    for from in [0, 5, u64::MAX] {
        assert!(matches!(
            read_all(&journal, from),
            Err(StoreError::NoSuchRecord(_))
        ));
    }
}

#[test]
fn the_chain_hash_never_changes() {
    let home = Home::with_records(2);
    let chain = Journal::open(&home.path()).unwrap().chain();
    let hash = |parts: &[&[u8]]| *blake3::hash(&parts.concat()).as_bytes();
    let genesis = hash(&[b"hansa journal\0", &1u32.to_le_bytes(), b"run"]);
    let link = |before: [u8; 32], seq: u64| {
        let record = record(seq);
        let (wall_ms, version) = (record.wall_ms.to_le_bytes(), record.version.to_le_bytes());
        hash(&[
            &before,
            &seq.to_le_bytes(),
            &wall_ms,
            &version,
            &record.payload,
        ])
    };
    assert_eq!(chain.0, link(link(genesis, 1), 2));
}

#[test]
fn a_reader_sees_a_living_journal_and_a_dead_one_and_changes_neither() {
    let home = Home::new();
    let mut journal = Journal::create(&home.path(), b"run").unwrap();
    journal.append_batch(&[record(1), record(2)]).unwrap();
    let reader = Journal::open_read_only(&home.path()).unwrap();
    journal.append_batch(&[record(3)]).unwrap();
    assert_eq!(read_all(&reader, 1).unwrap().len(), 2);
    let mut reader = Journal::open_read_only(&home.path()).unwrap();
    assert_eq!(read_all(&reader, 1).unwrap().len(), 3);
    assert!(matches!(
        reader.append_batch(&[record(4)]),
        Err(StoreError::ReadOnly(_))
    ));

    // Dead: its files as they lie, write-ahead log included, without its process.
    let dead = Home::new();
    for name in ["journal.sqlite", "journal.sqlite-wal", "journal.head"] {
        std::fs::copy(home.dir.path().join(name), dead.dir.path().join(name)).unwrap();
    }
    let before = std::fs::read(dead.path()).unwrap();
    let reader = Journal::open_read_only(&dead.path()).unwrap();
    assert_eq!(read_all(&reader, 1).unwrap().len(), 3);
    drop(reader);
    assert_eq!(std::fs::read(dead.path()).unwrap(), before);
    assert!(dead.dir.path().join("journal.sqlite-wal").exists());
    assert_eq!(open_and_read(&dead.path()).unwrap(), 3);
}

#[test]
fn changed_fields_are_named_by_record() {
    for column in [
        "wall_ms = wall_ms + 1",
        "version = 2",
        "payload = x'00'",
        "chain = zeroblob(32)",
    ] {
        let home = Home::with_records(9);
        home.sql(&format!("UPDATE records SET {column} WHERE seq = 5"));
        check_damage(&home.path(), &Damage::Chain(Seq(5)));
    }
    let home = Home::with_records(9);
    home.sql("UPDATE records SET version = -1 WHERE seq = 9");
    check_damage(&home.path(), &Damage::Record(Seq(9)));
}

#[test]
fn a_gap_and_a_missing_end_are_not_taken_for_a_shorter_history() {
    let home = Home::with_records(9);
    home.sql("DELETE FROM records WHERE seq = 4");
    check_damage(&home.path(), &Damage::Gap(Seq(4)));

    let home = Home::with_records(9);
    home.sql("DELETE FROM records WHERE seq > 6");
    let shorter = Damage::Shorter {
        last: Seq(6),
        acknowledged: Seq(9),
    };
    check_damage(&home.path(), &shorter);
}

#[test]
fn a_write_ahead_log_that_lost_its_tail_or_a_bit_is_noticed() {
    let full = Home::new();
    let mut journal = Journal::create(&full.path(), b"run").unwrap();
    for i in 1..=6 {
        journal.append_batch(&[record(i)]).unwrap();
    }
    let wal = std::fs::read(full.dir.path().join("journal.sqlite-wal")).unwrap();
    let dead_with = |wal: &[u8]| {
        let dead = Home::new();
        for name in ["journal.sqlite", "journal.head"] {
            std::fs::copy(full.dir.path().join(name), dead.dir.path().join(name)).unwrap();
        }
        std::fs::write(dead.dir.path().join("journal.sqlite-wal"), wal).unwrap();
        dead
    };
    assert_eq!(open_and_read(&dead_with(&wal).path()).unwrap(), 6);
    let mut flipped = wal.clone();
    flipped[wal.len() / 2] ^= 1;
    let lost = [
        &wal[..0],
        &wal[..wal.len() / 3],
        &wal[..wal.len() - 1],
        &flipped,
    ];
    for wal in lost {
        let error = open_and_read(&dead_with(wal).path()).unwrap_err();
        let named = matches!(
            &error,
            StoreError::Damaged {
                damage: Damage::Shorter {
                    acknowledged: Seq(6),
                    ..
                },
                ..
            }
        );
        assert!(named, "{error:?}");
    }
}

#[test]
fn no_flipped_bit_and_no_cut_of_the_file_goes_unnoticed_or_panics() {
    let home = Home::with_records(40);
    let good = std::fs::read(home.path()).unwrap();
    let expected = read_all(&Journal::open_read_only(&home.path()).unwrap(), 1).unwrap();
    let read = |path: &Path| read_all(&Journal::open_read_only(path)?, 1);
    // Unused space may change; records may not.
    let check = |bad: &[u8], what: &str, at: usize| {
        std::fs::write(home.path(), bad).unwrap();
        if let Ok(records) = read(&home.path()) {
            assert_eq!(records, expected, "{what} {at}");
        }
    };
    for at in (0..good.len()).step_by(37) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        check(&bad, "flipped bit in byte", at);
    }
    for length in (0..good.len()).step_by(1024) {
        check(&good[..length], "bytes left:", length);
    }
    std::fs::write(home.path(), &good[..good.len() / 2]).unwrap();
    assert!(read(&home.path()).is_err());
}

#[test]
fn other_files_versions_and_places_are_told_apart() {
    let home = Home::new();
    assert!(matches!(
        Journal::open(&home.path()),
        Err(StoreError::NoJournal(_))
    ));
    std::fs::write(
        home.path(),
        "a text file, long enough to be looked at ".repeat(50),
    )
    .unwrap();
    assert!(matches!(
        Journal::open(&home.path()),
        Err(StoreError::NotAJournal(_))
    ));
    assert!(matches!(
        Journal::create(&home.path(), b""),
        Err(StoreError::JournalExists(_))
    ));
    std::fs::remove_file(home.path()).unwrap();
    home.sql("CREATE TABLE other (x)");
    assert!(matches!(
        Journal::open(&home.path()),
        Err(StoreError::NotAJournal(_))
    ));

    let home = Home::with_records(1);
    home.sql("PRAGMA user_version = 7");
    let error = Journal::open(&home.path()).unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::OtherVersion {
                found: 7,
                supported: 1,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn a_damaged_head_file_is_named_and_a_missing_one_is_made_again() {
    let home = Home::with_records(3);
    let head = home.dir.path().join("journal.head");
    File::options()
        .write(true)
        .open(&head)
        .unwrap()
        .write_all_at(&[9], 3)
        .unwrap();
    check_damage(&home.path(), &Damage::Head);
    std::fs::remove_file(&head).unwrap();
    assert_eq!(open_and_read(&home.path()).unwrap(), 3);
    assert!(head.exists());
}

#[test]
fn a_second_writer_behind_the_lock_is_refused_and_changes_nothing() {
    let home = Home::with_records(3);
    let mut first = Journal::open(&home.path()).unwrap();
    let mut second = Journal::open(&home.path()).unwrap();
    first.append_batch(&[record(4)]).unwrap();
    assert!(second.append_batch(&[record(9)]).is_err());
    drop((first, second));
    let records = read_all(&Journal::open(&home.path()).unwrap(), 1).unwrap();
    assert_eq!(records.last().unwrap().record, record(4));
}

#[test]
fn the_newest_snapshot_comes_back_and_damage_to_it_is_named() {
    let home = Home::with_records(9);
    let mut journal = Journal::open(&home.path()).unwrap();
    assert_eq!(journal.latest_snapshot().unwrap(), None);
    let snapshot = |seq| Snapshot {
        seq: Seq(seq),
        version: 3,
        bytes: vec![seq as u8; 10_000],
    };
    for seq in [2, 4, 9] {
        journal.put_snapshot(&snapshot(seq)).unwrap();
        assert_eq!(journal.latest_snapshot().unwrap(), Some(snapshot(seq)));
    }
    assert!(matches!(
        journal.put_snapshot(&snapshot(10)),
        Err(StoreError::NoSuchRecord(_))
    ));
    drop(journal);
    for change in [
        "version = 4",
        "bytes = x'00'",
        "hash = zeroblob(32)",
        "seq = 8",
    ] {
        home.sql(&format!("UPDATE snapshots SET {change} WHERE seq = 9"));
        let journal = Journal::open(&home.path()).unwrap();
        let error = journal.latest_snapshot().unwrap_err();
        assert!(
            matches!(
                error,
                StoreError::Damaged {
                    damage: Damage::Snapshot(_),
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(read_all(&journal, 1).unwrap().len(), 9);
        drop(journal);
        home.sql("DELETE FROM snapshots WHERE seq >= 8");
        Journal::open(&home.path())
            .unwrap()
            .put_snapshot(&snapshot(9))
            .unwrap();
    }
}
