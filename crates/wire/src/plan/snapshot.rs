//! The schema of a snapshot.
//!
//! Everything that a plan is made from, in one JSON document. Its keys are the fields below, in this
//! order; a key of an `Option` may be left out, which means that nobody knows (or, for a limit or a
//! budget, that there is none that anybody knows of). Times are milliseconds since the Unix epoch and
//! end in `_ms`, lengths of time are seconds and end in `_s`. `docs/guide.md` shows one in full.

use std::collections::BTreeMap;

use hansa_base::{Steps, Windows};
use hansa_planner::{
    Answer, Budget, ChainPolicy, Closed, Evaluation, Job, JobState, Limits, Partition,
    PartitionState, Phase, RunState, Shape, ShapeName, ShapeState, Site, Snapshot, WaitPair,
    WallMs, WindowsPerGpuS,
};
use serde::{Deserialize, Serialize};

use super::mirror::{
    CostJson, FactJson, cost, cost_json, duration, fact, fact_json, maybe, seconds, seconds_json,
};
use super::policy::{PolicyJson, policy, policy_json};
use crate::BadValue;

/// The version of the schema. New optional keys do not change it.
pub const SNAPSHOT_VERSION: u32 = 1;

/// JSON form of [`Snapshot`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SnapshotJson {
    /// [`SNAPSHOT_VERSION`].
    pub version: u32,
    /// When it was taken.
    pub now_ms: u64,
    /// The run.
    pub run: RunJson,
    /// The facilities; ties go to the one that comes first.
    pub sites: Vec<SiteJson>,
    /// How to plan.
    #[serde(default)]
    pub policy: PolicyJson,
}

/// JSON form of [`RunState`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunJson {
    /// Windows until the target is reached.
    pub target_windows: u64,
    /// Windows that the corpus can still give, over all epochs.
    pub corpus_windows: u64,
    /// Target tokens of a window.
    pub seq_len: u32,
    /// The recipe's base phase.
    pub phase: PhaseJson,
    /// Writing the next generation, per round.
    #[serde(default)]
    pub merge_s: CostJson,
    /// Evaluation by every member in every round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationJson>,
}

/// JSON form of [`Phase`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PhaseJson {
    /// Inner steps between two exchanges.
    pub steps: u64,
    /// Windows a rank takes per micro-batch.
    pub batch_windows: u64,
    /// Micro-batches of a step.
    pub accumulation: u32,
}

/// JSON form of [`Evaluation`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EvaluationJson {
    /// Held-out windows.
    pub windows: u64,
    /// How many times faster than training.
    pub speedup: f64,
}

/// JSON form of [`Site`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SiteJson {
    /// Its name.
    pub name: String,
    /// Its job shapes.
    pub shapes: Vec<ShapeJson>,
    /// Its queues, by partition.
    #[serde(default)]
    pub partitions: BTreeMap<String, PartitionJson>,
    /// The speed of one accelerator in any shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows_per_gpu_s: Option<FactJson<f64>>,
    /// From a job's start until its replica can train.
    #[serde(default)]
    pub startup_s: CostJson,
    /// Weights there and back, per round.
    #[serde(default)]
    pub transfer_s: CostJson,
    /// The part of an evaluation that does not depend on the number of windows.
    #[serde(default)]
    pub evaluation_s: CostJson,
    /// A replica leaves so long before its job's walltime is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves_before_s: Option<FactJson<f64>>,
    /// What one user may have at a time.
    #[serde(default)]
    pub limits: LimitsJson,
    /// What is left of the allocation; left out where nobody counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetJson>,
    /// Maintenance and reservations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<FactJson<ClosedJson>>,
    /// The most that is allowed in chaining jobs.
    pub chain: FactJson<ChainJson>,
    /// Our jobs that are there already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobJson>,
}

/// JSON form of [`ShapeState`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShapeJson {
    /// Its name in the site's profile.
    pub name: String,
    /// The partition.
    pub partition: String,
    /// The account that is billed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The quality of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    /// Whole nodes.
    pub nodes: u32,
    /// Accelerators of a node, as the batch system counts them.
    pub gpus_per_node: u32,
    /// The walltime asked for.
    pub walltime_s: f64,
    /// The newest probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<FactJson<AnswerJson>>,
    /// The speed of one accelerator, measured in this very shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows_per_gpu_s: Option<FactJson<f64>>,
    /// Ranks of a replica in it; left out: one for each accelerator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<FactJson<u32>>,
    /// Nothing may be submitted in it now, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shut: Option<FactJson<String>>,
}

