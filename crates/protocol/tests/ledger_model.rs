//! The ledger against the simplest thing that could do the same: an array.
#![allow(clippy::unwrap_used)]

use hansa_base::{ContributionNo, Generation, LeaseId, Position, ReplicaKey, Windows};
use hansa_protocol::{Ledger, Ownership, Span};
use proptest::prelude::*;

const WINDOWS: u64 = 40;

fn ownership() -> impl Strategy<Value = Ownership> {
    prop_oneof![
        3 => Just(Ownership::Free),
        3 => (1..4u64).prop_map(|n| Ownership::Leased(LeaseId(n))),
        2 => (1..3u64).prop_map(|n| Ownership::Staged(ContributionNo(n))),
        1 => (1..3u64, 0..2u32)
            .prop_map(|(g, k)| Ownership::Committed(Generation(g), ReplicaKey(k))),
        1 => Just(Ownership::Quarantined),
    ]
}

#[derive(Clone, Debug)]
struct Change {
    start: u64,
    length: u64,
    from: Option<Ownership>,
    to: Ownership,
}

fn change() -> impl Strategy<Value = Change> {
    let from = proptest::option::weighted(0.3, ownership());
    (0..WINDOWS, 0..12u64, from, ownership()).prop_map(|(start, length, from, to)| Change {
        start,
        length,
        from,
        to,
    })
}

fn check(ledger: &Ledger, model: &[Ownership]) {
    for (position, state) in model.iter().enumerate() {
        assert_eq!(ledger.state_at(Position(position as u64)), Some(*state));
    }
    assert_eq!(ledger.state_at(Position(WINDOWS)), None);
    let intervals: Vec<_> = ledger.intervals().collect();
    assert!(
        intervals.windows(2).all(|two| two[0].1 != two[1].1),
        "neighbours are joined"
    );
    let rebuilt = Ledger::from_intervals(Windows(WINDOWS), intervals);
    assert_eq!(rebuilt.as_ref(), Some(ledger));
    let counts = ledger.counts();
    let number = |like: fn(&Ownership) -> bool| {
        Windows(model.iter().filter(|state| like(state)).count() as u64)
    };
    assert_eq!(counts.free, number(|s| matches!(s, Ownership::Free)));
    assert_eq!(counts.leased, number(|s| matches!(s, Ownership::Leased(_))));
    assert_eq!(counts.staged, number(|s| matches!(s, Ownership::Staged(_))));
    assert_eq!(
        counts.committed,
        number(|s| matches!(s, Ownership::Committed(..)))
    );
    assert_eq!(
        counts.quarantined,
        number(|s| matches!(s, Ownership::Quarantined))
    );
    for wanted in [0, 1, 7, WINDOWS] {
        let found = ledger.first_free(Windows(wanted));
        let positions: Vec<u64> = found.iter().flat_map(|s| s.start.0..s.end.0).collect();
        let free = (0..WINDOWS).filter(|p| model[*p as usize] == Ownership::Free);
        assert_eq!(positions, free.take(wanted as usize).collect::<Vec<_>>());
    }
}

proptest! {
    #[test]
    fn the_ledger_does_what_an_array_does(changes in prop::collection::vec(change(), 1..60)) {
        let mut ledger = Ledger::new(Windows(WINDOWS));
        let mut model = vec![Ownership::Free; WINDOWS as usize];
        for Change { start, length, from, to } in changes {
            let span = Span::new(start, start + length);
            // Mostly expect what is there, so that most changes fit.
            let from = from.unwrap_or(model[start as usize]);
            let end = span.end.0 as usize;
            let fits = length > 0
                && end <= model.len()
                && model[start as usize..end].iter().all(|state| *state == from);
            prop_assert_eq!(ledger.change(span, from, to).is_ok(), fits);
            if fits {
                model[start as usize..end].fill(to);
            }
            check(&ledger, &model);
        }
    }
}

#[test]
fn intervals_with_gaps_or_overlaps_are_no_ledger() {
    let free = |start, end| (Span::new(start, end), Ownership::Free);
    for bad in [
        vec![free(0, 3), free(4, 8)],
        vec![free(0, 5), free(4, 8)],
        vec![free(0, 7)],
        vec![free(0, 9)],
        vec![free(0, 4), free(4, 4), free(4, 8)],
        vec![],
    ] {
        assert_eq!(Ledger::from_intervals(Windows(8), bad), None);
    }
}
