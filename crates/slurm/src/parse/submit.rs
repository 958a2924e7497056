//! The answer to `sbatch --parsable`: the id of the accepted job, or a refusal.
//!
//! This is the one answer that must not be guessed: a wrong id makes Hansa follow a stranger's job,
//! a missed one makes it submit twice. So an id counts only on a line of its own, with a line end,
//! and only if there is one.

use super::job::JobId;
use super::refusal::{self, Found, Refusal, RefusalKind};
use super::text::{self, Line, Skipped, Why};

/// What `sbatch` said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The reply.
    pub reply: SubmittedReply,
    /// Everything else, of both streams.
    pub skipped: Vec<Skipped>,
}

/// The reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmittedReply {
    /// The job is in the queue.
    Accepted {
        /// Its id.
        job: JobId,
        /// The cluster, if it is named.
        cluster: Option<String>,
    },
    /// It is not, and will not turn up there.
    Refused(Refusal),
    /// Neither is certain: look for the job by its name before submitting again. A controller that
    /// does not answer may have accepted it.
    Unclear {
        /// The error, if one was printed.
        error: Option<Refusal>,
    },
}

impl Submitted {
    /// Reads both streams of `sbatch`, with or without `--parsable`.
    #[must_use]
    pub fn parse(stdout: &[u8], stderr: &[u8]) -> Self {
        let (out, err) = (text::lines(stdout), text::lines(stderr));
        let mut skipped = Vec::new();
        let mut accepted: Vec<Accepted<'_>> = Vec::new();
        for line in &out {
            match accepted_by(&line.text) {
                Some(_) if !line.ended => skipped.push(line.skipped(Why::Cut)),
                Some((job, cluster)) => accepted.push((line, job, cluster)),
                None if line.is_blank() => {}
                None => skipped.push(line.skipped(Why::Noise)),
            }
        }
        let found = refusal::find(&err);
        let mut used = vec![false; err.len()];
        for &index in found.iter().flat_map(|found| &found.used) {
            used[index] = true;
        }
        let error = found.or_else(|| refusal::find(&out));
        let reply = reply(&accepted, error, &mut skipped);
        let noise = err.iter().zip(used);
        let noise = noise.filter(|(line, used)| !used && !line.is_blank());
        skipped.extend(noise.map(|(line, _)| line.skipped(Why::Noise)));
        Self { reply, skipped }
    }
}

type Accepted<'a> = (&'a Line, JobId, Option<String>);

fn reply(
    accepted: &[Accepted<'_>],
    error: Option<Found>,
    skipped: &mut Vec<Skipped>,
) -> SubmittedReply {
    let certain = error.as_ref().is_some_and(is_certain);
    let error = error.map(|found| found.refusal);
    if let Some((_, job, cluster)) = accepted.first() {
        if accepted.iter().all(|(_, other, _)| other == job) {
            let (job, cluster) = (*job, cluster.clone());
            return SubmittedReply::Accepted { job, cluster };
        }
        let ids = accepted.iter();
        skipped.extend(ids.map(|(line, job, _)| line.skipped(Why::AnotherId(*job))));
        return SubmittedReply::Unclear { error };
    }
    let cut = skipped.iter().any(|piece| piece.why == Why::Cut);
    match error {
        Some(refusal) if !cut && certain => SubmittedReply::Refused(refusal),
        error => SubmittedReply::Unclear { error },
    }
}

/// Vague words in which the controller itself answers: a script of the site's rejected the job, say.
const ANSWERS: &[&str] = &[
    "unspecified error",
    "job dependency problem",
    "requested operation is presently disabled",
];

/// Whether the error means that nothing was submitted: the controller said so, or it was not even asked.
/// Errors of plugins alone say nothing: they may surround a success. Nor does an error on the way to the
/// controller or back, and words that nobody listed may be such a one.
fn is_certain(found: &Found) -> bool {
    use RefusalKind as Kind;
    match found.refusal.kind {
        Kind::BadRequest | Kind::Configuration | Kind::UnknownCluster => true,
        Kind::Controller => false,
        Kind::Other => {
            let text = found.refusal.text.to_ascii_lowercase();
            found.outright && ANSWERS.contains(&text.as_str())
        }
        _ => found.outright,
    }
}

/// `60`, `60;lumi`, `Submitted batch job 60`, `Submitted batch job 60 on cluster lumi`.
fn accepted_by(text: &str) -> Option<(JobId, Option<String>)> {
    let text = text.trim();
    let (id, cluster) = match text.strip_prefix("Submitted batch job ") {
        Some(rest) => match rest.split_once(" on cluster ") {
            Some((id, cluster)) => (id, Some(cluster)),
            None => (rest, None),
        },
        None => match text.split_once(';') {
            Some((id, cluster)) => (id, Some(cluster)),
            None => (text, None),
        },
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let named = cluster.is_none_or(|name| !name.is_empty() && name.chars().all(plain));
    let job = JobId::read(id)?;
    named.then(|| (job, cluster.map(str::to_owned)))
}
