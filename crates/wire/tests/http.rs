//! Messages: what one side sends, the other reads; what cannot be is refused.
#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Debug;
use std::time::Duration;

use common::*;
use hansa_base::*;
use hansa_protocol::replica::{LocalState, RegistrationRecord};
use hansa_protocol::*;
use hansa_wire::http::*;
use hansa_wire::{PayloadManifest, Wire, decode, encode};

fn check<T: Wire + PartialEq + Debug>(value: T) {
    let bytes = encode(&value);
    let back = decode::<T>(&bytes);
    assert_eq!(
        back.as_ref(),
        Ok(&value),
        "{}",
        String::from_utf8_lossy(&bytes)
    );
}

fn caller() -> Caller {
    Caller {
        replica: replica("lumi/r0"),
        run: hash(3),
        timeline: Timeline(1_700_000_000_000),
        incarnation: Incarnation(5),
        seal: hash(4),
    }
}

fn lease() -> LeaseView {
    LeaseView {
        id: LeaseId(2),
        epoch: Epoch(1),
        front: Windows(4),
        spans: parts().spans,
        mark: Windows(9),
        seq: 3,
    }
}

fn announce_request() -> AnnounceRequest {
    AnnounceRequest {
        announce: Announce {
            caller: caller(),
            parts: parts(),
        },
        payload: PayloadManifest {
            format_version: 1,
            total_bytes: 4096,
            chunk_bytes: 1024,
            chunks: vec![hash(1).to_string(); 4],
        },
    }
}

#[test]
fn requests_come_back() {
    check(RegisterRequest {
        replica: replica("lumi/r0"),
        digest: digest(),
        ranks: 8,
        nonce: hash(1),
        resume: Some(hash(2)),
        held: Some(caller()),
    });
    check(LeaseRequest {
        caller: caller(),
        base: hash(1),
        times: Some((Generation(1), times())),
    });
    check(Heartbeat {
        caller: caller(),
        progress: progress(),
        at: Some((LeaseId(2), Windows(6))),
    });
    check(announce_request());
    check(Evaluated {
        caller: caller(),
        generation: Generation(1),
        loss_sum_nats: 0.1 + 0.2,
        tokens: Tokens(9),
    });
    check(caller());
    for not_finite in [false, true] {
        let caller = caller();
        check(Goodbye { caller, not_finite });
    }
    let (site, replica) = (replica("lumi/r0").site, replica("lumi/r0"));
    let why = || "for repairs".to_owned();
    for order in [
        Order::Pause { why: why() },
        Order::Resume { why: why() },
        Order::Drain {
            site: site.clone(),
            why: why(),
            until: None,
        },
        Order::Drain {
            site: site.clone(),
            why: why(),
            until: Some(WallS(1_764_000_000)),
        },
        Order::Undrain { site, why: why() },
        Order::Evict {
            replica: replica.clone(),
            why: why(),
        },
        Order::Readmit {
            replica,
            why: why(),
        },
        Order::Stop { why: why() },
        Order::LetOut {
            windows: vec![3, 9],
        },
    ] {
        check(Operate { order });
    }
}

#[test]
fn an_orders_reason_is_one_line() {
    for why in ["two\nlines".to_owned(), "x".repeat(501)] {
        let order = Order::Pause { why };
        let json = serde_json::to_vec(&Operate { order }.to_json()).unwrap();
        let error = hansa_wire::decode::<Operate>(&json).unwrap_err();
        assert!(error.to_string().contains("one line"), "{error}");
    }
}

#[test]
fn answers_come_back() {
    let current = rich_state().current;
    check(RecipeAnswer {
        run: hash(1),
        recipe: "name = \"x\"".to_owned(),
        digest: digest(),
    });
    check(Registered {
        incarnation: Incarnation(5),
        timeline: Timeline(2),
        seal: hash(4),
        token: hash(1),
        lease: Some(lease()),
        announced: Some(hash(2)),
        current,
    });
    let members = vec![replica("lumi/r0"), replica("snellius/r0")];
    let waits = [
        Wait::Merging,
        Wait::Members(members.clone()),
        Wait::NothingFree,
        Wait::NextRound,
        Wait::ExchangeTooLong {
            exchange: Duration::from_secs(90),
            round: Duration::from_secs(31),
        },
        Wait::SetBack {
            refusals: 3,
            until: Generation(7),
        },
        Wait::Paused("for repairs".to_owned()),
        Wait::Ending,
    ];
    waits
        .into_iter()
        .for_each(|wait| check(LeaseAnswer::Wait(wait)));
    let (lease, plan) = (lease(), plan());
    let grant = Grant {
        lease: lease.clone(),
        plan,
        base: current,
    };
    check(LeaseAnswer::Train(grant));
    check(LeaseAnswer::Adopt(current));
    check(LeaseAnswer::Evaluate(Generation(1)));
    check(LeaseAnswer::Leave("its site is drained".to_owned()));
    check(LeaseAnswer::Finish(EndReason::Epochs));
    check(Standing {
        lost: Some(FreedCause::LeaseExpired),
        lease: Some(lease),
        current,
        merging: true,
        ending: Some(EndReason::Rounds),
        waits_for: members,
        next: Duration::from_millis(250),
        ttl: Duration::from_secs(60),
        leave: Some("its site is drained".to_owned()),
    });
    check(Verdict::Upload);
    check(Verdict::Staged);
    check(Verdict::Merged(Generation(2)));
    check(Verdict::Refused(RefusedBecause::Late));
    check(Done {});
}

