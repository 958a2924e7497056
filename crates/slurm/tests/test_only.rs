//! `sbatch --test-only` and `sbatch --parsable`, form by form.
#![allow(clippy::unwrap_used)]

mod common;

use common::now;
use hansa_slurm::parse::{
    Answer, Cpus, Estimate, Lasting, Precision, RefusalKind, Start, Submitted, SubmittedReply,
    TestOnly, Why,
};

fn estimate(text: &str) -> Estimate {
    match TestOnly::parse(text.as_bytes(), &now()).answer {
        Answer::Starts(estimate) => estimate,
        other => panic!("{text:?} gave {other:?}"),
    }
}

fn at(estimate: &Estimate) -> String {
    match &estimate.start {
        Start::At { at, .. } => at.to_string(),
        other => panic!("{other:?}"),
    }
}

/// What follows the time, what it means: processors, nodes, partition.
fn check(text: &str, processors: u32, nodes: u32, partition: Option<&str>) {
    let got = estimate(&format!("{text}\n"));
    assert_eq!(at(&got), "2026-11-29T15:14:32Z", "{text}");
    assert_eq!(got.processors, Some(Cpus(processors)), "{text}");
    let count = got.nodes.unwrap().count.map(|nodes| nodes.0);
    assert_eq!(count, Some(nodes), "{text}");
    assert_eq!(got.partition.as_deref(), partition, "{text}");
}

#[test]
fn every_versions_sentence_is_understood() {
    let t = "Job 4 to start at 2026-11-29T17:14:32";
    check(
        &format!("sbatch: {t} using 48 processors on fog[02,15-16]"),
        48,
        3,
        None,
    );
    check(
        &format!("sbatch: {t} using 2 cnodes on bg[0-1]"),
        2,
        2,
        None,
    );
    check(
        &format!("sbatch: {t} using 8 processors on nodes n1"),
        8,
        1,
        None,
    );
    check(
        &format!("sbatch: {t} using 64 processors on nodes n[1-2] in partition gpu"),
        64,
        2,
        Some("gpu"),
    );
    check(
        &format!("sbatch: {t} a using 2 processors on nodes a1-2u09n01 in partition gpu_b200"),
        2,
        1,
        Some("gpu_b200"),
    );
    let on_cluster = format!("{t} on cluster lumi a using 2 processors on nodes n1 in partition q");
    check(&on_cluster, 2, 1, Some("q"));
    assert_eq!(estimate(&on_cluster).cluster.as_deref(), Some("lumi"));
    let not_stray = format!("{t} on cluster lumi using 2 processors on nodes n1 in partition q");
    assert_eq!(estimate(&not_stray).cluster.as_deref(), Some("lumi"));
    check(
        &format!("srun: {t} using 384 processors on nid[001000,005000]"),
        384,
        2,
        None,
    );
    check(
        &format!(
            "  $ sbatch -v\n\n    sbatch: {t} using 64 processors on nodes n[499-500] in partition batch"
        ),
        64,
        2,
        Some("batch"),
    );
}

#[test]
fn wrapped_sentences_are_put_together() {
    let t = "2026-11-29T17:14:32";
    let wrapped = [
        format!(
            "sbatch: Job 4 to start at {t} using 256 processors on nodes nid002836\nin partition standard"
        ),
        format!(
            "sbatch: Job 4 to start at {t} using 256 processors on nodes nid002836 in\npartition standard"
        ),
        format!(
            "sbatch: Job\n4 to start\nat {t}\nusing 256 processors\non nodes nid002836 in partition\nstandard"
        ),
        format!(
            "sbatch: Job 4 to start at {t} using 256\r\n processors on nodes\r\n nid002836 in partition standard\r"
        ),
    ];
    for text in &wrapped {
        check(text, 256, 1, Some("standard"));
    }
    let next = format!(
        "sbatch: Job 4 to start at {t} using 2 processors on n1\nsbatch: Job 5 to start at {t} using 2 processors on n1\n"
    );
    let got = TestOnly::parse(next.as_bytes(), &now());
    assert!(matches!(&got.answer, Answer::Starts(last) if last.job.0 == 5));
    assert_eq!(got.skipped[0].why, Why::Superseded { by: 2 });
}

