//! The answer to `sbatch --test-only`: when would this job start?
//!
//! ```text
//!   17.11      Job 4 to start at T using 256 processors on n[1-2]
//!   18.08      Job 4 to start at T using 256 processors on nodes n[1-2] in partition p
//!   25.05      Job 4 to start at T on cluster c a using 256 processors on nodes …
//! ```
//!
//! Everything is on standard error, between plugins' remarks; terminals and mails wrap it. `T` has
//! any form that the user's `SLURM_TIME_FORMAT` asked for.

use super::hostlist::NodeList;
use super::job::JobId;
use super::refusal::{self, Refusal};
use super::text::{self, Line, Skipped, Why};
use super::time::{Now, Precision, UnixTime, read_time};
use super::tres::Cpus;

/// A sentence may be wrapped over this many lines.
const WRAPPED_MAX: usize = 6;
/// A time has at most this many words.
const TIME_WORDS_MAX: usize = 8;

/// What `sbatch --test-only` said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestOnly {
    /// The answer.
    pub answer: Answer,
    /// Jobs that would have to make room.
    pub preempts: Vec<JobId>,
    /// Everything else.
    pub skipped: Vec<Skipped>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The job could start.
    Starts(Estimate),
    /// The job was refused.
    Refused(Refusal),
    /// There was text, and no answer in it.
    Unclear,
    /// There was no text: `-Q` does that.
    Silent,
}

/// An estimate of a job's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The line that it begins in, counted from 1.
    pub line: usize,
    /// The id that the probe used up.
    pub job: JobId,
    /// When.
    pub start: Start,
    /// On which cluster, if that is said.
    pub cluster: Option<String>,
    /// With how many processors, as the site counts them.
    pub processors: Option<Cpus>,
    /// On which nodes, if any are named.
    pub nodes: Option<NodeList>,
    /// In which of the partitions asked for; old versions and heterogeneous jobs name none.
    pub partition: Option<String>,
}

/// When a job would start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Then.
    At {
        /// The time.
        at: UnixTime,
        /// How exactly it was printed.
        precision: Precision,
    },
    /// Slurm says `Unknown`.
    Unknown,
    /// A form of time that nobody listed, as printed.
    Odd(String),
}

impl TestOnly {
    /// Reads what the command printed on standard error at the time `now`.
    #[must_use]
    pub fn parse(bytes: &[u8], now: &Now) -> Self {
        let lines = text::lines(bytes);
        let mut used = vec![false; lines.len()];
        let mut skipped = Vec::new();
        let estimate = estimate(&lines, now, &mut used, &mut skipped);
        let refusal = refusal::find(&lines);
        let answer = match (estimate, refusal) {
            // Errors of plugins surround a success; a refusal that counts says so and comes last.
            (Some(estimate), Some(found))
                if !found.outright || found.refusal.line < estimate.line =>
            {
                Answer::Starts(estimate)
            }
            (Some(estimate), None) => Answer::Starts(estimate),
            (estimate, Some(found)) => {
                if let Some(estimate) = estimate {
                    let by = found.refusal.line;
                    supersede(&lines, estimate.line, by, &mut skipped);
                }
                for index in found.used {
                    used[index] = true;
                }
                Answer::Refused(found.refusal)
            }
            (None, None) if lines.iter().all(Line::is_blank) => Answer::Silent,
            (None, None) => Answer::Unclear,
        };
        let mut preempts = Vec::new();
        for (index, line) in lines.iter().enumerate() {
            if used[index] || line.is_blank() {
                continue;
            }
            match preempted(line) {
                Some(jobs) => preempts.extend(jobs),
                None => skipped.push(line.skipped(Why::Noise)),
            }
        }
        skipped.sort_by_key(|piece| piece.line);
        Self {
            answer,
            preempts,
            skipped,
        }
    }
}

fn supersede(lines: &[Line], line: usize, by: usize, skipped: &mut Vec<Skipped>) {
    if let Some(line) = lines.get(line.wrapping_sub(1)) {
        skipped.push(line.skipped(Why::Superseded { by }));
    }
}

/// `  Preempts: 1,2`. The last id of an unfinished line may be cut.
fn preempted(line: &Line) -> Option<Vec<JobId>> {
    let (rest, _) = text::without_program(&line.text);
    let list = rest.strip_prefix("Preempts:")?;
    if !line.ended {
        return None;
    }
    list.split(',').map(|id| JobId::read(id.trim())).collect()
}

/// Finds the last sentence; marks the lines of all of them as used.
fn estimate(
    lines: &[Line],
    now: &Now,
    used: &mut [bool],
    skipped: &mut Vec<Skipped>,
) -> Option<Estimate> {
    let mut found: Option<Estimate> = None;
    let mut at = 0;
    while at < lines.len() {
        let (count, sentence) = match read(&lines[at..]) {
            Reading::No => {
                at += 1;
                continue;
            }
            Reading::Incomplete => {
                used[at] = true;
                skipped.push(lines[at].skipped(Why::Incomplete));
                at += 1;
                continue;
            }
            Reading::Sentence(count, sentence) => (count, sentence),
        };
        let last = &lines[at + count - 1];
        let estimate = sentence.estimate(&lines[at], last.ended, now, skipped);
        if let Some(earlier) = found.replace(estimate) {
            supersede(lines, earlier.line, lines[at].number, skipped);
        }
        used[at..at + count].fill(true);
        at += count;
    }
    found
}

