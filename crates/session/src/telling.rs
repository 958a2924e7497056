//! From what happens in the loop to events for people. Only tells; never influences anything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hansa_base::Generation;
use hansa_protocol::replica::{CallFailed, Found, Input, Notice, ReplicaMachine, TrainOrder, Void};
use hansa_protocol::{Activity, GenerationInfo, Reply, RunSpec};

use crate::diary::Diary;
use crate::event::SessionEvent;
use crate::jobs::StepDone;

/// What still holds is said again this often.
const AGAIN_EVERY: Duration = Duration::from_secs(30);

/// Keeps in mind what events need.
pub(crate) struct Telling {
    diary: Arc<Diary>,
    seq_len: u64,
    joined: Option<(u64, u64)>,
    loading: Option<GenerationInfo>,
    evaluating: u64,
    /// The phase under way, and its planned steps.
    phase: Option<(Generation, u64)>,
    /// Steps and windows that were trained since the last front.
    trained: (u64, u64),
    waiting: Option<(String, Instant)>,
    away: Option<Away>,
    leaving: bool,
}

struct Away {
    since: Instant,
    told: Instant,
}

impl Telling {
    pub fn new(diary: Arc<Diary>, spec: &RunSpec, found: &Found) -> Self {
        let latest = found.latest.as_ref();
        Self {
            diary,
            seq_len: u64::from(spec.digest.seq_len),
            joined: None,
            loading: None,
            evaluating: 0,
            phase: None,
            trained: latest.map_or((0, 0), |state| (state.steps.0, state.trained().0)),
            waiting: None,
            away: None,
            leaving: false,
        }
    }

    pub fn tell(&self, event: &SessionEvent) {
        self.diary.tell(event);
    }

    pub fn loading(&mut self, generation: GenerationInfo) {
        self.loading = Some(generation);
    }

    /// The generation whose loading has just ended.
    pub fn loaded(&self) -> Option<GenerationInfo> {
        self.loading
    }

    pub fn evaluating(&mut self, generation: u64) {
        self.evaluating = generation;
    }

    /// An input is about to reach the machine.
    pub fn input(&mut self, input: &Input) {
        match input {
            Input::Loaded => {
                if let Some(generation) = self.loading.take() {
                    self.tell(&SessionEvent::Adopted {
                        generation: generation.generation.0,
                        inner_step: generation.inner_step.0,
                        tokens: generation.tokens.0,
                        progress: generation.progress,
                    });
                }
            }
            Input::Superseded => self.loading = None,
            Input::Measured {
                loss_sum_nats,
                tokens,
            } => {
                let loss = loss_sum_nats / tokens.0.max(1) as f64;
                self.tell(&SessionEvent::Evaluated {
                    generation: self.evaluating,
                    loss,
                    perplexity: loss.exp(),
                    tokens: tokens.0,
                });
            }
            _ => {}
        }
    }

    /// A phase begins, or goes on.
    pub fn phase(&mut self, order: &TrainOrder, machine: &ReplicaMachine) {
        self.waiting = None;
        let (base, steps) = (order.base.generation, order.steps_planned.0);
        let known = self.phase == Some((base, steps));
        self.phase = Some((base, steps));
        let glance = machine.glance();
        if order.steps_done.0 == 0 {
            let left: u64 = order.spans.iter().map(hansa_protocol::Span::len).sum();
            self.tell(&SessionEvent::PhaseStarted {
                generation: base.0,
                steps,
                windows: left,
            });
        } else if !known {
            self.tell(&SessionEvent::Resumed {
                generation: base.0,
                step: order.steps_done.0,
                windows: glance.trained.0,
            });
        }
    }

