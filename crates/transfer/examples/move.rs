//! A server of one file, and a client that brings or sends it: for experiments with links.
//!
//! ```text
//! move serve --file F --listen ADDRESS --home DIR     prints `address`, `hash` and `fingerprint` as JSON
//! move get   --url U --fingerprint P --hash H --dest FILE [--lanes-max N]
//! move put   --url U --fingerprint P --file F [--lanes-max N]
//! ```
//!
//! Clients print bytes and goodput as JSON, over all and after the first 15 seconds.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use futures_util::StreamExt as _;
use hansa_store::{BlobStore, Bring, CHUNK_BYTES_DEFAULT, DataDir, Manifest, Upload};
use hansa_transfer::serve::{self, Receiving};
use hansa_transfer::{
    Client, Endpoint, HeldBytes, HttpVersion, MissingChunks, Progress, Route, Token,
    TransferOptions, Trust, download, tls, upload,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;

type Problem = Box<dyn std::error::Error + Send + Sync>;

/// The slow start is over by then.
const WARM: Duration = Duration::from_secs(15);

#[tokio::main]
async fn main() -> Result<(), Problem> {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let words: Vec<String> = words.collect();
    let get = |name: &str| {
        let at = words.iter().position(|word| word == name);
        at.and_then(|at| words.get(at + 1))
            .cloned()
            .unwrap_or_default()
    };
    match command.as_str() {
        "serve" => {
            run_server(
                get("--file").into(),
                get("--listen").parse()?,
                get("--home").into(),
            )
            .await
        }
        "get" | "put" => run_client(&command, &words, get).await,
        _ => Err("serve, get or put?".into()),
    }
}

struct Served {
    store: BlobStore,
    upload: Mutex<Arc<Upload>>,
}

async fn run_server(file: PathBuf, listen: SocketAddr, home: PathBuf) -> Result<(), Problem> {
    let data_dir = DataDir::lock(&home)?;
    let store = BlobStore::open(&data_dir)?;
    let blob = store.put_file(&file, Bring::Copy, CHUNK_BYTES_DEFAULT)?;
    // The same bytes are expected back; were the blob in the store, nothing would travel.
    let manifest = Manifest::of_file(&file, CHUNK_BYTES_DEFAULT)?;
    let aside = DataDir::lock(&home.join("received"))?;
    let received = BlobStore::open(&aside)?;
    let upload = received.begin_upload("u".parse()?, manifest)?;
    let hash = blob.hash();
    let identity = tls::load_or_make(&home, &["localhost".to_owned()])?;
    let listener = tokio::net::TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let fingerprint = identity.fingerprint;
    println!(
        "{}",
        serde_json::json!({"address": address.to_string(), "hash": hash.to_string(),
            "fingerprint": fingerprint.to_string()})
    );
    let served = Arc::new(Served {
        store,
        upload: Mutex::new(upload),
    });
    let router = Router::new()
        .route("/blob/manifest", get(get_manifest))
        .route("/blob/data", get(get_data))
        .route("/upload", get(get_missing))
        .route("/upload/chunks/{chunk}", put(put_chunk).get(get_held))
        .route("/sink", put(drain))
        .route("/upload/complete", post(|| async { Json("complete") }))
        .with_state((served, hash));
    let acceptor = tokio_rustls::TlsAcceptor::from(identity.config);
    loop {
        let (socket, _) = listener.accept().await?;
        let (acceptor, router) = (acceptor.clone(), router.clone());
        tokio::spawn(async move {
            let _ = socket.set_nodelay(true);
            if let Ok(secure) = acceptor.accept(socket).await {
                let service = TowerToHyperService::new(router);
                let mut builder = auto::Builder::new(TokioExecutor::new());
                builder.http2().initial_stream_window_size(2 << 20);
                let _ = builder
                    .serve_connection(TokioIo::new(secure), service)
                    .await;
            }
        });
    }
}

type Shared = State<(Arc<Served>, hansa_base::Hash)>;

fn failed(error: impl ToString) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
}

async fn get_manifest(State((served, hash)): Shared) -> Response {
    match served.store.manifest(hash) {
        Ok(manifest) => manifest.to_json().into_response(),
        Err(error) => failed(error),
    }
}

