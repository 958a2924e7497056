//! The planner's inputs, drawn from what run and queues are now.
//!
//! Each number keeps its source and the time it was told; what nobody told is left out, and then the
//! planner says so. Pure. Never here: a default for a site.

use std::collections::BTreeMap;
use std::time::Duration;

use hansa_base::SiteName;
use hansa_planner::{
    Answer, Budget, ChainPolicy, Closed, Cost, Exchange, Fact, Job, JobState, Limits, Partition,
    PartitionState, Phase as PlanPhase, Policy, Quantile, RunState, Shape as PlanShape,
    ShapeName as PlanName, ShapeState, Site as PlanSite, Snapshot, Source, WaitPair, WallMs,
    WindowsPerGpuS,
};
use hansa_protocol::PhaseSpec;
use hansa_queue::{
    Chain, Intent, ProbeAnswer, Probed, RunView, Shape, Site, SiteProfile, State, UnixS,
};
use hansa_wire::recipe::PlanSection;

use super::facts::RunFacts;
use super::measure::{Measured, gpus};

/// All that a snapshot is made from.
pub(crate) struct Sources<'a> {
    pub section: &'a PlanSection,
    pub phase: PhaseSpec,
    /// Target tokens of a window.
    pub seq_len: u32,
    pub run: &'a RunFacts,
    pub view: &'a RunView,
    pub queue: &'a State,
    /// Sites whose process holds its lease.
    pub attended: &'a [SiteName],
    pub measured: &'a Measured,
    pub now: WallMs,
}

/// Why there is no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoSnapshot {
    /// Nobody knows of any queue.
    #[error("no site process has reported yet: start `hansa site run PROFILE` at a site")]
    NoSites,
    /// How much a round trains is what a plan decides.
    #[error(
        "this run ends after a number of rounds, and how much a round trains is what a plan decides: \
         a plan needs end.tokens or end.epochs in the recipe"
    )]
    EndsByRounds,
}

/// The snapshot of now.
pub(crate) fn snapshot(sources: &Sources<'_>) -> Result<Snapshot, NoSnapshot> {
    let left = sources.run.left.ok_or(NoSnapshot::EndsByRounds)?;
    let (section, phase) = (sources.section, sources.phase);
    let recipe = |key: &str| Source::Recipe {
        key: key.to_owned(),
    };
    let sites = sources.queue.sites.iter();
    let sites = sites.filter_map(|(name, site)| {
        let profile = site.profile.as_ref()?;
        Some(of_site(sources, name, site, profile))
    });
    Ok(Snapshot {
        now: sources.now,
        run: RunState {
            target: left,
            // It is gone through again until the end.
            corpus: left,
            seq_len: sources.seq_len,
            phase: PlanPhase {
                steps: phase.steps,
                batch: phase.batch,
                accumulation: phase.accumulation,
            },
            merge: Cost {
                measured: sources.measured.merge(),
                stated: section.merge_s.map(|seconds| Fact {
                    value: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
                    source: recipe("plan.merge_s"),
                    at: sources.now,
                }),
            },
            // One replica evaluates now and then: that is in the transfers that were measured.
            evaluation: None,
        },
        sites: sites.collect(),
        policy: Policy {
            strength: section.strength,
            quantile: match section.cautious {
                true => Quantile::P90,
                false => Quantile::P50,
            },
            probe_age_max: Duration::try_from_secs_f64(section.probe_age_max_s)
                .unwrap_or(Duration::MAX),
            exchange: Exchange::Overlapped,
            ..Policy::default()
        },
    })
}

const fn wall(at: UnixS) -> WallMs {
    WallMs(at.0.saturating_mul(1000))
}

/// A line of the profile.
fn line<T>(site: &Site, key: &str, value: T) -> Fact<T> {
    Fact {
        value,
        source: Source::Profile {
            key: key.to_owned(),
        },
        at: wall(site.profiled.unwrap_or_default()),
    }
}

fn of_site(sources: &Sources<'_>, name: &SiteName, site: &Site, profile: &SiteProfile) -> PlanSite {
    let stated = profile.stated.clone().unwrap_or_default();
    let measured = sources.measured;
    let cost = |measured, key: &str, ms: Option<u64>| Cost {
        measured,
        stated: ms.map(|ms| line(site, key, Duration::from_millis(ms))),
    };
    let shapes = profile.shapes.iter();
    let leaves = stated.leaves_before_ms.map(Duration::from_millis);
    PlanSite {
        name: name.clone(),
        shapes: shapes
            .map(|shape| of_shape(sources, name, site, profile, shape))
            .collect(),
        partitions: partitions(site, profile),
        rate: measured.rate_of_any(name),
        startup: cost(measured.startup(name), "costs.startup_s", stated.startup_ms),
        transfer: cost(
            measured.transfer(name),
            "costs.transfer_s",
            stated.transfer_ms,
        ),
        evaluation: Cost::UNKNOWN,
        leaves_before: leaves.map(|leaves| line(site, "script.signal_before_s", leaves)),
        limits: Limits {
            nodes: stated.nodes_max.map(|max| line(site, "limits.nodes", max)),
            jobs: stated.jobs_max.map(|max| line(site, "limits.jobs", max)),
            replicas: Some(line(site, "jobs.wanted", profile.wanted_jobs)),
        },
        budget: budget(sources.queue, name, site),
        closed: closed(site, sources.now),
        chain: line(
            site,
            "jobs.chain",
            match profile.chain {
                Chain::None => ChainPolicy::AfterEnd,
                Chain::Begin | Chain::Singleton => ChainPolicy::Ahead,
            },
        ),
        jobs: match sources.view.drained.contains_key(name) {
            // They are sent away.
            true => Vec::new(),
            false => jobs(sources.queue, name),
        },
    }
}

