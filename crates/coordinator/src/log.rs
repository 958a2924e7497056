//! What people read of what happens: one line for each event that matters. Never here: how long lines
//! are kept, or where they go.

use hansa_base::ReplicaKey;
use hansa_protocol::{Event, Machine, Pause, Steal};

/// One line for each event that people care about.
pub(crate) fn log(machine: &Machine, event: &Event) {
    let name = |key| name(machine, key);
    match event {
        Event::Registered {
            id,
            incarnation,
            inherited,
            ..
        } => tracing::info!(replica = %id, %incarnation, inherits = inherited.is_some(), "joined"),
        Event::Left { key, reason, .. } => tracing::info!(replica = name(key), %reason, "left"),
        Event::Freed { lease, cause, .. } => {
            tracing::info!(%lease, %cause, "positions are free again");
        }
        Event::Stolen(steal) => {
            let Steal { from, windows, .. } = steal;
            tracing::info!(replica = name(&steal.key), %from, %windows, "took the tail of a lease");
        }
        Event::Revived { key, windows, .. } => {
            tracing::info!(replica = name(key), %windows, "was heard of: its lease is revived");
        }
        Event::Excused { key, because } => {
            tracing::info!(replica = name(key), %because, "is not waited for in this round");
        }
        Event::Quarantined { spans } => {
            let positions: Vec<String> = spans.iter().map(ToString::to_string).collect();
            let positions = positions.join(", ");
            tracing::error!(%positions, "quarantined: lost too often with who trained them");
        }
        Event::LetOut { windows } => tracing::info!(?windows, "let out of quarantine"),
        Event::RefusedAgain { key } => {
            tracing::warn!(replica = name(key), "trained again what had been refused");
        }
        Event::Refused { no, because } => tracing::info!(%no, %because, "contribution refused"),
        Event::Closed(record) => {
            tracing::info!(round = %record.base, reason = %record.reason, "round closed");
        }
        Event::Published {
            generation,
            merge_ms,
            ..
        } => tracing::info!(%generation, merge_ms, "generation published"),
        Event::Evaluated {
            generation,
            loss_sum_nats,
            tokens,
            key,
        } => {
            let loss = loss_sum_nats / tokens.0.max(1) as f64;
            tracing::info!(%generation, loss, by = name(key), "evaluated");
        }
        Event::EpochStarted { epoch } => tracing::info!(%epoch, "a new epoch"),
        Event::Restored { timeline } => tracing::warn!(%timeline, "restored from a backup"),
        Event::Ending(reason) => tracing::info!(%reason, "the run is ending"),
        Event::Ended => tracing::info!("the run is over"),
        order => log_order(machine, order),
    }
}

/// What operators ordered, and what only they can mend.
fn log_order(machine: &Machine, event: &Event) {
    let name = |key| name(machine, key);
    match event {
        Event::Paused(pause @ (Pause::Norms(_) | Pause::Refusals(_))) => {
            tracing::error!(reason = %pause, "the run is paused");
        }
        Event::Paused(pause) => tracing::info!(reason = %pause, "the run is paused"),
        Event::Resumed { why } => tracing::info!(%why, "the run goes on"),
        Event::Drained { site, why } => tracing::info!(%site, %why, "the site is drained"),
        Event::DrainEnds { site, at } => {
            tracing::info!(%site, until_s = at.0, "its drain ends then")
        }
        Event::Undrained { site, why } => tracing::info!(%site, %why, "the site may come back"),
        Event::Evicted { key, why } => tracing::info!(replica = name(key), %why, "evicted"),
        Event::Readmitted { key, why } => tracing::info!(replica = name(key), %why, "let in again"),
        Event::Stopping { why } => tracing::info!(%why, "the run ends after the open round"),
        _ => {}
    }
}

fn name(machine: &Machine, key: &ReplicaKey) -> String {
    let replica = machine.state().replica(*key);
    replica
        .map(|replica| replica.id.to_string())
        .unwrap_or_default()
}
