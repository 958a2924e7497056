//! The machine's parts, its dispatcher, and what all its states share: one call at a time, repeated
//! after a back-off, and one job of the trainer at a time.

use super::api::{Action, Call, CallFailed, CallNo, ExitReason, Input, Moments, Notice, Void};
use super::local::{Found, LocalState, RegistrationRecord};
use super::vitals::Vitals;
use crate::{
    Caller, Evaluated, GenerationInfo, Goodbye, LeaseView, Plan, Refusal, Reply, RunSpec, Wait,
};
use hansa_base::{Generation, Hash, MonoMs, ReplicaId, RetryPolicy};
use std::time::Duration;

/// How a replica behaves where the recipe leaves it the choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Random, new for each process: nonces and back-off are derived from it.
    pub entropy: Hash,
    /// How often a checkpoint is written within a phase, against crashes.
    pub checkpoint_every: Duration,
    /// Back-off of calls that failed.
    pub retry: RetryPolicy,
    /// What to do while another process has the name.
    pub when_busy: WhenBusy,
    /// How long a stop may take; then the process ends without a goodbye.
    pub leave_within: Duration,
}

/// What to do while another process has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenBusy {
    /// Wait until it is gone.
    Wait,
    /// End.
    Exit,
}

/// What the machine is doing.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Doing {
    /// The nonce is being made durable.
    SavingNonce,
    /// Registering.
    Registering,
    /// The answer to the registration is being made durable.
    SavingToken(Box<crate::Registered>),
    /// The checkpoint `latest` is being loaded.
    Restoring,
    /// Asking for work, or waiting until it is time to ask again.
    Asking,
    /// A generation is being loaded.
    Loading,
    /// A generation is being evaluated.
    Evaluating(Generation),
    /// The result of an evaluation is being reported.
    Reporting(Evaluated),
    /// Training.
    Training(Plan),
    /// Training has come to the reserve mark, and goes on with this plan when that is raised.
    AtMark(Plan),
    /// The trainer's job has yet to end.
    Halting(Then),
    /// The pseudo-gradient is being encoded.
    Encoding,
    /// A checkpoint is being written, within a phase with this plan, or at its end.
    Checkpointing(Option<Plan>),
    /// Announcing.
    Announcing,
    /// Uploading.
    Uploading,
    /// Saying goodbye, before the process ends for this reason.
    Leaving(ExitReason),
    /// Nothing more.
    Over,
}

/// What follows when the trainer has halted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Then {
    /// A checkpoint within the phase.
    Save(Plan),
    /// The contribution of what is there.
    Contribute,
    /// Asking for work.
    Ask,
    /// Registering again.
    Rejoin,
}

/// The trainer's job under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Job {
    Restore,
    Load(GenerationInfo),
    Train,
    Evaluate,
    Encode,
    Checkpoint,
}

/// What the trainer's weights are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Weights {
    /// Nothing yet.
    Nothing,
    /// Exactly this generation.
    Clean(GenerationInfo),
    /// What `work` says.
    Work,
    /// Of no use: this generation and something that is void or contributed already.
    Spent(GenerationInfo),
}

/// What the trainer's moments are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Nothing yet.
    Nothing,
    /// Those at the end of the last accepted phase, or fresh ones if there is none.
    Accepted,
    /// Those of a phase that is not accepted.
    Unaccepted,
}

/// The replica's half of the protocol.
#[derive(Clone, Debug)]
pub struct ReplicaMachine {
    pub(super) spec: RunSpec,
    pub(super) replica: ReplicaId,
    pub(super) ranks: u32,
    pub(super) options: Options,
    /// What is durable of the registration, or about to be.
    pub(super) record: RegistrationRecord,
    /// The incarnation, once its token is durable, while the coordinator knows it.
    pub(super) caller: Option<Caller>,
    /// The lease as last heard of.
    pub(super) lease: Option<LeaseView>,
    /// Training that is neither contributed nor void. If the weights are not it, then the checkpoint
    /// `latest` is.
    pub(super) work: Option<LocalState>,
    /// True if there is a checkpoint `accepted`.
    pub(super) accepted: bool,
    pub(super) weights: Weights,
    pub(super) held: Held,
    pub(super) job: Option<Job>,
    pub(super) doing: Doing,
    /// True until the checkpoints of a history that is no more are removed.
    pub(super) forget: bool,
    /// When a stop that was asked for must be over.
    pub(super) leave_by: Option<MonoMs>,
    /// True once a signal asked for a stop.
    pub(super) stopped: bool,
    /// Why the coordinator wants it to leave, if it does.
    pub(super) drained: Option<String>,
    /// When the next checkpoint within a phase is due.
    pub(super) checkpoint_at: Option<MonoMs>,
    pub(super) vitals: Vitals,
    /// The last reason for waiting that was told.
    pub(super) told: Option<Wait>,
    calls: u64,
    nonces: u64,
    /// The call under way, beside heartbeats.
    pending: Option<CallNo>,
    /// When the state's call is made again.
    call_at: Option<MonoMs>,
    /// Failures of the state's call in a row.
    failures: u32,
    pub(super) actions: Vec<Action>,
}

