//! Any bytes are survived, and no number appears that was not printed.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;

use common::{now, samples, squeue_fields};
use hansa_slurm::json::{Kind, parse_to_json};
use hansa_slurm::parse::{
    Answer, Field, NodeList, Partitions, Reservations, Sacct, Squeue, Start, Submitted,
    SubmittedReply, TestOnly,
};
use proptest::prelude::*;

/// Every number and time that was understood, each with its place in the answer.
///
/// Places are keys of the answer, not lines, so that what a cut text says can be looked up in what
/// the whole one says.
fn understood(kind: Kind, bytes: &[u8]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    match kind {
        Kind::TestOnly => test_only(&TestOnly::parse(bytes, &now()), &mut all),
        Kind::Submit => {
            if let SubmittedReply::Accepted { job, .. } = Submitted::parse(bytes, &[]).reply {
                all.insert(format!("job {job}"));
            }
        }
        Kind::Sacct => {
            let bare = "JobID,State,Start,Elapsed,Timelimit,NNodes"
                .parse()
                .unwrap();
            let fields =
                (!bytes.starts_with(b"JobID") && !bytes.starts_with(b"Account")).then_some(&bare);
            sacct(&Sacct::parse(bytes, fields, &now()), &mut all);
        }
        Kind::Squeue => {
            for row in Squeue::parse(bytes, Some(&squeue_fields()), &now()).rows {
                let job = format!("{:?}", row.job);
                put(&mut all, &job, "start", &row.start);
                put(&mut all, &job, "walltime", &row.walltime);
                put(&mut all, &job, "left", &row.left);
            }
        }
        Kind::Partition => {
            for row in Partitions::parse(bytes).partitions {
                put(&mut all, &row.name, "max_time", &row.max_time);
                put(&mut all, &row.name, "default_time", &row.default_time);
                put(&mut all, &row.name, "max_nodes", &row.max_nodes);
                put(&mut all, &row.name, "total_nodes", &row.total_nodes);
                put(&mut all, &row.name, "total_cpus", &row.total_cpus);
                put(&mut all, &row.name, "tres", &row.tres);
                nodes(&mut all, &row.name, row.nodes.value());
            }
        }
        Kind::Reservation => {
            for row in Reservations::parse(bytes, &now()).reservations {
                put(&mut all, &row.name, "start", &row.start);
                put(&mut all, &row.name, "end", &row.end);
                put(&mut all, &row.name, "node_count", &row.node_count);
                nodes(&mut all, &row.name, row.nodes.value());
            }
        }
        Kind::Config => {
            let config = hansa_slurm::parse::Config::parse(bytes);
            for key in ["KillWait", "MinJobAge"] {
                all.extend(
                    config
                        .seconds(key)
                        .map(|seconds| format!("{key} {seconds}")),
                );
            }
            all.extend(config.version().map(|version| format!("{version:?}")));
        }
    }
    all
}

fn test_only(got: &TestOnly, all: &mut BTreeSet<String>) {
    let Answer::Starts(estimate) = &got.answer else {
        return;
    };
    all.insert(format!("job {}", estimate.job));
    if let Start::At { at, precision } = estimate.start {
        all.insert(format!("start {at} {precision:?}"));
    }
    if let Some(processors) = estimate.processors {
        all.insert(format!("processors {processors}"));
    }
    nodes(all, "estimate", estimate.nodes.as_ref());
    all.extend(got.preempts.iter().map(|job| format!("preempts {job}")));
}

fn sacct(got: &Sacct, all: &mut BTreeSet<String>) {
    for row in &got.rows {
        let job = format!("{:?}", row.job);
        put(all, &job, "exit", &row.exit_code);
        put(all, &job, "submit", &row.submit);
        put(all, &job, "start", &row.start);
        put(all, &job, "end", &row.end);
        put(all, &job, "elapsed", &row.elapsed);
        put(all, &job, "planned", &row.planned);
        put(all, &job, "walltime", &row.walltime);
        put(all, &job, "nodes", &row.nodes);
        put(all, &job, "cpus", &row.cpus);
        put(all, &job, "tres", &row.alloc_tres);
        nodes(all, &job, row.node_list.value());
    }
}

