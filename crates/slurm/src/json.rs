//! What was understood of an output, as JSON for a person who looks into a site's odd answer.
//!
//! A mirror: the parsers' types are spelt out here, so that renaming one of their fields cannot
//! change the format unnoticed. In cells, `null` is an empty one, `{"none": "Unknown"}` one of
//! Slurm's words for "no value", `{"odd": "…"}` one that is kept as text; what was not printed is
//! missing. Times are in UTC, durations in seconds. Nothing is read back.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value, json};

use crate::parse::{
    Answer, Config, Estimate, ExitCode, Field, FieldList, Lasting, Limit, NodeList, Now, Partition,
    Partitions, Precision, Refusal, Reservation, Reservations, Sacct, SacctRow, Skipped, Squeue,
    SqueueRow, Start, Submitted, SubmittedReply, TestOnly, Tres, Walltime,
};

/// Which command's output it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `sbatch --test-only`.
    TestOnly,
    /// `sacct -P`.
    Sacct,
    /// `squeue -o`.
    Squeue,
    /// `sbatch --parsable`, both streams in one.
    Submit,
    /// `scontrol show partition`.
    Partition,
    /// `scontrol show reservation`.
    Reservation,
    /// `scontrol show config`.
    Config,
}

impl Kind {
    /// Every kind.
    pub const ALL: &[Self] = &[
        Self::TestOnly,
        Self::Sacct,
        Self::Squeue,
        Self::Submit,
        Self::Partition,
        Self::Reservation,
        Self::Config,
    ];

    /// The word for it on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TestOnly => "test-only",
            Self::Sacct => "sacct",
            Self::Squeue => "squeue",
            Self::Submit => "submit",
            Self::Partition => "partition",
            Self::Reservation => "reservation",
            Self::Config => "config",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Not the name of an output that can be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no output that can be parsed: known are test-only, sacct, squeue, submit, partition, \
     reservation and config"
)]
pub struct UnknownKind(pub String);

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let known = Self::ALL.iter().copied();
        known
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownKind(text.to_owned()))
    }
}

/// Parses an output and says as JSON what was understood. `fields` names the columns of `sacct` and
/// `squeue` output without a header line; others need none.
#[must_use]
pub fn parse_to_json(kind: Kind, bytes: &[u8], now: &Now, fields: Option<&FieldList>) -> Value {
    let mut out = Map::new();
    out.insert("kind".into(), kind.as_str().into());
    out.insert("now".into(), now.at.to_string().into());
    out.insert("zone".into(), now.zone.to_string().into());
    let skipped = match kind {
        Kind::TestOnly => test_only(TestOnly::parse(bytes, now), &mut out),
        Kind::Sacct => {
            let sacct = Sacct::parse(bytes, fields, now);
            let rows: Vec<Value> = sacct.rows.iter().map(sacct_row).collect();
            out.insert("rows".into(), rows.into());
            sacct.skipped
        }
        Kind::Squeue => {
            let squeue = Squeue::parse(bytes, fields, now);
            let rows: Vec<Value> = squeue.rows.iter().map(squeue_row).collect();
            out.insert("rows".into(), rows.into());
            squeue.skipped
        }
        Kind::Submit => submit(Submitted::parse(bytes, &[]), &mut out),
        Kind::Partition => {
            let all = Partitions::parse(bytes);
            let rows: Vec<Value> = all.partitions.iter().map(partition).collect();
            out.insert("partitions".into(), rows.into());
            all.skipped
        }
        Kind::Reservation => {
            let all = Reservations::parse(bytes, now);
            let rows: Vec<Value> = all.reservations.iter().map(reservation).collect();
            out.insert("reservations".into(), rows.into());
            all.skipped
        }
        Kind::Config => config(Config::parse(bytes), &mut out),
    };
    let skipped: Vec<Value> = skipped.iter().map(skip).collect();
    out.insert("skipped".into(), skipped.into());
    Value::Object(out)
}

fn skip(skipped: &Skipped) -> Value {
    json!({ "line": skipped.line, "text": skipped.text, "why": skipped.why.to_string() })
}

fn test_only(got: TestOnly, out: &mut Map<String, Value>) -> Vec<Skipped> {
    let answer = match &got.answer {
        Answer::Starts(estimate) => {
            insert_estimate(estimate, out);
            "starts"
        }
        Answer::Refused(why) => {
            out.insert("refusal".into(), refusal(why));
            "refused"
        }
        Answer::Unclear => "unclear",
        Answer::Silent => "silent",
    };
    out.insert("answer".into(), answer.into());
    if !got.preempts.is_empty() {
        let jobs: Vec<u32> = got.preempts.iter().map(|job| job.0).collect();
        out.insert("preempts".into(), jobs.into());
    }
    got.skipped
}

