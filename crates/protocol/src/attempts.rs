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

/// Losses that are remembered of a span; more say nothing new.
const LOSSES_KEPT: usize = 32;

/// Failed attempts at the positions of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The position after the last of the span.
    pub end: Position,
    /// Who lost them, once for each time; never empty.
    pub lost_with: Vec<ReplicaKey>,
    /// How many windows were at risk together when they were last lost.
    pub together: Windows,
}

impl Attempt {
    /// How often they were lost.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.lost_with.len() as u32
    }

    /// True if more than one replica lost them.
    #[must_use]
    pub fn others(&self) -> bool {
        self.lost_with.windows(2).any(|pair| pair[0] != pair[1])
    }

    fn lost_again(&mut self, key: ReplicaKey, together: Windows) {
        self.together = together;
        if self.lost_with.len() < LOSSES_KEPT || !self.lost_with.contains(&key) {
            self.lost_with.push(key);
        }
    }

    /// How many of them may be tried together next: half as many.
    #[must_use]
    pub fn retry(&self) -> Windows {
        Windows((self.together.0 / 2).max(1))
    }

    /// True if it is this very window, by everything that can be known.
    #[must_use]
    pub fn is_poison(&self, attempts_max: u32) -> bool {
        self.together == Windows(1) && self.count() >= attempts_max && self.others()
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
            let mut attempt = known.unwrap_or(Attempt {
                end: piece.end,
                lost_with: Vec::new(),
                together,
            });
            attempt.end = piece.end;
            attempt.lost_again(key, together);
            attempts.insert(piece.start, attempt);
        }
    }
}

/// One loss with `key` was none: whoever was given up is there.
pub(crate) fn absolve(attempts: &mut Attempts, spans: &[Span], key: ReplicaKey) {
    for span in spans {
        for (piece, known) in pieces(attempts, *span) {
            let Some(mut attempt) = known else { continue };
            cut(attempts, piece.start);
            cut(attempts, piece.end);
            let last = attempt.lost_with.iter().rposition(|who| *who == key);
            last.map(|last| attempt.lost_with.remove(last));
            attempt.end = piece.end;
            match attempt.count() {
                0 => attempts.remove(&piece.start),
                _ => attempts.insert(piece.start, attempt),
            };
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
        pieces.push((Span { start, end }, Some(attempt.clone())));
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
        let back = attempt.clone();
        attempt.end = at;
        attempts.insert(at, back);
    }
}
