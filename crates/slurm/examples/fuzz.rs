//! Throws broken outputs at every parser: `fuzz SECONDS [SEED]`.
//!
//! Each input is a sample, or a recorded output under `HANSA_TEST_DATA`, changed at random by a
//! seeded generator. A run ends with the number of executions per parser and the slowest input; it
//! fails, with the input to repeat it, when a parser panics, answers twice differently, or names a
//! job that was not printed. It never guides itself by coverage.
#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::path::Path;
use std::time::{Duration, Instant};

use hansa_slurm::json::{Kind, parse_to_json};
use hansa_slurm::parse::{FieldList, Now, SQUEUE_FIELDS};

/// Longer inputs are cut.
const INPUT_MAX: usize = 16 * 1024;

/// What texts are made of in this field.
const TOKENS: &[&str] = &[
    "\n",
    "\r\n",
    "|",
    "|#",
    "=",
    ":",
    "-",
    "[",
    "]",
    ",",
    "+",
    "_",
    ".",
    ";",
    " ",
    "\0",
    "\u{1b}[1m",
    "0",
    "4294967295",
    "18446744073709551616",
    "Unknown",
    "None",
    "N/A",
    "INVALID",
    "UNLIMITED",
    "Partition_Limit",
    "(null)",
    "CANCELLED by ",
    "Job ",
    "to start at ",
    " a using ",
    " on cluster ",
    "in partition ",
    "sbatch: error: ",
    "allocation failure: ",
    "Tomorr 03:33",
    "16:00:00",
    "1795966055",
    "2026-11-29T24:00:00",
    "9999999999-23:59:59",
    "n[0-4294967295]",
    "JobID|State|Start\n",
    "PartitionName=",
    "ReservationName=",
    "Preempts: ",
    "é",
    "２",
];

/// SplitMix64: small, seeded, good enough to choose bytes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }
}

/// An output, what reads it, and the columns it has without a header.
type Seed = (Kind, Option<FieldList>, Vec<u8>);

fn seeds() -> Vec<Seed> {
    let samples = common::samples().into_iter();
    let mut seeds: Vec<Seed> = samples
        .map(|(kind, fields, text)| (kind, fields, text.as_bytes().to_vec()))
        .collect();
    if let Some(folder) = std::env::var_os("HANSA_TEST_DATA") {
        for under in ["slurm-captures", "slurm-fixtures/gcm-meta"] {
            recorded(&Path::new(&folder).join(under), &mut seeds);
        }
    }
    seeds
}

fn recorded(folder: &Path, seeds: &mut Vec<Seed>) {
    let kinds = [
        ("testonly", Kind::TestOnly),
        ("submit", Kind::Submit),
        ("sbatch", Kind::Submit),
        ("sacct", Kind::Sacct),
        ("sample-sacct", Kind::Sacct),
        ("squeue", Kind::Squeue),
        ("scontrol-show-partition", Kind::Partition),
        ("sample-scontrol-output", Kind::Partition),
        ("scontrol-show-reservation", Kind::Reservation),
        ("scontrol-show-config", Kind::Config),
    ];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some((_, kind)) = kinds.iter().find(|(prefix, _)| name.starts_with(prefix)) else {
            continue;
        };
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(INPUT_MAX);
        seeds.push((*kind, None, bytes));
    }
}

fn mutate(bytes: &mut Vec<u8>, seeds: &[Seed], random: &mut Random) {
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len() + 1);
        let span = random.below(40).min(bytes.len() - at);
        match random.below(8) {
            0 if at < bytes.len() => bytes[at] = random.next().to_le_bytes()[0],
            1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.drain(at..at + span)),
            3 => {
                let copy = bytes[at..at + span].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, copy);
            }
            4 => bytes.truncate(at),
            5 => {
                let other = &seeds[random.below(seeds.len())].2;
                let from = random.below(other.len() + 1);
                let piece = &other[from..(from + 80).min(other.len())];
                bytes.splice(at..at + span, piece.iter().copied());
            }
            _ => {
                let token = TOKENS[random.below(TOKENS.len())];
                bytes.splice(at..at, token.bytes());
            }
        }
    }
    bytes.truncate(INPUT_MAX);
}

/// What is wrong with the answer to this input, if something is.
fn complaint(kind: Kind, bytes: &[u8], now: &Now, fields: Option<&FieldList>) -> Option<String> {
    let parse = || parse_to_json(kind, bytes, now, fields);
    let Ok(answer) = catch_unwind(parse) else {
        return Some("panicked".to_owned());
    };
    if parse() != answer {
        return Some("answered twice differently".to_owned());
    }
    let job = answer.get("job").and_then(serde_json::Value::as_u64)?;
    // Colours vanish, even from the middle of a number.
    if bytes.contains(&0x1b) {
        return None;
    }
    let text = String::from_utf8_lossy(bytes);
    let mut runs = text.split(|c: char| !c.is_ascii_digit());
    let printed = runs.any(|run| run.parse() == Ok(job));
    (!printed).then(|| format!("named job {job}, which was not printed"))
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().map_or(10, |text| text.parse().unwrap());
    let seed = arguments.next().map_or(1, |text| text.parse().unwrap());
    let (seeds, now, mut random) = (seeds(), common::now(), Random(seed));
    let listed: FieldList = SQUEUE_FIELDS.parse().unwrap();
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut executions: BTreeMap<&str, u64> = BTreeMap::new();
    let mut slowest = (Duration::ZERO, Kind::TestOnly, 0);
    while Instant::now() < deadline {
        let (kind, fields, bytes) = &seeds[random.below(seeds.len())];
        let mut bytes = bytes.clone();
        mutate(&mut bytes, &seeds, &mut random);
        // Now and then another parser gets it, or a list of columns that is not its own.
        let kind = match random.below(16) {
            0 => Kind::ALL[random.below(Kind::ALL.len())],
            _ => *kind,
        };
        let fields = match random.below(4) {
            0 => Some(&listed),
            _ => fields.as_ref(),
        };
        let begun = Instant::now();
        if let Some(wrong) = complaint(kind, &bytes, &now, fields) {
            eprintln!("{kind} {wrong}; input:\n{}", bytes.escape_ascii());
            std::process::exit(1);
        }
        let took = begun.elapsed();
        if took > slowest.0 {
            slowest = (took, kind, bytes.len());
        }
        *executions.entry(kind.as_str()).or_default() += 1;
    }
    let total: u64 = executions.values().sum();
    println!("seed {seed}, {} outputs, {total} executions", seeds.len());
    for (kind, count) in executions {
        println!("{kind:>12} {count}");
    }
    let (took, kind, length) = slowest;
    println!("slowest: {kind}, {length} bytes, {took:?} for two parses");
}
