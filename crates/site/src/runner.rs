//! Runs a site's commands: here, or through the system's `ssh`.
//!
//! A command gets a clean environment: who starts `hansa site run` from inside a job must not have its
//! `SBATCH_PARTITION` or `SLURM_JOB_ID` decide where other jobs go. Every command has a time limit, after
//! which its whole process group is killed; what it prints is bounded. Never here: what a command means.

use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use hansa_slurm::parse::{Now, UnixTime, Zone};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use crate::shell::{join, quote};

/// No command of interest prints more; what comes after is read and dropped.
const OUTPUT_BYTES_MAX: usize = 32 << 20;
/// `ssh` itself failed.
const SSH_FAILED: i32 = 255;
/// What is left to the other side's `timeout` before we end our own.
const SSH_SLACK: Duration = Duration::from_secs(15);
/// `timeout` kills what does not end by itself after so long.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// What a remote command's exit code of 255 is told as: that one is `ssh`'s own.
const REMOTE_255: i32 = 254;

/// Variables that would change what commands do or say.
const UNWANTED: &[&str] = &[
    "SBATCH_",
    "SLURM_",
    "SALLOC_",
    "SRUN_",
    "SQUEUE_",
    "SACCT_",
    "SINFO_",
    "SCANCEL_",
    "SCONTROL_",
    "PMI_",
    "PMIX_",
];
/// Of these the ones that say where Slurm is.
const WANTED: &[&str] = &["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"];

/// Where commands run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// On this machine.
    Here,
    /// On the host that `ssh` knows by this name.
    Ssh(String),
}

/// Runs commands. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Runner {
    via: Via,
    zone: Zone,
    conf: Option<String>,
}

/// One command.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The program.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// What it reads.
    pub input: Option<String>,
    /// How long it may take.
    pub limit: Duration,
    /// It must not outlive its limit even if we are killed meanwhile.
    pub surely_ends: bool,
}

/// What a command printed.
#[derive(Clone, Debug)]
pub struct Printed {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// How long it took.
    pub took: Duration,
    /// When it was started, and in which zone it speaks.
    pub now: Now,
}

/// Why there is no answer of a command.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no such program.
    #[error(
        "{program} is not there: run this where Slurm's commands are (a login node), or set slurm.ssh in the profile"
    )]
    Missing {
        /// The program.
        program: String,
    },
    /// It could not be started or spoken to.
    #[error("run {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It took too long.
    #[error("{program} did not end within {} s and was killed; is Slurm's controller up? (`scontrol ping`)", limit.as_secs())]
    TimedOut {
        /// The program.
        program: String,
        /// The limit.
        limit: Duration,
    },
    /// `ssh` failed.
    #[error(
        "ssh {host}: {text}; it must work without questions (`ssh -o BatchMode=yes {host} true`)"
    )]
    Ssh {
        /// The host.
        host: String,
        /// What it said.
        text: String,
    },
}

impl Invocation {
    /// A command without input.
    pub fn new(
        program: &str,
        arguments: impl IntoIterator<Item = impl Into<String>>,
        limit: Duration,
    ) -> Self {
        Self {
            program: program.to_owned(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            input: None,
            limit,
            surely_ends: false,
        }
    }

    /// The same; it ends within its limit whatever becomes of us.
    #[must_use]
    pub fn surely_ending(mut self) -> Self {
        self.surely_ends = true;
        self
    }

    /// The same, with input.
    #[must_use]
    pub fn reading(mut self, input: &str) -> Self {
        self.input = Some(input.to_owned());
        self
    }
}

impl Printed {
    /// Whether the command says that all is well.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.code == Some(0)
    }

    /// Standard output as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }

    /// Both streams, for people.
    #[must_use]
    pub fn both(&self) -> String {
        let (out, err) = (
            String::from_utf8_lossy(&self.stdout),
            String::from_utf8_lossy(&self.stderr),
        );
        format!("{}\n{}", out.trim_end(), err.trim_end())
            .trim()
            .to_owned()
    }
}

