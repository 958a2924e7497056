//! What goes wrong with a trainer under `hansa agent`: each time one clear message and an exit code, nothing
//! is lost, and once it is mended the run goes on to its end. Some of it needs a Python with PyTorch, named by
//! `HANSA_TORCH_PYTHON`.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::torch::{
    agent_line, all_gone, descendants, ended_well, losses, place, plain_loop, python, root, signal,
};
use common::{End, Place, Process, Server, documents};

/// An agent that ended with exit code 1 and one error, the last thing it said, with all of these words.
fn broken(process: Process, words: &[&str]) -> End {
    let end = process.end();
    let said = &end.stderr;
    assert_eq!(end.code, Some(1), "{said}{}", end.stdout);
    let error = said.rfind("error: ").map(|at| &said[at..]);
    let error = error.unwrap_or_default();
    for word in words {
        assert!(
            error.contains(word),
            "no {word:?} in {error:?}; all: {said}"
        );
    }
    end
}

/// The same replica trains the run to its end, and every window is there once.
fn goes_on(place: &Place, server: Server) {
    place.train("alder", &server).end_well();
    server.process.end_well();
    let report = place.verified("data");
    assert_eq!(report["ended"], true, "{report}");
}

/// A file system in memory with room for almost nothing; it goes with the value.
struct Small(PathBuf);

impl Small {
    /// `None` where this is not allowed.
    fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&at).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=16k", "tmpfs"])
            .arg(&at)
            .output();
        match mount {
            Ok(output) if output.status.success() => Some(Self(at)),
            Ok(output) => {
                eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                eprintln!("skipped: no mount: {error}");
                None
            }
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn weights_that_find_no_room_in_the_chosen_place_go_to_the_state_directory() {
    let Some(python) = python() else { return };
    let place = place(&[]);
    let Some(small) = Small::mount(place.path("small")) else {
        return;
    };
    let server = place.serve("data");
    place.token("alder", "data");
    let line = agent_line("alder", &server, "--exchange small", &plain_loop(&python));
    let end = place.start(&line).end();
    assert_eq!(end.code, Some(0), "{}{}", end.stdout, end.stderr);
    for word in ["no room for the exported weights", "No space left"] {
        assert!(end.stderr.contains(word), "{}", end.stderr);
    }
    // Nothing was trained twice, nothing is left.
    assert_eq!(losses(&end.stdout).len(), 20, "{}", end.stdout);
    assert_eq!(std::fs::read_dir(&small.0).unwrap().count(), 0);
    let left = std::fs::read_dir(place.path("state-alder")).unwrap();
    let mut left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(!left.any(|name| name.contains("export")));
    server.process.end_well();
    assert_eq!(place.verified("data")["ended"], true);
}

#[test]
fn another_corpus_is_refused_before_a_trainer_starts() {
    let place = place(&[]);
    place.write("other.jsonl", &documents(2, 300));
    place.build("other.jsonl", "tokenizer.json", "other");
    let server = place.serve("data");
    place.token("alder", "data");
    let line = agent_line("alder", &server, "", "touch started");
    broken(
        place.start(&line.replace("--corpus corpus", "--corpus other")),
        &["the corpus here is not the run's", "copy the run's corpus"],
    );
    assert!(!place.path("started").exists());
    goes_on(&place, server);
}

#[test]
fn an_old_torch_is_named_and_not_tried_again() {
    let Some(python) = python() else { return };
    let place = place(&[]);
    let server = place.serve("data");
    place.token("alder", "data");
    // What pip would have left there.
    let old = place.path("old");
    for (name, version) in [("torch", "2.9.1"), ("torchtitan", "0.2.2")] {
        let folder = old.join(format!("{name}-{version}.dist-info"));
        std::fs::create_dir_all(&folder).unwrap();
        let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
        std::fs::write(folder.join("METADATA"), metadata).unwrap();
    }
    let package = root().join("python");
    let path = format!("PYTHONPATH={}:{}", old.display(), package.display());
    let command = format!("env {path} {python} -m hansa.torchtitan");
    let end = broken(
        place.start(&agent_line("alder", &server, "", &command)),
        &[
            "torchtitan 0.2.2",
            "torch 2.9.1",
            "torchtitan 0.3.x with torch 2.14",
            "hansa.Session",
        ],
    );
    assert!(!end.stdout.contains("trainer_lost"), "{}", end.stdout);
    goes_on(&place, server);
}

#[test]
fn a_trainer_that_hangs_is_ended_and_started_again() {
    let Some(python) = python() else { return };
    let place = place(&[("rounds = 2", "rounds = 40")]);
    let server = place.serve("data");
    place.token("alder", "data");
    let line = agent_line(
        "alder",
        &server,
        "--hang-after-min 0.2",
        &plain_loop(&python),
    );
    let mut agent = place.start(&line);
    agent.event("step");
    let stopped = descendants(agent.id());
    for process in &stopped {
        signal(*process, libc::SIGSTOP);
    }
    let lost = agent.event("trainer_lost");
    let reason = lost["reason"].as_str().unwrap();
    assert!(reason.contains("has shown no progress"), "{reason}");
    all_gone(&stopped);
    agent.event("step");
    ended_well(agent);
    server.process.end_well();
    assert_eq!(place.verified("data")["ended"], true);
}

#[test]
fn a_trainer_that_something_else_starts_may_come_first_and_come_again() {
    let Some(python) = python() else { return };
    let place = place(&[("rounds = 2", "rounds = 40")]);
    let server = place.serve("data");
    place.token("alder", "data");
    let state = place.path("state-alder");
    let trainer = || {
        let mut words = vec![format!("PYTHONPATH={}/python", root().display())];
        words.push(format!("HANSA_AGENT_SOCKET={}/agent.sock", state.display()));
        words.push(format!("HANSA_RUN_FILE={}/run.json", state.display()));
        words.push(plain_loop(&python).replace("{root}", &root().display().to_string()));
        place.start_other("env", &words.join(" "))
    };
    let early = trainer();
    let line = agent_line("alder", &server, "", "");
    let (line, _) = line.split_once(" -- ").unwrap();
    let mut agent = place.start(line);
    agent.event("step");
    early.kill();
    agent.event("trainer_lost");
    let again = trainer();
    agent.event("step");
    ended_well(agent);
    assert_eq!(again.end().code, Some(0));
    server.process.end_well();
    assert_eq!(place.verified("data")["ended"], true);
}

#[test]
fn a_command_that_is_not_there_is_told_at_once() {
    let place = place(&[]);
    let server = place.serve("data");
    place.token("alder", "data");
    let line = agent_line("alder", &server, "", "");
    let (line, _) = line.split_once(" -- ").unwrap();
    let end = broken(
        place.start(&format!("{line} -- ./torchrum")),
        &["start the trainer's command", "./torchrum"],
    );
    assert!(!end.stdout.contains("trainer_lost"), "{}", end.stdout);
    goes_on(&place, server);
}

#[test]
fn a_trainer_that_keeps_failing_ends_the_agent_and_what_is_trained_is_kept() {
    let place = place(&[]);
    let server = place.serve("data");
    place.token("alder", "data");
    let line = agent_line("alder", &server, "--losses-max 2", "false");
    let end = broken(
        place.start(&line),
        &[
            "2 times in a row",
            "exit status 1",
            "What it has trained is kept",
        ],
    );
    assert_eq!(
        end.stdout.matches("trainer_lost").count(),
        1,
        "{}",
        end.stdout
    );
    assert!(place.path("state-alder").exists());
    goes_on(&place, server);
}
