//! The ledger of one epoch: who has which positions.
//!
//! ```text
//! Free → Leased(lease) → Staged(contribution) → Committed(generation, replica)
//!   ▲         │                  Quarantined
//!   └─────────┘ expiry, release
//! ```
//!
//! An interval map: neighbours in the same state are one entry. Every change names the state that it
//! expects, so that a wrong command is caught here and not in the weights.

use crate::Span;
use hansa_base::{ContributionNo, Generation, LeaseId, Position, ReplicaKey, Windows};
use std::collections::BTreeMap;

/// The state of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Nobody has it.
    Free,
    /// It is being trained under this lease.
    Leased(LeaseId),
    /// It is part of a contribution that waits for its round's merge.
    Staged(ContributionNo),
    /// This generation's weights contain it.
    Committed(Generation, ReplicaKey),
    /// It was taken out, after repeated failures.
    Quarantined,
}

/// How many windows are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Nobody has them.
    pub free: Windows,
    /// Under a lease.
    pub leased: Windows,
    /// In a contribution that waits for its merge.
    pub staged: Windows,
    /// In the published weights.
    pub committed: Windows,
    /// Taken out.
    pub quarantined: Windows,
}

impl Counts {
    fn of(&mut self, state: Ownership) -> &mut Windows {
        match state {
            Ownership::Free => &mut self.free,
            Ownership::Leased(_) => &mut self.leased,
            Ownership::Staged(_) => &mut self.staged,
            Ownership::Committed(..) => &mut self.committed,
            Ownership::Quarantined => &mut self.quarantined,
        }
    }

    /// All windows.
    #[must_use]
    pub fn total(&self) -> Windows {
        self.free + self.leased + self.staged + self.committed + self.quarantined
    }
}

/// Some position of a span is not in the state that a change expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("positions {span} were to go from {from:?} to {to:?}, but {at} is {found:?}")]
pub struct WrongState {
    /// The span that was to change.
    pub span: Span,
    /// The expected state.
    pub from: Ownership,
    /// The state that it was to have.
    pub to: Ownership,
    /// The first position that differs.
    pub at: Position,
    /// Its state.
    pub found: Ownership,
}

/// The interval map over all positions of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    windows: u64,
    /// Start → (end, state); covers `0..windows` without gaps.
    intervals: BTreeMap<u64, (u64, Ownership)>,
    /// Start → end of what is free, so that a grant does not walk over what is committed.
    free: BTreeMap<u64, u64>,
    counts: Counts,
}

impl Ledger {
    /// A new epoch: everything is free.
    #[must_use]
    pub fn new(windows: Windows) -> Self {
        let mut ledger = Self {
            windows: windows.0,
            intervals: BTreeMap::new(),
            free: BTreeMap::new(),
            counts: Counts::default(),
        };
        if windows.0 > 0 {
            ledger.put(Span::new(0, windows.0), Ownership::Free);
        }
        ledger
    }

    /// A ledger with these intervals; `None` unless they cover `0..windows` without gap or overlap.
    #[must_use]
    pub fn from_intervals(
        windows: Windows,
        intervals: impl IntoIterator<Item = (Span, Ownership)>,
    ) -> Option<Self> {
        let mut ledger = Self::new(Windows(0));
        ledger.windows = windows.0;
        let mut at = 0;
        for (span, state) in intervals {
            if span.start.0 != at || span.is_empty() {
                return None;
            }
            at = span.end.0;
            ledger.put(span, state);
        }
        (at == windows.0).then_some(ledger)
    }

