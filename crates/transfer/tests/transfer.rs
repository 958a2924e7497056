//! Client against a real HTTPS server over a real store: cuts, flipped bytes, strangers.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::Read;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use common::{CHUNK, TestServer};
use hansa_base::RetryPolicy;
use hansa_store::Manifest;
use hansa_transfer::{
    Client, Downloaded, Endpoint, Fingerprint, LaneLimits, Progress, Token, TransferError,
    TransferOptions, Trust, Uploaded, download, leave_spare, upload,
};

const CHUNKS: usize = 12;

fn content() -> Vec<u8> {
    (0..CHUNKS as u64 * CHUNK - 777)
        .map(|i| ((i * i) >> 5) as u8)
        .collect()
}

fn options(retries_max: u32) -> TransferOptions {
    let retry = RetryPolicy {
        first: Duration::from_millis(1),
        longest: Duration::from_millis(5),
        retries_max: Some(retries_max),
    };
    TransferOptions {
        retry,
        ..TransferOptions::new(1)
    }
}

/// A site: a client, a directory, and what its progress bar last said.
struct Site {
    client: Client,
    dir: tempfile::TempDir,
    progress: Mutex<Progress>,
    parallelism: usize,
    stall_max: Duration,
}

impl Site {
    fn new(server: &TestServer) -> Self {
        Self::with(&server.endpoint())
    }

    fn with(endpoint: &Endpoint) -> Self {
        let client = Client::new(endpoint).unwrap();
        Self {
            client,
            dir: tempfile::tempdir().unwrap(),
            progress: Mutex::default(),
            parallelism: 4,
            stall_max: Duration::from_secs(30),
        }
    }

    /// One chunk at a time, so that it is known which are through when a connection breaks.
    fn one_by_one(mut self) -> Self {
        self.parallelism = 1;
        self
    }

    fn impatient(mut self) -> Self {
        self.stall_max = Duration::from_millis(50);
        self
    }

    fn options(&self, retries: u32) -> TransferOptions {
        let (first, most) = (self.parallelism, self.parallelism);
        TransferOptions {
            lanes: LaneLimits { first, most },
            stall_max: self.stall_max,
            ..options(retries)
        }
    }

    fn dest(&self) -> PathBuf {
        self.dir.path().join("model")
    }

    async fn download(
        &self,
        server: &TestServer,
        retries: u32,
    ) -> Result<Downloaded, TransferError> {
        let hash = server.blob_hash();
        let report = |progress| *self.progress.lock().unwrap() = progress;
        let prefix = format!("/blobs/{hash}");
        download(
            &self.client,
            &prefix,
            hash,
            &self.dest(),
            &self.options(retries),
            &report,
        )
        .await
    }

    async fn upload(&self, bytes: &[u8], retries: u32) -> Result<Uploaded, TransferError> {
        let source = self.dir.path().join("delta");
        std::fs::write(&source, bytes).unwrap();
        let manifest = Manifest::of_bytes(&content(), CHUNK).unwrap();
        let report = |progress| *self.progress.lock().unwrap() = progress;
        upload(
            &self.client,
            "/uploads/u",
            &source,
            &manifest,
            &self.options(retries),
            &report,
        )
        .await
    }

    #[track_caller]
    fn check_downloaded(&self) {
        assert_eq!(std::fs::read(self.dest()).unwrap(), content());
        assert!(!self.dir.path().join("model.partial").exists());
    }
}

#[tokio::test]
async fn a_download_brings_every_chunk_once_and_a_second_one_nothing() {
    let server = TestServer::start(&content()).await;
    let site = Site::new(&server);
    let done = site.download(&server, 0).await.unwrap();
    site.check_downloaded();
    let total = content().len() as u64;
    assert_eq!((done.travelled_bytes, server.sent_bytes()), (total, total));
    let last = *site.progress.lock().unwrap();
    assert_eq!(
        last,
        Progress {
            total_bytes: total,
            done_bytes: total,
            travelled_bytes: total
        }
    );

    assert_eq!(site.download(&server, 0).await.unwrap().travelled_bytes, 0);
    std::fs::write(site.dest(), "something else").unwrap();
    assert_eq!(
        site.download(&server, 0).await.unwrap().travelled_bytes,
        total
    );
    site.check_downloaded();
}

