//! Asks Slurm what the coordinator wants to know: when a job of each shape would start, how much of their
//! walltime jobs use, what partitions and reservations there are, what is left of the allocation.
//!
//! Shapes are probed one by one, spread over the interval: a probe takes locks in the controller. Every
//! answer goes up as it is, with who asked, when, and what was printed. Never here: what it means.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hansa_base::RetryPolicy;
use hansa_queue::{BudgetReport, Line, ProbeReport, Report, ReservationReport};
use hansa_slurm::parse::{Reservations, SacctRow};

use crate::commands::SlurmError;
use crate::convert;
use crate::error::SiteError;
use crate::number::hours_left;
use crate::profile::Profile;
use crate::service::{Site, unix_now};

/// Between two probes, however often they are wanted.
const SPACING: Duration = Duration::from_secs(1);
/// What is not answered is asked again later and later, up to its interval.
const FAILED_FIRST: Duration = Duration::from_secs(10);

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
    /// From the next answer until it is asked again.
    then: Duration,
    next: Instant,
    asked: bool,
    failures: u32,
}

impl Due {
    /// How long to wait after an answer, or after none while the controller is to be left alone for `pause`.
    fn wait(&mut self, answered: bool, pause: Duration) -> Duration {
        if answered {
            self.failures = 0;
            return std::mem::replace(&mut self.then, self.every);
        }
        let policy = RetryPolicy {
            first: FAILED_FIRST,
            longest: self.every.max(FAILED_FIRST),
            retries_max: None,
        };
        let again = policy.delay(self.failures, u64::MAX);
        self.failures = self.failures.saturating_add(1);
        again.unwrap_or(self.every).max(pause).min(self.every)
    }
}

/// What is asked when.
pub struct Collector {
    due: Vec<Due>,
    partitions: BTreeMap<String, String>,
    retold: u64,
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
        let mut add = |question, every, then| {
            due.push(Due {
                question,
                every,
                then,
                next: now,
                asked: false,
                failures: 0,
            });
        };
        // A probe says nothing of a partition that is down.
        add(Question::Partitions, probes, probes);
        let shapes = u32::try_from(profile.shape.len()).unwrap_or(u32::MAX);
        for (shape, number) in profile.shape.iter().zip(1..) {
            // All at once at first, and evenly from then on.
            let then = probes / shapes.max(1) * number;
            add(Question::Probe(shape.name.clone()), probes, then);
        }
        for partition in profile.partitions() {
            add(Question::Usage(partition.to_owned()), usage, usage);
        }
        add(Question::Reservations, usage, usage);
        if profile.budget.command.is_some() {
            add(Question::Budget, usage, usage);
        }
        Self {
            due,
            partitions: BTreeMap::new(),
            retold: 0,
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
        if std::mem::replace(&mut self.retold, site.retold) != site.retold {
            self.partitions.clear();
        }
        let question = self.due[index].question.clone();
        let answered = match &question {
            Question::Probe(shape) => match site.probe(shape).await {
                Some(report) => site.report(Report::Probe(report)).map(|_| true)?,
                None => false,
            },
            Question::Partitions => self.partitions(site).await?,
            Question::Usage(partition) => site.usage(partition).await?,
            Question::Reservations => site.reservations().await?,
            Question::Budget => site.budget().await?,
        };
        let now = Instant::now();
        self.last = Some(now);
        let due = &mut self.due[index];
        due.asked = true;
        due.next = now + due.wait(answered, site.slurm.wait());
        Ok(())
    }