impl Runner {
    /// A runner; `zone` is that of the clock that the commands read, `conf` names Slurm's configuration if
    /// it is not the usual one.
    #[must_use]
    pub fn new(via: Via, zone: Zone, conf: Option<String>) -> Self {
        Self { via, zone, conf }
    }

    /// How long a command that surely ends within `limit` may be at work, counted from when we began to run
    /// it: a connection may hang until just before it is given up, and lead to a start then.
    #[must_use]
    pub fn longest(&self, limit: Duration) -> Duration {
        match self.via {
            Via::Here => limit + KILL_AFTER,
            Via::Ssh(_) => limit + SSH_SLACK + limit + KILL_AFTER,
        }
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// If it cannot be started, or takes too long. An exit code that is not 0 is no error here.
    pub async fn run(&self, invocation: &Invocation) -> Result<Printed, RunError> {
        let (mut command, limit) = self.command(invocation);
        let program = invocation.program.clone();
        let started = Instant::now();
        let at = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let at = UnixTime(i64::try_from(at).unwrap_or(i64::MAX));
        let child = command.spawn().map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => RunError::Missing {
                program: program.clone(),
            },
            _ => RunError::Start {
                program: program.clone(),
                source,
            },
        })?;
        let mut group = Group::of(child);
        let spoken = tokio::time::timeout(limit, group.speak(invocation.input.clone()));
        let (stdout, stderr, code) = match spoken.await {
            Ok(Ok(spoken)) => spoken,
            Ok(Err(source)) => return Err(RunError::Start { program, source }),
            Err(_) => return Err(RunError::TimedOut { program, limit }),
        };
        let printed = Printed {
            stdout,
            stderr,
            code,
            took: started.elapsed(),
            now: Now {
                at,
                zone: self.zone.clone(),
            },
        };
        self.checked(printed, program, invocation.surely_ends)
    }

    fn checked(
        &self,
        printed: Printed,
        program: String,
        under_timeout: bool,
    ) -> Result<Printed, RunError> {
        // 127: a shell's word for a program that is not there; 124: `timeout` ended it.
        match (&self.via, printed.code) {
            (Via::Ssh(host), Some(SSH_FAILED)) if !printed.stderr.is_empty() => {
                Err(RunError::Ssh {
                    host: host.clone(),
                    text: String::from_utf8_lossy(&printed.stderr).trim().to_owned(),
                })
            }
            (Via::Here, _) if !under_timeout => Ok(printed),
            (_, Some(127)) => Err(RunError::Missing { program }),
            (_, Some(124 | 137)) => Err(RunError::TimedOut {
                program,
                limit: printed.took,
            }),
            _ => Ok(printed),
        }
    }

    fn command(&self, invocation: &Invocation) -> (Command, Duration) {
        let (mut command, limit) = match &self.via {
            Via::Here => {
                let mut command = match invocation.surely_ends {
                    true => Command::new("timeout"),
                    false => Command::new(&invocation.program),
                };
                if invocation.surely_ends {
                    command.args(timeout_words(invocation.limit));
                    command.arg(&invocation.program);
                }
                command.args(&invocation.arguments);
                clean(&mut command);
                command.env("SLURM_TIME_FORMAT", "%s");
                command.envs(self.conf.iter().map(|conf| ("SLURM_CONF", conf)));
                (command, invocation.limit)
            }
            Via::Ssh(host) => {
                let mut command = Command::new("ssh");
                command.args(["-T", "-o", "BatchMode=yes", "--", host]);
                command.arg(remote_line(invocation, self.conf.as_deref()));
                (command, invocation.limit + SSH_SLACK)
            }
        };
        let stdin = match invocation.input {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        };
        command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        (command, limit)
    }
}

/// The arguments of `timeout`.
fn timeout_words(limit: Duration) -> [String; 3] {
    let seconds = |time: Duration| time.as_secs().max(1).to_string();
    ["-k".to_owned(), seconds(KILL_AFTER), seconds(limit)]
}

