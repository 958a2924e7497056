//! Which positions were lost with whoever was training them, and how often: what finds the window
//! that kills every process that touches it.
//!
//! ```text
//!   lost twice with 16 windows at risk ─► retried alone, 8 at a time ─► 4 ─► 2 ─► 1 ─► quarantined
//! ```
//!
//! Each such retry is a lease of half the windows, so that the good ones get through and only the poison
//! is left. A map from the first position of a span to what is known of all of it; spans never
//! overlap. Never here: who decides that something is lost.

use crate::Span;
use hansa_base::{Position, ReplicaKey, Windows};
use std::collections::BTreeMap;

/// Failed attempts at the positions of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The position after the last of the span.
    pub end: Position,
    /// How often they were lost.
    pub count: u32,
    /// Who lost them first.
    pub first: ReplicaKey,
    /// True if somebody else lost them, too.
    pub others: bool,
    /// How many windows were at risk together when they were last lost.
    pub together: Windows,
}

impl Attempt {
    /// How many of them may be tried together next: half as many.
    #[must_use]
    pub fn retry(&self) -> Windows {
        Windows((self.together.0 / 2).max(1))
    }

    /// True if it is this very window, by everything that can be known.
    #[must_use]
    pub fn is_poison(&self, attempts_max: u32) -> bool {
        self.together == Windows(1) && self.count >= attempts_max && self.others
    }
}

/// Attempts by the first position of their spans.
pub type Attempts = BTreeMap<Position, Attempt>;

/// The positions of these spans were lost with `key`, all together.
pub(crate) fn lost(attempts: &mut Attempts, spans: &[Span], key: ReplicaKey) {
    let together = Span::total(spans);
    for span in spans {
        for (piece, known) in pieces(attempts, *span) {
            cut(attempts, piece.start);
            cut(attempts, piece.end);
            let known = known.unwrap_or(Attempt {
                end: piece.end,
                count: 0,
                first: key,
                others: false,
                together,
            });
            let attempt = Attempt {
                end: piece.end,
                count: known.count.saturating_add(1),
                others: known.others || known.first != key,
                together,
                ..known
            };
            attempts.insert(piece.start, attempt);
        }
    }
}

/// Nothing is held against these positions any more.
pub(crate) fn forget(attempts: &mut Attempts, spans: &[Span]) {
    for span in spans {
        cut(attempts, span.start);
        cut(attempts, span.end);
        let inside: Vec<Position> = attempts
            .range(span.start..span.end)
            .map(|(start, _)| *start)
            .collect();
        for start in inside {
            attempts.remove(&start);
        }
    }
}

/// A span in pieces of which the same is known.
pub(crate) fn pieces(attempts: &Attempts, span: Span) -> Vec<(Span, Option<Attempt>)> {
    let (mut pieces, mut at) = (Vec::new(), span.start);
    let before = attempts.range(..span.start).next_back();
    let before = before.filter(|(_, attempt)| attempt.end > span.start);
    for (start, attempt) in before
        .into_iter()
        .chain(attempts.range(span.start..span.end))
    {
        let (start, end) = ((*start).max(span.start), attempt.end.min(span.end));
        if at < start {
            pieces.push((
                Span {
                    start: at,
                    end: start,
                },
                None,
            ));
        }
        pieces.push((Span { start, end }, Some(*attempt)));
        at = end;
    }
    if at < span.end {
        pieces.push((
            Span {
                start: at,
                end: span.end,
            },
            None,
        ));
    }
    pieces
}

/// Makes `at` a boundary.
fn cut(attempts: &mut Attempts, at: Position) {
    let Some((_, attempt)) = attempts.range_mut(..at).next_back() else {
        return;
    };
    if attempt.end > at {
        let back = *attempt;
        attempt.end = at;
        attempts.insert(at, back);
    }
}
