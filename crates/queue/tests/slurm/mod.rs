//! A batch system on the back of an envelope.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use hansa_queue::*;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

const GPUS: u64 = 8;
const LIMIT_S: u64 = 7200;

#[derive(Clone)]
struct FakeJob {
    intent: u64,
    replica: String,
    state: &'static str,
    submitted: u64,
    begin: u64,
    singleton: bool,
    started: Option<u64>,
    ended: Option<u64>,
    exit_code: u32,
    restarts: u32,
    cancelled_by: Option<u32>,
}

pub struct Slurm {
    jobs: BTreeMap<u64, FakeJob>,
    under_way: Vec<(u64, Submission)>,
    requeues: bool,
    /// Jobs that were taken, by intent.
    pub accepted: BTreeMap<u64, Vec<String>>,
}

impl Slurm {
    pub fn new(requeues: bool) -> Self {
        Self {
            jobs: BTreeMap::new(),
            under_way: Vec::new(),
            requeues,
            accepted: BTreeMap::new(),
        }
    }

    pub fn accept(&mut self, now: u64, submission: &Submission) -> String {
        let id = 100 + self.jobs.len() as u64;
        let intent = submission.intent.0;
        let (begin, singleton) = match submission.begin {
            Begin::Now => (now, false),
            Begin::At(at) => (at.0, false),
            Begin::Singleton => (now, true),
        };
        self.jobs.insert(
            id,
            FakeJob {
                intent,
                replica: submission.replica.to_string(),
                state: "PENDING",
                submitted: now,
                begin,
                singleton,
                started: None,
                ended: None,
                exit_code: 0,
                restarts: 0,
                cancelled_by: None,
            },
        );
        self.accepted
            .entry(intent)
            .or_default()
            .push(id.to_string());
        id.to_string()
    }

    pub fn land_later(&mut self, at: u64, submission: &Submission) {
        self.under_way.push((at, submission.clone()));
    }

    pub fn by_intent(&self, intent: u64) -> Option<String> {
        let mut jobs = self.jobs.iter();
        jobs.find(|(_, job)| job.intent == intent)
            .map(|(id, _)| id.to_string())
    }

    pub fn cancel(&mut self, job: &str, now: u64, by: Option<u32>) {
        let job = self.jobs.get_mut(&job.parse().unwrap());
        if let Some(job) = job.filter(|job| job.ended.is_none()) {
            job.state = "CANCELLED";
            job.ended = Some(now);
            job.cancelled_by = by;
        }
    }

    /// What `scancel --state=PENDING` does.
    pub fn recall(&mut self, job: &str, now: u64) {
        let known = self.jobs.get(&job.parse().unwrap());
        if known.is_some_and(|job| job.state == "PENDING") {
            self.cancel(job, now, None);
        }
    }

    pub fn release(&mut self, job: &str, now: u64) {
        if let Some(job) = self.jobs.get_mut(&job.parse().unwrap()) {
            job.begin = job.begin.min(now);
        }
    }

    pub fn step(&mut self, now: u64, random: &mut Random, trouble: bool) {
        let (landed, still) = std::mem::take(&mut self.under_way)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.under_way = still;
        let landed: Vec<(u64, Submission)> = landed;
        for (_, submission) in landed {
            self.accept(now, &submission);
        }
        let running: Vec<String> = self
            .jobs
            .values()
            .filter(|job| job.state == "RUNNING")
            .map(|job| job.replica.clone())
            .collect();
        for job in self.jobs.values_mut() {
            match job.state {
                "PENDING" => {
                    let free = !job.singleton || !running.contains(&job.replica);
                    if job.begin <= now && free && random.below(30) == 0 {
                        job.state = "RUNNING";
                        job.started = Some(now);
                    }
                }
                "RUNNING" => job.run(now, random, trouble, self.requeues),
                _ => {}
            }
        }
    }

    /// What squeue and sacct show together.
    pub fn reports(&self) -> Vec<JobReport> {
        let all = self.jobs.iter().map(|(id, job)| JobReport {
            intent: IntentId(job.intent),
            job: id.to_string().as_str().into(),
            state: job.state.into(),
            cancelled_by: job.cancelled_by,
            reason: "None".into(),
            source: JobSource::Squeue,
            submitted: Some(UnixS(job.submitted)),
            started: job.started.map(UnixS),
            ended: job.ended.map(UnixS),
            limit_s: Some(LIMIT_S),
            nodes: vec!["nid1".into()],
            exit_code: Some(job.exit_code),
            signal: None,
            restarts: job.restarts,
        });
        all.collect()
    }

    /// When a job ended, if it has.
    pub fn ended(&self, job: &JobId) -> Option<u64> {
        self.jobs.get(&job.as_str().parse().unwrap())?.ended
    }

    /// What all jobs have used, and those that live may still use.
    pub fn cost_at_most(&self, _now: u64) -> u64 {
        let seconds = self
            .jobs
            .values()
            .map(|job| match (job.started, job.ended) {
                (Some(started), Some(ended)) => ended - started,
                (None, Some(_)) => 0,
                _ => LIMIT_S,
            });
        let under_way = self.under_way.len() as u64 * LIMIT_S;
        (seconds.sum::<u64>() + under_way) * GPUS
    }
}

impl FakeJob {
    fn run(&mut self, now: u64, random: &mut Random, trouble: bool, requeues: bool) {
        let ran = now - self.started.unwrap_or(now);
        let over = |job: &mut Self, state| {
            job.state = state;
            job.ended = Some(now.min(job.started.unwrap_or(now) + LIMIT_S));
        };
        if ran >= LIMIT_S {
            return over(self, "TIMEOUT");
        }
        if !trouble {
            return;
        }
        match random.below(4000) {
            0..8 => over(self, "COMPLETED"),
            8..16 => {
                self.exit_code = 1;
                over(self, "FAILED");
            }
            16..20 => {
                self.exit_code = 75;
                over(self, "FAILED");
            }
            20..24 => {
                self.cancelled_by = Some(1000);
                over(self, "CANCELLED");
            }
            24..28 => over(self, "NODE_FAIL"),
            28..36 if requeues => {
                self.state = "PENDING";
                self.started = None;
                self.begin = now + 30;
                self.restarts += 1;
            }
            _ => {}
        }
    }
}
