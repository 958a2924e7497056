//! Slurm's commands, each with its arguments and what its answer means.
//!
//! One place knows the controller's pace: a command that finds it away or is told to ask less makes all
//! others wait ([`Pace`]). Never here: which job to ask about, and why.

use std::time::{Duration, Instant};

use hansa_base::MonoMs;
use hansa_slurm::parse::{
    Config, FieldList, Partitions, RefusalKind, Reservations, Sacct, SacctRow, Squeue, SqueueRow,
    Submitted, SubmittedReply, TestOnly, Zone,
};

use crate::pace::Pace;
use crate::profile::{Profile, ShapeRow};
use crate::runner::{Invocation, Printed, RunError, Runner, Via};
use crate::script::render_probe;

/// Until the site's own time-outs are known: longer than anything seen (59 s for a missing configuration).
const LIMIT_AT_FIRST: Duration = Duration::from_secs(90);
/// From the coordinator's word that a job is still ours to submit to `sbatch`'s start; after that, another
/// process may have been given the site since.
pub const ACT_WITHIN: Duration = Duration::from_secs(10);
/// Slurm's default, in seconds.
const MESSAGE_TIMEOUT_S: u64 = 10;

/// No job of ours waits for a time that is farther.
const FUTURE_DAYS: u32 = 30;

const QUEUE_FORMAT: &str = "%i|%T|%r|%S|%e|%V|%l|%P|%N|%j|%k";
const QUEUE_FIELDS: &str = "%i,%T,%r,%S,%e,%V,%l,%P,%N,%j,%k";
const ACCOUNTING_FIELDS: &str = "JobID,JobName,State,ExitCode,Submit,Start,End,ElapsedRaw,\
                                 TimelimitRaw,Partition,NodeList,Reason,Comment";
const USAGE_FIELDS: &str = "JobID,User,State,ElapsedRaw,TimelimitRaw,AllocCPUS";

/// Which jobs a cancellation is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Whatever its state.
    Any,
    /// One that has not started.
    Waiting,
}

/// Why Slurm gave no answer that counts.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// The command did not run to its end.
    #[error(transparent)]
    Run(#[from] RunError),
    /// It ended with an error.
    #[error("{command}: {text}")]
    Failed {
        /// The command.
        command: String,
        /// What it said.
        text: String,
        /// What kind of failure it is.
        kind: Option<RefusalKind>,
    },
    /// It is too early to ask again.
    #[error("Slurm is left alone for {} s more after its last failure", left.as_secs_f64().ceil())]
    TooEarly {
        /// How long still.
        left: Duration,
    },
}

impl SlurmError {
    /// Whether the controller may still act on what it was asked.
    #[must_use]
    pub fn is_of_controller(&self) -> bool {
        match self {
            Self::Run(error) => matches!(error, RunError::TimedOut { .. } | RunError::Ssh { .. }),
            Self::Failed { kind, .. } => kind.is_some_and(slows_down),
            Self::TooEarly { .. } => true,
        }
    }
}

fn slows_down(kind: RefusalKind) -> bool {
    matches!(
        kind,
        RefusalKind::Controller
            | RefusalKind::RateLimited
            | RefusalKind::Authentication
            | RefusalKind::Configuration
    )
}

/// What changed with a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Slurm stopped answering; in its words.
    Trouble(String),
    /// It answers again.
    Recovered,
}

/// Slurm at one site.
#[derive(Debug)]
pub struct Slurm {
    runner: Runner,
    pace: Pace,
    began: Instant,
    limit: Duration,
    config: Option<Config>,
    /// Accounting refuses questions about jobs to come.
    past_only: bool,
    turns: Vec<Turn>,
}

impl Slurm {
    /// The Slurm of a profile.
    #[must_use]
    pub fn new(profile: &Profile) -> Self {
        let via = profile.slurm.ssh.clone().map_or(Via::Here, Via::Ssh);
        let zone = profile.slurm.time_zone.as_deref();
        let zone = zone.and_then(|zone| zone.parse().ok());
        // Commands are told to print seconds since 1970: this is for what does not heed that.
        let here = || match via {
            Via::Here => Zone::here().ok(),
            Via::Ssh(_) => None,
        };
        let zone = zone.or_else(here).unwrap_or(Zone::UTC);
        Self {
            runner: Runner::new(via, zone, profile.slurm.conf.clone()),
            pace: Pace::default(),
            began: Instant::now(),
            limit: LIMIT_AT_FIRST,
            config: None,
            past_only: false,
            turns: Vec::new(),
        }
    }