    /// Partitions that our shapes need, when they changed.
    async fn partitions(&mut self, site: &mut Site) -> Result<bool, SiteError> {
        let answer = site.slurm.partitions().await;
        let Some((found, raw)) = site.answer("partitions", answer)? else {
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

    /// Reservations when they changed, or are no more.
    async fn reservations(&mut self) -> Result<bool, SiteError> {
        let answer = self.slurm.reservations().await;
        let Some((found, raw)) = self.answer("reservations", answer)? else {
            return Ok(false);
        };
        self.tell_reservations(&found, &raw)?;
        Ok(true)
    }

    fn tell_reservations(&mut self, found: &Reservations, raw: &str) -> Result<(), SiteError> {
        let mut changed = BTreeMap::new();
        for reservation in &found.reservations {
            let Some(report) = convert::reservation(reservation, raw) else {
                continue;
            };
            let digest = format!(
                "{:?} {:?} {} {}",
                report.start, report.end, report.nodes, report.maintenance
            );
            if self.memory.reservations().get(&reservation.name) != Some(&digest) {
                changed.insert(reservation.name.clone(), digest);
                self.report(Report::Reservation(report))?;
            }
        }
        let listed = |name: &String| found.reservations.iter().any(|r| r.name == *name);
        let known = self.memory.reservations().keys();
        let gone: Vec<String> = known.filter(|name| !listed(name)).cloned().collect();
        for name in &gone {
            self.report(Report::Reservation(over(name)))?;
        }
        if changed.is_empty() && gone.is_empty() {
            return Ok(());
        }
        // Told first: what is told twice does no harm.
        self.memory.reserve(|known| {
            known.retain(|name, _| !gone.contains(name));
            known.extend(changed);
        })
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
        let Some(rows) = self.answer("usage", rows)? else {
            return Ok(false);
        };
        // What hides others may be the accounting's own configuration.
        let is_ours = |row: &SacctRow| row.user.value() == Some(&self.user);
        let own_only = own_only || (!rows.is_empty() && rows.iter().all(is_ours));
        let report = convert::usage(partition, hours * 3600, &rows, own_only);
        self.report(Report::Usage(report))?;
        Ok(true)
    }

    async fn budget(&mut self) -> Result<bool, SiteError> {
        let Some(command) = self.profile.budget.command.clone() else {
            return Ok(true);
        };
        let hours = match hours_left(self.slurm.shell(&command).await) {
            Ok(hours) => hours,
            Err(text) => {
                self.fails("budget", &text)?;
                return Ok(false);
            }
        };
        self.works("budget")?;
        let report = BudgetReport {
            gpu_s_left: Some(convert::gpu_seconds(hours)),
            ends_at: convert::ends_at(&self.profile),
            source: Line::new(&command),
        };
        self.report(Report::Budget(report))?;
        Ok(true)
    }
}

/// A reservation that is not listed any more: it ends where it begins.
fn over(name: &str) -> ReservationReport {
    let now = unix_now();
    ReservationReport {
        name: Line::new(name),
        start: now,
        end: now,
        nodes: Line::new(""),
        maintenance: false,
        raw: "not listed any more".into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hansa_slurm::parse::{Now, UnixTime, Zone};

    use super::*;
    use crate::service::testing;

    #[test]
    fn a_reservation_is_told_when_it_changes_and_when_it_is_no_more_whoever_was_told_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut site = testing::site(folder.path(), "1a2b");
        let now = Now {
            at: UnixTime(1_800_000_000),
            zone: Zone::UTC,
        };
        let listed = |flags: &str| {
            format!(
                "ReservationName=maint StartTime=2027-02-01T08:00:00 EndTime=2027-02-01T20:00:00 \
                 Duration=12:00:00 Nodes=gn[1-3] NodeCnt=3 Flags={flags} State=INACTIVE\n"
            )
        };
        let look = |site: &mut Site, text: &str| -> usize {
            let before = site.spool.batch().unwrap().len();
            let found = Reservations::parse(text.as_bytes(), &now);
            site.tell_reservations(&found, text).unwrap();
            site.spool.batch().unwrap().len() - before
        };
        assert_eq!(look(&mut site, &listed("SPEC_NODES")), 1);
        assert_eq!(look(&mut site, &listed("SPEC_NODES")), 0);
        assert_eq!(
            look(&mut site, &listed("MAINT,SPEC_NODES")),
            1,
            "now nobody may"
        );
        // Cancelled while no process watched: the next one knows what its predecessor told.
        drop(site);
        let mut site = testing::site(folder.path(), "1a2b");
        assert_eq!(look(&mut site, "No reservations in the system\n"), 1);
        let batch = site.spool.batch().unwrap();
        let Report::Reservation(last) = &batch.last().unwrap().report else {
            panic!("{batch:?}");
        };
        assert_eq!((last.name.as_str(), last.start), ("maint", last.end));
        assert!(!last.maintenance);
        assert_eq!(look(&mut site, ""), 0);
    }

    #[test]
    fn what_is_not_answered_is_asked_later_and_later_but_as_often_as_what_is() {
        let every = Duration::from_secs(600);
        let mut due = Due {
            question: Question::Budget,
            every,
            then: every,
            next: Instant::now(),
            asked: false,
            failures: 0,
        };
        let waits: Vec<Duration> = (0..12).map(|_| due.wait(false, Duration::ZERO)).collect();
        assert!(waits[0] <= FAILED_FIRST, "{waits:?}");
        assert!(waits.is_sorted() && waits[11] > every / 2, "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= every));
        assert_eq!(due.wait(true, Duration::ZERO), every);
        let pause = Duration::from_secs(60);
        assert_eq!(due.wait(false, pause), pause);
    }

    #[test]
    fn probes_are_spread_over_the_interval() {
        let text = crate::profile::commented("lumi");
        let mut profile = Profile::parse(&text, std::path::Path::new("lumi.toml")).unwrap();
        profile.watch.probe_every_s = 600;
        let mut collector = Collector::new(&profile);
        let all = collector.due.iter_mut();
        let probes = all.filter(|due| matches!(due.question, Question::Probe(_)));
        let waits = probes.map(|due| {
            let first = due.wait(true, Duration::ZERO);
            let then = due.wait(true, Duration::ZERO);
            (first.as_secs(), then.as_secs())
        });
        let waits: Vec<(u64, u64)> = waits.collect();
        let shapes = waits.len() as u64;
        let even = (1..=shapes).map(|number| (600 / shapes * number, 600));
        assert_eq!(waits, even.collect::<Vec<_>>());
    }
}
