//! `hansa site check`: is this site fit for a campaign?

use super::endpoint;
use crate::ui;
use crate::ui::out;
use anyhow::bail;
use clap::Args;
use comfy_table::CellAlignment;
use hansa_site::Profile;
use hansa_site::check::{CheckOptions, Finding, Verdict, check, is_fit};
use std::path::PathBuf;

/// `hansa site check`.
#[derive(Args)]
pub struct Arguments {
    /// The site's profile.
    profile: PathBuf,
    /// Also ask on a compute node, by a job of a few minutes in the preferred shape, with one node.
    #[arg(long)]
    compute: bool,
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints what was found; fails if anything is bad.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let profile = Profile::load(&arguments.profile)?;
    let endpoint = endpoint(&profile).map_err(|error| format!("{error:#}"));
    let options = CheckOptions {
        profile,
        endpoint,
        compute: arguments.compute,
    };
    let findings = check(&options).await;
    match arguments.json {
        true => ui::print_json(&findings)?,
        false => print(&findings),
    }
    if !is_fit(&findings) {
        let bad = findings.iter().filter(|f| f.verdict == Verdict::Bad);
        let names: Vec<_> = bad.map(|finding| finding.what.as_str()).collect();
        bail!(
            "{} of {} checks are bad: {}",
            names.len(),
            findings.len(),
            names.join(", ")
        );
    }
    Ok(())
}

/// A table, and below it what to do.
pub(super) fn print(findings: &[Finding]) {
    let mut table = crate::demo::plain_table(&["check", "", "found"]);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Left);
    }
    for finding in findings {
        let found = first_line(&finding.found);
        table.add_row([finding.what.clone(), finding.verdict.to_string(), found]);
    }
    out!("{table}");
    for finding in findings.iter().filter(|finding| !finding.advice.is_empty()) {
        out!("{}: {}", finding.what, finding.advice);
    }
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(100).collect()
}
