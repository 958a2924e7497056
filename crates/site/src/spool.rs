//! What the coordinator has not yet been told, on disk: nothing is dropped, whatever is away for how long.
//!
//! ```text
//!   spool.jsonl    one report a line, appended and fsynced; a torn last line was never promised
//!   spool.json     the spool's id, and how much the coordinator has accepted
//! ```
//!
//! In memory there is only where each line lies. A spool that is lost gets another id, so that numbers of
//! the old one are not mistaken for its own. Never here: what a report means.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use hansa_queue::{REPORTS_MAX, Report, Stamped, UnixS};
use hansa_wire::{decode, encode};
use serde::{Deserialize, Serialize};

use crate::error::SiteError;

/// A call carries at most so much, to stay small control traffic.
const BATCH_BYTES_MAX: u64 = 512 << 10;
/// Accepted lines stay in the file until they are so many bytes.
const COMPACT_BYTES: u64 = 1 << 20;

#[derive(Clone, Serialize, Deserialize)]
struct Head {
    id: String,
    accepted_through: u64,
}

struct Place {
    seq: u64,
    offset: u64,
    bytes: u64,
}

/// The spool of one site process's home.
pub struct Spool {
    path: PathBuf,
    file: File,
    head: Head,
    places: VecDeque<Place>,
    end: u64,
    next: u64,
}

impl Spool {
    /// Opens the spool in a folder, or makes a new one with the id `fresh`.
    ///
    /// # Errors
    /// If its files cannot be read or made.
    pub fn open(home: &Path, fresh: &str) -> Result<Self, SiteError> {
        let path = home.join("spool.jsonl");
        let head_path = head_path(&path);
        let head = match std::fs::read(&head_path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| SiteError::Broken {
                path: head_path.clone(),
                why: error.to_string(),
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let head = Head {
                    id: fresh.to_owned(),
                    accepted_through: 0,
                };
                save(&path, &head)?;
                head
            }
            Err(error) => return Err(SiteError::io("read", &head_path)(error)),
        };
        let mut options = File::options();
        let open = options.read(true).write(true).create(true).truncate(false);
        let file = open.open(&path).map_err(SiteError::io("open", &path))?;
        let mut spool = Self {
            next: head.accepted_through + 1,
            path,
            file,
            head,
            places: VecDeque::new(),
            end: 0,
        };
        spool.scan()?;
        Ok(spool)
    }

    /// Finds the lines that are whole, and cuts off a last one that is not.
    fn scan(&mut self) -> Result<(), SiteError> {
        let io = SiteError::io("read", &self.path);
        let mut reader = BufReader::new(&self.file);
        let (mut line, mut end) = (Vec::new(), 0);
        let mut found = VecDeque::new();
        let scanned: std::io::Result<()> = loop {
            line.clear();
            match reader.read_until(b'\n', &mut line) {
                Ok(0) => break Ok(()),
                Err(error) => break Err(error),
                Ok(_) => {}
            }
            let whole = line.last() == Some(&b'\n');
            let stamped = match decode::<Stamped>(&line) {
                Ok(stamped) if whole => stamped,
                Ok(_) => break Ok(()),
                // Only what was written last may be torn: anything else was promised.
                Err(error) if reader.fill_buf().is_ok_and(|rest| !rest.is_empty()) => {
                    return Err(SiteError::Broken {
                        path: self.path.clone(),
                        why: format!("byte {end}: {error}"),
                    });
                }
                Err(_) => break Ok(()),
            };
            let bytes = line.len() as u64;
            found.push_back(Place {
                seq: stamped.seq,
                offset: end,
                bytes,
            });
            end += bytes;
        };
        scanned.map_err(io)?;
        self.file
            .set_len(end)
            .map_err(SiteError::io("cut", &self.path))?;
        self.end = end;
        self.next = found
            .back()
            .map_or(self.next, |place| (place.seq + 1).max(self.next));
        found.retain(|place| place.seq > self.head.accepted_through);
        self.places = found;
        Ok(())
    }

