//! From the profile and from Slurm's answers to what the coordinator is told. Pure.

use hansa_queue::{
    Budget, Chain, GpuS, IntentId, JobReport, JobSource, Line, PartitionReport, ProbeAnswer,
    ProbeReport, Raw, Refusal, RefusalKind, ReservationReport, Retry, Shape, SiteProfile, Stated,
    StatedShape, UnixS, UsageReport,
};
use hansa_slurm::parse::{
    self, Answer, Field, JobState, Lasting, Limit, NodeList, Partition, Reservation, SacctRow,
    SqueueRow, Start, TestOnly, UnixTime, Walltime,
};

use crate::profile::{self, Profile, ShapeRow};

/// Node names of a report.
const NODES_MAX: usize = 300;

/// The part of a profile that the coordinator needs.
#[must_use]
pub fn site_profile(profile: &Profile) -> SiteProfile {
    let shape = |shape: &ShapeRow| Shape {
        name: shape.name.as_str().into(),
        partition: Line::new(&shape.partition),
        account: profile.account_of(shape).map(Line::new),
        qos: shape.qos.as_deref().map(Line::new),
        nodes: shape.nodes,
        gpus_per_node: shape.gpus_per_node,
        walltime_s: profile::walltime_s(shape),
    };
    let retry = &profile.retry;
    SiteProfile {
        wanted_jobs: profile.jobs.wanted,
        preferred: profile.jobs.shape.as_str().into(),
        shapes: profile.shape.iter().map(shape).collect(),
        chain: match profile.jobs.chain {
            profile::Chain::None => Chain::None,
            profile::Chain::Begin => Chain::Begin,
            profile::Chain::Singleton => Chain::Singleton,
        },
        max_pending: profile.jobs.max_pending,
        budget: Budget {
            gpu_s_left: profile.budget.gpu_hours.map(gpu_seconds),
            reserve_gpu_s: gpu_seconds(profile.budget.reserve_gpu_hours),
            ends_at: ends_at(profile),
        },
        probe_every_s: profile.watch.probe_every_s,
        usage_every_s: profile.watch.usage_every_s,
        retry: Retry {
            quick_failures_max: retry.quick_failures_max,
            quick_run_s: retry.quick_run_s,
            backoff_first_s: retry.backoff_first_s,
            backoff_longest_s: retry.backoff_longest_s,
            exclude_node_s: retry.exclude_node_s,
        },
        stated: Some(stated(profile)),
        accounting_lag_s: profile.budget.lag_s,
    }
}

/// What a profile says for plans.
fn stated(profile: &Profile) -> Stated {
    let ms = |seconds: f64| (seconds * 1e3).round() as u64;
    let of_shape = |shape: &ShapeRow| {
        let said = shape.windows_per_gpu_s.is_some() || shape.ranks.is_some();
        said.then(|| StatedShape {
            shape: shape.name.as_str().into(),
            microwindows_per_gpu_s: shape
                .windows_per_gpu_s
                .map(|rate| (rate * 1e6).round() as u64),
            ranks: shape.ranks,
        })
    };
    Stated {
        startup_ms: profile.costs.startup_s.map(ms),
        transfer_ms: profile.costs.transfer_s.map(ms),
        leaves_before_ms: Some(profile.script.signal_before_s.saturating_mul(1000)),
        nodes_max: profile.limits.nodes,
        jobs_max: profile.limits.jobs,
        shapes: profile.shape.iter().filter_map(of_shape).collect(),
    }
}

/// Hours to whole seconds; what is no sensible number is nothing.
#[must_use]
pub fn gpu_seconds(hours: f64) -> GpuS {
    GpuS((hours.max(0.0) * 3600.0) as u64)
}

/// The end of the allocation's last day, in UTC.
#[must_use]
pub fn ends_at(profile: &Profile) -> Option<UnixS> {
    end_of_day(profile.budget.ends_at.as_deref()?)
}

