//! What a generation's manifest says of the run's course; learning rates are functions of it.

use crate::{End, RunSpec};
use hansa_base::{Generation, Hash, Steps, Tokens};

/// A generation and where it stands in the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerationInfo {
    /// Its number.
    pub generation: Generation,
    /// Hash of the manifest of the model that travels.
    pub manifest: Hash,
    /// Cumulative inner step: per round, the largest number of steps that a member took.
    pub inner_step: Steps,
    /// Tokens committed up to this generation.
    pub tokens: Tokens,
    /// Part of the run that is done, `0..=1`.
    pub progress: f64,
    /// Progress expected of the round that starts here: that of the last one, or of one base phase.
    pub progress_per_round: f64,
}

impl GenerationInfo {
    /// Generation 0 of a run.
    #[must_use]
    pub fn first(spec: &RunSpec, manifest: Hash) -> Self {
        let phase = spec.phase.steps.0 * spec.step_windows(1).0;
        let one_phase = spec.tokens(hansa_base::Windows(phase));
        Self {
            generation: Generation(0),
            manifest,
            inner_step: Steps(0),
            tokens: Tokens(0),
            progress: 0.0,
            progress_per_round: progress(spec, Generation(1), one_phase),
        }
    }

    /// The generation after a round that took `steps` inner steps over `tokens` tokens.
    #[must_use]
    pub fn after_round(
        &self,
        spec: &RunSpec,
        manifest: Hash,
        steps: Steps,
        tokens: Tokens,
    ) -> Self {
        let generation = self.generation.next();
        let tokens = self.tokens + tokens;
        let done = progress(spec, generation, tokens);
        Self {
            generation,
            manifest,
            inner_step: self.inner_step + steps,
            tokens,
            progress: done,
            progress_per_round: done - self.progress,
        }
    }
}

fn progress(spec: &RunSpec, generation: Generation, tokens: Tokens) -> f64 {
    let (done, all) = match spec.end {
        End::Rounds(rounds) => (generation.0, rounds),
        End::Tokens(target) => (tokens.0, target.0),
        End::Epochs(epochs) => (
            tokens.0,
            spec.tokens(spec.digest.windows).0 * u64::from(epochs),
        ),
    };
    (done as f64 / all.max(1) as f64).min(1.0)
}
