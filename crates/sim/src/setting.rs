//! What a seed's world is like.

use crate::Rates;
use crate::random::Random;
use hansa_base::{Epoch, Hash, Steps, Tokens, Windows};
use hansa_protocol::{
    BlockSpace, DigestFields, End, GraceRule, OuterSpec, PhaseSpec, RunSpec, Solo, Timing,
};
use std::time::Duration;

/// The seed's dice have been thrown: this is the world.
#[derive(Clone, Debug)]
pub struct Setting {
    pub spec: RunSpec,
    pub hosts: u64,
    /// Faults happen until then.
    pub faults_until: u64,
    /// One message in so many is lost.
    pub loss: u64,
    /// One message in so many is delivered twice.
    pub doubled: u64,
    /// One message in so many takes seconds.
    pub slow: u64,
    /// One journaled command in so many kills the coordinator.
    pub coordinator_crash: u64,
    /// Training the same windows from the same base gives the same bytes.
    pub deterministic: bool,
    /// While there are faults, whatever is trained with this window is not finite: its trainer finds it
    /// if the number is even, the coordinator's gate if it is odd.
    pub poison: Option<u64>,
    /// While there are faults, the norms of some contributions are far from the others'.
    pub outliers: bool,
    /// A step takes between this many per cent of its usual time and the second number.
    pub jitter: (u64, u64),
    /// How long what takes.
    pub costs: Costs,
}

/// Between how many and how many milliseconds things take.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A chunk of an upload, and its completion.
    pub chunk_ms: (u64, u64),
    /// Fetching and loading weights; an evaluation.
    pub job_ms: (u64, u64),
    pub merge_ms: (u64, u64),
    pub write_ms: (u64, u64),
    /// Between two checkpoints.
    pub checkpoint_ms: (u64, u64),
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            chunk_ms: (50, 900),
            job_ms: (10, 900),
            merge_ms: (20, 800),
            write_ms: (1, 150),
            checkpoint_ms: (100, 2000),
        }
    }
}

impl Setting {
    pub fn new(random: &mut Random) -> Self {
        let calm = random.one_in(8);
        let rarely = |n: u64| if calm { u64::MAX } else { n };
        let spec = spec(random);
        let windows = spec.digest.windows.0;
        // Of a seed's own dice, so that the others fall as ever.
        let outliers = !calm && spec.run.0[0] & 1 == 1;
        // A run whose only window is poison has nothing to train.
        let poisoned = !calm && windows > 3 && random.one_in(2);
        Self {
            poison: poisoned.then(|| random.between(0, windows - 1)),
            spec,
            hosts: random.between(1, 4),
            faults_until: if calm {
                0
            } else {
                random.between(5000, 60_000)
            },
            loss: rarely(random.between(8, 60)),
            doubled: rarely(random.between(8, 40)),
            slow: rarely(random.between(20, 100)),
            coordinator_crash: rarely(random.between(60, 1000)),
            deterministic: random.one_in(2),
            outliers,
            jitter: (50, 200),
            costs: Costs::default(),
        }
    }

    /// Three replicas without faults; a phase of the slowest takes 20 s.
    pub fn of_rates(random: &mut Random, rates: &Rates) -> Self {
        let mut spec = spec(random);
        spec.digest.windows = Windows(rates.windows);
        spec.digest.block = Windows(16);
        spec.phase = PhaseSpec {
            steps: Steps(10),
            batch: Windows(2),
            accumulation: 1,
            balance: rates.balance,
        };
        spec.timing.ttl_min = Duration::from_secs(10);
        spec.timing.ttl_max = Duration::from_secs(60);
        spec.timing.session_ttl = Duration::from_secs(10);
        spec.timing.mark_lead = Duration::from_secs(300);
        spec.timing.grace = Duration::from_secs(60);
        spec.timing.grace_rule = GraceRule::Fixed;
        (spec.min_quorum, spec.evaluate_every) = (3, 0);
        spec.end = End::Epochs(rates.epochs);
        Self {
            spec,
            hosts: rates.step_ms.len() as u64,
            faults_until: 0,
            loss: u64::MAX,
            doubled: u64::MAX,
            slow: u64::MAX,
            coordinator_crash: u64::MAX,
            deterministic: true,
            outliers: false,
            poison: None,
            jitter: (90, 110),
            costs: Costs::default(),
        }
    }
}

pub fn spec(random: &mut Random) -> RunSpec {
    let windows = Windows(random.between(1, 200));
    let block = Windows(random.between(1, 9));
    let seed = random.next();
    let end = match random.between(0, 2) {
        0 => End::Rounds(random.between(1, 25)),
        1 => End::Tokens(Tokens(random.between(1, 400) * 16)),
        _ => End::Epochs(random.between(1, 3) as u32),
    };
    // Long phases for successors that carry on in the midst of one; short ones for many rounds.
    let steps = if random.one_in(3) {
        random.between(5, 25)
    } else {
        random.between(1, 6)
    };
    let solo = [Solo::Full, Solo::Adopt, Solo::Same][random.between(0, 2) as usize];
    let ms = |random: &mut Random, least, most| Duration::from_millis(random.between(least, most));
    RunSpec {
        run: random.hash(),
        digest: DigestFields {
            format_version: 1,
            windows,
            block,
            seed,
            epoch_rule: RunSpec::EPOCH_RULE.to_owned(),
            permutation_check: BlockSpace::new(windows, block, seed, Epoch(0)).check_value(),
            tokenizer: Hash::default(),
            dtype: "u16".to_owned(),
            seq_len: 16,
            shards: Vec::new(),
            held_out: Vec::new(),
        },
        phase: PhaseSpec {
            steps: Steps(steps),
            batch: Windows(random.between(1, 3)),
            accumulation: random.between(1, 2) as u32,
            balance: !random.one_in(4),
        },
        outer: OuterSpec {
            lr: 0.7,
            momentum: 0.9,
            solo,
        },
        timing: Timing {
            alpha: 2.5,
            beta: 10.0,
            ttl_min: ms(random, 2000, 4000),
            ttl_max: ms(random, 6000, 20_000),
            session_ttl: ms(random, 3000, 8000),
            mark_lead: ms(random, 50, 3000),
            grace: ms(random, 500, 8000),
            grace_rule: if random.one_in(2) {
                GraceRule::Fixed
            } else {
                GraceRule::Adaptive
            },
            evaluation_budget: ms(random, 2000, 6000),
        },
        attempts_max: random.between(1, 3) as u32,
        min_quorum: random.between(1, 3) as u32,
        end,
        evaluate_every: random.between(0, 3),
    }
}