#[test]
fn times_have_the_form_that_the_user_asked_for() {
    let with = |time: &str| {
        estimate(&format!(
            "Job 4 to start at {time} a using 2 processors on nodes n1 in partition q\n"
        ))
    };
    assert_eq!(at(&with("1795966055")), "2026-11-29T15:27:35Z");
    assert_eq!(at(&with("16:00:00")), "2026-11-29T14:00:00Z");
    let tomorrow = with("Tomorr 03:33");
    assert_eq!(at(&tomorrow), "2026-11-30T01:33:00Z");
    let Start::At { precision, .. } = tomorrow.start else {
        panic!()
    };
    assert_eq!(precision, Precision::Minute);
    assert_eq!(with("Unknown").start, Start::Unknown);
    assert_eq!(
        with("29. marraskuuta").start,
        Start::Odd("29. marraskuuta".into())
    );
    assert_eq!(with("12").start, Start::Odd("12".into()));
}

#[test]
fn noise_stays_outside_and_is_reported() {
    let text = "Welcome!\nsbatch: lua: ok\nsbatch: error: Verification: ***PASSED***\nsbatch: Job 4 to start at 2026-11-29T17:14:32 using 2 processors on nodes n1 in partition q\n  Preempts: 11,12\nBye\n";
    let got = TestOnly::parse(text.as_bytes(), &now());
    assert!(matches!(got.answer, Answer::Starts(_)));
    assert_eq!(
        got.preempts.iter().map(|job| job.0).collect::<Vec<_>>(),
        [11, 12]
    );
    let lines: Vec<_> = got.skipped.iter().map(|piece| piece.line).collect();
    assert_eq!(lines, [1, 2, 3, 6]);
    assert!(got.skipped.iter().all(|piece| piece.why == Why::Noise));
}

#[test]
fn an_error_after_an_estimate_is_a_refusal_only_if_it_says_so() {
    let estimate = "sbatch: Job 4 to start at 2026-11-29T17:14:32 using 2 processors on nodes n1 in partition q\n";
    let plugin = format!("{estimate}sbatch: error: usage could not be logged\n");
    let got = TestOnly::parse(plugin.as_bytes(), &now());
    assert!(matches!(got.answer, Answer::Starts(_)));
    let refused = format!("{estimate}allocation failure: Invalid qos specification\n");
    let got = TestOnly::parse(refused.as_bytes(), &now());
    assert!(matches!(got.answer, Answer::Refused(_)));
    assert_eq!(got.skipped[0].why, Why::Superseded { by: 2 });
}

#[test]
fn silence_and_noise_are_no_answer() {
    let answer = |text: &str| TestOnly::parse(text.as_bytes(), &now()).answer;
    assert_eq!(answer(""), Answer::Silent);
    assert_eq!(answer("\n  \n"), Answer::Silent);
    assert_eq!(answer("Welcome!\n"), Answer::Unclear);
    let broken = [
        "sbatch: Job 4 to start at 2026-11-29T17:14:32 using\n",
        "sbatch: Job 4 to start at\n",
        "sbatch: Job 0 to start at 2026-11-29T17:14:32 using 2 processors on nodes n1\n",
        "sbatch: Job -4 to start at 2026-11-29T17:14:32 using 2 processors on nodes n1\n",
        "sbatch: Job 4 to start at 2026-11-29T17:14:32 (...) nid00311 in partition x\n",
        "sbatch: Job 4 to begin at 2026-11-29T17:14:32 using 2 processors on nodes n1\n",
    ];
    for text in broken {
        assert_eq!(answer(text), Answer::Unclear, "{text}");
    }
}

#[test]
fn numbers_that_are_none_are_left_out() {
    let text =
        "Job 4 to start at 2026-11-29T17:14:32 using 1K processors on nodes n[1- in partition q\n";
    let got = TestOnly::parse(text.as_bytes(), &now());
    assert_eq!(got.skipped[0].why, Why::OddNumber("1K".into()));
    let Answer::Starts(estimate) = got.answer else {
        panic!()
    };
    assert_eq!(
        (estimate.processors, estimate.nodes.unwrap().count),
        (None, None)
    );
    let cut = "Job 4 to start at 2026-11-29T17:14:32 using 1 processors on nodes n[1-2],n3";
    let got = TestOnly::parse(cut.as_bytes(), &now());
    assert_eq!(got.skipped[0].why, Why::Cut);
    assert!(matches!(got.answer, Answer::Starts(e) if e.nodes.clone().unwrap().count.is_none()));
}

fn refused(text: &str, kind: RefusalKind, lasting: Lasting) {
    let got = TestOnly::parse(text.as_bytes(), &now());
    let Answer::Refused(refusal) = got.answer else {
        panic!("{text:?} gave {:?}", got.answer)
    };
    assert_eq!(refusal.kind, kind, "{text}");
    assert_eq!(refusal.lasting(), lasting, "{text}");
}