enum Reading {
    /// No sentence begins here.
    No,
    /// One begins here and does not end.
    Incomplete,
    /// One, over this many lines.
    Sentence(usize, Sentence),
}

/// Reads a sentence that begins in the first line, adding lines until it is complete.
fn read(lines: &[Line]) -> Reading {
    let mut words: Vec<&str> = Vec::new();
    let mut begun = false;
    let mut best: Option<(usize, Sentence)> = None;
    for (index, line) in lines.iter().take(WRAPPED_MAX).enumerate() {
        words.extend(line.text.split_whitespace());
        match Sentence::read(&words) {
            Progress::No => break,
            Progress::More => begun = true,
            Progress::Whole(sentence) => {
                begun = true;
                let closed = sentence.partition.is_some() || sentence.followed;
                // A partition may still come, but only as the next line's first words.
                if best.is_none() || sentence.partition.is_some() {
                    best = Some((index + 1, sentence));
                }
                if closed {
                    break;
                }
            }
        }
    }
    match best {
        Some((count, sentence)) => Reading::Sentence(count, sentence),
        None if begun => Reading::Incomplete,
        None => Reading::No,
    }
}

enum Progress {
    No,
    More,
    Whole(Sentence),
}

/// The sentence's words, as text.
#[derive(Debug)]
struct Sentence {
    job: JobId,
    time: String,
    cluster: Option<String>,
    processors: String,
    nodes: String,
    partition: Option<String>,
    /// Whether other words follow.
    followed: bool,
}

impl Sentence {
    fn read(words: &[&str]) -> Progress {
        let opens = |at: &usize| {
            let id = words.get(at + 1);
            let to = words.get(at + 2);
            words[*at] == "Job"
                && id.is_none_or(|id| JobId::read(id).is_some())
                && to.is_none_or(|&to| to == "to")
        };
        let Some(at) = (0..words.len()).find(opens) else {
            return Progress::No;
        };
        let opening = ["to", "start", "at"];
        let said = words.iter().skip(at + 2);
        if said.zip(opening).any(|(&word, expected)| word != expected) {
            return Progress::No;
        }
        let job = words.get(at + 1).and_then(|id| JobId::read(id));
        match (job, words.get(at + 5..)) {
            (Some(job), Some(body)) => Self::read_body(job, body),
            _ => Progress::More,
        }
    }

    fn read_body(job: JobId, words: &[&str]) -> Progress {
        let limit = words.len().min(TIME_WORDS_MAX);
        let Some(using) = words[..limit].iter().position(|&word| word == "using") else {
            return match words.len() < TIME_WORDS_MAX {
                true => Progress::More,
                false => Progress::No,
            };
        };
        let (time, cluster) = time_and_cluster(&words[..using]);
        // "256 processors on nodes", in old versions with other units and without "nodes".
        let (processors, rest) = match &words[using + 1..] {
            [processors, _unit, "on", rest @ ..] => (*processors, rest),
            [_, _, _, ..] => return Progress::No,
            _ => return Progress::More,
        };
        let (nodes, rest) = match rest {
            ["nodes", nodes, rest @ ..] | [nodes, rest @ ..] if *nodes != "nodes" => (*nodes, rest),
            _ => return Progress::More,
        };
        let (partition, followed) = match rest {
            [] => (None, false),
            ["in", "partition", name, rest @ ..] => (Some((*name).to_owned()), !rest.is_empty()),
            ["in"] | ["in", "partition"] => return Progress::More,
            _ => (None, true),
        };
        Progress::Whole(Self {
            job,
            time: time.join(" "),
            cluster,
            processors: processors.to_owned(),
            nodes: nodes.to_owned(),
            partition,
            followed,
        })
    }

    fn estimate(self, line: &Line, ended: bool, now: &Now, skipped: &mut Vec<Skipped>) -> Estimate {
        let cut = !ended && !self.followed;
        let start = match self.time.as_str() {
            "" | "Unknown" | "None" | "N/A" => Start::Unknown,
            time => match read_time(time, now) {
                Some((at, precision)) => Start::At { at, precision },
                None => {
                    skipped.push(line.skipped(Why::OddTime(time.to_owned())));
                    Start::Odd(time.to_owned())
                }
            },
        };
        let processors = Cpus::read(&self.processors);
        if processors.is_none() {
            skipped.push(line.skipped(Why::OddNumber(self.processors)));
        }
        if cut {
            skipped.push(line.skipped(Why::Cut));
        }
        let whole = !cut || self.partition.is_some();
        let named = self.nodes != "(null)";
        Estimate {
            line: line.number,
            job: self.job,
            start,
            cluster: self.cluster,
            processors,
            nodes: named.then(|| NodeList::new(&self.nodes, whole)),
            partition: self.partition,
        }
    }
}

/// Takes 25.05's stray "a" and the cluster's name off: `<time>[ on cluster <name>][ a]`.
fn time_and_cluster<'a>(words: &'a [&'a str]) -> (&'a [&'a str], Option<String>) {
    let words = match words {
        [before @ .., "a"] => before,
        all => all,
    };
    match words {
        [time @ .., "on", "cluster", name] => (time, Some((*name).to_owned())),
        time => (time, None),
    }
}
