//! Is this site fit for a campaign? Every question that would otherwise be answered by a failed job.
//!
//! Each finding says what was looked at, what was found, and what to do about it. A check that could not
//! be made is not one that passed. Never here: changing anything, but for a file that is made and removed.

mod compute;
mod files;
mod network;
mod quota;
mod slurm;

use std::fmt;

use hansa_transfer::Endpoint;
use serde::Serialize;

use crate::commands::Slurm;
use crate::profile::Profile;

/// What to check.
pub struct CheckOptions {
    /// The profile.
    pub profile: Profile,
    /// The coordinator, or why there is none to ask.
    pub endpoint: Result<Endpoint, String>,
    /// Also from a compute node, by a tiny job.
    pub compute: bool,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// A campaign may run, but worse than it could.
    Warning,
    /// A campaign would fail.
    Bad,
    /// It could not be checked, or was not asked for.
    Skipped,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Good => "good",
            Self::Warning => "warning",
            Self::Bad => "BAD",
            Self::Skipped => "skipped",
        })
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub what: String,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it; empty where there is nothing to do.
    pub advice: String,
}

/// All findings, in the order of the checks.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    /// All of them.
    pub(crate) fn into_inner(self) -> Vec<Finding> {
        self.0
    }

    fn add(&mut self, what: &str, verdict: Verdict, found: impl ToString, advice: impl ToString) {
        self.0.push(Finding {
            what: what.to_owned(),
            verdict,
            found: found.to_string(),
            advice: advice.to_string(),
        });
    }

    pub(crate) fn good(&mut self, what: &str, found: impl ToString) {
        self.add(what, Verdict::Good, found, "");
    }

    pub(crate) fn warn(&mut self, what: &str, found: impl ToString, advice: impl ToString) {
        self.add(what, Verdict::Warning, found, advice);
    }

    pub(crate) fn bad(&mut self, what: &str, found: impl ToString, advice: impl ToString) {
        self.add(what, Verdict::Bad, found, advice);
    }

    pub(crate) fn skip(&mut self, what: &str, found: impl ToString) {
        self.add(what, Verdict::Skipped, found, "");
    }
}

/// Checks a site.
pub async fn check(options: &CheckOptions) -> Vec<Finding> {
    let profile = &options.profile;
    let mut findings = Findings::default();
    let mut slurm = Slurm::new(profile);
    if slurm::commands(&mut findings, &mut slurm).await {
        slurm::partitions(&mut findings, &mut slurm, profile).await;
        slurm::accounts(&mut findings, &mut slurm, profile).await;
        slurm::shapes(&mut findings, &mut slurm, profile).await;
        slurm::accounting(&mut findings, &mut slurm, profile).await;
        slurm::chain(&mut findings, &slurm, profile);
        slurm::reservations(&mut findings, &mut slurm, profile).await;
        slurm::budget(&mut findings, &slurm, profile).await;
    }
    let run = network::coordinator(&mut findings, options).await;
    files::token_file(&mut findings, profile);
    files::folders(&mut findings, &slurm, profile).await;
    files::corpus(&mut findings, &slurm, profile, run.as_ref()).await;
    files::programs(&mut findings, &slurm, profile).await;
    if options.compute {
        compute::job(&mut findings, &slurm, options).await;
    } else {
        findings.skip("compute node", "not asked for: --compute runs a tiny job");
    }
    findings.0
}

/// Whether nothing is bad.
#[must_use]
pub fn is_fit(findings: &[Finding]) -> bool {
    findings
        .iter()
        .all(|finding| finding.verdict != Verdict::Bad)
}
