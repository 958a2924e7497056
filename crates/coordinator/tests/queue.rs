//! The queue over real HTTP: site processes, operators, restarts, backups.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::SiteName;
use hansa_coordinator::{Scope, backup, issue_token, restore};
use hansa_queue::*;
use hansa_transfer::{Client, TransferError};
use hansa_wire::Wire;
use hansa_wire::http::Done;
use hansa_wire::plan::live::{APPLY, PLAN, PlanView};
use hansa_wire::queue::view::{LogsView, QueueView, SiteView};
use hansa_wire::queue::{AdoptedJson, LOGS, OPERATE, QUEUE, SYNC};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const CALL_MAX: Duration = Duration::from_secs(10);

fn profile() -> SiteProfile {
    SiteProfile {
        wanted_jobs: 1,
        preferred: "small".into(),
        shapes: vec![Shape {
            name: "small".into(),
            partition: "small-g".into(),
            account: None,
            qos: None,
            nodes: 1,
            gpus_per_node: 8,
            walltime_s: 3600,
        }],
        chain: Chain::Begin,
        max_pending: 4,
        budget: Budget {
            gpu_s_left: Some(GpuS(100 * 3600)),
            ..Budget::default()
        },
        probe_every_s: 300,
        usage_every_s: 3600,
        retry: Retry::default(),
        stated: None,
        accounting_lag_s: None,
    }
}

/// A site process that says what a test tells it.
struct Site {
    client: Client,
    holder: &'static str,
    lease: Option<LeaseNo>,
    seq: u64,
}

impl Site {
    fn new(world: &World, server: &Server, holder: &'static str) -> Self {
        Self {
            client: client(server, world.token("lumi")),
            holder,
            lease: None,
            seq: 0,
        }
    }

    fn request(&mut self, reports: Vec<Report>) -> SyncRequest {
        let stamped = reports.into_iter().map(|report| {
            self.seq += 1;
            let (seq, at) = (self.seq, UnixS(1_764_000_000));
            Stamped { seq, at, report }
        });
        SyncRequest {
            site: site(),
            holder: self.holder.into(),
            lease: self.lease,
            take_over: false,
            leave: false,
            profile: self.lease.is_none().then(profile),
            spool: "spool".into(),
            reports: stamped.collect(),
        }
    }

    async fn call(&mut self, request: SyncRequest) -> Result<SyncReply, TransferError> {
        let reply: SyncReply = post(&self.client, SYNC, &request).await?;
        self.lease = Some(reply.lease);
        Ok(reply)
    }

    async fn say(&mut self, reports: Vec<Report>) -> Vec<Order> {
        let request = self.request(reports);
        self.call(request).await.unwrap().orders
    }
}

fn site() -> SiteName {
    "lumi".parse().unwrap()
}

fn client(server: &Server, token: &str) -> Client {
    let client = hansa_wire::http::Client {
        name: "hansa".to_owned(),
        version: "0.1.0".to_owned(),
    };
    server.client(token, &client.headers())
}

async fn post<Q, A>(client: &Client, path: &str, request: &Q) -> Result<A, TransferError>
where
    Q: Wire<Json: Send + Sync>,
    A: Wire,
{
    let json = client.post_json(path, &request.to_json(), CALL_MAX).await?;
    Ok(A::from_json(json).unwrap())
}

fn submitted(intent: u64, job: &str) -> Report {
    Report::Submitted {
        intent: IntentId(intent),
        job: job.into(),
        how: How::Reply,
        raw: job.into(),
    }
}

fn job(intent: u64, job: &str, state: &str) -> JobReport {
    JobReport {
        intent: IntentId(intent),
        job: job.into(),
        state: state.into(),
        cancelled_by: None,
        reason: "Priority".into(),
        source: JobSource::Squeue,
        submitted: Some(UnixS(1_764_000_000)),
        started: None,
        ended: None,
        limit_s: Some(3600),
        nodes: Vec::new(),
        exit_code: None,
        signal: None,
        restarts: 0,
    }
}

