//! `scontrol show partition`: what a partition allows, and whether it takes jobs.

use super::field::{Field, Limit};
use super::hostlist::NodeList;
use super::records::{self, Record};
use super::text::{self, Skipped};
use super::time::{Walltime, read_duration};
use super::tres::{Cpus, Nodes, Tres};

/// What `scontrol show partition` printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitions {
    /// The partitions, in the order printed.
    pub partitions: Vec<Partition>,
    /// Everything else.
    pub skipped: Vec<Skipped>,
}

/// A partition. Keys that were not printed are [`Field::Absent`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its first line, counted from 1.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// Whether it takes and starts jobs.
    pub state: Field<PartitionState>,
    /// `Default`.
    pub is_default: Field<bool>,
    /// The longest walltime.
    pub max_time: Field<Limit<Walltime>>,
    /// The walltime of jobs that ask for none.
    pub default_time: Field<Limit<Walltime>>,
    /// The most nodes of a job.
    pub max_nodes: Field<Limit<Nodes>>,
    /// The fewest nodes of a job.
    pub min_nodes: Field<Nodes>,
    /// All its nodes.
    pub total_nodes: Field<Nodes>,
    /// All its processors.
    pub total_cpus: Field<Cpus>,
    /// All its resources.
    pub tres: Field<Tres>,
    /// The names of its nodes.
    pub nodes: Field<NodeList>,
    /// The QOS whose limits hold for it.
    pub qos: Field<String>,
    /// `ALL`, or who may use it.
    pub allow_accounts: Vec<String>,
    /// `ALL`, or who may use it.
    pub allow_groups: Vec<String>,
    /// `ALL`, or what may be asked for in it.
    pub allow_qos: Vec<String>,
    /// `EXCLUSIVE` where jobs get whole nodes.
    pub over_subscribe: Field<String>,
    /// What happens to preempted jobs.
    pub preempt_mode: Field<String>,
    /// All keys and values as printed.
    pub pairs: Vec<(String, String)>,
}

/// Whether a partition takes and starts jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionState {
    /// It does both.
    Up,
    /// It takes jobs and starts none; `sbatch --test-only` does not tell.
    Down,
    /// It takes no new jobs; those in it start.
    Drain,
    /// It does neither.
    Inactive,
    /// A state that nobody listed, as printed.
    Other(String),
}

impl Partitions {
    /// Reads `scontrol show partition`, with or without `-o`.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let (records, mut skipped) = records::read(&text::lines(bytes), "PartitionName");
        let partitions = records
            .into_iter()
            .filter_map(|record| Partition::read(record, &mut skipped))
            .collect();
        skipped.sort_by_key(|piece| piece.line);
        Self {
            partitions,
            skipped,
        }
    }
}

impl Partition {
    fn read(record: Record, skipped: &mut Vec<Skipped>) -> Option<Self> {
        let name = record.text("PartitionName")?.to_owned();
        if name.is_empty() {
            let why = text::Why::NoRecord {
                key: "PartitionName",
            };
            skipped.push(Skipped::new(record.line, "PartitionName=", why));
            return None;
        }
        let limit = |text: &str| Limit::read(text, |text| read_duration(text).map(Walltime));
        let word = |text: &str| Some(text.to_owned());
        Some(Self {
            line: record.line,
            name,
            state: record.get("State", skipped, |text| Some(PartitionState::read(text))),
            is_default: record.get("Default", skipped, yes_or_no),
            max_time: record.get("MaxTime", skipped, limit),
            default_time: record.get("DefaultTime", skipped, limit),
            max_nodes: record.get("MaxNodes", skipped, |text| Limit::read(text, Nodes::read)),
            min_nodes: record.get("MinNodes", skipped, Nodes::read),
            total_nodes: record.get("TotalNodes", skipped, Nodes::read),
            total_cpus: record.get("TotalCPUs", skipped, Cpus::read),
            tres: record.get("TRES", skipped, Tres::read),
            nodes: record.get("Nodes", skipped, |text| Some(NodeList::new(text, true))),
            qos: record.get("QoS", skipped, word),
            allow_accounts: record.list("AllowAccounts"),
            allow_groups: record.list("AllowGroups"),
            allow_qos: record.list("AllowQos"),
            over_subscribe: record.get("OverSubscribe", skipped, word),
            preempt_mode: record.get("PreemptMode", skipped, word),
            pairs: record.pairs,
        })
    }
}

fn yes_or_no(text: &str) -> Option<bool> {
    match text {
        "YES" => Some(true),
        "NO" => Some(false),
        _ => None,
    }
}

impl PartitionState {
    fn read(text: &str) -> Self {
        match text {
            "UP" => Self::Up,
            "DOWN" => Self::Down,
            "DRAIN" => Self::Drain,
            "INACTIVE" | "INACT" => Self::Inactive,
            other => Self::Other(other.to_owned()),
        }
    }

    /// The state as Slurm writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Up => "UP",
            Self::Down => "DOWN",
            Self::Drain => "DRAIN",
            Self::Inactive => "INACTIVE",
            Self::Other(text) => text,
        }
    }
}