    /// All intervals in order of position.
    pub fn intervals(&self) -> impl Iterator<Item = (Span, Ownership)> + '_ {
        self.intervals
            .iter()
            .map(|(&start, &(end, state))| (Span::new(start, end), state))
    }

    /// The state of a position; `None` beyond the last.
    #[must_use]
    pub fn state_at(&self, position: Position) -> Option<Ownership> {
        let (_, &(end, state)) = self.intervals.range(..=position.0).next_back()?;
        (position.0 < end).then_some(state)
    }

    /// How many windows are in which state.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// All that is free, lowest first.
    pub fn free_spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.free.iter().map(|(&start, &end)| Span::new(start, end))
    }

    /// The first free positions, `windows` at the most, lowest first.
    #[must_use]
    pub fn first_free(&self, windows: Windows) -> Vec<Span> {
        let (mut spans, mut left) = (Vec::new(), windows.0);
        for (&start, &end) in &self.free {
            if left == 0 {
                break;
            }
            let end = end.min(start + left);
            left -= end - start;
            spans.push(Span::new(start, end));
        }
        spans
    }

    /// Windows at the front of these spans, taken in order, that are free without a gap.
    #[must_use]
    pub fn free_prefix(&self, spans: &[Span]) -> Windows {
        let mut free = 0;
        for span in spans {
            let within = self.free.range(..=span.start.0).next_back();
            let end = within.map_or(0, |(_, end)| *end).min(span.end.0);
            free += end.saturating_sub(span.start.0);
            if end < span.end.0 {
                break;
            }
        }
        Windows(free)
    }

    /// Moves a span from one state to another.
    ///
    /// # Errors
    /// If any of its positions is not in state `from`; then nothing has changed.
    pub fn change(
        &mut self,
        span: Span,
        from: Ownership,
        to: Ownership,
    ) -> Result<(), Box<WrongState>> {
        self.expect(span, from, to)?;
        let mut inside = span.start.0;
        while inside < span.end.0 {
            inside = self.cut_out(inside, span);
        }
        self.put(span, to);
        Ok(())
    }

    fn expect(&self, span: Span, from: Ownership, to: Ownership) -> Result<(), Box<WrongState>> {
        let mut at = span.start.0;
        while at < span.end.0 || span.is_empty() {
            let found = self.interval_at(at);
            match found {
                Some((end, state)) if state == from && !span.is_empty() => at = end,
                _ => {
                    let found = found.map_or(Ownership::Quarantined, |(_, state)| state);
                    let at = Position(at);
                    return Err(Box::new(WrongState {
                        span,
                        from,
                        to,
                        at,
                        found,
                    }));
                }
            }
        }
        Ok(())
    }

    fn interval_at(&self, at: u64) -> Option<(u64, Ownership)> {
        let (_, &(end, state)) = self.intervals.range(..=at).next_back()?;
        (at < end).then_some((end, state))
    }

    /// Takes the part of the interval at `at` that lies in `span` out of the map; returns its end.
    fn cut_out(&mut self, at: u64, span: Span) -> u64 {
        let Some((&start, &(end, state))) = self.intervals.range(..=at).next_back() else {
            return span.end.0;
        };
        self.take(start, end, state);
        if start < span.start.0 {
            self.insert(start, span.start.0, state);
        }
        if end > span.end.0 {
            self.insert(span.end.0, end, state);
        }
        end
    }

    /// Fills a hole of the map, joining equal neighbours.
    fn put(&mut self, span: Span, state: Ownership) {
        let (mut start, mut end) = (span.start.0, span.end.0);
        if let Some((&before, &(before_end, same))) = self.intervals.range(..start).next_back()
            && before_end == start
            && same == state
        {
            self.take(before, before_end, same);
            start = before;
        }
        if let Some(&(after_end, same)) = self.intervals.get(&end)
            && same == state
        {
            self.take(end, after_end, same);
            end = after_end;
        }
        self.insert(start, end, state);
    }

    fn insert(&mut self, start: u64, end: u64, state: Ownership) {
        self.intervals.insert(start, (end, state));
        *self.counts.of(state) += Windows(end - start);
        if state == Ownership::Free {
            self.free.insert(start, end);
        }
    }

    fn take(&mut self, start: u64, end: u64, state: Ownership) {
        self.intervals.remove(&start);
        let count = self.counts.of(state);
        *count = *count - Windows(end - start);
        if state == Ownership::Free {
            self.free.remove(&start);
        }
    }
}
