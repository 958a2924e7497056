//! The queues for people.

use crate::demo::plain_table;
use crate::ui;
use crate::ui::out;
use hansa_wire::queue::view::{
    AccuracyView, BudgetView, JobView, ProbeView, QueueView, ShapeView, SiteView,
};

/// Ended jobs of a site that are shown.
const ENDED_SHOWN: usize = 10;

pub fn print(view: &QueueView, decisions: usize) {
    if view.sites.is_empty() {
        out!("no site process has reported yet: start `hansa site run PROFILE` at a site");
    }
    for (at, site) in view.sites.iter().enumerate() {
        if at > 0 {
            out!("");
        }
        print_head(site);
        if let Some(budget) = &site.budget {
            print_budget(budget);
        }
        print_site_facts(site);
        if !site.shapes.is_empty() {
            out!("\n{}", shapes_table(&site.shapes, view.at_s));
        }
        if !site.accuracy.is_empty() {
            out!("\n{}", accuracy_table(&site.accuracy));
        }
        if !site.jobs.is_empty() {
            out!("\n{}", jobs_table(&site.jobs, view.at_s));
        }
        let skipped = site.decisions.len().saturating_sub(decisions);
        if skipped < site.decisions.len() {
            out!("\ndecisions");
        }
        for decision in &site.decisions[skipped..] {
            let replica = decision.replica.as_deref().unwrap_or("");
            out!("  {}  {replica:<4} {}", time(decision.at_s), decision.text);
        }
    }
}

fn print_head(site: &SiteView) {
    out!("site        {}", site.site);
    match &site.process {
        Some(process) if process.alive => out!(
            "process     {} since {} (lease {})",
            process.holder,
            time(process.since_s),
            process.lease
        ),
        Some(process) => out!("process     none; last was {}", process.holder),
        None => out!("process     none"),
    }
    if let Some(plan) = &site.plan {
        out!("wants       {plan}");
    } else if let (Some(shape), Some(chain)) = (&site.preferred, &site.chain) {
        let jobs = site.wanted_jobs;
        out!("wants       {jobs} replicas in shape {shape}, chained by {chain}");
    }
    if let Some(why) = &site.paused {
        out!("paused      {why}");
    } else if let Some(why) = &site.held {
        out!("holds back  {why}");
    }
}

fn print_budget(budget: &BudgetView) {
    let ends = budget.ends_at_s.map(|at| format!(", ends {}", time(at)));
    out!(
        "budget      {:.1} GPU-hours free: {:.1} left as {} said at {}, {:.1} reserved, {:.1} spent \
         since, {:.1} for live jobs{}",
        budget.free_gpu_h,
        budget.left_gpu_h,
        budget.source,
        time(budget.said_at_s),
        budget.reserve_gpu_h,
        budget.spent_gpu_h,
        budget.committed_gpu_h,
        ends.unwrap_or_default()
    );
}

fn print_site_facts(site: &SiteView) {
    if !site.excluded.is_empty() {
        out!("left out    {}", site.excluded.join(", "));
    }
    for reservation in &site.reservations {
        let what = if reservation.maintenance {
            "maintenance"
        } else {
            "reserved"
        };
        let (start, end) = (time(reservation.start_s), time(reservation.end_s));
        out!(
            "{what:<11} {} from {start} to {end}: {}",
            reservation.name,
            reservation.nodes
        );
    }
    for trouble in &site.troubles {
        out!(
            "trouble     {} since {}: {}",
            trouble.what,
            time(trouble.since_s),
            trouble.text
        );
    }
}

