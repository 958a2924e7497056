//! Whole rounds over HTTPS: lease, contribute, merge, adopt, end.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::Generation;
use hansa_coordinator::{replay_journal, verify_journal};
use hansa_outer::OuterStep;
use hansa_protocol::{LeaseAnswer, RefusedBecause, Verdict, Wait};
use hansa_wire::status::WaitReason;

/// The outer step on a whole model, for two contributions of equal weight.
fn expected(theta: &[f32], momentum: &mut [f32], deltas: [f32; 2]) -> Vec<f32> {
    let mean = vec![(deltas[0] + deltas[1]) / 2.0; theta.len()];
    let step = OuterStep::Nesterov {
        lr: 0.7,
        momentum: 0.9,
    };
    let mut theta = theta.to_vec();
    step.apply(&mean, &mut theta, momentum);
    theta
}

fn assert_close(found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    let far = found
        .iter()
        .zip(wanted)
        .find(|(a, b)| (*a - *b).abs() > 1e-6);
    assert_eq!(far, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sites_train_two_rounds_and_the_model_is_exported() {
    let world = World::new();
    // Long enough that phases do not shrink yet, as they do near an epoch's end.
    world.write_corpus(64, 0xcd);
    let server = world.serve().await;
    let (mut a, mut b) = (
        world.replica(&server, "lumi"),
        world.replica(&server, "snellius"),
    );
    let first = a.register().await.unwrap().current;
    assert_eq!(b.register().await.unwrap().current, first);
    let start = a.download(first.manifest).await;
    let mut momentum = vec![0.0; start.values.len()];

    // Both must hold positions before one of them contributes, or the round would not wait for it.
    b.grant(first.manifest).await;
    a.contribute(first.manifest, 0.01).await;
    let answer = a.lease(first.manifest).await.unwrap();
    let waits = Wait::Members(vec![b.caller.replica.clone()]);
    assert_eq!(answer, LeaseAnswer::Wait(waits));
    let status = server.handle.status().await.unwrap();
    assert_eq!(
        status.waiting.reason,
        WaitReason::Members(vec!["snellius/r0".to_owned()])
    );
    assert_eq!((status.ledger.staged, status.ledger.leased), (8, 8));
    assert_eq!(status.replicas[0].loss, None);

    b.contribute(first.manifest, -0.03).await;
    let second = next_generation(&a, Generation(0)).await;
    let model = b.download(second.manifest).await;
    let wanted = expected(&start.values, &mut momentum, [0.01, -0.03]);
    assert_close(&model.values, &wanted);

    b.grant(second.manifest).await;
    a.contribute(second.manifest, 0.02).await;
    b.contribute(second.manifest, 0.02).await;
    let third = next_generation(&a, Generation(1)).await;
    assert!(matches!(
        a.lease(third.manifest).await.unwrap(),
        LeaseAnswer::Finish(_)
    ));
    a.goodbye().await.unwrap();
    b.goodbye().await.unwrap();

    let summary = server.end().await.unwrap();
    assert!(summary.run_over && summary.status.ended);
    let export = summary.export.unwrap();
    let exported = Model::read(&export.join("model.safetensors"));
    let wanted = expected(&model.values, &mut momentum, [0.02, 0.02]);
    assert_close(&exported.values, &wanted);
    let config = std::fs::read_to_string(export.join("config.json")).unwrap();
    assert!(config.contains("Qwen3ForCausalLM"), "{config}");

    let report = verify_journal(&world.data()).unwrap();
    assert!(report.is_good(), "{report:?}");
    assert_eq!((report.committed, report.generation), (32, 2));
    let state = replay_journal(&world.data()).unwrap().state;
    assert!(
        state
            .replicas
            .iter()
            .all(|replica| replica.tally.committed.0 == 16)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_contribution_that_is_not_finite_or_of_another_model_is_refused() {
    let world = World::new().with("min_quorum = 2", "min_quorum = 1");
    let server = world.serve().await;
    let mut a = world.replica(&server, "lumi");
    let base = a.register().await.unwrap().current.manifest;
    let (grant, model) = (a.grant(base).await, a.download(base).await);

    let mut delta = vec![0.01; model.values.len()];
    delta[100] = f32::NAN;
    let bad = a.encode(&grant, &model, &delta);
    assert_eq!(a.announce(&bad).await.unwrap(), Verdict::Upload);
    let refused = Verdict::Refused(RefusedBecause::NotFinite);
    assert_eq!(a.upload(&bad).await.unwrap(), refused);
    // Its positions may be the reason: they are free, and tried again by halves.
    let grant = a.grant(base).await;

    // Finite, but a merge of it would overflow, at every attempt.
    delta[100] = 3e38;
    let bad = a.encode(&grant, &model, &delta);
    assert_eq!(a.announce(&bad).await.unwrap(), Verdict::Upload);
    assert_eq!(a.upload(&bad).await.unwrap(), refused);
    let grant = a.grant(base).await;

    let refused = Verdict::Refused(RefusedBecause::Gate);
    // Of a size that no contribution in the recipe's codec has: nothing is uploaded.
    let bad = a.payload(&grant, b"no safetensors file");
    let error = a.announce(&bad).await.unwrap_err().to_string();
    assert!(error.contains("f32"), "{error}");

    let length = a.encode(&grant, &model, &delta).manifest.total_bytes();
    let bad = a.payload(&grant, &vec![b'x'; length as usize]);
    assert_eq!(a.announce(&bad).await.unwrap(), Verdict::Upload);
    assert_eq!(a.upload(&bad).await.unwrap(), refused);

    // The positions are still leased to it.
    a.contribute(base, 0.01).await;
    next_generation(&a, Generation(0)).await;
    server.stop().await;
    assert!(verify_journal(&world.data()).unwrap().is_good());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_is_evaluated_by_who_has_it() {
    let world = World::new().with("every = 0", "every = 1");
    let server = world.serve().await;
    let mut a = world.replica(&server, "lumi");
    let base = a.register().await.unwrap().current.manifest;
    let asked = LeaseAnswer::Evaluate(Generation(0));
    assert_eq!(a.lease(base).await.unwrap(), asked);
    a.evaluated(Generation(0), 2.0).await;
    a.grant(base).await;
    let status = server.handle.status().await.unwrap();
    assert_eq!(status.evaluations[0].loss, 2.0);
    assert_eq!(status.evaluations[0].perplexity, 2f64.exp());
    server.stop().await;
}