/// JSON form of [`Answer`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerJson {
    /// The job would start at this time.
    StartsAtMs(u64),
    /// It would not be accepted, in the batch system's words.
    Refused(String),
}

/// JSON form of [`PartitionState`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionJson {
    /// Realised over requested walltime, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<FactJson<f64>>,
    /// Predictions and what came of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<WaitPairJson>,
    /// The longest walltime that is granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walltime_max_s: Option<FactJson<f64>>,
}

/// JSON form of [`WaitPair`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WaitPairJson {
    /// The wait that the probe at submission gave.
    pub predicted_s: f64,
    /// How long the job waited.
    pub real_s: f64,
    /// When it started.
    pub at_ms: u64,
}

/// JSON form of [`Limits`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitsJson {
    /// Nodes over all of this run's jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<FactJson<u32>>,
    /// Jobs running or pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<FactJson<u32>>,
    /// Replicas that the site's operator wants at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<FactJson<u32>>,
}

/// JSON form of [`Budget`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BudgetJson {
    /// GPU-hours left, running jobs counted at their full walltime.
    pub gpu_hours: FactJson<f64>,
    /// GPU-hours that no plan may touch.
    #[serde(default)]
    pub keep_gpu_hours: f64,
    /// When the allocation ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_ms: Option<FactJson<u64>>,
}

/// JSON form of [`Closed`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClosedJson {
    /// Its first moment.
    pub from_ms: u64,
    /// The first moment after it.
    pub until_ms: u64,
}

/// JSON form of [`ChainPolicy`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChainJson {
    /// A replica ends with its job.
    Single,
    /// The successor is submitted when a job ends.
    AfterEnd,
    /// The successor is submitted when a job starts.
    Ahead,
}

/// JSON form of [`Job`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobJson {
    /// The shape it was submitted in.
    pub shape: String,
    /// Where it is.
    pub state: JobStateJson,
}

/// JSON form of [`JobState`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum JobStateJson {
    Pending { submitted_ms: u64 },
    Running { started_ms: u64 },
}

/// To the document.
#[must_use]
pub fn snapshot_to_json(snapshot: &Snapshot) -> SnapshotJson {
    let run = &snapshot.run;
    let evaluation = run.evaluation.map(|evaluation| EvaluationJson {
        windows: evaluation.windows.0,
        speedup: evaluation.speedup,
    });
    SnapshotJson {
        version: SNAPSHOT_VERSION,
        now_ms: snapshot.now.0,
        run: RunJson {
            target_windows: run.target.0,
            corpus_windows: run.corpus.0,
            seq_len: run.seq_len,
            phase: PhaseJson {
                steps: run.phase.steps.0,
                batch_windows: run.phase.batch.0,
                accumulation: run.phase.accumulation,
            },
            merge_s: cost_json(&run.merge),
            evaluation,
        },
        sites: snapshot.sites.iter().map(site_json).collect(),
        policy: policy_json(&snapshot.policy),
    }
}

fn site_json(site: &Site) -> SiteJson {
    let partition = |(name, state): (&Partition, &PartitionState)| {
        let pair = |pair: &WaitPair| WaitPairJson {
            predicted_s: seconds(pair.predicted),
            real_s: seconds(pair.real),
            at_ms: pair.at.0,
        };
        let json = PartitionJson {
            usage: state.usage.as_ref().map(|f| fact_json(f, |v| *v)),
            history: state.history.iter().map(pair).collect(),
            walltime_max_s: state.walltime_max.as_ref().map(seconds_json),
        };
        (name.0.clone(), json)
    };
    let closed = |closed: &Closed| ClosedJson {
        from_ms: closed.from.0,
        until_ms: closed.until.0,
    };
    let job = |job: &Job| JobJson {
        shape: job.shape.0.clone(),
        state: match job.state {
            JobState::Pending { submitted } => JobStateJson::Pending {
                submitted_ms: submitted.0,
            },
            JobState::Running { started } => JobStateJson::Running {
                started_ms: started.0,
            },
        },
    };
    SiteJson {
        name: site.name.to_string(),
        shapes: site.shapes.iter().map(shape_json).collect(),
        partitions: site.partitions.iter().map(partition).collect(),
        windows_per_gpu_s: site.rate.as_ref().map(|f| fact_json(f, |v| v.0)),
        startup_s: cost_json(&site.startup),
        transfer_s: cost_json(&site.transfer),
        evaluation_s: cost_json(&site.evaluation),
        leaves_before_s: site.leaves_before.as_ref().map(seconds_json),
        limits: LimitsJson {
            nodes: site.limits.nodes.as_ref().map(|f| fact_json(f, |v| *v)),
            jobs: site.limits.jobs.as_ref().map(|f| fact_json(f, |v| *v)),
            replicas: (site.limits.replicas.as_ref()).map(|f| fact_json(f, |v| *v)),
        },
        budget: site.budget.as_ref().map(|budget| BudgetJson {
            gpu_hours: fact_json(&budget.gpu_hours, |v| *v),
            keep_gpu_hours: budget.keep_gpu_hours,
            ends_ms: budget.ends.as_ref().map(|f| fact_json(f, |v| v.0)),
        }),
        closed: site.closed.iter().map(|f| fact_json(f, closed)).collect(),
        chain: fact_json(&site.chain, |v| match v {
            ChainPolicy::Single => ChainJson::Single,
            ChainPolicy::AfterEnd => ChainJson::AfterEnd,
            ChainPolicy::Ahead => ChainJson::Ahead,
        }),
        jobs: site.jobs.iter().map(job).collect(),
    }
}