fn of_shape(
    sources: &Sources<'_>,
    name: &SiteName,
    site: &Site,
    profile: &SiteProfile,
    shape: &Shape,
) -> ShapeState {
    let stated = profile.stated.as_ref();
    let stated = stated.and_then(|stated| stated.shape(&shape.name));
    let rate = |micro: u64| {
        let key = format!("[[shape]] {}, windows_per_gpu_s", shape.name);
        line(site, &key, WindowsPerGpuS(micro as f64 / 1e6))
    };
    let ranks = |ranks: u32| line(site, &format!("[[shape]] {}, ranks", shape.name), ranks);
    let measured = sources.measured;
    ShapeState {
        shape: PlanShape {
            name: PlanName(shape.name.to_string()),
            partition: Partition(shape.partition.to_string()),
            account: shape.account.as_ref().map(ToString::to_string),
            qos: shape.qos.as_ref().map(ToString::to_string),
            nodes: shape.nodes,
            gpus_per_node: gpus(shape) / shape.nodes.max(1),
            walltime: Duration::from_secs(shape.walltime_s),
        },
        probe: probe(site, shape),
        rate: (measured.rate(name, &shape.name))
            .or_else(|| stated.and_then(|s| s.microwindows_per_gpu_s.map(rate))),
        ranks: (measured.ranks(name, &shape.name))
            .or_else(|| stated.and_then(|s| s.ranks.map(ranks))),
        shut: shut(sources, name, site, shape),
    }
}

/// The newest probe that was answered. One refusal that may pass is provisional: what was said before it
/// counts on, at its age.
fn probe(site: &Site, shape: &Shape) -> Option<Fact<Answer>> {
    let probes = site.probes.get(&shape.name)?.iter().rev();
    let answered = |probed: &&Probed| !matches!(probed.probe.answer, ProbeAnswer::Failed(_));
    let mut newest = probes.filter(answered);
    let first = newest.next()?;
    let passing = |probed: &&Probed| match &probed.probe.answer {
        ProbeAnswer::Refused(refusal) => !refusal.lasting,
        _ => false,
    };
    let starts = |probed: &&Probed| matches!(probed.probe.answer, ProbeAnswer::Starts(_));
    let before = newest.next().filter(starts).filter(|_| passing(&first));
    let told = before.unwrap_or(first);
    let value = match &told.probe.answer {
        ProbeAnswer::Starts(at) => Answer::StartsAt(wall(*at)),
        ProbeAnswer::Refused(refusal) => Answer::Refused(refusal.to_string()),
        ProbeAnswer::Failed(text) => Answer::Refused(text.to_string()),
    };
    let prober = told.probe.prober.to_string();
    Some(Fact {
        value,
        source: Source::Probe { prober },
        at: wall(told.at),
    })
}

/// Why nothing may be submitted in a shape now.
fn shut(
    sources: &Sources<'_>,
    name: &SiteName,
    site: &Site,
    shape: &Shape,
) -> Option<Fact<String>> {
    let fact = |value: String, source: Source, at: WallMs| Fact { value, source, at };
    if let Some(why) = sources.view.drained.get(name) {
        let value = format!("the site is drained: {why}");
        return Some(fact(value, Source::Operator, sources.now));
    }
    if let Some(paused) = &site.paused {
        let value = format!("the site's queue is paused: {paused}");
        return Some(fact(value, Source::Operator, wall(paused.since)));
    }
    let process = || Source::Probe {
        prober: "the site process".to_owned(),
    };
    if !sources.attended.contains(name) {
        let value = "no site process runs".to_owned();
        return Some(fact(value, process(), sources.now));
    }
    let (at, partition) = site.partitions.get(&shape.partition)?;
    let state = partition.state.as_str();
    // DOWN takes jobs, and starts none.
    let closed = matches!(state, "DRAIN" | "INACTIVE" | "DOWN");
    closed.then(|| {
        let value = format!("the partition {} is {state}", shape.partition);
        fact(value, process(), wall(*at))
    })
}

