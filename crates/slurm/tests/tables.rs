//! `sacct`, `squeue` and `scontrol`, form by form.
#![allow(clippy::unwrap_used)]

mod common;

use common::{now, squeue_fields};
use hansa_slurm::parse::{
    Config, Cpus, Elapsed, ExitCode, Field, FieldList, Gpus, JobState, Limit, Nodes,
    PartitionState, Partitions, Reservations, Sacct, Skipped, Squeue, Version, Walltime, Why, Word,
};

fn sacct(text: &str) -> Sacct {
    Sacct::parse(text.as_bytes(), None, &now())
}

fn jobs(sacct: &Sacct) -> Vec<String> {
    let jobs = sacct.rows.iter().map(|row| row.job.value().unwrap());
    jobs.map(ToString::to_string).collect()
}

fn whys(skipped: &[Skipped]) -> Vec<(usize, Why)> {
    skipped
        .iter()
        .map(|piece| (piece.line, piece.why.clone()))
        .collect()
}

#[test]
fn a_row_is_read_cell_by_cell() {
    let got = sacct(common::SACCT);
    assert_eq!(got.skipped, []);
    assert_eq!(jobs(&got), ["62", "62.batch", "68_2", "85", "86"]);
    assert_eq!(got.allocations().count(), 4);
    let row = &got.rows[0];
    assert_eq!(row.state, Field::Value(JobState::Timeout));
    assert_eq!(row.exit_code, Field::Value(ExitCode { code: 0, signal: 0 }));
    assert_eq!(
        row.start.value().unwrap().to_string(),
        "2026-11-28T09:00:00Z"
    );
    assert_eq!(row.elapsed, Field::Value(Elapsed(86_417)));
    assert_eq!(row.planned, Field::Value(Elapsed(3600)));
    assert_eq!(row.walltime, Field::Value(Limit::Of(Walltime(86_400))));
    assert_eq!(row.nodes, Field::Value(Nodes(2)));
    assert_eq!(row.cpus, Field::Value(Cpus(256)));
    assert_eq!(row.alloc_tres.value().unwrap().gpus(), Some(Gpus(16)));
    assert_eq!(row.node_list.value().unwrap().count, Some(Nodes(2)));
    assert_eq!((&row.user, &row.qos), (&Field::Absent, &Field::Absent));
    let step = &got.rows[1];
    assert_eq!(
        (&step.partition, &step.walltime),
        (&Field::Empty, &Field::Empty)
    );
}

#[test]
fn words_for_no_value_are_kept_apart() {
    let got = sacct(common::SACCT);
    assert_eq!(got.rows[2].walltime, Field::Value(Limit::Partition));
    let cancelled = &got.rows[3];
    assert_eq!(
        cancelled.state,
        Field::Value(JobState::Cancelled { by: Some(0) })
    );
    assert_eq!(cancelled.start, Field::Word(Word::None));
    assert_eq!(cancelled.walltime, Field::Value(Limit::Unlimited));
    assert_eq!(cancelled.planned, Field::Word(Word::Invalid));
    let new = &got.rows[4];
    assert_eq!(
        new.state,
        Field::Value(JobState::Other("EXPEDITING".into()))
    );
    assert_eq!(new.end, Field::Word(Word::Unknown));
    assert_eq!(new.node_list, Field::Word(Word::None));
}

#[test]
fn texts_over_several_lines_are_put_together() {
    let got = sacct(common::SACCT_MULTILINE);
    assert_eq!(jobs(&got), ["4", "5", "6"]);
    let comment = "first line\nsecond line\n\nlast line".to_owned();
    assert_eq!(got.rows[1].comment, Field::Value(comment));
    assert_eq!(got.rows[1].elapsed, Field::Value(Elapsed(93_784)));
    assert_eq!(got.skipped, []);
}

