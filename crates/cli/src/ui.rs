//! What people see: progress bars and errors on stderr, results on stdout.

/// Prints a line of results on stdout. Whoever read it may have gone (`hansa status | head`), and a
/// replica must not die of that.
macro_rules! out {
    ($($argument:tt)*) => { $crate::ui::write_line(&mut std::io::stdout(), format_args!($($argument)*)) };
}

/// Prints a line of prose on stderr.
macro_rules! note {
    ($($argument:tt)*) => { $crate::ui::write_line(&mut std::io::stderr(), format_args!($($argument)*)) };
}

pub(crate) use {note, out};

use anyhow::Context as _;
use hansa_corpus::{Stage, Tick};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// Sends log lines to stderr; `HANSA_LOG` chooses which (default `warn`).
pub fn start_log() {
    let filter = EnvFilter::try_from_env("HANSA_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// For arguments that are rates.
pub fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err("a number above 0 is expected, such as 250 or 0.5".to_owned()),
    }
}

/// For [`out`] and [`note`].
pub fn write_line(to: &mut dyn std::io::Write, line: std::fmt::Arguments<'_>) {
    let _ = writeln!(to, "{line}").and_then(|()| to.flush());
}

/// One line for the error, one for each cause.
pub fn print_error(error: &anyhow::Error) {
    let mut text = format!("error: {error}");
    let mut said = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Many errors repeat their cause in their own text.
        if !said.contains(&cause) {
            let _ = write!(text, "\n  because: {cause}");
        }
        said = cause;
    }
    note!("{text}");
}

/// A wall-clock time in UTC, to the second; in full where it is none.
pub fn wall_time(wall_ms: u64) -> String {
    let timestamp = i64::try_from(wall_ms).ok();
    let timestamp = timestamp.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    timestamp.map_or_else(
        || format!("{wall_ms} ms"),
        |timestamp| timestamp.strftime("%F %TZ").to_string(),
    )
}

/// Prints a value as JSON on stdout.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    out!(
        "{}",
        serde_json::to_string_pretty(value).context("write JSON")?
    );
    Ok(())
}

/// A bar for the long operations of a corpus.
pub struct CorpusBar(ProgressBar);

impl CorpusBar {
    /// A bar that shows nothing until the first tick, and nothing at all if stderr is no terminal.
    pub fn new() -> Self {
        let bar = ProgressBar::new(0);
        bar.set_style(bar_style("{prefix:<10} {bar:32} {percent:>3}% {msg} {eta}"));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Ends the bar; what it showed is gone.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl hansa_corpus::Progress for CorpusBar {
    fn tick(&self, tick: &Tick) {
        let bar = &self.0;
        bar.set_length(tick.total);
        bar.set_position(tick.done);
        let (prefix, unit) = match tick.stage {
            Stage::CountWords => ("reading", "text"),
            Stage::Merge => ("merging", "entries"),
            Stage::Tokenise => ("tokenising", "text"),
            Stage::Verify => ("verifying", "data"),
        };
        bar.set_prefix(prefix);
        let amount = if unit == "entries" {
            format!("{} of {} entries", tick.done, tick.total)
        } else {
            format!("{} of {} of {unit}", bytes(tick.done), bytes(tick.total))
        };
        let tokens = if tick.tokens > 0 {
            format!(", {} tokens", count(tick.tokens))
        } else {
            String::new()
        };
        bar.set_message(format!("{amount}{tokens}"));
    }
}

/// A style from a template of ours.
pub fn bar_style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template);
    style
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("━╸─")
}

/// A number of bytes for people.
pub fn bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// A count with thin separators for people.
pub fn count(count: u64) -> String {
    indicatif::HumanCount(count).to_string()
}
