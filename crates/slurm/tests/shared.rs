//! Recorded outputs of real clusters, from the folder named by `HANSA_TEST_DATA`.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use common::{now, squeue_fields};
use hansa_slurm::parse::{
    Answer, Config, Elapsed, Field, FieldList, JobState, Lasting, Now, Partitions, RefusalKind,
    Reservations, Sacct, Skipped, Squeue, Start, Submitted, SubmittedReply, TestOnly, UnixTime,
    Why, Word, Zone,
};

/// The folder, or `None` with a word on standard error.
fn shared() -> Option<PathBuf> {
    let folder = std::env::var_os("HANSA_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: HANSA_TEST_DATA is not set");
    }
    folder
}

/// A recorded command: its two streams, and when it was started on a clock in UTC.
struct Capture {
    name: String,
    now: Now,
    stdout: String,
    stderr: String,
}

fn captures(prefix: &str) -> Option<Vec<Capture>> {
    let folder = shared()?.join("slurm-captures");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let captures = paths.iter().map(|path| capture(path));
    Some(
        captures
            .filter(|capture| capture.name.starts_with(prefix))
            .collect(),
    )
}

fn capture(path: &Path) -> Capture {
    let text = fs::read_to_string(path).unwrap();
    let (head, rest) = text.split_once("--- stdout\n").unwrap_or((&text, ""));
    let (stdout, stderr) = rest.split_once("--- stderr\n").unwrap_or((rest, ""));
    let at = head.split(" at=").nth(1).and_then(|rest| rest.get(..19));
    Capture {
        name: path.file_stem().unwrap().to_string_lossy().into_owned(),
        now: at.map_or_else(now, |at| format!("{at}Z").parse().unwrap()),
        stdout: stdout.to_owned(),
        stderr: stderr.to_owned(),
    }
}

fn one(name: &str) -> Option<Capture> {
    captures(name)?
        .into_iter()
        .find(|capture| capture.name == name)
}

#[test]
fn every_recorded_probe_is_understood() {
    let Some(captures) = captures("testonly-") else {
        return;
    };
    let (mut starts, mut refused) = (0, 0);
    for capture in &captures {
        let got = TestOnly::parse(capture.stderr.as_bytes(), &capture.now);
        match got.answer {
            Answer::Starts(estimate) => {
                let Start::At { at, .. } = estimate.start else {
                    panic!("{}: {estimate:?}", capture.name)
                };
                let wait_s = at.0 - capture.now.at.0;
                // One probe was made with the clock of New York, five hours behind.
                let behind = if capture.name.contains("other-timezone") {
                    -18_000
                } else {
                    0
                };
                assert!(
                    (behind - 2..9_000).contains(&wait_s),
                    "{}: {wait_s}",
                    capture.name
                );
                assert!(estimate.nodes.unwrap().count.is_some(), "{}", capture.name);
                let named = estimate.partition.is_some();
                assert_eq!(
                    named,
                    !capture.name.contains("heterogeneous"),
                    "{}",
                    capture.name
                );
                starts += 1;
            }
            Answer::Refused(refusal) => {
                assert_ne!(
                    refusal.kind,
                    RefusalKind::Other,
                    "{}: {refusal:?}",
                    capture.name
                );
                refused += 1;
            }
            Answer::Silent => assert!(capture.name.contains("quiet"), "{}", capture.name),
            Answer::Unclear => panic!("{}: {}", capture.name, capture.stderr),
        }
    }
    assert_eq!((starts, refused), (28, 42));
}