async fn get_data(State((served, hash)): Shared, headers: HeaderMap) -> Response {
    let blob = match served.store.open_blob(hash) {
        Ok(blob) => blob,
        Err(error) => return failed(error),
    };
    let total = blob.manifest().total_bytes();
    let asked = headers
        .get(header::RANGE)
        .and_then(|value| value.to_str().ok());
    // Without a range it is all of it, for curl.
    let (status, range) = match asked.map(|text| serve::parse_range(text, total)) {
        None => (
            StatusCode::OK,
            serve::ByteRange {
                start: 0,
                length: total,
            },
        ),
        Some(Ok(range)) => (StatusCode::PARTIAL_CONTENT, range),
        Some(Err(error)) => return failed(error),
    };
    let headers = [
        (header::CONTENT_RANGE, range.content_range(total)),
        (header::CONTENT_LENGTH, range.length.to_string()),
    ];
    let body = Body::from_stream(serve::stream_blob(blob, range, Vec::new()));
    (status, headers, body).into_response()
}

/// Takes whatever comes, for curl.
async fn drain(body: Body) -> Response {
    let mut body = body.into_data_stream();
    while let Some(piece) = body.next().await {
        if let Err(error) = piece {
            return failed(error);
        }
    }
    StatusCode::NO_CONTENT.into_response()
}

fn current(served: &Served) -> Arc<Upload> {
    served
        .upload
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

async fn get_missing(State((served, _)): Shared) -> Json<MissingChunks> {
    Json(MissingChunks {
        missing: current(&served).missing(),
    })
}

async fn get_held(State((served, _)): Shared, Path(chunk): Path<u32>) -> Response {
    match current(&served).held_bytes(chunk) {
        Ok(held_bytes) => Json(HeldBytes { held_bytes }).into_response(),
        Err(error) => failed(error),
    }
}

async fn put_chunk(
    State((served, _)): Shared,
    Path(chunk): Path<u32>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let upload = current(&served);
    let (_, length) = upload.manifest().chunk_range(chunk).unwrap_or_default();
    let header = headers
        .get(header::CONTENT_RANGE)
        .and_then(|value| value.to_str().ok());
    let part = header.and_then(|text| serve::parse_content_range(text, length).ok());
    let receiving = Receiving {
        stall_max: Duration::from_secs(30),
        bandwidth: Vec::new(),
    };
    match serve::receive_chunk(upload, chunk, part, body.into_data_stream(), &receiving).await {
        Ok(_) => Json(serde_json::json!({})).into_response(),
        Err(error) => {
            let (status, code) = error.status_and_code();
            let body = hansa_transfer::ErrorBody::new(code, error);
            (StatusCode::from_u16(status).unwrap_or_default(), Json(body)).into_response()
        }
    }
}

async fn run_client(
    command: &str,
    words: &[String],
    get: impl Fn(&str) -> String,
) -> Result<(), Problem> {
    let endpoint = Endpoint {
        base_url: get("--url"),
        token: Token::new("experiment"),
        trust: Trust::Pinned(get("--fingerprint").parse()?),
    };
    let mut route = Route::default();
    if words.iter().any(|word| word == "--http2") {
        route.http = HttpVersion::Two;
    }
    let client = Client::over(&route, &endpoint, &[])?;
    let mut options = TransferOptions::new(1);
    if let Ok(most) = get("--lanes-max").parse() {
        options.lanes.most = most;
    }
    let began = Instant::now();
    let warm = Mutex::new(None);
    let note = |progress: Progress| {
        let mut warm = warm.lock().unwrap_or_else(PoisonError::into_inner);
        if warm.is_none() && began.elapsed() >= WARM {
            *warm = Some((began.elapsed(), progress.travelled_bytes));
        }
    };
    let travelled = if command == "get" {
        let dest = PathBuf::from(get("--dest"));
        let done = download(
            &client,
            "/blob",
            get("--hash").parse()?,
            &dest,
            &options,
            &note,
        );
        done.await?.travelled_bytes
    } else {
        let file = PathBuf::from(get("--file"));
        let manifest = Manifest::of_file(&file, CHUNK_BYTES_DEFAULT)?;
        let done = upload(&client, "/upload", &file, &manifest, &options, &note);
        done.await?.travelled_bytes
    };
    let took = began.elapsed();
    let mbit = |bytes: u64, time: Duration| bytes as f64 * 8e-6 / time.as_secs_f64().max(1e-9);
    let warm = *warm.lock().unwrap_or_else(PoisonError::into_inner);
    let after = warm.map(|(at, bytes)| mbit(travelled - bytes, took - at));
    println!(
        "{}",
        serde_json::json!({"bytes": travelled, "seconds": took.as_secs_f64(),
            "mbit_per_s": mbit(travelled, took), "mbit_per_s_after_15_s": after})
    );
    Ok(())
}
