//! The trainer's processes: each carries a mark in its environment, by which it is found, so that nothing of a
//! trainer stays behind. A process group would not do: `torchrun` gives each rank a session of its own, and
//! below `srun` tasks belong to Slurm's daemon.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child as StdChild, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// EX_CONFIG of sysexits.h: the trainer says that trying again is of no use.
pub(crate) const UNFIT: i32 = 78;
/// Where the trainer finds the agent.
const SOCKET_VARIABLE: &str = "HANSA_AGENT_SOCKET";
/// Where every rank finds what the run is.
const RUN_VARIABLE: &str = "HANSA_RUN_FILE";
/// The mark.
const MARK_VARIABLE: &str = "HANSA_TRAINER";
/// How often the agent has started a trainer: ranks that meet at a port want another one each time.
const ATTEMPT_VARIABLE: &str = "HANSA_ATTEMPT";
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// From SIGTERM to SIGKILL: `torchrun` gives its ranks 30 s of that, `srun` passes the signal on.
const TERM_GRACE: Duration = Duration::from_secs(35);
/// How long what was killed may take to go.
const KILL_GRACE: Duration = Duration::from_secs(10);

static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// A handle on the trainer's processes; none if they were started elsewhere. Cheap to clone; the last one
/// takes them with it.
#[derive(Clone, Default)]
pub(crate) struct Child(Arc<Mutex<Option<Family>>>);

struct Family {
    /// What was started: the only one that can be waited for.
    launcher: StdChild,
    ended: Option<ExitStatus>,
    /// Of all of them, as it stands in an environment.
    mark: Vec<u8>,
}

impl Child {
    /// Starts a trainer. What it prints goes to stderr: stdout is the agent's.
    pub fn start(command: &[String], socket: &Path, run_file: &Path) -> io::Result<Self> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(io::Error::other("the command is empty"));
        };
        let stdout = io::stderr().as_fd().try_clone_to_owned()?;
        let attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed) + 1;
        let mark = new_mark(attempt);
        let launcher = Command::new(program)
            .args(arguments)
            .env(SOCKET_VARIABLE, socket)
            .env(RUN_VARIABLE, run_file)
            .env(MARK_VARIABLE, &mark)
            .env(ATTEMPT_VARIABLE, attempt.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::from(stdout))
            // The terminal's Ctrl-C is for the agent.
            .process_group(0)
            .spawn()?;
        tracing::info!(pid = launcher.id(), "started the trainer");
        let family = Family {
            launcher,
            ended: None,
            mark: format!("{MARK_VARIABLE}={mark}").into_bytes(),
        };
        Ok(Self(Arc::new(Mutex::new(Some(family)))))
    }

    fn with<T>(&self, look: impl FnOnce(&mut Family) -> T) -> Option<T> {
        let mut family = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        family.as_mut().map(look)
    }

    /// Whether somebody else started it.
    pub fn is_none(&self) -> bool {
        self.with(|_| ()).is_none()
    }

    /// How it ended, if it is over; `None` while it runs or if it was started elsewhere.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.with(Family::look).flatten()
    }

    /// Lets it end for so long, then makes it: SIGTERM to the launcher, which knows best how to end its ranks,
    /// and later SIGKILL to all.
    pub fn finish(&self, grace: Duration) {
        if self.is_over_within(grace) {
            return self.kill_all();
        }
        self.end();
    }

    /// As [`Child::finish`], without waiting first.
    pub fn end(&self) {
        self.with(|family| family.signal_launcher(libc::SIGTERM));
        self.is_over_within(TERM_GRACE);
        self.kill_all();
    }

    fn is_over_within(&self, grace: Duration) -> bool {
        let until = Instant::now() + grace;
        while self.with(|family| family.look().is_none()) == Some(true) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        true
    }

    /// Kills what is left, ranks that outlived their launcher included, and waits until it is gone.
    fn kill_all(&self) {
        let until = Instant::now() + KILL_GRACE;
        while self.with(Family::kill).unwrap_or(0) > 0 {
            if Instant::now() >= until {
                tracing::error!("the trainer does not end, even when killed: is its storage away?");
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Family {
    fn look(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.launcher.try_wait().ok().flatten();
        }
        self.ended
    }

    fn signal_launcher(&mut self, signal: libc::c_int) {
        // One that was waited for has given its number back.
        if self.look().is_none() {
            send(self.launcher.id(), signal);
        }
    }

    /// SIGKILL to all; how many there were.
    fn kill(&mut self) -> usize {
        self.signal_launcher(libc::SIGKILL);
        let marked = marked(&self.mark);
        for process in &marked {
            send(*process, libc::SIGKILL);
        }
        marked.len() + usize::from(self.look().is_none())
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.kill();
    }
}

fn send(process: u32, signal: libc::c_int) {
    if let Ok(process) = libc::pid_t::try_from(process) {
        // SAFETY: takes two numbers. The process is the launcher, which nobody else waits for, or was seen
        // with the mark a moment ago.
        let _ = unsafe { libc::kill(process, signal) };
    }
}

/// No other trainer's, on whatever node and in whatever container.
fn new_mark(attempt: u64) -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanos = since.unwrap_or_default().as_nanos();
    format!("{}-{attempt}-{nanos:x}", std::process::id())
}

/// Processes of this node that run with this mark. One that has ended has no environment any more.
fn marked(mark: &[u8]) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_mark = |process: &u32| {
        let variables = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|it| it == mark)
    };
    numbers.filter(has_mark).collect()
}

