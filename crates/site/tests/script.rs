//! Job scripts as they are submitted, and what their shell does with signals and exit codes.
#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hansa_site::Profile;
use hansa_site::script::{JobRequest, StartRule, intent_of, job_comment, render, render_probe};

const RUN: &str = "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f809";

const PROFILE: &str = r#"
name = "lumi"
[coordinator]
url = "https://vm.example:8443"
token_file = "/project/me/lumi.token.toml"
[slurm]
account = "project_465000000"
options = ["--exclusive"]
[jobs]
wanted = 2
shape = "four"
chain = "begin"
[[shape]]
name = "four"
partition = "standard-g"
qos = "normal"
nodes = 4
gpus_per_node = 8
walltime = "1-00:00:00"
options = ["--mem=0"]
[script]
corpus = "/scratch/my corpus"
state = "/scratch/state"
logs = "/scratch/logs"
cache = "/scratch/cache"
modules = ["LUMI/24.03", "rocm"]
setup = ["ulimit -c 0"]
launcher = "srun --ntasks=1"
container = "singularity exec --bind /scratch train.sif"
train_arguments = ["--threads=8"]
environment = { GREETING = "it's me" }
"#;

fn profile(changes: &[(&str, &str)]) -> Profile {
    let mut text = PROFILE.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    Profile::parse(&text, Path::new("/home/me/lumi.toml")).unwrap()
}

fn script(profile: &Profile, start: StartRule) -> String {
    let request = JobRequest {
        run: RUN,
        replica: "r1",
        intent: 17,
        link: 3,
        start,
        exclude: vec!["nid005003", "nid005004"],
    };
    render(profile, &profile.shape[0], &request).text
}

#[test]
fn a_job_for_hansa_train_in_a_container() {
    insta::assert_snapshot!(script(&profile(&[]), StartRule::InSeconds(3600)));
}

#[test]
fn a_job_with_a_command_of_its_own_in_a_singleton_chain_behind_the_relay() {
    let command = "command = '{hansa} agent --site {site} --replica {replica} --state {state} -- torchrun --nproc-per-node={gpus_per_node} ${HOME}/train.py'\n";
    let changes = [
        ("chain = \"begin\"", "chain = \"singleton\""),
        ("container = ", "# "),
        (
            "[script]\n",
            &format!("[relay]\nlisten = \"0.0.0.0:0\"\nfile = \"relay.json\"\n[script]\n{command}"),
        ),
        ("gpus_per_node = 8", "gpus_per_node = 4"),
    ];
    insta::assert_snapshot!(script(&profile(&changes), StartRule::Singleton));
}

#[test]
fn a_job_for_torchtitan_under_the_agent_on_four_nodes() {
    let trainer = "trainer = \"torchrun --nnodes {nodes} --node-rank $SLURM_NODEID --nproc-per-node \
                   {gpus_per_node} --master-addr $MASTER_ADDR --master-port $((MASTER_PORT + HANSA_ATTEMPT % 10)) \
                   -m hansa.torchtitan\"\n";
    let trainer = format!("[script]\n{trainer}");
    let changes = [
        ("[script]\n", trainer.as_str()),
        ("srun --ntasks=1", "srun --ntasks-per-node=1"),
        ("[\"--threads=8\"]", "[\"--losses-max=5\"]"),
        (
            "environment = { ",
            "environment = { NCCL_SOCKET_IFNAME = \"hsn0,hsn1\", ",
        ),
    ];
    insta::assert_snapshot!(script(&profile(&changes), StartRule::Now));
}

