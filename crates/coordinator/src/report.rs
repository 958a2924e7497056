//! The status report, drawn from durable state and live progress.

use hansa_base::{MonoMs, ReplicaKey, Windows};
use hansa_protocol::{
    Activity, Lease, Machine, PhaseTimes, Presence, Progress, Replica, RoundPhase, RoundSummary,
    State,
};
use hansa_wire::WIRE_VERSION;
use hansa_wire::status::{
    EvaluationStatus, GenerationStatus, LeaseStatus, LedgerStatus, ReplicaStatus, RoundMember,
    RoundStatus, Status, TallyStatus, TimesStatus, WaitReason, Waiting,
};

use crate::replay::Replayed;
use crate::shell::Shell;

/// Rounds in a report: the newest ones.
const ROUNDS_SHOWN: usize = 1000;

/// Quarantined windows in a report; the ledger counts all.
const QUARANTINED_SHOWN: usize = 1000;

/// The part of a status report that a journal alone can tell.
#[derive(Clone, Debug)]
pub struct History {
    /// All names that ever registered.
    pub replicas: Vec<ReplicaStatus>,
    /// All completed rounds.
    pub rounds: Vec<RoundStatus>,
    /// All held-out evaluations.
    pub evaluations: Vec<EvaluationStatus>,
    /// All windows of the corpus that are in quarantine.
    pub quarantined_windows: Vec<u64>,
}

impl Replayed {
    /// The status of a run that nobody serves. Who is live here was so when the last coordinator ended.
    #[must_use]
    pub fn status(&self) -> Status {
        let machine = Machine::new(self.spec.clone(), self.state.clone(), MonoMs(0));
        let mut status = status_of(&self.recipe.name, &machine, MonoMs(0));
        if !status.ended {
            status.waiting = Waiting {
                reason: WaitReason::Coordinator,
                text: "a coordinator: nobody serves this run".to_owned(),
            };
        }
        status
    }

    /// What happened, for people and programs.
    #[must_use]
    pub fn history(&self) -> History {
        let machine = Machine::new(self.spec.clone(), self.state.clone(), MonoMs(0));
        let state = machine.state();
        let keys = (0..state.replicas.len() as u32).map(ReplicaKey);
        History {
            replicas: keys
                .filter_map(|key| replica_status(&machine, key, MonoMs(0)))
                .collect(),
            rounds: state
                .rounds
                .iter()
                .map(|round| round_status(state, round))
                .collect(),
            evaluations: state.evaluations.done.iter().map(evaluation).collect(),
            quarantined_windows: state.quarantine.keys().copied().collect(),
        }
    }
}

pub(crate) fn status(shell: &Shell, machine: &Machine, now: MonoMs) -> Status {
    Status {
        uptime_s: shell.started.elapsed().as_secs(),
        export: shell.exported().map(|path| path.display().to_string()),
        ..status_of(&shell.recipe.name, machine, now)
    }
}

