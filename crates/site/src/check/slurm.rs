//! What Slurm says of itself and of the profile's shapes.

use hansa_slurm::parse::{Answer, Limit, Partition, PartitionState, Start, Walltime};

use super::Findings;
use crate::commands::Slurm;
use crate::number::hours_left;
use crate::profile::{Chain, PartitionRow, Profile, ShapeRow, walltime_s};
use crate::service::unix_now;

/// The oldest version whose options we use (`squeue --me`).
const OLDEST: (u32, u32) = (20, 2);

/// Whether Slurm can be asked anything at all.
pub(super) async fn commands(findings: &mut Findings, slurm: &mut Slurm) -> bool {
    let wanted = "for c in sbatch squeue sacct scancel scontrol sacctmgr; do command -v $c >/dev/null || echo $c; done";
    match slurm.shell(wanted).await {
        Ok(printed) if printed.text().is_empty() => findings.good("commands", "all there"),
        Ok(printed) => {
            let missing = printed
                .text()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(", ");
            let advice =
                "run on a login node, load Slurm's module, or set slurm.ssh in the profile";
            findings.bad("commands", format!("missing: {missing}"), advice);
        }
        Err(error) => {
            findings.bad("commands", error, "the commands must run without questions");
            return false;
        }
    }
    let config = match slurm.config().await {
        Ok(config) => config,
        Err(error) => {
            let advice = "try `scontrol ping`; if it is up, look at SLURM_CONF and at munge";
            findings.bad("controller", error, advice);
            return false;
        }
    };
    let cluster = config.cluster().unwrap_or("unnamed").to_owned();
    match config.version() {
        Some(version) if (version.major, version.minor) < OLDEST => {
            let found = format!("{cluster}, Slurm {}.{:02}", version.major, version.minor);
            findings.bad("controller", found, "Slurm 20.02 or newer is needed");
        }
        Some(v) => {
            let found = format!("{cluster}, Slurm {}.{:02}.{}", v.major, v.minor, v.micro);
            findings.good("controller", found);
        }
        None => findings.warn(
            "controller",
            cluster,
            "its version is unknown: look at what probes say",
        ),
    }
    true
}

pub(super) async fn partitions(findings: &mut Findings, slurm: &mut Slurm, profile: &Profile) {
    let found = match slurm.partitions().await {
        Ok((found, _)) => found.partitions,
        Err(error) => return findings.bad("partitions", error, "try `scontrol show partition`"),
    };
    for shape in &profile.shape {
        let what = format!("shape {}", shape.name);
        let Some(partition) = found.iter().find(|p| p.name == shape.partition) else {
            let names: Vec<_> = found.iter().map(|p| p.name.as_str()).collect();
            let advice = format!("set shape.partition; there are {}", names.join(", "));
            findings.bad(&what, format!("no partition {}", shape.partition), advice);
            continue;
        };
        fits(findings, &what, shape, partition);
    }
    for row in &profile.partition {
        if let Some(partition) = found.iter().find(|p| p.name == row.name) {
            compare(findings, row, partition);
        }
    }
}

/// Whether a partition takes such a job at all.
fn fits(findings: &mut Findings, what: &str, shape: &ShapeRow, partition: &Partition) {
    let name = &partition.name;
    match partition.state.value() {
        Some(PartitionState::Up) | None => {}
        Some(state) => {
            let found = format!("partition {name} is {}", state.as_str());
            return findings.warn(what, found, "jobs wait until it is UP: ask the site");
        }
    }
    if let Some(Limit::Of(Walltime(most))) = partition.max_time.value()
        && walltime_s(shape) > *most
    {
        let found = format!(
            "walltime {} is over the {} of {name}",
            shape.walltime,
            Walltime(*most)
        );
        return findings.bad(
            what,
            found,
            "lower shape.walltime: such a job waits for ever",
        );
    }
    if let Some(Limit::Of(most)) = partition.max_nodes.value()
        && shape.nodes > most.0
    {
        let found = format!("{} nodes are over the {most} of {name}", shape.nodes);
        return findings.bad(what, found, "lower shape.nodes");
    }
    if partition
        .total_nodes
        .value()
        .is_some_and(|all| shape.nodes > all.0)
    {
        let found = format!("{name} has fewer than {} nodes", shape.nodes);
        return findings.bad(what, found, "lower shape.nodes");
    }
    let gpus = partition.tres.value().and_then(|tres| tres.gpus());
    let nodes = partition
        .total_nodes
        .value()
        .map(|nodes| nodes.0)
        .filter(|n| *n > 0);
    if let (Some(gpus), Some(nodes)) = (gpus, nodes)
        && shape.gpus_per_node > gpus.0.div_ceil(nodes)
    {
        let found = format!("{name} has {gpus} GPUs on {nodes} nodes");
        return findings.bad(what, found, "lower shape.gpus_per_node");
    }
    findings.good(what, format!("fits into {name}"));
}

