//! What `hansa queue` and `hansa logs` show: what is intended, reported and observed, side by side.

use serde::{Deserialize, Serialize};

/// Every queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueView {
    /// The run's name.
    pub run: String,
    /// When this was true, in seconds since 1970.
    pub at_s: u64,
    /// By name.
    pub sites: Vec<SiteView>,
}

/// One site's queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteView {
    /// Its name.
    pub site: String,
    /// Who runs the site process, or ran it last.
    pub process: Option<ProcessView>,
    /// Replicas that shall have a job.
    pub wanted_jobs: u32,
    /// The shape of their jobs.
    pub preferred: Option<String>,
    /// How they outlive their walltime: `none`, `begin` or `singleton`.
    pub chain: Option<String>,
    /// How the plan in force uses the site, where a plan decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Submissions are paused, and why.
    pub paused: Option<String>,
    /// Why nothing more would be submitted now.
    pub held: Option<String>,
    /// What is left of the allocation, where that is counted.
    pub budget: Option<BudgetView>,
    /// In the profile's order.
    pub shapes: Vec<ShapeView>,
    /// Promises against reality, by strength of the discount; empty before the first job has started.
    pub accuracy: Vec<AccuracyView>,
    /// Each promise and what came of it, newest last.
    pub history: Vec<JoinedView>,
    /// Live ones, then those that ended last.
    pub jobs: Vec<JobView>,
    /// Nodes that new jobs do not get.
    pub excluded: Vec<String>,
    /// Reservations and maintenance to come.
    pub reservations: Vec<ReservationView>,
    /// What does not work at the site.
    pub troubles: Vec<TroubleView>,
    /// Newest last.
    pub decisions: Vec<DecisionView>,
}

/// Who runs a site process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessView {
    /// Host, process and nonce.
    pub holder: String,
    /// Since when.
    pub since_s: u64,
    /// Its lease.
    pub lease: u64,
    /// It has called within its lease's time.
    pub alive: bool,
}

/// What is left of an allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetView {
    /// What was left when that was said.
    pub left_gpu_h: f64,
    /// When.
    pub said_at_s: u64,
    /// By whom.
    pub source: String,
    /// What no job may touch.
    pub reserve_gpu_h: f64,
    /// What ended jobs used since.
    pub spent_gpu_h: f64,
    /// What live jobs may use.
    pub committed_gpu_h: f64,
    /// What a new job may cost.
    pub free_gpu_h: f64,
    /// When the allocation ends.
    pub ends_at_s: Option<u64>,
}

/// A shape and its newest probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShapeView {
    /// Its name.
    pub shape: String,
    /// The partition.
    pub partition: String,
    /// Nodes.
    pub nodes: u32,
    /// Accelerators of a node.
    pub gpus_per_node: u32,
    /// The walltime.
    pub walltime_s: u64,
    /// What a job costs at most.
    pub cost_gpu_h: f64,
    /// Realised over requested walltime in the partition, 0 to 1.
    pub usage: Option<f64>,
    /// The same with each job weighted by its CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage_by_cpu: Option<f64>,
    /// The usage is of our own jobs only: others' are hidden.
    pub usage_own_only: bool,
    /// The newest probe.
    pub probe: Option<ProbeView>,
}

/// A probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeView {
    /// When it was made.
    pub at_s: u64,
    /// Whose priority it depends on.
    pub prober: String,
    /// The start that it promised.
    pub starts_s: Option<u64>,
    /// The wait from then, discounted by each strength: 0, 0.5 and 1.
    pub waits_s: Vec<f64>,
    /// Why there is no start.
    pub refused: Option<String>,
}

/// Promises against reality at one strength of the discount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccuracyView {
    /// The strength.
    pub strength: f64,
    /// Jobs that were compared.
    pub jobs: u64,
    /// Median of real less predicted wait.
    pub median_error_s: f64,
    /// Median of its size.
    pub median_size_s: f64,
    /// Share of jobs that started no later than predicted.
    pub coverage: f64,
}

/// A promise and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedView {
    /// The intent.
    pub intent: u64,
    /// The shape.
    pub shape: String,
    /// When the probe was made.
    pub probed_s: u64,
    /// When the job was submitted.
    pub submitted_s: u64,
    /// The wait that was promised.
    pub predicted_wait_s: u64,
    /// How long it waited.
    pub real_wait_s: u64,
    /// Realised over requested walltime then, in thousandths.
    pub usage_permille: Option<u64>,
    /// It waited for another job on purpose, and is not in the accuracy.
    pub deferred: bool,
}

/// One wanted job in its three states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobView {
    /// The intent.
    pub intent: u64,
    /// The replica.
    pub replica: String,
    /// Its number in the chain.
    pub link: u32,
    /// The shape.
    pub shape: String,
    /// When it was decided.
    pub made_s: u64,
    /// Intended: what is wanted of the site now.
    pub intended: String,
    /// Reported: the job's id.
    pub job: Option<String>,
    /// Reported: what squeue or sacct say.
    pub reported: Option<String>,
    /// Reported: when that was heard.
    pub heard_s: Option<u64>,
    /// Reported: its start.
    pub started_s: Option<u64>,
    /// Reported: its end, or that of its walltime.
    pub ends_s: Option<u64>,
    /// Observed: the replica is alive at the coordinator.
    pub observed: bool,
    /// What came of it.
    pub outcome: Option<String>,
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationView {
    /// Its name.
    pub name: String,
    /// Its first moment.
    pub start_s: u64,
    /// The first moment after it.
    pub end_s: u64,
    /// The nodes.
    pub nodes: String,
    /// Nobody can use them.
    pub maintenance: bool,
}

/// Something that does not work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TroubleView {
    /// What.
    pub what: String,
    /// Since when.
    pub since_s: u64,
    /// What it says.
    pub text: String,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionView {
    /// When.
    pub at_s: u64,
    /// For which replica.
    pub replica: Option<String>,
    /// What, and why.
    pub text: String,
}

/// Last lines of jobs, and what is paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogsView {
    /// Paused sites, and why.
    pub paused: Vec<(String, String)>,
    /// Newest last.
    pub logs: Vec<LogView>,
}

/// The last lines of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogView {
    /// The site.
    pub site: String,
    /// The replica.
    pub replica: String,
    /// The intent.
    pub intent: u64,
    /// The job.
    pub job: String,
    /// What came of it; `None` while it lives.
    pub outcome: Option<String>,
    /// When that was known.
    pub ended_s: Option<u64>,
    /// The lines; `None` until the site has sent them.
    pub lines: Option<String>,
}
