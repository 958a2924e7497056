//! Whom the coordinator does not serve, and what it says.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::*;
use hansa_coordinator::{Listen, Scope, issue_token};
use hansa_transfer::TransferError;
use hansa_wire::http::{Hello, path};
use hansa_wire::status::Status;

const CALL_MAX: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn tokens_act_for_their_own_site_only() {
    let world = World::new();
    let operator = issue_token(&world.data(), &Scope::Operator).unwrap();
    let reader = issue_token(&world.data(), &Scope::Read).unwrap();
    let server = world.serve().await;
    let headers = hansa_wire::http::Client {
        name: "lumi/r0".to_owned(),
        version: "0.1.0".to_owned(),
    };
    let with_token = |token: &str| {
        let mut process = world.replica(&server, "lumi");
        process.client = server.client(token, &headers.headers());
        process
    };
    let code = |result: Result<_, TransferError>| {
        code_of(result.map(|_: hansa_protocol::Registered| ()).unwrap_err())
    };
    assert_eq!(
        code(with_token("hansa_wrong").register().await),
        "unauthorized"
    );
    assert_eq!(
        code(with_token(world.token("snellius")).register().await),
        "forbidden"
    );
    assert_eq!(code(with_token(&operator).register().await), "forbidden");
    for token in [operator.as_str(), &reader, world.token("lumi")] {
        let status: Status = with_token(token)
            .client
            .get_json(path::STATUS, CALL_MAX)
            .await
            .unwrap();
        assert_eq!(status.run, "tiny");
    }
    // A model is not for readers of the status.
    let blob = format!("{}/manifest", path::blob(server.handle_manifest().await));
    let refused = with_token(&reader)
        .client
        .get_json::<serde_json::Value>(&blob, CALL_MAX)
        .await;
    assert_eq!(code_of(refused.unwrap_err()), "forbidden");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_wire_version_is_refused_by_name_but_may_say_hello() {
    let world = World::new();
    let server = world.serve().await;
    let headers = [
        ("hansa-wire", "2".to_owned()),
        ("hansa-version", "0.9.0".to_owned()),
        ("hansa-client", "lumi/r0".to_owned()),
    ];
    let mut process = world.replica(&server, "lumi");
    process.client = server.client(world.token("lumi"), &headers);
    let hello: Hello = process
        .client
        .get_json(path::HELLO, CALL_MAX)
        .await
        .unwrap();
    assert_eq!((hello.wire, hello.run.as_str()), (1, "tiny"));
    let error = process.register().await.unwrap_err();
    let message = error.to_string();
    let named = "lumi/r0 speaks wire version 2 (hansa 0.9.0), this coordinator speaks version 1";
    assert!(message.contains(named), "{message}");
    process.client = server.client(world.token("lumi"), &[]);
    assert_eq!(
        code_of(process.register().await.unwrap_err()),
        "other_version"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_other_data_or_a_living_namesake_is_refused() {
    let world = World::new();
    let server = world.serve().await;
    let mut other = world.replica(&server, "lumi");
    other.digest.tokenizer = hash(1);
    let error = other.register().await.unwrap_err();
    assert!(error.to_string().contains("tokenizer differs"), "{error}");
    assert_eq!(code_of(error), "other_data");

    let mut first = world.replica(&server, "lumi");
    let current = first.register().await.unwrap().current;
    let mut second = world.replica(&server, "lumi");
    second.nonce = hash(200);
    assert_eq!(code_of(second.register().await.unwrap_err()), "busy");
    // With the resume token it takes over, and the first one is fenced.
    second.token = first.token;
    second.register().await.unwrap();
    let fenced = first.lease(current.manifest).await;
    assert_eq!(code_of(fenced.unwrap_err()), "fenced");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_make_no_sense_get_an_answer_that_says_so() {
    let world = World::new();
    let server = world.serve().await;
    let client = world.replica(&server, "lumi").client;
    let post = |path: &'static str, body: serde_json::Value| {
        let client = client.clone();
        async move {
            let answer = client
                .post_json::<_, serde_json::Value>(path, &body, CALL_MAX)
                .await;
            code_of(answer.unwrap_err())
        }
    };
    assert_eq!(
        post(path::LEASE, serde_json::json!([])).await,
        "bad_request"
    );
    // What anybody can make up stops nothing.
    let (run, seal) = (server.run.to_string(), hash(1).to_string());
    let caller = serde_json::json!({
        "replica": "lumi/r0", "run": run, "timeline": u64::MAX, "incarnation": 1_u64 << 40, "seal": seal,
    });
    assert_eq!(post(path::GOODBYE, caller).await, "other_history");

    let get = async |path: String| {
        let answer = client.get_json::<serde_json::Value>(&path, CALL_MAX).await;
        code_of(answer.unwrap_err())
    };
    assert_eq!(get("/v1/nothing".to_owned()).await, "not_found");
    assert_eq!(get("/v1/uploads/zz".to_owned()).await, "bad_request");
    assert_eq!(get(path::upload(hash(1))).await, "unknown_contribution");
    assert_eq!(
        get(format!("{}/manifest", path::blob(hash(1)))).await,
        "no_blob"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_works_on_loopback() {
    let world = World::new();
    let listen = Listen::PlainLoopback("127.0.0.1:0".parse().unwrap());
    let service = world.open().unwrap().listen(listen).await.unwrap();
    let endpoint = hansa_transfer::Endpoint {
        base_url: format!("http://{}", service.address()),
        token: hansa_transfer::Token::new(world.token("lumi")),
        trust: hansa_transfer::Trust::LoopbackPlain,
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(service.run(async {
        let _ = stopped.await;
    }));
    let client = hansa_transfer::Client::new(&endpoint).unwrap();
    let hello: Hello = client.get_json(path::HELLO, CALL_MAX).await.unwrap();
    assert_eq!(hello.service, "hansa");
    // HTTP/2 has no time limit for idle strangers here, so it is not spoken.
    let address = endpoint.base_url.trim_start_matches("http://").to_owned();
    let answer = tokio::task::spawn_blocking(move || {
        use std::io::{Read as _, Write as _};
        let mut stranger = std::net::TcpStream::connect(address).unwrap();
        stranger
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .unwrap();
        let mut answer = [0; 8];
        // An error is a connection that was cut.
        let read = stranger.read(&mut answer).unwrap_or(0);
        answer[..read].to_vec()
    });
    let answer = answer.await.unwrap();
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1"),
        "{answer:?}"
    );
    drop(stop);
    assert!(!running.await.unwrap().unwrap().run_over);
}
