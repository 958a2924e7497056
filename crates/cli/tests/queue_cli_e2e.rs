//! `hansa queue`, `logs` and `submit` against a real coordinator, to which a test speaks as a site
//! process would.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Place, Server};
use hansa_queue::*;
use hansa_transfer::{Client, Endpoint, Token, Trust};
use hansa_wire::Wire;
use hansa_wire::http;
use hansa_wire::queue::SYNC;
use std::time::Duration;

/// A site process of alder's.
struct Site {
    client: Client,
    lease: Option<LeaseNo>,
    spooled: u64,
}

impl Site {
    fn new(place: &Place, server: &Server) -> Self {
        let text = place.read("alder.toml");
        let value = |key: &str| {
            let line = text.lines().find(|line| line.starts_with(key)).unwrap();
            line.split('"').nth(1).unwrap().to_owned()
        };
        let endpoint = Endpoint {
            base_url: server.url.clone(),
            token: Token::new(&value("token")),
            trust: Trust::Pinned(value("fingerprint").parse().unwrap()),
        };
        let headers = http::Client {
            name: "hansa".to_owned(),
            version: "0.1.0".to_owned(),
        };
        Self {
            client: Client::with_headers(&endpoint, &headers.headers()).unwrap(),
            lease: None,
            spooled: 0,
        }
    }

    async fn say(&mut self, reports: Vec<Report>) -> SyncReply {
        let stamped = reports.into_iter().map(|report| {
            self.spooled += 1;
            let (seq, at) = (self.spooled, UnixS(1_764_000_000));
            Stamped { seq, at, report }
        });
        let request = SyncRequest {
            site: "alder".parse().unwrap(),
            holder: "login1 4711 k3j9".into(),
            lease: self.lease,
            take_over: false,
            leave: false,
            profile: self.lease.is_none().then(profile),
            spool: "5f0c".into(),
            reports: stamped.collect(),
        };
        let within = Duration::from_secs(60);
        let body = request.to_json();
        let json = self.client.post_json(SYNC, &body, within);
        let reply = SyncReply::from_json(json.await.unwrap()).unwrap();
        self.lease = Some(reply.lease);
        reply
    }
}

fn profile() -> SiteProfile {
    let shape = |name: &str, nodes| Shape {
        name: name.into(),
        partition: "small-g".into(),
        account: None,
        qos: None,
        nodes,
        gpus_per_node: 8,
        walltime_s: 3600,
    };
    SiteProfile {
        wanted_jobs: 1,
        preferred: "small".into(),
        shapes: vec![shape("small", 1), shape("large", 4)],
        chain: Chain::None,
        max_pending: 4,
        budget: Budget::default(),
        probe_every_s: 300,
        usage_every_s: 3600,
        retry: Retry::default(),
        stated: None,
        accounting_lag_s: None,
    }
}

fn probe() -> Report {
    Report::Probe(ProbeReport {
        shape: "small".into(),
        prober: "ada project_1".into(),
        took_ms: 12,
        answer: ProbeAnswer::Starts(UnixS(1_764_000_600)),
        partition: None,
        raw: "to start".into(),
    })
}

fn job(state: &str) -> JobReport {
    JobReport {
        intent: IntentId(1),
        job: "4711".into(),
        state: state.into(),
        cancelled_by: None,
        reason: "None".into(),
        source: JobSource::Sacct,
        submitted: Some(UnixS(1_764_000_000)),
        started: Some(UnixS(1_764_000_300)),
        ended: Some(UnixS(1_764_000_305)),
        limit_s: Some(3600),
        nodes: Vec::new(),
        exit_code: Some(1),
        signal: None,
        restarts: 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn people_see_the_queues_and_give_orders_to_them() {
    let place = Place::new();
    let server = place.serve("data");
    place.token("alder", "data");
    assert!(
        place
            .do_it("queue --data data")
            .contains("no site process has reported yet")
    );
    let mut site = Site::new(&place, &server);
    let submitted = Report::Submitted {
        intent: IntentId(1),
        job: "4711".into(),
        how: How::Reply,
        raw: "4711".into(),
    };
    site.say(vec![probe()]).await;
    site.say(vec![submitted]).await;

    let queue = place.json("queue --data data --json");
    let alder = &queue["sites"][0];
    assert_eq!(alder["jobs"][0]["job"], "4711", "{queue}");
    let text = place.do_it("queue --data data");
    for words in [
        "site        alder",
        "login1 4711 k3j9",
        "intent 1: link 1 in shape small",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    place.refuse(
        "queue --data data --site birch",
        &["no site process of birch", "alder"],
    );

    // A start, five seconds, and a failure: promise against reality, last lines, a reason.
    site.say(vec![Report::Job(job("FAILED"))]).await;
    let tail = Report::Tail {
        intent: IntentId(1),
        job: "4711".into(),
        text: "no module rocm\n".into(),
    };
    site.say(vec![tail]).await;
    let text = place.do_it("queue --data data --site alder");
    for words in [
        "median error",
        "−5 min 0 s",
        "failed after 5 s with exit code 1",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    for which in ["", "alder", "4711", "1"] {
        let text = place.do_it(&format!("logs {which} --data data"));
        assert!(text.contains("no module rocm"), "{text}");
    }
    assert!(!place.do_it("logs birch --data data").contains("rocm"));

    give_orders(&place, &mut site).await;
    server.process.terminate();
}

async fn give_orders(place: &Place, site: &mut Site) {
    place.do_it("queue pause alder --data data --because repairs");
    let refused = ["paused: by an operator: repairs"];
    place.refuse("submit alder --data data", &refused);
    place.do_it("queue resume alder --data data");
    place.refuse(
        "submit alder --shape huge --data data",
        &["no shape huge", "small, large"],
    );
    place.do_it("submit alder --shape large --data data");
    let orders = site.say(Vec::new()).await.orders;
    let large = orders.iter().any(|order| match order {
        Order::Submit(submission) => submission.shape.as_str() == "large",
        _ => false,
    });
    assert!(large, "{orders:?}");
    let line =
        "queue budget alder --gpu-hours 10 --reserve-gpu-hours 9 --ends 2100-01-01 --data data";
    place.do_it(line);
    let budget = &place.json("queue --data data --json")["sites"][0]["budget"];
    assert_eq!(budget["left_gpu_h"], 10.0, "{budget}");
    // What may cost more than is left is taken back, the newest first.
    let reply = site.say(Vec::new()).await;
    let withdrawn = reply
        .orders
        .iter()
        .any(|order| matches!(order, Order::Withdraw { .. }));
    assert!(withdrawn, "{:?}", reply.orders);
    place.refuse("queue cancel 77 --data data", &["intent 77 is not live"]);
}
