//! What the trainer's thread does: phases, evaluations, checkpoints, encodings.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hansa_base::{Tokens, Windows};
use hansa_outer::Dtype;
use hansa_protocol::BlockSpace;
use hansa_protocol::replica::{Input, LocalState, Moments, TrainOrder};
use hansa_store::Manifest;
use hansa_train::Schedule;

use crate::checkpoint;
use crate::contribution;
use crate::event::SessionEvent;
use crate::shell::Msg;
use crate::trainer::{EvaluationReport, Trainer, TrainerError};
use crate::worker::Reports;

/// A pause is cut into pieces of this length, so that a stop need not wait for its end.
const PAUSE_PIECE: Duration = Duration::from_millis(20);
/// Progress of an evaluation is told this often.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// A step, for the machine and for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepDone {
    pub windows: Windows,
    pub duration: Duration,
    pub loss: f64,
    pub lr: f64,
}

/// One [`TrainOrder`], with what it takes to carry it out.
pub(crate) struct Phase {
    pub order: TrainOrder,
    pub space: Arc<BlockSpace>,
    pub schedule: Schedule,
    pub pace: Option<f64>,
    /// Set when the phase is to end after its current step.
    pub halt: Arc<AtomicBool>,
}

impl Phase {
    fn ends(&self, reports: &Reports) -> bool {
        self.halt.load(Ordering::Relaxed) || reports.over()
    }

    /// The learning rate of the `step`-th step of the phase (from 0): within a phase, progress
    /// advances by the plan, so that replicas with the same plan agree on every rate.
    fn lr(&self, step: u64) -> f64 {
        let (base, planned) = (&self.order.base, self.order.steps_planned.0.max(1));
        let share = (step as f64 / planned as f64).min(1.0);
        let progress = base.progress + share * base.progress_per_round;
        self.schedule.lr(base.inner_step.0 + step, progress)
    }

    fn windows(&self) -> impl Iterator<Item = u64> {
        let runs = self
            .order
            .spans
            .iter()
            .flat_map(|span| self.space.runs(*span));
        runs.flat_map(|run| run.first..run.first + run.count)
    }
}

/// Trains a phase, step by step, until its end or until it is halted.
pub(crate) fn train(trainer: &mut dyn Trainer, reports: &Reports, phase: &Phase) {
    let step_windows = phase.order.step_windows.0.max(1) as usize;
    let mut windows = phase.windows();
    let mut batch = Vec::with_capacity(step_windows);
    for step in phase.order.steps_done.0.. {
        batch.clear();
        batch.extend(windows.by_ref().take(step_windows));
        if batch.is_empty() || phase.ends(reports) {
            break;
        }
        let started = Instant::now();
        let lr = phase.lr(step);
        let report = match trainer.train_step(&batch, lr) {
            Ok(report) => report,
            Err(error) => return failed(reports, "train", &error),
        };
        keep_pace(phase, reports, batch.len(), started);
        reports.send(Msg::Step(StepDone {
            windows: Windows(batch.len() as u64),
            duration: started.elapsed(),
            loss: report.loss,
            lr,
        }));
    }
    reports.input(Input::TrainingEnded);
}

/// Sleeps for what is left of the time that so many windows may take.
fn keep_pace(phase: &Phase, reports: &Reports, windows: usize, started: Instant) {
    let Some(pace) = phase.pace else { return };
    let due = started + Duration::from_secs_f64(windows as f64 / pace);
    while !phase.ends(reports) {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(PAUSE_PIECE));
    }
}

/// Measures the loss over the first `windows` held-out windows, `batch` at a time.
pub(crate) fn evaluate(
    trainer: &mut dyn Trainer,
    reports: &Reports,
    generation: u64,
    windows: u64,
    batch: u64,
) {
    let mut sum = EvaluationReport::default();
    let (mut done, mut told) = (0, Instant::now());
    while done < windows {
        if reports.over() {
            return;
        }
        let end = windows.min(done + batch.max(1));
        match trainer.evaluate(done..end) {
            Ok(part) => {
                sum.loss_sum_nats += part.loss_sum_nats;
                sum.tokens = Tokens(sum.tokens.0 + part.tokens.0);
            }
            Err(error) => return failed(reports, "evaluate", &error),
        }
        done = end;
        reports.input(Input::Advanced(done));
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            reports.send(Msg::Tell(SessionEvent::Evaluating {
                generation,
                done_windows: done,
                total_windows: windows,
            }));
        }
    }
    reports.input(Input::Measured {
        loss_sum_nats: sum.loss_sum_nats,
        tokens: sum.tokens,
    });
}

/// Makes a downloaded generation the trainer's weights.
pub(crate) fn load(
    trainer: &mut dyn Trainer,
    reports: &Reports,
    model: &Path,
    moments: Moments,
    accepted: &Path,
) {
    let loaded = match moments {
        Moments::Keep => Ok(()),
        Moments::Accepted => trainer.restore_moments(Some(accepted)),
        Moments::Fresh => trainer.restore_moments(None),
    };
    match loaded.and_then(|()| trainer.load_weights(model)) {
        Ok(()) => reports.input(Input::Loaded),
        Err(error) => failed(reports, "load a generation", &error),
    }
}

/// Takes up the checkpoint.
pub(crate) fn restore(trainer: &mut dyn Trainer, reports: &Reports, latest: &Path) {
    match trainer.load_checkpoint(latest) {
        Ok(_) => reports.input(Input::Loaded),
        Err(error) => failed(reports, "load the checkpoint", &error),
    }
}

/// Writes the checkpoint.
pub(crate) fn checkpoint(
    trainer: &mut dyn Trainer,
    reports: &Reports,
    latest: &Path,
    state: &LocalState,
    payload: Option<&Manifest>,
) {
    let meta = checkpoint::to_meta(state, payload);
    match trainer.save_checkpoint(latest, &meta) {
        Ok(()) => reports.input(Input::CheckpointDurable),
        Err(error) => failed(reports, "write the checkpoint", &error),
    }
}

/// Where a contribution comes from and goes to.
pub(crate) struct EncodeJob {
    pub base: PathBuf,
    pub dtype: Dtype,
    pub out: PathBuf,
    pub chunk_bytes: u64,
}

/// Encodes the contribution.
pub(crate) fn encode(trainer: &mut dyn Trainer, reports: &Reports, job: &EncodeJob) {
    let encoded = contribution::encode(trainer, &job.base, job.dtype, &job.out);
    if let Err(error) = encoded {
        return reports.input(Input::Failed(error.to_string()));
    }
    match Manifest::of_file(&job.out, job.chunk_bytes) {
        Ok(manifest) => reports.send(Msg::Encoded(manifest)),
        Err(error) => reports.input(Input::Failed(error.to_string())),
    }
}

fn failed(reports: &Reports, what: &str, error: &TrainerError) {
    reports.input(Input::Failed(format!("{what}: {error}")));
}