fn shape_json(state: &ShapeState) -> ShapeJson {
    let shape = &state.shape;
    let answer = |answer: &Answer| match answer {
        Answer::StartsAt(at) => AnswerJson::StartsAtMs(at.0),
        Answer::Refused(words) => AnswerJson::Refused(words.clone()),
    };
    ShapeJson {
        name: shape.name.0.clone(),
        partition: shape.partition.0.clone(),
        account: shape.account.clone(),
        qos: shape.qos.clone(),
        nodes: shape.nodes,
        gpus_per_node: shape.gpus_per_node,
        walltime_s: seconds(shape.walltime),
        probe: state.probe.as_ref().map(|f| fact_json(f, answer)),
        windows_per_gpu_s: state.rate.as_ref().map(|f| fact_json(f, |v| v.0)),
        ranks: state.ranks.as_ref().map(|f| fact_json(f, |v| *v)),
        shut: state.shut.as_ref().map(|f| fact_json(f, String::clone)),
    }
}

/// From the document, checked as far as types go; [`Snapshot::validate`] checks the rest.
///
/// # Errors
/// The first value that cannot be, by its place.
pub fn snapshot_from_json(json: SnapshotJson) -> Result<Snapshot, BadValue> {
    if json.version != SNAPSHOT_VERSION {
        let problem = format!(
            "is {}, and this program reads version {SNAPSHOT_VERSION}",
            json.version
        );
        return Err(BadValue::new(problem).at("version"));
    }
    let sites = json.sites.into_iter().map(|site_of| {
        let name = site_of.name.clone();
        site(site_of).map_err(|error| error.at(&format!("sites.{name}")))
    });
    Ok(Snapshot {
        now: WallMs(json.now_ms),
        run: run(json.run).map_err(|error| error.at("run"))?,
        sites: sites.collect::<Result<_, _>>()?,
        policy: policy(json.policy).map_err(|error| error.at("policy"))?,
    })
}

fn run(json: RunJson) -> Result<RunState, BadValue> {
    Ok(RunState {
        target: Windows(json.target_windows),
        corpus: Windows(json.corpus_windows),
        seq_len: json.seq_len,
        phase: Phase {
            steps: Steps(json.phase.steps),
            batch: Windows(json.phase.batch_windows),
            accumulation: json.phase.accumulation,
        },
        merge: cost("merge_s", json.merge_s)?,
        evaluation: json.evaluation.map(|evaluation| Evaluation {
            windows: Windows(evaluation.windows),
            speedup: evaluation.speedup,
        }),
    })
}

