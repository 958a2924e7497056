//! Time to a token target of several ways to place one run on several queues.
//!
//! At a start each site is probed, every strategy decides from the same snapshot (but for the oracle,
//! which knows what will come), and its jobs are submitted in copies of the queues, each successor when
//! its predecessor ends. The rounds are then simulated with the jobs' real times. Decisions are made
//! once, at the start, but for the loop's. Never here: the trace's jobs reacting to ours in other sites.

use std::collections::BTreeMap;
use std::time::Duration;

use hansa_base::Windows;
use hansa_planner::{
    Answer, Balance, Candidate, ChainPolicy, Ended, FirstJob, Member, Partition, Policy, Request,
    RunState, Site, Snapshot, Terms, Then, WaitPair, WallMs, World, candidates, plan, simulate,
    waterfill,
};

use crate::estimates::{probe, said, wall};
use crate::queue::Queue;
use crate::steered::{ask, steered};

/// A facility: its queue, and everything else that a planner knows of it.
#[derive(Clone, Debug)]
pub struct Place {
    /// Shapes, speeds and costs; probes and usage are filled in from the queue.
    pub site: Site,
    /// The queue, before its first arrival.
    pub queue: Queue,
    /// The queue's time at the scene's 0.
    pub offset_s: u64,
    /// Width of the queue that a node of a shape is.
    pub width_per_node: u32,
}

/// What is to be trained, and where.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The facilities, the fastest per accelerator first or not: ties go to the first.
    pub places: Vec<Place>,
    /// The run.
    pub run: RunState,
    /// How to plan.
    pub policy: Policy,
    /// How far is looked ahead; who has not reached the target by then has not reached it.
    pub horizon: Duration,
    /// Replicas at a site, at most.
    pub replicas_max: u32,
    /// Micro-batches of a step, at most, for those who balance.
    pub accumulation_max: u32,
}

/// A way to place the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strategy {
    /// Every site, in its largest shape.
    AllLargest,
    /// The site with the fastest shape, in it, alone.
    FastestSite,
    /// Every site gets an equal part of the windows, in its largest shape, and trains it alone.
    StaticSplit,
    /// The shapes that the waterfill picks.
    Waterfill,
    /// The planner's decision, accumulation included.
    Planner,
    /// The planner, made again as a coordinator does.
    Loop,
    /// The best of all choices of shapes, replicas and balance that are made once, with real waits.
    Oracle,
}

/// When a run reached its target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finish {
    /// Who placed it.
    pub strategy: Strategy,
    /// When it began, in the scene's time.
    pub start_s: u64,
    /// How long it took; `None` if longer than the horizon.
    pub took_s: Option<f64>,
}

/// Jobs of one site: a shape, replicas, and when they are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    candidate: usize,
    replicas: u32,
    begins_in: Duration,
}

/// Runs every strategy at each of these starts (in order, in the scene's time).
#[must_use]
pub fn campaign(scene: &Scene, starts_s: &[u64]) -> Vec<Finish> {
    let mut queues: Vec<Queue> = scene.places.iter().map(|p| p.queue.clone()).collect();
    let mut histories: Vec<Vec<WaitPair>> = scene.places.iter().map(|_| Vec::new()).collect();
    let mut finishes = Vec::new();
    for &start_s in starts_s {
        let now_s = |place: &Place| place.offset_s + start_s;
        for (place, queue) in scene.places.iter().zip(&mut queues) {
            queue.run_until(now_s(place));
        }
        let mut day = Day::new(scene, &queues, &histories, start_s);
        finishes.extend(day.finishes(start_s));
        // What became of this start's probes is known to later ones.
        for (i, (place, queue)) in scene.places.iter().zip(&queues).enumerate() {
            for state in &place.site.shapes {
                let width = state.shape.nodes * place.width_per_node;
                let length_s = state.shape.walltime.as_secs();
                let patience_s = scene.horizon.as_secs();
                let pair = probe(queue, (width, length_s, length_s), patience_s);
                // In the scene's clock, which is the snapshot's.
                histories[i].extend(pair.map(|pair| WaitPair {
                    at: wall(start_s).after(pair.real),
                    ..pair
                }));
            }
        }
    }
    finishes
}

/// What a coordinator would know: the queues as they stand, and what became of earlier probes.
pub(crate) fn snapshot(
    scene: &Scene,
    queues: &[Queue],
    histories: &[Vec<WaitPair>],
    now: WallMs,
) -> Snapshot {
    let places = scene.places.iter().zip(queues).zip(histories);
    let site = |((place, queue), history): ((&Place, &Queue), &Vec<WaitPair>)| {
        let mut site = place.site.clone();
        for state in &mut site.shapes {
            let answer = queue.test_only(state.shape.nodes * place.width_per_node);
            let wait_s = answer.map(|at_s| at_s.saturating_sub(queue.now_s()));
            let start = wait_s.map(|s| Answer::StartsAt(now.after(Duration::from_secs(s))));
            let refused = Answer::Refused("too wide".to_owned());
            state.probe = Some(said(start.unwrap_or(refused), now));
            let name: &Partition = &state.shape.partition;
            let partition = site.partitions.entry(name.clone()).or_default();
            partition.usage = queue.usage().map(|usage| said(usage, now));
            partition.history = history.iter().filter(|p| p.at <= now).copied().collect();
        }
        site
    };
    Snapshot {
        now,
        run: scene.run.clone(),
        sites: places.map(site).collect(),
        policy: scene.policy.clone(),
    }
}

