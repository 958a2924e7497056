//! Rows of `sacct -P`: what became of jobs.

use super::field::{Field, Limit};
use super::hostlist::NodeList;
use super::job::{ExitCode, JobRef};
use super::state::JobState;
use super::table::{Cells, Column, Dialect, FieldList, Kind, Table};
use super::text::{self, Skipped, digits};
use super::time::{Elapsed, Now, UnixTime, Walltime, read_duration, read_point};
use super::tres::{Cpus, Nodes, Tres};

/// What `sacct` printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sacct {
    /// The rows, in the order printed: allocations and steps.
    pub rows: Vec<SacctRow>,
    /// Lines that are no rows, and cells that are kept as text only.
    pub skipped: Vec<Skipped>,
}

/// One allocation or step. Columns that were not printed are [`Field::Absent`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SacctRow {
    /// Its first line, counted from 1.
    pub line: usize,
    /// `JobID`.
    pub job: Field<JobRef>,
    /// `JobIDRaw`: array tasks by their own number.
    pub job_raw: Field<JobRef>,
    /// `JobName`.
    pub name: Field<String>,
    /// `Cluster`.
    pub cluster: Field<String>,
    /// `User`.
    pub user: Field<String>,
    /// `Account`.
    pub account: Field<String>,
    /// `Partition`; for a job that never started all that it asked for.
    pub partition: Field<String>,
    /// `QOS`.
    pub qos: Field<String>,
    /// `State`.
    pub state: Field<JobState>,
    /// `ExitCode`.
    pub exit_code: Field<ExitCode>,
    /// `Submit`.
    pub submit: Field<UnixTime>,
    /// `Eligible`.
    pub eligible: Field<UnixTime>,
    /// `Start`; `None` for a job cancelled while pending.
    pub start: Field<UnixTime>,
    /// `End`.
    pub end: Field<UnixTime>,
    /// `ElapsedRaw`, or else `Elapsed`.
    pub elapsed: Field<Elapsed>,
    /// `Planned`, before 23.02 `Reserved`: the time in the queue.
    pub planned: Field<Elapsed>,
    /// `Timelimit`, or else `TimelimitRaw`.
    pub walltime: Field<Limit<Walltime>>,
    /// `NNodes`, `AllocNodes`, or else `ReqNodes`.
    pub nodes: Field<Nodes>,
    /// `AllocCPUS`, `NCPUS`, or else `ReqCPUS`.
    pub cpus: Field<Cpus>,
    /// `AllocTRES`.
    pub alloc_tres: Field<Tres>,
    /// `ReqTRES`.
    pub req_tres: Field<Tres>,
    /// `NodeList`.
    pub node_list: Field<NodeList>,
    /// `Reason`.
    pub reason: Field<String>,
    /// `Comment`.
    pub comment: Field<String>,
    /// Other columns with something in them, as printed.
    pub others: Vec<(String, String)>,
}

