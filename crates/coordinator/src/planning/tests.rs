//! What a snapshot says of a queue and a run that a test makes up.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use hansa_base::{Incarnation, MonoMs, ReplicaKey, SiteName, Steps, Windows};
use hansa_planner::{Answer, Exclusion, JobState, Snapshot, Source, WallMs, candidates};
use hansa_protocol::{PhaseSpec, PhaseTimes};
use hansa_queue::{
    Budget, Chain, GpuS, How, IntentId, JobReport, JobSource, Machine, Now, ProbeAnswer,
    ProbeReport, Refusal, RefusalKind, Report, ReservationReport, Retry, RunView, Shape,
    SiteProfile, Stamped, State, Stated, StatedShape, SyncRequest, Timing, UnixS,
};
use hansa_wire::recipe::PlanSection;

use super::adopt::decide;
use super::facts::{ReplicaFacts, RoundFacts, RunFacts};
use super::live::{NoSnapshot, Sources, snapshot};
use super::measure::Measured;

const START: u64 = 1_764_000_000;

fn lumi() -> SiteName {
    "lumi".parse().unwrap()
}

fn shape(name: &str, nodes: u32) -> Shape {
    Shape {
        name: name.into(),
        partition: "small-g".into(),
        account: None,
        qos: None,
        nodes,
        gpus_per_node: 8,
        walltime_s: 7200,
    }
}

fn profile() -> SiteProfile {
    SiteProfile {
        wanted_jobs: 2,
        preferred: "one".into(),
        shapes: vec![shape("one", 1), shape("four", 4)],
        chain: Chain::Begin,
        max_pending: 8,
        budget: Budget {
            gpu_s_left: Some(GpuS(100 * 3600)),
            reserve_gpu_s: GpuS(3600),
            ends_at: None,
        },
        probe_every_s: 300,
        usage_every_s: 3600,
        retry: Retry::default(),
        accounting_lag_s: None,
        stated: Some(Stated {
            startup_ms: Some(90_000),
            transfer_ms: Some(20_000),
            leaves_before_ms: Some(300_000),
            nodes_max: Some(16),
            jobs_max: None,
            shapes: vec![StatedShape {
                shape: "one".into(),
                microwindows_per_gpu_s: Some(4_800_000),
                ranks: Some(8),
            }],
        }),
    }
}

/// A queue and a run, and somebody who looks at them.
struct Scene {
    queue: Machine,
    run: RunFacts,
    view: RunView,
    measured: Measured,
    now_s: u64,
    spooled: u64,
}

impl Scene {
    /// The profile is known, and the queue has ordered a job for each of two replicas.
    fn new() -> Self {
        let view = RunView {
            windows_left: 1000,
            ..RunView::default()
        };
        let mut scene = Self {
            queue: Machine::new(State::new(), Timing::default(), MonoMs(0)),
            run: RunFacts {
                left: Some(Windows(50_000)),
                over: false,
                paused: false,
                rounds: Vec::new(),
                replicas: Vec::new(),
            },
            view,
            measured: Measured::default(),
            now_s: START,
            spooled: 0,
        };
        scene.say(Some(profile()), Vec::new());
        scene.look();
        scene
    }

    fn say(&mut self, profile: Option<SiteProfile>, reports: Vec<Report>) {
        let at = UnixS(self.now_s);
        let stamped = reports.into_iter().map(|report| {
            self.spooled += 1;
            let seq = self.spooled;
            Stamped { seq, at, report }
        });
        let request = SyncRequest {
            site: lumi(),
            holder: "uan02 1 aaaa".into(),
            lease: None,
            take_over: false,
            leave: false,
            profile,
            spool: "spool".into(),
            reports: stamped.collect(),
        };
        let now = Now {
            wall: at,
            mono: MonoMs((self.now_s - START) * 1000),
        };
        self.queue.sync(request, &self.view, now).reply.unwrap();
    }

    fn look(&mut self) -> Snapshot {
        let now = WallMs(self.now_s * 1000);
        self.measured.learn(&self.run, self.queue.state(), now);
        self.snapshot().unwrap()
    }