/// The replica of one job that started then.
pub(crate) fn started(
    snapshot: &Snapshot,
    candidate: &Candidate,
    starts_in: Duration,
) -> Option<Member> {
    let terms = Terms {
        replicas: 1,
        chain: ChainPolicy::Single,
        jobs_max: 1,
        begins_in: Duration::ZERO,
    };
    let member = Member::of(snapshot, candidate, terms).ok()?;
    Some(Member {
        first: FirstJob {
            starts_in,
            ready_in: starts_in + member.startup,
            ends_in: starts_in + member.walltime,
            paid: true,
        },
        then: Then::Nothing,
        ..member
    })
}

/// One start.
struct Day<'a> {
    scene: &'a Scene,
    queues: &'a [Queue],
    histories: &'a [Vec<WaitPair>],
    snapshot: Snapshot,
    fit: Vec<Candidate>,
    /// Members that the jobs of a use become, with real times.
    real: BTreeMap<Use, Vec<Member>>,
}

impl<'a> Day<'a> {
    fn new(
        scene: &'a Scene,
        queues: &'a [Queue],
        histories: &'a [Vec<WaitPair>],
        start_s: u64,
    ) -> Self {
        let snapshot = snapshot(scene, queues, histories, wall(start_s));
        let (fit, _) = candidates(&snapshot);
        Self {
            scene,
            queues,
            histories,
            snapshot,
            fit,
            real: BTreeMap::new(),
        }
    }

    fn finishes(&mut self, start_s: u64) -> Vec<Finish> {
        let all = [
            (Strategy::AllLargest, self.all_largest()),
            (Strategy::FastestSite, self.fastest_site()),
            (Strategy::StaticSplit, self.static_split()),
            (Strategy::Waterfill, self.waterfill()),
            (Strategy::Planner, self.planner()),
            (
                Strategy::Loop,
                steered(
                    self.scene,
                    self.queues,
                    self.histories,
                    (&self.snapshot, &self.fit),
                ),
            ),
            (Strategy::Oracle, self.oracle()),
        ];
        let finish = |(strategy, took_s)| Finish {
            strategy,
            start_s,
            took_s,
        };
        all.map(finish).to_vec()
    }

    /// The fastest shape of each site.
    fn largest(&self) -> Vec<usize> {
        let sites = 0..self.scene.places.len();
        let fastest = |site: usize| {
            let here = (0..self.fit.len()).filter(|&c| self.fit[c].site_index == site);
            here.max_by(|&a, &b| self.speed(a).total_cmp(&self.speed(b)))
        };
        sites.filter_map(fastest).collect()
    }

    fn speed(&self, candidate: usize) -> f64 {
        self.fit[candidate].windows_per_s()
    }

    fn all_largest(&mut self) -> Option<f64> {
        let uses: Vec<Use> = self.largest().into_iter().map(once).collect();
        self.together(&uses, Balance::Off, self.scene.run.target)
    }

    fn fastest_site(&mut self) -> Option<f64> {
        let speed = |c: &usize| self.speed(*c);
        let best = self.largest().into_iter();
        let best = best.max_by(|a, b| speed(a).total_cmp(&speed(b)))?;
        self.together(&[once(best)], Balance::Off, self.scene.run.target)
    }

    fn static_split(&mut self) -> Option<f64> {
        let largest = self.largest();
        let parts = u64::try_from(largest.len().max(1)).unwrap_or(1);
        let part = Windows(self.scene.run.target.0.div_ceil(parts));
        let mut last_s: f64 = 0.0;
        for candidate in largest {
            last_s = last_s.max(self.together(&[once(candidate)], Balance::Off, part)?);
        }
        Some(last_s)
    }

    fn waterfill(&mut self) -> Option<f64> {
        let phase = self.scene.run.phase;
        let gpus = self.fit.iter().map(|c| c.shape.gpus()).min()?;
        let unit = phase.steps.0 * phase.batch.0 * u64::from(gpus);
        let request = Request {
            units: self.scene.run.target.0.div_ceil(unit),
            windows_per_unit: Windows(unit),
        };
        let poured = waterfill(&self.snapshot, request);
        let of = |share: &hansa_planner::Share| {
            let same = |c: &Candidate| {
                (c.site_index, &c.shape.name)
                    == (share.candidate.site_index, &share.candidate.shape.name)
            };
            self.fit.iter().position(same).map(once)
        };
        let uses: Vec<Use> = poured.shares.iter().filter_map(of).collect();
        self.together(&uses, Balance::Off, self.scene.run.target)
    }

