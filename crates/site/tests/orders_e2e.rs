//! Orders against a real Slurm: whatever is killed whenever, an intent has one job.
//!
//! The coordinator here does nothing but give orders and take reports; what a real one decides is tested
//! where it decides.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use hansa_queue::{
    Begin, How, IntentId, JobId, LeaseNo, Order, Report, RunNews, Submission, SyncReply,
    SyncRequest, UnixS,
};
use hansa_site::{Note, Notes, Options, Profile, run};
use hansa_testkit::SlurmCluster;
use hansa_wire::Wire;
use hansa_wire::queue::SYNC;
use tokio::sync::watch;

const RUN: &str = "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f809";

#[derive(Default)]
struct Desk {
    lease: u64,
    holder: String,
    seen: BTreeMap<String, u64>,
    orders: Vec<Order>,
    reports: Vec<Report>,
}

impl Desk {
    fn answer(&mut self, sync: SyncRequest) -> SyncReply {
        if sync.holder.as_str() != self.holder {
            sync.holder.as_str().clone_into(&mut self.holder);
            self.lease += 1;
            // Whoever had an order before may have tried.
            for order in &mut self.orders {
                if let Order::Submit(submission) = order {
                    submission.tried = self.lease > 1;
                }
            }
        }
        let accepted = self.seen.entry(sync.spool.to_string()).or_default();
        for stamped in sync.reports {
            if stamped.seq > *accepted {
                *accepted = stamped.seq;
                self.orders.retain(|order| !settles(&stamped.report, order));
                self.reports.push(stamped.report);
            }
        }
        SyncReply {
            lease: LeaseNo(self.lease),
            lease_ttl_ms: 180_000,
            next_sync_ms: 500,
            accepted_through: *accepted,
            orders: self.orders.clone(),
            news: RunNews {
                run_id: RUN.to_owned(),
                ended: false,
                paused: None,
                drained: None,
                queue_paused: None,
                windows_left: 1,
                now: UnixS(1_800_000_000),
            },
            jobs: None,
        }
    }

    fn outcomes(&self) -> BTreeMap<u64, Vec<(String, How)>> {
        let mut all: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        for report in &self.reports {
            if let Report::Submitted {
                intent, job, how, ..
            } = report
            {
                all.entry(intent.0)
                    .or_default()
                    .push((job.to_string(), *how));
            }
        }
        all
    }
}

fn settles(report: &Report, order: &Order) -> bool {
    match (report, order) {
        (
            Report::Submitted { intent, .. } | Report::NotSubmitted { intent, .. },
            Order::Submit(s),
        ) => s.intent == *intent,
        (
            Report::Submitted { intent, .. } | Report::NotSubmitted { intent, .. },
            Order::Withdraw { intent: i, .. },
        ) => i == intent,
        (Report::Cancelled { intent, .. }, Order::Cancel { intent: i, .. }) => i == intent,
        (Report::Tail { intent, .. }, Order::Tail { intent: i, .. }) => i == intent,
        (Report::Probe(probe), Order::Probe { shape }) => probe.shape == *shape,
        _ => false,
    }
}

type SharedDesk = Arc<Mutex<Desk>>;
type RequestJson = <SyncRequest as Wire>::Json;
type ReplyJson = <SyncReply as Wire>::Json;

async fn sync(State(desk): State<SharedDesk>, Json(json): Json<RequestJson>) -> Json<ReplyJson> {
    let request = SyncRequest::from_json(json).unwrap();
    Json(desk.lock().unwrap().answer(request).to_json())
}

struct Scene {
    cluster: SlurmCluster,
    folder: tempfile::TempDir,
    desk: SharedDesk,
    url: String,
}

impl Scene {
    async fn set() -> Option<Self> {
        let cluster = SlurmCluster::start("birch")?;
        let desk = SharedDesk::default();
        let app = Router::new()
            .route(SYNC, post(sync))
            .with_state(desk.clone());
        let url = common::serve(app).await;
        let folder = tempfile::tempdir().unwrap();
        Some(Self {
            cluster,
            folder,
            desk,
            url,
        })
    }