impl ReplicaMachine {
    /// A process that starts as `replica` with `ranks` accelerators, and what it found on its disk.
    #[must_use]
    pub fn start(
        spec: RunSpec,
        replica: ReplicaId,
        ranks: u32,
        options: Options,
        found: Found,
        now: MonoMs,
    ) -> (Self, Vec<Action>) {
        let foreign = foreign(&spec, &replica, &found);
        let empty = RegistrationRecord {
            run: spec.run,
            replica: replica.clone(),
            held: None,
            token: None,
            nonce: None,
        };
        let mut machine = Self {
            record: found.registration.unwrap_or(empty),
            caller: None,
            lease: None,
            work: found.latest,
            accepted: found.accepted,
            weights: Weights::Nothing,
            held: Held::Nothing,
            job: None,
            doing: Doing::Over,
            forget: false,
            leave_by: None,
            stopped: false,
            drained: None,
            checkpoint_at: None,
            vitals: Vitals::new(now),
            told: None,
            calls: 0,
            nonces: 0,
            pending: None,
            call_at: None,
            failures: 0,
            actions: Vec::new(),
            spec,
            replica,
            ranks,
            options,
        };
        match foreign {
            Some(reason) => machine.exit(now, reason),
            None => machine.join(now),
        }
        let actions = std::mem::take(&mut machine.actions);
        (machine, actions)
    }

    /// Handles one input received at `now`.
    pub fn handle(&mut self, now: MonoMs, input: Input) -> Vec<Action> {
        if self.doing != Doing::Over {
            self.dispatch(now, input);
            self.look_at_the_clock(now);
        }
        std::mem::take(&mut self.actions)
    }

    /// When [`Input::Wake`] is wanted; `None` while nothing depends on the time.
    #[must_use]
    pub fn wake_at(&self) -> Option<MonoMs> {
        if self.doing == Doing::Over {
            return None;
        }
        let heartbeat = self.vitals.due().filter(|_| self.caller.is_some());
        [self.call_at, self.leave_by, heartbeat]
            .into_iter()
            .flatten()
            .min()
    }

    fn dispatch(&mut self, now: MonoMs, input: Input) {
        match input {
            Input::Wake => {}
            Input::Answered { no, answer } => self.answered(now, no, answer),
            Input::Saved => self.saved(now),
            Input::Loaded => self.loaded(now),
            Input::Superseded => self.superseded(now),
            Input::Stepped {
                windows,
                duration,
                loss,
            } => self.stepped(now, windows, duration, loss),
            Input::TrainingEnded => self.training_ended(now),
            Input::Advanced(counter) => self.vitals.counter = counter,
            Input::Encoded { payload, bytes } => self.encoded(now, payload, bytes),
            Input::CheckpointDurable => self.checkpoint_durable(now),
            Input::Measured {
                loss_sum_nats,
                tokens,
            } => self.measured(now, loss_sum_nats, tokens),
            Input::Failed(why) => self.leave(now, ExitReason::Failed(why)),
            Input::NotFinite(why) => self.leave(now, ExitReason::NotFinite(why)),
            Input::Stop => self.stop(now),
        }
    }

    fn look_at_the_clock(&mut self, now: MonoMs) {
        if self.doing == Doing::Over {
            return;
        }
        if self.leave_by.is_some_and(|end| end <= now) {
            return self.exit(
                now,
                self.or_not_finite(ExitReason::Stopped { goodbye: false }),
            );
        }
        if self.call_at.is_some_and(|at| at <= now) {
            self.make_call(now);
        }
        self.heartbeat_if_due(now);
    }

