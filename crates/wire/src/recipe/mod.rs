//! The recipe: one TOML file says everything about a run.
//!
//! It is parsed in one place, at the coordinator; replicas receive the canonical text, in which every
//! default is written out. What the file says and what runs is therefore the same, and unknown keys
//! are errors. Never here: reading files, and anything that differs from site to site.

mod error;
mod sections;

use std::path::Path;

use hansa_base::{Epoch, Hash, Windows};
use hansa_corpus::Manifest;
use hansa_protocol::{BlockSpace, DigestFields, End, RunSpec, ShardIdentity, Timing};
use hansa_train::{ModelConfig, TrainError};
use serde::{Deserialize, Serialize};

use crate::strict::{FileError, keys_of, read_toml};

pub use error::RecipeError;
use sections::seconds;
pub use sections::{
    CheckpointSection, CorpusSection, EndSection, EvaluationSection, ExchangeSection, InnerSection,
    LeaseSection, OuterSection, PhaseSection, PlanObjective, PlanPolicy, PlanSection,
    RoundsSection,
};

/// A whole recipe, checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// The run's name, for people.
    pub name: String,
    /// The model's sizes, under the names of Hugging Face's `config.json`.
    pub model: ModelConfig,
    /// What is trained on, in which order.
    pub corpus: CorpusSection,
    /// What one replica does between two exchanges.
    pub phase: PhaseSection,
    /// AdamW and its learning rate.
    pub inner: InnerSection,
    /// The step from one generation to the next.
    #[serde(default)]
    pub outer: OuterSection,
    /// How weights travel.
    #[serde(default)]
    pub exchange: ExchangeSection,
    /// When a round closes.
    #[serde(default)]
    pub rounds: RoundsSection,
    /// How long leases and sessions live.
    #[serde(default)]
    pub lease: LeaseSection,
    /// Held-out loss.
    #[serde(default)]
    pub evaluation: EvaluationSection,
    /// The replicas' own checkpoints.
    #[serde(default)]
    pub checkpoint: CheckpointSection,
    /// Who decides which jobs are wanted.
    #[serde(default, skip_serializing_if = "PlanSection::is_default")]
    pub plan: PlanSection,
    /// When the run is complete.
    pub end: EndSection,
}

impl Recipe {
    /// Reads a recipe; `path` is only named in messages.
    ///
    /// # Errors
    /// Text that is no TOML; keys that are unknown (all of them, each with the nearest known one) or
    /// missing; values of another type or that cannot work.
    pub fn parse(text: &str, path: &Path) -> Result<Self, RecipeError> {
        let recipe: Self = read_toml(text, path, known_keys)?;
        recipe
            .check()
            .map_err(|(key, problem)| FileError::value(text, path, key, problem))?;
        Ok(recipe)
    }

