//! Job ids in all their forms: array tasks, parts of heterogeneous jobs, steps.

use std::fmt;

use super::text::digits;

/// What Slurm calls a job; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u32);

impl JobId {
    /// Reads decimal digits and nothing else.
    pub(super) fn read(text: &str) -> Option<Self> {
        // The topmost numbers mean "none" in Slurm.
        digits(text)
            .filter(|id| (1..0xffff_fff0).contains(id))
            .map(Self)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A row's job: `4`, `68_2`, `68_[3-9%1]`, `73+1`, `4.batch`, `4.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRef {
    /// The job, or the array, or the leader of a heterogeneous job.
    pub job: JobId,
    /// Which tasks of an array.
    pub array: Option<Array>,
    /// Which part of a heterogeneous job.
    pub part: Option<u32>,
    /// Which step; `None` is the allocation itself.
    pub step: Option<Step>,
}

/// Tasks of a job array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Array {
    /// One task.
    Task(u32),
    /// Tasks that still wait, as Slurm writes them between brackets: `7-8%1`, `1,3,...`.
    Waiting(String),
}

/// A step of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The batch script.
    Batch,
    /// The container of everything that entered the node from outside.
    Extern,
    /// An interactive shell.
    Interactive,
    /// The n-th `srun`.
    Number(u32),
    /// A name that nobody listed, or one cut short.
    Other(String),
}

impl JobRef {
    /// Whether it is the allocation rather than a step of it.
    #[must_use]
    pub fn is_allocation(&self) -> bool {
        self.step.is_none()
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        // Brackets may hold dots: `68_[1,3,...]`.
        let bracket = text.rfind(']').unwrap_or(0);
        let (allocation, step) = match text[bracket..].find('.') {
            Some(dot) => (
                &text[..bracket + dot],
                Some(Step::read(&text[bracket + dot + 1..])?),
            ),
            None => (text, None),
        };
        let (allocation, part) = match allocation.split_once('+') {
            Some((allocation, part)) => (allocation, Some(digits(part)?)),
            None => (allocation, None),
        };
        let (job, array) = match allocation.split_once('_') {
            Some((job, array)) => (job, Some(Array::read(array)?)),
            None => (allocation, None),
        };
        let job = JobId::read(job)?;
        Some(Self {
            job,
            array,
            part,
            step,
        })
    }
}

impl Array {
    fn read(text: &str) -> Option<Self> {
        if let Some(task) = digits(text) {
            return Some(Self::Task(task));
        }
        let inside = text.strip_prefix('[')?.strip_suffix(']')?;
        let plain = |c: char| c.is_ascii_digit() || matches!(c, '-' | ',' | '%' | ':' | '.');
        let known = !inside.is_empty() && inside.chars().all(plain);
        known.then(|| Self::Waiting(inside.to_owned()))
    }
}

impl Step {
    fn read(text: &str) -> Option<Self> {
        if let Some(number) = digits(text) {
            return Some(Self::Number(number));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '_' | '-');
        if text.is_empty() || !text.chars().all(plain) {
            return None;
        }
        Some(match text {
            "batch" => Self::Batch,
            "extern" => Self::Extern,
            "interactive" => Self::Interactive,
            _ => Self::Other(text.to_owned()),
        })
    }
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.job)?;
        match &self.array {
            Some(Array::Task(task)) => write!(f, "_{task}")?,
            Some(Array::Waiting(tasks)) => write!(f, "_[{tasks}]")?,
            None => {}
        }
        if let Some(part) = self.part {
            write!(f, "+{part}")?;
        }
        match &self.step {
            Some(Step::Batch) => f.write_str(".batch"),
            Some(Step::Extern) => f.write_str(".extern"),
            Some(Step::Interactive) => f.write_str(".interactive"),
            Some(Step::Number(number)) => write!(f, ".{number}"),
            Some(Step::Other(name)) => write!(f, ".{name}"),
            None => Ok(()),
        }
    }
}

/// How a job ended: `3:0` is exit code 3, `0:9` is signal 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode {
    /// What the script returned.
    pub code: u32,
    /// The signal that ended it; 0 is none.
    pub signal: u32,
}

impl ExitCode {
    pub(super) fn read(text: &str) -> Option<Self> {
        let (code, signal) = text.split_once(':')?;
        Some(Self {
            code: digits(code)?,
            signal: digits(signal)?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_form_of_id_is_read_and_written_back() {
        let texts = [
            "4",
            "68_2",
            "42271120_[7-8%1]",
            "9_[1,3,5-...]",
            "73+1",
            "4.batch",
            "68_2.extern",
            "4.interactive",
            "8012944_24093.0",
            "73+1.0",
            "4.bat+",
        ];
        for text in texts {
            assert_eq!(JobRef::read(text).unwrap().to_string(), text);
        }
        let part = JobRef::read("68_2.0").unwrap();
        assert_eq!(part.job, JobId(68));
        assert_eq!(part.array, Some(Array::Task(2)));
        assert!(!part.is_allocation() && JobRef::read("68_2").unwrap().is_allocation());
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let bad = [
            "",
            "0",
            "-4",
            "4_",
            "4_[]",
            "4_[1",
            "4_x",
            "4+",
            "4+x",
            "4.",
            "4.a b",
            "x",
            "4 ",
            "4294967295",
            "99999999999",
            "4.0|",
            "batch",
            "4;c",
        ];
        for text in bad {
            assert_eq!(JobRef::read(text), None, "{text}");
        }
    }
}