const fn column(id: &'static str, names: &'static [&'static str], kind: Kind) -> Column {
    Column { id, names, kind }
}

const COLUMNS: &[Column] = &[
    column("job", &["jobid"], Kind::Job),
    column("job_raw", &["jobidraw"], Kind::Job),
    column("name", &["jobname"], Kind::Text),
    column("cluster", &["cluster"], Kind::Name),
    column("user", &["user"], Kind::Name),
    column("account", &["account"], Kind::Name),
    column("partition", &["partition"], Kind::Name),
    column("qos", &["qos"], Kind::Name),
    column("state", &["state"], Kind::State),
    column("exit_code", &["exitcode"], Kind::ExitCode),
    column("submit", &["submit"], Kind::Time),
    column("eligible", &["eligible"], Kind::Time),
    column("start", &["start"], Kind::Time),
    column("end", &["end"], Kind::Time),
    column("elapsed_raw", &["elapsedraw"], Kind::Seconds),
    column("elapsed", &["elapsed"], Kind::Duration),
    column("planned", &["planned", "reserved"], Kind::Duration),
    column("walltime", &["timelimit"], Kind::Limit),
    column("walltime_raw", &["timelimitraw"], Kind::Minutes),
    column("nodes", &["nnodes"], Kind::Count),
    column("alloc_nodes", &["allocnodes"], Kind::Count),
    column("req_nodes", &["reqnodes"], Kind::Count),
    column("alloc_cpus", &["alloccpus"], Kind::Count),
    column("cpus", &["ncpus"], Kind::Count),
    column("req_cpus", &["reqcpus"], Kind::Count),
    column("alloc_tres", &["alloctres"], Kind::Tres),
    column("req_tres", &["reqtres"], Kind::Tres),
    column("node_list", &["nodelist"], Kind::Nodes),
    column("reason", &["reason"], Kind::Text),
    column("comment", &["comment"], Kind::Text),
];

impl Sacct {
    /// Reads rows; the columns are those of the header line or, without one, of `fields`.
    #[must_use]
    pub fn parse(bytes: &[u8], fields: Option<&FieldList>, now: &Now) -> Self {
        let dialect = Dialect {
            columns: COLUMNS,
            now,
        };
        let table = Table::read(&text::lines(bytes), fields, dialect);
        let mut skipped = table.skipped;
        let Some(columns) = table.columns else {
            let rows = Vec::new();
            return Self { rows, skipped };
        };
        let rows = table
            .rows
            .iter()
            .map(|row| SacctRow::read(row.line, Cells::new(&columns, row, &mut skipped), now))
            .collect();
        skipped.sort_by_key(|piece| piece.line);
        Self { rows, skipped }
    }

    /// The rows of whole jobs, without their steps.
    pub fn allocations(&self) -> impl Iterator<Item = &SacctRow> {
        self.rows
            .iter()
            .filter(|row| row.job.value().is_none_or(|job| job.is_allocation()))
    }
}

impl SacctRow {
    fn read(line: usize, mut cells: Cells<'_>, now: &Now) -> Self {
        let time = |text: &str| read_point(text, now);
        let duration = |text: &str| read_duration(text).map(Elapsed);
        let name = |text: &str| Some(text.to_owned());
        let minutes = |text: &str| {
            let minutes: u64 = digits(text)?;
            Some(Walltime(minutes.checked_mul(60)?))
        };
        Self {
            line,
            job: cells.get("job", JobRef::read),
            job_raw: cells.get("job_raw", JobRef::read),
            name: cells.text("name"),
            cluster: cells.get("cluster", name),
            user: cells.get("user", name),
            account: cells.get("account", name),
            partition: cells.get("partition", name),
            qos: cells.get("qos", name),
            state: cells.get("state", JobState::read),
            exit_code: cells.get("exit_code", ExitCode::read),
            submit: cells.get("submit", time),
            eligible: cells.get("eligible", time),
            start: cells.get("start", time),
            end: cells.get("end", time),
            elapsed: cells
                .get("elapsed_raw", |text| digits(text).map(Elapsed))
                .or_else(|| cells.get("elapsed", duration)),
            planned: cells.get("planned", duration),
            walltime: cells
                .get("walltime", |text| {
                    Limit::read(text, |text| read_duration(text).map(Walltime))
                })
                .or_else(|| cells.get("walltime_raw", |text| Limit::read(text, minutes))),
            nodes: cells
                .get("nodes", Nodes::read)
                .or_else(|| cells.get("alloc_nodes", Nodes::read))
                .or_else(|| cells.get("req_nodes", Nodes::read)),
            cpus: cells
                .get("alloc_cpus", Cpus::read)
                .or_else(|| cells.get("cpus", Cpus::read))
                .or_else(|| cells.get("req_cpus", Cpus::read)),
            alloc_tres: cells.get("alloc_tres", Tres::read),
            req_tres: cells.get("req_tres", Tres::read),
            node_list: cells.get("node_list", |text| Some(NodeList::new(text, true))),
            reason: cells.text("reason"),
            comment: cells.text("comment"),
            others: cells.others(),
        }
    }
}