    /// The time of this process.
    #[must_use]
    pub fn now(&self) -> MonoMs {
        MonoMs(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// How long to wait before the next command.
    #[must_use]
    pub fn wait(&self) -> Duration {
        self.pace.wait(self.now())
    }

    /// Outages and their ends since the last call.
    pub fn turns(&mut self) -> Vec<Turn> {
        std::mem::take(&mut self.turns)
    }

    /// The site's configuration, once it is known.
    #[must_use]
    pub fn known_config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    fn message_timeout_s(&self) -> u64 {
        let known = self.config.as_ref();
        let seconds = known.and_then(|config| config.seconds("MessageTimeout"));
        seconds.unwrap_or(MESSAGE_TIMEOUT_S)
    }

    /// How long a submission may still be under way, counted from when another process lost its turn: until
    /// it calls `sbatch`, as long as that lives, and until a controller that answers has taken its request.
    #[must_use]
    pub fn settle(&self) -> Duration {
        let client = self.runner.longest(self.limit);
        ACT_WITHIN + client + Duration::from_secs(self.message_timeout_s())
    }

    /// Whether a request made at `asked_at` has been taken by now, or never will be.
    #[must_use]
    pub fn settled(&self, asked_at: MonoMs) -> bool {
        self.pace.settled(asked_at, self.settle(), self.now())
    }

    /// Whether there is accounting to ask at all, as far as is known.
    #[must_use]
    pub fn has_accounting(&self) -> bool {
        let known = self.config.as_ref();
        let storage = known.and_then(|config| config.get("AccountingStorageType"));
        storage.is_none_or(|storage| !storage.ends_with("/none"))
    }

    /// Seconds for which the controller remembers a job that has ended.
    #[must_use]
    pub fn min_job_age_s(&self) -> u64 {
        let known = self.config.as_ref();
        known
            .and_then(|config| config.seconds("MinJobAge"))
            .unwrap_or(300)
    }

    async fn run(&mut self, invocation: &Invocation) -> Result<Printed, SlurmError> {
        let left = self.wait();
        if !left.is_zero() {
            return Err(SlurmError::TooEarly { left });
        }
        let printed = match self.runner.run(invocation).await {
            Ok(printed) => printed,
            Err(error) => {
                self.failed(&error.to_string());
                return Err(error.into());
            }
        };
        match complaint(&printed) {
            Some((kind, text)) if slows_down(kind) => self.failed(&text),
            _ => {
                let now = self.now();
                if self.pace.answered(now) {
                    self.turns.push(Turn::Recovered);
                }
            }
        }
        Ok(printed)
    }

    fn failed(&mut self, text: &str) {
        let now = self.now();
        // Sites' processes need not be in step; the clock's low digits are spread enough.
        let entropy = now.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if self.pace.failed(now, entropy) {
            self.turns.push(Turn::Trouble(text.to_owned()));
        }
    }

    async fn ask(&mut self, invocation: &Invocation) -> Result<Printed, SlurmError> {
        let printed = self.run(invocation).await?;
        if printed.succeeded() {
            return Ok(printed);
        }
        let complaint = complaint(&printed);
        Err(SlurmError::Failed {
            command: invocation.program.clone(),
            kind: complaint.as_ref().map(|(kind, _)| *kind),
            text: complaint.map_or_else(|| printed.both(), |(_, text)| text),
        })
    }

    fn invocation(&self, program: &str, arguments: &[&str]) -> Invocation {
        Invocation::new(program, arguments.iter().copied(), self.limit)
    }

    /// `scontrol show config`; time-outs derive from it from now on.
    ///
    /// # Errors
    /// If Slurm does not answer.
    pub async fn config(&mut self) -> Result<Config, SlurmError> {
        let invocation = self.invocation("scontrol", &["show", "config"]);
        let printed = self.ask(&invocation).await?;
        let config = Config::parse(&printed.stdout);
        self.config = Some(config.clone());
        // A client tries twice, and a wrapper or two may come on top.
        self.limit = Duration::from_secs(3 * self.message_timeout_s() + 10);
        Ok(config)
    }

    /// `sbatch --test-only` of a shape.
    ///
    /// # Errors
    /// If the command does not run to its end; a refusal is an answer.
    pub async fn probe(
        &mut self,
        profile: &Profile,
        shape: &ShapeRow,
    ) -> Result<(TestOnly, Printed), SlurmError> {
        let invocation = self.invocation("sbatch", &["--test-only"]);
        let invocation = invocation.reading(&render_probe(profile, shape));
        let printed = self.run(&invocation).await?;
        // Wrappers may print on either stream.
        let mut said = printed.stderr.clone();
        said.extend_from_slice(&printed.stdout);
        Ok((TestOnly::parse(&said, &printed.now), printed))
    }

    /// `sbatch --parsable`, with the script as its input. Once.
    ///
    /// # Errors
    /// If the command does not run to its end: the job may have been taken all the same.
    pub async fn submit(&mut self, script: &str) -> Result<(Submitted, Printed), SlurmError> {
        let invocation = self.invocation("sbatch", &["--parsable"]).reading(script);
        let invocation = invocation.surely_ending();
        let printed = self.run(&invocation).await?;
        Ok((Submitted::parse(&printed.stdout, &printed.stderr), printed))
    }

    /// Our jobs that the controller knows, ended ones included.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn queue(&mut self) -> Result<Vec<SqueueRow>, SlurmError> {
        let arguments = ["--me", "-h", "-t", "all", "-o", QUEUE_FORMAT];
        let invocation = self.invocation("squeue", &arguments);
        let printed = self.ask(&invocation).await?;
        let fields: Option<FieldList> = QUEUE_FIELDS.parse().ok();
        Ok(Squeue::parse(&printed.stdout, fields.as_ref(), &printed.now).rows)
    }

    /// Our jobs of the last hours in the accounting, every life of a requeued one.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn accounting(&mut self, hours: u64) -> Result<Vec<SacctRow>, SlurmError> {
        let since = format!("now-{hours}hours");
        let format = format!("--format={ACCOUNTING_FIELDS}");
        // Jobs that wait for their time, or were cancelled while they did, count as of the future.
        let until = format!("now+{FUTURE_DAYS}days");
        let arguments = |until| ["-X", "-D", "-P", "-n", "-S", &since, "-E", until, &format];
        if !self.past_only {
            match self.sacct(&arguments(&until)).await {
                Err(error) if !error.is_of_controller() => {}
                answer => return answer,
            }
        }
        // Some sites refuse long windows.
        let answer = self.sacct(&arguments("now")).await;
        self.past_only = answer.is_ok();
        answer
    }

