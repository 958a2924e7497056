//! What the queue machine is told of the run.

use std::collections::BTreeMap;

use hansa_protocol::{Machine, Presence};
use hansa_queue::{Line, Planning, RunView};

/// How the run stands.
pub(crate) fn run_view(machine: &Machine, planning: Planning) -> RunView {
    let state = machine.state();
    let orders = &state.orders;
    let drained = orders.drained.iter();
    let drained: BTreeMap<_, _> = drained
        .map(|(site, why)| (site.clone(), Line::new(why)))
        .collect();
    let alive = state.replicas.iter();
    let alive = alive.filter(|replica| replica.presence == Presence::Live);
    RunView {
        run_id: machine.spec().run.to_string(),
        ended: state.ended,
        paused: orders
            .paused
            .as_ref()
            .map(|pause| Line::new(&pause.to_string())),
        drained,
        windows_left: windows_left(machine),
        planning,
        observed: alive.map(|replica| replica.id.clone()).collect(),
    }
}

/// Zero only once the end condition is reached: after each other epoch comes the next.
fn windows_left(machine: &Machine) -> u64 {
    let state = machine.state();
    if state.ended || state.ending.is_some() {
        return 0;
    }
    let counts = state.ledger.counts();
    (counts.free.0 + counts.leased.0 + counts.staged.0).max(1)
}
