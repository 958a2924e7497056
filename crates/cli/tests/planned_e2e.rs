//! The planner drives: one real Slurm cluster whose two partitions are two sites, a coordinator that plans,
//! and two `hansa site run`. The plan begins where there is room, moves when that partition takes no jobs
//! any more, and leaves the running job alone.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::{Place, Process, Server};
use hansa_testkit::SlurmCluster;
use serde_json::Value;

/// Longer than anything takes on a busy machine: a bound, never a measurement.
const WITHIN: Duration = Duration::from_secs(300);

fn profile(place: &Place, cluster: &SlurmCluster, server: &Server, site: &str, partition: &str) {
    let hansa = env!("CARGO_BIN_EXE_hansa");
    let (url, conf) = (&server.url, cluster.conf());
    let conf = conf.display();
    place.write(
        &format!("{site}-profile.toml"),
        &format!(
            r#"name = "{site}"
[coordinator]
url = "{url}"
token_file = "{site}.toml"
[slurm]
account = "project_test"
conf = "{conf}"
[jobs]
wanted = 1
shape = "one"
chain = "begin"
[[shape]]
name = "one"
partition = "{partition}"
nodes = 1
gpus_per_node = 1
walltime = "00:20:00"
windows_per_gpu_s = 10.0
[costs]
startup_s = 5
transfer_s = 1
[script]
corpus = "corpus"
state = "state-{site}"
logs = "logs-{site}"
hansa = "{hansa}"
train_arguments = ["--threads=1", "--pace=10"]
signal_before_s = 15
[watch]
probe_every_s = 10
usage_every_s = 10
follow_every_s = 1
[retry]
backoff_first_s = 1
quick_run_s = 1
"#
        ),
    );
}

fn site(place: &Place, site: &str) -> Process {
    // What a login inside of a job would bring along.
    let variables = [("SBATCH_PARTITION", "wrong"), ("SLURM_JOB_ID", "1")];
    place.start_with(&variables, &format!("site run {site}-profile.toml --json"))
}

/// Asks for the plan until it is as wanted; before there is a snapshot there is none.
fn plan_until(place: &Place, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let asked = place.start("plan --data data --json").end();
        let plan = serde_json::from_str(&asked.stdout).unwrap_or_default();
        if wanted(&plan) {
            return plan;
        }
        assert!(
            began.elapsed() < WITHIN,
            "never came: {what}: {plan:#} {}",
            asked.stderr
        );
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The sites that the plan in force uses.
fn uses(plan: &Value) -> Vec<&str> {
    let sites = plan["current"]["sites"].as_array();
    let sites = sites.into_iter().flatten();
    sites.filter_map(|site| site["site"].as_str()).collect()
}

fn running(event: &Value) -> bool {
    event["event"] == "job" && event["state"] == "RUNNING"
}

#[test]
fn a_plan_moves_to_where_there_is_room_and_touches_no_running_job() {
    let Some(cluster) = SlurmCluster::start("alder") else {
        return;
    };
    let place = Place::new();
    let plan = "tokens = 100000000\n[plan]\npolicy = \"auto\"\nevery_s = 20\nmerge_s = 1";
    place.recipe("run.toml", &[("rounds = 2", plan)]);
    let set = |partition: &str, state: &str| {
        let name = format!("PartitionName={partition}");
        let state = format!("State={state}");
        let _ = cluster.ask("scontrol", &["update", &name, &state]);
    };
    set("side", "DRAIN");
    let server = place.serve_on("run.toml", "data", "127.0.0.1:0 --site-sync-s 2");
    for (name, partition) in [("alder", "gpu"), ("birch", "side")] {
        place.token(name, "data");
        profile(&place, &cluster, &server, name, partition);
    }
    let (mut alder, mut birch) = (site(&place, "alder"), site(&place, "birch"));

    // One partition takes no jobs: the plan is at the other, and says why.
    let first = plan_until(&place, "a plan at alder", |plan| uses(plan) == ["alder"]);
    let left_out = first["plan"]["excluded"].to_string();
    assert!(left_out.contains("birch"), "{left_out}");
    let job = alder.event_like("a job at alder", running);
    let job = job["job"].as_str().unwrap().to_owned();

    // It is the other way round: the plan moves at once, and the job runs on.
    set("side", "UP");
    set("gpu", "DRAIN");
    let moved = plan_until(&place, "a plan at birch", |plan| {
        uses(plan).contains(&"birch")
    });
    assert!(moved["current"]["no"].as_u64() > first["current"]["no"].as_u64());
    birch.event_like("a job at birch", running);
    let state = cluster.ask("squeue", &["-h", "-j", &job, "-o", "%T"]);
    assert_eq!(state, "RUNNING", "nobody touches it");

    // Both train, and what was measured takes the place of what the profiles say.
    let measured = |plan: &Value| {
        let text = plan_inputs(&place);
        uses(plan).contains(&"birch") && text.matches("this run, ").count() >= 3
    };
    plan_until(&place, "measured speeds", measured);
    place.do_it("run stop --data data");
    let summary = server.process.end_well();
    assert_eq!(summary.event("ended")["run_over"], true);
    place.verified("data");
    cluster.ask_until("squeue", &["-h"], str::is_empty);
    for site in [alder, birch] {
        let end = site.end();
        assert_eq!(end.code, Some(0), "{}", end.stderr);
    }
    let state = ["-X", "-n", "-P", "--format=State", "-j", &job];
    assert_eq!(cluster.ask("sacct", &state), "COMPLETED");
}

/// Every input with its source, as people see it.
fn plan_inputs(place: &Place) -> String {
    place.start("plan explain --data data").end().stdout
}
