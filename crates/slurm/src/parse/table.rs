//! Rows out of delimited output, whose texts may hold line ends and delimiters.
//!
//! ```text
//!   JobID|Comment|State
//!   4|fine|COMPLETED            a row by itself
//!   5|first line                a fragment: wait …
//!   second line|FAILED          … joined, it is a row
//!   lpha|3-00:00:07             a fragment that can begin no row: skipped
//! ```
//!
//! A line that is a row by itself always wins over one that has to be pieced together, so that one
//! broken row costs no other. What tells rows from fragments is the number of cells and the cells
//! that identify a row; the caller judges the latter.

use std::str::FromStr;

use super::field::{Field, Limit};
use super::hostlist::NodeList;
use super::job::{ExitCode, JobRef};
use super::state::JobState;
use super::text::{Line, Skipped, Why, digits, is_command_error};
use super::time::{Now, read_duration, read_point};
use super::tres::Tres;

/// A row may be broken over this many lines.
const PIECES_MAX: usize = 64;

/// The columns of output without a header line, and what stands between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldList {
    names: Vec<String>,
    delimiter: String,
}

/// Why a text is no list of fields.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldListError {
    /// A piece of it names no field.
    #[error("{0:?} names no field: write JobID,State,Start or %i|%T|%S")]
    Name(String),
    /// Between cells there must be something.
    #[error("the delimiter is empty, or has letters or digits: use `|` or what the site prints")]
    Delimiter,
}

impl FieldList {
    /// The same columns with another delimiter; the usual one is `|`.
    ///
    /// # Errors
    /// When it is empty or could be part of a cell.
    pub fn with_delimiter(mut self, delimiter: &str) -> Result<Self, FieldListError> {
        if delimiter.is_empty() || delimiter.chars().any(char::is_alphanumeric) {
            return Err(FieldListError::Delimiter);
        }
        delimiter.clone_into(&mut self.delimiter);
        Ok(self)
    }
}

impl FromStr for FieldList {
    type Err = FieldListError;

    /// Reads the argument of `sacct --format`, `squeue -o` or `squeue -O`: names or percent codes,
    /// with or without widths, separated by commas, bars or blanks.
    fn from_str(text: &str) -> Result<Self, FieldListError> {
        let pieces = text.split([',', '|', ' ', ';']);
        let mut names = Vec::new();
        for piece in pieces.filter(|piece| !piece.is_empty()) {
            // A width follows a percent sign (sacct), stands after it (squeue -o) or a colon.
            let name = match piece.strip_prefix('%') {
                Some(code) => code.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit()),
                None => piece.split(['%', ':']).next().unwrap_or_default(),
            };
            let percent = piece.starts_with('%');
            let lone = name.len() == 1 && name.chars().all(|c| c.is_ascii_alphabetic());
            if (percent && !lone) || (!percent && !is_name(name)) {
                // The second half of `JobID:|` and the like.
                if piece.chars().any(|c| c.is_ascii_alphabetic()) {
                    return Err(FieldListError::Name(piece.to_owned()));
                }
                continue;
            }
            names.push(if percent {
                format!("%{name}")
            } else {
                name.to_owned()
            });
        }
        if names.is_empty() {
            return Err(FieldListError::Name(text.to_owned()));
        }
        let delimiter = "|".to_owned();
        Ok(Self { names, delimiter })
    }
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-/()".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(plain)
}

/// A column that somebody reads.
#[derive(Debug)]
pub(super) struct Column {
    /// Its one name in this crate.
    pub id: &'static str,
    /// Its names in headers and field lists: in lower case without `_` and `-`, or percent codes.
    pub names: &'static [&'static str],
    pub kind: Kind,
}

/// What the cells of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A job's id: tells rows from fragments.
    Job,
    /// A job's state: tells rows from fragments.
    State,
    Time,
    Duration,
    /// Minutes, as a number.
    Minutes,
    /// Seconds, as a number.
    Seconds,
    Limit,
    Count,
    ExitCode,
    Tres,
    Nodes,
    /// One word.
    Name,
    /// Anything.
    Text,
}

impl Kind {
    /// Whether a cell of this kind lets its row be one.
    fn fits(self, cell: &str) -> bool {
        match self {
            Self::Job => JobRef::read(cell.trim()).is_some(),
            Self::State => JobState::read(cell.trim()).is_some(),
            _ => true,
        }
    }

