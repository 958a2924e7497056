//! What the exploration has come by: a check that reaches nothing proves nothing.

use hansa_protocol::{Event, FreedCause, RefusedBecause};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Everything that can be noted.
const KINDS: [&str; 34] = [
    "registration",
    "takeover with a lease",
    "departure",
    "grant",
    "steal",
    "revival",
    "mark raised",
    "absolution",
    "lease expired",
    "session expired",
    "many ended at once",
    "lease lost to bad numbers",
    "lease given back",
    "lease ended with the run",
    "quarantine",
    "announcement",
    "refused as late",
    "refused for a lost lease",
    "replaced",
    "refused",
    "staged",
    "close",
    "commit",
    "end of the epoch",
    "signal",
    "crash",
    "start from the older checkpoint",
    "second process of a name",
    "coordinator died",
    "late message",
    "late heartbeat",
    "fenced call",
    "start on a lease that lives",
    "something else",
];

/// Transitions by what happened in them.
#[derive(Debug)]
pub struct Seen([AtomicU64; KINDS.len()]);

impl Default for Seen {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Seen {
    /// Counts what one transition came by.
    pub fn add(&self, notes: &Notes) {
        for note in notes.0.borrow().iter() {
            let kind = KINDS.iter().position(|kind| kind == note);
            let count = &self.0[kind.unwrap_or(KINDS.len() - 1)];
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        KINDS.into_iter().zip(counts).collect()
    }
}

/// What one transition came by.
#[derive(Debug, Default)]
pub struct Notes(RefCell<Vec<&'static str>>);

impl Notes {
    pub fn note(&self, what: &'static str) {
        self.0.borrow_mut().push(what);
    }

    pub fn event(&self, event: &Event) {
        let name = match event {
            Event::Registered { inherited, .. } if inherited.is_some() => "takeover with a lease",
            Event::Registered { .. } => "registration",
            Event::Left { .. } => "departure",
            Event::Granted { .. } => "grant",
            Event::Freed { cause, .. } => match cause {
                FreedCause::LeaseExpired => "lease expired",
                FreedCause::SessionExpired => "session expired",
                FreedCause::ManyAtOnce => "many ended at once",
                FreedCause::NotFinite => "lease lost to bad numbers",
                FreedCause::Goodbye => "lease given back",
                FreedCause::Evicted => "lease taken by an operator",
                FreedCause::Refused => "lease of who is refused",
                FreedCause::RunEnding | FreedCause::Restored => "lease ended with the run",
            },
            Event::Marked { .. } => "mark raised",
            Event::Stolen(_) => "steal",
            Event::Revived { .. } => "revival",
            Event::Absolved { .. } => "absolution",
            Event::Quarantined { .. } => "quarantine",
            Event::Announced { .. } => "announcement",
            Event::Refused { because, .. } => match because {
                RefusedBecause::Late => "refused as late",
                RefusedBecause::LeaseLost => "refused for a lost lease",
                RefusedBecause::Replaced => "replaced",
                _ => "refused",
            },
            Event::Staged { .. } => "staged",
            Event::Closed(_) => "close",
            Event::Published { .. } => "commit",
            Event::Ended => "end of the epoch",
            _ => return,
        };
        self.note(name);
    }
}