#[test]
fn refusals_that_may_pass_are_told_from_those_that_do_not() {
    use Lasting::{Permanent, Provisional};
    use RefusalKind as Kind;
    let cases = [
        (
            "Requested node configuration is not available",
            Kind::NodeConfiguration,
            Provisional,
        ),
        ("Node count specification invalid", Kind::Shape, Permanent),
        ("Invalid feature specification", Kind::Shape, Permanent),
        (
            "Requested time limit is invalid (missing or exceeds some limit)",
            Kind::TimeLimit,
            Permanent,
        ),
        (
            "Required partition not available (inactive or drain)",
            Kind::PartitionUnavailable,
            Provisional,
        ),
        (
            "Invalid account or account/partition combination specified",
            Kind::Access,
            Permanent,
        ),
        (
            "Requested reservation is invalid",
            Kind::Reservation,
            Permanent,
        ),
        (
            "Socket timed out on send/recv operation",
            Kind::Controller,
            Provisional,
        ),
        (
            "Unable to contact slurm controller (connect failure)",
            Kind::Controller,
            Provisional,
        ),
        (
            "Rate limit exceeded, please retry momentarily",
            Kind::RateLimited,
            Provisional,
        ),
        (
            "Protocol authentication error",
            Kind::Authentication,
            Provisional,
        ),
        ("The moon is in the wrong phase", Kind::Other, Provisional),
        ("", Kind::Other, Provisional),
    ];
    for (text, kind, lasting) in cases {
        refused(&format!("allocation failure: {text}\n"), kind, lasting);
        refused(
            &format!("sbatch: error: Batch job submission failed: {text}\n"),
            kind,
            lasting,
        );
    }
}

#[test]
fn a_policy_is_known_by_the_name_of_its_limit() {
    use Lasting::{Permanent, Provisional};
    use RefusalKind as Kind;
    let policy = "allocation failure: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n";
    refused(policy, Kind::Policy, Provisional);
    let limits = [
        ("QOSMaxWallDurationPerJobLimit", Kind::TimeLimit, Permanent),
        ("QOSMaxNodePerUserLimit", Kind::SizeLimit, Permanent),
        ("QOSMaxSubmitJobPerUserLimit", Kind::JobLimit, Provisional),
        (
            "AssocGrpCPUMinutesLimit",
            Kind::AllocationExhausted,
            Permanent,
        ),
    ];
    for (name, kind, lasting) in limits {
        refused(&format!("sbatch: error: {name}\n{policy}"), kind, lasting);
        refused(&format!("srun: error: {name}\n"), kind, lasting);
    }
}

#[test]
fn failures_before_the_controller_are_refusals_too() {
    use Lasting::{Permanent, Provisional};
    let cases = [
        (
            "sbatch: error: invalid partition specified: x\nallocation failure: Invalid partition name specified\n",
            RefusalKind::UnknownPartition,
            Permanent,
        ),
        (
            "sbatch: error: Invalid generic resource (gres) specification\n",
            RefusalKind::Shape,
            Permanent,
        ),
        (
            "sbatch: error: No cluster 'x' known by database.\nsbatch: error: 'x' can't be reached now, or it is an invalid entry for --cluster.\n",
            RefusalKind::UnknownCluster,
            Permanent,
        ),
        (
            "sbatch: unrecognized option '--x'\nTry \"sbatch --help\" for more information\n",
            RefusalKind::BadRequest,
            Permanent,
        ),
        (
            "sbatch: error: Unable to open file x.sh\n",
            RefusalKind::BadRequest,
            Permanent,
        ),
        (
            "sbatch: error: This does not look like a batch script.  The first\nsbatch: error: line must start with #! followed by the path to an interpreter.\nsbatch: error: For instance: #!/bin/sh\n",
            RefusalKind::BadRequest,
            Permanent,
        ),
        (
            "sbatch: error: fetch_config: DNS SRV lookup failed\nsbatch: fatal: Could not establish a configuration source\n",
            RefusalKind::Configuration,
            Provisional,
        ),
    ];
    for (text, kind, lasting) in cases {
        refused(text, kind, lasting);
    }
}

#[test]
fn a_refusal_keeps_its_words() {
    let text = "sbatch: error: QOSMaxSubmitJobPerUserLimit\nallocation failure: Job violates accounting/QOS policy (job submit limit,\n user's size and/or time limits)\nnoise\n";
    let got = TestOnly::parse(text.as_bytes(), &now());
    let Answer::Refused(refusal) = got.answer else {
        panic!()
    };
    assert_eq!(refusal.line, 2);
    assert!(refusal.text.ends_with("user's size and/or time limits)"));
    assert_eq!(refusal.details, ["QOSMaxSubmitJobPerUserLimit"]);
    assert_eq!(got.skipped.len(), 1);
}