    /// The recipe with every default written out; parses to an equal one.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Structs of numbers and strings cannot fail to serialise.
        toml::to_string(self).unwrap_or_default()
    }

    /// What must not change while a run lasts: [`Recipe::to_toml`] without paths, which may differ
    /// from machine to machine (contents are compared by hash), and without who plans.
    #[must_use]
    pub fn identity(&self) -> String {
        let mut recipe = self.clone();
        recipe.corpus.path = Path::new("").to_owned();
        recipe.inner.init_from = None;
        recipe.plan = PlanSection::default();
        recipe.to_toml()
    }

    /// What differs between the recipe that a run began with and this one, as a unified diff; `None`
    /// if nothing does.
    #[must_use]
    pub fn difference(&self, began_with: &Self) -> Option<String> {
        let (old, new) = (began_with.identity(), self.identity());
        (old != new).then(|| {
            let diff = similar::TextDiff::from_lines(&old, &new);
            let mut unified = diff.unified_diff();
            unified.context_radius(2).header("the run", "this recipe");
            unified.to_string()
        })
    }

    /// Positions and corpus: what a replica and the coordinator must agree on.
    ///
    /// # Errors
    /// If recipe and corpus do not fit.
    pub fn digest_fields(&self, corpus: &Manifest) -> Result<DigestFields, RecipeError> {
        self.check_corpus(corpus)?;
        let identity = corpus.identity();
        let (windows, block) = (identity.train_windows, Windows(self.corpus.block_windows));
        let shards = |split: &hansa_corpus::SplitRecord| {
            split
                .shards
                .iter()
                .map(|shard| ShardIdentity {
                    name: shard.file.clone(),
                    hash: shard.hash,
                })
                .collect()
        };
        let space = BlockSpace::new(windows, block, self.corpus.seed, Epoch(0));
        Ok(DigestFields {
            format_version: identity.format_version,
            windows,
            block,
            seed: self.corpus.seed,
            epoch_rule: RunSpec::EPOCH_RULE.to_owned(),
            permutation_check: space.check_value(),
            tokenizer: identity.tokenizer_hash,
            dtype: identity.dtype.name().to_owned(),
            seq_len: identity.seq_len,
            shards: shards(&corpus.train),
            held_out: shards(&corpus.held_out),
        })
    }

    /// The protocol's part of the recipe, with this corpus.
    ///
    /// # Errors
    /// If recipe and corpus do not fit, or a value cannot work.
    pub fn run_spec(&self, corpus: &Manifest) -> Result<RunSpec, RecipeError> {
        self.run_spec_with(self.digest_fields(corpus)?)
    }

    /// As [`Recipe::run_spec`], with a digest that is known already.
    ///
    /// # Errors
    /// If a value cannot work.
    pub fn run_spec_with(&self, digest: DigestFields) -> Result<RunSpec, RecipeError> {
        let spec = RunSpec {
            run: self.run_id(&digest),
            digest,
            phase: self.phase.spec(),
            outer: self.outer.spec(),
            timing: self.timing(),
            attempts_max: self.lease.max_attempts,
            min_quorum: self.rounds.min_quorum,
            // Checked by `parse`.
            end: self.end.end().unwrap_or(End::Rounds(1)),
            evaluate_every: self.evaluation.every,
        };
        let broken = |error: hansa_protocol::SpecError| RecipeError::Spec {
            key: error.key,
            problem: error.problem,
        };
        spec.validate().map_err(broken)?;
        Ok(spec)
    }

    /// The run's identity: BLAKE3 over [`Recipe::identity`] and the digest.
    #[must_use]
    pub fn run_id(&self, digest: &DigestFields) -> Hash {
        let mut hasher = blake3::Hasher::new_derive_key("hansa 1 run");
        hasher.update(&digest.digest().0);
        hasher.update(self.identity().as_bytes());
        Hash(*hasher.finalize().as_bytes())
    }

    fn timing(&self) -> Timing {
        // Checked by `parse`.
        let duration = |s| seconds(s).unwrap_or_default();
        Timing {
            alpha: self.lease.alpha,
            beta: self.lease.beta,
            ttl_min: duration(self.lease.ttl_min_s),
            ttl_max: duration(self.lease.ttl_max_s),
            session_ttl: duration(self.lease.session_ttl_s),
            mark_lead: duration(self.lease.mark_lead_s),
            grace: duration(self.rounds.grace_s),
            grace_rule: self.rounds.grace,
            evaluation_budget: duration(self.evaluation.budget_s),
        }
    }

    fn check_corpus(&self, corpus: &Manifest) -> Result<(), RecipeError> {
        let differs = |key, recipe: &dyn ToString, corpus| RecipeError::Corpus {
            key,
            recipe: recipe.to_string(),
            corpus,
        };
        if self.corpus.seq_len != corpus.seq_len {
            let has = format!(
                "the corpus was built with {}; use that, or build it anew",
                corpus.seq_len
            );
            return Err(differs("corpus.seq_len", &self.corpus.seq_len, has));
        }
        let vocab_size = corpus.tokenizer.vocab_size;
        if self.model.vocab_size < vocab_size as usize {
            let has =
                format!("the corpus' tokenizer has {vocab_size} entries; set at least that many");
            return Err(differs("model.vocab_size", &self.model.vocab_size, has));
        }
        if corpus.train.windows.0 == 0 || corpus.train.windows.0 >= 1 << 32 {
            return Err(RecipeError::Spec {
                key: "corpus.path",
                problem: "a corpus of 1 to 2^32 - 1 training windows is needed",
            });
        }
        if self.evaluation.every > 0 && corpus.held_out.windows.0 == 0 {
            let has = "the corpus has no held-out windows; build it with some, or set 0".to_owned();
            return Err(differs("evaluation.every", &self.evaluation.every, has));
        }
        Ok(())
    }

    /// The first value that cannot work, by key.
    fn check(&self) -> Result<(), (String, String)> {
        let in_table = |table: &str, error: TrainError| match error {
            TrainError::Config {
                field,
                value,
                problem,
            } => (format!("{table}.{field}"), format!("is {value}: {problem}")),
            other => (table.to_owned(), other.to_string()),
        };
        self.model.validate().map_err(|e| in_table("model", e))?;
        (self.inner.adamw().validate()).map_err(|e| in_table("inner", e))?;
        (self.inner.schedule().validate()).map_err(|e| in_table("inner", e))?;
        let broken = self.rules().find(|(holds, ..)| !holds);
        broken.map_or(Ok(()), |(_, key, problem)| {
            Err((key.to_owned(), problem.to_owned()))
        })
    }

    fn rules(&self) -> impl Iterator<Item = Rule> {
        let parts = [
            self.rules_of_data(),
            self.rules_of_rounds(),
            self.rules_of_time(),
            self.rules_of_plans(),
        ];
        parts.into_iter().flatten()
    }

    fn rules_of_data(&self) -> Vec<Rule> {
        let (corpus, phase) = (&self.corpus, &self.phase);
        let count = |value: u64| (1..1 << 32).contains(&value);
        let named = !self.name.trim().is_empty() && self.name.len() <= 100;
        let printable = !self.name.chars().any(char::is_control);
        let step = phase.batch.saturating_mul(u64::from(phase.accumulation));
        vec![
            (
                named && printable,
                "name",
                "must be 1 to 100 printable characters",
            ),
            (corpus.seq_len > 0, "corpus.seq_len", "must be at least 1"),
            (
                count(corpus.block_windows),
                "corpus.block_windows",
                "must be 1 to 2^32 - 1",
            ),
            (count(phase.steps), "phase.steps", "must be 1 to 2^32 - 1"),
            (count(phase.batch), "phase.batch", "must be 1 to 2^32 - 1"),
            (
                phase.accumulation > 0,
                "phase.accumulation",
                "must be at least 1",
            ),
            (
                count(phase.steps.saturating_mul(step)),
                "phase.steps",
                "makes a phase of 2^32 windows or more",
            ),
        ]
    }

    fn rules_of_rounds(&self) -> Vec<Rule> {
        let outer_lr = self.outer.lr.is_finite() && self.outer.lr > 0.0;
        let momentum = (0.0..1.0).contains(&self.outer.momentum);
        let chunk_mib = (1..=256).contains(&self.exchange.chunk_mib);
        let windows_max = self.evaluation.windows_max;
        let end = "needs exactly one of `rounds`, `tokens` and `epochs`, at least 1";
        vec![
            (outer_lr, "outer.lr", "must be a number above 0"),
            (momentum, "outer.momentum", "must be at least 0 and below 1"),
            (chunk_mib, "exchange.chunk_mib", "must be 1 to 256"),
            (
                self.rounds.min_quorum > 0,
                "rounds.min_quorum",
                "must be at least 1",
            ),
            (
                windows_max != Some(0),
                "evaluation.windows_max",
                "must be at least 1",
            ),
            (self.end.end().is_some(), "end", end),
        ]
    }

    fn rules_of_time(&self) -> Vec<Rule> {
        const POSITIVE: &str = "must be a number of seconds, more than 0";
        let lease = &self.lease;
        let positive = |s| seconds(s).is_some_and(|duration| !duration.is_zero());
        let finite_from = |value: f64, least: f64| value.is_finite() && value >= least;
        let grace = seconds(self.rounds.grace_s).is_some();
        vec![
            (
                grace,
                "rounds.grace_s",
                "must be a number of seconds, 0 or more",
            ),
            (
                finite_from(lease.alpha, 1.0),
                "lease.alpha",
                "must be a number, at least 1",
            ),
            (
                lease.max_attempts > 0,
                "lease.max_attempts",
                "must be at least 1",
            ),
            (
                finite_from(lease.beta, 0.0),
                "lease.beta",
                "must be a number, at least 0",
            ),
            (positive(lease.ttl_min_s), "lease.ttl_min_s", POSITIVE),
            (positive(lease.ttl_max_s), "lease.ttl_max_s", POSITIVE),
            (
                lease.ttl_min_s <= lease.ttl_max_s,
                "lease.ttl_max_s",
                "must not be less than lease.ttl_min_s",
            ),
            (
                positive(lease.session_ttl_s),
                "lease.session_ttl_s",
                POSITIVE,
            ),
            (
                lease.mark_lead_s
                    >= 2.0 * (lease.ttl_min_s.min(lease.session_ttl_s) / 3.0).min(10.0),
                "lease.mark_lead_s",
                "must not be less than two heartbeats (2/3 of ttl_min_s or session_ttl_s, or 20)",
            ),
            (
                positive(self.evaluation.budget_s),
                "evaluation.budget_s",
                POSITIVE,
            ),
            (
                positive(self.checkpoint.every_s),
                "checkpoint.every_s",
                POSITIVE,
            ),
        ]
    }
}