    fn snapshot(&self) -> Result<Snapshot, NoSnapshot> {
        snapshot(&Sources {
            section: &PlanSection {
                merge_s: Some(3.0),
                ..PlanSection::default()
            },
            phase: PhaseSpec {
                steps: Steps(20),
                batch: Windows(4),
                accumulation: 1,
                balance: true,
            },
            seq_len: 16,
            run: &self.run,
            view: &self.view,
            queue: self.queue.state(),
            attended: &[lumi()],
            measured: &self.measured,
            now: WallMs(self.now_s * 1000),
        })
    }

    fn probe(&mut self, shape: &str, answer: ProbeAnswer) {
        let probe = ProbeReport {
            shape: shape.into(),
            prober: "ada project_1".into(),
            took_ms: 14,
            answer,
            partition: None,
            raw: "".into(),
        };
        self.say(None, vec![Report::Probe(probe)]);
    }

    /// The job of an intent runs since so many seconds.
    fn runs(&mut self, intent: u64, job: &str, since_s: u64) {
        let submitted = Report::Submitted {
            intent: IntentId(intent),
            job: job.into(),
            how: How::Reply,
            raw: job.into(),
        };
        let running = JobReport {
            intent: IntentId(intent),
            job: job.into(),
            state: "RUNNING".into(),
            cancelled_by: None,
            reason: "None".into(),
            source: JobSource::Squeue,
            submitted: Some(UnixS(self.now_s - since_s - 60)),
            started: Some(UnixS(self.now_s - since_s)),
            ended: None,
            limit_s: Some(7200),
            nodes: Vec::new(),
            exit_code: None,
            signal: None,
            restarts: 0,
        };
        self.say(None, vec![submitted, Report::Job(running)]);
    }
}

/// What the run says of the replica `r1`.
fn replica(training: Option<Incarnation>) -> ReplicaFacts {
    ReplicaFacts {
        id: "lumi/r1".parse().unwrap(),
        ranks: 4,
        training,
    }
}

fn refused(lasting: bool) -> ProbeAnswer {
    ProbeAnswer::Refused(Refusal {
        kind: RefusalKind::from_word("other"),
        lasting,
        text: "Requested node configuration is not available".into(),
    })
}

fn reasons(snapshot: &Snapshot) -> Vec<(String, Exclusion)> {
    let (_, excluded) = candidates(snapshot);
    let of = |e: hansa_planner::Excluded| (e.shape.0, e.reason);
    excluded.into_iter().map(of).collect()
}

#[test]
fn what_a_profile_says_counts_until_it_is_measured_and_the_rest_is_missing_by_name() {
    let mut scene = Scene::new();
    let first = scene.look();
    assert_eq!(
        reasons(&first),
        [
            ("one".to_owned(), Exclusion::NeverProbed),
            ("four".to_owned(), Exclusion::NeverProbed)
        ]
    );
    scene.probe("one", ProbeAnswer::Starts(UnixS(START + 600)));
    scene.probe("four", ProbeAnswer::Starts(UnixS(START + 600)));
    let probed = scene.look();
    assert_eq!(reasons(&probed), [("four".to_owned(), Exclusion::NoRate)]);
    let site = &probed.sites[0];
    let startup = site.startup.best().unwrap();
    assert_eq!(startup.value, Duration::from_secs(90));
    assert_eq!(startup.source.to_string(), "site profile, costs.startup_s");
    assert_eq!(site.limits.replicas.as_ref().unwrap().value, 2);
    assert_eq!(site.limits.nodes.as_ref().unwrap().value, 16);
    // Of 100 GPU-hours none is spent; what waits can be taken back.
    let budget = site.budget.as_ref().unwrap();
    assert_eq!(
        (budget.gpu_hours.value, budget.keep_gpu_hours),
        (100.0, 1.0)
    );
    assert_eq!(probed.run.target, Windows(50_000));
}

