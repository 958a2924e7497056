//! SIGKILL at any moment: what a child process acknowledged is there when it is gone.
//!
//! The child is this test binary again, told by the environment what to do; it prints a line for each
//! thing that the store acknowledged. The parent kills it after a number of lines, wherever it then is;
//! if it ended before, that is a story, too.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use hansa_store::{BlobStore, DataDir, Journal, Manifest, Record, Seq, Snapshot, StoreError};

const DATA: &str = "HANSA_SIGKILL_CHILD_DATA";
const CHUNK: u64 = 4096;
const CHUNKS: u32 = 64;

/// Runs the child test `name` on `data`, kills it after `lines` acknowledgements, and returns all that
/// it gave until it was dead.
fn run_and_kill(name: &str, data: &Path, lines: usize) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(DATA, data)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let acknowledged = read_and_kill(&mut child, lines);
    let status = child.wait().unwrap();
    assert!(
        status.success() || status.signal() == Some(9),
        "the child failed by itself: {status}"
    );
    acknowledged
}

fn read_and_kill(child: &mut Child, lines: usize) -> Vec<u64> {
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let mut acknowledged = Vec::new();
    for line in stdout.lines() {
        if let Some(number) = line.unwrap().strip_prefix("ack ") {
            acknowledged.push(number.parse().unwrap());
        }
        if acknowledged.len() == lines {
            child.kill().unwrap();
        }
    }
    acknowledged
}

fn acknowledge(number: u64) {
    let mut stdout = std::io::stdout().lock();
    // The test harness leaves a line of its own open.
    writeln!(stdout, "\nack {number}")
        .and_then(|()| stdout.flush())
        .unwrap();
}

fn payload(seq: u64) -> Vec<u8> {
    let length = (seq * 2_654_435_761 % 3000) as usize;
    seq.to_le_bytes()
        .iter()
        .copied()
        .cycle()
        .take(length + 8)
        .collect()
}

/// Appends batches of growing size, with a snapshot now and then, until it is killed.
#[test]
fn child_appends() {
    let Some(data) = std::env::var_os(DATA) else {
        return;
    };
    let data_dir = DataDir::lock(Path::new(&data)).unwrap();
    let path = DataDir::journal_path(data_dir.path());
    let mut journal = match Journal::open(&path) {
        Err(StoreError::NoJournal(_)) => Journal::create(&path, b"run").unwrap(),
        opened => opened.unwrap(),
    };
    loop {
        let first = journal.last_seq().next().0;
        let record = |seq| Record {
            wall_ms: seq,
            version: 1,
            payload: payload(seq),
        };
        let batch: Vec<_> = (first..=first + first % 5).map(record).collect();
        let seqs = journal.append_batch(&batch).unwrap();
        acknowledge(seqs.last().unwrap().0);
        if first % 7 == 0 {
            let seq = journal.last_seq();
            journal
                .put_snapshot(&Snapshot {
                    seq,
                    version: 1,
                    bytes: payload(seq.0),
                })
                .unwrap();
        }
    }
}

#[test]
fn every_acknowledged_record_outlives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = DataDir::journal_path(dir.path());
    let mut promised = 0;
    for lines in [1, 2, 30, 5, 77, 3, 1, 140, 11, 8] {
        let acknowledged = run_and_kill("child_appends", dir.path(), lines);
        promised = promised.max(*acknowledged.iter().max().unwrap());
        // Once as `ledger verify` does, and once as the next process does.
        let reader = Journal::open_read_only(&path).unwrap();
        check_records(&reader, promised);
        drop(reader);
        let _data_dir = DataDir::lock(dir.path()).unwrap();
        check_records(&Journal::open(&path).unwrap(), promised);
    }
}

fn check_records(journal: &Journal, promised: u64) {
    assert!(
        journal.last_seq() >= Seq(promised),
        "{} of {promised}",
        journal.last_seq()
    );
    let mut count = 0;
    for stored in journal.read_from(Seq(1)).unwrap() {
        let stored = stored.unwrap();
        count += 1;
        assert_eq!(
            (stored.seq, stored.record.payload),
            (Seq(count), payload(count))
        );
    }
    assert_eq!(count, journal.last_seq().0);
    if let Some(snapshot) = journal.latest_snapshot().unwrap() {
        assert_eq!(snapshot.bytes, payload(snapshot.seq.0));
    }
}

#[test]
fn a_journal_that_was_being_made_is_whole_or_not_there() {
    for _ in 0..8 {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_creates", "--nocapture"])
            .env(DATA, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        read_and_kill(&mut child, 1);
        child.wait().unwrap();
        let path = DataDir::journal_path(dir.path());
        match Journal::open(&path) {
            Err(StoreError::NoJournal(_)) => drop(Journal::create(&path, b"run").unwrap()),
            opened => assert_eq!(opened.unwrap().identity(), b"run"),
        }
    }
}

/// Says that it begins, and makes a journal.
#[test]
fn child_creates() {
    let Some(data) = std::env::var_os(DATA) else {
        return;
    };
    acknowledge(0);
    Journal::create(&DataDir::journal_path(Path::new(&data)), b"run").unwrap();
}

fn content() -> Vec<u8> {
    (0..u64::from(CHUNKS) * CHUNK - 100)
        .map(|i| ((i * i) >> 7) as u8)
        .collect()
}

/// Sends what is missing in two threads and completes, unless it is killed before.
/// Acknowledges chunks by index, a completed blob as 1000.
#[test]
fn child_uploads() {
    let Some(data) = std::env::var_os(DATA) else {
        return;
    };
    let data_dir = DataDir::lock(Path::new(&data)).unwrap();
    let store = BlobStore::open(&data_dir).unwrap();
    let bytes = content();
    let manifest = Manifest::of_bytes(&bytes, CHUNK).unwrap();
    let upload = store
        .begin_upload("u".parse().unwrap(), manifest.clone())
        .unwrap();
    let missing = upload.missing();
    std::thread::scope(|scope| {
        for half in missing.chunks(missing.len().div_ceil(2).max(1)) {
            let (upload, bytes, manifest) = (&upload, &bytes, &manifest);
            scope.spawn(move || {
                for &index in half {
                    let (offset, length) = manifest.chunk_range(index).unwrap();
                    let chunk = &bytes[offset as usize..(offset + length) as usize];
                    upload.put_chunk(index, chunk).unwrap();
                    acknowledge(u64::from(index));
                }
            });
        }
    });
    store.complete_upload(&upload).unwrap();
    acknowledge(1000);
}

#[test]
fn every_acknowledged_chunk_and_blob_outlives_the_process() {
    let manifest = Manifest::of_bytes(&content(), CHUNK).unwrap();
    for lines in [vec![1, 9, 2, 40, 13], vec![63, 1, 1], vec![64, 1], vec![65]] {
        let dir = tempfile::tempdir().unwrap();
        let mut chunks = std::collections::BTreeSet::new();
        for lines in lines {
            let acknowledged = run_and_kill("child_uploads", dir.path(), lines);
            let completed = acknowledged.contains(&1000);
            chunks.extend(acknowledged.into_iter().filter(|&index| index < 1000));
            let data_dir = DataDir::lock(dir.path()).unwrap();
            let store = BlobStore::open(&data_dir).unwrap();
            let upload = store
                .begin_upload("u".parse().unwrap(), manifest.clone())
                .unwrap();
            let lost = upload
                .missing()
                .into_iter()
                .find(|&i| chunks.contains(&u64::from(i)));
            assert_eq!(lost, None);
            if completed {
                store.open_blob(manifest.hash()).unwrap().verify().unwrap();
            }
        }
    }
}