    /// Whether a cell can be read as this kind.
    fn reads(self, cell: &str, now: &Now) -> bool {
        let number = |text: &str| digits::<u64>(text);
        let odd = match self {
            Self::Job | Self::State => !self.fits(cell),
            Self::Time => is_odd(cell, |text| read_point(text, now)),
            Self::Duration => is_odd(cell, read_duration),
            Self::Minutes | Self::Seconds => is_odd(cell, |text| Limit::read(text, number)),
            Self::Limit => is_odd(cell, |text| Limit::read(text, read_duration)),
            Self::Count => is_odd(cell, number),
            Self::ExitCode => is_odd(cell, ExitCode::read),
            Self::Tres => is_odd(cell, Tres::read),
            Self::Nodes => is_odd(cell, |text| NodeList::new(text, true).count),
            Self::Name => cell.contains(char::is_whitespace),
            Self::Text => false,
        };
        !odd
    }
}

fn is_odd<T>(cell: &str, read: impl FnOnce(&str) -> Option<T>) -> bool {
    matches!(Field::read(cell, read), Field::Odd(_))
}

/// What a command's tables are made of, and when one was printed.
#[derive(Clone, Copy)]
pub(super) struct Dialect<'a> {
    pub columns: &'static [Column],
    pub now: &'a Now,
}

impl Dialect<'_> {
    fn column(&self, name: &str) -> Option<&'static Column> {
        let plain: String = match name.starts_with('%') {
            true => name.to_owned(),
            false => name
                .chars()
                .filter(|c| !matches!(c, '_' | '-'))
                .map(|c| c.to_ascii_lowercase())
                .collect(),
        };
        self.columns
            .iter()
            .find(|column| column.names.contains(&plain.as_str()))
    }
}

/// The columns of a table.
pub(super) struct Columns {
    pub names: Vec<String>,
    pub known: Vec<Option<&'static Column>>,
    delimiter: String,
    /// Whether a delimiter ends each line (`sacct -p`).
    trailing: bool,
}

/// One row: its first line, its cells as printed, and whether the last may be cut.
pub(super) struct Row {
    pub line: usize,
    pub cells: Vec<String>,
    pub cut: bool,
}

impl Columns {
    fn new(names: Vec<String>, delimiter: String, dialect: Dialect<'_>) -> Self {
        let known = names.iter().map(|name| dialect.column(name)).collect();
        Self {
            names,
            known,
            delimiter,
            trailing: false,
        }
    }

    /// The columns that a header line names, if it is one.
    fn from_header(line: &str, dialect: Dialect<'_>) -> Option<Self> {
        let line = line.trim_end();
        let inside = |c: char| c.is_ascii_alphanumeric() || "_-/():%".contains(c);
        let first_end = line.find(|c| !inside(c)).unwrap_or(line.len());
        let rest = &line[first_end..];
        let delimiter_end = rest
            .find(|c: char| c.is_alphanumeric() || c.is_whitespace())
            .unwrap_or(rest.len());
        let delimiter = match &rest[..delimiter_end] {
            "" => "|".to_owned(),
            found => found.to_owned(),
        };
        let mut names: Vec<String> = line.split(&delimiter).map(str::to_owned).collect();
        let trailing = names.len() > 1 && names.last().is_some_and(String::is_empty);
        if trailing {
            names.pop();
        }
        if !names.iter().all(|name| is_name(name)) {
            return None;
        }
        let columns = Self {
            trailing,
            ..Self::new(names, delimiter, dialect)
        };
        let known = columns.known.iter().flatten().count();
        // One known word may be a coincidence; half of a line of them is not.
        let alone = columns.names.len() == 1;
        (known > 0 && (alone || 2 * known >= columns.names.len() || known >= 3)).then_some(columns)
    }

    /// Whether this is a table of fixed width, as the commands print without options.
    fn is_padded_header(line: &str, dialect: Dialect<'_>) -> bool {
        let words: Vec<&str> = line.split_whitespace().collect();
        let known = words.iter().filter(|word| dialect.column(word).is_some());
        words.len() >= 3 && words.iter().all(|word| is_name(word)) && known.count() >= 3
    }

    fn split<'a>(&self, line: &'a str) -> Vec<&'a str> {
        let line = match self.trailing {
            true => line.strip_suffix(self.delimiter.as_str()).unwrap_or(line),
            false => line,
        };
        line.split(self.delimiter.as_str()).collect()
    }

    fn same_as(&self, other: &Self) -> bool {
        let ids = |columns: &Self| -> Vec<_> {
            let known = columns.known.iter();
            known.map(|column| column.map(|column| column.id)).collect()
        };
        ids(self) == ids(other)
    }

    fn is_free(&self, column: usize) -> bool {
        self.known[column].is_none_or(|column| column.kind == Kind::Text)
    }
}

