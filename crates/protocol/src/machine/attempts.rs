//! Which free positions are granted, and which are taken out: what was lost twice is tried again
//! alone, by halves, until only the poison is left.
//!
//! One loss says little: processes die of many things, and a lease of half a phase keeps its holder
//! waiting for the others. So what was lost once is granted like anything else.

use super::Machine;
use crate::attempts::{Attempt, pieces};
use crate::{Event, Ownership, Refusal, Span};
use hansa_base::{MonoMs, ReplicaKey, Windows};

/// What was lost so often is tried only when nothing else is free.
const LOST_OFTEN: u32 = 2;

impl Machine {
    /// Free positions for a lease that holds so many already, lowest first, `windows` at the most.
    /// What was lost often is never together with anything else.
    pub(super) fn choose(&self, held: Windows, windows: Windows) -> Vec<Span> {
        let (mut chosen, mut left) = (Vec::new(), windows.0);
        let mut last_resort: Option<(Span, Attempt)> = None;
        for span in self.state.ledger.free_spans() {
            for (piece, attempt) in pieces(&self.state.attempts, span) {
                if left == 0 {
                    return chosen;
                }
                match attempt.filter(|attempt| attempt.count() >= LOST_OFTEN) {
                    None => {
                        let end = piece.end.0.min(piece.start.0 + left);
                        left -= end - piece.start.0;
                        chosen.push(Span::new(piece.start.0, end));
                    }
                    Some(attempt) => {
                        // The worst comes last of all: it must not keep the good from being tried.
                        let best = last_resort.as_ref().map(|(_, best)| best.count());
                        if best.is_none_or(|best| attempt.count() < best) {
                            last_resort = Some((piece, attempt));
                        }
                    }
                }
            }
        }
        match last_resort {
            Some((piece, attempt)) if held == Windows(0) && chosen.is_empty() => {
                head(piece, attempt.retry().min(windows))
            }
            _ => chosen,
        }
    }

    /// True if a lease holds what is tried alone: nothing may come beside it.
    pub(super) fn holds_suspects(&self, key: ReplicaKey) -> bool {
        let spans = self.state.lease_of(key).map(|lease| &lease.spans);
        let mut pieces = spans
            .into_iter()
            .flatten()
            .flat_map(|span| pieces(&self.state.attempts, *span));
        pieces.any(|(_, attempt)| attempt.is_some_and(|a| a.count() >= LOST_OFTEN))
    }

    /// Takes windows out that were lost alone, often, and by more than one replica.
    pub(super) fn quarantine_poison(&mut self) -> Result<(), Refusal> {
        let poison = |(start, attempt): (&hansa_base::Position, &Attempt)| {
            let free = self.state.ledger.state_at(*start) == Some(Ownership::Free);
            let out = free && attempt.is_poison(self.spec.attempts_max);
            out.then_some(Span {
                start: *start,
                end: attempt.end,
            })
        };
        let spans: Vec<Span> = self.state.attempts.iter().filter_map(poison).collect();
        if spans.is_empty() {
            return Ok(());
        }
        self.emit(Event::Quarantined { spans })
    }

    /// An epoch may end by a quarantine, with no round to close.
    pub(super) fn end_epoch_if_done(&mut self, now: MonoMs) -> Result<(), Refusal> {
        let out = self.state.ledger.counts().quarantined;
        let nothing_left = out == self.spec.digest.windows;
        if self.state.ending.is_some() || !self.epoch_is_done() || nothing_left {
            return Ok(());
        }
        self.end_epoch(now)
    }

    pub(super) fn let_out(&mut self, windows: Vec<u64>) -> Result<(), Refusal> {
        if let Some(reason) = self.state.ending {
            return Err(Refusal::RunOver(reason));
        }
        let mut windows = windows;
        windows.sort_unstable();
        windows.dedup();
        if windows.is_empty() {
            windows = self.state.quarantine.keys().copied().collect();
        }
        if self.state.quarantine.is_empty() && windows.is_empty() {
            let what = "no window is quarantined".to_owned();
            return Err(Refusal::Pointless { what });
        }
        let inside = |window: &&u64| !self.state.quarantine.contains_key(*window);
        if let Some(window) = windows.iter().find(inside) {
            return Err(Refusal::NotQuarantined(*window));
        }
        self.emit(Event::LetOut { windows })
    }
}

fn head(span: Span, windows: Windows) -> Vec<Span> {
    Span::split(&[span], windows).0
}