#[test]
fn a_broken_row_costs_no_other() {
    let text = "JobID|Comment|State|Elapsed\n\
        lpha-0|volta|0\n\
        4|x|COMPLETED|00:01:00\n\
        5|never ends\n\
        6|x|COMPLETED|00:01:00\n\
        JobID|Comment|State|Elapsed\n\
        7|a|b|c|COMPLETED|00:01:00\n\
        x|y|COMPLETED|00:01:00\n\
        8|x|00:01:00|COMPLETED\n\
        sacct: error: slurmdbd is away\n\
        9|x|COMPLETED|soon\n";
    let got = sacct(text);
    assert_eq!(jobs(&got), ["4", "6", "7", "9"]);
    assert_eq!(got.rows[2].comment, Field::Value("a|b|c".to_owned()));
    assert_eq!(got.rows[3].elapsed, Field::Odd("soon".to_owned()));
    let not_a_row = |column: &str, text: &str| Why::NotARow {
        column: column.into(),
        text: text.into(),
    };
    let cells = |found| Why::Cells { found, expected: 4 };
    let expected = [
        (2, cells(3)),
        (4, cells(2)),
        (6, Why::HeaderAgain),
        (8, not_a_row("JobID", "x")),
        (9, not_a_row("State", "00:01:00")),
        (10, Why::CommandError),
        (
            11,
            Why::OddCell {
                column: "Elapsed".into(),
            },
        ),
    ];
    assert_eq!(whys(&got.skipped), expected);
}

#[test]
fn nothing_is_guessed_where_two_texts_could_hold_the_delimiter() {
    let got = sacct("JobID|JobName|Comment|State\n4|a|b|c|COMPLETED\n5|a|b|COMPLETED\n");
    assert_eq!(jobs(&got), ["5"]);
    let ambiguous = Why::Ambiguous {
        found: 5,
        expected: 4,
    };
    assert_eq!(whys(&got.skipped), [(2, ambiguous)]);
}

#[test]
fn a_number_that_may_be_cut_is_no_number() {
    let text = "JobID|State|NNodes\n4|COMPLETED|12";
    let got = sacct(text);
    assert_eq!(got.rows[0].nodes, Field::Odd("12".into()));
    assert_eq!(whys(&got.skipped), [(2, Why::Cut)]);
    let got = sacct("JobID|NNodes|State\n4|12|CANCELLED by 12");
    assert_eq!(got.rows[0].state, Field::Odd("CANCELLED by 12".into()));
    let got = sacct("JobID|State|End\n4|COMPLETED|2026-11-29T00:00:00");
    assert_eq!(
        got.rows[0].end.value().unwrap().to_string(),
        "2026-11-28T22:00:00Z"
    );
    let got = sacct("JobID|State|End\n4|COMPLETED|2026-11-29T00:00:0");
    assert_eq!(got.rows[0].end, Field::Odd("2026-11-29T00:00:0".into()));
}

#[test]
fn columns_come_from_a_list_or_a_header_with_any_delimiter() {
    let fields: FieldList = "JobID%20,State,Start,Elapsed,Timelimit,NNodes"
        .parse()
        .unwrap();
    let got = Sacct::parse(common::SACCT_BARE.as_bytes(), Some(&fields), &now());
    assert_eq!(jobs(&got), ["4", "4.batch"]);
    assert_eq!(
        got.rows[0].walltime,
        Field::Value(Limit::Of(Walltime(3600)))
    );
    let got = sacct("JobID|#State|#NNodes\n4|#FAILED|#2\n");
    assert_eq!(got.rows[0].nodes, Field::Value(Nodes(2)));
    let got = sacct("JobID|State|NNodes|\n4|FAILED|2|\n");
    assert_eq!(got.rows[0].nodes, Field::Value(Nodes(2)));
    let fields = fields.with_delimiter(";;").unwrap();
    let text = b"4;;FAILED;;;;;;60;;2\n4;;FAILED;;;;;;1:00:00;;2\n";
    let got = Sacct::parse(text, Some(&fields), &now());
    assert_eq!(got.rows[0].walltime, Field::Odd("60".into()));
    assert_eq!(
        got.rows[1].walltime,
        Field::Value(Limit::Of(Walltime(3600)))
    );
    for bad in ["", ",", "%", "%ii", "Job ID?", "4"] {
        assert!(bad.parse::<FieldList>().is_err(), "{bad}");
    }
    assert!(fields.with_delimiter("a").is_err());
}

