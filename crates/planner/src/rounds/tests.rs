//! Properties of the walk, over made-up worlds.

use super::*;
use crate::chain::{FirstJob, Then};
use proptest::prelude::*;

fn some_member() -> impl Strategy<Value = Member> {
    let speed = (1..4_u64, 1..30_u64, 1..3_u32, 0..40_u64);
    let job = (0..900_u64, 1..1500_u64, 0..60_u64, 0..3_u8, 0..400_u64);
    let s = Duration::from_secs;
    let member = move |((windows, step, accumulation, exchange), job, site)| {
        let (start, walltime, startup, then, wait) = job;
        let wait = s(wait);
        Member {
            site,
            replicas: 1 + u32::from(then == 2),
            gpus: 4,
            micro_windows: Windows(windows),
            micro_step: Duration::from_millis(step * 100),
            accumulation,
            exchange: s(exchange),
            first: FirstJob {
                starts_in: s(start),
                ready_in: s(start + startup),
                ends_in: s(start + walltime),
                paid: false,
            },
            walltime: s(walltime),
            startup: s(startup),
            then: match then {
                0 => Then::Nothing,
                1 => Then::AfterEnd { wait },
                _ => Then::Ahead { wait },
            },
            jobs_max: 20,
        }
    };
    (speed, job, 0..2_usize).prop_map(member)
}

fn some_world() -> impl Strategy<Value = World> {
    let limits = (1..30_u64, 1..20_000_u64, 1..20_000_u64, 1..20_000_u64);
    let rest = (0..20_u64, 0..6_u8, prop::option::of(0.0..30_000.0_f64));
    let rest = (rest, (1..20_000_u64, 0..5_000_u64));
    let world =
        |((steps, target, corpus, horizon), ((merge, kind, budget), (ends, closed)))| World {
            steps: Steps(steps),
            target: Windows(target),
            corpus: Windows(corpus),
            merge: Duration::from_secs(merge),
            exchange: match kind % 2 {
                0 => Exchange::Series,
                _ => Exchange::Overlapped,
            },
            balance: match kind / 2 {
                0 => Balance::Off,
                1 => Balance::Within,
                _ => Balance::Nearest,
            },
            accumulation_max: 4,
            horizon: Duration::from_secs(horizon),
            sites: vec![
                Bounds {
                    budget_gpu_s: budget,
                    ..Bounds::default()
                },
                Bounds {
                    ends_in: Some(Duration::from_secs(ends)),
                    closed: vec![(
                        Duration::from_secs(closed),
                        Duration::from_secs(closed + 500),
                    )],
                    ..Bounds::default()
                },
            ],
        };
    (limits, rest).prop_map(world)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_stride_is_only_faster(
        world in some_world(),
        members in prop::collection::vec(some_member(), 0..5),
    ) {
        let strides = simulate(&world, &members);
        let mut single = walk(&world, &members, 1, Duration::MAX);
        prop_assert_eq!(strides.rounds(), single.rounds());
        single.stretches.clone_from(&strides.stretches);
        prop_assert_eq!(&strides, &single);
    }

    #[test]
    fn giving_up_early_spares_only_what_is_late(
        world in some_world(),
        members in prop::collection::vec(some_member(), 0..5),
        needed_by_s in 0..20_000_u64,
    ) {
        let whole = simulate(&world, &members);
        let needed_by = Duration::from_secs(needed_by_s);
        let cut = simulate_until(&world, &members, needed_by);
        if whole.ended == Ended::Target && whole.ends_in <= needed_by {
            prop_assert_eq!(cut, whole);
        } else {
            prop_assert!(cut.ended != Ended::Target || cut == whole);
        }
    }

    #[test]
    fn nothing_is_made_up(
        world in some_world(),
        members in prop::collection::vec(some_member(), 0..5),
    ) {
        let outcome = simulate(&world, &members);
        let sum: u64 = outcome.members.iter().map(|m| m.windows.0).sum();
        prop_assert_eq!(sum, outcome.windows.0);
        prop_assert!(sum <= world.target.0.min(world.corpus.0));
        prop_assert!(outcome.ends_in <= world.horizon);
        for tally in &outcome.members {
            prop_assert!(tally.computing <= tally.active && tally.active <= tally.billed);
        }
        if let Some(budget_gpu_s) = world.sites[0].budget_gpu_s {
            let here = |i: &usize| members[*i].site == 0;
            let billed = (0..members.len()).filter(here).map(|i| {
                outcome.members[i].billed * 4 * members[i].replicas
            });
            let billed_s = billed.sum::<Duration>().as_secs_f64();
            prop_assert!(billed_s <= budget_gpu_s + 1e-6, "{billed_s} of {budget_gpu_s}");
        }
    }
}
