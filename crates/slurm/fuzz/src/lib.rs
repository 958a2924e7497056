//! What no output of a command may do to a parser, whatever bytes it is made of.
//!
//! A parser that panics, or takes longer than libFuzzer's time limit, fails by itself. Beyond that an answer
//! depends on its arguments only, and names no job that was not printed. The samples that fuzzing starts from
//! are those of the crate's tests. Never here: what an output means.

#[path = "../../tests/common/mod.rs"]
pub mod samples;

use hansa_slurm::json::{Kind, parse_to_json};
use hansa_slurm::parse::FieldList;
use serde_json::Value;

/// Gives the bytes to a parser, with every list of columns that it may have.
///
/// # Panics
/// If the answer breaks a promise: this is how libFuzzer is told.
pub fn judge(kind: Kind, bytes: &[u8]) {
    for fields in lists(kind) {
        let parse = || parse_to_json(kind, bytes, &samples::now(), fields.as_ref());
        let answer = parse();
        assert_eq!(answer, parse(), "answered twice differently");
        if let Some(job) = answer.get("job").and_then(Value::as_u64) {
            assert!(
                was_printed(job, bytes),
                "named job {job}, which was not printed"
            );
        }
    }
}

/// None for outputs that name their columns, and what Hansa asks for.
fn lists(kind: Kind) -> Vec<Option<FieldList>> {
    let of_samples = samples::samples().into_iter();
    let mut all: Vec<_> = of_samples
        .filter(|(of, ..)| *of == kind)
        .map(|(_, fields, _)| fields)
        .chain([None])
        .collect();
    all.dedup_by(|a, b| a.is_none() && b.is_none());
    all
}

fn was_printed(job: u64, bytes: &[u8]) -> bool {
    // Colours vanish, even from the middle of a number.
    if bytes.contains(&0x1b) {
        return true;
    }
    let text = String::from_utf8_lossy(bytes);
    let mut runs = text.split(|c: char| !c.is_ascii_digit());
    runs.any(|run| run.parse() == Ok(job))
}
