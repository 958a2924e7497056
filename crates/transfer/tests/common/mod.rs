//! A small HTTPS server over a real store, with faults to order.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use hansa_base::Hash;
use hansa_store::{BlobStore, Bring, DataDir, Manifest, Upload};
use hansa_transfer::serve::{self, ReceiveError, Received, Receiving};
use hansa_transfer::tls::{self, ServerIdentity};
use hansa_transfer::{Endpoint, ErrorBody, Fingerprint, HeldBytes, MissingChunks, Token, Trust};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub const CHUNK: u64 = 100_000;
pub const TOKEN: &str = "the-site's-token";

fn receiving() -> Receiving {
    Receiving {
        stall_max: Duration::from_secs(20),
        bandwidth: Vec::new(),
    }
}

/// What goes wrong next.
#[derive(Default)]
pub struct Faults {
    /// Data bytes sent before all connections that send data break.
    pub sent_bytes_left: Option<u64>,
    /// Data answers that break off in the middle.
    pub cuts_left: u32,
    /// Data answers with a flipped byte.
    pub flips_left: u32,
    /// Chunks taken before all connections that bring one break.
    pub chunks_taken_left: Option<u32>,
    /// Chunks that arrive with a flipped byte.
    pub received_flips_left: u32,
    /// Completions before which a chunk on disk goes bad.
    pub damage_on_complete: u32,
    /// Chunks of which only the beginning is taken, and whose requests are never answered.
    pub hangs_left: u32,
    /// Data requests are never answered.
    pub silent: bool,
}

struct Shared {
    store: BlobStore,
    data_dir: DataDir,
    upload: Mutex<Option<Arc<Upload>>>,
    faults: Mutex<Faults>,
    sent_bytes: AtomicU64,
    received_chunks: AtomicUsize,
}

type Server = State<Arc<Shared>>;

pub struct TestServer {
    home: tempfile::TempDir,
    identity: ServerIdentity,
    shared: Option<Arc<Shared>>,
    blob_hash: Hash,
    port: u16,
    // Dropping it ends the listener and its connections.
    tasks: JoinSet<()>,
}

impl TestServer {
    /// Serves one blob of these bytes.
    pub async fn start(blob: &[u8]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let identity = tls::load_or_make(home.path(), &["localhost".to_owned()]).unwrap();
        let blob_hash = Manifest::of_bytes(blob, CHUNK).unwrap().hash();
        let shared = None;
        let mut server = Self {
            home,
            identity,
            shared,
            blob_hash,
            port: 0,
            tasks: JoinSet::new(),
        };
        server.listen().await;
        let source = server.home.path().join("source");
        std::fs::write(&source, blob).unwrap();
        server
            .shared()
            .store
            .put_file(&source, Bring::Move, CHUNK)
            .unwrap();
        server
    }

    /// Ends it with all connections and opens the same data anew, on another port.
    pub async fn restart(&mut self) {
        self.tasks.shutdown().await;
        self.shared = None;
        self.listen().await;
    }