fn intents(orders: &[Order]) -> Vec<u64> {
    let of = |order: &Order| match order {
        Order::Submit(submission) => Some(submission.intent.0),
        _ => None,
    };
    orders.iter().filter_map(of).collect()
}

async fn operate(world: &World, server: &Server, order: QueueOrder) -> Result<(), TransferError> {
    let token = issue_token(&world.data(), &Scope::Operator).unwrap();
    let Done {} = post(&client(server, &token), OPERATE, &order).await?;
    Ok(())
}

async fn view(world: &World, server: &Server) -> SiteView {
    let client = client(server, world.token("snellius"));
    let view: QueueView = client.get_json(QUEUE, CALL_MAX).await.unwrap();
    view.sites.into_iter().next().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_ordered_and_reported_outlives_a_restart() {
    let world = World::new();
    let server = world.serve().await;
    let mut lumi = Site::new(&world, &server, "uan02");
    assert_eq!(intents(&lumi.say(Vec::new()).await), [1]);
    // The reply was lost: the same order comes again, and still counts as told to this process only.
    let orders = lumi.say(Vec::new()).await;
    assert!(
        matches!(&orders[..], [Order::Submit(s)] if !s.tried),
        "{orders:?}"
    );
    server.stop().await;

    let server = world.serve().await;
    lumi.client = client(&server, world.token("lumi"));
    assert_eq!(intents(&lumi.say(Vec::new()).await), [1]);
    assert_eq!(lumi.say(vec![submitted(1, "4711")]).await, []);
    server.stop().await;

    let server = world.serve().await;
    lumi.client = client(&server, world.token("lumi"));
    assert_eq!(
        lumi.say(vec![Report::Job(job(1, "4711", "PENDING"))]).await,
        []
    );
    let seen = view(&world, &server).await;
    let job = &seen.jobs[0];
    assert_eq!(
        (job.intended.as_str(), job.reported.as_deref(), job.observed),
        ("run", Some("PENDING (Priority)"), false)
    );
    assert_eq!(seen.budget.unwrap().free_gpu_h, 92.0);
    assert!(seen.process.unwrap().alive);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_trains_is_observed_whatever_slurm_says() {
    let world = World::new();
    let server = world.serve().await;
    let mut lumi = Site::new(&world, &server, "uan02");
    lumi.say(Vec::new()).await;
    let mut running = job(1, "4711", "RUNNING");
    running.started = Some(UnixS(1_764_000_100));
    lumi.say(vec![submitted(1, "4711"), Report::Job(running)])
        .await;
    assert!(!view(&world, &server).await.jobs[0].observed);
    let mut replica = world.replica(&server, "lumi");
    replica.caller.replica = "lumi/r1".parse().unwrap();
    replica.register().await.unwrap();
    until(async || view(&world, &server).await.jobs[0].observed.then_some(())).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_a_site_and_only_with_its_token() {
    let world = World::new();
    let server = world.serve().await;
    let mut first = Site::new(&world, &server, "uan02");
    first.say(Vec::new()).await;
    let mut second = Site::new(&world, &server, "uan03");
    let request = second.request(Vec::new());
    let error = second.call(request.clone()).await.unwrap_err();
    assert!(
        error.to_string().contains("uan02 runs the site process"),
        "{error}"
    );
    assert_eq!(code_of(error), "busy");
    let request = SyncRequest {
        take_over: true,
        ..request
    };
    let reply = second.call(request).await.unwrap();
    assert!(
        matches!(&reply.orders[..], [Order::Submit(s)] if s.tried),
        "{reply:?}"
    );
    let request = first.request(vec![submitted(1, "4711")]);
    assert_eq!(code_of(first.call(request).await.unwrap_err()), "fenced");

    let mut stranger = Site::new(&world, &server, "uan02");
    stranger.client = client(&server, world.token("snellius"));
    let request = stranger.request(Vec::new());
    assert_eq!(
        code_of(stranger.call(request).await.unwrap_err()),
        "forbidden"
    );
    let order = QueueOrder::Pause {
        site: site(),
        why: "".into(),
    };
    let not_an_operator = post::<_, Done>(&stranger.client, OPERATE, &order).await;
    assert_eq!(code_of(not_an_operator.unwrap_err()), "forbidden");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_pauses_resumes_submits_and_sets_the_budget() {
    let world = World::new();
    let server = world.serve().await;
    let order = |order| operate(&world, &server, order);
    let pause = || QueueOrder::Pause {
        site: site(),
        why: "a test".into(),
    };
    assert_eq!(code_of(order(pause()).await.unwrap_err()), "unknown_site");
    let mut lumi = Site::new(&world, &server, "uan02");
    lumi.say(Vec::new()).await;
    lumi.say(vec![submitted(1, "4711")]).await;

    order(pause()).await.unwrap();
    let one_more = || QueueOrder::Submit {
        site: site(),
        shape: None,
        why: "".into(),
    };
    let error = order(one_more()).await.unwrap_err();
    assert!(
        error.to_string().contains("paused: by an operator: a test"),
        "{error}"
    );
    let resume = QueueOrder::Resume {
        site: site(),
        why: "".into(),
    };
    order(resume).await.unwrap();
    order(one_more()).await.unwrap();
    assert_eq!(intents(&lumi.say(Vec::new()).await), [2]);
    let change = BudgetChange {
        left: Some(Left::Counted(GpuS(17 * 3600))),
        ..BudgetChange::default()
    };
    order(QueueOrder::Budget {
        site: site(),
        change,
    })
    .await
    .unwrap();
    let error = order(one_more()).await.unwrap_err();
    assert!(
        error.to_string().contains("it may cost 8.0 GPU-hours"),
        "{error}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_lines_of_failed_jobs_are_kept() {
    let world = World::new();
    let server = world.serve().await;
    let mut lumi = Site::new(&world, &server, "uan02");
    lumi.say(Vec::new()).await;
    lumi.say(vec![submitted(1, "4711")]).await;
    let failed = JobReport {
        started: Some(UnixS(1_764_000_000)),
        ended: Some(UnixS(1_764_000_005)),
        exit_code: Some(1),
        ..job(1, "4711", "FAILED")
    };
    let orders = lumi.say(vec![Report::Job(failed)]).await;
    assert!(matches!(&orders[..], [Order::Tail { .. }]), "{orders:?}");
    let tail = Report::Tail {
        intent: IntentId(1),
        job: "4711".into(),
        text: "no module rocm".into(),
    };
    lumi.say(vec![tail]).await;
    let client = client(&server, world.token("lumi"));
    let logs: LogsView = client.get_json(LOGS, CALL_MAX).await.unwrap();
    assert_eq!(logs.logs[0].lines.as_deref(), Some("no module rocm"));
    assert_eq!(
        logs.logs[0].outcome.as_deref(),
        Some("failed after 5 s with exit code 1")
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_run_skips_intents_that_its_backup_does_not_know() {
    let world = World::new();
    let server = world.serve().await;
    let mut lumi = Site::new(&world, &server, "uan02");
    lumi.say(Vec::new()).await;
    let (to, restored) = (
        world.dir.path().join("backup"),
        world.dir.path().join("restored"),
    );
    backup(&world.data(), &to).unwrap();
    // After the backup a job is submitted, and its successor intended.
    let mut running = job(1, "4711", "RUNNING");
    running.started = Some(UnixS(1_764_000_100));
    assert_eq!(
        intents(
            &lumi
                .say(vec![submitted(1, "4711"), Report::Job(running.clone())])
                .await
        ),
        [2]
    );
    server.stop().await;

    restore(&to, &restored).unwrap();
    let server = world.serve_from(&restored).await;
    let token = issue_token(&restored, &Scope::Site(site())).unwrap();
    lumi.client = client(&server, &token);
    // The first intent is as the backup knows it, and must be looked for; what the site spooled since
    // the backup is gone, and it reports the jobs that it finds.
    let orders = lumi.say(vec![Report::Job(running)]).await;
    assert_eq!(intents(&orders), [100_002]);
    let client = client(&server, &token);
    let seen: QueueView = client.get_json(QUEUE, CALL_MAX).await.unwrap();
    let told: Vec<_> = seen.sites[0]
        .decisions
        .iter()
        .map(|d| d.text.as_str())
        .collect();
    assert!(
        told.iter().any(|text| text.contains("are missing here")),
        "{told:?}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_run_ends_sites_hear_of_it_before_the_coordinator_goes() {
    let world = World::new().with("min_quorum = 2", "min_quorum = 1");
    let server = world.serve().await;
    let mut lumi = Site::new(&world, &server, "uan02");
    lumi.say(Vec::new()).await;
    assert_eq!(lumi.say(vec![submitted(1, "4711")]).await, []);
    let mut replica = world.replica(&server, "lumi");
    let mut current = replica.register().await.unwrap().current;
    for _ in 0..2 {
        replica.contribute(current.manifest, 0.01).await;
        current = next_generation(&replica, current.generation).await;
    }
    replica.goodbye().await.unwrap();
    // The waiting job is cancelled, and the coordinator ends when that is done.
    let cancel = loop {
        let orders = lumi.say(Vec::new()).await;
        if !orders.is_empty() {
            break orders;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(matches!(&cancel[..], [Order::Recall { .. }]), "{cancel:?}");
    let cancelled = Report::Cancelled {
        intent: IntentId(1),
        job: "4711".into(),
    };
    let request = lumi.request(vec![cancelled]);
    let reply = lumi.call(request).await.unwrap();
    assert!(reply.news.ended && reply.orders.is_empty());
    assert!(server.end().await.unwrap().run_over);
}

/// What a site's operator wrote down, so that a plan can be made before anything was measured.
fn stated() -> SiteProfile {
    SiteProfile {
        stated: Some(Stated {
            startup_ms: Some(5_000),
            transfer_ms: Some(1_000),
            shapes: vec![StatedShape {
                shape: "small".into(),
                microwindows_per_gpu_s: Some(5_000_000),
                ranks: None,
            }],
            ..Stated::default()
        }),
        ..profile()
    }
}

async fn plan_view(world: &World, server: &Server) -> PlanView {
    let client = client(server, world.token("snellius"));
    client.get_json(PLAN, CALL_MAX).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_applies_a_plan_and_a_restart_keeps_it() {
    let advised = "tokens = 1000000\n[plan]\npolicy = \"advise\"\nmerge_s = 1";
    let world = World::new().with("rounds = 2", advised);
    let server = world.serve().await;
    let problem = plan_view(&world, &server).await.problem;
    assert!(problem.is_some(), "nobody has reported yet");
    let mut lumi = Site::new(&world, &server, "uan02");
    let mut request = lumi.request(Vec::new());
    request.profile = Some(stated());
    let orders = lumi.call(request).await.unwrap().orders;
    assert_eq!(intents(&orders), [1], "until then the profile decides");

    let token = issue_token(&world.data(), &Scope::Operator).unwrap();
    let operator = client(&server, &token);
    let apply = async |client: &Client| -> Result<AdoptedJson, TransferError> {
        let nothing = serde_json::json!({});
        client.post_json(APPLY, &nothing, CALL_MAX).await
    };
    let refused = apply(&operator).await.unwrap_err();
    assert!(refused.to_string().contains("never probed"), "{refused}");
    let site_token = client(&server, world.token("lumi"));
    assert_eq!(code_of(apply(&site_token).await.unwrap_err()), "forbidden");

    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut request = lumi.request(vec![Report::Probe(ProbeReport {
        shape: "small".into(),
        prober: "ada project_1".into(),
        took_ms: 14,
        answer: ProbeAnswer::Starts(UnixS(now.as_secs())),
        partition: None,
        raw: "".into(),
    })]);
    request.reports[0].at = UnixS(now.as_secs());
    lumi.call(request).await.unwrap();
    let adopted = apply(&operator).await.unwrap();
    assert_eq!((adopted.no, adopted.sites[0].jobs), (1, 1));
    assert!(
        adopted.why.contains("an operator applied it"),
        "{}",
        adopted.why
    );
    server.stop().await;

    let server = world.serve().await;
    let kept = plan_view(&world, &server).await.current.unwrap();
    assert_eq!((kept.no, kept.sites[0].shape.as_str()), (1, "small"));
    server.stop().await;
}
