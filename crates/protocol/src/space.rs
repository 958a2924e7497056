//! Positions and the windows behind them.
//!
//! A position is a place in the permuted order of windows: position `p` is window `p mod K` of block
//! `π(p div K)`. Leases are ranges of positions, so reading one is a few long contiguous reads.

use crate::Permutation;
use hansa_base::{Epoch, Position, Windows};

/// A half-open range of positions, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The first position.
    pub start: Position,
    /// The position after the last.
    pub end: Position,
}

impl Span {
    /// The positions from `start` to before `end`.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Self {
        Self {
            start: Position(start),
            end: Position(end),
        }
    }

    /// The number of positions.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.end.0 - self.start.0
    }

    /// True for a range without positions, which no valid message holds.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.end.0 <= self.start.0
    }

    /// The number of positions in several spans.
    #[must_use]
    pub fn total(spans: &[Self]) -> Windows {
        Windows(spans.iter().map(Self::len).sum())
    }

    /// The first `windows` positions of an ordered list of spans (all of it, if it is shorter), and
    /// the rest.
    #[must_use]
    pub fn split(spans: &[Self], windows: Windows) -> (Vec<Self>, Vec<Self>) {
        let (mut head, mut tail, mut left) = (Vec::new(), Vec::new(), windows.0);
        for span in spans {
            let cut = span.start.0 + left.min(span.len());
            left -= cut - span.start.0;
            let (front, back) = (Self::new(span.start.0, cut), Self::new(cut, span.end.0));
            head.extend((!front.is_empty()).then_some(front));
            tail.extend((!back.is_empty()).then_some(back));
        }
        (head, tail)
    }

    /// Appends a span, joining it to the last one where they touch.
    pub fn push_joined(spans: &mut Vec<Self>, span: Self) {
        match spans.last_mut() {
            Some(last) if last.end == span.start => last.end = span.end,
            _ => spans.push(span),
        }
    }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// Consecutive windows on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowRun {
    /// The first window.
    pub first: u64,
    /// How many follow one another.
    pub count: u64,
}

/// The order of one epoch: `N` windows in `M = ⌈N/K⌉` blocks of `K`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSpace {
    windows: u64,
    block: u64,
    permutation: Permutation,
}

impl BlockSpace {
    /// The space of `windows` windows in blocks of `block` (at least 1) for one epoch. The caller
    /// has checked that there are fewer than 2³² blocks (see [`crate::RunSpec::validate`]).
    #[must_use]
    pub fn new(windows: Windows, block: Windows, seed: u64, epoch: Epoch) -> Self {
        let blocks = windows.0.div_ceil(block.0) as u32;
        let short_last = !windows.0.is_multiple_of(block.0);
        let permutation = Permutation::new(blocks, short_last, seed, epoch);
        Self {
            windows: windows.0,
            block: block.0,
            permutation,
        }
    }

    /// The permutation's check value, part of the run's digest.
    #[must_use]
    pub fn check_value(&self) -> u64 {
        self.permutation.check_value()
    }

    /// The window at a position; `None` beyond the last.
    #[must_use]
    pub fn window_at(&self, position: Position) -> Option<u64> {
        let within = position.0 < self.windows;
        let place = || self.permutation.block_at(position.0 / self.block) * self.block;
        within.then(|| place() + position.0 % self.block)
    }

    /// The position of a window; `None` if there is no such window.
    #[must_use]
    pub fn position_of(&self, window: u64) -> Option<Position> {
        let blocks = self.windows.div_ceil(self.block);
        let block = (window < self.windows).then_some(window / self.block)?;
        let place = (0..blocks).find(|place| self.permutation.block_at(*place) == block)?;
        Some(Position(place * self.block + window % self.block))
    }

    /// The windows of a span as runs of consecutive windows on disk, in order of training.
    #[must_use]
    pub fn runs(&self, span: Span) -> Vec<WindowRun> {
        let mut runs: Vec<WindowRun> = Vec::new();
        let mut at = span.start.0;
        while at < span.end.0.min(self.windows) {
            let block_end = (at / self.block + 1) * self.block;
            let count = block_end.min(span.end.0).min(self.windows) - at;
            let first = self.permutation.block_at(at / self.block) * self.block + at % self.block;
            match runs.last_mut() {
                Some(last) if last.first + last.count == first => last.count += count,
                _ => runs.push(WindowRun { first, count }),
            }
            at += count;
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_cover_every_window_once() {
        for (windows, block) in [(1, 1), (10, 3), (64, 8), (65, 8), (7, 100)] {
            let space = BlockSpace::new(Windows(windows), Windows(block), 7, Epoch(0));
            let mut seen: Vec<u64> = (0..windows)
                .filter_map(|p| space.window_at(Position(p)))
                .collect();
            let runs = space.runs(Span::new(0, windows));
            let by_runs: Vec<u64> = runs
                .iter()
                .flat_map(|r| r.first..r.first + r.count)
                .collect();
            assert_eq!(seen, by_runs);
            for (position, window) in (0..).zip(&seen) {
                assert_eq!(space.position_of(*window), Some(Position(position)));
            }
            assert_eq!(space.position_of(windows), None);
            seen.sort_unstable();
            assert_eq!(seen, (0..windows).collect::<Vec<_>>());
            assert_eq!(space.window_at(Position(windows)), None);
        }
    }

    #[test]
    fn splitting_keeps_order_and_loses_nothing() {
        let spans = [Span::new(4, 8), Span::new(20, 21), Span::new(1, 3)];
        let (head, tail) = Span::split(&spans, Windows(5));
        assert_eq!(head, [Span::new(4, 8), Span::new(20, 21)]);
        assert_eq!(tail, [Span::new(1, 3)]);
        let (head, tail) = Span::split(&spans, Windows(2));
        assert_eq!(head, [Span::new(4, 6)]);
        assert_eq!(tail, [Span::new(6, 8), Span::new(20, 21), Span::new(1, 3)]);
        assert_eq!(Span::split(&spans, Windows(99)).0, spans);
    }
}