#[test]
fn rounds_are_attributed_to_the_shape_of_the_job_that_runs() {
    let mut scene = Scene::new();
    scene.probe("one", ProbeAnswer::Starts(UnixS(START)));
    scene.now_s += 600;
    scene.runs(1, "11", 5);
    scene.run.replicas = vec![replica(None)];
    scene.look();
    // It trains 20 s after its start.
    scene.now_s += 15;
    scene.run.replicas = vec![replica(Some(Incarnation(7)))];
    scene.look();
    scene.now_s += 100;
    let times = PhaseTimes {
        download_ms: 2_000,
        evaluate_ms: 1_000,
        train_ms: 10_000,
        checkpoint_ms: 500,
        upload_ms: 1_500,
        wait_ms: 3_000,
        trained: Windows(800),
        uploaded: hansa_base::Bytes(1),
    };
    scene.run.rounds = vec![RoundFacts {
        base: 0,
        merge_ms: 700,
        times: vec![(ReplicaKey(0), times)],
    }];
    scene.look();
    // The same round again is no new one.
    let snapshot = scene.look();
    let site = &snapshot.sites[0];
    let one = &site.shapes[0];
    let rate = one.rate.as_ref().unwrap();
    assert_eq!(
        (rate.value.0, rate.source.clone()),
        (10.0, Source::RunRecords { rounds: 1 })
    );
    assert_eq!(one.ranks.as_ref().unwrap().value, 4);
    assert_eq!(
        site.rate.as_ref().unwrap().value.0,
        10.0,
        "for other shapes"
    );
    assert!(
        site.shapes[1].rate.is_none(),
        "and never as if measured there"
    );
    assert_eq!(site.transfer.best().unwrap().value, Duration::from_secs(5));
    let startup = site.startup.best().unwrap();
    assert_eq!(startup.value, Duration::from_secs(20));
    assert_eq!(startup.source, Source::JobLogs { jobs: 1 });
    assert_eq!(
        snapshot.run.merge.best().unwrap().value,
        Duration::from_millis(700)
    );
    let running = JobState::Running {
        started: WallMs((START + 595) * 1000),
    };
    assert_eq!(site.jobs[0].state, running);
    // Its successor belongs to its chain; the other replica waits.
    assert_eq!(site.jobs.len(), 2);
    // 16 GPU-hours of the one that runs are taken.
    assert_eq!(site.budget.as_ref().unwrap().gpu_hours.value, 84.0);
}

#[test]
fn one_refusal_that_may_pass_is_provisional_and_a_failed_probe_says_nothing() {
    let mut scene = Scene::new();
    let answer = |scene: &mut Scene| scene.look().sites[0].shapes[0].probe.clone().unwrap();
    let starts = Answer::StartsAt(WallMs((START + 600) * 1000));
    scene.probe("one", ProbeAnswer::Starts(UnixS(START + 600)));
    scene.now_s += 60;
    scene.probe("one", ProbeAnswer::Failed("timed out".into()));
    assert_eq!(answer(&mut scene).value, starts);
    scene.probe("one", refused(false));
    let provisional = answer(&mut scene);
    assert_eq!(
        (provisional.value, provisional.at),
        (starts, WallMs(START * 1000))
    );
    scene.now_s += 60;
    scene.probe("one", refused(false));
    assert!(
        matches!(answer(&mut scene).value, Answer::Refused(_)),
        "twice is enough"
    );
    scene.probe("one", ProbeAnswer::Starts(UnixS(START + 900)));
    scene.probe("one", refused(true));
    assert!(
        matches!(answer(&mut scene).value, Answer::Refused(_)),
        "for good"
    );
}

#[test]
fn drained_paused_unattended_and_closed_sites_say_so() {
    let mut scene = Scene::new();
    scene.probe("one", ProbeAnswer::Starts(UnixS(START + 600)));
    let shut = |snapshot: &Snapshot| {
        let shut = snapshot.sites[0].shapes[0].shut.clone();
        shut.map(|fact| fact.value)
    };
    assert_eq!(shut(&scene.look()), None);
    scene.view.drained.insert(lumi(), "heat".into());
    let drained = scene.look();
    assert_eq!(shut(&drained).unwrap(), "the site is drained: heat");
    assert_eq!(drained.sites[0].jobs, [], "they are sent away");
    scene.view.drained.clear();

    let repair = |start, end| {
        Report::Reservation(ReservationReport {
            name: "repair".into(),
            start: UnixS(start),
            end: UnixS(end),
            nodes: "ALL".into(),
            maintenance: true,
            raw: "".into(),
        })
    };
    scene.say(None, vec![repair(START + 3600, START + 7200)]);
    let closed = &scene.look().sites[0].closed;
    assert_eq!(closed[0].value.from, WallMs((START + 3600) * 1000));
    // A promised start within it: it is of other nodes.
    scene.say(None, vec![repair(START, START + 7200)]);
    assert_eq!(scene.look().sites[0].closed, []);
}