    /// The one way from state to state: whatever call was under way is of no interest any more.
    pub(super) fn enter(&mut self, now: MonoMs, doing: Doing) {
        self.vitals.account(now, &self.doing);
        self.doing = doing;
        self.vitals.entered();
        // How far training came is what there is to say of these.
        let of_training = matches!(
            self.doing,
            Doing::Halting(_) | Doing::Encoding | Doing::Checkpointing(_)
        );
        if let (true, Some(work)) = (of_training, &self.work) {
            self.vitals.counter = work.cursor.0;
        }
        (self.pending, self.call_at, self.failures) = (None, None, 0);
        self.make_call(now);
    }

    pub(super) fn exit(&mut self, now: MonoMs, reason: ExitReason) {
        if self.job == Some(Job::Train) {
            self.actions.push(Action::Halt);
        }
        self.enter(now, Doing::Over);
        self.actions.push(Action::Exit(reason));
    }

    pub(super) fn start_job(&mut self, job: Job, action: Action) {
        self.job = Some(job);
        self.actions.push(action);
    }

    pub(super) fn tell(&mut self, notice: Notice) {
        self.actions.push(Action::Tell(notice));
    }

    pub(super) fn caller(&self) -> Option<Caller> {
        self.caller.clone()
    }

    pub(super) fn number_call(&mut self) -> CallNo {
        self.calls += 1;
        CallNo(self.calls)
    }

    pub(super) fn fresh_nonce(&mut self) -> Hash {
        self.nonces += 1;
        self.derive("hansa 1 registration nonce", self.nonces)
    }

    fn derive(&self, purpose: &str, number: u64) -> Hash {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        hasher.update(&self.options.entropy.0);
        hasher.update(&number.to_le_bytes());
        Hash(*hasher.finalize().as_bytes())
    }

    /// Makes the call of the state, if it has one.
    fn make_call(&mut self, now: MonoMs) {
        self.call_at = None;
        if let Some(call) = self.wanted_call(now) {
            let no = self.number_call();
            self.pending = Some(no);
            self.actions.push(Action::Call { no, call });
        }
    }

    fn wanted_call(&self, now: MonoMs) -> Option<Call> {
        match &self.doing {
            Doing::Registering => Some(self.registration()),
            Doing::Asking => self.lease_request(now),
            Doing::Reporting(evaluated) => Some(Call::Evaluated(evaluated.clone())),
            Doing::Announcing => self.announcement(),
            Doing::Uploading => self.upload(),
            Doing::Leaving(reason) => self.goodbye(reason),
            _ => None,
        }
    }

    fn goodbye(&self, reason: &ExitReason) -> Option<Call> {
        let not_finite = matches!(reason, ExitReason::NotFinite(_));
        let caller = self.caller()?;
        Some(Call::Goodbye(Goodbye { caller, not_finite }))
    }

    /// Makes the state's call again, later.
    pub(super) fn call_again(&mut self, now: MonoMs, after: Duration) {
        self.pending = None;
        self.call_at = Some(now.after(after));
    }

    fn answered(&mut self, now: MonoMs, no: CallNo, answer: Result<Reply, CallFailed>) {
        if self.vitals.is_heartbeat(no) {
            return self.heartbeat_answered(now, answer);
        }
        if self.pending != Some(no) {
            return;
        }
        self.pending = None;
        self.vitals.news();
        match answer {
            Ok(reply) => self.replied(now, reply),
            Err(CallFailed::Unreachable(why)) => self.unreachable(now, why),
            Err(CallFailed::Refused(refusal)) => self.refused(now, refusal),
        }
    }

    /// Whoever answers a heartbeat can answer the call that waits for its next attempt, too.
    pub(super) fn end_back_off(&mut self, now: MonoMs) {
        if self.failures > 0 && self.call_at.is_some() {
            self.make_call(now);
        }
    }

