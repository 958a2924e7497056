//! `hansa logs`: the last lines of jobs that failed, and what they made pause.

use crate::queue::Source;
use crate::status::tool;
use crate::ui;
use crate::ui::{note, out};
use clap::Args;
use hansa_wire::queue::LOGS;
use hansa_wire::queue::view::{LogView, LogsView};
use std::time::Duration;

const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// `hansa logs`.
#[derive(Args)]
pub struct Arguments {
    /// A site, a job's id at its site, or an intent's number [default: all].
    which: Option<String>,
    #[command(flatten)]
    from: Source,
}

/// Prints the last lines, newest job last.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { which, from } = arguments;
    let json = from.json;
    let client = tool(&from.endpoint()?)?;
    let mut logs: LogsView = client.get_json(LOGS, ANSWER_WITHIN).await?;
    if let Some(which) = &which {
        logs.logs.retain(|log| is_meant(log, which));
        logs.paused.retain(|(site, _)| site == which);
    }
    if json {
        return ui::print_json(&logs);
    }
    for log in &logs.logs {
        let outcome = log.outcome.as_deref().unwrap_or("still there");
        let ended = log
            .ended_s
            .map(|at| format!(", {}", ui::wall_time(at.saturating_mul(1000))));
        out!(
            "── {}/{} · job {} · intent {} · {outcome}{}",
            log.site,
            log.replica,
            log.job,
            log.intent,
            ended.unwrap_or_default()
        );
        match &log.lines {
            Some(lines) if lines.trim().is_empty() => out!("(it has written nothing)"),
            Some(lines) => out!("{}", lines.trim_end()),
            None => out!("(the site has not sent its last lines yet)"),
        }
    }
    for (site, why) in &logs.paused {
        out!("{site} is paused: {why}; `hansa queue resume {site}` lets it go on");
    }
    if logs.logs.is_empty() && logs.paused.is_empty() {
        note!("no job has failed; `hansa queue tail INTENT` asks for the lines of any other");
    }
    Ok(())
}

fn is_meant(log: &LogView, which: &str) -> bool {
    let job = log.job.split(';').next().unwrap_or(&log.job);
    log.site == which || log.job == which || job == which || log.intent.to_string() == which
}
