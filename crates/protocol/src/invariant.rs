//! The invariants of DESIGN that a state alone can show, by number.

use crate::{Ownership, Presence, RunSpec, Span, Stage, State};
use hansa_base::{ContributionNo, LeaseId, ReplicaKey, Windows};
use std::collections::BTreeMap;

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invariant {number} is broken: {what}")]
pub struct Violation {
    /// Its number.
    pub number: u8,
    /// What was found.
    pub what: String,
}

/// Checks everything that a state shows by itself. What needs the event too (fencing, order,
/// generations advancing by one) is checked by [`State::apply`].
///
/// # Errors
/// The first violation.
pub fn check(spec: &RunSpec, state: &State) -> Result<(), Violation> {
    every_position_has_one_state(spec, state)?;
    leases_match_the_ledger(state)?;
    staged_contributions_match_the_ledger(state)?;
    commits_add_up(state)?;
    committed_generations_exist(state)?;
    only_the_living_hold_leases(state)?;
    ensure(10, state.is_indexed(), || {
        "the index is not that of the state".to_owned()
    })
}

fn ensure(number: u8, holds: bool, what: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds {
        Ok(())
    } else {
        Err(Violation {
            number,
            what: what(),
        })
    }
}

fn every_position_has_one_state(spec: &RunSpec, state: &State) -> Result<(), Violation> {
    let mut at = 0;
    let mut free = Windows(0);
    for (span, ownership) in state.ledger.intervals() {
        ensure(1, span.start.0 == at && !span.is_empty(), || {
            format!("a gap before {span}")
        })?;
        at = span.end.0;
        if ownership == Ownership::Free {
            free += Windows(span.len());
        }
    }
    let all = spec.digest.windows;
    ensure(1, at == all.0, || {
        format!("{at} of {all} windows are covered")
    })?;
    let counts = state.ledger.counts();
    ensure(1, counts.total() == all, || {
        format!("{counts:?} do not add up to {all}")
    })?;
    let quarantined = Windows(state.quarantine.len() as u64);
    ensure(1, counts.quarantined == quarantined, || {
        format!(
            "{} windows are out, {quarantined} are listed so",
            counts.quarantined
        )
    })?;
    let listed = Span::total(&state.ledger.first_free(all));
    ensure(1, listed == free, || {
        format!("{free} windows are free, {listed} are listed so")
    })
}

fn leases_match_the_ledger(state: &State) -> Result<(), Violation> {
    let mut by_lease: BTreeMap<LeaseId, Vec<Span>> = BTreeMap::new();
    for (span, ownership) in state.ledger.intervals() {
        if let Ownership::Leased(lease) = ownership {
            by_lease.entry(lease).or_default().push(span);
        }
    }
    for (id, lease) in &state.leases {
        let there = by_lease.remove(id).unwrap_or_default();
        let held = sorted_and_joined(&lease.spans);
        ensure(2, there == held, || {
            format!("lease {id} holds {held:?}, the ledger {there:?}")
        })?;
        let (front, mark, end) = (lease.front, lease.mark, lease.end());
        ensure(7, front <= mark && mark <= end, || {
            format!("lease {id}: its mark {mark} is not in {front}..{end}")
        })?;
    }
    ensure(2, by_lease.is_empty(), || {
        format!("positions under no live lease: {by_lease:?}")
    })
}

fn staged_contributions_match_the_ledger(state: &State) -> Result<(), Violation> {
    let mut staged: BTreeMap<ContributionNo, Windows> = BTreeMap::new();
    for (span, ownership) in state.ledger.intervals() {
        if let Ownership::Staged(no) = ownership {
            *staged.entry(no).or_default() += Windows(span.len());
        }
    }
    for (no, contribution) in &state.contributions {
        match contribution.stage {
            Stage::Staged => {
                let (there, own) = (staged.remove(no), contribution.parts.windows());
                ensure(6, there == Some(own), || {
                    format!("contribution {no}: {there:?}, not {own}")
                })?;
            }
            Stage::Announced => {
                let lease = state.lease_of(contribution.key);
                let head = lease.map(|l| Span::split(&l.spans, contribution.parts.windows()).0);
                let at_front = head.as_ref() == Some(&contribution.parts.spans);
                ensure(6, at_front, || {
                    format!("contribution {no} is not at its lease's front")
                })?;
                let reserved = lease.map_or(Windows(0), crate::Lease::reserved);
                ensure(7, contribution.parts.windows() <= reserved, || {
                    format!("contribution {no} goes beyond its lease's mark")
                })?;
            }
        }
    }
    ensure(6, staged.is_empty(), || {
        format!("staged for no contribution: {staged:?}")
    })
}

fn commits_add_up(state: &State) -> Result<(), Violation> {
    let by_replica: Windows = state
        .replicas
        .iter()
        .map(|replica| replica.tally.committed)
        .sum();
    let merged = state.rounds.iter().flat_map(|round| &round.merged);
    let by_round: Windows = merged.map(|merged| merged.2).sum();
    let total = state.committed();
    ensure(4, by_replica == total && by_round == total, || {
        format!("{total} windows are committed, by replica {by_replica}, by round {by_round}")
    })
}

fn committed_generations_exist(state: &State) -> Result<(), Violation> {
    let now = state.current.generation;
    ensure(9, state.rounds.len() as u64 == now.0, || {
        format!("generation {now} after {} rounds", state.rounds.len())
    })?;
    for (span, ownership) in state.ledger.intervals() {
        if let Ownership::Committed(generation, key) = ownership {
            let round = generation
                .0
                .checked_sub(1)
                .and_then(|g| state.rounds.get(g as usize));
            let named = round.is_some_and(|round| round.merged.iter().any(|m| m.0 == key));
            ensure(5, named, || {
                format!("{span}: generation {generation} has nothing of {key}")
            })?;
        }
    }
    Ok(())
}

fn only_the_living_hold_leases(state: &State) -> Result<(), Violation> {
    for (index, replica) in state.replicas.iter().enumerate() {
        let Some(id) = replica.lease else { continue };
        let lease = state.leases.get(&id);
        let own = lease.is_some_and(|lease| {
            lease.key == ReplicaKey(index as u32) && lease.incarnation == replica.incarnation
        });
        let alive = replica.presence == Presence::Live;
        ensure(8, own && alive, || {
            format!("{} holds lease {id} unrightfully", replica.id)
        })?;
    }
    let holders = state
        .replicas
        .iter()
        .filter(|replica| replica.lease.is_some())
        .count();
    ensure(8, holders == state.leases.len(), || {
        format!("{} leases, {holders} holders", state.leases.len())
    })
}

fn sorted_and_joined(spans: &[Span]) -> Vec<Span> {
    let mut sorted = spans.to_vec();
    sorted.sort_unstable();
    let mut joined = Vec::new();
    sorted
        .into_iter()
        .for_each(|span| Span::push_joined(&mut joined, span));
    joined
}