/// The first moment after a day such as `2027-03-31`, in UTC.
#[must_use]
pub fn end_of_day(day: &str) -> Option<UnixS> {
    let day: jiff::civil::Date = day.parse().ok()?;
    let next = day.tomorrow().ok()?;
    let midnight = jiff::tz::TimeZone::UTC.to_ambiguous_timestamp(next.at(0, 0, 0, 0));
    let second = midnight.compatible().ok()?.as_second();
    u64::try_from(second).ok().map(UnixS)
}

/// A refusal in the coordinator's terms.
#[must_use]
pub fn refusal(refusal: &parse::Refusal) -> Refusal {
    let details = refusal
        .details
        .iter()
        .filter(|detail| **detail != refusal.text);
    let texts: Vec<&str> = std::iter::once(&refusal.text)
        .chain(details)
        .map(String::as_str)
        .collect();
    Refusal {
        kind: RefusalKind::from_word(refusal.kind.as_str()),
        lasting: refusal.lasting() == Lasting::Permanent,
        text: Line::new(&texts.join("; ")),
    }
}

/// A probe's answer.
#[must_use]
pub fn probe(
    shape: &ShapeRow,
    prober: &str,
    answer: &TestOnly,
    took_ms: u64,
    raw: &str,
) -> ProbeReport {
    let failed = |text: &str| ProbeAnswer::Failed(Line::new(text));
    let (understood, partition) = match &answer.answer {
        Answer::Starts(estimate) => {
            let understood = match &estimate.start {
                Start::At { at, .. } => match time(at) {
                    Some(at) => ProbeAnswer::Starts(at),
                    None => failed("a time before 1970"),
                },
                Start::Unknown => failed("the start is unknown"),
                Start::Odd(text) => failed(&format!("a time of no known form: {text}")),
            };
            (understood, estimate.partition.as_deref().map(Line::new))
        }
        Answer::Refused(reason) => (ProbeAnswer::Refused(refusal(reason)), None),
        Answer::Unclear => (failed("no answer in what was printed"), None),
        Answer::Silent => (failed("nothing was printed"), None),
    };
    ProbeReport {
        shape: shape.name.as_str().into(),
        prober: Line::new(prober),
        took_ms,
        answer: understood,
        partition,
        raw: Raw::new(raw),
    }
}

/// A time in the coordinator's terms.
#[must_use]
pub fn time(at: &UnixTime) -> Option<UnixS> {
    u64::try_from(at.0).ok().map(UnixS)
}

fn time_of(field: &Field<UnixTime>) -> Option<UnixS> {
    field.value().and_then(time)
}

fn limit_of(field: &Field<Limit<Walltime>>) -> Option<u64> {
    match field.value() {
        Some(Limit::Of(walltime)) => Some(walltime.0),
        _ => None,
    }
}

fn nodes_of(field: &Field<NodeList>) -> Vec<Line> {
    let expanded = field.value().and_then(|list| list.expand(NODES_MAX));
    let names = expanded.unwrap_or_default();
    names.iter().map(|name| Line::new(name)).collect()
}

fn text_of(field: &Field<String>) -> Line {
    Line::new(field.value().map(String::as_str).unwrap_or_default())
}

/// The long word of a state, without who cancelled.
fn state_of(state: Option<&JobState>) -> (Line, Option<u32>) {
    match state {
        Some(JobState::Cancelled { by }) => (Line::new("CANCELLED"), *by),
        Some(state) => (Line::new(&state.to_string()), None),
        None => (Line::new("UNKNOWN"), None),
    }
}

/// What `squeue` says of a job.
#[must_use]
pub fn queued(intent: u64, job: &str, row: &SqueueRow) -> JobReport {
    let (state, cancelled_by) = state_of(row.state.value());
    let waits = matches!(
        row.state.value(),
        Some(
            JobState::Pending | JobState::RequeueHold | JobState::Requeued | JobState::SpecialExit
        )
    );
    let over = row.state.value().and_then(JobState::is_over) == Some(true);
    JobReport {
        intent: IntentId(intent),
        job: job.into(),
        state,
        cancelled_by,
        reason: text_of(&row.reason),
        source: JobSource::Squeue,
        submitted: time_of(&row.submit),
        // Of one that waits these are hopes.
        started: (!waits).then(|| time_of(&row.start)).flatten(),
        ended: over.then(|| time_of(&row.end)).flatten(),
        limit_s: limit_of(&row.walltime),
        nodes: nodes_of(&row.node_list),
        exit_code: None,
        signal: None,
        restarts: 0,
    }
}

