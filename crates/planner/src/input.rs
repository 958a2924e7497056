//! Everything that a plan is made from, as a list to print: what, how much, who says so, since when.
//!
//! What is missing is listed, too: "unknown" is a finding. Never here: numbers that the snapshot does
//! not have.

use std::time::Duration;

use hansa_base::SiteName;

use crate::fact::{Cost, Fact, Spell, WallMs};
use crate::run::Snapshot;
use crate::site::{Answer, ChainPolicy, JobState, PartitionState, ShapeState, Site, WaitPair};

/// One number of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// The site it belongs to; `None` for the run's own.
    pub site: Option<SiteName>,
    /// What it is.
    pub what: String,
    /// How much, with its unit; `None` if nobody knows.
    pub value: Option<String>,
    /// Who says so.
    pub source: String,
    /// How old it is; `None` for what the run's state or nobody says.
    pub age: Option<Duration>,
}

/// Lists the inputs, the run's first, then site by site in the snapshot's order.
#[must_use]
pub fn inputs(snapshot: &Snapshot) -> Vec<Input> {
    let mut list = List {
        now: snapshot.now,
        site: None,
        inputs: Vec::new(),
    };
    list.run(snapshot);
    for site in &snapshot.sites {
        list.site = Some(site.name.clone());
        list.costs(site);
        site.shapes.iter().for_each(|state| list.shape(state));
        for (name, state) in &site.partitions {
            list.partition(&name.0, state);
        }
        list.bounds(site);
        list.jobs(site);
    }
    list.inputs
}

struct List {
    now: WallMs,
    site: Option<SiteName>,
    inputs: Vec<Input>,
}

impl List {
    fn state(&mut self, what: &str, value: String) {
        let source = "run state".to_owned();
        self.inputs.push(Input {
            site: self.site.clone(),
            what: what.to_owned(),
            value: Some(value),
            source,
            age: None,
        });
    }

    fn fact<T>(&mut self, what: String, fact: Option<&Fact<T>>, value: impl Fn(&T) -> String) {
        self.inputs.push(Input {
            site: self.site.clone(),
            what,
            value: fact.map(|fact| value(&fact.value)),
            source: fact.map_or_else(|| "nobody".to_owned(), |fact| fact.source.to_string()),
            age: fact.map(|fact| fact.age(self.now)),
        });
    }

    fn cost(&mut self, what: &str, cost: &Cost) {
        self.fact(what.to_owned(), cost.best(), |d| Spell(*d).to_string());
    }

    fn run(&mut self, snapshot: &Snapshot) {
        let (run, policy) = (&snapshot.run, &snapshot.policy);
        self.state("windows to the target", run.target.to_string());
        self.state("windows the corpus can give", run.corpus.to_string());
        let phase = run.phase;
        let (steps, batch, accumulation) = (phase.steps, phase.batch, phase.accumulation);
        let base = format!("{steps} steps, {batch} windows a rank, accumulation {accumulation}");
        self.state("base phase", base);
        self.cost("merge, per round", &run.merge);
        let strength = format!("strength {}", policy.strength);
        self.state("discount", strength);
    }

    fn costs(&mut self, site: &Site) {
        let rate = |rate: &crate::site::WindowsPerGpuS| format!("{:.3} windows/s", rate.0);
        self.fact("one GPU, any shape".to_owned(), site.rate.as_ref(), rate);
        self.cost("start-up of a job", &site.startup);
        self.cost("transfer, per round", &site.transfer);
        self.cost("evaluation, fixed part", &site.evaluation);
        if let Some(leaves) = &site.leaves_before {
            let what = "leaves before its walltime".to_owned();
            self.fact(what, Some(leaves), |d| Spell(*d).to_string());
        }
    }