#[tokio::test]
async fn an_old_file_is_written_over_and_what_is_left_of_it_after_a_cut_does_not_count() {
    let server = TestServer::start(&content()).await;
    let site = Site::new(&server).one_by_one();
    let (old, partial) = (
        site.dir.path().join("old"),
        site.dir.path().join("model.partial"),
    );
    for length in [content().len() - 10, content().len() + 10] {
        std::fs::write(&old, vec![7; length]).unwrap();
        leave_spare(&old).unwrap();
        // Two and a half chunks, then every connection breaks.
        server.faults().sent_bytes_left = Some(5 * CHUNK / 2);
        site.download(&server, 0).await.unwrap_err();
        server.faults().sent_bytes_left = None;
        assert_eq!(
            std::fs::metadata(&partial).unwrap().len(),
            content().len() as u64
        );
        let before = server.sent_bytes();
        site.download(&server, 0).await.unwrap();
        let expected = content().len() as u64 - 2 * CHUNK;
        assert_eq!(server.sent_bytes() - before, expected);
        site.check_downloaded();
        std::fs::remove_file(site.dest()).unwrap();
    }
}

#[tokio::test]
async fn an_old_file_that_somebody_reads_stays_as_it_is() {
    let server = TestServer::start(&content()).await;
    let site = Site::new(&server);
    let old = site.dir.path().join("old");
    std::fs::write(&old, vec![7; content().len()]).unwrap();
    let mut reader = std::fs::File::open(&old).unwrap();
    leave_spare(&old).unwrap();
    site.download(&server, 0).await.unwrap();
    site.check_downloaded();
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    assert_eq!(read, vec![7; content().len()]);
}

#[tokio::test]
async fn after_a_cut_only_the_missing_chunks_travel() {
    let server = TestServer::start(&content()).await;
    let site = Site::new(&server).one_by_one();
    // Four and a half chunks, then every connection breaks.
    server.faults().sent_bytes_left = Some(9 * CHUNK / 2);
    let error = site.download(&server, 0).await.unwrap_err();
    assert!(matches!(error, TransferError::Cut { .. }), "{error:?}");
    assert!(error.is_transient() && !site.dest().exists());

    server.faults().sent_bytes_left = None;
    // As long as somebody holds the file's lock, it is theirs.
    let partial = std::fs::File::open(site.dir.path().join("model.partial")).unwrap();
    partial.lock().unwrap();
    let site = site.impatient();
    let busy = site.download(&server, 0).await;
    assert!(matches!(busy, Err(TransferError::Busy(_))), "{busy:?}");
    drop(partial);
    let site = Site {
        stall_max: Duration::from_secs(30),
        ..site
    };

    let before = server.sent_bytes();
    let done = site.download(&server, 0).await.unwrap();
    let expected = content().len() as u64 - 4 * CHUNK;
    assert_eq!(done.travelled_bytes, expected);
    assert_eq!(server.sent_bytes() - before, expected);
    site.check_downloaded();
}

#[tokio::test]
async fn a_cut_within_the_retries_is_not_even_an_error() {
    let server = TestServer::start(&content()).await;
    let site = Site::new(&server);
    server.faults().cuts_left = 3;
    site.download(&server, 4).await.unwrap();
    assert_eq!(server.faults().cuts_left, 0);
    site.check_downloaded();
}

#[tokio::test]
async fn flipped_bytes_are_fetched_again_or_named_and_never_kept() {
    let server = TestServer::start(&content()).await;
    let site = Site::new(&server);
    server.faults().flips_left = 1000;
    let error = site.download(&server, 2).await.unwrap_err();
    assert!(matches!(error, TransferError::BadChunk { .. }), "{error:?}");
    assert!(!site.dest().exists());

    server.faults().flips_left = 2;
    site.download(&server, 3).await.unwrap();
    assert_eq!(server.faults().flips_left, 0);
    site.check_downloaded();
}

#[tokio::test]
async fn a_manifest_of_another_blob_is_refused() {
    let server = TestServer::start(&content()).await;
    let site = Site::new(&server);
    let prefix = format!("/blobs/{}", server.blob_hash());
    let wrong = hansa_base::Hash([1; 32]);
    let none = |_| {};
    let result = download(
        &site.client,
        &prefix,
        wrong,
        &site.dest(),
        &options(0),
        &none,
    )
    .await;
    assert!(matches!(result, Err(TransferError::WrongManifest { .. })));
    let prefix = format!("/blobs/{wrong}");
    let result = download(
        &site.client,
        &prefix,
        wrong,
        &site.dest(),
        &options(0),
        &none,
    )
    .await;
    assert_eq!(result.unwrap_err().refusal_code(), Some("no_blob"));
}