fn shapes_table(shapes: &[ShapeView], now_s: u64) -> comfy_table::Table {
    let mut table = plain_table(&[
        "shape",
        "partition",
        "nodes",
        "walltime",
        "costs",
        "usage",
        "by CPUs",
        "probed",
        "starts in",
        "× ½",
        "× 1",
    ]);
    for shape in shapes {
        let probe = shape.probe.as_ref();
        let wait = |which: usize| {
            let wait = probe.and_then(|probe| probe.waits_s.get(which));
            wait.map_or_else(dash, |wait| length(*wait))
        };
        let own = if shape.usage_own_only {
            " (own jobs)"
        } else {
            ""
        };
        table.add_row([
            shape.shape.clone(),
            shape.partition.clone(),
            format!("{} × {}", shape.nodes, shape.gpus_per_node),
            length(shape.walltime_s as f64),
            format!("{:.1} GPU-h", shape.cost_gpu_h),
            shape
                .usage
                .map_or_else(dash, |usage| format!("{:.0} %{own}", usage * 100.0)),
            shape
                .usage_by_cpu
                .map_or_else(dash, |usage| format!("{:.0} %", usage * 100.0)),
            probe.map_or_else(dash, |probe| ago(now_s, probe.at_s)),
            probe.map_or_else(dash, |probe| promise(probe, wait(0))),
            wait(1),
            wait(2),
        ]);
    }
    table
}

fn promise(probe: &ProbeView, wait: String) -> String {
    probe.refused.clone().unwrap_or(wait)
}

fn accuracy_table(accuracy: &[AccuracyView]) -> comfy_table::Table {
    let mut table = plain_table(&[
        "discount",
        "jobs",
        "median error",
        "median size of it",
        "started by then",
    ]);
    for row in accuracy {
        table.add_row([
            format!("× {}", row.strength),
            ui::count(row.jobs),
            signed(row.median_error_s),
            length(row.median_size_s),
            format!("{:.0} %", row.coverage * 100.0),
        ]);
    }
    table
}

fn jobs_table(jobs: &[JobView], now_s: u64) -> comfy_table::Table {
    let mut table = plain_table(&[
        "intent",
        "replica",
        "link",
        "shape",
        "intended",
        "job",
        "reported",
        "heard",
        "observed",
        "came of it",
    ]);
    let live = jobs.iter().filter(|job| job.outcome.is_none()).count();
    for job in &jobs[..jobs.len().min(live + ENDED_SHOWN)] {
        let reported = job.reported.clone().unwrap_or_else(dash);
        let ends = match (job.ends_s, &job.outcome) {
            (Some(ends), None) => format!(", until {}", time(ends)),
            _ => String::new(),
        };
        table.add_row([
            job.intent.to_string(),
            job.replica.clone(),
            job.link.to_string(),
            job.shape.clone(),
            job.intended.clone(),
            job.job.clone().unwrap_or_else(dash),
            format!("{reported}{ends}"),
            job.heard_s.map_or_else(dash, |at| ago(now_s, at)),
            if job.observed { "alive" } else { "–" }.to_owned(),
            job.outcome.clone().unwrap_or_else(dash),
        ]);
    }
    table
}

fn dash() -> String {
    "–".to_owned()
}

/// A time of the wall clock.
pub fn time(at_s: u64) -> String {
    ui::wall_time(at_s.saturating_mul(1000))
}

fn ago(now_s: u64, at_s: u64) -> String {
    format!("{} ago", length(now_s.saturating_sub(at_s) as f64))
}

fn signed(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "−" } else { "+" };
    format!("{sign}{}", length(seconds.abs()))
}

/// A length of time, in its two largest units.
fn length(seconds: f64) -> String {
    let all = seconds.round().max(0.0) as u64;
    let (days, hours, minutes) = (all / 86_400, all / 3600 % 24, all / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{all} s"),
        (0, 0, _) => format!("{minutes} min {} s", all % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_in_their_two_largest_units() {
        let shown = [0.4, 59.6, 61.0, 3600.0, 90_061.0].map(length);
        assert_eq!(
            shown,
            ["0 s", "1 min 0 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]
        );
        assert_eq!(
            (signed(-61.0), signed(2.0)),
            ("−1 min 1 s".into(), "+2 s".into())
        );
    }
}
