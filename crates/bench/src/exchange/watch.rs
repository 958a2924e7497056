//! Programs that are measured: their events, their memory, their end.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::{Memory, memory_of};

const SAMPLE_EVERY: Duration = Duration::from_millis(20);

/// The most memory that was seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peak {
    pub anon_shmem_bytes: u64,
    pub resident_bytes: u64,
}

/// A running program; dropped, it is killed.
pub struct Program {
    name: String,
    child: Child,
    events: Receiver<Value>,
    seen: Vec<Value>,
    peak: Arc<Mutex<Peak>>,
    over: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl Program {
    /// Starts a program whose stdout is JSON lines; `with` are words before it.
    pub fn start(
        name: &str,
        with: &[String],
        exe: &Path,
        arguments: &[String],
    ) -> anyhow::Result<Self> {
        let mut command = match with.split_first() {
            None => Command::new(exe),
            Some((first, more)) => {
                let mut command = Command::new(first);
                command.args(more).arg(exe);
                command
            }
        };
        let command = command.args(arguments).stdin(Stdio::null());
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let (to, events) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                for event in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
                    if to.send(event).is_err() {
                        return;
                    }
                }
            });
        }
        let (peak, over) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let watcher = watch(child.id(), Arc::clone(&peak), over.clone());
        Ok(Self {
            name: name.to_owned(),
            child,
            events,
            seen: Vec::new(),
            peak,
            over,
            watcher: Some(watcher),
        })
    }

    /// What it took until now was not for what is measured.
    pub fn forget_peak(&self) {
        // The system's own mark goes down to what is there now.
        let _ = std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5");
        if let Ok(mut peak) = self.peak.lock() {
            *peak = Peak::default();
        }
    }

    /// Waits for an event of this kind.
    pub fn wait_for(&mut self, kind: &str, within: Duration) -> anyhow::Result<Value> {
        loop {
            let event = self.next(within)?;
            let event = event.with_context(|| format!("{} ended early", self.name))?;
            if event["event"] == kind {
                return Ok(event);
            }
        }
    }

    /// Waits for its end; gives all its events.
    pub fn finish(&mut self, silence_max: Duration) -> anyhow::Result<Vec<Value>> {
        while self.next(silence_max)?.is_some() {}
        let status = self.child.wait().context("wait for a process")?;
        if !status.success() {
            bail!("{} failed ({status})", self.name);
        }
        Ok(std::mem::take(&mut self.seen))
    }

    fn next(&mut self, within: Duration) -> anyhow::Result<Option<Value>> {
        use std::sync::mpsc::RecvTimeoutError;
        match self.events.recv_timeout(within) {
            Ok(event) => {
                self.seen.push(event.clone());
                Ok(Some(event))
            }
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                bail!(
                    "nothing was heard of {} for {} s",
                    self.name,
                    within.as_secs()
                )
            }
        }
    }

    /// What it took.
    pub fn memory(&self) -> Memory {
        let peak = self
            .peak
            .lock()
            .map_or_else(|_| Peak::default(), |peak| *peak);
        memory_of(&self.name, peak)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.over.store(true, Ordering::Relaxed);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

fn watch(pid: u32, peak: Arc<Mutex<Peak>>, over: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            let status = status.unwrap_or_default();
            let anon = kib(&status, "RssAnon:") + kib(&status, "RssShmem:");
            if let Ok(mut peak) = peak.lock() {
                peak.anon_shmem_bytes = peak.anon_shmem_bytes.max(anon);
                peak.resident_bytes = peak.resident_bytes.max(kib(&status, "VmHWM:"));
            }
            std::thread::sleep(SAMPLE_EVERY);
        }
    })
}

fn kib(status: &str, key: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|kib| kib.parse().ok()).unwrap_or(0_u64) << 10
}