#[test]
fn a_run_of_so_many_rounds_has_no_snapshot() {
    let mut scene = Scene::new();
    scene.run.left = None;
    let problem = scene.snapshot().unwrap_err().to_string();
    assert!(problem.contains("end.tokens or end.epochs"), "{problem}");
}

#[test]
fn without_a_usable_shape_no_plan_is_adopted_and_the_reason_is_said() {
    let mut scene = Scene::new();
    let ask = hansa_planner::Ask::new(
        hansa_planner::Objective::EarliestFinish,
        Duration::from_secs(86_400),
    );
    let none = decide(&scene.look(), &ask, None, Some(0.1), 1, "first look");
    assert_eq!(none.adopt, None);
    assert!(none.verdict.contains("never probed"), "{}", none.verdict);

    scene.probe("one", ProbeAnswer::Starts(UnixS(START + 60)));
    let snapshot = scene.look();
    let first = decide(&snapshot, &ask, None, Some(0.1), 1, "first look");
    let plan = first.adopt.unwrap();
    assert_eq!(
        (plan.no, plan.sites[0].shape.as_str(), plan.sites[0].ahead),
        (1, "one", true)
    );
    assert_eq!(plan.promise.ended.as_str(), "target");
    let again = decide(&snapshot, &ask, Some(&plan), Some(0.1), 2, "regular");
    assert_eq!(again.adopt, None, "{}", again.verdict);
    // Applied all the same, if somebody wants it.
    let applied = decide(
        &snapshot,
        &ask,
        Some(&plan),
        None,
        2,
        "an operator applied it",
    );
    assert_eq!(applied.adopt.unwrap().no, 2);
}

#[test]
fn where_nothing_may_be_decided_for_a_while_the_plan_in_force_stays() {
    let mut scene = Scene::new();
    let day = Duration::from_secs(86_400);
    let ask = hansa_planner::Ask::new(hansa_planner::Objective::EarliestFinish, day);
    scene.probe("one", ProbeAnswer::Starts(UnixS(START + 60)));
    let first = decide(&scene.look(), &ask, None, Some(0.1), 1, "first look");
    let plan = first.adopt.unwrap();
    assert_eq!(plan.sites.len(), 1);
    let next = |snapshot: &Snapshot, margin| decide(snapshot, &ask, Some(&plan), margin, 2, "news");

    scene.view.drained.insert(lumi(), "heat".into());
    let drained = next(&scene.look(), Some(0.1));
    assert_eq!(drained.adopt, None, "{}", drained.verdict);
    scene.view.drained.clear();

    // Shut alone, a shape gives way to another of its site.
    scene.probe("four", ProbeAnswer::Starts(UnixS(START + 60)));
    let mut shut = scene.look();
    shut.sites[0].shapes[0].shut = Some(hansa_planner::Fact {
        value: "the partition is down".to_owned(),
        source: hansa_planner::Source::Operator,
        at: shut.now,
    });
    let rate = shut.sites[0].shapes[0].rate.clone();
    shut.sites[0].shapes[1].rate = rate;
    let moved = next(&shut, Some(0.1)).adopt.unwrap();
    assert_eq!(moved.sites[0].shape.as_str(), "four", "{}", moved.why);
    scene.probe("four", refused(true));

    // Nobody has probed for a day.
    scene.now_s += 86_400;
    let blind = scene.look();
    let unknown = next(&blind, Some(0.1));
    assert_eq!(unknown.adopt, None, "{}", unknown.verdict);
    let applied = next(&blind, None).adopt.unwrap();
    assert_eq!((applied.no, applied.sites), (2, plan.sites.clone()));

    // Refused for good: that is known.
    scene.probe("one", refused(true));
    let gone = next(&scene.look(), Some(0.1)).adopt.unwrap();
    assert_eq!(gone.sites, []);
}

#[test]
fn a_job_that_ran_before_anybody_looked_says_nothing_of_starting_up() {
    let mut scene = Scene::new();
    scene.now_s += 600;
    scene.runs(1, "11", 5);
    // The coordinator is started again five hours later, and hears of the replica anew.
    scene.now_s += 5 * 3600;
    scene.measured = Measured::default();
    scene.run.replicas = vec![replica(None)];
    scene.look();
    scene.now_s += 2;
    scene.run.replicas = vec![replica(Some(Incarnation(7)))];
    let startup = scene.look().sites[0].startup.best().unwrap().clone();
    assert_eq!(startup.value, Duration::from_secs(90), "the profile's");
}