#[tokio::test]
async fn an_upload_sends_every_chunk_once_and_a_second_one_nothing() {
    let server = TestServer::start(b"").await;
    server.begin_upload(&content());
    let site = Site::new(&server);
    let done = site.upload(&content(), 0).await.unwrap();
    let total = content().len() as u64;
    let manifest = Manifest::of_bytes(&content(), CHUNK).unwrap();
    assert_eq!(done.answer["blob"], manifest.hash().to_string());
    assert_eq!(done.travelled_bytes, total);
    server.check_blob(&content());
    let last = *site.progress.lock().unwrap();
    assert_eq!(
        last,
        Progress {
            total_bytes: total,
            done_bytes: total,
            travelled_bytes: total
        }
    );
    // A client that lost the answer begins anew.
    server.begin_upload(&content());
    assert_eq!(site.upload(&content(), 0).await.unwrap().travelled_bytes, 0);
}

#[tokio::test]
async fn what_is_stuck_on_one_connection_is_sent_over_another() {
    let server = TestServer::start(b"").await;
    server.begin_upload(&content());
    let mut site = Site::new(&server);
    // Nobody gives a request up, and two of four connections carry nothing.
    site.stall_max = Duration::from_secs(86_400);
    server.faults().hangs_left = 2;
    let bytes = content();
    let upload = site.upload(&bytes, 0);
    let done = tokio::time::timeout(Duration::from_secs(120), upload).await;
    let travelled = done.expect("it waits for ever").unwrap().travelled_bytes;
    server.check_blob(&content());
    let total = content().len() as u64;
    assert!(
        (total..=total + 2 * CHUNK).contains(&travelled),
        "{travelled}"
    );
    let last = *site.progress.lock().unwrap();
    assert_eq!(last.done_bytes, total, "each chunk counts once");
}

#[tokio::test]
async fn an_upload_goes_on_after_cuts_and_a_restart_of_the_server() {
    let mut server = TestServer::start(b"").await;
    server.begin_upload(&content());
    let site = Site::new(&server).one_by_one();
    // Five chunks are taken, then every connection breaks.
    server.faults().chunks_taken_left = Some(5);
    let error = site.upload(&content(), 1).await.unwrap_err();
    assert!(matches!(error, TransferError::Cut { .. }), "{error:?}");
    assert_eq!(server.missing().len(), CHUNKS - 5);

    server.restart().await;
    server.begin_upload(&content());
    assert_eq!(server.missing().len(), CHUNKS - 5);
    let site = Site::new(&server);
    let done = site.upload(&content(), 0).await.unwrap();
    assert_eq!(done.travelled_bytes, content().len() as u64 - 5 * CHUNK);
    assert_eq!(server.received_chunks(), CHUNKS - 5);
    server.check_blob(&content());
}

