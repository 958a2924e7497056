//! A run whose plan is made again as its jobs start and end, as the loop of a coordinator does.
//!
//! ```text
//!   queues, our jobs, windows so far ──► snapshot ──► replan ──► submit, take back what waits
//!         ▲                                                          │
//!         └──────── to the next start or end of ours, at most Δ ◄────┘
//! ```
//!
//! A job that runs is never touched. Unlike a coordinator it looks whenever a job of its own starts or ends
//! and every ten minutes (the time between probes), always at fresh probes, and not at other news. Never
//! here: what a good plan is; learning from the run's own waits.

use std::time::Duration;

use hansa_base::Windows;
use hansa_planner::{
    Ask, Balance, Candidate, Ended, Held, Job, JobState, Member, Objective, Plan, Snapshot,
    WaitPair, WallMs, World, plan, replan, simulate,
};

use crate::campaign::{Scene, snapshot, started};
use crate::queue::Queue;

/// `Δ`: a plan is made at least so often.
const EVERY_S: u64 = 600;
/// What a new plan must gain: a recipe's, where it says nothing.
const MARGIN: f64 = 0.1;

/// A job of the run.
struct Ours {
    site: usize,
    /// Index into the site's shapes.
    shape: usize,
    hand: usize,
    submitted_s: u64,
    started_s: Option<u64>,
}

struct Steered<'a> {
    scene: &'a Scene,
    histories: &'a [Vec<WaitPair>],
    /// What was known at the start, from which all times are.
    start: &'a Snapshot,
    /// Shapes that could be used then.
    fit: &'a [Candidate],
    queues: Vec<Queue>,
    /// Of each queue, its time at the start.
    zero_s: Vec<u64>,
    now_s: u64,
    jobs: Vec<Ours>,
    held: Option<Held>,
    /// Before that, a site's new jobs are held back.
    begins_s: Vec<u64>,
    /// Members that started jobs became, in the order of starts.
    members: Vec<Member>,
}

/// What a coordinator asks of its planner whose recipe balances.
pub(crate) fn ask(scene: &Scene) -> Ask {
    Ask {
        replicas_max: scene.replicas_max,
        accumulation_max: scene.accumulation_max,
        balance: Some(Balance::Nearest),
        single: false,
        ..Ask::new(Objective::EarliestFinish, scene.horizon)
    }
}

/// How long a run takes that begins with this snapshot and its usable shapes; `None` if longer than the
/// horizon, or if something about it cannot be planned.
pub(crate) fn steered(
    scene: &Scene,
    queues: &[Queue],
    histories: &[Vec<WaitPair>],
    (start, fit): (&Snapshot, &[Candidate]),
) -> Option<f64> {
    let mut run = Steered {
        scene,
        histories,
        start,
        fit,
        queues: queues.to_vec(),
        zero_s: queues.iter().map(Queue::now_s).collect(),
        now_s: 0,
        jobs: Vec::new(),
        held: None,
        begins_s: vec![0; queues.len()],
        members: Vec::new(),
    };
    let horizon_s = scene.horizon.as_secs();
    loop {
        let outcome = simulate(&run.world(run.now_s)?, &run.members);
        if outcome.ended == Ended::Target {
            return Some(outcome.ends_in.as_secs_f64());
        }
        if run.now_s >= horizon_s {
            return None;
        }
        run.plan(outcome.windows)?;
        run.go_on(horizon_s)?;
    }
}