#[test]
fn recorded_refusals_have_their_kinds() {
    use Lasting::{Permanent, Provisional};
    use RefusalKind as Kind;
    let cases = [
        ("testonly-20", Kind::Shape, Permanent),
        ("testonly-22", Kind::NodeConfiguration, Provisional),
        ("testonly-26", Kind::Shape, Permanent),
        ("testonly-32", Kind::Shape, Permanent),
        ("testonly-40", Kind::UnknownPartition, Permanent),
        ("testonly-41", Kind::Access, Permanent),
        ("testonly-42", Kind::Access, Permanent),
        ("testonly-43", Kind::Reservation, Permanent),
        ("testonly-44", Kind::UnknownCluster, Permanent),
        ("testonly-45", Kind::BadRequest, Permanent),
        ("testonly-46", Kind::BadRequest, Permanent),
        ("testonly-47", Kind::BadRequest, Permanent),
        ("testonly-48", Kind::BadRequest, Permanent),
        ("testonly-60", Kind::TimeLimit, Permanent),
        ("testonly-62", Kind::TimeLimit, Permanent),
        ("testonly-63", Kind::SizeLimit, Permanent),
        ("testonly-64", Kind::JobLimit, Provisional),
        ("testonly-80", Kind::NodeConfiguration, Provisional),
        ("testonly-82", Kind::PartitionUnavailable, Provisional),
        ("testonly-95", Kind::Controller, Provisional),
        ("testonly-97", Kind::Authentication, Provisional),
        ("testonly-98", Kind::Controller, Provisional),
        ("testonly-99", Kind::Configuration, Provisional),
    ];
    for (name, kind, lasting) in cases {
        let Some(captures) = captures(name) else {
            return;
        };
        assert!(!captures.is_empty(), "{name}");
        for capture in captures {
            let got = TestOnly::parse(capture.stderr.as_bytes(), &capture.now);
            let Answer::Refused(refusal) = got.answer else {
                panic!("{name}")
            };
            assert_eq!((refusal.kind, refusal.lasting()), (kind, lasting), "{name}");
        }
    }
}

#[test]
fn probes_of_many_sites_are_understood() {
    let Some(folder) = shared() else { return };
    let text = fs::read_to_string(folder.join("slurm-fixtures/sbatch-test-only.json")).unwrap();
    let cases: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    for case in &cases {
        let text = case["text"].as_str().unwrap();
        let got = TestOnly::parse(text.as_bytes(), &now());
        let elided = case["note"].as_str().unwrap().contains("elided");
        match (&got.answer, case["exit"].as_i64()) {
            (Answer::Unclear, _) if elided => {}
            (Answer::Starts(estimate), Some(0)) => {
                assert!(matches!(estimate.start, Start::At { .. }), "{text}");
                assert!(estimate.processors.is_some(), "{text}");
                let old = text.contains("dfg-xeon");
                assert_eq!(estimate.partition.is_none(), old, "{text}");
            }
            (Answer::Refused(refusal), Some(1)) => {
                assert_ne!(refusal.kind, RefusalKind::Other, "{text}");
            }
            (answer, _) => panic!("{text}: {answer:?}"),
        }
    }
    assert_eq!(cases.len(), 26);
    for name in ["archer2_test_only.txt", "olcf_andes_test_only.txt"] {
        let path = folder.join("slurm-fixtures/docs-excerpts").join(name);
        let got = TestOnly::parse(&fs::read(path).unwrap(), &now());
        assert!(
            matches!(got.answer, Answer::Starts(e) if e.partition.is_some()),
            "{name}"
        );
    }
}

#[test]
fn recorded_submissions_are_understood() {
    let Some(captures) = captures("s") else {
        return;
    };
    let of = |name: &str| {
        let capture = captures
            .iter()
            .find(|capture| capture.name == name)
            .unwrap();
        Submitted::parse(capture.stdout.as_bytes(), capture.stderr.as_bytes()).reply
    };
    let accepted = [
        ("sbatch-submit", 59),
        ("sbatch-submit-parsable", 60),
        ("sbatch-slurmdbd-down", 5),
        ("sbatch-wait-failing", 61),
        ("submit-81-partition-down", 50),
    ];
    for (name, id) in accepted {
        let reply = of(name);
        assert!(
            matches!(reply, SubmittedReply::Accepted { job, .. } if job.0 == id),
            "{name}: {reply:?}"
        );
    }
    let refused = [
        ("sbatch-submit-bad-partition", RefusalKind::UnknownPartition),
        ("sbatch-submit-over-walltime", RefusalKind::TimeLimit),
        ("submit-64-over-qos-MaxSubmitJobsPU", RefusalKind::JobLimit),
    ];
    for (name, kind) in refused {
        assert!(
            matches!(of(name), SubmittedReply::Refused(refusal) if refusal.kind == kind),
            "{name}"
        );
    }
}

