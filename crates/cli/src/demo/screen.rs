//! The demo's progress: a bar for each site and one for the run. Without a terminal, a line for each
//! generation.

use crate::ui;
use crate::ui::note;
use hansa_wire::status::Status;
use indicatif::{MultiProgress, ProgressBar};
use serde_json::Value;
use std::time::Duration;

/// What is on the screen.
pub struct Screen {
    all: MultiProgress,
    run: ProgressBar,
    sites: Vec<(&'static str, ProgressBar)>,
    generation: Option<u64>,
    rounds: u64,
}

impl Screen {
    pub fn new(sites: &[&'static str], rounds: u64) -> Self {
        let all = MultiProgress::new();
        let bar = |prefix: &'static str, template: &str| {
            let bar = all.add(ProgressBar::new(1));
            bar.set_style(ui::bar_style(template));
            bar.set_prefix(prefix);
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        };
        let site = "  {prefix:<8} {bar:24} {msg}";
        let sites = sites.iter().map(|name| (*name, bar(name, site))).collect();
        let run = bar("run", "  {prefix:<8} {bar:24} {msg}");
        run.set_length(rounds.max(1));
        Self {
            all,
            run,
            sites,
            generation: None,
            rounds,
        }
    }

    /// A line that stays.
    pub fn tell(&self, line: &str) {
        if self.run.is_hidden() {
            note!("{line}");
        } else {
            let _ = self.all.println(line);
        }
    }

    /// A site's process is not there.
    pub fn site_is_away(&self, site: &str, why: &str) {
        if let Some(bar) = self.bar(site) {
            bar.set_position(0);
            bar.set_message(why.to_owned());
        }
    }

    /// Shows an event that a site reported.
    pub fn site_event(&self, site: &str, event: &Value) {
        let Some(bar) = self.bar(site) else { return };
        let number = |key: &str| event[key].as_f64().unwrap_or(0.0);
        let share = |done: &str, total: &str| {
            bar.set_length((number(total) as u64).max(1));
            bar.set_position(number(done) as u64);
        };
        match event["event"].as_str().unwrap_or_default() {
            "step" => {
                share("step", "steps");
                bar.set_message(format!(
                    "training   step {:>3}/{} · loss {:.3} · {} tokens/s",
                    number("step"),
                    number("steps"),
                    number("loss"),
                    ui::count(number("tokens_per_s") as u64),
                ));
            }
            "evaluating" => {
                share("done_windows", "total_windows");
                bar.set_message(format!("evaluating generation {}", number("generation")));
            }
            "uploading" => bar.set_message("uploading"),
            "downloading" => bar.set_message("downloading"),
            "checking_corpus" => bar.set_message("checking its corpus"),
            "waiting" => {
                bar.set_message(event["reason"].as_str().unwrap_or("waiting").to_owned());
            }
            "coordinator_away" => bar.set_message("training on without the coordinator"),
            "leaving" => bar.set_message("leaving"),
            "ended" => bar.set_message(event["outcome"].as_str().unwrap_or("ended").to_owned()),
            _ => {}
        }
        if let Some(line) = worth_a_line(site, event) {
            self.tell(&line);
        }
    }

    /// Shows the run's state.
    pub fn status(&mut self, status: &Status) {
        let generation = status.generation.number;
        let committed = status.ledger.committed + status.ledger.committed_before;
        let measured = status.evaluations.last();
        let perplexity = measured.map_or_else(String::new, |at| {
            format!(
                " · held-out perplexity {:.1} at generation {}",
                at.perplexity, at.generation
            )
        });
        let message = format!(
            "generation {generation}/{} · {} windows committed{perplexity}",
            self.rounds,
            ui::count(committed),
        );
        self.run.set_position(generation);
        if self.run.is_hidden() && self.generation != Some(generation) {
            note!("{message}");
        }
        self.run.set_message(message);
        self.generation = Some(generation);
    }

    /// Takes the bars away; lines stay.
    pub fn finish(&self) {
        self.sites
            .iter()
            .for_each(|(_, bar)| bar.finish_and_clear());
        self.run.finish_and_clear();
    }

    fn bar(&self, site: &str) -> Option<&ProgressBar> {
        self.sites
            .iter()
            .find(|(name, _)| *name == site)
            .map(|(_, bar)| bar)
    }
}

/// Events of a site that a reader of the log wants to find.
fn worth_a_line(site: &str, event: &Value) -> Option<String> {
    match event["event"].as_str()? {
        "registered" => {
            let inherited = event["inherited_windows"].as_u64().unwrap_or(0);
            let incarnation = &event["incarnation"];
            let with = if inherited > 0 {
                format!(" and inherits {inherited} leased windows with its resume token")
            } else {
                String::new()
            };
            Some(format!(
                "{site} registers as incarnation {incarnation}{with}"
            ))
        }
        "work_dropped" | "contribution_refused" => Some(format!(
            "{site}: {}",
            event["reason"].as_str().unwrap_or("its work is void")
        )),
        _ => None,
    }
}
