//! Who is to wait is answered when there is something to do: not after some time, as that is an hour here.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::{Generation, Hash};
use hansa_coordinator::{Scope, issue_token};
use hansa_protocol::{LeaseAnswer, Order, Wait};
use hansa_transfer::TransferError;
use hansa_wire::Wire as _;
use hansa_wire::http::{Done, Operate, path};

/// Two replicas with positions, of which the first has contributed.
async fn one_waits(world: &World, server: &Server) -> (Process, Process, Hash) {
    let (mut a, mut b) = (
        world.replica(server, "lumi"),
        world.replica(server, "snellius"),
    );
    let base = a.register().await.unwrap().current.manifest;
    b.register().await.unwrap();
    b.grant(base).await;
    a.contribute(base, 0.01).await;
    (a, b, base)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_others_is_told_of_the_next_generation_as_it_is_published() {
    let world = World::new().holding_leases();
    let server = world.serve().await;
    let (a, b, base) = one_waits(&world, &server).await;
    let (told, _) = tokio::join!(a.lease(base), b.contribute(base, 0.02));
    let LeaseAnswer::Adopt(next) = told.unwrap() else {
        panic!("not the next generation");
    };
    assert_eq!(next.generation, Generation(1));

    // The last round: who has contributed to it waits for the run's end.
    b.grant(next.manifest).await;
    a.contribute(next.manifest, 0.01).await;
    let (told, _) = tokio::join!(a.lease(next.manifest), b.contribute(next.manifest, 0.02));
    let told = told.unwrap();
    assert!(matches!(told, LeaseAnswer::Finish(_)), "{told:?}");
    a.goodbye().await.unwrap();
    b.goodbye().await.unwrap();
    server.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_found_nothing_gets_what_another_gives_back() {
    // Two blocks: the first replica gets all of it.
    let world = World::new().holding_leases();
    world.write_corpus(8, 0xcd);
    let server = world.serve().await;
    let (mut a, mut b) = (
        world.replica(&server, "lumi"),
        world.replica(&server, "snellius"),
    );
    let base = a.register().await.unwrap().current.manifest;
    b.register().await.unwrap();
    a.grant(base).await;
    let (told, left) = tokio::join!(b.lease(base), a.goodbye());
    left.unwrap();
    let told = told.unwrap();
    assert!(matches!(told, LeaseAnswer::Train(_)), "{told:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_told_at_once() {
    let world = World::new().holding_leases();
    let operator = issue_token(&world.data(), &Scope::Operator).unwrap();
    let server = world.serve().await;
    let (a, b, base) = one_waits(&world, &server).await;
    let headers = hansa_wire::http::Client {
        name: "operator".to_owned(),
        version: "0.1.0".to_owned(),
    };
    let operator = server.client(&operator, &headers.headers());
    let pause = Operate {
        order: Order::Pause {
            why: "for the test".to_owned(),
        },
    };
    let pause = pause.to_json();
    let limit = std::time::Duration::from_secs(60);
    let order = operator.post_json::<_, serde_json::Value>(path::OPERATE, &pause, limit);
    let (told, done) = tokio::join!(a.lease(base), order);
    Done::from_json(serde_json::from_value(done.unwrap()).unwrap()).unwrap();
    let told = told.unwrap();
    assert!(
        matches!(told, LeaseAnswer::Wait(Wait::Paused(_))),
        "{told:?}"
    );
    drop(b);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_waits_for_nobody_who_waits() {
    let world = World::new().holding_leases();
    let server = world.serve().await;
    let (a, _b, base) = one_waits(&world, &server).await;
    let (told, summary) = tokio::join!(a.lease(base), server.stop());
    assert!(!summary.run_over);
    match told.unwrap_err() {
        TransferError::Refused { code, .. } => assert_eq!(code, "stopping"),
        // It had gone before it was asked.
        TransferError::Unreachable { .. } | TransferError::Cut { .. } => {}
        other => panic!("{other}"),
    }
}