    async fn listen(&mut self) {
        let data_dir = DataDir::lock(&self.home.path().join("data")).unwrap();
        let shared = Arc::new(Shared {
            store: BlobStore::open(&data_dir).unwrap(),
            data_dir,
            upload: Mutex::default(),
            faults: Mutex::default(),
            sent_bytes: 0.into(),
            received_chunks: 0.into(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.port = listener.local_addr().unwrap().port();
        let acceptor = tokio_rustls::TlsAcceptor::from(self.identity.config.clone());
        let service = TowerToHyperService::new(router(shared.clone()));
        self.shared = Some(shared);
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, service) = (acceptor.clone(), service.clone());
                connections.spawn(async move {
                    let Ok(secure) = acceptor.accept(socket).await else {
                        return;
                    };
                    let builder = auto::Builder::new(TokioExecutor::new());
                    // Broken connections are what these tests are about.
                    let _ = builder
                        .serve_connection(TokioIo::new(secure), service)
                        .await;
                });
            }
        });
    }

    fn shared(&self) -> &Shared {
        self.shared.as_ref().unwrap()
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            base_url: format!("https://127.0.0.1:{}", self.port),
            token: Token::new(TOKEN),
            trust: Trust::Pinned(self.fingerprint()),
        }
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The same server under another address.
    pub fn endpoint_at(&self, base_url: String) -> Endpoint {
        Endpoint {
            base_url,
            ..self.endpoint()
        }
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.identity.fingerprint
    }

    pub fn blob_hash(&self) -> Hash {
        self.blob_hash
    }

    pub fn faults(&self) -> MutexGuard<'_, Faults> {
        self.shared().faults.lock().unwrap()
    }

    pub fn sent_bytes(&self) -> u64 {
        self.shared().sent_bytes.load(Ordering::Relaxed)
    }

    pub fn received_chunks(&self) -> usize {
        self.shared().received_chunks.load(Ordering::Relaxed)
    }

    pub fn begin_upload(&self, bytes: &[u8]) {
        let manifest = Manifest::of_bytes(bytes, CHUNK).unwrap();
        let upload = self
            .shared()
            .store
            .begin_upload("u".parse().unwrap(), manifest)
            .unwrap();
        *self.shared().upload.lock().unwrap() = Some(upload);
    }

    pub fn missing(&self) -> Vec<u32> {
        self.shared()
            .upload
            .lock()
            .unwrap()
            .as_ref()
            .unwrap()
            .missing()
    }

    #[track_caller]
    pub fn check_blob(&self, bytes: &[u8]) {
        let hash = Manifest::of_bytes(bytes, CHUNK).unwrap().hash();
        let blob = self.shared().store.open_blob(hash).unwrap();
        assert_eq!(std::fs::read(blob.path()).unwrap(), bytes);
    }

    /// A request that no well-behaved client makes; gives the status.
    pub async fn put_raw(&self, path: &str, body: Vec<u8>) -> u16 {
        let upload = self.shared().upload.lock().unwrap().clone().unwrap();
        let chunk = path.rsplit('/').next().unwrap().parse().unwrap();
        let body = stream::iter([Ok::<_, std::io::Error>(Bytes::from(body))]);
        match serve::receive_chunk(upload, chunk, None, body, &receiving()).await {
            Ok(_) => 200,
            Err(error) => error.status_and_code().0,
        }
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route(
            "/hello",
            get(|| async { Json(serde_json::json!({"hello": "site"})) }),
        )
        .route(
            "/version",
            get(|request: Request| async move { Json(format!("{:?}", request.version())) }),
        )
        .route(
            "/echo",
            post(|Json(body): Json<serde_json::Value>| async { Json(body) }),
        )
        .route(
            "/refuse",
            get(|| async { refuse(409, "fenced", "stop training; you are fenced") }),
        )
        .route(
            "/silent",
            get(|| async { std::future::pending::<StatusCode>().await }),
        )
        .route("/blobs/{hash}/manifest", get(get_manifest))
        .route("/blobs/{hash}/data", get(get_data))
        .route("/uploads/u", get(get_missing))
        .route("/uploads/u/chunks/{chunk}", put(put_chunk).get(get_held))
        .route("/uploads/u/complete", post(complete))
        .layer(from_fn_with_state(shared.clone(), authorize))
        .with_state(shared)
}

async fn authorize(State(_): Server, headers: HeaderMap, request: Request, next: Next) -> Response {
    let right = format!("Bearer {TOKEN}");
    match headers.get(header::AUTHORIZATION) {
        Some(value) if value.as_bytes() == right.as_bytes() => next.run(request).await,
        _ => refuse(401, "unauthorized", "unknown token"),
    }
}

fn refuse(status: u16, code: &str, message: impl ToString) -> Response {
    let status = StatusCode::from_u16(status).unwrap();
    (status, Json(ErrorBody::new(code, message))).into_response()
}

async fn get_manifest(State(shared): Server, Path(hash): Path<String>) -> Response {
    match shared.store.manifest(hash.parse().unwrap()) {
        Ok(manifest) => manifest.to_json().into_response(),
        Err(error) => {
            let (status, code) = serve::status_and_code(&error);
            refuse(status, code, error)
        }
    }
}

async fn get_data(State(shared): Server, Path(hash): Path<String>, headers: HeaderMap) -> Response {
    if shared.faults.lock().unwrap().silent {
        return std::future::pending().await;
    }
    let blob = shared.store.open_blob(hash.parse().unwrap()).unwrap();
    let total = blob.manifest().total_bytes();
    let asked = headers.get(header::RANGE).unwrap().to_str().unwrap();
    let range = serve::parse_range(asked, total).unwrap();
    let headers = [
        (header::CONTENT_RANGE, range.content_range(total)),
        (header::CONTENT_LENGTH, range.length.to_string()),
    ];
    let take = |left: &mut u32| std::mem::replace(left, left.saturating_sub(1)) > 0;
    let mut faults = shared.faults.lock().unwrap();
    let (flip, cut) = (take(&mut faults.flips_left), take(&mut faults.cuts_left));
    drop(faults);
    let pieces = serve::stream_blob(blob, range, Vec::new()).map_err(std::io::Error::other);
    // In small pieces, so that a cut falls inside a chunk.
    let pieces = pieces.flat_map(move |piece| stream::iter(split(piece, flip, cut)));
    let body = Body::from_stream(pieces.map(move |piece| count_sent(&shared, piece)));
    (StatusCode::PARTIAL_CONTENT, headers, body).into_response()
}