/// What state and live progress tell.
fn status_of(run: &str, machine: &Machine, now: MonoMs) -> Status {
    let state = machine.state();
    let counts = state.ledger.counts();
    let current = &state.current;
    let skip = state.rounds.len().saturating_sub(ROUNDS_SHOWN);
    let keys = (0..state.replicas.len() as u32).map(ReplicaKey);
    Status {
        wire: WIRE_VERSION,
        hansa: env!("CARGO_PKG_VERSION").to_owned(),
        run: run.to_owned(),
        run_id: machine.spec().run.to_string(),
        timeline: state.lineage.current().0,
        uptime_s: 0,
        generation: GenerationStatus {
            number: current.generation.0,
            manifest: current.manifest.to_string(),
            inner_step: current.inner_step.0,
            tokens: current.tokens.0,
            progress: current.progress,
        },
        epoch: state.epoch.0,
        ledger: LedgerStatus {
            windows: counts.total().0,
            free: counts.free.0,
            leased: counts.leased.0,
            staged: counts.staged.0,
            committed: counts.committed.0,
            quarantined: counts.quarantined.0,
            committed_before: state.committed_before.0,
            seq_len: machine.spec().digest.seq_len,
        },
        replicas: keys
            .filter_map(|key| replica_status(machine, key, now))
            .collect(),
        rounds: state.rounds[skip..]
            .iter()
            .map(|round| round_status(state, round))
            .collect(),
        evaluations: state.evaluations.done.iter().map(evaluation).collect(),
        waiting: waiting(state),
        quarantined_windows: state
            .quarantine
            .keys()
            .copied()
            .take(QUARANTINED_SHOWN)
            .collect(),
        paused: state.orders.paused.as_ref().map(ToString::to_string),
        drained: state
            .orders
            .drained
            .iter()
            .map(|(site, why)| (site.to_string(), why.clone()))
            .collect(),
        drain_ends_s: (state.orders.drain_ends.iter().flatten())
            .map(|(site, at)| (site.to_string(), at.0))
            .collect(),
        stopping: state.orders.stopping.clone(),
        ending: state.ending.map(|reason| reason.to_string()),
        ended: state.ended,
        export: None,
    }
}

fn replica_status(machine: &Machine, key: ReplicaKey, now: MonoMs) -> Option<ReplicaStatus> {
    let state = machine.state();
    let replica = state.replica(key)?;
    let live = replica.presence == Presence::Live;
    let vitals = machine.vitals().get(&key).filter(|_| live);
    let progress = vitals.map(|vitals| vitals.progress);
    let ago = |then: MonoMs| u64::try_from(now.since(then).as_millis()).unwrap_or(u64::MAX);
    let plan = replica
        .plan
        .filter(|plan| plan.generation == state.round.base);
    let contributed = replica.contributed == Some(state.round.base);
    Some(ReplicaStatus {
        site: replica.id.site.to_string(),
        replica: replica.id.replica.to_string(),
        incarnation: replica.incarnation.0,
        ranks: replica.ranks,
        live,
        left: match replica.presence {
            Presence::Live => None,
            Presence::Left(reason) => Some(reason.to_string()),
        },
        evicted: replica.evicted.clone(),
        refused_in_a_row: replica.setback.map_or(0, |setback| {
            setback.repeats().saturating_add(setback.not_finite)
        }),
        activity: progress.map(|progress| activity(progress.activity).to_owned()),
        heard_ms_ago: vitals.map(|vitals| ago(vitals.heard)),
        progressed_ms_ago: vitals.map(|vitals| ago(vitals.progressed)),
        counter: progress.map_or(0, |progress| phase_counter(progress, state.lease_of(key))),
        phase_steps: plan.map(|plan| plan.steps.0),
        phase_windows: plan.map(|plan| plan.windows.0),
        step_ms: progress
            .and_then(|progress| progress.step)
            .map(|step| step.as_secs_f64() * 1e3),
        loss: progress.and_then(|progress| progress.loss),
        tokens_per_s: progress.and_then(|progress| progress.tokens_per_s),
        lease: state.lease_of(key).map(|lease| LeaseStatus {
            id: lease.id.0,
            windows: lease.left().0,
            spans: lease
                .spans
                .iter()
                .map(|span| (span.start.0, span.end.0))
                .collect(),
        }),
        lost: replica.lost.as_ref().map(|lost| lost.cause.to_string()),
        awaited: live && plan.is_some() && !contributed,
        contributed,
        tally: tally(replica),
    })
}

/// A replica that trains counts from the start of its lease; people want to see the phase.
fn phase_counter(progress: Progress, lease: Option<&Lease>) -> u64 {
    match (progress.activity, lease) {
        (Activity::Training | Activity::Checkpointing, Some(lease)) => {
            progress.counter.saturating_sub(lease.front.0)
        }
        _ => progress.counter,
    }
}