    /// The spool's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.head.id
    }

    /// The last number that the coordinator has.
    #[must_use]
    pub fn accepted_through(&self) -> u64 {
        self.head.accepted_through
    }

    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds a report; it is durable when this returns its number.
    ///
    /// # Errors
    /// If it cannot be made durable.
    pub fn add(&mut self, at: UnixS, report: Report) -> Result<u64, SiteError> {
        let seq = self.next;
        let mut line = encode(&Stamped { seq, at, report });
        line.push(b'\n');
        let written = self
            .file
            .seek(SeekFrom::Start(self.end))
            .and_then(|_| self.file.write_all(&line))
            .and_then(|()| self.file.sync_data());
        written.map_err(SiteError::io("write", &self.path))?;
        let bytes = line.len() as u64;
        self.places.push_back(Place {
            seq,
            offset: self.end,
            bytes,
        });
        self.end += bytes;
        self.next += 1;
        Ok(seq)
    }

    /// The oldest reports that were not accepted, as many as a call carries.
    ///
    /// # Errors
    /// If they cannot be read back.
    pub fn batch(&self) -> Result<Vec<Stamped>, SiteError> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        for place in self.places.iter().take(REPORTS_MAX) {
            bytes += place.bytes;
            if bytes > BATCH_BYTES_MAX && !batch.is_empty() {
                break;
            }
            let mut line = vec![0; usize::try_from(place.bytes).unwrap_or(0)];
            self.file
                .read_exact_at(&mut line, place.offset)
                .map_err(SiteError::io("read", &self.path))?;
            batch.push(decode(&line).map_err(|error| SiteError::Broken {
                path: self.path.clone(),
                why: error.to_string(),
            })?);
        }
        Ok(batch)
    }

    /// The coordinator has everything up to `through`.
    ///
    /// # Errors
    /// If that cannot be noted.
    pub fn accepted(&mut self, through: u64) -> Result<(), SiteError> {
        // It may know less than it did: it was restored from a backup. What is gone here is gone.
        if through <= self.head.accepted_through {
            return Ok(());
        }
        self.head.accepted_through = through.min(self.next - 1);
        while self
            .places
            .front()
            .is_some_and(|place| place.seq <= through)
        {
            self.places.pop_front();
        }
        // A crash before this is noted means that some are sent again, which the numbers show.
        if self.places.is_empty() {
            save(&self.path, &self.head)?;
            if self.end >= COMPACT_BYTES {
                self.file
                    .set_len(0)
                    .map_err(SiteError::io("empty", &self.path))?;
                self.end = 0;
            }
        }
        Ok(())
    }
}

fn head_path(path: &Path) -> PathBuf {
    path.with_extension("json")
}

fn save(path: &Path, head: &Head) -> Result<(), SiteError> {
    let bytes = serde_json::to_vec(head).unwrap_or_default();
    Ok(hansa_store::replace_file(&head_path(path), &bytes, 0o600)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hansa_queue::IntentId;

    use super::*;

    fn report(number: u64) -> Report {
        let intent = IntentId(number);
        Report::Attempting { intent }
    }

    fn numbers(spool: &Spool) -> Vec<u64> {
        spool
            .batch()
            .unwrap()
            .iter()
            .map(|stamped| stamped.seq)
            .collect()
    }

    #[test]
    fn what_is_not_accepted_outlives_the_process_and_a_torn_write() {
        let home = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(home.path(), "one").unwrap();
        for number in 1..=5 {
            assert_eq!(spool.add(UnixS(number), report(number)).unwrap(), number);
        }
        spool.accepted(2).unwrap();
        drop(spool);
        let mut file = File::options()
            .append(true)
            .open(home.path().join("spool.jsonl"))
            .unwrap();
        file.write_all(b"{\"seq\":6,\"at\"").unwrap();
        let mut spool = Spool::open(home.path(), "two").unwrap();
        assert_eq!(spool.id(), "one");
        // Acceptance is noted once all is accepted; to send the first two again does no harm.
        assert_eq!(numbers(&spool), [1, 2, 3, 4, 5]);
        assert_eq!(spool.batch().unwrap()[4].report, report(5));
        assert_eq!(spool.add(UnixS(9), report(9)).unwrap(), 6);
        spool.accepted(6).unwrap();
        drop(spool);
        let mut spool = Spool::open(home.path(), "two").unwrap();
        assert!(spool.is_empty());
        assert_eq!(spool.add(UnixS(9), report(9)).unwrap(), 7);
    }

    #[test]
    fn what_is_damaged_before_the_last_line_is_not_cut_off_with_all_that_follows() {
        let home = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(home.path(), "one").unwrap();
        for number in 1..=3 {
            spool.add(UnixS(number), report(number)).unwrap();
        }
        drop(spool);
        let path = home.path().join("spool.jsonl");
        let good = std::fs::read_to_string(&path).unwrap();
        let bad = good.replacen("\"seq\":2", "\"sqe\":2", 1);
        assert_ne!(good, bad);
        std::fs::write(&path, &bad).unwrap();
        let error = Spool::open(home.path(), "two").err().unwrap().to_string();
        assert!(error.contains("spool.jsonl"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), bad);
        std::fs::write(&path, good).unwrap();
        assert_eq!(
            numbers(&Spool::open(home.path(), "two").unwrap()),
            [1, 2, 3]
        );
    }

    #[test]
    fn a_long_outage_is_told_in_calls_of_bounded_size_and_the_file_shrinks_afterwards() {
        let home = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(home.path(), "one").unwrap();
        let long = "x".repeat(4000);
        for number in 1..=600 {
            let tail = Report::Tail {
                intent: IntentId(number),
                job: "1".into(),
                text: long.as_str().into(),
            };
            spool.add(UnixS(0), tail).unwrap();
        }
        let mut told = 0;
        while !spool.is_empty() {
            let batch = numbers(&spool);
            assert!(batch.len() <= REPORTS_MAX && batch[0] == told + 1);
            told = *batch.last().unwrap();
            spool.accepted(told).unwrap();
        }
        assert_eq!(told, 600);
        assert_eq!(
            std::fs::metadata(home.path().join("spool.jsonl"))
                .unwrap()
                .len(),
            0
        );
        assert_eq!(spool.add(UnixS(0), report(1)).unwrap(), 601);
    }
}