/// What the other side's shell is told, whichever it is: that a plain one sets up the same environment, and a
/// limit that outlives our connection.
fn remote_line(invocation: &Invocation, conf: Option<&str>) -> String {
    let names = UNWANTED.join("\\|^");
    let keep = WANTED.join("\\|^");
    let unset = format!(
        "for v in $(env | sed 's/=.*//' | grep '^{names}' | grep -v '^{keep}$'); do unset \"$v\"; done"
    );
    let limit = timeout_words(invocation.limit);
    let words = std::iter::once("timeout").chain(limit.iter().map(String::as_str));
    let words = words.chain([invocation.program.as_str()]);
    let words = words.chain(invocation.arguments.iter().map(String::as_str));
    let conf = conf.map(|conf| format!(" SLURM_CONF={}", quote(conf)));
    let conf = conf.unwrap_or_default();
    let line = format!(
        "{unset}; export SLURM_TIME_FORMAT=%s{conf}; {}; code=$?; \
         [ $code -ne {SSH_FAILED} ] || code={REMOTE_255}; exit $code",
        join(words)
    );
    join(["exec", "sh", "-c", &line])
}

fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let unwanted = UNWANTED.iter().any(|prefix| text.starts_with(prefix));
        if unwanted && !WANTED.contains(&text.as_ref()) {
            command.env_remove(&name);
        }
    }
}

/// A child and whatever it starts; killed together if we stop waiting.
struct Group {
    child: Child,
    ended: bool,
}

impl Group {
    fn of(child: Child) -> Self {
        Self {
            child,
            ended: false,
        }
    }