impl Recipe {
    fn rules_of_plans(&self) -> Vec<Rule> {
        let plan = &self.plan;
        let share = |value: f64| (0.0..=1.0).contains(&value);
        let positive = |s| seconds(s).is_some_and(|duration| !duration.is_zero());
        let counted = plan.policy == PlanPolicy::Fixed || self.end.rounds.is_none();
        vec![
            (
                counted,
                "plan.policy",
                "needs `end.tokens` or `end.epochs`: how much a round trains is what a plan decides",
            ),
            (
                positive(plan.every_s),
                "plan.every_s",
                "must be a number of seconds, more than 0",
            ),
            (
                (0.0..=10.0).contains(&plan.margin),
                "plan.margin",
                "must be a number from 0 to 10",
            ),
            (
                plan.horizon_days > 0.0 && plan.horizon_days <= 3660.0,
                "plan.horizon_days",
                "must be a number above 0, at most ten years",
            ),
            (
                plan.replicas_max > 0,
                "plan.replicas_max",
                "must be at least 1",
            ),
            (
                share(plan.solo_penalty),
                "plan.solo_penalty",
                "must be a number from 0 to 1",
            ),
            (
                share(plan.strength),
                "plan.strength",
                "must be a number from 0 to 1",
            ),
            (
                positive(plan.probe_age_max_s),
                "plan.probe_age_max_s",
                "must be a number of seconds, more than 0",
            ),
            (
                plan.merge_s.is_none_or(|s| seconds(s).is_some()),
                "plan.merge_s",
                "must be a number of seconds, 0 or more",
            ),
        ]
    }
}

/// What must hold, the key that it is about, and what is wrong if it does not.
type Rule = (bool, &'static str, &'static str);

/// Every key that a recipe can have, as `table.key` or `key`, drawn from a recipe that has them all.
fn known_keys() -> Vec<String> {
    let mut recipe: Recipe = match toml::from_str(EVERY_TABLE) {
        Ok(recipe) => recipe,
        Err(_) => return Vec::new(),
    };
    recipe.inner.init_from = Some("x".into());
    recipe.evaluation.windows_max = Some(1);
    recipe.plan.merge_s = Some(1.0);
    let some = Some(1);
    (recipe.end.rounds, recipe.end.tokens, recipe.end.epochs) = (some, some, Some(1));
    let Ok(table) = toml::Table::try_from(&recipe) else {
        return Vec::new();
    };
    keys_of(&table)
}

const EVERY_TABLE: &str = r#"
name = "x"
[model]
vocab_size = 1
hidden_size = 1
intermediate_size = 1
num_hidden_layers = 1
num_attention_heads = 1
num_key_value_heads = 1
head_dim = 2
[corpus]
path = "x"
seq_len = 1
[phase]
steps = 1
batch = 1
[inner]
peak_lr = 1.0
[end]
"#;

#[cfg(test)]
mod tests;