    fn planner(&mut self) -> Option<f64> {
        let plan = plan(&self.snapshot, &ask(self.scene)).ok()?;
        let of = |pick: &hansa_planner::Pick| {
            let same = |c: &Candidate| {
                (c.site_index, &c.shape.name)
                    == (pick.candidate.site_index, &pick.candidate.shape.name)
            };
            Some(Use {
                candidate: self.fit.iter().position(same)?,
                replicas: pick.terms.replicas,
                begins_in: pick.terms.begins_in,
            })
        };
        let uses: Vec<Use> = plan.picks.iter().filter_map(of).collect();
        self.together(&uses, plan.balance, self.scene.run.target)
    }

    fn oracle(&mut self) -> Option<f64> {
        let counts: Vec<u32> = (0..32)
            .map(|i| 1 << i)
            .take_while(|&n| n <= self.scene.replicas_max)
            .collect();
        let sites: Vec<Vec<Option<Use>>> = (0..self.scene.places.len())
            .map(|site| {
                let here = (0..self.fit.len()).filter(|&c| self.fit[c].site_index == site);
                let uses = here.flat_map(|candidate| {
                    counts.iter().map(move |&replicas| Use {
                        replicas,
                        ..once(candidate)
                    })
                });
                [None].into_iter().chain(uses.map(Some)).collect()
            })
            .collect();
        let ways: usize = sites.iter().map(Vec::len).product();
        let mut best: Option<f64> = None;
        for way in 0..ways {
            let (mut rest, mut uses) = (way, Vec::new());
            for options in &sites {
                uses.extend(options[rest % options.len()]);
                rest /= options.len();
            }
            for balance in [Balance::Off, Balance::Within, Balance::Nearest] {
                let took_s = self.together(&uses, balance, self.scene.run.target);
                best = match (best, took_s) {
                    (Some(best), Some(took_s)) => Some(best.min(took_s)),
                    (best, took_s) => best.or(took_s),
                };
            }
        }
        best
    }

    /// When all these jobs together have trained `target`, round by round.
    fn together(&mut self, uses: &[Use], balance: Balance, target: Windows) -> Option<f64> {
        let mut members = Vec::new();
        for &one in uses {
            if !self.real.contains_key(&one) {
                let real = self.submitted(one);
                self.real.insert(one, real);
            }
            members.extend(self.real.get(&one).into_iter().flatten().cloned());
        }
        let world = World {
            balance,
            target,
            accumulation_max: self.scene.accumulation_max,
            ..World::of(&self.snapshot, self.scene.horizon).ok()?
        };
        let outcome = simulate(&world, &members);
        (outcome.ended == Ended::Target).then_some(outcome.ends_in.as_secs_f64())
    }

    /// Submits the jobs of a use, each successor at its predecessor's end, in a copy of the queue; each
    /// job as a member with its real times.
    fn submitted(&self, one: Use) -> Vec<Member> {
        let candidate = &self.fit[one.candidate];
        let place = &self.scene.places[candidate.site_index];
        let mut queue = self.queues[candidate.site_index].clone();
        let (zero_s, horizon_s) = (queue.now_s(), self.scene.horizon.as_secs());
        let width = candidate.shape.nodes * place.width_per_node;
        let walltime_s = candidate.walltime.as_secs();
        queue.run_until(zero_s + one.begins_in.as_secs());
        let mut waiting: Vec<usize> = (0..one.replicas)
            .map(|_| queue.submit(width, walltime_s, walltime_s))
            .collect();
        let mut ends: Vec<u64> = Vec::new();
        let mut members = Vec::new();
        // Walks from event to event: starts of ours, and ends after which a successor is submitted.
        while queue.now_s() < zero_s + horizon_s {
            waiting.retain(|&job| {
                let Some(start_s) = queue.start_of(job) else {
                    return true;
                };
                let starts_in = Duration::from_secs(start_s - zero_s);
                members.extend(started(&self.snapshot, candidate, starts_in));
                ends.push(start_s + walltime_s);
                false
            });
            ends.sort_unstable();
            let next_end = ends.first().copied().filter(|_| waiting.is_empty());
            match next_end {
                Some(end_s) => queue.run_until(end_s),
                // Somebody still waits: to the next event, or to the next end of ours.
                None => {
                    let until_s = ends.first().copied().unwrap_or(zero_s + horizon_s);
                    let Some(&job) = waiting.first() else { break };
                    if queue.until_started(job, until_s).is_none() {
                        queue.run_until(until_s);
                    }
                }
            }
            while ends.first().is_some_and(|&end_s| end_s <= queue.now_s()) {
                ends.remove(0);
                waiting.push(queue.submit(width, walltime_s, walltime_s));
            }
        }
        members
    }
}

const fn once(candidate: usize) -> Use {
    Use {
        candidate,
        replicas: 1,
        begins_in: Duration::ZERO,
    }
}

/// A quantile of these times, `None` counting as longest; `None` if it falls on one of them.
#[must_use]
pub fn quantile_s(took_s: &[Option<f64>], numerator: usize, denominator: usize) -> Option<f64> {
    let mut sorted: Vec<f64> = took_s.iter().map(|s| s.unwrap_or(f64::INFINITY)).collect();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len().saturating_sub(1)) * numerator / denominator.max(1);
    sorted.get(index).copied().filter(|s| s.is_finite())
}