    /// A step is about to reach the machine.
    pub fn step(&mut self, step: &StepDone, machine: &ReplicaMachine) {
        let (Some((base, steps)), glance) = (self.phase, machine.glance()) else {
            return;
        };
        self.trained = (glance.steps.0 + 1, glance.trained.0 + step.windows.0);
        let tokens = (step.windows.0 * self.seq_len) as f64;
        let rate = tokens / step.duration.as_secs_f64().max(1e-9);
        self.tell(&SessionEvent::Step {
            generation: base.0,
            step: self.trained.0,
            steps,
            windows: self.trained.1,
            loss: step.loss,
            lr: step.lr,
            tokens_per_s: glance
                .tokens_per_s
                .map_or(rate, |old| 0.8 * old + 0.2 * rate),
        });
    }

    pub fn leaving(&mut self, machine: &ReplicaMachine) {
        if !std::mem::replace(&mut self.leaving, true) {
            let steps = machine.glance().steps.0;
            self.tell(&SessionEvent::Leaving { steps });
        }
    }

    pub fn notice(&mut self, notice: &Notice) {
        let event = match notice {
            Notice::Joined { inherited } => {
                let (incarnation, generation) = self.joined.unwrap_or_default();
                SessionEvent::Registered {
                    incarnation,
                    generation,
                    inherited_windows: inherited.0,
                }
            }
            // What makes the coordinator unreachable is told by `away`, which also sees heartbeats
            // and transfers.
            Notice::Retrying { .. } if self.away.is_some() => return,
            Notice::Retrying { why, .. } => return self.wait(format!("trying again: {why}")),
            Notice::Void(Void::Refused(_) | Void::NotAccepted(_)) => {
                self.phase = None;
                let reason = notice.to_string();
                SessionEvent::ContributionRefused { reason }
            }
            Notice::Void(_) => {
                self.phase = None;
                SessionEvent::WorkDropped {
                    windows: self.trained.1,
                    reason: notice.to_string(),
                }
            }
            Notice::Accepted { base, windows } => {
                self.phase = None;
                SessionEvent::Contributed {
                    generation: base.0,
                    steps: self.trained.0,
                    windows: windows.0,
                    tokens: windows.0 * self.seq_len,
                }
            }
            Notice::Leaving(_) => SessionEvent::ToldToLeave {
                reason: notice.to_string(),
            },
            Notice::Busy(_) | Notice::AtMark | Notice::Waiting(_) => {
                return self.wait(notice.to_string());
            }
        };
        self.tell(&event);
    }

    fn wait(&mut self, reason: String) {
        let now = Instant::now();
        let known = self.waiting.as_ref();
        if known.is_some_and(|(old, told)| *old == reason && now - *told < AGAIN_EVERY) {
            return;
        }
        self.waiting = Some((reason.clone(), now));
        self.tell(&SessionEvent::Waiting { reason });
    }

    /// Time has passed.
    pub fn still_waiting(&mut self, machine: &ReplicaMachine) {
        if machine.activity() != Activity::Waiting || self.away.is_some() {
            return;
        }
        if let Some((reason, _)) = self.waiting.clone() {
            self.wait(reason);
        }
    }

    /// A call ended.
    pub fn answered(&mut self, answer: &Result<Reply, CallFailed>) {
        if let Ok(Reply::Registered(registered)) = answer {
            let generation = registered.current.generation;
            self.joined = Some((registered.incarnation.0, generation.0));
        }
        match answer {
            Err(CallFailed::Unreachable(why)) => self.away(why),
            _ => self.back(),
        }
    }

    /// The coordinator did not answer.
    pub fn away(&mut self, why: &str) {
        let now = Instant::now();
        if self
            .away
            .as_ref()
            .is_some_and(|away| now - away.told < AGAIN_EVERY)
        {
            return;
        }
        let since = self.away.as_ref().map_or(now, |away| away.since);
        self.away = Some(Away { since, told: now });
        self.tell(&SessionEvent::CoordinatorAway {
            for_s: (now - since).as_secs_f64(),
            reason: why.to_owned(),
        });
    }

    fn back(&mut self) {
        if let Some(away) = self.away.take() {
            let after_s = away.since.elapsed().as_secs_f64();
            self.tell(&SessionEvent::CoordinatorBack { after_s });
        }
    }
}