fn site(json: SiteJson) -> Result<Site, BadValue> {
    let mut partitions = BTreeMap::new();
    for (name, queue) in json.partitions {
        let at = |error: BadValue| error.at(&name).at("partitions");
        partitions.insert(Partition(name.clone()), partition(queue).map_err(at)?);
    }
    let shapes = json.shapes.into_iter().map(|shape_of| {
        let name = shape_of.name.clone();
        shape(shape_of).map_err(|error| error.at(&format!("shapes.{name}")))
    });
    let closed = json.closed.into_iter().map(|json| fact(json, closed));
    let closed: Result<Vec<_>, _> = closed.collect();
    Ok(Site {
        name: json.name.parse().map_err(BadValue::new)?,
        shapes: shapes.collect::<Result<_, _>>()?,
        partitions,
        rate: maybe("windows_per_gpu_s", json.windows_per_gpu_s, rate)?,
        startup: cost("startup_s", json.startup_s)?,
        transfer: cost("transfer_s", json.transfer_s)?,
        evaluation: cost("evaluation_s", json.evaluation_s)?,
        leaves_before: maybe("leaves_before_s", json.leaves_before_s, duration)?,
        limits: Limits {
            nodes: maybe("limits.nodes", json.limits.nodes, Ok)?,
            jobs: maybe("limits.jobs", json.limits.jobs, Ok)?,
            replicas: maybe("limits.replicas", json.limits.replicas, Ok)?,
        },
        budget: json.budget.map(budget).transpose()?,
        closed: closed.map_err(|error| error.at("closed"))?,
        chain: fact(json.chain, |chain| Ok(chain_policy(chain)))
            .map_err(|error| error.at("chain"))?,
        jobs: json.jobs.into_iter().map(job).collect(),
    })
}

fn shape(json: ShapeJson) -> Result<ShapeState, BadValue> {
    let answer = |answer: AnswerJson| {
        Ok(match answer {
            AnswerJson::StartsAtMs(at) => Answer::StartsAt(WallMs(at)),
            AnswerJson::Refused(words) => Answer::Refused(words),
        })
    };
    Ok(ShapeState {
        shape: Shape {
            name: ShapeName(json.name),
            partition: Partition(json.partition),
            account: json.account,
            qos: json.qos,
            nodes: json.nodes,
            gpus_per_node: json.gpus_per_node,
            walltime: duration(json.walltime_s).map_err(|error| error.at("walltime_s"))?,
        },
        probe: maybe("probe", json.probe, answer)?,
        rate: maybe("windows_per_gpu_s", json.windows_per_gpu_s, rate)?,
        ranks: maybe("ranks", json.ranks, Ok)?,
        shut: maybe("shut", json.shut, Ok)?,
    })
}

fn partition(json: PartitionJson) -> Result<PartitionState, BadValue> {
    let pair = |pair: WaitPairJson| {
        Ok(WaitPair {
            predicted: duration(pair.predicted_s).map_err(|error| error.at("predicted_s"))?,
            real: duration(pair.real_s).map_err(|error| error.at("real_s"))?,
            at: WallMs(pair.at_ms),
        })
    };
    let history: Result<Vec<_>, BadValue> = json.history.into_iter().map(pair).collect();
    Ok(PartitionState {
        usage: maybe("usage", json.usage, Ok)?,
        history: history.map_err(|error| error.at("history"))?,
        walltime_max: maybe("walltime_max_s", json.walltime_max_s, duration)?,
    })
}

fn budget(json: BudgetJson) -> Result<Budget, BadValue> {
    Ok(Budget {
        gpu_hours: fact(json.gpu_hours, Ok).map_err(|error| error.at("budget.gpu_hours"))?,
        keep_gpu_hours: json.keep_gpu_hours,
        ends: maybe("budget.ends_ms", json.ends_ms, |at| Ok(WallMs(at)))?,
    })
}

fn closed(json: ClosedJson) -> Result<Closed, BadValue> {
    if json.until_ms < json.from_ms {
        return Err(BadValue::new("until_ms lies before from_ms"));
    }
    Ok(Closed {
        from: WallMs(json.from_ms),
        until: WallMs(json.until_ms),
    })
}

const fn chain_policy(json: ChainJson) -> ChainPolicy {
    match json {
        ChainJson::Single => ChainPolicy::Single,
        ChainJson::AfterEnd => ChainPolicy::AfterEnd,
        ChainJson::Ahead => ChainPolicy::Ahead,
    }
}

fn job(json: JobJson) -> Job {
    Job {
        shape: ShapeName(json.shape),
        state: match json.state {
            JobStateJson::Pending { submitted_ms } => JobState::Pending {
                submitted: WallMs(submitted_ms),
            },
            JobStateJson::Running { started_ms } => JobState::Running {
                started: WallMs(started_ms),
            },
        },
    }
}

fn rate(windows_per_gpu_s: f64) -> Result<WindowsPerGpuS, BadValue> {
    Ok(WindowsPerGpuS(windows_per_gpu_s))
}
