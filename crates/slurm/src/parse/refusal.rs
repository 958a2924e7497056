//! Why Slurm refuses a job, and whether asking again later can help.
//!
//! The texts are those of Slurm's `src/common/slurm_errno.c` and the reason names that go with
//! "Job violates accounting/QOS policy". A text that nobody listed is kept and counts as
//! provisional: a shape is not written off because of words that nobody understood.

use super::text::{Line, is_command_error, without_program};

/// Slurm's "no".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The line that says so, counted from 1.
    pub line: usize,
    /// What kind of refusal it is.
    pub kind: RefusalKind,
    /// The text after `allocation failure:` or `Batch job submission failed:`; without such a line
    /// the last error.
    pub text: String,
    /// The error lines around it, without the program's name.
    pub details: Vec<String>,
}

impl Refusal {
    /// Whether asking again later can help.
    #[must_use]
    pub fn lasting(&self) -> Lasting {
        self.kind.lasting()
    }
}

/// Whether asking again later can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// It can: the reason may pass by itself, or it is not clear.
    Provisional,
    /// It cannot: the same request will be refused until somebody changes it or the site.
    Permanent,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $lasting:ident;)*) => {
        /// What kind of refusal it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RefusalKind {
            $($(#[$doc])* $name,)*
        }

        impl RefusalKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The kind in one word, for logs and machines.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// Whether asking again later can help.
            #[must_use]
            pub fn lasting(self) -> Lasting {
                match self {
                    $(Self::$name => Lasting::$lasting,)*
                }
            }
        }
    };
}

kinds! {
    /// "Requested node configuration is not available": impossible, or all nodes are drained, or
    /// the controller's search ran out of time. The text is the same.
    NodeConfiguration = "node-configuration", Provisional;
    /// The nodes exist and cannot be had now.
    NodesBusy = "nodes-busy", Provisional;
    /// No such number or kind of nodes, GPUs or memory in that partition.
    Shape = "shape", Permanent;
    /// The walltime is missing or exceeds a limit.
    TimeLimit = "time-limit", Permanent;
    /// The job is larger than a QOS or association allows.
    SizeLimit = "size-limit", Permanent;
    /// Too many jobs of ours are in the queue or running.
    JobLimit = "job-limit", Provisional;
    /// The association's or QOS's total of resource-minutes does not allow it.
    AllocationExhausted = "allocation-exhausted", Permanent;
    /// Some accounting or QOS policy; which one is not said.
    Policy = "policy", Provisional;
    /// The account, QOS or partition is not ours to use, or does not exist.
    Access = "access", Permanent;
    /// No partition of that name.
    UnknownPartition = "unknown-partition", Permanent;
    /// No cluster of that name.
    UnknownCluster = "unknown-cluster", Permanent;
    /// The reservation does not exist or is not ours.
    Reservation = "reservation", Permanent;
    /// The partition is inactive or drained.
    PartitionUnavailable = "partition-unavailable", Provisional;
    /// The controller did not answer.
    Controller = "controller", Provisional;
    /// We asked too often.
    RateLimited = "rate-limited", Provisional;
    /// Authentication between the commands and the controller is broken.
    Authentication = "authentication", Provisional;
    /// The commands do not find their configuration.
    Configuration = "configuration", Provisional;
    /// The command line or the script is wrong.
    BadRequest = "bad-request", Permanent;
    /// A text that nobody listed.
    Other = "other", Provisional;
}

use RefusalKind as Kind;