/// For people: `exit status 1`, `signal 9 (killed)`.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(9)) => "killed by signal 9; out of memory?".to_owned(),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "no status".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shell(script: &str) -> Child {
        let words = ["sh", "-c", script].map(str::to_owned);
        Child::start(&words, Path::new("socket"), Path::new("run.json")).unwrap()
    }

    /// Waits for a rank to write its number.
    fn number_in(note: &Path) -> u32 {
        while !note.exists() {
            std::thread::sleep(LOOK_EVERY);
        }
        let text = std::fs::read_to_string(note).unwrap();
        text.trim().parse().unwrap()
    }

    /// It may stay a zombie until init has seen it; alive it is not.
    fn is_alive(process: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let state = stat.rsplit(')').next();
        state.is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
    }

    fn gone(process: u32) {
        while is_alive(process) {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// A launcher that starts a rank in a session of its own, as torchrun does, and then does `then`.
    fn launcher(note: &Path, then: &str) -> Child {
        let note = note.display();
        shell(&format!(
            "setsid sh -c 'trap \"\" TERM; echo $$ > {note}.new; mv {note}.new {note}; \
             while :; do sleep 1; done' & {then}"
        ))
    }

    #[test]
    fn nothing_of_a_trainer_stays_behind() {
        let dir = tempfile::tempdir().unwrap();
        // Its launcher ends when told to, or has ended before.
        for then in ["wait", "kill -9 $$"] {
            let note = dir.path().join(then.len().to_string());
            let child = launcher(&note, then);
            let rank = number_in(&note);
            assert!(is_alive(rank));
            child.end();
            assert!(child.ended().is_some());
            gone(rank);
        }
    }

    #[test]
    fn a_launcher_is_told_before_its_ranks_are_killed() {
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join("rank");
        let told = dir.path().join("told");
        let then = format!("trap 'echo > {}; exit 7' TERM; wait", told.display());
        let child = launcher(&note, &then);
        // The rank hears nothing any more: it is stopped.
        let rank = number_in(&note);
        send(rank, libc::SIGSTOP);
        child.end();
        assert!(told.exists());
        assert_eq!(child.ended().and_then(|status| status.code()), Some(7));
        gone(rank);
    }

    #[test]
    fn the_last_handle_takes_its_processes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join("rank");
        let child = launcher(&note, "wait");
        let rank = number_in(&note);
        let other = child.clone();
        drop(child);
        assert!(is_alive(rank));
        drop(other);
        gone(rank);
    }

    #[test]
    fn an_end_is_described() {
        let child = shell("exit 3");
        let status = loop {
            match child.ended() {
                Some(status) => break status,
                None => std::thread::sleep(LOOK_EVERY),
            }
        };
        assert_eq!(describe(status), "exit status 3");
        assert!(Child::default().ended().is_none());
    }
}
