//! Trainers in PyTorch under `hansa agent`, for tests that find a Python with `HANSA_TORCH_PYTHON`.
#![allow(clippy::unwrap_used, dead_code)]

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Place, Process, Server};

/// Names a Python that has PyTorch, torchtitan and transformers.
const PYTHON: &str = "HANSA_TORCH_PYTHON";
/// Names a folder with data from outside.
const DATA: &str = "HANSA_TEST_DATA";

/// Long leases: a busy machine takes its time to import PyTorch. All that are there are waited for.
const PATIENT: [(&str, &str); 4] = [
    ("ttl_min_s = 5", "ttl_min_s = 200"),
    ("ttl_max_s = 20", "ttl_max_s = 300"),
    ("session_ttl_s = 10", "session_ttl_s = 200"),
    ("grace_s = 5", "grace_s = 200"),
];

/// The Python to test with; says so where there is none.
pub fn python() -> Option<String> {
    let python = std::env::var(PYTHON).ok();
    if python.is_none() {
        eprintln!("skipped: {PYTHON} is not set");
    }
    python
}

/// The repository.
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// A tiny run whose replicas have time, with further changes of its recipe.
pub fn place(changes: &[(&str, &str)]) -> Place {
    let place = Place::new();
    let changes: Vec<(&str, &str)> = PATIENT.iter().chain(changes).copied().collect();
    place.recipe("run.toml", &changes);
    place
}

/// Makes the corpus of real text, where there is some; says so where there is none.
pub fn real_text(place: &Place) {
    let Some(data) = std::env::var_os(DATA) else {
        eprintln!("made-up text instead of C4: {DATA} is not set");
        return;
    };
    let text = Path::new(&data).join("data/corpus/c4_3200.jsonl.gz");
    let text = text.display().to_string();
    std::fs::remove_dir_all(place.path("corpus")).unwrap();
    place.do_it(&format!(
        "corpus tokenizer {text} --vocab-size 400 --out c4.json"
    ));
    place.build(&text, "c4.json", "corpus");
}

/// The command line of `hansa agent` for `SITE/r0` around a command, in which `{root}` is the repository.
pub fn agent_line(site: &str, server: &Server, options: &str, command: &str) -> String {
    let (root, url) = (root(), &server.url);
    let root = root.display();
    let command = command.replace("{root}", &root.to_string());
    format!(
        "agent --coordinator {url} --token-file {site}.toml --site {site} --replica r0 --corpus corpus --state \
         state-{site} --json {options} -- env PYTHONPATH={root}/python OMP_NUM_THREADS=1 \
         HANSA_CPU=1 {command}"
    )
}

/// Starts it.
pub fn agent(place: &Place, site: &str, server: &Server, command: &str) -> Process {
    place.start(&agent_line(site, server, "", command))
}

/// torchtitan with so many ranks.
pub fn torchtitan(python: &str, ranks: u32) -> String {
    format!(
        "{python} -m torch.distributed.run --standalone --nproc-per-node {ranks} -m hansa.torchtitan"
    )
}

/// A plain PyTorch loop.
pub fn plain_loop(python: &str) -> String {
    format!("{python} {{root}}/examples/plain_pytorch.py")
}

/// The losses of all steps of a process.
pub fn losses(said: &str) -> Vec<f64> {
    let events = said
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let steps = events.filter(|event| event["event"] == "step");
    steps.map(|event| event["loss"].as_f64().unwrap()).collect()
}

/// What a process said on stdout, once it has ended well. A trainer's own words are on stderr.
pub fn ended_well(process: Process) -> String {
    let end = process.end();
    assert_eq!(end.code, Some(0), "{}{}", end.stdout, end.stderr);
    end.stdout
}

/// All processes below this one, by number.
pub fn descendants(of: u32) -> Vec<u32> {
    let mut found = vec![of];
    let mut at = 0;
    while let Some(parent) = found.get(at) {
        let children = format!("/proc/{parent}/task");
        let threads = std::fs::read_dir(children).into_iter().flatten().flatten();
        for thread in threads {
            let children = std::fs::read_to_string(thread.path().join("children"));
            let children = children.unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .map(|id| id.parse::<u32>().unwrap()),
            );
        }
        at += 1;
    }
    found.split_off(1)
}

/// The process below this one that is this rank.
pub fn rank(below: u32, rank: u32) -> u32 {
    let wanted = format!("RANK={rank}").into_bytes();
    let is_it = |process: &u32| {
        let variables = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|it| it == wanted)
    };
    let found: Vec<u32> = descendants(below).into_iter().filter(is_it).collect();
    // A rank may have helpers, which come after it.
    *found
        .first()
        .unwrap_or_else(|| panic!("no rank {rank} below {below}"))
}

/// Whether a process runs; one that nobody has waited for does not.
pub fn runs(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

/// Waits until none of these runs any more.
pub fn all_gone(processes: &[u32]) {
    super::wait_until("all of them end", || !processes.iter().any(|it| runs(*it)));
}

/// SIGKILL.
pub fn kill(process: u32) {
    signal(process, libc::SIGKILL);
}

/// To a process below one that this test has started.
pub fn signal(process: u32, signal: libc::c_int) {
    let process = libc::pid_t::try_from(process).unwrap();
    // SAFETY: kill() takes no pointers. It is a process below one that this test has started.
    assert_eq!(unsafe { libc::kill(process, signal) }, 0);
}
