//! What the trainer's thread does: phases, evaluations, checkpoints, encodings.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hansa_base::{Hash, ReplicaId, Tokens, Windows};
use hansa_outer::{Codec, Dither};
use hansa_protocol::BlockSpace;
use hansa_protocol::replica::{Input, LocalState, Moments, TrainOrder};
use hansa_store::Manifest;
use hansa_train::Schedule;

use crate::checkpoint;
use crate::contribution::{self, EncodeError};
use crate::error::Error;
use crate::event::SessionEvent;
use crate::shell::Msg;
use crate::state_dir::StateDir;
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
            Err(error) => return spoilt(reports, "train", &error),
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

/// Measures the loss over the first `windows` held-out windows, `batch` at a time for each rank.
pub(crate) fn evaluate(
    trainer: &mut dyn Trainer,
    reports: &Reports,
    generation: u64,
    windows: u64,
    batch: u64,
) {
    let together = batch.max(1) * u64::from(trainer.ranks());
    let mut sum = EvaluationReport::default();
    let (mut done, mut told) = (0, Instant::now());
    while done < windows {
        if reports.over() {
            return;
        }
        let end = windows.min(done + together);
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
    let restored = match moments {
        Moments::Keep => Ok(()),
        Moments::Accepted => trainer.restore_moments(Some(accepted)),
        Moments::Fresh => trainer.restore_moments(None),
    };
    if let Err(error) = restored {
        if matches!(error, TrainerError::Lost(_)) {
            return failed(reports, "take up the optimiser's moments", &error);
        }
        let path = accepted.display();
        return reports.input(Input::Failed(format!(
            "take the optimiser's moments from {path}: {error}; if that file is damaged, delete it: \
             the optimiser then starts afresh"
        )));
    }
    match trainer.load_weights(model) {
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

/// Writes the checkpoint; a contribution that it does not name is of no use any more.
pub(crate) fn checkpoint(
    trainer: &mut dyn Trainer,
    reports: &Reports,
    state: &StateDir,
    local: &LocalState,
    payload: Option<&Manifest>,
) {
    let meta = checkpoint::to_meta(local, payload);
    let mut saved = trainer.save_checkpoint(&state.latest(), &meta);
    // The disk may be full.
    if matches!(saved, Err(TrainerError::Failed(_))) && state.give_back_spare() {
        saved = trainer.save_checkpoint(&state.latest(), &meta);
    }
    if let Err(error) = saved {
        return spoilt(reports, "write the checkpoint", &error);
    }
    let named = local.contribution.as_ref().map(|parts| parts.payload);
    if let Err(error) = state.keep_only_contribution(named) {
        tracing::warn!(%error, "cannot remove old contributions");
    }
    reports.input(Input::CheckpointDurable);
}

/// How a contribution travels.
#[derive(Clone, Copy)]
pub(crate) struct Encoding {
    pub codec: Codec,
    pub dither: Dither,
    pub chunk_bytes: u64,
}

/// How a replica's contribution to a generation is rounded: made again, it is the same file. A replica
/// contributes to a generation once, so no two contributions are rounded alike.
pub(crate) fn dither_of(replica: &ReplicaId, base: Hash) -> Dither {
    let mut identity = b"hansa dither\0".to_vec();
    identity.extend(base.0);
    identity.extend(replica.to_string().into_bytes());
    let hash = hansa_store::hash_bytes(&identity);
    Dither::new(std::array::from_fn(|i| hash.0[i]))
}

/// Encodes the contribution: the file `base` minus the weights.
pub(crate) fn encode(
    trainer: &mut dyn Trainer,
    reports: &Reports,
    state: &StateDir,
    base: &Path,
    encoding: Encoding,
) {
    let draft = state.contribution_draft();
    let Encoding {
        codec,
        dither,
        chunk_bytes,
    } = encoding;
    let mut encoded = contribution::encode(trainer, base, codec, dither, &draft, chunk_bytes);
    // The disk may be full.
    if matches!(encoded, Err(EncodeError::Io { .. })) && state.give_back_spare() {
        encoded = contribution::encode(trainer, base, codec, dither, &draft, chunk_bytes);
    }
    let manifest = match encoded {
        Ok(manifest) => manifest,
        Err(EncodeError::Trainer(error)) => return spoilt(reports, "export weights", &error),
        Err(error @ EncodeError::BadValue { .. }) => {
            return reports.input(Input::NotFinite(error.to_string()));
        }
        Err(error) => return reports.input(Input::Failed(error.to_string())),
    };
    match state.name_contribution(manifest.hash()) {
        Ok(()) => reports.send(Msg::Encoded(manifest)),
        Err(error) => reports.input(Input::Failed(error.to_string())),
    }
}

/// A job on what was trained failed: if that is not finite, the data may be the reason.
fn spoilt(reports: &Reports, what: &str, error: &TrainerError) {
    match error {
        TrainerError::NonFinite(_) => reports.input(Input::NotFinite(format!("{what}: {error}"))),
        _ => failed(reports, what, error),
    }
}

fn failed(reports: &Reports, what: &str, error: &TrainerError) {
    let said = format!("{what}: {error}");
    match error {
        TrainerError::Lost(_) => reports.send(Msg::Fatal(Error::TrainerLost(said))),
        _ => reports.input(Input::Failed(said)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fake::Fake;
    use hansa_base::{Epoch, Generation, Steps};
    use hansa_outer::{Layout, TensorSpec};
    use hansa_protocol::{GenerationInfo, Span};
    use tokio::sync::mpsc;

    #[test]
    fn rounding_repeats_itself_for_one_contribution_only() {
        let (a, b): (ReplicaId, ReplicaId) = ("lumi/a".parse().unwrap(), "lumi/b".parse().unwrap());
        let (one, two) = (Hash([1; 32]), Hash([2; 32]));
        assert_eq!(dither_of(&a, one), dither_of(&a, one));
        assert_ne!(dither_of(&a, one), dither_of(&a, two));
        assert_ne!(dither_of(&a, one), dither_of(&b, one));
    }

    fn fake() -> Fake {
        let tensor = TensorSpec {
            name: "w".to_owned(),
            shape: vec![1],
        };
        Fake::new(Layout::new([tensor]).unwrap(), vec![0.0])
    }

    /// Positions 3..10 in steps of three, of which one step is done; the base is at step 100, half
    /// way through the run, and the phase is a tenth of it.
    fn phase() -> Phase {
        let base = GenerationInfo {
            generation: Generation(4),
            manifest: Hash([1; 32]),
            inner_step: Steps(100),
            tokens: Tokens(0),
            progress: 0.5,
            progress_per_round: 0.1,
        };
        Phase {
            order: TrainOrder {
                epoch: Epoch(0),
                spans: vec![Span::new(3, 8), Span::new(20, 22)],
                step_windows: Windows(3),
                accumulation: 1,
                base,
                steps_done: Steps(1),
                steps_planned: Steps(4),
            },
            space: Arc::new(BlockSpace::new(Windows(24), Windows(4), 7, Epoch(0))),
            schedule: Schedule {
                peak_lr: 1.0,
                warmup_steps: 0,
                decay_fraction: 1.0,
                floor: 0.0,
            },
            pace: None,
            halt: Arc::new(AtomicBool::new(false)),
        }
    }

    fn run(phase: &Phase, trainer: &mut Fake) -> Vec<Msg> {
        let (sender, mut receiver) = mpsc::channel(64);
        train(trainer, &Reports::to(sender), phase);
        std::iter::from_fn(|| receiver.try_recv().ok()).collect()
    }

    #[test]
    fn all_ranks_share_an_evaluation() {
        let mut trainer = fake();
        trainer.ranks = 4;
        let (sender, mut receiver) = mpsc::channel(64);
        evaluate(&mut trainer, &Reports::to(sender), 7, 19, 2);
        assert_eq!(trainer.evaluated, [0..8, 8..16, 16..19]);
        let told = std::iter::from_fn(|| receiver.try_recv().ok());
        let Some(Msg::Input(Input::Measured { tokens, .. })) = told.last() else {
            panic!("nothing was measured");
        };
        assert_eq!(tokens, Tokens(19));
    }

    #[test]
    fn a_phase_reads_its_positions_in_order_and_rates_follow_the_plan() {
        let (phase, mut trainer) = (phase(), fake());
        let told = run(&phase, &mut trainer);
        let positions = (3..8).chain(20..22).map(hansa_base::Position);
        let expected: Vec<u64> = positions
            .map(|p| phase.space.window_at(p).unwrap())
            .collect();
        let trained: Vec<u64> = trainer.steps.iter().flat_map(|s| s.0.clone()).collect();
        assert_eq!(trained, expected);
        let sizes: Vec<usize> = trainer.steps.iter().map(|s| s.0.len()).collect();
        assert_eq!(sizes, [3, 3, 1]);
        // Steps 1, 2, 3 of 4: progress 0.525, 0.55, 0.575.
        for (at, (_, lr)) in trainer.steps.iter().enumerate() {
            let progress = 0.5 + 0.1 * (at + 1) as f64 / 4.0;
            assert_eq!(*lr, phase.schedule.lr(101 + at as u64, progress));
        }
        let steps = told.iter().filter(|m| matches!(m, Msg::Step(_))).count();
        assert_eq!(steps, 3);
        assert!(matches!(
            told.last(),
            Some(Msg::Input(Input::TrainingEnded))
        ));
    }

    #[test]
    fn a_halt_ends_it_between_steps_and_a_failure_is_told() {
        let (halted, mut trainer) = (phase(), fake());
        halted.halt.store(true, Ordering::Relaxed);
        let told = run(&halted, &mut trainer);
        assert!(matches!(told[..], [Msg::Input(Input::TrainingEnded)]));
        assert!(trainer.steps.is_empty());

        trainer.poison = halted.space.window_at(hansa_base::Position(7));
        let told = run(&phase(), &mut trainer);
        let Some(Msg::Input(Input::NotFinite(why))) = told.last() else {
            panic!("it trained on");
        };
        assert!(why.starts_with("train: loss of window"), "{why}");
        assert_eq!(trainer.steps.len(), 1);
    }

    #[test]
    fn an_evaluation_covers_every_window_and_shows_progress() {
        let (sender, mut receiver) = mpsc::channel(64);
        evaluate(&mut fake(), &Reports::to(sender), 4, 7, 3);
        let told = std::iter::from_fn(|| receiver.try_recv().ok());
        let inputs: Vec<Input> = told
            .filter_map(|m| match m {
                Msg::Input(input) => Some(input),
                _ => None,
            })
            .collect();
        let measured = Input::Measured {
            loss_sum_nats: 14.0,
            tokens: Tokens(7),
        };
        let advanced = [3, 6, 7].map(Input::Advanced);
        assert_eq!(inputs[..3], advanced);
        assert_eq!(inputs[3..], [measured]);
    }
}
