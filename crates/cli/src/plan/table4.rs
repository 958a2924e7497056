//! `hansa plan --recipe table4`: the published system's scheduling scenario.
//!
//! 100 billion tokens at LUMI and Snellius, four nodes at each, one node a job, jobs of 1 h and 8 h in
//! chains without a gap. The published table assumes that nobody ever waits at a barrier; beside it
//! stands the same run under one, and what the planner would do. The queue waits behind the published
//! numbers are not known; those here are 0 and 24 h.

use super::show::{spell, tokens};
use crate::demo::plain_table;
use crate::ui::{out, print_json};
use anyhow::{Context as _, anyhow};
use hansa_base::Steps;
use hansa_planner::{
    Answer, Ask, ChainPolicy, Exchange, Member, Objective, Snapshot, Tally, Terms, Then, World,
    candidates, plan, simulate, without_barrier,
};
use hansa_wire::plan::parse_snapshot;
use serde::Serialize;
use std::time::Duration;

const SNAPSHOT: &str = include_str!("table4.json");
const DAY: Duration = Duration::from_secs(86_400);
const HORIZON: Duration = DAY.saturating_mul(60);

/// A site's line in one of the scenarios.
#[derive(Serialize)]
struct Row {
    barrier: &'static str,
    site: String,
    wait_s: f64,
    active_s: f64,
    jobs: u32,
    tokens: u64,
    done_s: f64,
}

/// Prints the table.
pub fn run(json: bool) -> anyhow::Result<()> {
    let base = parse_snapshot(SNAPSHOT).context("read the scenario")?;
    let mut rows = Vec::new();
    // The last site listed is the one that waits in the last scenario.
    for waits in [[0, 0], [1, 0], [0, 1]] {
        let snapshot = waiting(&base, waits);
        rows.extend(without(&snapshot)?);
        rows.extend(with(&snapshot)?);
        rows.extend(planned(&snapshot)?);
    }
    if json {
        return print_json(&rows);
    }
    let header = [
        "barrier", "site", "wait", "active", "jobs", "tokens", "done in",
    ];
    let mut table = plain_table(&header);
    for row in rows {
        table.add_row([
            row.barrier.to_owned(),
            row.site,
            spell(row.wait_s),
            spell(row.active_s),
            row.jobs.to_string(),
            tokens(row.tokens),
            spell(row.done_s),
        ]);
    }
    out!("{table}");
    out!(
        "\nnone: nobody ever waits, as in the published table. published: four replicas at each site, \
         100 steps a round,\nexchanges one after the other. planned: what Hansa would do with 1,000 \
         steps a round, exchanges that overlap,\nand every successor waiting as long as the first."
    );
    Ok(())
}

/// The scenario with these waits in days, site by site.
fn waiting(base: &Snapshot, days: [u32; 2]) -> Snapshot {
    let mut snapshot = base.clone();
    let now = snapshot.now;
    for (site, days) in snapshot.sites.iter_mut().zip(days) {
        for probe in site.shapes.iter_mut().filter_map(|s| s.probe.as_mut()) {
            probe.at = now;
            probe.value = Answer::StartsAt(now.after(DAY.saturating_mul(days)));
        }
    }
    snapshot
}

/// Four replicas at each site, in chains without a gap.
fn members(snapshot: &Snapshot) -> anyhow::Result<Vec<Member>> {
    let terms = Terms {
        replicas: 4,
        chain: ChainPolicy::AfterEnd,
        jobs_max: u32::MAX,
        begins_in: Duration::ZERO,
    };
    let (fit, _) = candidates(snapshot);
    let member = |candidate| {
        let member = Member::of(snapshot, candidate, terms);
        let wait = Duration::ZERO;
        Ok(Member {
            then: Then::AfterEnd { wait },
            ..member.map_err(|reason| anyhow!("the scenario lacks a number: {reason}"))?
        })
    };
    fit.iter().map(member).collect()
}

fn without(snapshot: &Snapshot) -> anyhow::Result<Vec<Row>> {
    let mut members = members(snapshot)?;
    // As the table has it: start-up costs nothing.
    for member in &mut members {
        member.startup = Duration::ZERO;
        member.first.ready_in = member.first.starts_in;
    }
    let fluid = without_barrier(&World::of(snapshot, HORIZON)?, &members);
    Ok(rows(
        "none",
        snapshot,
        &members,
        &fluid.members,
        fluid.ends_in,
    ))
}

fn with(snapshot: &Snapshot) -> anyhow::Result<Vec<Row>> {
    let members = members(snapshot)?;
    let outcome = simulate(&World::of(snapshot, HORIZON)?, &members);
    Ok(rows(
        "published",
        snapshot,
        &members,
        &outcome.members,
        outcome.ends_in,
    ))
}

fn planned(snapshot: &Snapshot) -> anyhow::Result<Vec<Row>> {
    let mut snapshot = snapshot.clone();
    snapshot.run.phase.steps = Steps(1000);
    snapshot.policy.exchange = Exchange::Overlapped;
    let plan = plan(&snapshot, &Ask::new(Objective::EarliestFinish, HORIZON))?;
    let outcome = &plan.outcome;
    Ok(rows(
        "planned",
        &snapshot,
        &plan.members,
        &outcome.members,
        outcome.ends_in,
    ))
}

fn rows(
    barrier: &'static str,
    snapshot: &Snapshot,
    members: &[Member],
    tallies: &[Tally],
    done: Duration,
) -> Vec<Row> {
    let row = |(member, tally): (&Member, &Tally)| Row {
        barrier,
        site: snapshot.sites[member.site].name.to_string(),
        wait_s: member.first.starts_in.as_secs_f64(),
        active_s: tally.active.as_secs_f64(),
        jobs: tally.jobs,
        tokens: tally.windows.0.saturating_mul(snapshot.run.seq_len.into()),
        done_s: done.as_secs_f64(),
    };
    members.iter().zip(tallies).map(row).collect()
}