fn insert_estimate(estimate: &Estimate, out: &mut Map<String, Value>) {
    let start = match &estimate.start {
        Start::At { at, precision } => json!({
            "at": at.to_string(),
            "unix_s": at.0,
            "precision": match precision {
                Precision::Second => "second",
                Precision::Minute => "minute",
                Precision::Day => "day",
            },
        }),
        Start::Unknown => json!({ "none": "Unknown" }),
        Start::Odd(text) => json!({ "odd": text }),
    };
    out.insert("line".into(), estimate.line.into());
    out.insert("job".into(), estimate.job.0.into());
    out.insert("start".into(), start);
    let mut optional = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            out.insert(key.into(), value);
        }
    };
    optional("cluster", estimate.cluster.clone().map(Value::from));
    optional("processors", estimate.processors.map(|n| n.0.into()));
    optional("nodes", estimate.nodes.as_ref().map(node_list));
    optional("partition", estimate.partition.clone().map(Value::from));
}

fn refusal(refusal: &Refusal) -> Value {
    json!({
        "line": refusal.line,
        "kind": refusal.kind.as_str(),
        "lasting": match refusal.lasting() {
            Lasting::Provisional => "provisional",
            Lasting::Permanent => "permanent",
        },
        "text": refusal.text,
        "details": refusal.details,
    })
}

fn submit(got: Submitted, out: &mut Map<String, Value>) -> Vec<Skipped> {
    let reply = match &got.reply {
        SubmittedReply::Accepted { job, cluster } => {
            out.insert("job".into(), job.0.into());
            if let Some(cluster) = cluster {
                out.insert("cluster".into(), cluster.clone().into());
            }
            "accepted"
        }
        SubmittedReply::Refused(why) => {
            out.insert("refusal".into(), refusal(why));
            "refused"
        }
        SubmittedReply::Unclear { error } => {
            if let Some(error) = error {
                out.insert("error".into(), refusal(error));
            }
            "unclear"
        }
    };
    out.insert("reply".into(), reply.into());
    got.skipped
}

fn config(got: Config, out: &mut Map<String, Value>) -> Vec<Skipped> {
    let values = got.pairs().map(|(key, value)| (key.into(), value.into()));
    out.insert("values".into(), Value::Object(values.collect()));
    let version = got.version();
    let version = version.map(|v| json!({ "major": v.major, "minor": v.minor, "micro": v.micro }));
    out.insert("version".into(), version.unwrap_or_default());
    got.skipped
}

/// An object of cells; what was not printed is left out.
#[derive(Default)]
struct Cells(Map<String, Value>);

impl Cells {
    fn put<T>(mut self, key: &str, field: &Field<T>, show: impl FnOnce(&T) -> Value) -> Self {
        let value = match field {
            Field::Absent => return self,
            Field::Empty => Value::Null,
            Field::Value(value) => show(value),
            Field::Word(word) => json!({ "none": word.as_str() }),
            Field::Odd(text) => json!({ "odd": text }),
        };
        self.0.insert(key.to_owned(), value);
        self
    }

    fn shown<T: fmt::Display>(self, key: &str, field: &Field<T>) -> Self {
        self.put(key, field, |value| value.to_string().into())
    }

    fn others(mut self, others: &[(String, String)]) -> Value {
        if !others.is_empty() {
            let pairs = others.iter();
            let others = pairs.map(|(name, cell)| (name.clone(), cell.clone().into()));
            self.0
                .insert("others".into(), Value::Object(others.collect()));
        }
        self.0.into()
    }
}

fn limit<T: Copy>(limit: Limit<T>, show: impl FnOnce(T) -> Value) -> Value {
    match limit {
        Limit::Of(value) => show(value),
        Limit::Unlimited => "unlimited".into(),
        Limit::Partition => "partition".into(),
    }
}

fn walltime(field: &Limit<Walltime>) -> Value {
    limit(*field, |walltime| walltime.0.into())
}

fn node_list(nodes: &NodeList) -> Value {
    json!({ "text": nodes.text, "count": nodes.count.map(|count| count.0) })
}

fn tres(tres: &Tres) -> Value {
    let pairs = tres.pairs();
    let pairs = pairs.map(|(name, amount)| (name.to_owned(), amount.into()));
    Value::Object(pairs.collect())
}