/// Parts of texts in lower case, the telling ones first.
const TEXTS: &[(&str, Kind)] = &[
    ("rate limit exceeded", Kind::RateLimited),
    (
        "requested node configuration is not available",
        Kind::NodeConfiguration,
    ),
    (
        "requested partition configuration not available",
        Kind::NodesBusy,
    ),
    ("requested nodes are busy", Kind::NodesBusy),
    ("required node not available", Kind::NodesBusy),
    (
        "required partition not available",
        Kind::PartitionUnavailable,
    ),
    ("partition not available", Kind::PartitionUnavailable),
    ("invalid partition name", Kind::UnknownPartition),
    ("invalid partition specified", Kind::UnknownPartition),
    ("no cluster '", Kind::UnknownCluster),
    ("invalid entry for --cluster", Kind::UnknownCluster),
    ("requested time limit", Kind::TimeLimit),
    ("invalid --time", Kind::BadRequest),
    ("invalid account", Kind::Access),
    ("invalid qos", Kind::Access),
    ("invalid user id", Kind::Access),
    ("group not permitted", Kind::Access),
    ("not permitted to use", Kind::Access),
    ("permission denied", Kind::Access),
    ("reservation", Kind::Reservation),
    ("node count specification", Kind::Shape),
    ("invalid feature specification", Kind::Shape),
    ("invalid node name", Kind::Shape),
    ("nodes not in this partition", Kind::Shape),
    ("generic resource (gres)", Kind::Shape),
    ("more processors requested than permitted", Kind::Shape),
    ("memory required by task", Kind::Shape),
    ("memory specification", Kind::Shape),
    ("job size specification", Kind::Shape),
    ("task count specification", Kind::Shape),
    ("invalid trackable resource", Kind::Shape),
    ("unable to contact slurm controller", Kind::Controller),
    ("socket timed out", Kind::Controller),
    ("zero bytes were transmitted", Kind::Controller),
    ("backup controller in standby", Kind::Controller),
    ("connection refused", Kind::Controller),
    ("connection timed out", Kind::Controller),
    ("connection reset", Kind::Controller),
    ("communications connection failure", Kind::Controller),
    ("communications shutdown failure", Kind::Controller),
    ("message receive failure", Kind::Controller),
    ("message send failure", Kind::Controller),
    ("error on send/recv", Kind::Controller),
    ("insane message length", Kind::Controller),
    ("header lengths are longer", Kind::Controller),
    ("broken pipe", Kind::Controller),
    ("transport endpoint", Kind::Controller),
    ("no route to host", Kind::Controller),
    ("network is unreachable", Kind::Controller),
    ("interrupted system call", Kind::Controller),
    ("unexpected message received", Kind::Controller),
    ("temporarily unable to accept job", Kind::Controller),
    ("resource temporarily unavailable", Kind::Controller),
    ("job queue full", Kind::Controller),
    ("authentication error", Kind::Authentication),
    ("munge", Kind::Authentication),
    (
        "could not establish a configuration source",
        Kind::Configuration,
    ),
    ("unable to process configuration file", Kind::Configuration),
    ("dns srv lookup failed", Kind::Configuration),
    ("unrecognized option", Kind::BadRequest),
    ("invalid option", Kind::BadRequest),
    ("requires an argument", Kind::BadRequest),
    ("unable to open file", Kind::BadRequest),
    ("does not look like a batch script", Kind::BadRequest),
    ("line must start with #!", Kind::BadRequest),
    ("for instance: #!/bin/sh", Kind::BadRequest),
    ("batch script is empty", Kind::BadRequest),
    ("dos line breaks", Kind::BadRequest),
];

/// Reads the kind off the text and, where the text is vague, off the details.
fn kind_of(text: &str, details: &[String]) -> Kind {
    let policy = |text: &str| text.to_ascii_lowercase().contains("accounting/qos policy");
    if policy(text) {
        let named = details.iter().rev().find_map(|detail| limit_kind(detail));
        return named.unwrap_or(Kind::Policy);
    }
    let texts = std::iter::once(text).chain(details.iter().rev().map(String::as_str));
    let listed = texts
        .filter_map(|text| listed(text).or_else(|| limit_kind(text)))
        .next();
    listed.unwrap_or(Kind::Other)
}

fn listed(text: &str) -> Option<Kind> {
    let text = text.to_ascii_lowercase();
    TEXTS
        .iter()
        .find_map(|&(part, kind)| text.contains(part).then_some(kind))
}

