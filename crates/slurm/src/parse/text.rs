//! Bytes into numbered lines, and the account of what was not understood.
//!
//! Never fails: bytes that are no UTF-8 become U+FFFD, colours and carriage returns go.

use super::job::JobId;

/// A skipped line is shown up to this many characters.
const SHOWN_MAX: usize = 160;

/// A piece of the output that is not in the result, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Counted from 1.
    pub line: usize,
    /// The line or the cell, at most 160 characters of it.
    pub text: String,
    /// Why it is not in the result.
    pub why: Why,
}

impl Skipped {
    pub(super) fn new(line: usize, text: &str, why: Why) -> Self {
        let text = text.chars().take(SHOWN_MAX).collect();
        Self { line, text, why }
    }
}

/// Why a piece of the output was skipped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// A banner, a plugin's remark, verbose output.
    #[error("is no part of the answer")]
    Noise,
    /// A line by which a Slurm command says that something failed.
    #[error("is an error message of the command")]
    CommandError,
    /// An answer was found further down.
    #[error("is followed by another answer in line {by}, which counts")]
    Superseded {
        /// The line of the answer that counts.
        by: usize,
    },
    /// The text stops inside an answer or a row.
    #[error("breaks off: a part of it is missing")]
    Incomplete,
    /// The last line has no line end.
    #[error(
        "has no line end, so its last word may be cut: hand in the output as it came, with its \
         last line end"
    )]
    Cut,
    /// The line's time is none.
    #[error("the time {0:?} has no known form")]
    OddTime(String),
    /// A number is none.
    #[error("{0:?} is no number")]
    OddNumber(String),
    /// A row has another number of cells than the header.
    #[error("has {found} cells, where {expected} were expected")]
    Cells {
        /// How many the row has.
        found: usize,
        /// How many columns there are.
        expected: usize,
    },
    /// More cells than columns, and more than one text that could hold the delimiter, or none.
    #[error(
        "has {found} cells, where {expected} were expected, and it is not clear which text holds \
         the delimiter"
    )]
    Ambiguous {
        /// How many the row has.
        found: usize,
        /// How many columns there are.
        expected: usize,
    },
    /// A cell that tells rows from fragments is neither empty nor readable.
    #[error("{text:?} in column {column} shows that this is no row")]
    NotARow {
        /// The column's name as printed.
        column: String,
        /// The cell.
        text: String,
    },
    /// The row is kept, this cell of it only as text.
    #[error("is no value for column {column}: kept as text")]
    OddCell {
        /// The column's name as printed.
        column: String,
    },
    /// A header line that came again.
    #[error("is the header line again")]
    HeaderAgain,
    /// Nothing says what the columns are.
    #[error(
        "nothing says what the columns are: print the header line (no `-n`, no `-h`) or name the \
         fields"
    )]
    NoHeader,
    /// A table with columns of fixed width, in which names are cut.
    #[error(
        "is a table padded with blanks, which cuts names: ask for delimited output (`sacct -P`, \
         `squeue -o '%i|%T|…'`)"
    )]
    Padded,
    /// The command says that what was asked for does not exist.
    #[error("says that it does not exist")]
    NotFound,
    /// A record without the key that names it.
    #[error("belongs to no record: {key} is missing before it")]
    NoRecord {
        /// The key that opens a record.
        key: &'static str,
    },
    /// Several lines look like the accepted job's id.
    #[error("looks like the id of another job, {0}: which one was submitted is not clear")]
    AnotherId(JobId),
}

/// One line of output.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Counted from 1.
    pub number: usize,
    pub text: String,
    /// Whether a line end follows.
    pub ended: bool,
}

impl Line {
    pub fn skipped(&self, why: Why) -> Skipped {
        Skipped::new(self.number, &self.text, why)
    }

    pub fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }
}

pub(super) fn lines(bytes: &[u8]) -> Vec<Line> {
    let mut pieces: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').collect();
    // What follows the last line end is a line only if there is something.
    let ends_well = pieces.last().is_none_or(|last| last.is_empty());
    if ends_well {
        pieces.pop();
    }
    let count = pieces.len();
    let numbered = pieces.into_iter().enumerate();
    numbered
        .map(|(index, piece)| Line {
            number: index + 1,
            text: plain(&String::from_utf8_lossy(piece)),
            ended: ends_well || index + 1 < count,
        })
        .collect()
}

/// The text without byte order mark, carriage returns at its end and ANSI colours.
fn plain(text: &str) -> String {
    let text = text.trim_start_matches('\u{feff}').trim_end_matches('\r');
    if !text.contains('\u{1b}') {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            out.push(c);
        } else if chars.next_if_eq(&'[').is_some() {
            // A control sequence: parameters, then one letter.
            while chars.next_if(|c| !c.is_ascii_alphabetic()).is_some() {}
            chars.next();
        }
    }
    out
}

/// The text after the name of the program that printed it, and whether there was such a prefix.
pub(super) fn without_program(text: &str) -> (&str, bool) {
    let text = text.trim();
    for program in ["sbatch", "srun", "salloc", "sacct", "squeue", "scontrol"] {
        if let Some(rest) = text
            .strip_prefix(program)
            .and_then(|rest| rest.strip_prefix(':'))
        {
            return (rest.trim_start(), true);
        }
    }
    (text, false)
}

/// Whether a Slurm command reports a failure with this line.
pub(super) fn is_command_error(text: &str) -> bool {
    let (rest, prefixed) = without_program(text);
    let said = rest.starts_with("error:") || rest.starts_with("fatal:");
    (prefixed && said) || (rest.starts_with("slurm_") && rest.contains(" error: "))
}

/// A decimal number and nothing else, or nothing.
pub(super) fn digits<N: std::str::FromStr>(text: &str) -> Option<N> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // `parse` alone would take a plus sign.
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_know_their_number_and_whether_they_ended() {
        let got = lines(b"\xef\xbb\xbfa\r\n\x1b[1;31mb\x1b[0m\n\nc\xff");
        let seen: Vec<_> = got
            .iter()
            .map(|line| (line.number, line.text.as_str(), line.ended))
            .collect();
        assert_eq!(
            seen,
            [
                (1, "a", true),
                (2, "b", true),
                (3, "", true),
                (4, "c\u{fffd}", false)
            ]
        );
        assert!(lines(b"").is_empty());
        assert_eq!(lines(b"\n").len(), 1);
    }

    #[test]
    fn only_digits_are_a_number() {
        assert_eq!(digits::<u32>("017"), Some(17));
        for bad in ["", "+1", "-1", "1.0", " 1", "1K", "4294967296", "١"] {
            assert_eq!(digits::<u32>(bad), None, "{bad}");
        }
    }
}