/// What the profile was told, against what the site says now.
fn compare(findings: &mut Findings, row: &PartitionRow, partition: &Partition) {
    let what = format!("facts about {}", row.name);
    let told: Option<Walltime> = row
        .walltime_max
        .as_deref()
        .and_then(|text| text.parse().ok());
    let is = match partition.max_time.value() {
        Some(Limit::Of(walltime)) => Some(*walltime),
        _ => None,
    };
    let since = format!("the profile's is of {} from {}", row.date, row.source);
    match (told, is) {
        (Some(told), Some(is)) if told != is => {
            let found = format!("walltime up to {is}, not {told}");
            findings.warn(&what, found, format!("{since}: update it"));
        }
        _ => findings.good(
            &what,
            format!("nothing speaks against those of {}", row.date),
        ),
    }
}

pub(super) async fn accounts(findings: &mut Findings, slurm: &mut Slurm, profile: &Profile) {
    let rows = match slurm.associations().await {
        Ok(rows) => rows,
        Err(error) => {
            let advice = "the probes below show whether the account is accepted";
            return findings.warn("account", error, advice);
        }
    };
    let accounts: Vec<&str> = rows
        .iter()
        .filter_map(|row| row.first())
        .map(String::as_str)
        .collect();
    if accounts.is_empty() {
        let advice = "ask the project's manager to add you";
        return findings.bad("account", "accounting knows you in no account", advice);
    }
    for shape in &profile.shape {
        let what = format!("account of {}", shape.name);
        let Some(account) = profile.account_of(shape) else {
            continue;
        };
        let ours: Vec<_> = rows
            .iter()
            .filter(|row| row.first().is_some_and(|a| a == account))
            .collect();
        if ours.is_empty() {
            let advice = format!("set slurm.account; yours are {}", accounts.join(", "));
            findings.bad(&what, format!("{account} is not yours"), advice);
            continue;
        }
        let qos: Vec<&str> = ours
            .iter()
            .filter_map(|row| row.get(2))
            .flat_map(|q| q.split(','))
            .collect();
        match &shape.qos {
            Some(wanted) if !qos.contains(&wanted.as_str()) => {
                let advice = format!("set shape.qos; {account} has {}", qos.join(", "));
                findings.bad(&what, format!("QOS {wanted} is not yours"), advice);
            }
            _ => findings.good(&what, account),
        }
    }
}

pub(super) async fn shapes(findings: &mut Findings, slurm: &mut Slurm, profile: &Profile) {
    for shape in &profile.shape {
        let what = format!("probe of {}", shape.name);
        let (answer, printed) = match slurm.probe(profile, shape).await {
            Ok(answer) => answer,
            Err(error) => {
                findings.bad(
                    &what,
                    error,
                    "try the job by hand with `sbatch --test-only`",
                );
                continue;
            }
        };
        match answer.answer {
            Answer::Starts(estimate) => {
                let start = match estimate.start {
                    Start::At { at, .. } => {
                        let now = i64::try_from(unix_now().0).unwrap_or(at.0);
                        format!("would start in {} min", (at.0 - now).max(0) / 60)
                    }
                    Start::Unknown => "would be taken, start unknown".to_owned(),
                    Start::Odd(text) => format!("would be taken, start {text:?} is not understood"),
                };
                findings.good(&what, start);
            }
            Answer::Refused(refusal) => {
                let advice = match refusal.lasting() {
                    hansa_slurm::parse::Lasting::Permanent => {
                        findings.bad(&what, refusal.text, "change the shape as the refusal says");
                        continue;
                    }
                    hansa_slurm::parse::Lasting::Provisional => "it may pass; try again later",
                };
                findings.warn(&what, refusal.text, advice);
            }
            Answer::Unclear | Answer::Silent => {
                let advice =
                    "send this to `hansa slurm parse test-only`; a wrapper may hide the answer";
                findings.warn(&what, format!("no answer in: {}", printed.both()), advice);
            }
        }
    }
}

