//! The end of a phase: encode, checkpoint with the contribution in it, announce, upload.

use super::api::{Action, Call, ExitReason, Notice, Void};
use super::machine::{Doing, Held, Job, ReplicaMachine, Weights};
use crate::{Announce, ContributionParts, Refusal, Span, Verdict};
use hansa_base::{Bytes, Hash, MonoMs, Windows};

impl ReplicaMachine {
    /// Contributes what has been trained since the front.
    pub(super) fn contribute(&mut self, now: MonoMs) {
        let trained = self
            .work
            .as_ref()
            .filter(|work| work.trained() > Windows(0));
        match trained.map(|work| work.base) {
            Some(base) => {
                self.enter(now, Doing::Encoding);
                self.start_job(Job::Encode, Action::Encode { base });
            }
            None => {
                self.drop_empty_work();
                self.go_on(now);
            }
        }
    }

    /// Work without a step is no work: the weights are its base.
    fn drop_empty_work(&mut self) {
        if let (Weights::Work, Some(work)) = (self.weights, self.work.take()) {
            self.weights = Weights::Clean(work.base);
        }
    }

    /// The payload is durable; now the checkpoint that names it, and only then the announcement.
    pub(super) fn encoded(&mut self, now: MonoMs, payload: Hash, bytes: Bytes) {
        self.job = None;
        if self.doing != Doing::Encoding {
            return self.halted(now);
        }
        let (Some(work), Some(lease)) = (&mut self.work, &self.lease) else {
            return self.go_on(now);
        };
        let windows = work.trained();
        work.contribution = Some(ContributionParts {
            generation: work.base.generation,
            base: work.base.manifest,
            spans: Span::split(&lease.spans, windows).0,
            tokens: self.spec.tokens(windows),
            steps: work.steps,
            payload,
            bytes,
        });
        let work = work.clone();
        self.enter(now, Doing::Checkpointing(None));
        self.start_job(Job::Checkpoint, Action::Checkpoint(work));
    }

    fn parts(&self) -> Option<&ContributionParts> {
        self.work.as_ref()?.contribution.as_ref()
    }

    pub(super) fn announcement(&self) -> Option<Call> {
        let (caller, parts) = (self.caller()?, self.parts()?.clone());
        Some(Call::Announce(Announce { caller, parts }))
    }

    pub(super) fn upload(&self) -> Option<Call> {
        let parts = self.parts()?;
        Some(Call::Upload {
            caller: self.caller()?,
            id: parts.id(),
            payload: parts.payload,
        })
    }

    pub(super) fn verdict(&mut self, now: MonoMs, verdict: Verdict) {
        match verdict {
            Verdict::Upload if self.doing == Doing::Uploading => {
                self.unreachable(now, "the upload is not complete".to_owned());
            }
            Verdict::Upload => self.enter(now, Doing::Uploading),
            Verdict::Staged | Verdict::Merged(_) => self.accept(now),
            Verdict::Refused(because) => {
                self.void(Void::Refused(because));
                self.go_on(now);
            }
        }
    }

    /// The phase is accepted: its moments are those to go on from.
    fn accept(&mut self, now: MonoMs) {
        if let Some(work) = self.work.take() {
            self.actions.push(Action::Promote);
            self.accepted = true;
            let bytes = work.contribution.as_ref().map(|parts| parts.bytes);
            // One that was accepted before it was sent by this process took no time to send.
            if let (Some(bytes), Doing::Uploading) = (bytes, &self.doing) {
                self.vitals.uploaded(bytes);
            }
            if self.weights == Weights::Work {
                (self.weights, self.held) = (Weights::Spent(work.base), Held::Accepted);
            }
            self.tell(Notice::Accepted {
                base: work.base.generation,
                windows: work.trained(),
            });
        }
        self.go_on(now);
    }

    pub(super) fn contribution_refused(&mut self, now: MonoMs, refusal: Refusal) {
        match refusal {
            // It was decided while it was being sent: an announcement tells how.
            Refusal::UnknownContribution(_) if self.doing == Doing::Uploading => {
                self.enter(now, Doing::Announcing);
            }
            Refusal::WrongTokens { .. } => self.exit(now, ExitReason::Refused(refusal)),
            refusal => {
                self.void(Void::NotAccepted(refusal));
                self.go_on(now);
            }
        }
    }
}