    async fn speak(
        &mut self,
        input: Option<String>,
    ) -> std::io::Result<(Vec<u8>, Vec<u8>, Option<i32>)> {
        let stdin = self.child.stdin.take();
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        let write = async {
            if let (Some(mut stdin), Some(input)) = (stdin, input) {
                // Whoever does not read its input says why on its own.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let ((), out, err) = tokio::join!(write, read_bounded(stdout), read_bounded(stderr));
        let status = self.child.wait().await?;
        self.ended = true;
        Ok((out?, err?, status.code()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let (false, Some(id)) = (self.ended, id) {
            // SAFETY: kill() takes no pointers; the child leads its own group and is not yet waited for,
            // so that the number is still its.
            unsafe { libc::kill(-id, libc::SIGKILL) };
        }
    }
}

async fn read_bounded(stream: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    let Some(mut stream) = stream else {
        return Ok(kept);
    };
    let mut piece = vec![0; 16 << 10];
    loop {
        let length = stream.read(&mut piece).await?;
        if length == 0 {
            return Ok(kept);
        }
        let room = OUTPUT_BYTES_MAX - kept.len();
        kept.extend_from_slice(&piece[..length.min(room)]);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sh(line: &str, limit: Duration) -> Invocation {
        Invocation::new("sh", ["-c", line], limit)
    }

    fn here() -> Runner {
        Runner::new(Via::Here, Zone::UTC, None)
    }

    #[tokio::test]
    async fn a_command_is_read_to_its_end_with_its_input() {
        let invocation = sh("cat; echo err >&2; exit 3", LONG).reading("hello");
        let printed = here().run(&invocation).await.unwrap();
        assert_eq!((printed.text(), printed.code), ("hello".into(), Some(3)));
        assert_eq!(printed.both(), "hello\nerr");
    }

    #[tokio::test]
    async fn commands_are_told_to_print_epoch_seconds() {
        let printed = here()
            .run(&sh("echo $SLURM_TIME_FORMAT", LONG))
            .await
            .unwrap();
        assert_eq!(printed.text(), "%s");
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_killed_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let line = format!("sleep 600 & echo $! > {}; wait", pid_file.display());
        let runner = here();
        // The limit is far longer than a shell needs to start its child, and nothing waits for its end.
        let invocation = sh(&line, LONG);
        let run = runner.run(&invocation);
        let started = async {
            let written =
                || std::fs::read_to_string(&pid_file).is_ok_and(|text| text.ends_with('\n'));
            while !written() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = run => panic!("it ended by itself"),
            () = started => {}
        }
        // What is dropped is killed as what takes too long is.
        let pid: i32 = std::fs::read_to_string(&pid_file)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.map_or(true, |stat| stat.contains(") Z"))
        };
        while !gone() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn what_takes_too_long_or_is_not_there_says_so() {
        let error = here()
            .run(&sh("sleep 600", Duration::from_millis(50)))
            .await
            .unwrap_err();
        assert!(matches!(error, RunError::TimedOut { .. }), "{error}");
        let nothing = Invocation::new("hansa-no-such-program", ["x"], LONG);
        let error = here().run(&nothing).await.unwrap_err();
        assert!(matches!(error, RunError::Missing { .. }), "{error}");
    }

    #[test]
    fn the_other_sides_shell_gets_the_same_words_and_no_variables_of_a_job() {
        let invocation = Invocation::new("printf", ["%s|", "it's", "$HOME", "a b"], LONG);
        let output = std::process::Command::new("sh")
            .args(["-c", &remote_line(&invocation, None)])
            .env("SBATCH_PARTITION", "wrong")
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "it's|$HOME|a b|");
        let invocation = Invocation::new("env", [""; 0], LONG);
        let output = std::process::Command::new("sh")
            .args(["-c", &remote_line(&invocation, None)])
            .envs([
                ("SBATCH_PARTITION", "p"),
                ("SLURM_JOB_ID", "7"),
                ("SLURM_CONF", "/c"),
            ])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            !text.contains("SBATCH_PARTITION") && !text.contains("SLURM_JOB_ID"),
            "{text}"
        );
        assert!(
            text.contains("SLURM_CONF=/c") && text.contains("SLURM_TIME_FORMAT=%s"),
            "{text}"
        );
    }

    #[test]
    fn an_exit_code_of_255_is_the_remote_commands_and_not_sshs() {
        let invocation = sh("echo no such option >&2; exit 255", LONG);
        let output = std::process::Command::new("sh")
            .args(["-c", &remote_line(&invocation, None)])
            .output()
            .unwrap();
        let code = output.status.code();
        assert_eq!(code, Some(REMOTE_255));
        let printed = Printed {
            stdout: output.stdout,
            stderr: output.stderr,
            code,
            took: Duration::ZERO,
            now: Now {
                at: UnixTime(0),
                zone: Zone::UTC,
            },
        };
        let runner = Runner::new(Via::Ssh("uan".into()), Zone::UTC, None);
        let printed = runner.checked(printed, "sbatch".into(), true).unwrap();
        assert_eq!(printed.both(), "no such option");
    }

    /// What we started goes on when we are killed at once, but not for longer than it may.
    #[test]
    fn a_command_that_must_end_is_under_timeout() {
        let invocation = Invocation::new("sbatch", ["--parsable"], LONG).surely_ending();
        let (command, limit) = here().command(&invocation);
        let command = command.as_std();
        assert_eq!(command.get_program(), "timeout");
        let words: Vec<_> = command.get_args().collect();
        assert_eq!(words, ["-k", "5", "60", "sbatch", "--parsable"]);
        assert!(here().longest(LONG) >= limit + KILL_AFTER);
        let far = Runner::new(Via::Ssh("uan".into()), Zone::UTC, None);
        let (_, limit) = far.command(&invocation);
        assert!(far.longest(LONG) >= limit + LONG + KILL_AFTER);
    }

    #[tokio::test]
    async fn a_command_under_timeout_says_what_went_wrong_as_others_do() {
        let slow = sh("sleep 600", Duration::from_secs(1)).surely_ending();
        let error = here().run(&slow).await.unwrap_err();
        assert!(matches!(error, RunError::TimedOut { .. }), "{error}");
        let nothing = Invocation::new("hansa-no-such-program", ["x"], LONG).surely_ending();
        let error = here().run(&nothing).await.unwrap_err();
        assert!(matches!(error, RunError::Missing { .. }), "{error}");
        let echo = Invocation::new("cat", [""; 0], LONG).reading("hello");
        let printed = here().run(&echo.surely_ending()).await.unwrap();
        assert_eq!(printed.text(), "hello");
    }
}
