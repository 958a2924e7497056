//! The real thing under real kills: a coordinator and three replicas, shot at random instants until
//! some epochs are over; then every window must be in the published weights exactly once, and the
//! weights must be what the accepted contributions give.
//!
//! `HANSA_SOAK_KILLS`, `HANSA_SOAK_MINUTES` and `HANSA_SOAK_SEED` make it longer, or another one.
#![allow(clippy::unwrap_used)]

#[path = "soak/cast.rs"]
mod cast;
mod common;
#[path = "soak/plan.rs"]
mod plan;
#[path = "soak/replay.rs"]
mod replay;

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::{Duration, Instant};

use cast::{Cast, SITES};
use common::{Place, documents};
use hansa_coordinator::{replay_journal, verify_journal};
use plan::{Step, Who, draw};
use replay::{Replayed, replay};

/// The short version, which takes less than a minute.
const KILLS: usize = 20;
const MINUTES: f64 = 0.4;
/// One that has some of everything.
const SEED: u64 = 1642;
/// What a replica trains at most while it is shot at, in windows per second: so the corpus is not
/// over before the kills are.
const PACE: f64 = 48.0;
const EPOCHS: u64 = 3;
/// Kills cost at least a quarter of that.
const TRAINED_UNDER_FIRE_MAX: f64 = 0.75;
/// Windows of 32 tokens in a document, a little fewer than there are.
const WINDOWS_OF_A_DOCUMENT: f64 = 5.0;
const LOOK_EVERY: Duration = Duration::from_millis(5);
const ASK_EVERY: Duration = Duration::from_secs(1);
const STUCK_AFTER: Duration = Duration::from_secs(120);

const RECIPE: &str = r#"name = "soak"

[model]
vocab_size = 400
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 16
max_position_embeddings = 32
tie_word_embeddings = true

[corpus]
path = "corpus"
seq_len = 32
block_windows = 8
seed = 7

[phase]
steps = 8
batch = 4

[inner]
peak_lr = 2e-3
warmup_steps = 5

[exchange]
contribution = "bf16"
model = "bf16"
chunk_mib = 1

[rounds]
grace_s = 1

[lease]
ttl_min_s = 1.5
ttl_max_s = 6
session_ttl_s = 2

[evaluation]
every = 5
budget_s = 3
windows_max = 20

[checkpoint]
every_s = 0.2

[end]
epochs = 3
"#;

#[test]
fn whatever_is_killed_whenever_every_window_is_in_the_weights_exactly_once() {
    let (kills, minutes): (usize, f64) = (
        from_environment("HANSA_SOAK_KILLS", KILLS),
        from_environment("HANSA_SOAK_MINUTES", MINUTES),
    );
    let seed = from_environment("HANSA_SOAK_SEED", SEED);
    let within = Duration::from_secs_f64(60.0 * minutes);
    let steps = draw(seed, kills, within, SITES.len());
    assert_eq!(steps, draw(seed, kills, within, SITES.len()));

    let place = prepare(within);
    let mut cast = Cast::new(&place.path(""), PACE);
    cast.start(Who::Coordinator);
    cast.wait_until_it_listens();
    for (index, site) in SITES.iter().enumerate() {
        place.token(site, "data");
        cast.start(Who::Site(index));
    }
    let began = Instant::now();
    play(&mut cast, &steps);
    let shot_at = began.elapsed();
    let so_far = replay_journal(&place.path("data")).unwrap().state;
    cast.relieve_replicas(None);
    wait_for_the_end(&mut cast, &place);
    assert_eq!(cast.complaints(is_expected), Vec::<String>::new());

    let replayed = check(&place);
    println!(
        "shot at for {shot_at:?}, up to generation {} and {} committed windows; over after {:?}",
        so_far.current.generation,
        so_far.committed(),
        began.elapsed()
    );
    tell(&place, seed, &steps, &cast, &replayed);
}

#[test]
fn the_short_plan_has_some_of_everything() {
    let within = Duration::from_secs_f64(60.0 * MINUTES);
    let steps = draw(SEED, KILLS, within, SITES.len());
    let kind = |step: &Step| (matches!(step.who, Who::Coordinator), step.act);
    let kinds: BTreeSet<_> = steps.iter().map(kind).collect();
    // Six for the coordinator; a replica also loses its state, is taken over, and haunts.
    assert_eq!(kinds.len(), 15, "{kinds:?}");
    let aims = steps.iter().filter_map(|step| step.aim);
    let turns: BTreeSet<_> = aims.map(|(_, turn)| turn).collect();
    assert_eq!(turns, plan::TURNS.into());
}