fn submitted(stdout: &str, stderr: &str) -> SubmittedReply {
    Submitted::parse(stdout.as_bytes(), stderr.as_bytes()).reply
}

#[test]
fn an_accepted_job_has_one_id() {
    let accepted = |stdout: &str| match submitted(stdout, "sbatch: warning: x\n") {
        SubmittedReply::Accepted { job, cluster } => Some((job.0, cluster)),
        _ => None,
    };
    let lumi = Some("lumi".to_owned());
    assert_eq!(accepted("60\n"), Some((60, None)));
    assert_eq!(accepted("60;lumi\n"), Some((60, lumi.clone())));
    assert_eq!(accepted("Submitted batch job 60\n"), Some((60, None)));
    assert_eq!(
        accepted("Submitted batch job 60 on cluster lumi\n"),
        Some((60, lumi))
    );
    assert_eq!(
        accepted("Hello\nquota: 12 of 50\n60\n\nBye\n"),
        Some((60, None))
    );
    assert_eq!(accepted("60\nSubmitted batch job 60\n"), Some((60, None)));
    for unclear in [
        "", "60", "6\n0", "60\n61\n", "60 61\n", "60;\n", "60;a b\n", "x60\n", "0\n", "60|\n",
    ] {
        assert_ne!(accepted(unclear), Some((60, None)), "{unclear}");
    }
    let unclear = SubmittedReply::Unclear { error: None };
    assert_eq!(submitted("60\n61\n", ""), unclear);
    assert_eq!(submitted("", ""), unclear);
}

#[test]
fn a_refused_submission_says_why() {
    let stderr = "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid partition name specified\n";
    let SubmittedReply::Refused(refusal) = submitted("", stderr) else {
        panic!()
    };
    assert_eq!(refusal.kind, RefusalKind::UnknownPartition);
    assert_eq!(refusal.text, "Invalid partition name specified");
}

#[test]
fn a_refusal_in_vague_words_is_one_that_may_pass() {
    let failed = "sbatch: error: Batch job submission failed: ";
    for words in [
        "Unspecified error",
        "Job dependency problem",
        "Requested operation is presently disabled",
    ] {
        // Scripts of the site say why in lines of their own.
        let stderr = format!("sbatch: error: use -A project_1\n{failed}{words}\n");
        let SubmittedReply::Refused(refusal) = submitted("", &stderr) else {
            panic!("{words}")
        };
        assert_eq!(refusal.text, words);
        assert_eq!(refusal.details, ["use -A project_1"]);
        assert_eq!(refusal.lasting(), Lasting::Provisional);
    }
    let stderr = "sbatch: error: Unable to allocate resources: Invalid account or account/partition combination specified\n";
    let SubmittedReply::Refused(refusal) = submitted("", stderr) else {
        panic!()
    };
    assert_eq!(refusal.kind, RefusalKind::Access);
    assert_eq!(refusal.lasting(), Lasting::Permanent);
    // With an id, whole or cut, nothing is certain.
    let stderr = format!("{failed}Unspecified error\n");
    assert!(matches!(
        submitted("60", &stderr),
        SubmittedReply::Unclear { .. }
    ));
}

#[test]
fn a_submission_may_have_been_accepted_by_a_controller_that_did_not_answer() {
    let failed = "sbatch: error: Batch job submission failed: ";
    let cases = [
        (
            "",
            format!("{failed}Socket timed out on send/recv operation\n"),
        ),
        (
            "",
            format!("{failed}Unable to contact slurm controller (connect failure)\n"),
        ),
        ("", format!("{failed}The moon is in the wrong phase\n")),
        (
            "",
            format!("sbatch: error: Connection reset by peer\n{failed}Unspecified error\n"),
        ),
        (
            "",
            "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
                .to_owned(),
        ),
        (
            "",
            "sbatch: error: lua: the moon is in the wrong phase\n".to_owned(),
        ),
        (
            "60",
            "sbatch: error: invalid partition specified: x\n".to_owned(),
        ),
    ];
    for (stdout, stderr) in cases {
        let reply = submitted(stdout, &stderr);
        assert!(
            matches!(reply, SubmittedReply::Unclear { error: Some(_) }),
            "{stderr}: {reply:?}"
        );
    }
}