#[test]
fn local_records_come_back() {
    check(RegistrationRecord {
        run: hash(1),
        replica: replica("lumi/r0"),
        held: Some(caller()),
        token: None,
        nonce: Some(hash(2)),
    });
    check(LocalState {
        run: hash(1),
        replica: replica("lumi/r0"),
        incarnation: Incarnation(5),
        base: rich_state().current,
        lease: LeaseId(2),
        epoch: Epoch(1),
        front: Windows(4),
        cursor: Windows(11),
        steps: Steps(4),
        contribution: Some(parts()),
    });
}

fn every_refusal() -> Vec<Refusal> {
    let replica = replica("lumi/r0");
    let text = || "x".to_owned();
    let mut refusals = vec![
        Refusal::Busy {
            replica: replica.clone(),
            retry: Duration::from_millis(1500),
        },
        Refusal::OtherData(Mismatch {
            field: text(),
            ours: text(),
            theirs: text(),
        }),
        Refusal::Fenced {
            replica: replica.clone(),
        },
        Refusal::Gone {
            replica: replica.clone(),
        },
        Refusal::NeverIssued { what: text() },
        Refusal::Unknown {
            replica: replica.clone(),
        },
        Refusal::NotFromFront {
            lease: Some(LeaseId(2)),
        },
        Refusal::BeyondMark {
            said: Windows(3),
            reserved: Windows(2),
        },
        Refusal::Stale {
            base: Generation(1),
            current: Generation(2),
        },
        Refusal::OtherRun {
            ours: hash(1),
            theirs: hash(2),
        },
        Refusal::Restored {
            timeline: Timeline(2),
        },
        Refusal::OtherHistory {
            ours: Timeline(1),
            theirs: Timeline(2),
        },
        Refusal::NotSealed {
            replica: replica.clone(),
        },
        Refusal::NoSuchGeneration {
            generation: Generation(9),
        },
        Refusal::ContributedAlready { replica },
        Refusal::WrongTokens {
            said: Tokens(1),
            real: Tokens(2),
        },
        Refusal::UnknownContribution(hash(1)),
        Refusal::RunOver(EndReason::Tokens),
        Refusal::Broken(text()),
    ];
    refusals.extend(refusals_by_order());
    refusals
}

fn refusals_by_order() -> Vec<Refusal> {
    let replica = replica("lumi/r0");
    let (site, why) = (replica.site.clone(), "x".to_owned());
    vec![
        Refusal::Evicted {
            replica,
            why: why.clone(),
        },
        Refusal::Drained {
            site: site.clone(),
            why: why.clone(),
        },
        Refusal::UnknownSite { site },
        Refusal::Pointless { what: why },
        Refusal::NotQuarantined(7),
    ]
}

#[test]
fn refusals_keep_their_code_and_meaning() {
    let refusals = every_refusal();
    for refusal in &refusals {
        let json = serde_json::to_vec(&ErrorBody::from(refusal)).unwrap();
        let body: ErrorBody = serde_json::from_slice(&json).unwrap();
        assert_eq!(body.refusal().as_ref(), Ok(refusal));
        assert_eq!(Code::from_text(&body.error.code), Some(Code::of(refusal)));
    }
    let busy = ErrorBody::from(&refusals[0]);
    assert_eq!(busy.error.retry_after_ms, Some(1500));
    let codes: std::collections::BTreeSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(codes.len(), Code::ALL.len());
    assert!(ErrorBody::new(Code::NotFound, "x").refusal().is_err());
}

#[test]
fn impossible_requests_are_refused_by_field() {
    let refuse = |from: &str, to: &str| {
        let text = String::from_utf8(encode(&announce_request())).unwrap();
        let changed = text.replace(from, to);
        assert_ne!(text, changed);
        decode::<AnnounceRequest>(changed.as_bytes())
            .unwrap_err()
            .to_string()
    };
    let cases = [
        ("lumi/r0", "lumi", "announce.caller.replica: "),
        ("[8,12]", "[8,8]", "announce.parts.spans: 8..8 is no range"),
        ("[8,12]", "[8,4294967297]", "announce.parts.spans: "),
        (
            "\"steps\":4",
            "\"steps\":8",
            "announce.parts: a contribution needs",
        ),
        (
            "\"total_bytes\":4096",
            "\"total_bytes\":4097",
            "the announced size",
        ),
        (
            "\"chunks\":[\"01",
            "\"chunks\":[\"0x",
            "payload: not a hash",
        ),
        ("\"steps\":4", "\"steps\":-4", "invalid value"),
    ];
    for (from, to, expected) in cases {
        let error = refuse(from, to);
        assert!(error.contains(expected), "{error}");
    }
    let text = String::from_utf8(encode(&Evaluated {
        caller: caller(),
        generation: Generation(1),
        loss_sum_nats: f64::NAN,
        tokens: Tokens(9),
    }));
    assert!(decode::<Evaluated>(text.unwrap().as_bytes()).is_err());
}

proptest::proptest! {
    #[test]
    fn noise_is_an_error_never_a_panic(
        noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..60),
        at in proptest::prelude::any::<proptest::sample::Index>(),
    ) {
        let mut bytes = encode(&announce_request());
        let at = at.index(bytes.len());
        let end = (at + noise.len() / 2).min(bytes.len());
        bytes.splice(at..end, noise.iter().copied());
        let _ = decode::<AnnounceRequest>(&bytes);
        let _ = decode::<RegisterRequest>(&noise);
        let _ = decode::<Heartbeat>(&noise);
        let _ = serde_json::from_slice::<ErrorBody>(&bytes);
    }
}

#[test]
fn a_goodbye_that_says_no_more_is_a_caller_as_it_always_was() {
    assert_eq!(encode(&Goodbye::from(caller())), encode(&caller()));
    let old: Goodbye = decode(&encode(&caller())).unwrap();
    assert!(!old.not_finite);
}