    fn profile(&self) -> Profile {
        let conf = self.cluster.conf();
        let text = format!(
            r#"name = "birch"
[coordinator]
url = "{}"
token_file = "token"
[slurm]
conf = "{}"
account = "project_test"
[jobs]
wanted = 1
shape = "tiny"
chain = "begin"
[[shape]]
name = "tiny"
partition = "gpu"
nodes = 1
gpus_per_node = 0
walltime = "00:02:00"
[script]
corpus = "corpus"
state = "state"
logs = "logs"
command = "bash -c 'echo hello from $SLURM_JOB_NAME; exec sleep 1'"
signal_before_s = 10
[watch]
probe_every_s = 600
follow_every_s = 1
"#,
            self.url,
            conf.display()
        );
        Profile::parse(&text, &self.folder.path().join("birch.toml")).unwrap()
    }

    fn options(&self) -> Options {
        let tell: Notes = Arc::new(|note: &Note| eprintln!("{note:?}"));
        common::options(self.profile(), self.folder.path(), &self.url, true, tell)
    }

    fn order(&self, order: Order) {
        self.desk.lock().unwrap().orders.push(order);
    }

    /// Runs the site process until the desk is as wanted.
    async fn until(&self, wanted: impl Fn(&Desk) -> bool) {
        let (stop, stopped) = watch::channel(false);
        let site = tokio::spawn(run(self.options(), stopped));
        while !wanted(&self.desk.lock().unwrap()) {
            assert!(!site.is_finished(), "{:?}", site.await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        stop.send(true).unwrap();
        site.await.unwrap().unwrap();
    }

    /// Somebody submitted the intent once more: that is told, and cancelled by its number, while the intent's
    /// own job stays.
    async fn cancel_a_second_job_of(&self, intent: u64, own: &JobId) {
        let name = format!("--job-name=hansa-1a2b3c4d-birch-r1-{intent}");
        let comment = format!("--comment=hansa run=1a2b3c4d replica=r1 intent={intent}");
        let arguments = [
            "--parsable",
            "--account=project_test",
            "--begin=now+1hour",
            "--time=1",
            &name,
            &comment,
            "--wrap=true",
        ];
        let second = self.cluster.ask("sbatch", &arguments);
        let second = JobId::new(second.trim());
        let told = |desk: &Desk| {
            let jobs = desk.outcomes();
            let mut jobs = jobs[&intent].iter();
            jobs.any(|(job, _)| *job == second.as_str())
        };
        self.until(told).await;
        self.order(Order::Cancel {
            intent: IntentId(intent),
            job: second.clone(),
            why: "there should be no such job".into(),
        });
        self.until(|desk| desk.orders.is_empty()).await;
        let state = |job: &JobId| {
            let arguments = ["-h", "-t", "all", "-j", job.as_str(), "-o", "%T"];
            self.cluster.ask("squeue", &arguments).trim().to_owned()
        };
        assert_eq!(
            (state(&second), state(own)),
            ("CANCELLED".into(), "PENDING".into())
        );
    }

    /// Facts about job 1, and that intent 3 has none.
    fn judge_what_was_told(&self) {
        let desk = self.desk.lock().unwrap();
        let tail = desk.reports.iter().find_map(|report| match report {
            Report::Tail { text, .. } => Some(text.as_str().to_owned()),
            _ => None,
        });
        assert_eq!(tail.unwrap(), "hello from hansa-1a2b3c4d-birch-r1-1\n");
        let withdrawn = desk.reports.iter().any(|report| match report {
            Report::NotSubmitted {
                intent, refusal, ..
            } => intent.0 == 3 && refusal.kind.word() == "withdrawn",
            _ => false,
        });
        assert!(withdrawn, "{:?}", desk.reports);
        let done = desk.reports.iter().find_map(|report| match report {
            Report::Job(job) if job.intent.0 == 1 && job.state.as_str() == "COMPLETED" => Some(job),
            _ => None,
        });
        let done = done.unwrap();
        assert_eq!(done.exit_code, Some(0));
        assert!(
            done.started.is_some() && done.ended >= done.started && !done.nodes.is_empty(),
            "{done:?}"
        );
        let kinds = |wanted: fn(&Report) -> bool| desk.reports.iter().any(wanted);
        assert!(
            kinds(|r| matches!(r, Report::Usage(_)))
                && kinds(|r| matches!(r, Report::Partition(_)))
        );
        assert!(kinds(
            |r| matches!(r, Report::Probe(p) if matches!(p.answer, hansa_queue::ProbeAnswer::Starts(_)))
        ));
        assert!(Path::new(&self.folder.path().join("logs")).exists());
    }

    /// Runs it for a while and kills it, wherever it is.
    async fn kill_after(&self, moment: Duration) {
        let (_stop, stopped) = watch::channel(false);
        let site = tokio::spawn(run(self.options(), stopped));
        tokio::time::sleep(moment).await;
        site.abort();
        let _ = site.await;
    }
}

fn submit(intent: u64, begin: Begin) -> Order {
    Order::Submit(Submission {
        intent: IntentId(intent),
        replica: "r1".parse().unwrap(),
        shape: "tiny".into(),
        link: 1,
        begin,
        exclude: Vec::new(),
        tried: false,
    })
}

const INTENTS: u64 = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_intent_gets_one_job_whatever_is_killed_when() {
    let Some(scene) = Scene::set().await else {
        return;
    };
    for intent in 1..=INTENTS {
        scene.order(submit(intent, Begin::Now));
    }
    // Killed again and again, at other moments of its work each time; once beside a controller that hangs.
    for (index, ms) in [150, 900, 350, 1300, 600, 2500, 1100]
        .into_iter()
        .enumerate()
    {
        if index == 3 {
            scene.cluster.tool("pause", &[]);
        }
        scene.kill_after(Duration::from_millis(ms)).await;
        if index == 3 {
            scene.cluster.tool("resume", &[]);
        }
    }
    scene.until(|desk| desk.orders.is_empty()).await;
    let outcomes = scene.desk.lock().unwrap().outcomes();
    assert_eq!(outcomes.len() as u64, INTENTS, "{outcomes:?}");
    for (intent, jobs) in &outcomes {
        let ids: BTreeSet<_> = jobs.iter().map(|(job, _)| job).collect();
        assert_eq!(ids.len(), 1, "intent {intent} has {jobs:?}");
    }
    // The accounting is the judge; it has a job's end a little before its name.
    let ours = |said: &str| {
        said.lines()
            .filter(|name| name.starts_with("hansa-"))
            .count()
    };
    let over = |said: &str| ours(said) as u64 >= INTENTS;
    let arguments = [
        "-X",
        "-n",
        "-P",
        "-S",
        "now-1hours",
        "-s",
        "CD",
        "-E",
        "now",
        "--format=JobName",
    ];
    let said = scene.cluster.ask_until("sacct", &arguments, over);
    let names: BTreeSet<_> = said.lines().collect();
    assert_eq!(names.len() as u64, INTENTS, "{said}");
    assert_eq!(scene.cluster.jobs("hansa-").len() as u64, INTENTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_followed_to_their_end_and_a_waiting_one_is_cancelled_and_withdrawn_ones_never_are_jobs()
 {
    let Some(scene) = Scene::set().await else {
        return;
    };
    scene.order(submit(1, Begin::Now));
    let later = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs()
        + 3600;
    scene.order(submit(2, Begin::At(UnixS(later))));
    scene.order(Order::Probe {
        shape: "tiny".into(),
    });
    let ended = |desk: &Desk, intent: u64, state: &str| {
        desk.reports.iter().any(|report| match report {
            Report::Job(job) => job.intent.0 == intent && job.state.as_str() == state,
            _ => false,
        })
    };
    scene
        .until(|desk| {
            ended(desk, 1, "COMPLETED") && ended(desk, 2, "PENDING") && desk.orders.is_empty()
        })
        .await;
    let outcomes = scene.desk.lock().unwrap().outcomes();
    let job = |intent: u64| JobId::new(&outcomes[&intent][0].0);
    scene.cancel_a_second_job_of(2, &job(2)).await;
    scene.order(Order::Cancel {
        intent: IntentId(2),
        job: job(2),
        why: "the run is over".into(),
    });
    scene.order(Order::Tail {
        intent: IntentId(1),
        job: job(1),
    });
    scene.order(Order::Withdraw {
        intent: IntentId(3),
        why: "not wanted".into(),
    });
    scene
        .until(|desk| ended(desk, 2, "CANCELLED") && desk.orders.is_empty())
        .await;
    scene.judge_what_was_told();
}