#[test]
fn a_trainer_sees_its_tasks_variables_and_blanks_stay_where_they_are() {
    let text = PROFILE
        .replace("launcher = ", "# ")
        .replace("train.sif", "train.sif --")
        .replace(
            "singularity exec --bind /scratch train.sif --",
            "env NODE=7",
        );
    let prints = "printf \"%s|\" $NODE \"two words\" $((MASTER_PORT + HANSA_ATTEMPT % 10))";
    let text = format!("{text}hansa = \"./agent\"\ntrainer = '{prints}'\n");
    let profile = Profile::parse(&text, Path::new("/home/me/lumi.toml")).unwrap();
    let job = script(&profile, StartRule::Now);
    // Stands for the agent: drops its own arguments, and starts the trainer.
    let folder = tempfile::tempdir().unwrap();
    let agent = folder.path().join("agent");
    let starts = "#!/bin/bash\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"\n";
    std::fs::write(&agent, starts).unwrap();
    std::fs::set_permissions(&agent, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let job = job.replace("module load", "true");
    let output = Command::new("bash")
        .args(["-c", &job])
        .env("SLURM_JOB_ID", "70001")
        .env("HANSA_ATTEMPT", "13")
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "7|two words|24013|"
    );
}

#[test]
fn the_profiles_of_known_sites_run_torchtitan() {
    let sites = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sites");
    for site in ["lumi", "frontier", "snellius"] {
        let file = format!("{site}.toml");
        let text = std::fs::read_to_string(sites.join(&file)).unwrap();
        let profile = Profile::parse(&text, &Path::new("/project/me").join(file)).unwrap();
        insta::assert_snapshot!(site, script(&profile, StartRule::Now));
    }
}

#[test]
fn a_probe_asks_for_the_same() {
    let profile = profile(&[]);
    insta::assert_snapshot!(render_probe(&profile, &profile.shape[0]));
}

#[test]
fn a_comment_tells_the_intent_to_its_run_only() {
    let comment = job_comment(RUN, "r1", 17);
    assert_eq!(intent_of(&comment, RUN), Some(17));
    assert_eq!(intent_of(&comment, "ffff"), None);
    for other in [
        "",
        "hansa",
        "hansa run=1a2b3c4d",
        "job run=1a2b3c4d intent=17",
        "(null)",
    ] {
        assert_eq!(intent_of(other, RUN), None, "{other}");
    }
}

/// A script whose trainer is `trainer`, a piece of shell.
struct Play {
    folder: tempfile::TempDir,
}

impl Play {
    fn start(trainer: &str) -> (Self, Child) {
        let folder = tempfile::tempdir().unwrap();
        let trainer_file = folder.path().join("trainer");
        std::fs::write(&trainer_file, format!("#!/bin/bash\n{trainer}\n")).unwrap();
        let command = format!("command = 'bash {}'\n", trainer_file.display());
        let text = format!("{PROFILE}{command}")
            .replace("launcher = ", "# ")
            .replace("container = ", "# ")
            .replace("modules = ", "# ");
        // The command belongs into [script], which is the last table.
        let profile = Profile::parse(&text, Path::new("/home/me/lumi.toml")).unwrap();
        let text = script(&profile, StartRule::Now);
        let play = Self { folder };
        std::fs::write(play.path("job"), text).unwrap();
        let child = Command::new("bash")
            .arg(play.path("job"))
            .current_dir(play.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        (play, child)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn wait_for(&self, name: &str) {
        while !self.path(name).exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

fn signal(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args([signal, &pid])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn the_trainers_exit_code_is_the_jobs() {
    for code in [0, 1, 75] {
        let (_play, mut child) = Play::start(&format!("exit {code}"));
        assert_eq!(child.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn the_signal_before_the_end_reaches_the_trainer_once_and_it_may_finish() {
    let trainer = "trap 'echo x >> told' USR1; touch ready; while [ ! -e told ]; do sleep 0.02; done; \
                   touch leaving; while [ ! -e finish ]; do sleep 0.02; done; exit 0";
    let (play, mut child) = Play::start(trainer);
    play.wait_for("ready");
    signal(&child, "-USR1");
    play.wait_for("leaving");
    // Slurm's TERM at the end comes on top, and must not make it drop what it has.
    signal(&child, "-TERM");
    std::fs::File::create(play.path("finish"))
        .unwrap()
        .flush()
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(std::fs::read_to_string(play.path("told")).unwrap(), "x\n");
}

#[test]
fn a_trainer_that_dies_of_a_signal_is_a_failure() {
    let (_play, mut child) = Play::start("kill -KILL $$");
    assert_eq!(child.wait().unwrap().code(), Some(137));
}