fn exit_code(exit: &ExitCode) -> Value {
    json!({ "code": exit.code, "signal": exit.signal })
}

fn line(line: usize) -> Cells {
    Cells::default().put("line", &Field::Value(line), |&line| line.into())
}

fn sacct_row(row: &SacctRow) -> Value {
    line(row.line)
        .shown("job", &row.job)
        .shown("job_raw", &row.job_raw)
        .shown("name", &row.name)
        .shown("cluster", &row.cluster)
        .shown("user", &row.user)
        .shown("account", &row.account)
        .shown("partition", &row.partition)
        .shown("qos", &row.qos)
        .shown("state", &row.state)
        .put("exit_code", &row.exit_code, exit_code)
        .shown("submit", &row.submit)
        .shown("eligible", &row.eligible)
        .shown("start", &row.start)
        .shown("end", &row.end)
        .put("elapsed_s", &row.elapsed, |elapsed| elapsed.0.into())
        .put("planned_s", &row.planned, |planned| planned.0.into())
        .put("walltime_s", &row.walltime, walltime)
        .put("nodes", &row.nodes, |nodes| nodes.0.into())
        .put("cpus", &row.cpus, |cpus| cpus.0.into())
        .put("alloc_tres", &row.alloc_tres, tres)
        .put("req_tres", &row.req_tres, tres)
        .put("node_list", &row.node_list, node_list)
        .shown("reason", &row.reason)
        .shown("comment", &row.comment)
        .others(&row.others)
}

fn squeue_row(row: &SqueueRow) -> Value {
    line(row.line)
        .shown("job", &row.job)
        .shown("state", &row.state)
        .shown("reason", &row.reason)
        .shown("start", &row.start)
        .shown("end", &row.end)
        .shown("submit", &row.submit)
        .put("walltime_s", &row.walltime, walltime)
        .put("left_s", &row.left, walltime)
        .put("used_s", &row.used, |used| used.0.into())
        .shown("partition", &row.partition)
        .shown("name", &row.name)
        .shown("comment", &row.comment)
        .shown("user", &row.user)
        .shown("account", &row.account)
        .shown("qos", &row.qos)
        .put("nodes", &row.nodes, |nodes| nodes.0.into())
        .put("cpus", &row.cpus, |cpus| cpus.0.into())
        .put("node_list", &row.node_list, node_list)
        .others(&row.others)
}

fn partition(row: &Partition) -> Value {
    let list = |list: &Vec<String>| Value::from(list.clone());
    let lists = |list: &Vec<String>| Field::Value(list.clone());
    line(row.line)
        .shown("name", &Field::Value(&row.name))
        .put("state", &row.state, |state| state.as_str().into())
        .put("default", &row.is_default, |&is_default| is_default.into())
        .put("max_time_s", &row.max_time, walltime)
        .put("default_time_s", &row.default_time, walltime)
        .put("max_nodes", &row.max_nodes, |max| {
            limit(*max, |n| n.0.into())
        })
        .put("min_nodes", &row.min_nodes, |nodes| nodes.0.into())
        .put("total_nodes", &row.total_nodes, |nodes| nodes.0.into())
        .put("total_cpus", &row.total_cpus, |cpus| cpus.0.into())
        .put("tres", &row.tres, tres)
        .put("nodes", &row.nodes, node_list)
        .shown("qos", &row.qos)
        .put("allow_accounts", &lists(&row.allow_accounts), list)
        .put("allow_groups", &lists(&row.allow_groups), list)
        .put("allow_qos", &lists(&row.allow_qos), list)
        .shown("over_subscribe", &row.over_subscribe)
        .shown("preempt_mode", &row.preempt_mode)
        .others(&[])
}

fn reservation(row: &Reservation) -> Value {
    let list = |list: &Vec<String>| Value::from(list.clone());
    let lists = |list: &Vec<String>| Field::Value(list.clone());
    line(row.line)
        .shown("name", &Field::Value(&row.name))
        .shown("start", &row.start)
        .shown("end", &row.end)
        .put("nodes", &row.nodes, node_list)
        .put("node_count", &row.node_count, |nodes| nodes.0.into())
        .shown("partition", &row.partition)
        .put("flags", &lists(&row.flags), list)
        .put("users", &lists(&row.users), list)
        .put("accounts", &lists(&row.accounts), list)
        .put("tres", &row.tres, tres)
        .shown("state", &row.state)
        .others(&[])
}