    fn shape(&mut self, state: &ShapeState) {
        let name = &state.shape.name;
        let at = state.probe.as_ref().map_or(self.now, |probe| probe.at);
        let answer = |answer: &Answer| match answer {
            Answer::StartsAt(start) => format!("starts in {}", Spell(start.since(at))),
            Answer::Refused(words) => format!("refused: {words}"),
        };
        self.fact(format!("probe of {name}"), state.probe.as_ref(), answer);
        if let Some(shut) = &state.shut {
            self.fact(format!("{name} is shut"), Some(shut), String::clone);
        }
        if let Some(rate) = &state.rate {
            let what = format!("one GPU in {name}");
            self.fact(what, Some(rate), |r| format!("{:.3} windows/s", r.0));
        }
        if let Some(ranks) = &state.ranks {
            self.fact(format!("ranks in {name}"), Some(ranks), u32::to_string);
        }
    }

    fn partition(&mut self, name: &str, state: &PartitionState) {
        let percent = |usage: &f64| format!("{:.1} % of the walltime asked for", usage * 100.0);
        self.fact(format!("usage of {name}"), state.usage.as_ref(), percent);
        if let Some(cap) = &state.walltime_max {
            let what = format!("walltime cap of {name}");
            self.fact(what, Some(cap), |d| Spell(*d).to_string());
        }
        self.history(name, &state.history);
    }

    /// How wrong probes were: what really came, less what they said, in the middle.
    fn history(&mut self, name: &str, history: &[WaitPair]) {
        let error = |pair: &WaitPair| {
            let real_ms = i128::try_from(pair.real.as_millis()).unwrap_or(i128::MAX);
            real_ms - i128::try_from(pair.predicted.as_millis()).unwrap_or(i128::MAX)
        };
        let mut errors: Vec<i128> = history.iter().map(error).collect();
        errors.sort_unstable();
        let middle = errors.get(errors.len() / 2).copied();
        let said = middle.map(|ms| {
            let size = Duration::from_millis(u64::try_from(ms.unsigned_abs()).unwrap_or(u64::MAX));
            let word = if ms < 0 { "earlier" } else { "later" };
            format!(
                "{} starts, half of them at least {} {word} than probed",
                errors.len(),
                Spell(size)
            )
        });
        let newest = history.iter().map(|pair| pair.at).max();
        self.inputs.push(Input {
            site: self.site.clone(),
            what: format!("history of {name}"),
            value: Some(said.unwrap_or_else(|| "no start yet".to_owned())),
            source: "our own jobs".to_owned(),
            age: newest.map(|at| self.now.since(at)),
        });
    }

    fn bounds(&mut self, site: &Site) {
        if let Some(nodes) = &site.limits.nodes {
            self.fact("nodes at a time".into(), Some(nodes), u32::to_string);
        }
        if let Some(jobs) = &site.limits.jobs {
            self.fact("jobs at a time".into(), Some(jobs), u32::to_string);
        }
        if let Some(replicas) = &site.limits.replicas {
            self.fact("replicas at a time".into(), Some(replicas), u32::to_string);
        }
        if let Some(budget) = &site.budget {
            let keep = budget.keep_gpu_hours;
            let value = |left: &f64| format!("{left:.1} GPU-hours, {keep:.1} to be kept");
            self.fact("budget left".into(), Some(&budget.gpu_hours), value);
            if let Some(ends) = &budget.ends {
                let now = self.now;
                let value = |ends: &WallMs| format!("in {}", Spell(ends.since(now)));
                self.fact("allocation ends".into(), Some(ends), value);
            }
        }
        for closed in &site.closed {
            let now = self.now;
            self.fact("closed".into(), Some(closed), |closed| {
                let (from, until) = (closed.from.since(now), closed.until.since(now));
                format!("from {} to {} from now", Spell(from), Spell(until))
            });
        }
        self.fact("chaining".into(), Some(&site.chain), |chain| {
            let text = match chain {
                ChainPolicy::Single => "none",
                ChainPolicy::AfterEnd => "after a job's end",
                ChainPolicy::Ahead => "ahead of a job's end",
            };
            text.to_owned()
        });
    }

    fn jobs(&mut self, site: &Site) {
        for job in &site.jobs {
            let value = match job.state {
                JobState::Pending { submitted } => {
                    format!("pending for {}", Spell(self.now.since(submitted)))
                }
                JobState::Running { started } => {
                    format!("running for {}", Spell(self.now.since(started)))
                }
            };
            self.state(&format!("a job in {}", job.shape), value);
        }
    }
}
