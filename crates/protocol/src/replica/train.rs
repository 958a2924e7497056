//! A phase: inner steps, and checkpoints between them.

use super::api::{Action, Notice, TrainOrder, Void};
use super::machine::{Doing, Held, Job, ReplicaMachine, Then};
use crate::{LeaseView, Plan, Span};
use hansa_base::{MonoMs, Windows};
use std::time::Duration;

impl ReplicaMachine {
    /// Trains from the cursor to the end of the plan, or to the reserve mark, which a heartbeat raises
    /// in time if the coordinator can be reached.
    pub(super) fn train(&mut self, now: MonoMs, plan: Plan) {
        let (Some(work), Some(lease)) = (&self.work, &self.lease) else {
            return self.go_on(now);
        };
        let micro_batch = self.spec.micro_batch(self.ranks);
        let step_windows = Windows(micro_batch.0 * u64::from(plan.accumulation));
        if work.trained() >= planned(plan, lease) {
            return self.contribute(now);
        }
        let reserved = planned(plan, lease).min(lease.reserved());
        let phase = Span::split(&lease.spans, reserved).0;
        let spans = Span::split(&phase, work.trained()).1;
        if spans.is_empty() {
            return self.wait_at_the_mark(now, plan);
        }
        let order = TrainOrder {
            epoch: work.epoch,
            spans,
            step_windows,
            accumulation: plan.accumulation,
            base: work.base,
            steps_done: work.steps,
            steps_planned: plan.steps,
        };
        let checkpoint_at = now.after(self.options.checkpoint_every);
        self.checkpoint_at.get_or_insert(checkpoint_at);
        self.enter(now, Doing::Training(plan));
        self.vitals.counter = self.work.as_ref().map_or(0, |work| work.cursor.0);
        self.start_job(Job::Train, Action::Train(order));
    }

    fn wait_at_the_mark(&mut self, now: MonoMs, plan: Plan) {
        self.enter(now, Doing::AtMark(plan));
        self.vitals.hurry(now);
        self.tell(Notice::AtMark);
    }

    /// True if there is something of the plan to train, or nothing of it left to wait for.
    pub(super) fn may_go_on(&self, plan: Plan) -> bool {
        let (Some(work), Some(lease)) = (&self.work, &self.lease) else {
            return true;
        };
        let trained = work.trained();
        trained < lease.reserved() || trained >= planned(plan, lease)
    }

    pub(super) fn stepped(&mut self, now: MonoMs, windows: Windows, took: Duration, loss: f64) {
        self.held = Held::Unaccepted;
        let tokens = self.spec.tokens(windows);
        self.vitals.step(took, windows, tokens, loss);
        // What is void keeps being trained until the trainer halts: it counts for nothing.
        let Some(work) = &mut self.work else { return };
        work.cursor += windows;
        work.steps = work.steps.next();
        self.vitals.counter = work.cursor.0;
        if let Doing::Training(plan) = self.doing
            && self.checkpoint_at.is_some_and(|at| at <= now)
        {
            self.halt(now, Then::Save(plan));
        }
    }

    /// Ends the training under way, and goes on with `then` when it has ended.
    pub(super) fn halt(&mut self, now: MonoMs, then: Then) {
        self.actions.push(Action::Halt);
        self.enter(now, Doing::Halting(then));
    }

    pub(super) fn training_ended(&mut self, now: MonoMs) {
        self.job = None;
        match self.doing {
            // There may be more of the plan, behind a mark that was raised since.
            Doing::Training(plan) => self.train(now, plan),
            _ => self.halted(now),
        }
    }

    /// Writes a checkpoint within the phase, if there is more of it to come.
    pub(super) fn save(&mut self, now: MonoMs, plan: Plan) {
        let Some(work) = self.work.clone() else {
            return self.go_on(now);
        };
        let all = self
            .lease
            .as_ref()
            .is_none_or(|lease| work.trained() >= planned(plan, lease));
        if self.leaving() || all {
            return self.contribute(now);
        }
        self.enter(now, Doing::Checkpointing(Some(plan)));
        self.start_job(Job::Checkpoint, Action::Checkpoint(work));
    }

    pub(super) fn checkpoint_durable(&mut self, now: MonoMs) {
        (self.job, self.checkpoint_at) = (None, None);
        match self.doing {
            Doing::Checkpointing(Some(plan)) if !self.leaving() => self.train(now, plan),
            Doing::Checkpointing(Some(_)) => self.contribute(now),
            Doing::Checkpointing(None) => self.enter(now, Doing::Announcing),
            _ => self.halted(now),
        }
    }

    /// What is being trained cannot count: it is halted.
    pub(super) fn abandon(&mut self, now: MonoMs, why: Void) {
        self.void(why);
        match self.job {
            Some(_) => self.halt(now, Then::Ask),
            None => self.go_on(now),
        }
    }
}

/// Windows of the phase: what the plan says, less what another replica took of the lease.
fn planned(plan: Plan, lease: &LeaseView) -> Windows {
    plan.windows.min(lease.left())
}