#[test]
fn output_without_names_for_its_columns_is_not_guessed_at() {
    let got = sacct("4|COMPLETED|12\n");
    assert_eq!((got.rows.len(), &got.skipped[0].why), (0, &Why::NoHeader));
    let padded = "JobID           JobName  Partition      State ExitCode \n\
        ------------ ---------- ---------- ---------- -------- \n\
        4                  wrap      small  COMPLETED      0:0 \n";
    let got = sacct(padded);
    assert_eq!((got.rows.len(), &got.skipped[0].why), (0, &Why::Padded));
    assert_eq!(sacct("").skipped, []);
}

#[test]
fn raw_columns_fill_in_for_missing_ones() {
    let got =
        sacct("JobID|State|Elapsed|TimelimitRaw|ReqNodes|Foo\n4|RUNNING|1-00:00:00|90|3|bar\n");
    let row = &got.rows[0];
    assert_eq!(row.elapsed, Field::Value(Elapsed(86_400)));
    assert_eq!(row.walltime, Field::Value(Limit::Of(Walltime(5400))));
    assert_eq!(row.nodes, Field::Value(Nodes(3)));
    assert_eq!(row.others, [("Foo".to_owned(), "bar".to_owned())]);
}

#[test]
fn bytes_that_are_no_text_cost_a_character() {
    let got = Sacct::parse(
        b"JobID|JobName|State\n4|ab\xffort\xc3|FAILED\n",
        None,
        &now(),
    );
    let name = "ab\u{fffd}ort\u{fffd}".to_owned();
    assert_eq!(got.rows[0].name, Field::Value(name));
}

#[test]
fn the_queue_is_read() {
    let got = Squeue::parse(common::SQUEUE.as_bytes(), Some(&squeue_fields()), &now());
    assert_eq!((got.rows.len(), &got.skipped[..]), (4, &[][..]));
    let [first, second, array, running] = &got.rows[..] else {
        panic!()
    };
    assert_eq!(
        first.start.value().unwrap().to_string(),
        "2026-11-29T14:25:00Z"
    );
    assert_eq!(first.walltime, Field::Value(Limit::Of(Walltime(1800))));
    assert_eq!(first.comment, Field::Value("run=1".into()));
    assert_eq!(second.start, Field::Word(Word::NotApplicable));
    assert!(second.reason.value().unwrap().starts_with("Nodes required"));
    assert_eq!(array.left, Field::Value(Limit::Unlimited));
    assert_eq!(running.left, Field::Value(Limit::Of(Walltime(2056))));
    let with_header = "JOBID|ST|TIME|NODELIST(REASON)\n4|PD|0:00|(Priority)\n";
    let got = Squeue::parse(with_header.as_bytes(), None, &now());
    assert_eq!(got.rows[0].state, Field::Value(JobState::Pending));
    assert_eq!(got.rows[0].used, Field::Value(Elapsed(0)));
    let long: FieldList = "JobID:|,State:|,StartTime:".parse().unwrap();
    let got = Squeue::parse(b"4|PENDING|2026-11-29T16:25:00\n", Some(&long), &now());
    assert!(got.rows[0].start.value().is_some());
}

#[test]
fn a_failed_queue_is_no_empty_queue() {
    let text = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n";
    let got = Squeue::parse(text.as_bytes(), Some(&squeue_fields()), &now());
    assert_eq!(
        (got.rows.len(), &got.skipped[0].why),
        (0, &Why::CommandError)
    );
}

