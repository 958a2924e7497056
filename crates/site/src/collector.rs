//! Asks Slurm what the coordinator wants to know: when a job of each shape would start, how much of their
//! walltime jobs use, what partitions and reservations there are, what is left of the allocation.
//!
//! Shapes are probed one by one, spread over the interval: a probe takes locks in the controller. Every
//! answer goes up as it is, with who asked, when, and what was printed. Never here: what it means.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hansa_queue::{BudgetReport, Line, ProbeReport, Report};

use crate::commands::{SlurmError, first_number};
use crate::convert;
use crate::error::SiteError;
use crate::profile::Profile;
use crate::service::Site;

/// Between two probes, however often they are wanted.
const SPACING: Duration = Duration::from_secs(1);

/// One thing to ask, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    Probe(String),
    Partitions,
    Usage(String),
    Reservations,
    Budget,
}

struct Due {
    question: Question,
    every: Duration,
    next: Instant,
    asked: bool,
}

/// What is asked when.
pub struct Collector {
    due: Vec<Due>,
    partitions: BTreeMap<String, String>,
    reservations: BTreeMap<String, String>,
    last: Option<Instant>,
}

impl Collector {
    /// Everything that a profile wants to know; all of it is due at once.
    #[must_use]
    pub fn new(profile: &Profile) -> Self {
        let probes = Duration::from_secs(profile.watch.probe_every_s);
        let usage = Duration::from_secs(profile.watch.usage_every_s);
        let now = Instant::now();
        let mut due = Vec::new();
        let mut add = |question, every| {
            due.push(Due {
                question,
                every,
                next: now,
                asked: false,
            });
        };
        // A probe says nothing of a partition that is down.
        add(Question::Partitions, probes);
        for shape in &profile.shape {
            add(Question::Probe(shape.name.clone()), probes);
        }
        for partition in profile.partitions() {
            add(Question::Usage(partition.to_owned()), usage);
        }
        add(Question::Reservations, usage);
        if profile.budget.command.is_some() {
            add(Question::Budget, usage);
        }
        Self {
            due,
            partitions: BTreeMap::new(),
            reservations: BTreeMap::new(),
            last: None,
        }
    }

    /// Whether everything was asked at least once.
    #[must_use]
    pub fn is_through(&self) -> bool {
        self.due.iter().all(|due| due.asked)
    }

    /// How long until something is due.
    #[must_use]
    pub fn due_in(&self) -> Duration {
        let next = self.due.iter().map(|due| due.next).min();
        let next = next.map(|next| next.max(self.last.map_or(next, |last| last + SPACING)));
        next.map_or(Duration::MAX, |next| {
            next.saturating_duration_since(Instant::now())
        })
    }

    /// Asks what has been due longest, if anything is.
    pub(crate) async fn step(&mut self, site: &mut Site) -> Result<(), SiteError> {
        if !self.due_in().is_zero() || !site.slurm.wait().is_zero() {
            return Ok(());
        }
        let Some(index) = (0..self.due.len()).min_by_key(|index| self.due[*index].next) else {
            return Ok(());
        };
        self.ask(site, index).await
    }

    /// Usage, before the first order: without it nobody can say what a probe's promise is worth.
    pub(crate) async fn begin(&mut self, site: &mut Site) -> Result<(), SiteError> {
        for index in 0..self.due.len() {
            let due = &self.due[index];
            if matches!(due.question, Question::Usage(_)) && !due.asked {
                self.ask(site, index).await?;
                site.breathe().await?;
            }
        }
        Ok(())
    }

    async fn ask(&mut self, site: &mut Site, index: usize) -> Result<(), SiteError> {
        let question = self.due[index].question.clone();
        let answered = match &question {
            Question::Probe(shape) => match site.probe(shape).await {
                Some(report) => site.report(Report::Probe(report)).map(|_| true)?,
                None => false,
            },
            Question::Partitions => self.partitions(site).await?,
            Question::Usage(partition) => site.usage(partition).await?,
            Question::Reservations => self.reservations(site).await?,
            Question::Budget => site.budget().await?,
        };
        let now = Instant::now();
        self.last = Some(now);
        let due = &mut self.due[index];
        due.asked = true;
        // What was not answered is asked again when the controller's pace allows it.
        due.next = now
            + if answered {
                due.every
            } else {
                due.every.min(site.slurm.wait().max(SPACING * 10))
            };
        Ok(())
    }

