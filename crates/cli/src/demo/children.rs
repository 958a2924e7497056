//! The demo's child processes: the same `hansa serve` and `hansa train` that a person would start.

use super::prepare::Places;
use anyhow::Context as _;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// One site of the demo.
#[derive(Clone, Copy, Debug)]
pub struct SitePlan {
    /// Its name.
    pub name: &'static str,
    /// Windows per second at the most; the sites differ in speed.
    pub pace: Option<f64>,
}

/// A child process and its reported events.
pub struct Process {
    child: Child,
    events: Receiver<Value>,
}

impl Process {
    /// Starts `hansa ARGUMENTS`; stdout is read as JSON lines, stderr goes to `log`.
    pub fn start(arguments: &[String], log: &PathBuf) -> anyhow::Result<Self> {
        let exe = std::env::current_exe().context("find the hansa binary")?;
        let stderr = File::options().create(true).append(true).open(log);
        let stderr = stderr.with_context(|| format!("open {}", log.display()))?;
        let mut command = Command::new(exe);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr);
        // A terminal's Ctrl-C must reach only the demo, which then ends its children in order.
        command.process_group(0);
        end_with_parent(&mut command);
        let mut child = command.spawn().context("start a hansa process")?;
        let (to, events) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || read_events(BufReader::new(stdout), &to));
        }
        Ok(Self { child, events })
    }

    /// Events that have come since the last call.
    pub fn events(&self) -> impl Iterator<Item = Value> + '_ {
        self.events.try_iter()
    }

    /// Waits for the next event, a little.
    pub fn next_event(&self, within: Duration) -> Option<Value> {
        self.events.recv_timeout(within).ok()
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().context("wait for a child process")
    }

    /// SIGKILL: nothing is flushed, nobody is told.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("kill a child process")?;
        self.child.wait().context("wait for a child process")?;
        Ok(())
    }

    /// SIGTERM: a clean end is asked for.
    pub fn terminate(&self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // SAFETY: kill() takes no pointers; the child is not yet waited for, so the pid is its.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
    }

    /// Waits until it ends; after `within` it is killed. True if it has ended well.
    pub fn wait_or_kill(&mut self, within: Duration) -> anyhow::Result<bool> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status.success());
            }
            if start.elapsed() > within {
                self.kill()?;
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_events(lines: BufReader<impl std::io::Read>, to: &Sender<Value>) {
    let lines = lines.lines().map_while(Result::ok);
    for event in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
        if to.send(event).is_err() {
            return;
        }
    }
}

/// A demo that is itself killed must not leave processes behind.
fn end_with_parent(command: &mut Command) {
    // SAFETY: prctl(PR_SET_PDEATHSIG) is async-signal-safe and touches only the new process.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
}

/// Arguments of the coordinator.
pub fn serve_arguments(places: &Places, listen: &str) -> Vec<String> {
    let recipe = places.recipe().display().to_string();
    let data = places.data().display().to_string();
    [
        "serve", &recipe, "--data", &data, "--listen", listen, "--json",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Arguments of a site's replica.
pub fn train_arguments(places: &Places, site: SitePlan, coordinator: &str) -> Vec<String> {
    let credentials = places.credentials(site.name).display().to_string();
    let corpus = places.corpus().display().to_string();
    let state = places.state(site.name).display().to_string();
    let mut all: Vec<String> = [
        "train",
        "--coordinator",
        coordinator,
        "--token-file",
        &credentials,
        "--site",
        site.name,
        "--replica",
        "r0",
        "--corpus",
        &corpus,
        "--state",
        &state,
        "--threads",
        "1",
        "--json",
    ]
    .map(str::to_owned)
    .to_vec();
    all.extend(
        site.pace
            .iter()
            .flat_map(|pace| ["--pace".to_owned(), pace.to_string()]),
    );
    all
}