fn from_environment<T: FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().ok().expect(name),
        Err(_) => default,
    }
}

/// A corpus that lasts for all that three replicas can train in this time, over all epochs.
fn prepare(within: Duration) -> Place {
    let pace = TRAINED_UNDER_FIRE_MAX * PACE * SITES.len() as f64;
    let windows = pace * within.as_secs_f64() / EPOCHS as f64;
    let place = Place::new();
    std::fs::remove_dir_all(place.path("corpus")).unwrap();
    let text = documents(1, (windows / WINDOWS_OF_A_DOCUMENT) as usize);
    place.write("text.jsonl", &text);
    place.build("text.jsonl", "tokenizer.json", "corpus");
    let trained = place.json("corpus info corpus --json")["train"]["windows"].as_f64();
    assert!(trained.unwrap() >= 0.9 * windows, "{trained:?} {windows}");
    place.write("run.toml", RECIPE);
    place
}

fn play(cast: &mut Cast, steps: &[Step]) {
    let began = Instant::now();
    for step in steps {
        while began.elapsed() < step.at {
            cast.watch();
            std::thread::sleep(LOOK_EVERY);
        }
        cast.play(step);
    }
}

/// However slow the machine is: generations come, or something hangs.
fn wait_for_the_end(cast: &mut Cast, place: &Place) {
    let (mut newest, mut since, mut looked) = (0, Instant::now(), Instant::now());
    while !cast.have_all_ended_well() {
        std::thread::sleep(LOOK_EVERY);
        if looked.elapsed() < ASK_EVERY {
            continue;
        }
        looked = Instant::now();
        let state = replay_journal(&place.path("data")).unwrap().state;
        if state.current.generation.0 > newest {
            (newest, since) = (state.current.generation.0, Instant::now());
        }
        assert!(since.elapsed() < STUCK_AFTER, "stuck: {:#?}", state.round);
    }
}

/// What a process may say on stderr although all is well.
fn is_expected(line: &str) -> bool {
    let fenced = "error: a newer process trains as ";
    line.starts_with(fenced) && line.ends_with("nothing of what it contributed is lost")
}

fn check(place: &Place) -> Replayed {
    let data = place.path("data");
    let report = verify_journal(&data).unwrap();
    assert!(report.is_good() && report.ended, "{report:#?}");
    assert_eq!(report.committed, EPOCHS * report.windows);
    let state = replay_journal(&data).unwrap().state;
    let counts = state.ledger.counts();
    assert_eq!(counts.committed, counts.total(), "{counts:?}");
    assert_eq!(counts.total().0, report.windows);

    std::fs::create_dir(place.path("scratch")).unwrap();
    let replayed = replay(&data, &place.path("scratch"));
    assert_eq!(replayed.generations, report.generation);
    let exported = std::fs::read(place.path("data/export/model.safetensors")).unwrap();
    assert!(
        replayed.weights == exported,
        "the exported model is another one"
    );
    replayed
}

fn tell(place: &Place, seed: u64, steps: &[Step], cast: &Cast, replayed: &Replayed) {
    let mut acts = BTreeMap::<String, usize>::new();
    for step in steps {
        let who = match step.who {
            Who::Coordinator => "coordinator",
            Who::Site(_) => "replica",
        };
        *acts.entry(format!("{who}: {:?}", step.act)).or_default() += 1;
    }
    let history = replay_journal(&place.path("data")).unwrap().history();
    let sum = |of: fn(&hansa_wire::status::TallyStatus) -> u64| -> u64 {
        history.replicas.iter().map(|r| of(&r.tally)).sum()
    };
    let Cast {
        asked_twice,
        fenced,
        lived_on,
        hits,
        ..
    } = cast;
    let aimed = steps.iter().filter(|step| step.aim.is_some()).count();
    println!(
        "seed {seed}: {acts:#?}; of {aimed} kills at an event {hits} met it; {asked_twice} asked \
         twice to end, {fenced} ghosts fenced, {lived_on} not"
    );
    println!(
        "{} generations of {} contributions, {} of them of several; windows: {} committed, {} \
         granted, {} reclaimed, {} released, {} inherited; {} contributions refused",
        replayed.generations,
        replayed.contributions,
        replayed.rounds_with_several,
        sum(|t| t.committed),
        sum(|t| t.granted),
        sum(|t| t.reclaimed),
        sum(|t| t.released),
        sum(|t| t.inherited),
        sum(|t| t.refused.into()),
    );
    println!("{:#?}", replayed.events);
}
