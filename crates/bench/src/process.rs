//! Steps in processes of their own: one JSON task in, one JSON report out.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use crate::floor::{Traffic, move_bytes};
use crate::measure::{MemoryWatch, status_bytes};
use crate::merge::MergeTask;

/// What a process of its own does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// One merge.
    Merge(MergeTask),
    /// As many bytes, moved plainly.
    Floor(Traffic),
}

/// What it cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Wall clock of the step alone.
    pub seconds: f64,
    /// Largest sum of anonymous and shared memory that was seen.
    pub peak_anon_shmem_bytes: u64,
    /// Largest resident set, the program and mapped files included.
    pub peak_resident_bytes: u64,
    /// Names of what was made, to be compared.
    pub made: Vec<String>,
}

/// How this program starts itself to run a task: its path and the arguments before the task's file.
#[derive(Clone, Debug)]
pub struct Starter {
    /// The program.
    pub program: PathBuf,
    /// What stands before the path of the task.
    pub arguments: Vec<String>,
}

impl Starter {
    /// Runs a task in a process of its own; its file is written into `dir`.
    ///
    /// # Errors
    /// If the process cannot be started or fails.
    pub fn run(&self, dir: &Path, task: &Task) -> anyhow::Result<Report> {
        let path = dir.join("task.json");
        let json = serde_json::to_vec(task).context("write a task")?;
        std::fs::write(&path, json).with_context(|| format!("write {}", path.display()))?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg(&path);
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = output.output().context("start a process to measure")?;
        if !output.status.success() {
            bail!("the measured process failed ({})", output.status);
        }
        serde_json::from_slice(&output.stdout).context("read what the measured process says")
    }
}

/// What the started process does: runs the task in this file.
///
/// # Errors
/// If the task cannot be read, or fails.
pub fn run_task(path: &Path) -> anyhow::Result<Report> {
    let json = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let task: Task = serde_json::from_slice(&json).context("read a task")?;
    let watch = MemoryWatch::start();
    let (took, made) = match task {
        Task::Merge(task) => task.run()?,
        Task::Floor(traffic) => (move_bytes(&traffic)?, Vec::new()),
    };
    Ok(Report {
        seconds: took.as_secs_f64(),
        peak_anon_shmem_bytes: watch.finish(),
        peak_resident_bytes: status_bytes("VmHWM"),
        made,
    })
}