#[tokio::test]
async fn chunks_that_flip_on_the_way_or_at_the_source_are_refused() {
    let server = TestServer::start(b"").await;
    server.begin_upload(&content());
    let site = Site::new(&server);
    server.faults().received_flips_left = 1000;
    let error = site.upload(&content(), 1).await.unwrap_err();
    assert_eq!(error.refusal_code(), Some("chunk_mismatch"), "{error:?}");
    assert_eq!(server.missing().len(), CHUNKS);
    server.faults().received_flips_left = 2;
    site.upload(&content(), 3).await.unwrap();
    server.check_blob(&content());

    let server = TestServer::start(b"").await;
    server.begin_upload(&content());
    let site = Site::new(&server);
    let mut changed = content();
    changed[3 * CHUNK as usize + 5] ^= 1;
    let error = site.upload(&changed, 0).await.unwrap_err();
    assert!(
        matches!(error, TransferError::SourceChanged { chunk: 3, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn chunks_that_the_server_loses_are_sent_again() {
    let server = TestServer::start(b"").await;
    server.begin_upload(&content());
    let site = Site::new(&server);
    server.faults().damage_on_complete = 1;
    site.upload(&content(), 0).await.unwrap();
    assert_eq!(server.faults().damage_on_complete, 0);
    server.check_blob(&content());
}

async fn hello(endpoint: &Endpoint) -> Result<serde_json::Value, TransferError> {
    Client::new(endpoint)?
        .get_json("/hello", Duration::from_secs(20))
        .await
}

#[tokio::test]
async fn plain_http_to_a_port_that_speaks_https_is_named() {
    let server = TestServer::start(b"").await;
    let right = server.endpoint();
    let error = hello(&Endpoint {
        base_url: right.base_url.replace("https", "http"),
        trust: Trust::LoopbackPlain,
        ..right
    })
    .await
    .unwrap_err();
    assert!(matches!(error, TransferError::NotPlain(_)), "{error:?}");
    assert!(!error.is_transient());
}

#[tokio::test]
async fn strangers_are_told_apart() {
    let server = TestServer::start(b"").await;
    let right = server.endpoint();
    assert_eq!(hello(&right).await.unwrap()["hello"], "site");

    let token = Token::new("wrong");
    let error = hello(&Endpoint {
        token,
        ..right.clone()
    })
    .await
    .unwrap_err();
    assert!(
        matches!(error, TransferError::Unauthorized { .. }),
        "{error:?}"
    );
    assert!(!error.to_string().contains("wrong"), "{error}");

    let expected = Fingerprint([7; 32]);
    let trust = Trust::Pinned(expected);
    match hello(&Endpoint {
        trust,
        ..right.clone()
    })
    .await
    .unwrap_err()
    {
        TransferError::WrongFingerprint { mismatch, .. } => {
            assert_eq!(
                (mismatch.expected, mismatch.got),
                (expected, server.fingerprint())
            );
        }
        other => panic!("{other:?}"),
    }

    let base_url = "https://127.0.0.1:1".to_owned();
    let error = hello(&Endpoint {
        base_url,
        ..right.clone()
    })
    .await
    .unwrap_err();
    assert!(
        matches!(error, TransferError::Unreachable { .. }),
        "{error:?}"
    );

    let base_url = "http://192.0.2.1:8471".to_owned();
    let trust = Trust::LoopbackPlain;
    let error = hello(&Endpoint {
        base_url,
        trust,
        ..right.clone()
    })
    .await
    .unwrap_err();
    assert!(
        matches!(error, TransferError::PlainNotLoopback(_)),
        "{error:?}"
    );

    let token = Token::new("two\nlines");
    let error = hello(&Endpoint { token, ..right }).await.unwrap_err();
    assert!(matches!(error, TransferError::BadToken), "{error:?}");
}

#[tokio::test]
async fn control_calls_carry_the_servers_own_words() {
    let server = TestServer::start(b"").await;
    let client = Client::new(&server.endpoint()).unwrap();
    let limit = Duration::from_secs(20);
    let echoed: serde_json::Value = client
        .post_json("/echo", &serde_json::json!({"n": 3}), limit)
        .await
        .unwrap();
    assert_eq!(echoed["n"], 3);
    let refused = client.get_json::<()>("/refuse", limit).await.unwrap_err();
    assert_eq!(refused.refusal_code(), Some("fenced"));
    assert!(
        refused.to_string().starts_with("stop training"),
        "{refused}"
    );
    let plain = client
        .get_json::<()>("/no-such-route", limit)
        .await
        .unwrap_err();
    assert!(
        matches!(plain, TransferError::Refused { status: 404, .. }),
        "{plain:?}"
    );
    let other = client
        .get_json::<Vec<u8>>("/hello", limit)
        .await
        .unwrap_err();
    assert!(
        matches!(other, TransferError::BadAnswer { .. }),
        "{other:?}"
    );
    let silent = client
        .get_json::<()>("/silent", Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(
        matches!(silent, TransferError::TimedOut { .. }),
        "{silent:?}"
    );
}

#[tokio::test]
async fn a_silent_server_is_given_up_and_a_chunk_that_is_too_long_is_not_read() {
    let server = TestServer::start(b"served").await;
    server.begin_upload(&content());
    let site = Site::new(&server);
    let impatient = TransferOptions {
        stall_max: Duration::from_millis(50),
        ..options(0)
    };
    server.faults().silent = true;
    let hash = server.blob_hash();
    let prefix = format!("/blobs/{hash}");
    let result = download(
        &site.client,
        &prefix,
        hash,
        &site.dest(),
        &impatient,
        &|_| {},
    )
    .await;
    assert!(
        matches!(result, Err(TransferError::TimedOut { .. })),
        "{result:?}"
    );
    server.faults().silent = false;

    let long = vec![0; CHUNK as usize + 1];
    let status = server.put_raw("/uploads/u/chunks/0", long).await;
    assert_eq!(status, 413);
    assert_eq!(server.put_raw("/uploads/u/chunks/12", vec![]).await, 404);
    assert_eq!(server.missing().len(), CHUNKS);
}
