//! The profile's tables, key by key. `docs` and error messages use these names.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[coordinator]`: the way to the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoordinatorSection {
    /// Its address, such as `https://vm.example:8443`.
    pub url: String,
    /// The file with this site's token, as `hansa token add` wrote it, where `hansa site run` runs.
    pub token_file: PathBuf,
    /// The proxy that leads out, `http://host:port`; default `HTTPS_PROXY`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
}

/// `[slurm]`: how Slurm's commands are run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlurmSection {
    /// Who pays. Default: the user's default account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// A host for `ssh`, if the commands are not on this machine; everything else about the
    /// connection (jump hosts, keys, ControlMaster) belongs into `~/.ssh/config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<String>,
    /// `SLURM_CONF` for all commands, on a login node that serves several clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conf: Option<String>,
    /// The zone of the site's clock, for commands that print local time all the same. Default UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// How GPUs are asked for; `{}` is the number per node. Default `--gpus-per-node={}`.
    #[serde(default = "default_gpu_option")]
    pub gpu_option: String,
    /// Options for each job, such as `--exclusive`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

fn default_gpu_option() -> String {
    "--gpus-per-node={}".to_owned()
}

/// `[jobs]`: how many jobs of which shape, and how they follow each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobsSection {
    /// Replicas that this site should run.
    pub wanted: u32,
    /// The preferred shape.
    pub shape: String,
    /// How a job is succeeded at its walltime. Default none.
    #[serde(default)]
    pub chain: Chain,
    /// The most jobs of the run that may wait in the queue. Default 2.
    #[serde(default = "default_max_pending")]
    pub max_pending: u32,
}

fn default_max_pending() -> u32 {
    2
}

/// How a job is succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Chain {
    /// A new job is submitted when the last one has ended.
    #[default]
    None,
    /// While a job runs, its successor is submitted to begin at its end.
    Begin,
    /// While a job runs, its successor is submitted with `--dependency=singleton`.
    Singleton,
}

/// `[[shape]]`: one form of job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShapeRow {
    /// Its name.
    pub name: String,
    /// The partition.
    pub partition: String,
    /// The account, if it is not the site's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The quality of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    /// Nodes of a job.
    pub nodes: u32,
    /// GPUs of each, as Slurm counts them; 0 for a partition without.
    pub gpus_per_node: u32,
    /// How long a job may run, `HH:MM:SS` or `D-HH:MM:SS`.
    pub walltime: String,
    /// Windows that one GPU trains in a second, for plans, until the run has measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows_per_gpu_s: Option<f64>,
    /// Ranks of a replica, for plans. Default: one for each GPU, until the run has seen one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// Options for jobs of this shape only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// `[costs]`: what a round and a job cost beside training, for plans, until the run has measured it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CostsSection {
    /// From a job's start until its replica can train.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_s: Option<f64>,
    /// Weights there and back, per round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer_s: Option<f64>,
}

/// `[limits]`: what the run may have at the site at a time, for plans. Default: no limit is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitsSection {
    /// Nodes of all its jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Jobs, running or pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u32>,
}

/// `[script]`: what a job does. Paths are those of the compute nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScriptSection {
    /// The corpus directory.
    pub corpus: PathBuf,
    /// Where replicas keep their state, on storage that outlives jobs.
    pub state: PathBuf,
    /// Where jobs write what they print.
    pub logs: PathBuf,
    /// The `hansa` binary. Default `hansa`.
    #[serde(default = "default_hansa")]
    pub hansa: String,
    /// The token file as compute nodes see it, if its path is another there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// A folder that replicas of the site share for downloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBuf>,
    /// `module load` these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// Lines of shell before anything else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<String>,
    /// How tasks are started, such as `srun --ntasks-per-node=1`. Default: directly, on the first node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher: Option<String>,
    /// A container's `exec`, such as `singularity exec image.sif`, put before the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The command, if it is not `hansa train`; `{replica}` and the like are filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// A trainer for `hansa agent` to start, instead of the embedded one, such as `torchrun …`. Launcher and
    /// container then stand before it, and the agent runs on the first node, outside of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer: Option<String>,
    /// Further arguments of `hansa train`, or of `hansa agent`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub train_arguments: Vec<String>,
    /// Seconds before the walltime's end at which a job is told to leave. Slurm may be a minute early;
    /// after that the job needs time for a last step and the upload. Default 300.
    #[serde(default = "default_signal_before_s")]
    pub signal_before_s: u64,
    /// Variables for the job. No secrets: scripts are readable.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

