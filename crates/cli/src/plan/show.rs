//! A plan as tables.

use super::input::Live;
use crate::demo::plain_table;
use crate::ui::{self, out};
use comfy_table::Table;
use hansa_planner::{Snapshot, Spell};
use hansa_wire::plan::{
    ExcludedReport, FlipReport, InputReport, PickReport, PlanReport, SiteReport, WaterfillReport,
};
use std::time::Duration;

/// A length of time in people's words.
pub fn spell(seconds: f64) -> String {
    let duration = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    Spell(duration).to_string()
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The plan in force: its age, why it was adopted, what it promised.
pub fn current(live: &Live, verdict: Option<&str>) {
    let view = &live.view;
    let at = |s: u64| ui::wall_time(s.saturating_mul(1000));
    match (&live.current, view.policy.as_str()) {
        (_, "fixed") => out!("Each site's profile decides (plan.policy is \"fixed\")."),
        (None, "advise") => out!("No plan was applied yet: each site's profile decides."),
        (None, _) => out!("No plan is in force yet: nothing is submitted."),
        (Some(plan), _) => {
            let age = spell(view.now_ms as f64 / 1e3 - plan.made.0 as f64);
            out!(
                "Plan {} is in force, {age} old: {}.",
                plan.no,
                plan.summary()
            );
            out!("Adopted because: {}.", plan.why);
            let promise = &plan.promise;
            out!(
                "It promised: {} at {}, {} windows in {} rounds, {:.1} GPU-hours.",
                promise.ended,
                at(promise.ends.0),
                ui::count(promise.windows),
                ui::count(promise.rounds),
                promise.cost.hours()
            );
        }
    }
    if let Some(last) = &view.proposal {
        let (verdict, because) = (&last.verdict, &last.because);
        let when = ui::wall_time(last.at_ms);
        out!("Last looked at {when} ({because}): {verdict}.");
    }
    match verdict {
        Some(verdict) => out!("\nNow: {verdict}.\n"),
        None => out!("\nThe best of now:\n"),
    }
}

/// The decision, what becomes of it, its traps, and what could not be used.
pub fn plan(snapshot: &Snapshot, plan: &PlanReport) {
    if plan.picks.is_empty() {
        out!("Submit nothing: no further job would help.");
    } else {
        out!("Have, from {} on:\n", ui::wall_time(snapshot.now.0));
        out!("{}", picks(&plan.picks));
    }
    out!("\n{}\n", outcome(snapshot, plan));
    if !plan.sites.is_empty() {
        out!("{}", sites(&plan.sites));
    }
    plan.traps.iter().for_each(|trap| out!("\nBeware: {trap}."));
    if !plan.excluded.is_empty() {
        out!("\nNot used:\n\n{}", excluded(&plan.excluded));
    }
}

fn outcome(snapshot: &Snapshot, plan: &PlanReport) -> String {
    let target = ui::count(snapshot.run.target.0);
    let windows = ui::count(plan.windows);
    let within = spell(plan.ends_s);
    let how = match plan.ended {
        "target" => format!("The target of {target} windows is reached in {within}"),
        "corpus" => format!("The corpus ends in {within}, after {windows} of {target} windows"),
        "nobody" => {
            format!("In {within} no job is left; {windows} of {target} windows are trained")
        }
        _ => format!("Until {within} from now {windows} of {target} windows are trained"),
    };
    let search = match plan.exact {
        true => "every way was tried or ruled out",
        false => "one site at a time was improved until nothing helped",
    };
    format!(
        "{how}: {} rounds, {:.1} GPU-hours, {} of them idle; {} windows by one replica alone.\n\
         Barrier: accumulation {}, begin {}. {} runs were simulated; {search}.",
        ui::count(plan.rounds),
        plan.gpu_hours,
        percent(plan.idle_share),
        ui::count(plan.solo_windows),
        match plan.balance {
            "off" => "as in the recipe",
            "within" => "as much as fits",
            _ => "to the nearest",
        },
        match plan.together {
            true => "together",
            false => "at once",
        },
        plan.simulations,
    )
}

fn picks(picks: &[PickReport]) -> Table {
    let header = [
        "site",
        "shape",
        "replicas",
        "of these there",
        "GPUs each",
        "walltime",
        "chain",
        "not before",
        "starts in",
        "wait by the probe",
        "counted on",
        "because",
    ];
    let mut table = plain_table(&header);
    for pick in picks {
        table.add_row([
            pick.site.clone(),
            pick.shape.clone(),
            pick.replicas.to_string(),
            pick.already.to_string(),
            pick.gpus.to_string(),
            spell(pick.walltime_s),
            pick.chain.replace('_', " "),
            match pick.begins_s > 0.0 {
                true => spell(pick.begins_s),
                false => "–".to_owned(),
            },
            spell(pick.starts_s),
            format!("{} ({})", spell(pick.wait.raw_s), pick.wait.source),
            spell(pick.wait.counted_s),
            pick.wait.basis.clone(),
        ]);
    }
    table
}

fn sites(sites: &[SiteReport]) -> Table {
    let header = [
        "site",
        "wait",
        "ready in",
        "active",
        "jobs",
        "rounds",
        "windows",
        "tokens",
        "GPU-hours",
        "idle",
    ];
    let mut table = plain_table(&header);
    for site in sites {
        let there = match site.there_already {
            true => " (a job that runs)",
            false => "",
        };
        table.add_row([
            format!("{}{there}", site.site),
            spell(site.wait_s),
            site.ready_s.map_or_else(|| "never".to_owned(), spell),
            spell(site.active_s),
            site.jobs.to_string(),
            ui::count(site.rounds),
            ui::count(site.windows),
            tokens(site.tokens),
            format!("{:.1}", site.gpu_hours),
            percent(site.idle_share),
        ]);
    }
    table
}

/// A number of tokens, short.
pub fn tokens(tokens: u64) -> String {
    let tokens = tokens as f64;
    match tokens {
        1e9.. => format!("{:.2} B", tokens / 1e9),
        1e6.. => format!("{:.1} M", tokens / 1e6),
        _ => format!("{tokens:.0}"),
    }
}

fn excluded(excluded: &[ExcludedReport]) -> Table {
    let mut table = plain_table(&["site", "shape", "reason", "what would change it"]);
    for shape in excluded {
        table.add_row([
            shape.site.clone(),
            shape.shape.clone(),
            shape.reason.clone(),
            shape.fix.clone().unwrap_or_else(|| "–".to_owned()),
        ]);
    }
    table
}

/// Every number with its source and age.
pub fn inputs(inputs: &[InputReport]) -> Table {
    let mut table = plain_table(&["site", "what", "value", "source", "age"]);
    for input in inputs {
        table.add_row([
            input.site.clone().unwrap_or_else(|| "the run".to_owned()),
            input.what.clone(),
            input.value.clone().unwrap_or_else(|| "unknown".to_owned()),
            input.source.clone(),
            input.age_s.map_or_else(|| "–".to_owned(), spell),
        ]);
    }
    table
}

/// Rounds on a screen, at most; the JSON has all.
const STRETCHES: usize = 20;

/// How the rounds go.
pub fn rounds(plan: &PlanReport) {
    let header = [
        "from", "rounds", "each", "training", "exchange", "merge", "windows", "who",
    ];
    let mut table = plain_table(&header);
    for stretch in plan.stretches.iter().take(STRETCHES) {
        let part = |(site, steps, accumulation): &(usize, u64, u32)| {
            let site = plan.sites.get(*site);
            let name = site.map_or("?", |site| site.site.as_str());
            format!("{name} {steps}·{accumulation}")
        };
        let who: Vec<String> = stretch.parts.iter().map(part).collect();
        table.add_row([
            spell(stretch.opens_s),
            ui::count(stretch.rounds),
            spell(stretch.period_s),
            spell(stretch.compute_s),
            spell(stretch.exchange_s),
            spell(stretch.merge_s),
            ui::count(stretch.windows),
            who.join(", "),
        ]);
    }
    out!("\nThe rounds (who: steps·accumulation):\n\n{table}");
    if let Some(more) = plan.stretches.len().checked_sub(STRETCHES + 1) {
        out!("… and {} kinds of round more; --json lists them", more + 1);
    }
}

/// What lost, and why.
pub fn alternatives(plan: &PlanReport) {
    if plan.alternatives.is_empty() {
        return;
    }
    let mut table = plain_table(&["site", "instead", "why it lost"]);
    for other in &plan.alternatives {
        let instead = match &other.shape {
            Some(shape) => format!("{shape} ×{}", other.replicas),
            None => "without it".to_owned(),
        };
        table.add_row([other.site.clone(), instead, other.why.clone()]);
    }
    out!("\nWith all else as decided:\n\n{table}");
}

/// What would flip the decision.
pub fn flips(flips: &[FlipReport]) {
    let header = ["if", "the decision", "would be", "ends in", "GPU-hours"];
    let mut table = plain_table(&header);
    for flip in flips {
        let decision = match flip.decision.is_empty() {
            true => "nothing".to_owned(),
            false => flip.decision.join(", "),
        };
        table.add_row([
            flip.change.clone(),
            if flip.flips { "flips" } else { "stays" }.to_owned(),
            decision,
            match flip.ended {
                "target" => spell(flip.ends_s),
                _ => format!("target missed, {}", spell(flip.ends_s)),
            },
            format!("{:.1}", flip.gpu_hours),
        ]);
    }
    out!("\nWhat flips it:\n\n{table}");
}

/// Which jobs a waterfill would submit, and why no others.
pub fn waterfill(fill: &WaterfillReport) {
    let header = [
        "site",
        "shape",
        "units",
        "ready in",
        "done in",
        "walltime",
        "GPU-hours",
        "wait counted on",
        "because",
    ];
    let mut table = plain_table(&header);
    for share in &fill.shares {
        table.add_row([
            share.site.clone(),
            share.shape.clone(),
            ui::count(share.units),
            spell(share.ready_s),
            spell(share.done_s),
            spell(share.walltime_s),
            format!("{:.1}", share.gpu_hours),
            spell(share.wait.counted_s),
            share.wait.basis.clone(),
        ]);
    }
    out!("{table}\n");
    let (units, each) = (ui::count(fill.units), ui::count(fill.windows_per_unit));
    out!(
        "{units} units of {each} windows; the last is done in {}.",
        spell(fill.done_s)
    );
    match fill.level_s {
        Some(level_s) => out!("Water level: {}.", spell(level_s)),
        None => out!("{} units fit into no job.", ui::count(fill.left)),
    }
    if !fill.passed_over.is_empty() {
        out!("\nNot needed:\n\n{}", excluded(&fill.passed_over));
    }
    if !fill.excluded.is_empty() {
        out!("\nNot used:\n\n{}", excluded(&fill.excluded));
    }
}