#[test]
fn recorded_accounting_is_understood() {
    let Some(whole) = one("sacct-P") else { return };
    let got = Sacct::parse(whole.stdout.as_bytes(), None, &whole.now);
    assert_eq!(got.skipped, []);
    assert_eq!(got.rows.len(), whole.stdout.lines().count() - 1);
    for row in &got.rows {
        assert!(row.state.value().is_some() && row.elapsed.value().is_some());
    }
    let listed = |name: &str, fields: &str| {
        let capture = one(name).unwrap();
        let fields: FieldList = fields.parse().unwrap();
        Sacct::parse(capture.stdout.as_bytes(), Some(&fields), &capture.now)
    };
    let pending = listed(
        "sacct-cancelled-while-pending",
        "JobID,State,Start,End,Elapsed,ExitCode,NodeList",
    );
    assert_eq!(pending.rows[0].start, Field::Word(Word::None));
    let running = listed(
        "sacct-running-pending",
        "JobID,JobName,State,ExitCode,Submit,Start,End,Elapsed,Partition,NodeList,Reason,Reserved",
    );
    assert_eq!((running.rows.len(), running.skipped.len()), (9, 0));
    assert_eq!(running.rows[8].planned, Field::Value(Elapsed(1)));
    let nothing = one("sacct-no-such-job").unwrap();
    assert_eq!(
        Sacct::parse(nothing.stdout.as_bytes(), None, &now()).skipped,
        []
    );
    for name in ["sacct-bad-field", "sacct-slurmdbd-down"] {
        let failed = one(name).unwrap();
        let fields: FieldList = "JobID".parse().unwrap();
        let got = Sacct::parse(failed.stderr.as_bytes(), Some(&fields), &now());
        assert!(
            got.skipped
                .iter()
                .all(|piece| piece.why == Why::CommandError)
        );
        assert!(got.rows.is_empty() && !got.skipped.is_empty(), "{name}");
    }
}

#[test]
fn recorded_queues_are_understood() {
    let listed = |name: &str, fields: &str| {
        let capture = one(name)?;
        let fields: FieldList = fields.parse().unwrap();
        let got = Squeue::parse(capture.stdout.as_bytes(), Some(&fields), &capture.now);
        assert_eq!(got.skipped, [], "{name}");
        assert_eq!(got.rows.len(), capture.stdout.lines().count(), "{name}");
        Some(got)
    };
    let format = "%i|%T|%M|%l|%S|%e|%P|%D|%R|%r|%j|%u|%V|%b";
    let Some(got) = listed("squeue-percent", format) else {
        return;
    };
    assert!(got.rows.iter().all(|row| row.walltime.value().is_some()));
    listed("squeue-held", "%i|%T|%r|%S");
    listed("squeue-start-pending-parsable", "%i|%S|%T|%r|%P|%D|%Y");
    listed(
        "squeue-O",
        "JobID:|,State:|,StartTime:|,EndTime:|,tres-alloc:|,Reason:|,NodeList:",
    );
    for name in ["squeue-controller-down", "squeue-controller-hangs"] {
        let failed = one(name).unwrap();
        let got = Squeue::parse(failed.stderr.as_bytes(), Some(&squeue_fields()), &now());
        assert_eq!(got.skipped[0].why, Why::CommandError, "{name}");
    }
    let padded = one("squeue-default").unwrap();
    let got = Squeue::parse(padded.stdout.as_bytes(), None, &now());
    assert_eq!((got.rows.len(), &got.skipped[0].why), (0, &Why::Padded));
}