fn split(piece: std::io::Result<Bytes>, flip: bool, cut: bool) -> Vec<std::io::Result<Bytes>> {
    let mut bytes = piece.unwrap().to_vec();
    if flip {
        bytes[0] ^= 1;
    }
    let mut pieces: Vec<_> = bytes
        .chunks(7000)
        .map(|b| Ok(Bytes::copy_from_slice(b)))
        .collect();
    if cut {
        let middle = pieces.len() / 2;
        pieces[middle] = Err(std::io::Error::other("cut"));
    }
    pieces
}

fn count_sent(shared: &Shared, piece: std::io::Result<Bytes>) -> std::io::Result<Bytes> {
    let piece = piece?;
    let length = piece.len() as u64;
    if let Some(left) = &mut shared.faults.lock().unwrap().sent_bytes_left {
        let enough = left.checked_sub(length);
        *left = enough.unwrap_or(0);
        enough.ok_or_else(|| std::io::Error::other("cut"))?;
    }
    shared.sent_bytes.fetch_add(length, Ordering::Relaxed);
    Ok(piece)
}

fn current(shared: &Shared) -> Arc<Upload> {
    shared.upload.lock().unwrap().clone().unwrap()
}

async fn get_missing(State(shared): Server) -> Json<MissingChunks> {
    Json(MissingChunks {
        missing: current(&shared).missing(),
    })
}

async fn get_held(State(shared): Server, Path(chunk): Path<u32>) -> Json<HeldBytes> {
    let held_bytes = current(&shared).held_bytes(chunk).unwrap();
    Json(HeldBytes { held_bytes })
}

async fn put_chunk(
    State(shared): Server,
    Path(chunk): Path<u32>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let (cut, flip, hangs) = {
        let mut faults = shared.faults.lock().unwrap();
        let cut = faults.chunks_taken_left == Some(0);
        faults.chunks_taken_left = faults.chunks_taken_left.map(|left| left.saturating_sub(1));
        let flip = faults.received_flips_left > 0;
        faults.received_flips_left = faults.received_flips_left.saturating_sub(1);
        let hangs = faults.hangs_left > 0;
        faults.hangs_left = faults.hangs_left.saturating_sub(1);
        (cut, flip, hangs)
    };
    if cut {
        // An answer that breaks off before its headers is a broken connection to the client.
        panic_connection();
    }
    let mut flip = flip;
    let body = body.into_data_stream().map_ok(move |piece| {
        let mut bytes = piece.to_vec();
        if std::mem::take(&mut flip) {
            bytes[0] ^= 1;
        }
        Bytes::from(bytes)
    });
    let upload = current(&shared);
    let (_, chunk_bytes) = upload.manifest().chunk_range(chunk).unwrap();
    let header = headers[header::CONTENT_RANGE].to_str().unwrap();
    let part = serve::parse_content_range(header, chunk_bytes).unwrap();
    if hangs {
        let begins = body
            .take(1)
            .map_ok(|piece| piece.slice(..piece.len().min(30_000)));
        let breaks = stream::once(async { Err(axum::Error::new("cut")) });
        let body = begins.chain(breaks);
        let _ = serve::receive_chunk(upload, chunk, Some(part), body, &receiving()).await;
        return std::future::pending().await;
    }
    match serve::receive_chunk(upload, chunk, Some(part), body, &receiving()).await {
        Ok(received) => {
            if matches!(received, Received::Whole(_)) {
                shared.received_chunks.fetch_add(1, Ordering::Relaxed);
            }
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => refuse_chunk(&error),
    }
}

fn refuse_chunk(error: &ReceiveError) -> Response {
    let (status, code) = error.status_and_code();
    refuse(status, code, error)
}

/// Ends the connection's task without an answer, quietly.
fn panic_connection() -> ! {
    std::panic::resume_unwind(Box::new("cut"))
}

async fn complete(State(shared): Server) -> Response {
    let damage = {
        let mut faults = shared.faults.lock().unwrap();
        std::mem::replace(&mut faults.damage_on_complete, 0) > 0
    };
    if damage {
        lose_a_chunk(&shared);
    }
    let upload = current(&shared);
    let work = move || shared.store.complete_upload(&upload);
    match serve::off_the_network(work).await {
        Ok(blob) => Json(serde_json::json!({"blob": blob.hash().to_string()})).into_response(),
        Err(error) => {
            let (status, code) = serve::status_and_code(&error);
            refuse(status, code, error)
        }
    }
}

/// What a power cut does: a chunk on disk is not what it was, and who starts again finds that out.
fn lose_a_chunk(shared: &Shared) {
    let data = shared.data_dir.path().join("uploads/u/data");
    let mut bytes = std::fs::read(&data).unwrap();
    bytes[2 * CHUNK as usize] ^= 1;
    std::fs::write(&data, bytes).unwrap();
    let manifest = current(shared).manifest().clone();
    let again = BlobStore::open(&shared.data_dir).unwrap();
    let upload = again.begin_upload("u".parse().unwrap(), manifest).unwrap();
    *shared.upload.lock().unwrap() = Some(upload);
}