impl Steered<'_> {
    /// The run until `until_s`.
    fn world(&self, until_s: u64) -> Option<World> {
        Some(World {
            balance: Balance::Nearest,
            accumulation_max: self.scene.accumulation_max,
            ..World::of(self.start, Duration::from_secs(until_s)).ok()?
        })
    }

    fn at(&self, s: u64) -> WallMs {
        self.start.now.after(Duration::from_secs(s))
    }

    fn snapshot(&self, done: Windows) -> Snapshot {
        let now = self.at(self.now_s);
        let mut snapshot = snapshot(self.scene, &self.queues, self.histories, now);
        let left = |all: Windows| Windows(all.0.saturating_sub(done.0));
        snapshot.run.target = left(snapshot.run.target);
        snapshot.run.corpus = left(snapshot.run.corpus);
        for job in &self.jobs {
            let site = &mut snapshot.sites[job.site];
            site.jobs.push(Job {
                shape: site.shapes[job.shape].shape.name.clone(),
                state: match job.started_s {
                    Some(started_s) => JobState::Running {
                        started: self.at(started_s),
                    },
                    None => JobState::Pending {
                        submitted: self.at(job.submitted_s),
                    },
                },
            });
        }
        snapshot
    }

    /// Makes the plan, or makes it again, and follows it.
    fn plan(&mut self, done: Windows) -> Option<()> {
        let snapshot = self.snapshot(done);
        let ask = ask(self.scene);
        let (plan, kept) = match &self.held {
            None => (plan(&snapshot, &ask).ok()?, false),
            Some(held) => {
                let made = replan(&snapshot, &ask, held, MARGIN).ok()?;
                (made.plan, made.verdict.keeps())
            }
        };
        if !kept {
            self.begins_s.fill(0);
            for pick in &plan.picks {
                let begins_s = self.now_s + pick.terms.begins_in.as_secs();
                self.begins_s[pick.candidate.site_index] = begins_s;
            }
        }
        self.held = Some(plan.held());
        self.follow(&plan)
    }

    /// Takes back what waits and is not in the plan, and submits what is missing.
    fn follow(&mut self, plan: &Plan) -> Option<()> {
        for site in 0..self.queues.len() {
            let pick = plan.picks.iter().find(|p| p.candidate.site_index == site);
            let shapes = &self.scene.places[site].site.shapes;
            let shape = pick.and_then(|pick| {
                let name = &pick.candidate.shape.name;
                shapes.iter().position(|state| state.shape.name == *name)
            });
            let here = self.jobs.iter().filter(|job| job.site == site);
            let running = here.filter(|job| job.started_s.is_some()).count();
            let wanted = pick.map_or(0, |pick| pick.terms.replicas as usize);
            let mut missing = wanted.saturating_sub(running);
            let queue = &mut self.queues[site];
            self.jobs.retain(|job| {
                // Taking one back may let another of ours start.
                let starts = || queue.start_of(job.hand).is_some();
                if job.site != site || job.started_s.is_some() || starts() {
                    return true;
                }
                let keep = Some(job.shape) == shape && missing > 0;
                match keep {
                    true => missing -= 1,
                    false => queue.cancel(job.hand),
                }
                keep
            });
            let Some(shape) = shape.filter(|_| self.begins_s[site] <= self.now_s) else {
                continue;
            };
            let asked = &shapes[shape].shape;
            let width = asked.nodes * self.scene.places[site].width_per_node;
            let walltime_s = asked.walltime.as_secs();
            for _ in 0..missing {
                self.jobs.push(Ours {
                    site,
                    shape,
                    hand: queue.submit(width, walltime_s, walltime_s),
                    submitted_s: self.now_s,
                    started_s: None,
                });
            }
        }
        self.notice()
    }

    /// Jobs that have started become members.
    fn notice(&mut self) -> Option<()> {
        let mut started = Vec::new();
        for (i, job) in self.jobs.iter_mut().enumerate() {
            if job.started_s.is_none() {
                let start_s = self.queues[job.site].start_of(job.hand);
                job.started_s = start_s.map(|s| s - self.zero_s[job.site]);
                started.extend(job.started_s.map(|s| (s, i)));
            }
        }
        started.sort_unstable();
        for (started_s, i) in started {
            let member = self.member(&self.jobs[i], started_s)?;
            self.members.push(member);
        }
        Some(())
    }

    fn member(&self, job: &Ours, started_s: u64) -> Option<Member> {
        let state = &self.scene.places[job.site].site.shapes[job.shape];
        let same = |c: &&Candidate| (c.site_index, &c.shape.name) == (job.site, &state.shape.name);
        let candidate = self.fit.iter().find(same)?;
        started(self.start, candidate, Duration::from_secs(started_s))
    }

    /// To the next start or end of a job of ours, or to the next regular plan.
    fn go_on(&mut self, horizon_s: u64) -> Option<()> {
        let end_s = |job: &Ours| {
            let shape = &self.scene.places[job.site].site.shapes[job.shape].shape;
            Some(job.started_s? + shape.walltime.as_secs())
        };
        let ends = self.jobs.iter().filter_map(end_s);
        let begins = self.begins_s.iter().copied().filter(|&s| s > self.now_s);
        let regular = [self.now_s + EVERY_S, horizon_s];
        let mut until_s = ends.chain(begins).chain(regular).min().unwrap_or(horizon_s);
        // A start in one queue may come before that: look in copies.
        for job in self.jobs.iter().filter(|job| job.started_s.is_none()) {
            let mut world = self.queues[job.site].clone();
            let zero_s = self.zero_s[job.site];
            if let Some(start_s) = world.until_started(job.hand, zero_s + until_s) {
                until_s = until_s.min(start_s - zero_s);
            }
        }
        for (queue, zero_s) in self.queues.iter_mut().zip(&self.zero_s) {
            queue.run_until(zero_s + until_s);
        }
        self.now_s = until_s;
        self.notice()?;
        let scene = self.scene;
        self.jobs.retain(|job| {
            let walltime = scene.places[job.site].site.shapes[job.shape].shape.walltime;
            job.started_s
                .is_none_or(|s| s + walltime.as_secs() > until_s)
        });
        Some(())
    }
}
