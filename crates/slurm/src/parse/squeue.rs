//! Rows of `squeue`: the jobs in the queue, delimited by `|`.

use super::field::{Field, Limit};
use super::hostlist::NodeList;
use super::job::JobRef;
use super::state::JobState;
use super::table::{Cells, Column, Dialect, FieldList, Kind, Table};
use super::text::{self, Skipped};
use super::time::{Elapsed, Now, UnixTime, Walltime, read_duration, read_point};
use super::tres::{Cpus, Nodes};

/// What Hansa asks `squeue -h -o` for; texts that may hold anything come last.
pub const SQUEUE_FORMAT: &str = "%i|%T|%r|%S|%l|%L|%P|%j|%k";
/// The same as a list of fields, for [`FieldList`].
pub const SQUEUE_FIELDS: &str = "%i,%T,%r,%S,%l,%L,%P,%j,%k";

/// What `squeue` printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Squeue {
    /// The rows, in the order printed.
    pub rows: Vec<SqueueRow>,
    /// Lines that are no rows, and cells that are kept as text only.
    pub skipped: Vec<Skipped>,
}

/// One job in the queue. Columns that were not printed are [`Field::Absent`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SqueueRow {
    /// Its first line, counted from 1.
    pub line: usize,
    /// `%i`, or else `%A`.
    pub job: Field<JobRef>,
    /// `%T`, or else `%t`.
    pub state: Field<JobState>,
    /// `%r`: why it waits.
    pub reason: Field<String>,
    /// `%S`: when it started or is expected to; `N/A` where nothing is expected.
    pub start: Field<UnixTime>,
    /// `%e`: when it ends or is expected to.
    pub end: Field<UnixTime>,
    /// `%V`: when it was submitted.
    pub submit: Field<UnixTime>,
    /// `%l`: its walltime.
    pub walltime: Field<Limit<Walltime>>,
    /// `%L`: what is left of it.
    pub left: Field<Limit<Walltime>>,
    /// `%M`: what it has used of it.
    pub used: Field<Elapsed>,
    /// `%P`: its partition, or all that it asked for.
    pub partition: Field<String>,
    /// `%j`.
    pub name: Field<String>,
    /// `%k`.
    pub comment: Field<String>,
    /// `%u`.
    pub user: Field<String>,
    /// `%a`.
    pub account: Field<String>,
    /// `%q`.
    pub qos: Field<String>,
    /// `%D`.
    pub nodes: Field<Nodes>,
    /// `%C`.
    pub cpus: Field<Cpus>,
    /// `%N`.
    pub node_list: Field<NodeList>,
    /// Other columns with something in them, as printed.
    pub others: Vec<(String, String)>,
}

const fn column(id: &'static str, names: &'static [&'static str], kind: Kind) -> Column {
    Column { id, names, kind }
}

const COLUMNS: &[Column] = &[
    column("job", &["%i", "jobid", "jobarrayid"], Kind::Job),
    column("job_raw", &["%A", "jobidraw"], Kind::Job),
    column("state", &["%T", "state"], Kind::State),
    column("state_short", &["%t", "st", "statecompact"], Kind::State),
    column("reason", &["%r", "reason"], Kind::Text),
    column("start", &["%S", "starttime"], Kind::Time),
    column("end", &["%e", "endtime"], Kind::Time),
    column("submit", &["%V", "submittime"], Kind::Time),
    column("walltime", &["%l", "timelimit"], Kind::Limit),
    column("left", &["%L", "timeleft"], Kind::Limit),
    column("used", &["%M", "time", "timeused"], Kind::Duration),
    column("partition", &["%P", "partition"], Kind::Name),
    column("name", &["%j", "name"], Kind::Text),
    column("comment", &["%k", "comment"], Kind::Text),
    column("user", &["%u", "user", "username"], Kind::Name),
    column("account", &["%a", "account"], Kind::Name),
    column("qos", &["%q", "qos"], Kind::Name),
    column("nodes", &["%D", "nodes", "numnodes"], Kind::Count),
    column("cpus", &["%C", "cpus", "numcpus"], Kind::Count),
    column("node_list", &["%N", "nodelist"], Kind::Nodes),
];

impl Squeue {
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
            .map(|row| SqueueRow::read(row.line, Cells::new(&columns, row, &mut skipped), now))
            .collect();
        skipped.sort_by_key(|piece| piece.line);
        Self { rows, skipped }
    }
}

impl SqueueRow {
    fn read(line: usize, mut cells: Cells<'_>, now: &Now) -> Self {
        let time = |text: &str| read_point(text, now);
        let limit = |text: &str| Limit::read(text, |text| read_duration(text).map(Walltime));
        let name = |text: &str| Some(text.to_owned());
        Self {
            line,
            job: cells
                .get("job", JobRef::read)
                .or_else(|| cells.get("job_raw", JobRef::read)),
            state: cells
                .get("state", JobState::read)
                .or_else(|| cells.get("state_short", JobState::read)),
            reason: cells.text("reason"),
            start: cells.get("start", time),
            end: cells.get("end", time),
            submit: cells.get("submit", time),
            walltime: cells.get("walltime", limit),
            left: cells.get("left", limit),
            used: cells.get("used", |text| read_duration(text).map(Elapsed)),
            partition: cells.get("partition", name),
            name: cells.text("name"),
            comment: cells.text("comment"),
            user: cells.get("user", name),
            account: cells.get("account", name),
            qos: cells.get("qos", name),
            nodes: cells.get("nodes", Nodes::read),
            cpus: cells.get("cpus", Cpus::read),
            node_list: cells.get("node_list", |text| Some(NodeList::new(text, true))),
            others: cells.others(),
        }
    }
}