/// The rows of a table.
pub(super) struct Table {
    pub columns: Option<Columns>,
    pub rows: Vec<Row>,
    pub skipped: Vec<Skipped>,
}

impl Table {
    /// Reads the rows; without a list of fields the first line that can be a header names them.
    pub fn read(lines: &[Line], fields: Option<&FieldList>, dialect: Dialect<'_>) -> Self {
        let listed = fields
            .map(|fields| Columns::new(fields.names.clone(), fields.delimiter.clone(), dialect));
        let mut reader = Reader {
            dialect,
            columns: listed,
            pending: None,
            rows: Vec::new(),
            skipped: Vec::new(),
        };
        for line in lines {
            reader.take(line);
        }
        reader.drop_pending();
        reader.skipped.sort_by_key(|piece| piece.line);
        Self {
            columns: reader.columns,
            rows: reader.rows,
            skipped: reader.skipped,
        }
    }
}

/// Reads one row's cells by their column, and notes what is odd.
pub(super) struct Cells<'a> {
    columns: &'a Columns,
    row: &'a Row,
    skipped: &'a mut Vec<Skipped>,
}

impl<'a> Cells<'a> {
    pub fn new(columns: &'a Columns, row: &'a Row, skipped: &'a mut Vec<Skipped>) -> Self {
        Self {
            columns,
            row,
            skipped,
        }
    }

    /// The first column with this id.
    pub fn get<T>(&mut self, id: &str, read: impl Fn(&str) -> Option<T>) -> Field<T> {
        let known = &self.columns.known;
        let Some(index) = known.iter().position(|c| c.is_some_and(|c| c.id == id)) else {
            return Field::Absent;
        };
        let text = self.row.cells[index].trim();
        let last = index + 1 == self.row.cells.len();
        let kind = known[index].map(|column| column.kind);
        // A time has a fixed length, so that a cut one is none; of all else some may be missing.
        let cut = self.row.cut && last && kind != Some(Kind::Time);
        let field = match cut {
            true if text.is_empty() => Field::Empty,
            true => Field::Odd(text.to_owned()),
            false => Field::read(text, read),
        };
        if let Field::Odd(text) = &field {
            let column = self.columns.names[index].clone();
            let why = match cut {
                true => Why::Cut,
                false => Why::OddCell { column },
            };
            self.skipped.push(Skipped::new(self.row.line, text, why));
        }
        field
    }

    /// A text, as it is.
    pub fn text(&self, id: &str) -> Field<String> {
        let known = &self.columns.known;
        let index = known.iter().position(|c| c.is_some_and(|c| c.id == id));
        match index.map(|index| self.row.cells[index].as_str()) {
            None => Field::Absent,
            Some("") => Field::Empty,
            Some(text) => Field::Value(text.to_owned()),
        }
    }

    /// The cells, with something in them, of columns that nobody reads.
    pub fn others(&self) -> Vec<(String, String)> {
        let named = self.columns.names.iter().zip(&self.row.cells);
        let unread = named
            .zip(&self.columns.known)
            .filter(|((_, cell), known)| known.is_none() && !cell.trim().is_empty());
        unread
            .map(|((name, cell), _)| (name.clone(), cell.clone()))
            .collect()
    }
}

/// The beginning of a row whose other cells are still to come.
struct Pending {
    line: usize,
    text: String,
    pieces: usize,
}

struct Reader<'a> {
    dialect: Dialect<'a>,
    columns: Option<Columns>,
    pending: Option<Pending>,
    rows: Vec<Row>,
    skipped: Vec<Skipped>,
}