    fn replied(&mut self, now: MonoMs, reply: Reply) {
        let failures = std::mem::take(&mut self.failures);
        match (self.doing.clone(), reply) {
            (Doing::Registering, Reply::Registered(registered)) => self.registered(now, registered),
            (Doing::Asking, Reply::Lease(answer)) => self.told_what_to_do(now, answer),
            (Doing::Reporting(_), Reply::Done) => self.go_on(now),
            (Doing::Announcing, Reply::Verdict(verdict)) => self.verdict(now, verdict),
            (Doing::Uploading, Reply::Verdict(verdict)) => self.verdict(now, verdict),
            (Doing::Leaving(reason), Reply::Done) => self.gone(now, reason),
            (_, reply) => {
                self.failures = failures;
                self.unreachable(now, format!("an unfit answer came: {reply:?}"));
            }
        }
    }

    /// The state's call failed: it is made again after a back-off. Training is not touched by this.
    pub(super) fn unreachable(&mut self, now: MonoMs, why: String) {
        if let Doing::Leaving(reason) = self.doing.clone()
            && !reason.is_worth_telling()
        {
            return self.exit(now, reason);
        }
        let entropy = self.derive("hansa 1 back-off", self.calls).0;
        let entropy = entropy
            .iter()
            .take(8)
            .fold(0, |n, b| n << 8 | u64::from(*b));
        let Some(after) = self.options.retry.delay(self.failures, entropy) else {
            return self.exit(now, self.or_not_finite(ExitReason::Unreachable(why)));
        };
        self.failures += 1;
        self.call_again(now, after);
        self.tell(Notice::Retrying { why, after });
    }

    /// What every call may be refused with; the rest is the state's.
    pub(super) fn refused(&mut self, now: MonoMs, refusal: Refusal) {
        match (refusal, self.doing.clone()) {
            (Refusal::Broken(what), _) => self.unreachable(now, what),
            (_, Doing::Leaving(reason)) => self.gone(now, reason),
            (Refusal::Fenced { .. }, _) => self.exit(now, ExitReason::Fenced),
            (refusal @ Refusal::Evicted { .. }, _) => self.exit(now, ExitReason::Evicted(refusal)),
            (Refusal::Gone { .. }, _) => {
                self.record.nonce = None;
                self.rejoin(now);
            }
            (Refusal::Restored { .. }, _) => self.start_afresh(now),
            (refusal, _) if refusal.is_of_another_history() => {
                self.exit(now, ExitReason::Refused(refusal));
            }
            (refusal, Doing::Registering) => self.registration_refused(now, refusal),
            (refusal, Doing::Announcing | Doing::Uploading) => {
                self.contribution_refused(now, refusal);
            }
            (Refusal::RunOver(reason), _) => self.leave(now, ExitReason::RunComplete(reason)),
            (refusal, _) => self.exit(now, ExitReason::Refused(refusal)),
        }
    }

    /// What was trained is of no use any more.
    pub(super) fn void(&mut self, why: Void) {
        let Some(work) = self.work.take() else { return };
        if self.weights == Weights::Work {
            self.weights = Weights::Spent(work.base);
        }
        if work.cursor > work.front {
            self.tell(Notice::Void(why));
        }
    }

    /// Loads a generation, with the moments of the end of the last accepted phase.
    pub(super) fn load(&mut self, now: MonoMs, generation: GenerationInfo) {
        let moments = match (self.held, self.accepted) {
            (Held::Accepted, _) => Moments::Keep,
            (_, true) => Moments::Accepted,
            (_, false) => Moments::Fresh,
        };
        self.enter(now, Doing::Loading);
        let action = Action::Load {
            generation,
            moments,
        };
        self.start_job(Job::Load(generation), action);
    }

    /// The generation that the weights come from.
    pub(super) fn base(&self) -> Option<GenerationInfo> {
        match self.weights {
            Weights::Nothing => None,
            Weights::Clean(base) | Weights::Spent(base) => Some(base),
            Weights::Work => self.work.as_ref().map(|work| work.base),
        }
    }
}

fn foreign(spec: &RunSpec, replica: &ReplicaId, found: &Found) -> Option<ExitReason> {
    let registration = found.registration.as_ref().map(|r| (r.run, &r.replica));
    let latest = found.latest.as_ref().map(|l| (l.run, &l.replica));
    let owners = [registration, latest];
    let other = |(run, name): &(Hash, &ReplicaId)| *run != spec.run || *name != replica;
    let (run, name) = owners.into_iter().flatten().find(other)?;
    let what = format!("that of {name} in run {}", run.short());
    Some(ExitReason::OtherState(what))
}