fn partitions(site: &Site, profile: &SiteProfile) -> BTreeMap<Partition, PartitionState> {
    let mut all = BTreeMap::new();
    for shape in &profile.shapes {
        let usage = site.usage.get(&shape.partition);
        let share = site.usage_permille(&shape.partition);
        let usage = usage.zip(share).map(|((at, usage), permille)| Fact {
            value: permille as f64 / 1000.0,
            source: Source::Accounting {
                window: Duration::from_secs(usage.window_s),
                jobs: u32::try_from(usage.jobs).unwrap_or(u32::MAX),
            },
            at: wall(*at),
        });
        let cap = site.partitions.get(&shape.partition);
        let cap = cap.and_then(|(at, partition)| {
            let max = Duration::from_secs(partition.walltime_max_s?);
            Some(Fact {
                value: max,
                source: Source::Probe {
                    prober: "scontrol".to_owned(),
                },
                at: wall(*at),
            })
        });
        let same = |name| {
            let of = profile.shape(name);
            of.is_some_and(|other| other.partition == shape.partition)
        };
        let pairs = site.joined.iter().filter(|(name, _)| same(name));
        let pairs = pairs.filter(|(_, joined)| !joined.deferred);
        let pair = |(_, joined): &(_, hansa_queue::Joined)| WaitPair {
            predicted: Duration::from_secs(joined.predicted_wait_s()),
            real: Duration::from_secs(joined.real_wait_s()),
            at: wall(joined.started),
        };
        all.insert(
            Partition(shape.partition.to_string()),
            PartitionState {
                usage,
                history: pairs.map(pair).collect(),
                walltime_max: cap,
            },
        );
    }
    all
}

/// What is left, running jobs counted at their full walltime.
fn budget(queue: &State, name: &SiteName, site: &Site) -> Option<Budget> {
    let said = site.budget_said();
    let spent = site.budget.spent.values().map(|cost| cost.0);
    let running = queue.live(name).filter(|intent| intent.is_running());
    let running = running.map(|intent| intent.intention.shape.cost().0);
    let taken = spent.chain(running).fold(0, u64::saturating_add);
    let left = said.gpu_s_left?.0.saturating_sub(taken);
    let source = || match site.budget.source.as_str() {
        "an operator" => Source::Operator,
        source => Source::Profile {
            key: format!("budget, by {source}"),
        },
    };
    let at = wall(site.budget.said_at);
    Some(Budget {
        gpu_hours: Fact {
            value: left as f64 / 3600.0,
            source: source(),
            at,
        },
        keep_gpu_hours: said.reserve_gpu_s.hours(),
        ends: said.ends_at.map(|ends| Fact {
            value: wall(ends),
            source: source(),
            at,
        }),
    })
}

/// Maintenance to come. Which nodes it is about is not compared: if a probe that knew of it promises a
/// start within it, it is of other nodes.
fn closed(site: &Site, now: WallMs) -> Vec<Fact<Closed>> {
    let ahead = site.reservations.values().filter(|r| r.maintenance);
    let ahead = ahead.filter(|r| wall(r.end) > now);
    let newest = site.probes.values().filter_map(|all| all.back());
    let promised: Vec<UnixS> = newest
        .filter_map(|probed| match probed.probe.answer {
            ProbeAnswer::Starts(at) => Some(at),
            _ => None,
        })
        .collect();
    let others = ahead.filter(|r| !promised.iter().any(|at| (r.start..r.end).contains(at)));
    others
        .map(|reservation| Fact {
            value: Closed {
                from: wall(reservation.start),
                until: wall(reservation.end),
            },
            source: Source::Probe {
                prober: format!("reservation {}", reservation.name),
            },
            at: now,
        })
        .collect()
}

/// One job of each replica: the one that runs, or else the one that waits. A successor belongs to the
/// chain of the one before it.
fn jobs(queue: &State, name: &SiteName) -> Vec<Job> {
    let mut of_replica: BTreeMap<_, &Intent> = BTreeMap::new();
    for intent in queue.live(name) {
        let given_up = intent.is_leaving() || intent.withdraw.is_some();
        if given_up && !intent.is_running() {
            continue;
        }
        let replica = &intent.intention.replica;
        let known = of_replica.get(replica);
        if known.is_none_or(|known| intent.is_running() && !known.is_running()) {
            of_replica.insert(replica, intent);
        }
    }
    of_replica.values().map(|intent| job(intent)).collect()
}

fn job(intent: &Intent) -> Job {
    let report = intent.job.as_ref().and_then(|job| job.report.as_ref());
    let started = report.and_then(|report| report.started);
    let submitted = report.and_then(|report| report.submitted);
    Job {
        shape: PlanName(intent.intention.shape.name.to_string()),
        state: match started.filter(|_| intent.is_running()) {
            Some(started) => JobState::Running {
                started: wall(started),
            },
            None => JobState::Pending {
                submitted: wall(submitted.unwrap_or(intent.made)),
            },
        },
    }
}