/// Reads a reason name such as `QOSMaxWallDurationPerJobLimit`.
///
/// Per-user and group limits on resources are compared with the request alone when a job is
/// validated (`src/slurmctld/acct_policy.c`), so they do not pass by themselves.
fn limit_kind(text: &str) -> Option<Kind> {
    let name = text.trim();
    let starts = ["QOS", "Assoc", "Max", "Min", "Grp", "Partition", "Job"];
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && starts.iter().any(|start| name.starts_with(start));
    if !is_name {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let has = |part: &str| name.contains(part);
    // A group's minutes are what an allocation consists of; a job's are its size.
    let total = has("grp") && !has("runmin") && !has("perjob");
    Some(if total && (has("minutes") || has("mins") || has("wall")) {
        Kind::AllocationExhausted
    } else if has("wall") || has("timelimit") {
        Kind::TimeLimit
    } else if has("perjob") {
        Kind::SizeLimit
    } else if has("submitjob") || has("maxjobs") || has("grpjobs") || has("joblimit") {
        Kind::JobLimit
    } else if has("partitiondown") || has("partitioninactive") {
        Kind::PartitionUnavailable
    } else if has("partition") {
        Kind::Shape
    } else if has("notallowed") {
        Kind::Access
    } else if has("max") || has("min") || has("grp") || has("resourcelimit") {
        Kind::SizeLimit
    } else {
        return None;
    })
}

/// What opens the text of a refusal.
const OPENINGS: &[&str] = &[
    "allocation failure:",
    "Batch job submission failed:",
    "Unable to allocate resources:",
];
/// A refusal's text may be wrapped over this many lines.
const WRAPPED_MAX: usize = 4;

/// A refusal among lines.
pub(super) struct Found {
    pub refusal: Refusal,
    /// The indices of its lines and its details' lines.
    pub used: Vec<usize>,
    /// Whether a line says outright that the job was refused; else there are only errors.
    pub outright: bool,
}

/// Finds the last refusal.
pub(super) fn find(lines: &[Line]) -> Option<Found> {
    let mut used = Vec::new();
    let mut details = Vec::new();
    let mut verdict: Option<(usize, String)> = None;
    let mut at = 0;
    while at < lines.len() {
        let line = &lines[at];
        let (rest, _) = without_program(&line.text);
        let opening = OPENINGS
            .iter()
            .find_map(|opening| rest.split_once(opening).map(|(_, text)| text));
        if let Some(text) = opening {
            let (text, count) = unwrapped(text, &lines[at + 1..]);
            verdict = Some((line.number, text));
            used.extend(at..=at + count);
            at += count + 1;
            continue;
        }
        if let Some(detail) = detail(&line.text) {
            details.push((line.number, detail));
            used.push(at);
        }
        at += 1;
    }
    let outright = verdict.is_some();
    let (line, text) = verdict.or_else(|| details.last().cloned())?;
    let details: Vec<String> = details.into_iter().map(|(_, text)| text).collect();
    let kind = kind_of(&text, &details);
    let refusal = Refusal {
        line,
        kind,
        text,
        details,
    };
    Some(Found {
        refusal,
        used,
        outright,
    })
}

/// The text with the lines added that close its bracket, and how many lines were added.
fn unwrapped(text: &str, next: &[Line]) -> (String, usize) {
    let mut text = text.trim().to_owned();
    let open = |text: &str| text.matches('(').count() > text.matches(')').count();
    if !open(&text) {
        return (text, 0);
    }
    let mut longer = text.clone();
    for (count, line) in next.iter().take(WRAPPED_MAX).enumerate() {
        longer.push(' ');
        longer.push_str(line.text.trim());
        if !open(&longer) {
            text.clone_from(&longer);
            return (text, count + 1);
        }
    }
    (text, 0)
}

fn detail(text: &str) -> Option<String> {
    let (rest, prefixed) = without_program(text);
    let error = rest
        .strip_prefix("error:")
        .or_else(|| rest.strip_prefix("fatal:"));
    let option = prefixed && (rest.contains(" option ") || rest.contains("requires an argument"));
    if is_command_error(text) || prefixed && error.is_some() {
        return Some(error.unwrap_or(rest).trim().to_owned());
    }
    option.then(|| rest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_apart_by_their_names() {
        let cases = [
            ("QOSMaxWallDurationPerJobLimit", Some(Kind::TimeLimit)),
            ("AssocMaxWallDurationPerJobLimit", Some(Kind::TimeLimit)),
            ("QOSMaxNodePerUserLimit", Some(Kind::SizeLimit)),
            ("QOSMaxCpuPerUserLimit", Some(Kind::SizeLimit)),
            ("QOSMaxNodePerJobLimit", Some(Kind::SizeLimit)),
            ("QOSMinGRES", Some(Kind::SizeLimit)),
            ("MaxGRESRunMinsPerUser", Some(Kind::SizeLimit)),
            ("QOSMaxSubmitJobPerUserLimit", Some(Kind::JobLimit)),
            ("AssocGrpSubmitJobsLimit", Some(Kind::JobLimit)),
            ("AssocMaxJobsLimit", Some(Kind::JobLimit)),
            ("AssocGrpCPUMinutesLimit", Some(Kind::AllocationExhausted)),
            ("AssocGrpBillingMinutes", Some(Kind::AllocationExhausted)),
            ("QOSGrpGRESMinutes", Some(Kind::AllocationExhausted)),
            ("QOSGrpWallLimit", Some(Kind::AllocationExhausted)),
            ("AssocGrpCPURunMinutesLimit", Some(Kind::SizeLimit)),
            ("QOSMaxCpuMinutesPerJobLimit", Some(Kind::SizeLimit)),
            ("AssocMaxGRESMinutesPerJob", Some(Kind::SizeLimit)),
            ("AssociationJobLimit", Some(Kind::JobLimit)),
            ("QOSNotAllowed", Some(Kind::Access)),
            ("QOSUsageThreshold", None),
            ("PartitionDown", Some(Kind::PartitionUnavailable)),
            ("PartitionTimeLimit", Some(Kind::TimeLimit)),
            ("PartitionNodeLimit", Some(Kind::Shape)),
            ("Verification: ***PASSED***", None),
            ("Verified", None),
        ];
        for (name, kind) in cases {
            assert_eq!(limit_kind(name), kind, "{name}");
        }
    }

    #[test]
    fn words_of_kinds_differ() {
        let mut words: Vec<_> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Kind::ALL.len());
    }
}
