//! The answer to `sbatch --parsable`: the id of the accepted job, or a refusal.
//!
//! This is the one answer that must not be guessed: a wrong id makes Hansa follow a stranger's job,
//! a missed one makes it submit twice. So an id counts only on a line of its own, with a line end,
//! and only if there is one.

use super::job::JobId;
use super::refusal::{self, Refusal};
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
    /// It is not.
    Refused(Refusal),
    /// Neither is certain: look for the job by its name before submitting again.
    Unclear,
}

impl Submitted {
    /// Reads both streams of `sbatch`, with or without `--parsable`.
    #[must_use]
    pub fn parse(stdout: &[u8], stderr: &[u8]) -> Self {
        let (out, err) = (text::lines(stdout), text::lines(stderr));
        let mut skipped = Vec::new();
        let mut accepted: Vec<(&Line, JobId, Option<String>)> = Vec::new();
        for line in &out {
            match accepted_by(&line.text) {
                Some(_) if !line.ended => skipped.push(line.skipped(Why::Cut)),
                Some((job, cluster)) => accepted.push((line, job, cluster)),
                None if line.is_blank() => {}
                None => skipped.push(line.skipped(Why::Noise)),
            }
        }
        let refusal = refusal::find(&err).or_else(|| refusal::find(&out));
        let several = accepted
            .first()
            .is_some_and(|first| accepted.iter().any(|other| other.1 != first.1));
        let reply = match (accepted.first(), refusal) {
            (Some(_), _) if several => {
                let others = accepted.iter();
                skipped.extend(others.map(|(line, job, _)| line.skipped(Why::AnotherId(*job))));
                SubmittedReply::Unclear
            }
            (Some((_, job, cluster)), _) => SubmittedReply::Accepted {
                job: *job,
                cluster: cluster.clone(),
            },
            (None, Some((refusal, _))) if !cut(&skipped) => SubmittedReply::Refused(refusal),
            (None, _) => SubmittedReply::Unclear,
        };
        let noise = err.iter().filter(|line| !line.is_blank());
        skipped.extend(noise.map(|line| line.skipped(Why::Noise)));
        Self { reply, skipped }
    }
}

fn cut(skipped: &[Skipped]) -> bool {
    skipped.iter().any(|piece| piece.why == Why::Cut)
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