pub(super) async fn accounting(findings: &mut Findings, slurm: &mut Slurm, profile: &Profile) {
    let what = "accounting";
    if !slurm.has_accounting() {
        let advice = "jobs are followed by squeue only, and usage stays unknown";
        return findings.warn(what, "the site keeps none", advice);
    }
    let Some(partition) = profile.partitions().first().map(|p| (*p).to_owned()) else {
        return;
    };
    let me = slurm.user().await.unwrap_or_default();
    match slurm
        .usage(&partition, profile.watch.usage_window_h, true)
        .await
    {
        Err(error) => {
            let advice =
                "without sacct no exit code is known: jobs that fail look like jobs that end";
            findings.bad(what, error, advice);
        }
        Ok(rows) => {
            let config = slurm.known_config();
            let hidden = config.is_some_and(|config| !config.list("PrivateData").is_empty());
            let others = rows
                .iter()
                .any(|row| row.user.value().is_some_and(|user| *user != me));
            let found = format!(
                "{} jobs of {partition} in {} h",
                rows.len(),
                profile.watch.usage_window_h
            );
            // What hides them may also be the accounting's own configuration.
            match (hidden || !rows.is_empty(), others) {
                (true, false) => {
                    let advice =
                        "usage is that of your own jobs only: estimates are discounted less well";
                    findings.warn(what, format!("{found}, none of others"), advice);
                }
                _ => findings.good(what, found),
            }
        }
    }
}

/// Jobs of a singleton chain have one name: what tells them apart later is their comment.
pub(super) fn chain(findings: &mut Findings, slurm: &Slurm, profile: &Profile) {
    let kept = slurm.known_config().is_some_and(|config| {
        let flags = config.list("AccountingStoreFlags");
        // Before 21.08 there was a key of its own.
        let before = config.get("AccountingStoreJobComment");
        flags.contains(&"job_comment")
            || before.is_some_and(|kept| kept.eq_ignore_ascii_case("yes"))
    });
    if profile.jobs.chain == Chain::Singleton && !kept {
        findings.warn(
            "chain",
            "singleton, and accounting keeps no comments",
            "a job that ends while no process of ours watches may not be told from its neighbours: keep the home \
             folder, or set jobs.chain = \"begin\"",
        );
    }
}

pub(super) async fn reservations(findings: &mut Findings, slurm: &mut Slurm, profile: &Profile) {
    let now = i64::try_from(unix_now().0).unwrap_or(0);
    let longest = profile.shape.iter().map(walltime_s).max().unwrap_or(0);
    let horizon = now + i64::try_from(longest).unwrap_or(0);
    let Ok((found, _)) = slurm.reservations().await else {
        return findings.skip("maintenance", "scontrol shows no reservations");
    };
    let mut soon = found.reservations.iter().filter(|reservation| {
        let start = reservation.start.value().map_or(i64::MAX, |at| at.0);
        let end = reservation.end.value().map_or(i64::MAX, |at| at.0);
        reservation.is_maintenance() && start <= horizon && end > now
    });
    match soon.next() {
        Some(next) => {
            let start = next.start.value().map_or(0, |at| at.0);
            let hours = (start - now).max(0) / 3600;
            let advice =
                "a job that would run into it does not start before it: a shorter shape may";
            findings.warn(
                "maintenance",
                format!("{} begins in {hours} h", next.name),
                advice,
            );
        }
        None => findings.good("maintenance", "none within the longest walltime"),
    }
}

pub(super) async fn budget(findings: &mut Findings, slurm: &Slurm, profile: &Profile) {
    let Some(command) = &profile.budget.command else {
        return match profile.budget.gpu_hours {
            Some(hours) => {
                findings.good("budget", format!("{hours} GPU-hours, as the profile says"))
            }
            None => findings.warn(
                "budget",
                "nobody counts",
                "set budget.gpu_hours or budget.command, or jobs are submitted until Slurm refuses",
            ),
        };
    };
    match hours_left(slurm.shell(command).await) {
        Ok(hours) => findings.good("budget", format!("{hours} GPU-hours left")),
        Err(text) => findings.bad(
            "budget",
            text,
            "budget.command must print the GPU-hours left first, such as 1234.5 or 1,234, and succeed",
        ),
    }
}