    /// Partitions that our shapes need, when they changed.
    async fn partitions(&mut self, site: &mut Site) -> Result<bool, SiteError> {
        let Ok((found, raw)) = site.slurm.partitions().await else {
            return Ok(false);
        };
        let wanted: Vec<String> = site
            .profile
            .partitions()
            .iter()
            .map(|p| (*p).to_owned())
            .collect();
        for partition in &found.partitions {
            if !wanted.contains(&partition.name) {
                continue;
            }
            let report = convert::partition(partition, &raw);
            let digest = format!("{} {:?}", report.state, report.walltime_max_s);
            if self.partitions.get(&partition.name) != Some(&digest) {
                self.partitions.insert(partition.name.clone(), digest);
                site.report(Report::Partition(report))?;
            }
        }
        Ok(true)
    }

    async fn reservations(&mut self, site: &mut Site) -> Result<bool, SiteError> {
        let Ok((found, raw)) = site.slurm.reservations().await else {
            return Ok(false);
        };
        for reservation in &found.reservations {
            let Some(report) = convert::reservation(reservation, &raw) else {
                continue;
            };
            let digest = format!("{:?} {:?} {}", report.start, report.end, report.nodes);
            if self.reservations.get(&reservation.name) != Some(&digest) {
                self.reservations.insert(reservation.name.clone(), digest);
                site.report(Report::Reservation(report))?;
            }
        }
        Ok(true)
    }
}

impl Site {
    /// Probes a shape; `None` if Slurm is to be left alone for now.
    pub async fn probe(&mut self, name: &str) -> Option<ProbeReport> {
        let shape = self.profile.shape(name)?.clone();
        let account = self.profile.account_of(&shape).unwrap_or("default account");
        let qos = shape.qos.as_deref().unwrap_or("default QOS");
        let prober = format!("{} ({account}, {qos})", self.user);
        match self.slurm.probe(&self.profile, &shape).await {
            Ok((answer, printed)) => {
                let took_ms = u64::try_from(printed.took.as_millis()).unwrap_or(u64::MAX);
                let raw = printed.both();
                Some(convert::probe(&shape, &prober, &answer, took_ms, &raw))
            }
            Err(SlurmError::TooEarly { .. }) => None,
            Err(error) => Some(ProbeReport {
                shape: name.into(),
                prober: Line::new(&prober),
                took_ms: 0,
                answer: hansa_queue::ProbeAnswer::Failed(Line::new(&error.to_string())),
                partition: None,
                raw: "".into(),
            }),
        }
    }

    /// Everybody's jobs where they are shown, else ours, which is said.
    async fn usage(&mut self, partition: &str) -> Result<bool, SiteError> {
        if !self.slurm.has_accounting() {
            return Ok(true);
        }
        let hours = self.profile.watch.usage_window_h;
        let config = self.slurm.known_config();
        let private = config.map(|config| config.list("PrivateData").join(","));
        let hidden = |word: &str| private.as_deref().unwrap_or_default().contains(word);
        let mut own_only = hidden("jobs") || hidden("usage");
        let mut rows = self.slurm.usage(partition, hours, !own_only).await;
        if rows.as_ref().is_err_and(|error| !error.is_of_controller()) && !own_only {
            own_only = true;
            rows = self.slurm.usage(partition, hours, false).await;
        }
        let Ok(rows) = rows else {
            return Ok(false);
        };
        let report = convert::usage(partition, hours * 3600, &rows, own_only);
        self.report(Report::Usage(report))?;
        Ok(true)
    }

    async fn budget(&mut self) -> Result<bool, SiteError> {
        let Some(command) = self.profile.budget.command.clone() else {
            return Ok(true);
        };
        let printed = self.slurm.shell(&command).await;
        let hours = match &printed {
            Ok(printed) if printed.succeeded() => first_number(&printed.text()),
            _ => None,
        };
        let Some(hours) = hours else {
            let text = match printed {
                Ok(printed) => printed.both(),
                Err(error) => error.to_string(),
            };
            let (what, text) = (
                Line::new("budget"),
                Line::new(&format!("no number: {text}")),
            );
            self.report(Report::Trouble { what, text })?;
            return Ok(false);
        };
        let report = BudgetReport {
            gpu_s_left: Some(convert::gpu_seconds(hours)),
            ends_at: convert::ends_at(&self.profile),
            source: Line::new(&command),
        };
        self.report(Report::Budget(report))?;
        Ok(true)
    }
}
