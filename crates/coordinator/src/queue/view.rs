//! The report on the queues, drawn from the machine's state.

use std::collections::BTreeSet;

use hansa_base::{ReplicaId, SiteName};
use hansa_queue::{
    Begin, BudgetState, Intent, Job, Machine, Now, Phase, Planning, ProbeAnswer, Release, RunView,
    STRENGTHS, Shape, Site, State, Tail, accuracy, discounted_s,
};
use hansa_wire::queue::view::{
    AccuracyView, BudgetView, DecisionView, JobView, JoinedView, LogView, LogsView, ProbeView,
    ProcessView, QueueView, ReservationView, ShapeView, SiteView, TroubleView,
};

/// Every queue.
pub(super) fn queue(name: &str, machine: &Machine, run: &RunView, now: Now) -> QueueView {
    let sites = machine.state().sites.keys();
    QueueView {
        run: name.to_owned(),
        at_s: now.wall.0,
        sites: sites
            .filter_map(|site| site_view(machine, site, run, now))
            .collect(),
    }
}

fn site_view(machine: &Machine, name: &SiteName, run: &RunView, now: Now) -> Option<SiteView> {
    let state = machine.state();
    let site = state.sites.get(name)?;
    let profile = site.profile.as_ref();
    let shapes = profile.map_or(&[][..], |profile| &profile.shapes);
    let joined = || site.joined.iter().map(|(_, joined)| joined);
    let accuracies = STRENGTHS.iter().filter_map(|s| accuracy(joined(), *s));
    Some(SiteView {
        site: name.to_string(),
        process: site.lease.as_ref().map(|lease| ProcessView {
            holder: lease.holder.to_string(),
            since_s: lease.since.0,
            lease: lease.no.0,
            alive: machine.is_attended(name, now.mono),
        }),
        wanted_jobs: profile.map_or(0, |profile| profile.wanted_jobs),
        preferred: profile.map(|profile| profile.preferred.to_string()),
        chain: profile.map(|profile| profile.chain.to_string()),
        plan: plan(state, name, run),
        paused: site.paused.as_ref().map(|paused| paused.to_string()),
        held: machine.held(name, run, now).map(|held| held.to_string()),
        budget: budget(state, name, &site.budget),
        shapes: shapes.iter().map(|s| shape(site, s, now)).collect(),
        accuracy: accuracies
            .map(|a| AccuracyView {
                strength: a.strength,
                jobs: a.jobs,
                median_error_s: a.median_error_s,
                median_size_s: a.median_size_s,
                coverage: a.coverage,
            })
            .collect(),
        history: history(site),
        jobs: jobs(state, name, run),
        excluded: excluded(site, now),
        reservations: reservations(site, now),
        troubles: troubles(site),
        decisions: decisions(site),
    })
}

fn plan(state: &State, name: &SiteName, run: &RunView) -> Option<String> {
    let plan = state
        .plan
        .as_ref()
        .filter(|_| run.planning != Planning::Fixed)?;
    Some(match plan.site(name) {
        None => format!("plan {}: no new job here", plan.no),
        Some(here) => {
            let (no, jobs, shape) = (plan.no, here.jobs, &here.shape);
            format!("plan {no}: {jobs} replicas in shape {shape}")
        }
    })
}

fn budget(state: &State, name: &SiteName, budget: &BudgetState) -> Option<BudgetView> {
    let spent: u64 = budget.spent.values().map(|cost| cost.0).sum();
    Some(BudgetView {
        left_gpu_h: budget.said.gpu_s_left?.hours(),
        said_at_s: budget.said_at.0,
        source: budget.source.to_string(),
        reserve_gpu_h: budget.said.reserve_gpu_s.hours(),
        spent_gpu_h: spent as f64 / 3600.0,
        committed_gpu_h: state.committed(name).hours(),
        free_gpu_h: state.free(name)?.hours(),
        ends_at_s: budget.said.ends_at.map(|at| at.0),
    })
}

fn shape(site: &Site, shape: &Shape, now: Now) -> ShapeView {
    let usage_permille = site.usage_permille(&shape.partition);
    let by_cpu = site.usage_by_cpu_permille(&shape.partition);
    let usage = site.usage.get(&shape.partition);
    let probed = site.probes.get(&shape.name).and_then(|all| all.back());
    let probe = probed.map(|probed| {
        let (starts_s, refused) = match &probed.probe.answer {
            ProbeAnswer::Starts(at) => (Some(at.0), None),
            ProbeAnswer::Refused(refusal) => (None, Some(refusal.to_string())),
            ProbeAnswer::Failed(text) => (None, Some(text.to_string())),
        };
        let wait = |start: u64| {
            let wait_s = start.saturating_sub(now.wall.0);
            STRENGTHS
                .map(|s| discounted_s(wait_s, usage_permille, s))
                .to_vec()
        };
        ProbeView {
            at_s: probed.at.0,
            prober: probed.probe.prober.to_string(),
            starts_s,
            waits_s: starts_s.map(wait).unwrap_or_default(),
            refused,
        }
    });
    ShapeView {
        shape: shape.name.to_string(),
        partition: shape.partition.to_string(),
        nodes: shape.nodes,
        gpus_per_node: shape.gpus_per_node,
        walltime_s: shape.walltime_s,
        cost_gpu_h: shape.cost().hours(),
        usage: usage_permille.map(|permille| permille as f64 / 1000.0),
        usage_by_cpu: by_cpu.map(|permille| permille as f64 / 1000.0),
        usage_own_only: usage.is_some_and(|(_, usage)| usage.own_only),
        probe,
    }
}

