//! What a site process and the coordinator say to each other: golden bytes, and what is refused.
#![allow(clippy::unwrap_used)]

mod samples;

use hansa_queue::*;
use hansa_wire::journal::JournalError;
use hansa_wire::queue::*;
use hansa_wire::{decode, encode};
use proptest::prelude::*;
use samples::*;

/// One message a line, as wire version 1 writes them.
const SYNC_V1: &str = include_str!("golden/sync_v1.jsonl");
/// One record a line, as journal version 1 wrote them.
const QUEUE_V1: &str = include_str!("golden/queue_v1.jsonl");

/// A snapshot, as journal version 1 wrote it.
const SNAPSHOT_V1: &str = include_str!("golden/queue_snapshot_v1.json");

#[test]
fn messages_of_version_1_load_and_are_still_written_the_same() {
    let (requests, replies) = (sync_requests(), sync_replies());
    let lines: Vec<&str> = SYNC_V1.lines().collect();
    assert_eq!(lines.len(), requests.len() + replies.len());
    let (first, last) = lines.split_at(requests.len());
    for (line, request) in first.iter().zip(requests) {
        assert_eq!(decode::<SyncRequest>(line.as_bytes()).unwrap(), request);
        assert_eq!(String::from_utf8(encode(&request)).unwrap(), *line);
    }
    for (line, reply) in last.iter().zip(replies) {
        assert_eq!(decode::<SyncReply>(line.as_bytes()).unwrap(), reply);
        assert_eq!(String::from_utf8(encode(&reply)).unwrap(), *line);
    }
}

#[test]
fn journals_of_version_1_load_and_are_still_written_the_same() {
    let records = records();
    assert_eq!(QUEUE_V1.lines().count(), records.len());
    for (line, record) in QUEUE_V1.lines().zip(&records) {
        assert_eq!(&decode_queue_record(1, line.as_bytes()).unwrap(), record);
        let written = String::from_utf8(encode_queue_record(record)).unwrap();
        assert_eq!(written, line);
    }
    let other = decode_queue_record(2, QUEUE_V1.as_bytes());
    assert_eq!(other, Err(JournalError::OtherVersion(2)));
}

#[test]
fn snapshots_of_version_1_load_and_are_still_written_the_same() {
    let state = queue_state();
    let written = String::from_utf8(encode_queue_snapshot(&state)).unwrap();
    assert_eq!(written, SNAPSHOT_V1.trim_end());
    assert_eq!(decode_queue_snapshot(1, SNAPSHOT_V1.as_bytes()), Ok(state));
    let other = decode_queue_snapshot(2, SNAPSHOT_V1.as_bytes());
    assert_eq!(other, Err(JournalError::OtherVersion(2)));
}

#[test]
fn what_came_up_during_an_operators_pause_is_kept() {
    let mut state = queue_state();
    let pause = Event::SitePaused {
        site: "lumi".parse().unwrap(),
        why: PauseWhy::Operator("new nodes".into()),
    };
    state.apply(UnixS(1_764_000_001), &pause).unwrap();
    let written = encode_queue_snapshot(&state);
    let text = String::from_utf8(written.clone()).unwrap();
    assert!(text.contains(r#""also":{"quick_failures":3}"#), "{text}");
    assert_eq!(decode_queue_snapshot(1, &written), Ok(state));
}

fn queue_orders() -> Vec<QueueOrder> {
    let (site, why) = (lumi(), Line::new("because"));
    vec![
        QueueOrder::Pause {
            site: site.clone(),
            why: why.clone(),
        },
        QueueOrder::Resume {
            site: site.clone(),
            why: why.clone(),
        },
        QueueOrder::Submit {
            site: site.clone(),
            shape: Some("small".into()),
            why: why.clone(),
        },
        QueueOrder::Cancel {
            intent: IntentId(7),
            why,
        },
        QueueOrder::Tail {
            intent: IntentId(7),
        },
        QueueOrder::Budget {
            site: site.clone(),
            change: BudgetChange {
                left: Some(Left::Counted(GpuS(3600))),
                reserve_gpu_s: Some(GpuS(60)),
                ends: Some(Ends::At(UnixS(9))),
            },
        },
        QueueOrder::Budget {
            site: site.clone(),
            change: BudgetChange {
                left: Some(Left::Uncounted),
                ends: Some(Ends::Never),
                ..BudgetChange::default()
            },
        },
        QueueOrder::Budget {
            site,
            change: BudgetChange::default(),
        },
    ]
}

#[test]
fn operators_orders_come_back() {
    for order in queue_orders() {
        assert_eq!(decode::<QueueOrder>(&encode(&order)).unwrap(), order);
    }
}

#[test]
fn a_report_is_cut_not_refused_and_a_wrong_profile_is_refused_by_its_field() {
    let mut request = sync_requests().remove(1);
    request.reports.truncate(1);
    let text = String::from_utf8(encode(&request)).unwrap();
    let long = text.replace("starts then", &"x\\n".repeat(5000));
    let back: SyncRequest = decode(long.as_bytes()).unwrap();
    let Report::Probe(probe) = &back.reports[0].report else {
        panic!("another report");
    };
    assert_eq!(probe.raw.as_str().len(), 4096);

    let refuse = |from: &str, to: &str| {
        let text = String::from_utf8(encode(&sync_requests()[0])).unwrap();
        assert!(text.contains(from), "{text}");
        let text = text.replace(from, to);
        decode::<SyncRequest>(text.as_bytes())
            .unwrap_err()
            .to_string()
    };
    let error = refuse("\"preferred\":\"small\"", "\"preferred\":\"smal\"");
    assert_eq!(
        error,
        "profile: the preferred shape is not among the shapes"
    );
    let error = refuse("\"nodes\":2", "\"nodes\":0");
    assert!(
        error.starts_with("profile.shapes: a shape has 1 to"),
        "{error}"
    );
    let error = refuse("\"holder\":\"uan02 4711 k3j9\"", "\"holder\":\" \"");
    assert_eq!(error, "holder and spool are needed");
    let error = refuse("\"site\":\"lumi\"", "\"site\":\"../lumi\"");
    assert!(error.starts_with("site: "), "{error}");
}

#[test]
fn optional_fields_may_be_left_out() {
    let text =
        r#"{"site":"lumi","holder":"a","take_over":false,"leave":false,"spool":"s","reports":[]}"#;
    let request: SyncRequest = decode(text.as_bytes()).unwrap();
    assert_eq!((request.lease, request.profile), (None, None));
}

proptest! {
    #[test]
    fn damaged_messages_are_an_error_never_a_panic(
        noise in prop::collection::vec(any::<u8>(), 0..60),
        at in any::<prop::sample::Index>(),
        which in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encode(which.get(&sync_requests()));
        let at = at.index(bytes.len());
        let end = (at + noise.len() % 7).min(bytes.len());
        bytes.splice(at..end, noise.iter().copied());
        let _ = decode::<SyncRequest>(&bytes);
        let _ = decode::<SyncReply>(&bytes);
        let mut bytes = encode_queue_record(which.get(&records()));
        let at = at.min(bytes.len());
        bytes.splice(at..at, noise.iter().copied());
        let _ = decode_queue_record(1, &bytes);
        let mut bytes = SNAPSHOT_V1.as_bytes().to_vec();
        let at = at.min(bytes.len());
        bytes.splice(at..at, noise.iter().copied());
        let _ = decode_queue_snapshot(1, &bytes);
    }
}