impl Reader<'_> {
    fn take(&mut self, line: &Line) {
        if is_command_error(&line.text) {
            self.skipped.push(line.skipped(Why::CommandError));
            return;
        }
        let header = Columns::from_header(&line.text, self.dialect);
        let Some(columns) = &self.columns else {
            if header.is_some() {
                self.columns = header;
            } else if Columns::is_padded_header(&line.text, self.dialect) {
                self.skipped.push(line.skipped(Why::Padded));
            } else if !line.is_blank() {
                self.skipped.push(line.skipped(Why::NoHeader));
            }
            return;
        };
        if header.is_some_and(|header| header.same_as(columns)) {
            self.drop_pending();
            self.skipped.push(line.skipped(Why::HeaderAgain));
            return;
        }
        if line.is_blank() && self.pending.is_none() {
            return;
        }
        match whole(columns, self.dialect, &line.text) {
            Ok(cells) => {
                self.drop_pending();
                self.push(line.number, cells, !line.ended);
            }
            Err(why) => self.piece(line, why),
        }
    }

    /// Takes a line that is no row by itself, for the reason given.
    fn piece(&mut self, line: &Line, alone: Why) {
        let Some(columns) = &self.columns else { return };
        if let Some(mut pending) = self.pending.take() {
            pending.text.push('\n');
            pending.text.push_str(&line.text);
            pending.pieces += 1;
            if let Ok(cells) = whole(columns, self.dialect, &pending.text) {
                self.push(pending.line, cells, !line.ended);
                return;
            }
            let room = pending.pieces < PIECES_MAX;
            if room && begins(columns, &pending.text) {
                self.pending = Some(pending);
                return;
            }
            self.skip(&pending);
        }
        if line.is_blank() {
            return;
        }
        let Some(columns) = &self.columns else { return };
        if begins(columns, &line.text) {
            let (line, text) = (line.number, line.text.clone());
            let pieces = 1;
            self.pending = Some(Pending { line, text, pieces });
        } else {
            self.skipped.push(line.skipped(alone));
        }
    }

    fn push(&mut self, line: usize, cells: Vec<String>, cut: bool) {
        self.rows.push(Row { line, cells, cut });
    }

    fn drop_pending(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.skip(&pending);
        }
    }

    fn skip(&mut self, pending: &Pending) {
        let Some(columns) = &self.columns else { return };
        // Of several joined lines the first one is shown and counted.
        let first = pending.text.split('\n').next().unwrap_or_default();
        let why = Why::Cells {
            found: columns.split(first).len(),
            expected: columns.names.len(),
        };
        self.skipped.push(Skipped::new(pending.line, first, why));
    }
}

/// The cells of a text that is one row, or why it is none.
fn whole(columns: &Columns, dialect: Dialect<'_>, text: &str) -> Result<Vec<String>, Why> {
    let cells = columns.split(text);
    let (found, expected) = (cells.len(), columns.names.len());
    if found < expected {
        return Err(Why::Cells { found, expected });
    }
    if found > expected {
        return repaired(columns, dialect, &cells);
    }
    identifies(columns, &cells)?;
    Ok(cells.into_iter().map(str::to_owned).collect())
}

/// Whether all identifying cells let this be a row.
fn identifies(columns: &Columns, cells: &[&str]) -> Result<(), Why> {
    for (index, cell) in cells.iter().enumerate() {
        if !columns.known[index].is_none_or(|column| column.kind.fits(cell)) {
            let column = columns.names[index].clone();
            let text = cell.chars().take(80).collect();
            return Err(Why::NotARow { column, text });
        }
    }
    Ok(())
}

/// Whether the text can be the beginning of a row: too few cells, and all that are surely complete
/// let it be one. The last one may go on in the next line.
fn begins(columns: &Columns, text: &str) -> bool {
    let cells = columns.split(text);
    let complete = &cells[..cells.len() - 1];
    cells.len() < columns.names.len() && identifies(columns, complete).is_ok()
}

/// Gives the surplus cells to the one free text that can hold the delimiter: the one whose choice
/// makes all other cells readable. If that is none or several, nothing is guessed.
fn repaired(columns: &Columns, dialect: Dialect<'_>, cells: &[&str]) -> Result<Vec<String>, Why> {
    let (found, expected) = (cells.len(), columns.names.len());
    let surplus = found - expected;
    let mut candidates = Vec::new();
    for text in (0..expected).filter(|&column| columns.is_free(column)) {
        let joined = cells[text..=text + surplus].join(&columns.delimiter);
        let mut all: Vec<String> = cells[..text].iter().map(|&cell| cell.to_owned()).collect();
        all.push(joined);
        all.extend(
            cells[text + surplus + 1..]
                .iter()
                .map(|&cell| cell.to_owned()),
        );
        let readable = all
            .iter()
            .zip(&columns.known)
            .all(|(cell, column)| column.is_none_or(|column| column.kind.reads(cell, dialect.now)));
        if readable {
            candidates.push(all);
        }
    }
    match candidates.len() {
        1 => Ok(candidates.swap_remove(0)),
        _ => Err(Why::Ambiguous { found, expected }),
    }
}