#[test]
fn partitions_are_read_in_both_layouts() {
    let got = Partitions::parse(common::PARTITION.as_bytes());
    let [partition] = &got.partitions[..] else {
        panic!()
    };
    assert_eq!(partition.name, "standard-g");
    assert_eq!(partition.state, Field::Value(PartitionState::Up));
    assert_eq!(
        partition.max_time,
        Field::Value(Limit::Of(Walltime(172_800)))
    );
    assert_eq!(partition.max_nodes, Field::Value(Limit::Of(Nodes(1024))));
    assert_eq!(partition.total_nodes, Field::Value(Nodes(8)));
    assert_eq!(partition.tres.value().unwrap().gpus(), Some(Gpus(64)));
    assert_eq!(partition.nodes.value().unwrap().count, Some(Nodes(8)));
    assert_eq!(partition.allow_accounts, ["a", "b"]);
    assert_eq!(got.skipped, []);

    let got = Partitions::parse(common::PARTITION_ONE_LINE.as_bytes());
    let [debug, gpu] = &got.partitions[..] else {
        panic!()
    };
    assert_eq!(debug.state, Field::Value(PartitionState::Down));
    assert_eq!(debug.max_nodes, Field::Value(Limit::Unlimited));
    assert_eq!(debug.default_time, Field::Word(Word::None));
    assert_eq!(debug.is_default, Field::Value(true));
    assert_eq!(
        gpu.state,
        Field::Value(PartitionState::Other("MOVED".into()))
    );
}

#[test]
fn a_partition_that_is_missing_or_cut_is_said_so() {
    let got = Partitions::parse(b"Partition nosuch not found\n");
    assert_eq!(whys(&got.skipped), [(1, Why::NotFound)]);
    let got = Partitions::parse(b"hello\n  MaxNodes=4\nPartitionName=x MaxNodes=10 TotalNodes=10");
    let [partition] = &got.partitions[..] else {
        panic!()
    };
    assert_eq!(partition.max_nodes, Field::Value(Limit::Of(Nodes(10))));
    assert_eq!(partition.total_nodes, Field::Absent);
    let orphan = Why::NoRecord {
        key: "PartitionName",
    };
    assert_eq!(
        whys(&got.skipped),
        [(1, Why::Noise), (2, orphan), (3, Why::Cut)]
    );
}

#[test]
fn reservations_are_read() {
    let got = Reservations::parse(common::RESERVATION.as_bytes(), &now());
    let [maintenance] = &got.reservations[..] else {
        panic!()
    };
    assert!(maintenance.is_maintenance());
    assert_eq!(
        maintenance.start.value().unwrap().to_string(),
        "2026-11-30T06:00:00Z"
    );
    assert_eq!(
        maintenance.end.value().unwrap().to_string(),
        "2026-11-30T16:00:00Z"
    );
    assert_eq!(maintenance.node_count, Field::Value(Nodes(10)));
    assert_eq!(maintenance.partition, Field::Word(Word::Null));
    assert_eq!(maintenance.users, ["root"]);
    let none = Reservations::parse(b"No reservations in the system\n", &now());
    assert_eq!(
        (none.reservations.len(), &none.skipped[0].why),
        (0, &Why::NotFound)
    );
}

#[test]
fn a_configuration_is_read() {
    let config = Config::parse(common::CONFIG.as_bytes());
    assert_eq!(config.cluster(), Some("lumi"));
    let version = Version {
        major: 22,
        minor: 5,
        micro: 8,
    };
    assert_eq!(config.version(), Some(version));
    assert_eq!(Version::read("slurm-wlm 22.05.8"), Some(version));
    assert_eq!(config.seconds("KillWait"), Some(30));
    assert_eq!(config.seconds("EnforcePartLimits"), None);
    assert_eq!(config.list("PrivateData"), ["jobs", "usage"]);
    assert_eq!(config.get("SrunProlog"), None);
    assert_eq!(config.skipped.len(), 2);
}
