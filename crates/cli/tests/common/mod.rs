//! A tiny run in a folder of its own, and real `hansa` processes that never outlive their test.
#![allow(clippy::unwrap_used, dead_code)]

pub mod torch;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything takes on a busy machine: a bound, never a measurement.
const WITHIN: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// An error is something that a person reads at night.
const SHORT: usize = 700;

/// Two rounds of ten steps; a test changes what its story needs.
pub const RECIPE: &str = r#"name = "tiny"

[model]
vocab_size = 400
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 16
max_position_embeddings = 32
tie_word_embeddings = true

[corpus]
path = "corpus"
seq_len = 32
block_windows = 8

[phase]
steps = 10
batch = 4

[inner]
peak_lr = 2e-3
warmup_steps = 5

[rounds]
grace_s = 5

[lease]
ttl_min_s = 5
ttl_max_s = 20
session_ttl_s = 10

[evaluation]
every = 1
budget_s = 30

[checkpoint]
every_s = 1

[end]
rounds = 2
"#;

/// A folder with a tokenizer, a corpus and a recipe, all made here.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// Text, a tokenizer of 400 entries, a corpus of windows of 32 tokens, `run.toml`.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = Self { dir };
        place.write("text.jsonl", &documents(1, 300));
        place.do_it("corpus tokenizer text.jsonl --vocab-size 400 --out tokenizer.json");
        place.build("text.jsonl", "tokenizer.json", "corpus");
        place.write("run.toml", RECIPE);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Builds a corpus as the run's was built.
    pub fn build(&self, text: &str, tokenizer: &str, out: &str) {
        self.do_it(&format!(
            "corpus build {text} --tokenizer {tokenizer} --seq-len 32 --held-out 0.05 --out {out}"
        ));
    }

    /// Writes the recipe with some of its text replaced.
    pub fn recipe(&self, name: &str, changes: &[(&str, &str)]) {
        let mut text = RECIPE.to_owned();
        for (from, to) in changes {
            assert!(text.contains(from), "the recipe has no {from:?}");
            text = text.replace(from, to);
        }
        self.write(name, &text);
    }

    /// Copies a corpus, file by file.
    pub fn copy(&self, from: &str, to: &str) {
        let (from, to) = (self.path(from), self.path(to));
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hansa"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HANSA_") {
                command.env_remove(name);
            }
        }
        command
            .args(line.split_whitespace())
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Starts `hansa LINE`, whose stdout is read as JSON lines.
    pub fn start(&self, line: &str) -> Process {
        Process::start(self.command(line), line)
    }

    /// Starts another program in this folder, with nothing of this environment but the path.
    pub fn start_other(&self, program: &str, line: &str) -> Process {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .args(line.split_whitespace())
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        Process::start(command, &format!("{program} {line}"))
    }

    /// The same with variables of the environment.
    pub fn start_with(&self, variables: &[(&str, &str)], line: &str) -> Process {
        let mut command = self.command(line);
        command.envs(variables.iter().copied());
        Process::start(command, line)
    }

    /// Runs `hansa LINE`, which must succeed, and returns its stdout.
    pub fn do_it(&self, line: &str) -> String {
        let end = self.start(line).end();
        assert_eq!(end.code, Some(0), "hansa {line}: {}", end.stderr);
        end.stdout
    }

    /// The JSON that `hansa LINE` prints.
    pub fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.do_it(line)).unwrap()
    }

    /// Runs `hansa LINE`, which must end with one short error that has all of `words`.
    pub fn refuse(&self, line: &str, words: &[&str]) {
        refused(self.start(line), words);
    }

    /// As [`Place::refuse`], with a variable of the environment.
    pub fn refuse_with(&self, variable: (&str, &str), line: &str, words: &[&str]) {
        let mut command = self.command(line);
        command.env(variable.0, variable.1);
        refused(Process::start(command, line), words);
    }

    /// Starts a coordinator of `run.toml` on a free port.
    pub fn serve(&self, data: &str) -> Server {
        self.serve_on("run.toml", data, "127.0.0.1:0")
    }

    /// Starts a coordinator, and waits until it listens.
    pub fn serve_on(&self, recipe: &str, data: &str, address: &str) -> Server {
        let line = format!("serve {recipe} --data {data} --listen {address} --json");
        let mut process = self.start(&line);
        let listening = process.event("listening");
        let text = |key: &str| listening[key].as_str().unwrap().to_owned();
        let (url, fingerprint) = (text("url"), text("fingerprint"));
        Server {
            process,
            url,
            fingerprint,
        }
    }

    /// Gives a site access: `SITE.toml`.
    pub fn token(&self, site: &str, data: &str) {
        self.do_it(&format!("token add {site} --data {data} --out {site}.toml"));
    }

    /// The command line of a replica `r0` at a site that has a token, with state in `SITE`.
    pub fn train_line(&self, site: &str, server: &Server) -> String {
        let url = &server.url;
        format!(
            "train --coordinator {url} --token-file {site}.toml --site {site} --replica r0 --corpus \
             corpus --state state-{site} --threads 1 --json"
        )
    }

    pub fn train(&self, site: &str, server: &Server) -> Process {
        self.start(&self.train_line(site, server))
    }

    /// Trains the run to its end with one site, and checks that the journal is whole: nothing that a
    /// test did before did any harm.
    pub fn finish(&self, server: Server, data: &str) {
        if !self.path("finisher.toml").exists() {
            self.token("finisher", data);
        }
        let replica = self.train("finisher", &server);
        replica.end_well();
        let summary = server.process.end_well();
        assert_eq!(summary.event("ended")["run_over"], true);
        let report = self.verified(data);
        assert_eq!(report["ended"], true, "{report}");
    }

    /// `hansa ledger verify`, which must find nothing wrong.
    pub fn verified(&self, data: &str) -> Value {
        let report = self.json(&format!("ledger verify {data} --json"));
        assert_eq!(
            (&report["lost"], &report["doubled"]),
            (&0.into(), &0.into())
        );
        assert_eq!(report["violations"], Value::Array(vec![]), "{report}");
        report
    }

    /// Asks for the status until it is as wanted.
    pub fn status_until(&self, data: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let status = self.json(&format!("status --data {data} --json"));
            if wanted(&status) {
                return status;
            }
            assert!(began.elapsed() < WITHIN, "never came: {status:#}");
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Waits until something holds; `what` says what in a failure.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < WITHIN, "it never came that {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A coordinator.
pub struct Server {
    pub process: Process,
    pub url: String,
    pub fingerprint: String,
}

impl Server {
    /// Address and port.
    pub fn address(&self) -> &str {
        self.url.strip_prefix("https://").unwrap()
    }
}

/// Documents as JSON lines: words of a made-up language, other ones for each seed.
pub fn documents(seed: u64, count: usize) -> String {
    let mut state = seed;
    let mut below = |limit: u64| {
        // Knuth's MMIX generator; its upper bits are good enough for prose.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let words: Vec<String> = (0..200)
        .map(|_| {
            let letters = 2 + below(6);
            (0..letters)
                .map(|_| char::from(b'a' + below(20) as u8))
                .collect()
        })
        .collect();
    let mut text = String::new();
    for _ in 0..count {
        let length = 30 + below(50);
        let document: Vec<&str> = (0..length)
            .map(|_| words[below(words.len() as u64) as usize].as_str())
            .collect();
        let _ = writeln!(text, "{{\"text\":\"{}\"}}", document.join(" "));
    }
    text
}

fn refused(process: Process, words: &[&str]) {
    let line = process.line.clone();
    let end = process.end();
    let said = &end.stderr;
    assert_eq!(end.code, Some(1), "hansa {line}: {said}{}", end.stdout);
    let errors = said.lines().filter(|line| line.starts_with("error: "));
    assert_eq!(errors.count(), 1, "hansa {line}: {said}");
    assert!(said.starts_with("error: "), "hansa {line}: {said}");
    assert!(said.len() < SHORT, "hansa {line}: {said}");
    for word in words {
        assert!(said.contains(word), "hansa {line}: no {word:?} in: {said}");
    }
}

/// A child process; it is killed when the test drops it.
pub struct Process {
    line: String,
    child: Child,
    events: Receiver<String>,
    stdout: String,
    stderr: Option<JoinHandle<String>>,
}

/// How a process ended.
#[derive(Debug)]
pub struct End {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl End {
    /// The last event of this name.
    pub fn event(&self, name: &str) -> Value {
        let events = self.stdout.lines().rev().filter_map(as_event);
        let mut named = events.filter(|event| event["event"] == name);
        named
            .next()
            .unwrap_or_else(|| panic!("no {name} in {}", self.stdout))
    }
}

impl Process {
    fn start(mut command: Command, line: &str) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        let (to, events) = channel();
        std::thread::spawn(move || {
            stdout
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| to.send(line))
        });
        let stderr = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Self {
            line: line.to_owned(),
            child,
            events,
            stdout: String::new(),
            stderr: Some(stderr),
        }
    }

    /// Waits for the next event of this name.
    pub fn event(&mut self, name: &str) -> Value {
        self.event_like(name, |event| event["event"] == name)
    }

    /// Waits for the next event that fits; `what` says which in a failure.
    pub fn event_like(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let left = WITHIN.saturating_sub(began.elapsed());
            let Ok(line) = self.events.recv_timeout(left) else {
                self.fail(&format!("no event {what}"));
            };
            self.keep(&line);
            if let Some(event) = as_event(&line).filter(&fits) {
                return event;
            }
        }
    }

    fn keep(&mut self, line: &str) {
        self.stdout.push_str(line);
        self.stdout.push('\n');
    }

    fn fail(&mut self, why: &str) -> ! {
        let _ = self.child.kill();
        let stderr = self.stderr.take().unwrap().join().unwrap();
        panic!(
            "hansa {}: {why}; it said: {}{stderr}",
            self.line, self.stdout
        );
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL: nothing is flushed, nobody is told.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM: a clean end is asked for.
    pub fn terminate(&self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: kill() takes no pointers; the child is not yet waited for, so the pid is its.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    }

    /// Waits until it ends by itself.
    pub fn end(mut self) -> End {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > WITHIN {
                self.fail("it does not end");
            }
            std::thread::sleep(LOOK_EVERY);
        };
        while let Ok(line) = self.events.recv() {
            self.keep(&line);
        }
        End {
            code: status.code(),
            stdout: std::mem::take(&mut self.stdout),
            stderr: self.stderr.take().unwrap().join().unwrap(),
        }
    }

    /// Waits until it ends by itself, with exit code 0 and nothing to complain of.
    pub fn end_well(self) -> End {
        let line = self.line.clone();
        let end = self.end();
        assert_eq!(
            (end.code, end.stderr.as_str()),
            (Some(0), ""),
            "hansa {line}"
        );
        end
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn as_event(line: &str) -> Option<Value> {
    serde_json::from_str(line).ok().filter(Value::is_object)
}