    /// These jobs in the accounting, every life of a requeued one; at most a few hundred.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn accounting_of(&mut self, jobs: &[&str]) -> Result<Vec<SacctRow>, SlurmError> {
        let format = format!("--format={ACCOUNTING_FIELDS}");
        let jobs = jobs.join(",");
        let arguments = ["-X", "-D", "-P", "-n", "-j", &jobs, &format];
        self.sacct(&arguments).await
    }

    async fn sacct(&mut self, arguments: &[&str]) -> Result<Vec<SacctRow>, SlurmError> {
        let invocation = self.invocation("sacct", arguments);
        let printed = self.ask(&invocation).await?;
        let fields: Option<FieldList> = ACCOUNTING_FIELDS.parse().ok();
        Ok(Sacct::parse(&printed.stdout, fields.as_ref(), &printed.now).rows)
    }

    /// Jobs of a partition in the accounting, of all users or of ours.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn usage(
        &mut self,
        partition: &str,
        hours: u64,
        everybody: bool,
    ) -> Result<Vec<SacctRow>, SlurmError> {
        let since = format!("now-{hours}hours");
        let format = format!("--format={USAGE_FIELDS}");
        let mut arguments = vec!["-X", "-P", "-n", "-S", &since, "-E", "now"];
        arguments.extend(["-r", partition, "-s", "CD,F,TO,CA,NF,OOM,PR,DL"]);
        arguments.push(&format);
        if everybody {
            arguments.push("-a");
        }
        let invocation = self.invocation("sacct", &arguments);
        let printed = self.ask(&invocation).await?;
        let fields: Option<FieldList> = USAGE_FIELDS.parse().ok();
        Ok(Sacct::parse(&printed.stdout, fields.as_ref(), &printed.now).rows)
    }

    /// Partitions, and what was printed of them.
    ///
    /// # Errors
    /// If the controller does not answer.
    pub async fn partitions(&mut self) -> Result<(Partitions, String), SlurmError> {
        let invocation = self.invocation("scontrol", &["show", "partition", "-o"]);
        let printed = self.ask(&invocation).await?;
        Ok((Partitions::parse(&printed.stdout), printed.text()))
    }

    /// Reservations, and what was printed of them.
    ///
    /// # Errors
    /// If the controller does not answer.
    pub async fn reservations(&mut self) -> Result<(Reservations, String), SlurmError> {
        let invocation = self.invocation("scontrol", &["show", "reservation", "-o"]);
        let printed = self.ask(&invocation).await?;
        let reservations = Reservations::parse(&printed.stdout, &printed.now);
        Ok((reservations, printed.text()))
    }

    /// The accounts that we may use, each with its partitions and QOS: `sacctmgr`'s rows.
    ///
    /// # Errors
    /// If the accounting does not answer.
    pub async fn associations(&mut self) -> Result<Vec<Vec<String>>, SlurmError> {
        let user = self.user().await?;
        let who = format!("user={user}");
        let arguments = [
            "-n",
            "-P",
            "show",
            "assoc",
            &who,
            "format=account,partition,qos",
        ];
        let invocation = self.invocation("sacctmgr", &arguments);
        let printed = self.ask(&invocation).await?;
        let rows = printed.text();
        let cells = |line: &str| line.split('|').map(str::to_owned).collect();
        Ok(rows.lines().map(cells).collect())
    }

    /// Who we are to the site.
    ///
    /// # Errors
    /// If `id` cannot be run.
    pub async fn user(&mut self) -> Result<String, SlurmError> {
        let invocation = self.invocation("id", &["-un"]);
        Ok(self.runner.run(&invocation).await?.text())
    }

    /// `scancel`: succeeds for a job that has ended, too, and does nothing to one that is in another state than
    /// `which` says.
    ///
    /// # Errors
    /// If the controller does not answer, or the job is not ours.
    pub async fn cancel(&mut self, job: &str, which: Which) -> Result<(), SlurmError> {
        let words: &[&str] = match which {
            Which::Any => &[job],
            Which::Waiting => &["--state=PENDING", job],
        };
        let invocation = self.invocation("scancel", words);
        self.ask(&invocation).await.map(drop)
    }

    /// Lets a job that waits for its time start now.
    ///
    /// # Errors
    /// If the controller does not answer or refuses.
    pub async fn release(&mut self, job: &str) -> Result<(), SlurmError> {
        let id = format!("JobId={job}");
        let invocation = self.invocation("scontrol", &["update", &id, "StartTime=now"]);
        self.ask(&invocation).await.map(drop)
    }

    /// The last bytes of a file at the site; `None` if there is none.
    ///
    /// # Errors
    /// If the command cannot be run.
    pub async fn tail(&self, path: &str, bytes: usize) -> Result<Option<String>, RunError> {
        let bytes = bytes.to_string();
        let invocation = self.invocation("tail", &["-c", &bytes, "--", path]);
        let printed = self.runner.run(&invocation).await?;
        let text = String::from_utf8_lossy(&printed.stdout).into_owned();
        Ok(printed.succeeded().then_some(text))
    }

    /// Any command line of the site's, with its input and a limit of its own.
    ///
    /// # Errors
    /// If it cannot be run.
    pub async fn shell_with(
        &self,
        line: &str,
        input: &str,
        limit: Duration,
    ) -> Result<Printed, RunError> {
        let invocation = Invocation::new("sh", ["-c", line], limit).reading(input);
        self.runner.run(&invocation).await
    }

    /// Any other command of the site, through its shell.
    ///
    /// # Errors
    /// If it cannot be run.
    pub async fn shell(&self, line: &str) -> Result<Printed, RunError> {
        let invocation = self.invocation("sh", &["-c", line]);
        self.runner.run(&invocation).await
    }
}

/// What a command complains of, if it failed.
fn complaint(printed: &Printed) -> Option<(RefusalKind, String)> {
    if printed.succeeded() {
        return None;
    }
    let refusal = match Submitted::parse(b"", &printed.stderr).reply {
        SubmittedReply::Refused(refusal) => Some(refusal),
        SubmittedReply::Unclear { error } => error,
        SubmittedReply::Accepted { .. } => None,
    };
    refusal.map(|refusal| (refusal.kind, refusal.text))
}
