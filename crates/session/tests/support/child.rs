//! A replica in a process of its own: this test's binary again, told by its environment.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;

use hansa_session::Session;
use serde_json::Value;

use super::Invitation;

const ASKED: &str = "HANSA_SESSION_TEST_CHILD";

/// The process. It is killed when this is dropped.
pub struct Child {
    process: std::process::Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Child {
    pub fn start(invitation: &Invitation, replica: &str, state_dir: &Path, pace: f64) -> Self {
        let told = serde_json::json!({
            "url": invitation.url,
            "token": invitation.token,
            "corpus": invitation.corpus,
            "replica": replica,
            "state": state_dir,
            "pace": pace,
        });
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["child_process", "--exact", "--nocapture"])
            .env(ASKED, told.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// The next event that is wanted; the process must not end before.
    pub fn wait_for(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut seen = Vec::new();
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            // The test harness writes its own words before the first event.
            let Some(start) = line.find('{') else {
                continue;
            };
            let event: Value = serde_json::from_str(&line[start..]).unwrap();
            if wanted(&event) {
                return event;
            }
            seen.push(line);
        }
        panic!("the process ended before that: {seen:#?}");
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    }

    pub fn exit_code(&mut self) -> Option<i32> {
        // Its pipe must not fill up before it can end.
        self.lines.by_ref().for_each(drop);
        self.process.wait().unwrap().code()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Is the child, if this process was started as one.
pub fn run_if_asked() {
    let Ok(told) = std::env::var(ASKED) else {
        return;
    };
    let told: Value = serde_json::from_str(&told).unwrap();
    let text = |key: &str| told[key].as_str().unwrap().to_owned();
    let invitation = Invitation {
        url: text("url"),
        token: text("token"),
        corpus: text("corpus").into(),
    };
    let (mut options, _) = invitation.options(&text("replica"), Path::new(&text("state")));
    options.pace = told["pace"].as_f64();
    options.handle_signals = true;
    options.events = Arc::new(|event| println!("{}", serde_json::to_string(event).unwrap()));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let outcome = runtime.block_on(Session::new(options).run());
    let code = i32::from(outcome.is_err());
    std::process::exit(code);
}