#[test]
fn recorded_partitions_reservations_and_configurations_are_understood() {
    let Some(folder) = shared() else { return };
    let fixture = |name: &str| fs::read(folder.join("slurm-fixtures").join(name)).unwrap();
    let stdout = |name: &str| one(name).unwrap().stdout;
    let one_line = Partitions::parse(stdout("scontrol-show-partition-oneliner").as_bytes());
    let names: Vec<_> = one_line
        .partitions
        .iter()
        .map(|p| p.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "debug",
            "small",
            "standard",
            "dev-g",
            "small-g",
            "standard-g"
        ]
    );
    let many = Partitions::parse(stdout("scontrol-show-partition").as_bytes());
    assert_eq!(many.partitions[0].max_time, one_line.partitions[5].max_time);
    for name in [
        "gcm-meta/sample-scontrol-output.txt",
        "gcm-meta/sample-scontrol-output-large.txt",
    ] {
        let bytes = fixture(name);
        let got = Partitions::parse(&bytes);
        let expected = bytes.split(|&b| b == b'\n').filter(|line| !line.is_empty());
        assert_eq!(got.partitions.len(), expected.count(), "{name}");
        let known = |p: &hansa_slurm::parse::Partition| {
            p.max_time.value().is_some()
                && p.total_nodes.value().copied() == p.nodes.value().and_then(|list| list.count)
        };
        let odd: Vec<_> = got
            .partitions
            .iter()
            .filter(|p| !known(p))
            .map(|p| &p.name)
            .collect();
        assert!(odd.is_empty(), "{name}: {odd:?}");
    }
    let maintenance = Reservations::parse(stdout("scontrol-show-reservation").as_bytes(), &now());
    assert!(maintenance.reservations[0].is_maintenance());
    let course = fixture("docs-excerpts/lumi_scontrol_reservation_2026.txt");
    let course = Reservations::parse(&course, &now()).reservations;
    assert_eq!(course.len(), 2);
    for reservation in &course {
        let listed = reservation.nodes.value().unwrap().count;
        assert_eq!(listed, reservation.node_count.value().copied());
    }
    let config = Config::parse(stdout("scontrol-show-config").as_bytes());
    assert_eq!(
        (config.cluster(), config.seconds("KillWait")),
        (Some("lumi"), Some(3))
    );
    assert!(config.version().is_some());
    let other = Config::parse(&fixture("gcm-meta/sample-scontrol-show-config-output.txt"));
    assert_eq!(other.get("EnforcePartLimits"), Some("ANY"));
}

/// What a fixture's rows should be, by the number of rows and of skipped pieces.
fn rows(folder: &Path, name: &str, rows: usize, skipped: usize) -> Sacct {
    let bytes = fs::read(folder.join("slurm-fixtures").join(name)).unwrap();
    let got = Sacct::parse(&bytes, None, &now());
    let brief = |pieces: &[Skipped]| -> Vec<_> {
        let pieces = pieces.iter();
        pieces
            .map(|piece| (piece.line, piece.why.to_string()))
            .collect()
    };
    let found = (got.rows.len(), got.skipped.len());
    assert_eq!(found, (rows, skipped), "{name}: {:?}", brief(&got.skipped));
    got
}

#[test]
fn broken_accounting_of_other_sites_is_understood() {
    let Some(folder) = shared() else { return };
    rows(&folder, "gcm-meta/sample-sacct-fake-line-break.txt", 4, 0);
    rows(&folder, "gcm-meta/sample-sacct-one-multiline.txt", 4, 0);
    rows(
        &folder,
        "gcm-meta/sample-sacct-multiple-multiline.txt",
        6,
        0,
    );
    rows(&folder, "gcm-meta/sample-sacct-output.txt", 68, 0);
    rows(
        &folder,
        "gcm-meta/sample-sacct-output-with-invalid-lines.txt",
        0,
        1,
    );
    rows(
        &folder,
        "gcm-meta/sample-sacct-output-midnight-edge-case.txt",
        1186,
        0,
    );
    let midnight = rows(
        &folder,
        "gcm-meta/sample-sacct-output-midnight-edge-case-small.txt",
        11,
        0,
    );
    let day = |end: &Field<UnixTime>| end.value().unwrap().0;
    assert_eq!(day(&midnight.rows[3].end) - day(&midnight.rows[0].end), 44);
    let utf8 = rows(
        &folder,
        "gcm-meta/sample-sacct-output-invalid-utf8.txt",
        11,
        0,
    );
    assert!(
        utf8.rows
            .iter()
            .any(|row| row.name.value().is_some_and(|n| n.contains('\u{fffd}')))
    );
    rows(&folder, "gcm-meta/sample-sacct-running-output.txt", 10, 0);
    rows(&folder, "aalto-slurm2sql/test-data1.csv", 5, 0);
}

