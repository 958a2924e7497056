//! What the run's own state says to a planner.

use hansa_base::{Incarnation, ReplicaId, ReplicaKey, Windows};
use hansa_protocol::{Activity, End, Machine, PhaseTimes, Presence};

/// Rounds that are looked at first.
pub(super) const ROUNDS: usize = 24;
/// Rounds that are looked at later: the newest, and some whose members have not yet said how they spent
/// them. There may be thousands of members, and the thread that is asked has other things to do.
pub(super) const ROUNDS_LATER: usize = 3;

/// The run as it stands.
#[derive(Clone, Debug)]
pub(crate) struct RunFacts {
    /// Windows until its end; `None` for one that ends after so many rounds, however large.
    pub left: Option<Windows>,
    /// It is over, or ending: nothing more is to be planned.
    pub over: bool,
    /// It is paused.
    pub paused: bool,
    /// The newest completed rounds, oldest first.
    pub rounds: Vec<RoundFacts>,
    /// All names, by key.
    pub replicas: Vec<ReplicaFacts>,
}

/// A completed round.
#[derive(Clone, Debug)]
pub(crate) struct RoundFacts {
    /// Its base generation.
    pub base: u64,
    /// How long its merge took.
    pub merge_ms: u64,
    /// How its members spent it, as far as they have said so.
    pub times: Vec<(ReplicaKey, PhaseTimes)>,
}

/// A replica.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaFacts {
    /// Its name.
    pub id: ReplicaId,
    /// Its ranks.
    pub ranks: u32,
    /// Its incarnation, while that trains.
    pub training: Option<Incarnation>,
}

/// Looks at the run and its newest rounds.
pub(crate) fn run_facts(machine: &Machine, rounds: usize) -> RunFacts {
    let state = machine.state();
    let skip = state.rounds.len().saturating_sub(rounds);
    let rounds = state.rounds[skip..].iter().map(|round| RoundFacts {
        base: round.base.0,
        merge_ms: round.merge_ms,
        times: round
            .times
            .iter()
            .map(|(key, times)| (*key, *times))
            .collect(),
    });
    let replicas = (0..).map(ReplicaKey).zip(&state.replicas);
    let replicas = replicas.map(|(key, replica)| {
        let vitals = machine.vitals().get(&key);
        let trains = vitals.is_some_and(|v| v.progress.activity == Activity::Training);
        ReplicaFacts {
            id: replica.id.clone(),
            ranks: replica.ranks,
            training: (trains && replica.presence == Presence::Live).then_some(replica.incarnation),
        }
    });
    RunFacts {
        left: windows_left(machine),
        over: state.ended || state.ending.is_some() || state.orders.stopping.is_some(),
        paused: state.orders.paused.is_some(),
        rounds: rounds.collect(),
        replicas: replicas.collect(),
    }
}

/// Windows that are not in any published generation and shall be, over all epochs.
fn windows_left(machine: &Machine) -> Option<Windows> {
    let (state, spec) = (machine.state(), machine.spec());
    let counts = state.ledger.counts();
    match spec.end {
        End::Rounds(_) => None,
        End::Tokens(tokens) => {
            let missing = tokens.0.saturating_sub(state.current.tokens.0);
            Some(Windows(
                missing.div_ceil(u64::from(spec.digest.seq_len.max(1))),
            ))
        }
        End::Epochs(epochs) => {
            let here = counts.free.0 + counts.leased.0 + counts.staged.0;
            let each = spec
                .digest
                .windows
                .0
                .saturating_sub(state.quarantine.len() as u64);
            let later = u64::from(epochs.saturating_sub(state.epoch.0 + 1));
            Some(Windows(here + later.saturating_mul(each)))
        }
    }
}
