//! A real Slurm cluster with a run beside it.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt as _;

use hansa_testkit::SlurmCluster;
use serde_json::Value;

use crate::common::{Place, Process, Server};

/// The reply of `sbatch --parsable` is held back while the file `hold` is there.
const SLOW_SBATCH: &str = r#"#!/bin/bash
out=$(REAL/sbatch "$@"); code=$?
case " $* " in
*" --parsable "*)
    if [ -e HERE/hold ]; then
        touch HERE/held
        while [ -e HERE/hold ]; do sleep 0.05; done
    fi ;;
esac
[ -z "$out" ] || printf '%s\n' "$out"
exit "$code"
"#;

/// A cluster, a run's files, and a site's programs in a `bin` that comes first.
pub struct Scene {
    pub place: Place,
    pub cluster: SlurmCluster,
    path: String,
}

impl Scene {
    /// `None` where there is no Slurm.
    pub fn set(name: &'static str, rounds: u64) -> Option<Self> {
        let cluster = SlurmCluster::start(name)?;
        let place = Place::new();
        place.recipe("run.toml", &[("rounds = 2", &format!("rounds = {rounds}"))]);
        let bin = place.path("bin");
        std::fs::create_dir(&bin).unwrap();
        let real = cluster.ask("sh", &["-c", "dirname $(command -v sbatch)"]);
        let here = place
            .path("")
            .to_str()
            .unwrap()
            .trim_end_matches('/')
            .to_owned();
        let wrapper = SLOW_SBATCH.replace("REAL", &real).replace("HERE", &here);
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let scene = Self {
            place,
            cluster,
            path,
        };
        scene.program("sbatch", &wrapper);
        Some(scene)
    }

    /// Puts a script before the system's program of this name.
    pub fn program(&self, name: &str, text: &str) {
        let name = format!("bin/{name}");
        self.place.write(&name, text);
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.place.path(&name), executable).unwrap();
    }

    /// `site.toml`; `changes` are of its text.
    pub fn profile(&self, server: &Server, changes: &[(&str, &str)], more: &str) {
        let hansa = env!("CARGO_BIN_EXE_hansa");
        let url = &server.url;
        let mut text = format!(
            r#"name = "alder"
[coordinator]
url = "{url}"
token_file = "alder.toml"
[slurm]
account = "project_test"
[jobs]
wanted = 1
shape = "one"
chain = "begin"
[[shape]]
name = "one"
partition = "gpu"
nodes = 1
gpus_per_node = 1
walltime = "00:01:00"
[script]
corpus = "corpus"
state = "state"
logs = "logs"
hansa = "{hansa}"
train_arguments = ["--threads=1", "--pace=10"]
signal_before_s = 15
[watch]
probe_every_s = 10
usage_every_s = 30
follow_every_s = 1
[retry]
backoff_first_s = 1
quick_run_s = 1
{more}"#
        );
        for (from, to) in changes {
            assert!(text.contains(from), "the profile has no {from:?}");
            text = text.replace(from, to);
        }
        self.place.write("site.toml", &text);
    }

    /// The accounting is the judge: a job's comment tells its intent. Returns how many jobs there were.
    pub fn no_intent_was_submitted_twice(&self) -> usize {
        let arguments = "-X -n -P -S now-1days -E now+1days --format=Comment";
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let said = self.cluster.ask("sacct", &arguments);
        let jobs: Vec<&str> = said
            .lines()
            .filter(|comment| comment.contains(" intent="))
            .collect();
        let mut intents = jobs.clone();
        intents.sort_unstable();
        intents.dedup();
        let twice = intents.len() < jobs.len();
        assert!(!twice, "an intent was submitted twice: {jobs:?}");
        jobs.len()
    }

    /// `hansa site …` as from inside of a job.
    pub fn site(&self, arguments: &str) -> Process {
        let conf = self.cluster.conf();
        let variables = [
            ("SLURM_CONF", conf.to_str().unwrap()),
            ("PATH", self.path.as_str()),
            // What a login inside of a job would bring along.
            ("SBATCH_PARTITION", "wrong"),
            ("SLURM_JOB_ID", "1"),
        ];
        self.place
            .start_with(&variables, &format!("site {arguments}"))
    }
}

/// A job was submitted, or found.
pub fn submitted(event: &Value) -> bool {
    event["event"] == "submitted"
}

/// A job runs.
pub fn running(event: &Value) -> bool {
    event["event"] == "job" && event["state"] == "RUNNING"
}