#[test]
fn accounting_and_queues_without_header_lines_are_understood() {
    let Some(folder) = shared() else { return };
    let fields: FieldList = "JobID,JobIDRaw,User,Account,State,Start,End,AveCPU,AveDiskRead,\
        AveDiskWrite,AveRSS,AveVMSize,ElapsedRaw,ExitCode,Layout,MaxRSS,MaxVMSize,MinCPU,ReqCPUS,\
        ReqMem,ReqNodes,Reservation,Submit,Suspended,SystemCPU,TimelimitRaw,UserCPU,NodeList,\
        Partition,AllocTRES,Priority,JobName"
        .parse()
        .unwrap();
    for (name, count) in [("sacct_output.txt", 301), ("src-sacct-output.txt", 96)] {
        let bytes = fs::read(folder.join("slurm-fixtures/sonar-fox").join(name)).unwrap();
        let got = Sacct::parse(&bytes, Some(&fields), &now());
        assert_eq!(
            (got.rows.len(), &got.skipped[..]),
            (count, &[][..]),
            "{name}"
        );
        for row in got.allocations() {
            assert!(row.walltime.value().is_some(), "{name}: line {}", row.line);
        }
    }
    let fields: FieldList =
        "gres,mincpus,jobid,jobidraw,name,timelimit,minmemory,command,priority,\
        state,user,cpus,nodes,timeleft,time,nodelist,dependency,feature,starttime,submittime,\
        eligible,accrue,pending,comment,partition,account,qos,reason,tres,a,b,c,d,e,f"
            .parse()
            .unwrap();
    let fields = fields.with_delimiter("|#").unwrap();
    let path = folder.join("slurm-fixtures/gcm-meta/sample-squeue-output.txt");
    let got = Squeue::parse(&fs::read(path).unwrap(), Some(&fields), &now());
    assert_eq!((got.rows.len(), &got.skipped[..]), (5, &[][..]));
    let waiting = got
        .rows
        .iter()
        .filter(|row| row.state == Field::Value(JobState::Pending));
    let reasons: Vec<_> = waiting
        .map(|row| row.reason.value().unwrap().as_str())
        .collect();
    assert_eq!(reasons, ["DependencyNeverSatisfied", "JobArrayTaskLimit"]);
}

#[test]
fn a_months_accounting_is_read_without_loss() {
    let Some(folder) = shared() else { return };
    let packed = fs::read(folder.join("data/traces/sacct-pozidriv.log.gz")).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_end(&mut bytes)
        .unwrap();
    let fields: FieldList = "JobID,JobIDRaw,Cluster,Partition,QOS,Account,Group,GID,User,UID,\
        Submit,Eligible,Start,End,Elapsed,ExitCode,State,NNodes,NCPUS,ReqCPUS,ReqMem,ReqTRES,\
        AllocTRES,Timelimit,NodeList,JobName"
        .parse()
        .unwrap();
    let now = Now {
        at: now().at,
        zone: Zone::UTC,
    };
    let got = Sacct::parse(&bytes, Some(&fields), &now);
    assert_eq!((got.rows.len(), got.skipped.len()), (11_704, 0));
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for row in &got.rows {
        let state = match row.state.value().unwrap() {
            JobState::Cancelled { by: Some(_) } => "cancelled by somebody",
            JobState::Completed => "completed",
            JobState::Failed => "failed",
            JobState::Preempted => "preempted",
            JobState::Timeout => "timeout",
            other => panic!("{other:?}"),
        };
        *states.entry(state).or_default() += 1;
        let (start, end) = (row.start.value().unwrap(), row.end.value().unwrap());
        let elapsed = row.elapsed.value().unwrap();
        assert_eq!(
            u64::try_from(end.0 - start.0).unwrap(),
            elapsed.0,
            "line {}",
            row.line
        );
        assert!(row.walltime.value().is_some() && row.alloc_tres.value().is_some());
    }
    let expected = [
        ("cancelled by somebody", 468),
        ("completed", 10_134),
        ("failed", 1007),
        ("preempted", 86),
        ("timeout", 9),
    ];
    assert_eq!(states.into_iter().collect::<Vec<_>>(), expected);
}