fn put<T: std::fmt::Debug>(all: &mut BTreeSet<String>, of: &str, key: &str, field: &Field<T>) {
    all.extend(field.value().map(|value| format!("{of} {key} {value:?}")));
}

fn nodes(all: &mut BTreeSet<String>, of: &str, nodes: Option<&NodeList>) {
    let count = nodes.and_then(|nodes| nodes.count);
    all.extend(count.map(|count| format!("{of} nodes {count}")));
}

#[test]
fn samples_say_something() {
    for (kind, _, text) in samples() {
        let refusal = text.contains("allocation failure");
        assert!(
            refusal || !understood(kind, text.as_bytes()).is_empty(),
            "{text}"
        );
    }
}

#[test]
fn a_text_cut_anywhere_says_nothing_that_the_whole_does_not() {
    for (kind, _, text) in samples() {
        let whole = understood(kind, text.as_bytes());
        for end in 0..text.len() {
            let cut = understood(kind, &text.as_bytes()[..end]);
            let invented: Vec<_> = cut.difference(&whole).collect();
            assert!(invented.is_empty(), "{invented:?} in {:?}", &text[..end]);
        }
    }
}

/// A sample, some of whose bytes were changed.
fn mutated() -> impl Strategy<Value = (usize, Vec<u8>)> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..4), 0..12);
    (0..samples().len(), edits).prop_map(|(index, edits)| {
        let mut bytes = samples()[index].2.as_bytes().to_vec();
        for (at, byte, how) in edits {
            let at = at.index(bytes.len() + 1);
            match how {
                0 => bytes.insert(at, byte),
                1 if at < bytes.len() => bytes[at] = byte,
                2 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"|\n =-:;_,[]%+.T09a"[usize::from(byte) % 18]),
            }
        }
        (index, bytes)
    })
}

/// All numbers of up to nine digits in the answer's own words.
fn numbers(kind: Kind, bytes: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    match kind {
        Kind::TestOnly => {
            if let Answer::Starts(estimate) = TestOnly::parse(bytes, &now()).answer {
                all.push(estimate.job.to_string());
                all.extend(estimate.processors.map(|cpus| cpus.to_string()));
            }
        }
        Kind::Submit => {
            if let SubmittedReply::Accepted { job, .. } = Submitted::parse(bytes, &[]).reply {
                all.push(job.to_string());
            }
        }
        Kind::Sacct => {
            for row in Sacct::parse(bytes, None, &now()).rows {
                all.extend(row.job.value().map(|job| job.job.to_string()));
                all.extend(row.nodes.value().map(ToString::to_string));
                all.extend(row.cpus.value().map(ToString::to_string));
            }
        }
        _ => {}
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        for kind in Kind::ALL {
            let _ = parse_to_json(*kind, &bytes, &now(), None);
            let _ = parse_to_json(*kind, &bytes, &now(), Some(&squeue_fields()));
        }
    }

    #[test]
    fn changed_outputs_are_survived((index, bytes) in mutated()) {
        let (kind, fields, _) = &samples()[index];
        let json = parse_to_json(*kind, &bytes, &now(), fields.as_ref());
        prop_assert!(json.get("skipped").is_some());
    }

    #[test]
    fn no_number_appears_that_was_not_printed((index, bytes) in mutated()) {
        let (kind, _, _) = &samples()[index];
        // Colours vanish, even from the middle of a number.
        prop_assume!(!bytes.contains(&0x1b));
        let text = String::from_utf8_lossy(&bytes);
        let printed: BTreeSet<&str> = text
            .split(|c: char| !c.is_ascii_digit())
            .map(|run| run.trim_start_matches('0'))
            .collect();
        for number in numbers(*kind, &bytes) {
            let bare = number.trim_start_matches('0');
            prop_assert!(printed.contains(bare), "{number} is not in {text:?}");
        }
    }
}