fn tally(replica: &Replica) -> TallyStatus {
    let tally = replica.tally;
    TallyStatus {
        granted: tally.granted.0,
        committed: tally.committed.0,
        reclaimed: tally.reclaimed.0,
        failed: tally.failed.0,
        released: tally.released.0,
        revived: tally.revived.0,
        stolen: tally.stolen.0,
        inherited: tally.inherited.0,
        refused: tally.refused,
        incarnations: tally.incarnations,
    }
}

fn activity(activity: Activity) -> &'static str {
    match activity {
        Activity::Starting => "starting",
        Activity::Downloading => "downloading",
        Activity::Training => "training",
        Activity::Checkpointing => "checkpointing",
        Activity::Uploading => "uploading",
        Activity::Evaluating => "evaluating",
        Activity::Waiting => "waiting",
        Activity::Leaving => "leaving",
    }
}

fn round_status(state: &State, round: &RoundSummary) -> RoundStatus {
    let member = |&(key, _, windows, _, steps): &(ReplicaKey, _, Windows, _, hansa_base::Steps)| {
        let times = round.times.get(&key);
        RoundMember {
            replica: name(state, key),
            windows: windows.0,
            steps: steps.0,
            times: times.map(times_status),
        }
    };
    RoundStatus {
        base: round.base.0,
        reason: round.reason.to_string(),
        windows: round.merged.iter().map(|merged| merged.2.0).sum(),
        tokens: round.merged.iter().map(|merged| merged.3.0).sum(),
        merge_ms: round.merge_ms,
        members: round.merged.iter().map(member).collect(),
    }
}

fn times_status(times: &PhaseTimes) -> TimesStatus {
    TimesStatus {
        download_ms: times.download_ms,
        evaluate_ms: times.evaluate_ms,
        train_ms: times.train_ms,
        checkpoint_ms: times.checkpoint_ms,
        upload_ms: times.upload_ms,
        wait_ms: times.wait_ms,
    }
}

fn evaluation(
    &(generation, loss_sum_nats, tokens): &(hansa_base::Generation, f64, hansa_base::Tokens),
) -> EvaluationStatus {
    let loss = loss_sum_nats / tokens.0.max(1) as f64;
    EvaluationStatus {
        generation: generation.0,
        loss,
        perplexity: loss.exp(),
        tokens: tokens.0,
    }
}

fn name(state: &State, key: ReplicaKey) -> String {
    let replica = state.replica(key);
    replica
        .map(|replica| replica.id.to_string())
        .unwrap_or_default()
}

fn waiting(state: &State) -> Waiting {
    let names = |keyed: Vec<&Replica>| -> Vec<String> {
        keyed.iter().map(|replica| replica.id.to_string()).collect()
    };
    let live = names(state.live().map(|(_, replica)| replica).collect());
    let awaited = names(state.awaited().map(|(_, replica)| replica).collect());
    let (reason, text) = if state.ended && live.is_empty() {
        (WaitReason::Nothing, "nothing: the run is over".to_owned())
    } else if state.ended {
        let text = format!("{} to leave; the run is over", live.join(", "));
        (WaitReason::Farewell(live), text)
    } else if let (Some(_), Some(due)) = (state.ending, state.evaluations.due) {
        let generation = due.generation.0;
        let text = format!("the evaluation of generation {generation}, the last thing to do");
        (WaitReason::Evaluation(generation), text)
    } else if let RoundPhase::Closed(record) = &state.round.phase {
        let round = record.base.0;
        (
            WaitReason::Merge(round),
            format!("the merge of round {round}"),
        )
    } else if let Some(pause) = &state.orders.paused {
        let text = format!("an operator: {pause}; `hansa run resume` lets it go on");
        (WaitReason::Operator, text)
    } else if live.is_empty() {
        (WaitReason::Replicas, "replicas: none is alive".to_owned())
    } else if awaited.is_empty() {
        let text = format!("{} to ask for positions", live.join(", "));
        (WaitReason::Requests, text)
    } else {
        let text = format!("contributions of {}", awaited.join(", "));
        (WaitReason::Members(awaited), text)
    };
    Waiting { reason, text }
}
