//! `scontrol show reservation`: maintenance, courses, and other times that are taken.

use super::field::Field;
use super::hostlist::NodeList;
use super::records::{self, Record};
use super::text::{self, Skipped};
use super::time::{Now, UnixTime, read_point};
use super::tres::{Nodes, Tres};

/// What `scontrol show reservation` printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservations {
    /// The reservations, in the order printed.
    pub reservations: Vec<Reservation>,
    /// Everything else.
    pub skipped: Vec<Skipped>,
}

/// A reservation. Keys that were not printed are [`Field::Absent`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its first line, counted from 1.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// When it begins.
    pub start: Field<UnixTime>,
    /// When it ends.
    pub end: Field<UnixTime>,
    /// Which nodes it takes.
    pub nodes: Field<NodeList>,
    /// How many they are.
    pub node_count: Field<Nodes>,
    /// The partition that it is for.
    pub partition: Field<String>,
    /// What is special about it, such as `MAINT`.
    pub flags: Vec<String>,
    /// Who may use it.
    pub users: Vec<String>,
    /// Who may use it.
    pub accounts: Vec<String>,
    /// What it takes.
    pub tres: Field<Tres>,
    /// `ACTIVE` or `INACTIVE`, as printed.
    pub state: Field<String>,
}

impl Reservations {
    /// Reads `scontrol show reservation`, with or without `-o`.
    #[must_use]
    pub fn parse(bytes: &[u8], now: &Now) -> Self {
        let (records, mut skipped) = records::read(&text::lines(bytes), "ReservationName");
        let reservations = records
            .iter()
            .filter_map(|record| Reservation::read(record, now, &mut skipped))
            .collect();
        skipped.sort_by_key(|piece| piece.line);
        Self {
            reservations,
            skipped,
        }
    }
}

impl Reservation {
    /// Whether it is maintenance: nothing of ours runs in it.
    #[must_use]
    pub fn is_maintenance(&self) -> bool {
        self.flags.iter().any(|flag| flag == "MAINT")
    }

    fn read(record: &Record, now: &Now, skipped: &mut Vec<Skipped>) -> Option<Self> {
        let name = record.text("ReservationName")?.to_owned();
        let time = |text: &str| read_point(text, now);
        let word = |text: &str| Some(text.to_owned());
        Some(Self {
            line: record.line,
            name,
            start: record.get("StartTime", skipped, time),
            end: record.get("EndTime", skipped, time),
            nodes: record.get("Nodes", skipped, |text| Some(NodeList::new(text, true))),
            node_count: record.get("NodeCnt", skipped, Nodes::read),
            partition: record.get("PartitionName", skipped, word),
            flags: record.list("Flags"),
            users: record.list("Users"),
            accounts: record.list("Accounts"),
            tres: record.get("TRES", skipped, Tres::read),
            state: record.get("State", skipped, word),
        })
    }
}
