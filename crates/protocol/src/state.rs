//! Everything about a run that survives a restart.
//!
//! State changes only through [`State::apply`](crate::State::apply). Deadlines and live progress are
//! not here: only the coordinator's own monotonic clock decides those, and they start afresh with
//! it.

use crate::{
    Attempts, CloseReason, Contribution, EndReason, GenerationInfo, Index, Lease, Ledger,
    LeftReason, Lineage, Lost, Norms, Orders, Pace, PhaseTimes, Plan, RefusedBecause, Round,
    RoundPhase, RunSpec, Setback, Verdict,
};
use hansa_base::{
    ContributionNo, Epoch, Generation, Hash, Incarnation, LeaseId, ReplicaId, ReplicaKey, Steps,
    Timeline, Tokens, Windows,
};
use std::collections::BTreeMap;

/// The durable state of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Which history of the run this is.
    pub lineage: Lineage,
    /// The running pass over the corpus.
    pub epoch: Epoch,
    /// Who has which positions of it.
    pub ledger: Ledger,
    /// Positions of the running epoch that were lost with who trained them.
    pub attempts: Attempts,
    /// Windows that nobody gets any more, and the epoch in which each was taken out.
    pub quarantine: BTreeMap<u64, Epoch>,
    /// Windows committed in earlier epochs.
    pub committed_before: Windows,
    /// All names, by key.
    pub replicas: Vec<Replica>,
    /// Live leases.
    pub leases: BTreeMap<LeaseId, Lease>,
    /// Contributions of the open round.
    pub contributions: BTreeMap<ContributionNo, Contribution>,
    /// The open round.
    pub round: Round,
    /// The current generation.
    pub current: GenerationInfo,
    /// Completed rounds; round `g` is at index `g`.
    pub rounds: Vec<RoundSummary>,
    /// Evaluations, pending and done.
    pub evaluations: Evaluations,
    /// The last incarnation issued.
    pub last_incarnation: Incarnation,
    /// The last lease issued.
    pub last_lease: LeaseId,
    /// The last contribution accepted.
    pub last_contribution: ContributionNo,
    /// Norms of what was accepted lately.
    pub norms: Norms,
    /// What operators have ordered.
    pub orders: Orders,
    /// Set when the end condition is reached.
    pub ending: Option<EndReason>,
    /// True once the run is over.
    pub ended: bool,
    /// For looking things up; says nothing that is not above.
    pub index: Index,
}

/// A replica's name, and its latest incarnation.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    /// The name.
    pub id: ReplicaId,
    /// `W`: accelerators.
    pub ranks: u32,
    /// The latest incarnation.
    pub incarnation: Incarnation,
    /// Whether it lives.
    pub presence: Presence,
    /// The nonce of its registration.
    pub nonce: Hash,
    /// The token presented at it.
    pub presented: Option<Hash>,
    /// The token handed out at it: what a successor must present.
    pub token: Hash,
    /// Its lease.
    pub lease: Option<LeaseId>,
    /// The lease that it lost in the open round.
    pub lost: Option<Lost>,
    /// What it is to train in the open round, which makes it a member of it.
    pub plan: Option<Plan>,
    /// The last round to which the name has a staged contribution.
    pub contributed: Option<Generation>,
    /// Its last decided contribution.
    pub decided: Option<(Hash, Verdict)>,
    /// Its share of the run.
    pub tally: Tally,
    /// How fast it is, once it has said how it spent a round; forgotten when its ranks change.
    pub pace: Option<Pace>,
    /// Set while an operator does not let it in: why.
    pub evicted: Option<String>,
    /// Refusals since its last accepted contribution.
    pub setback: Option<Setback>,
}

/// Whether an incarnation lives, as the journal has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It does.
    Live,
    /// It does not.
    Left(LeftReason),
}