fn history(site: &Site) -> Vec<JoinedView> {
    let all = site.joined.iter().map(|(shape, joined)| JoinedView {
        intent: joined.intent.0,
        shape: shape.to_string(),
        probed_s: joined.probed.0,
        submitted_s: joined.submitted.0,
        predicted_wait_s: joined.predicted_wait_s(),
        real_wait_s: joined.real_wait_s(),
        usage_permille: joined.usage_permille,
        deferred: joined.deferred,
    });
    all.collect()
}

/// Live ones first, then those that ended last.
fn jobs(state: &State, site: &SiteName, run: &RunView) -> Vec<JobView> {
    let all = state.intents.values();
    let all = all.filter(|intent| intent.intention.site == *site);
    let (live, mut ended): (Vec<_>, Vec<_>) = all.partition(|intent| intent.is_live());
    ended.reverse();
    let all = live.into_iter().chain(ended);
    all.map(|intent| job(intent, &run.observed)).collect()
}

fn job(intent: &Intent, observed: &BTreeSet<ReplicaId>) -> JobView {
    let intention = &intent.intention;
    let id = ReplicaId {
        site: intention.site.clone(),
        replica: intention.replica.clone(),
    };
    let report = intent.job.as_ref().and_then(|job| job.report.as_ref());
    let ended = report.and_then(|report| report.ended);
    JobView {
        intent: intention.intent.0,
        replica: intention.replica.to_string(),
        link: intention.link,
        shape: intention.shape.name.to_string(),
        made_s: intent.made.0,
        intended: intended(intent),
        job: intent.job.as_ref().map(|job| job.id.to_string()),
        reported: intent.job.as_ref().map(reported),
        heard_s: intent.job.as_ref().map(|job| job.heard.0),
        started_s: report.and_then(|report| report.started).map(|at| at.0),
        ends_s: ended.or_else(|| intent.walltime_end()).map(|at| at.0),
        // Of two links of one replica it is the running one that is seen.
        observed: intent.is_running() && observed.contains(&id),
        outcome: intent
            .outcome
            .as_ref()
            .map(|(_, outcome)| outcome.to_string()),
    }
}

/// What is wanted of the site now.
fn intended(intent: &Intent) -> String {
    if let Some(why) = &intent.cancel {
        return format!("cancel: {why}");
    }
    if let Some(why) = &intent.recall {
        return format!("cancel, if it still waits: {why}");
    }
    if let Some(why) = &intent.withdraw {
        return format!("withdraw: {why}");
    }
    if !intent.is_live() {
        return "over".to_owned();
    }
    let begin = match intent.intention.begin {
        Begin::Now => "",
        Begin::At(_) | Begin::Singleton if intent.release != Release::No => ", released",
        Begin::At(_) => ", after the link before it",
        Begin::Singleton => ", one after the other",
    };
    match (&intent.job, intent.delivered) {
        (Some(_), _) => format!("run{begin}"),
        (None, Some(_)) => format!("submit{begin}"),
        (None, None) => format!("submit{begin} (no site process was told yet)"),
    }
}

/// What Slurm says, in a few words.
fn reported(job: &Job) -> String {
    if job.gone {
        return "gone".to_owned();
    }
    let Some(report) = &job.report else {
        return "submitted".to_owned();
    };
    let reason = report.reason.as_str();
    let says_why = !matches!(reason, "" | "None");
    let state = match says_why {
        true => format!("{} ({reason})", report.state),
        false => report.state.to_string(),
    };
    match report {
        report if Phase::is_held(report) => format!("{state}, held"),
        report if Phase::cannot_start(report) => format!("{state}, cannot start"),
        _ => state,
    }
}

fn excluded(site: &Site, now: Now) -> Vec<String> {
    let nodes = site.excluded.iter();
    let nodes = nodes.filter(|(_, until)| **until > now.wall);
    nodes.map(|(node, _)| node.to_string()).collect()
}

fn reservations(site: &Site, now: Now) -> Vec<ReservationView> {
    let all = site.reservations.values();
    let all = all.filter(|reservation| reservation.end > now.wall);
    all.map(|reservation| ReservationView {
        name: reservation.name.to_string(),
        start_s: reservation.start.0,
        end_s: reservation.end.0,
        nodes: reservation.nodes.to_string(),
        maintenance: reservation.maintenance,
    })
    .collect()
}

fn troubles(site: &Site) -> Vec<TroubleView> {
    let all = site.troubles.iter();
    all.map(|(what, (since, text))| TroubleView {
        what: what.to_string(),
        since_s: since.0,
        text: text.to_string(),
    })
    .collect()
}

fn decisions(site: &Site) -> Vec<DecisionView> {
    let all = site.decisions.iter();
    all.map(|decision| DecisionView {
        at_s: decision.at.0,
        replica: decision.replica.as_ref().map(ToString::to_string),
        text: decision.text.to_string(),
    })
    .collect()
}

/// The last lines of jobs, and what is paused.
pub(super) fn logs(state: &State) -> LogsView {
    let paused = state.sites.iter().filter_map(|(name, site)| {
        let paused = site.paused.as_ref()?;
        Some((name.to_string(), paused.to_string()))
    });
    let logs = state.intents.values().filter_map(|intent| {
        let job = intent.job.as_ref()?;
        let lines = match &intent.tail {
            Tail::No => return None,
            Tail::Ordered => None,
            Tail::Got(lines) => Some(lines.as_str().to_owned()),
        };
        let outcome = intent.outcome.as_ref();
        Some(LogView {
            site: intent.intention.site.to_string(),
            replica: intent.intention.replica.to_string(),
            intent: intent.intention.intent.0,
            job: job.id.to_string(),
            outcome: outcome.map(|(_, outcome)| outcome.to_string()),
            ended_s: outcome.map(|(at, _)| at.0),
            lines,
        })
    });
    LogsView {
        paused: paused.collect(),
        logs: logs.collect(),
    }
}
