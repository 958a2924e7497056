//! The trainer's process: in a group of its own, so that nothing of it stays behind.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child as StdChild, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// EX_CONFIG of sysexits.h: the trainer says that trying again is of no use.
pub(crate) const UNFIT: i32 = 78;
/// Where the trainer finds the agent.
const SOCKET_VARIABLE: &str = "HANSA_AGENT_SOCKET";
/// Where every rank finds what the run is.
const RUN_VARIABLE: &str = "HANSA_RUN_FILE";
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A handle on the trainer's process; none if it was started elsewhere. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Child(Arc<Mutex<Option<Group>>>);

struct Group {
    process: StdChild,
    ended: Option<ExitStatus>,
}

impl Child {
    /// Starts a trainer. What it prints goes to stderr: stdout is the agent's.
    pub fn start(command: &[String], socket: &Path, run_file: &Path) -> io::Result<Self> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(io::Error::other("the trainer's command is empty"));
        };
        let stdout = io::stderr().as_fd().try_clone_to_owned()?;
        let process = Command::new(program)
            .args(arguments)
            .env(SOCKET_VARIABLE, socket)
            .env(RUN_VARIABLE, run_file)
            .stdin(Stdio::null())
            .stdout(Stdio::from(stdout))
            .process_group(0)
            .spawn()?;
        tracing::info!(pid = process.id(), "started the trainer");
        let group = Group {
            process,
            ended: None,
        };
        Ok(Self(Arc::new(Mutex::new(Some(group)))))
    }

    fn with<T>(&self, look: impl FnOnce(&mut Group) -> T) -> Option<T> {
        let mut group = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        group.as_mut().map(look)
    }

    /// How it ended, if it is over; `None` while it runs or if it was started elsewhere.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.with(Group::look).flatten()
    }

    /// Lets it end for so long, then makes it: SIGTERM, and SIGKILL to what is left of its group.
    pub fn finish(&self, grace: Duration) {
        for signal in [None, Some(libc::SIGTERM), Some(libc::SIGKILL)] {
            if let Some(signal) = signal {
                self.with(|group| group.signal(signal));
            }
            let until = Instant::now() + grace;
            while Instant::now() < until {
                if self.with(|group| group.look().is_none()) != Some(true) {
                    // Ranks that outlived their launcher.
                    self.with(|group| group.signal(libc::SIGKILL));
                    return;
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        tracing::error!("the trainer does not end, even when killed: is its storage away?");
    }

    /// As [`Child::finish`], at once.
    pub fn kill(&self) {
        self.with(|group| group.signal(libc::SIGKILL));
        self.finish(Duration::from_secs(5));
    }
}

impl Group {
    fn look(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.process.try_wait().ok().flatten();
        }
        self.ended
    }

    fn signal(&self, signal: libc::c_int) {
        let Ok(group) = libc::pid_t::try_from(self.process.id()) else {
            return;
        };
        // SAFETY: takes two numbers. The group is this child's: its number is not given to another
        // process while a member of the group lives, and nobody else makes groups here.
        let _ = unsafe { libc::kill(-group, signal) };
    }
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

    #[test]
    fn nothing_of_a_trainer_stays_behind() {
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join("rank");
        // A rank that ignores SIGTERM, and a launcher that is killed before it.
        let script = format!(
            "sh -c 'trap \"\" TERM; echo $$ > {0}.new; mv {0}.new {0}; while :; do sleep 1; done' & wait",
            note.display()
        );
        let child = shell(&script);
        while !note.exists() {
            std::thread::sleep(LOOK_EVERY);
        }
        assert!(child.ended().is_none());
        child.kill();
        assert!(child.ended().is_some());
        let rank: libc::pid_t = std::fs::read_to_string(note)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        // It may stay a zombie until init has seen it; alive it is not.
        let alive = || {
            let stat = std::fs::read_to_string(format!("/proc/{rank}/stat")).unwrap_or_default();
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
        };
        while alive() {
            std::thread::sleep(LOOK_EVERY);
        }
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