/// What a name has been given and has given, over all epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Windows leased to it.
    pub granted: Windows,
    /// Windows of it in the published weights.
    pub committed: Windows,
    /// Windows taken back from it because it was lost.
    pub reclaimed: Windows,
    /// Windows of those that count as a failed attempt: a crash, a hang, or values not finite.
    pub failed: Windows,
    /// Windows that it gave back.
    pub released: Windows,
    /// Windows of those taken back that it got again when it was heard of.
    pub revived: Windows,
    /// Windows that idle replicas took from its leases.
    pub stolen: Windows,
    /// Windows that a successor took over within its predecessor's lease.
    pub inherited: Windows,
    /// Contributions that were refused after they were announced.
    pub refused: u32,
    /// Incarnations that it had.
    pub incarnations: u32,
}

/// A completed round.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundSummary {
    /// Base generation.
    pub base: Generation,
    /// Manifest hash of the generation that it made.
    pub manifest: Hash,
    /// Why it closed.
    pub reason: CloseReason,
    /// What it merged: author, contribution id, windows, tokens, steps.
    pub merged: Vec<(ReplicaKey, Hash, Windows, Tokens, Steps)>,
    /// How long the merge took.
    pub merge_ms: u64,
    /// How its members spent it.
    pub times: BTreeMap<ReplicaKey, PhaseTimes>,
}

/// A generation that is to be evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// Which.
    pub generation: Generation,
    /// Who was asked.
    pub asked: Option<ReplicaKey>,
}

/// Held-out evaluations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluations {
    /// The one that is due.
    pub due: Option<Evaluation>,
    /// Results: generation, sum of the loss in nats, target tokens.
    pub done: Vec<(Generation, f64, Tokens)>,
}

impl State {
    /// A new run whose generation 0 has this manifest hash; its first timeline is 0, until the shell says
    /// otherwise.
    #[must_use]
    pub fn new(spec: &RunSpec, manifest: Hash) -> Self {
        let due = Evaluation {
            generation: Generation(0),
            asked: None,
        };
        Self {
            lineage: Lineage::begun(Hash::default(), Timeline(0)),
            epoch: Epoch(0),
            ledger: Ledger::new(spec.digest.windows),
            attempts: Attempts::new(),
            quarantine: BTreeMap::new(),
            committed_before: Windows(0),
            replicas: Vec::new(),
            leases: BTreeMap::new(),
            contributions: BTreeMap::new(),
            round: Round {
                base: Generation(0),
                staged: Vec::new(),
                phase: RoundPhase::Open,
            },
            current: GenerationInfo::first(spec, manifest),
            rounds: Vec::new(),
            evaluations: Evaluations {
                due: (spec.evaluate_every > 0).then_some(due),
                done: Vec::new(),
            },
            last_incarnation: Incarnation(0),
            last_lease: LeaseId(0),
            last_contribution: ContributionNo(0),
            norms: Norms::default(),
            orders: Orders::default(),
            ending: None,
            ended: false,
            index: Index::default(),
        }
    }

    /// A replica by key. Keys are only made by [`State::apply`](crate::State::apply).
    #[must_use]
    pub fn replica(&self, key: ReplicaKey) -> Option<&Replica> {
        self.replicas.get(key.0 as usize)
    }

    /// The lease of a replica.
    #[must_use]
    pub fn lease_of(&self, key: ReplicaKey) -> Option<&Lease> {
        self.leases.get(&self.replica(key)?.lease?)
    }

    /// Windows committed over all epochs.
    #[must_use]
    pub fn committed(&self) -> Windows {
        self.committed_before + self.ledger.counts().committed
    }
}

impl Replica {
    /// Remembers what became of a contribution.
    pub(crate) fn decide(&mut self, id: Hash, verdict: Verdict) {
        if let Verdict::Refused(_) = verdict {
            self.tally.refused += 1;
        }
        self.decided = Some((id, verdict));
    }

    /// Remembers what the gate refused.
    pub(crate) fn set_back(&mut self, because: RefusedBecause, round: Generation) {
        use RefusedBecause::{Gate, Norm, NotFinite};
        if matches!(because, Gate | Norm { .. } | NotFinite) {
            let setback = self.setback.get_or_insert_default();
            setback.add(because, round);
        }
    }

    /// The verdict on a contribution that was refused.
    pub(crate) const fn refused(because: RefusedBecause) -> Verdict {
        Verdict::Refused(because)
    }
}