impl ScriptSection {
    /// The container that `hansa` itself runs in: none if only its trainer does.
    #[must_use]
    pub fn container_of_hansa(&self) -> Option<&str> {
        self.container.as_deref().filter(|_| self.trainer.is_none())
    }

    /// How long a stop may take: until the walltime's end, less what processes need to end, and a clock that
    /// is a little late.
    #[must_use]
    pub fn leave_within_s(&self) -> u64 {
        let margin = (self.signal_before_s / 5).min(60);
        self.signal_before_s - margin
    }
}

fn default_hansa() -> String {
    "hansa".to_owned()
}
fn default_signal_before_s() -> u64 {
    300
}

/// `[watch]`: how often to look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchSection {
    /// Each shape is probed so often. Default 600.
    pub probe_every_s: u64,
    /// Usage, limits, reservations and budget are read so often. Default 3600.
    pub usage_every_s: u64,
    /// Usage is that of the jobs of so many hours. Default 48.
    pub usage_window_h: u64,
    /// Own jobs are looked at so often. Default 30.
    pub follow_every_s: u64,
}

impl Default for WatchSection {
    fn default() -> Self {
        Self {
            probe_every_s: 600,
            usage_every_s: 3600,
            usage_window_h: 48,
            follow_every_s: 30,
        }
    }
}

/// `[budget]`: what the allocation has left.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetSection {
    /// GPU-hours left when the run begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_hours: Option<f64>,
    /// Of these, so many are never touched.
    pub reserve_gpu_hours: f64,
    /// The allocation's last day, `YYYY-MM-DD`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<String>,
    /// A command whose first number is the GPU-hours left now; it wins over `gpu_hours`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its figure may lack what ended so many seconds before; at most a week. Default 900.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_s: Option<u64>,
}

/// `[retry]`: when to give up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RetrySection {
    /// So many jobs in a row that fail at once pause the site. Default 3.
    pub quick_failures_max: u32,
    /// What ran shorter than this failed at once. Default 60.
    pub quick_run_s: u64,
    /// The wait after a first failure. Default 60.
    pub backoff_first_s: u64,
    /// The longest wait. Default 3600.
    pub backoff_longest_s: u64,
    /// A node that failed is not asked for again for so long. Default a day.
    pub exclude_node_s: u64,
}

impl Default for RetrySection {
    fn default() -> Self {
        Self {
            quick_failures_max: 3,
            quick_run_s: 60,
            backoff_first_s: 60,
            backoff_longest_s: 3600,
            exclude_node_s: 86_400,
        }
    }
}

/// `[relay]`: for compute nodes with no way out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelaySection {
    /// Where `hansa site run` listens, an address that compute nodes reach. Port 0 takes a free one.
    pub listen: String,
    /// The host that compute nodes use for it. Default: this machine's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The file that tells jobs where the relay is, on storage that compute nodes see.
    pub file: PathBuf,
}

/// `[checks]`: what `hansa site check` compares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChecksSection {
    /// The filesystem that must have room. Default: that of `script.state`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scratch: Option<PathBuf>,
    /// Space that must be free. Default 50.
    pub free_gib_min: u64,
    /// Files that may still be made. Default 10000.
    pub free_inodes_min: u64,
    /// The site deletes what was not used for so many days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purge_days: Option<u64>,
}

impl Default for ChecksSection {
    fn default() -> Self {
        Self {
            scratch: None,
            free_gib_min: 50,
            free_inodes_min: 10_000,
            purge_days: None,
        }
    }
}

/// `[[partition]]`: what is known of a partition, from whom, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionRow {
    /// Its name.
    pub name: String,
    /// GPUs of a node, as Slurm counts them.
    pub gpus_per_node: u32,
    /// The longest walltime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walltime_max: Option<String>,
    /// The most nodes of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_max: Option<u32>,
    /// Anything else worth knowing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Who says so.
    pub source: String,
    /// When that was read, `YYYY-MM-DD`.
    pub date: String,
}

/// `[[fact]]`: anything else that is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactRow {
    /// What it is about, such as `network`.
    pub about: String,
    /// The fact.
    pub fact: String,
    /// Who says so.
    pub source: String,
    /// When that was read, `YYYY-MM-DD`.
    pub date: String,
}