/// What `sacct` says of a job; `rows` are its lives, one for each time that it was queued.
#[must_use]
pub fn accounted(intent: u64, job: &str, rows: &[&SacctRow]) -> Option<JobReport> {
    let requeued = |row: &&&SacctRow| row.state.value() == Some(&JobState::Requeued);
    let row = rows
        .iter()
        .rev()
        .find(|row| !requeued(row))
        .or(rows.last())?;
    let (state, cancelled_by) = state_of(row.state.value());
    let over = row.state.value().and_then(JobState::is_over) == Some(true);
    let exit = row.exit_code.value();
    Some(JobReport {
        intent: IntentId(intent),
        job: job.into(),
        state,
        cancelled_by,
        reason: text_of(&row.reason),
        source: JobSource::Sacct,
        submitted: time_of(&row.submit),
        started: time_of(&row.start),
        ended: over.then(|| time_of(&row.end)).flatten(),
        limit_s: limit_of(&row.walltime),
        nodes: nodes_of(&row.node_list),
        exit_code: exit.map(|exit| exit.code),
        signal: exit.map(|exit| exit.signal).filter(|signal| *signal > 0),
        restarts: u32::try_from(rows.len().saturating_sub(1)).unwrap_or(u32::MAX),
    })
}

/// Realised over requested walltime of jobs that ran.
#[must_use]
pub fn usage(partition: &str, window_s: u64, rows: &[SacctRow], own_only: bool) -> UsageReport {
    let mut report = UsageReport {
        partition: Line::new(partition),
        window_s,
        jobs: 0,
        realised_s: 0,
        requested_s: 0,
        realised_cpu_s: 0,
        requested_cpu_s: 0,
        own_only,
    };
    for row in rows {
        let elapsed = row.elapsed.value().map_or(0, |elapsed| elapsed.0);
        let Some(limit) = limit_of(&row.walltime).filter(|_| elapsed > 0) else {
            continue;
        };
        let cpus = row.cpus.value().map_or(0, |cpus| u64::from(cpus.0));
        report.jobs += 1;
        report.realised_s += elapsed;
        report.requested_s += limit;
        report.realised_cpu_s += elapsed * cpus;
        report.requested_cpu_s += limit * cpus;
    }
    report
}

/// A partition's state and limit.
#[must_use]
pub fn partition(partition: &Partition, raw: &str) -> PartitionReport {
    let line = raw.lines().find(|line| {
        let name = line.split_whitespace().next().unwrap_or_default();
        name.strip_prefix("PartitionName=") == Some(&partition.name)
    });
    let state = partition
        .state
        .value()
        .map_or("UNKNOWN", |state| state.as_str());
    PartitionReport {
        name: Line::new(&partition.name),
        state: Line::new(state),
        walltime_max_s: limit_of(&partition.max_time),
        raw: Raw::new(line.unwrap_or_default()),
    }
}

/// A reservation, if it says when.
#[must_use]
pub fn reservation(reservation: &Reservation, raw: &str) -> Option<ReservationReport> {
    let head = format!("ReservationName={} ", reservation.name);
    let line = raw.lines().find(|line| line.starts_with(&head));
    let nodes = reservation.nodes.value().map(|list| list.text.clone());
    Some(ReservationReport {
        name: Line::new(&reservation.name),
        start: time_of(&reservation.start)?,
        end: time_of(&reservation.end)?,
        nodes: Line::new(&nodes.unwrap_or_default()),
        maintenance: reservation.is_maintenance(),
        raw: Raw::new(line.unwrap_or_default()),
    })
}
