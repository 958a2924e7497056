//! Between two phases: asking for work, loading generations, evaluating.

use super::api::{Action, Call, ExitReason, Notice, Void};
use super::join::broken_law;
use super::local::LocalState;
use super::machine::{Doing, Held, Job, ReplicaMachine, Then, Weights};
use crate::{Evaluated, Grant, LeaseAnswer, LeaseRequest, Wait};
use hansa_base::{Generation, Hash, Incarnation, MonoMs, Steps, Tokens};

impl ReplicaMachine {
    /// What comes next when nothing is under way: work, or, if a stop was asked for, the
    /// contribution of what is there and a goodbye.
    pub(super) fn go_on(&mut self, now: MonoMs) {
        if !self.leaving() {
            return self.enter(now, Doing::Asking);
        }
        if self.weights == Weights::Work {
            return self.contribute(now);
        }
        self.leave(now, self.left());
    }

    pub(super) fn lease_request(&self, now: MonoMs) -> Option<Call> {
        let base = self.base();
        let times = base.map(|base| (base.generation, self.vitals.times(now, &self.doing)));
        Some(Call::Lease(LeaseRequest {
            caller: self.caller()?,
            base: base.map_or(Hash::default(), |base| base.manifest),
            times,
        }))
    }

    pub(super) fn told_what_to_do(&mut self, now: MonoMs, answer: LeaseAnswer) {
        if !matches!(answer, LeaseAnswer::Wait(_)) {
            self.told = None;
        }
        match answer {
            LeaseAnswer::Train(grant) => self.granted(now, grant),
            LeaseAnswer::Adopt(generation) if self.is_behind(&generation) => {
                self.exit_behind(now, generation);
            }
            LeaseAnswer::Adopt(generation) => {
                self.void(Void::RoundOver);
                self.vitals.new_round(now, &self.doing);
                self.load(now, generation);
            }
            LeaseAnswer::Evaluate(generation) => self.evaluate(now, generation),
            LeaseAnswer::Wait(wait) => self.wait(now, wait),
            LeaseAnswer::Leave(why) => self.told_to_leave(now, why),
            LeaseAnswer::Finish(reason) => self.leave(now, ExitReason::RunComplete(reason)),
        }
    }

    fn wait(&mut self, now: MonoMs, wait: Wait) {
        let timing = &self.spec.timing;
        let every = match wait {
            Wait::Paused(_) => timing.heartbeat_every(),
            _ => timing.poll_every(),
        };
        self.call_again(now, every);
        if self.told.as_ref() != Some(&wait) {
            self.told = Some(wait.clone());
            self.tell(Notice::Waiting(wait));
        }
    }

    /// Trains on from the cursor if the weights are what the lease says they are; otherwise loads
    /// the base, and asks again.
    fn granted(&mut self, now: MonoMs, grant: Grant) {
        let broken = self
            .work
            .as_ref()
            .and_then(|work| broken_law(work, Some(&grant.lease), &grant.base));
        if let Some(why) = broken {
            self.void(why);
        }
        self.lease = Some(grant.lease);
        match (self.weights, &self.work) {
            (Weights::Work, Some(_)) => self.train(now, grant.plan),
            (_, Some(_)) => self.restore(now),
            (Weights::Clean(base), None) if base.manifest == grant.base.manifest => {
                self.start_work();
                self.train(now, grant.plan);
            }
            _ => self.load(now, grant.base),
        }
    }

    /// `cursor = front`, on clean weights.
    fn start_work(&mut self) {
        let (Weights::Clean(base), Some(lease)) = (self.weights, &self.lease) else {
            return;
        };
        self.work = Some(LocalState {
            run: self.spec.run,
            replica: self.replica.clone(),
            incarnation: self
                .caller
                .as_ref()
                .map_or(Incarnation(0), |caller| caller.incarnation),
            base,
            lease: lease.id,
            epoch: lease.epoch,
            front: lease.front,
            cursor: lease.front,
            steps: Steps(0),
            contribution: None,
        });
        self.weights = Weights::Work;
        self.checkpoint_at = None;
    }

    fn evaluate(&mut self, now: MonoMs, generation: Generation) {
        match (self.weights, self.base()) {
            (Weights::Clean(base), _) if base.generation == generation => {
                self.enter(now, Doing::Evaluating(generation));
                self.start_job(Job::Evaluate, Action::Evaluate(generation));
            }
            // Work that a successor took up is in the checkpoint `latest`, and comes back from it.
            (_, Some(base)) => self.load(now, base),
            (_, None) => self.call_again(now, self.spec.timing.poll_every()),
        }
    }

    pub(super) fn measured(&mut self, now: MonoMs, loss_sum_nats: f64, tokens: Tokens) {
        self.job = None;
        match (self.doing.clone(), self.caller()) {
            (Doing::Evaluating(generation), Some(caller)) => {
                let evaluated = Evaluated {
                    caller,
                    generation,
                    loss_sum_nats,
                    tokens,
                };
                self.enter(now, Doing::Reporting(evaluated));
            }
            _ => self.halted(now),
        }
    }

    pub(super) fn loaded(&mut self, now: MonoMs) {
        match self.job.take() {
            Some(Job::Load(generation)) => {
                (self.weights, self.held) = (Weights::Clean(generation), Held::Accepted);
            }
            _ => (self.weights, self.held) = (Weights::Work, Held::Unaccepted),
        }
        match self.doing {
            Doing::Loading | Doing::Restoring => self.go_on(now),
            _ => self.halted(now),
        }
    }

    pub(super) fn superseded(&mut self, now: MonoMs) {
        self.job = None;
        // The weights may have been touched: whatever comes next is loaded anew.
        if let Some(base) = self.base() {
            self.weights = Weights::Spent(base);
        }
        match self.doing {
            Doing::Loading => {
                self.enter(now, Doing::Asking);
            }
            _ => self.halted(now),
        }
    }

    /// The trainer is idle, as a state waited for it to be.
    pub(super) fn halted(&mut self, now: MonoMs) {
        let Doing::Halting(then) = self.doing else {
            return;
        };
        match then {
            Then::Save(plan) => self.save(now, plan),
            Then::Contribute => self.contribute(now),
            Then::Ask => self.go_on(now),
            Then::Rejoin => self.join(now),
        }
    }
}
