//! Connections: accept, TLS, HTTP, and their limits.
//!
//! Bounded in number; a connection that does not finish its handshake or its headers in time is cut, so
//! that idle strangers do not hold places.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Connections at once, if so many files may be open; further ones wait unaccepted. A replica keeps one
/// for small calls, and a few while it uploads or downloads.
const CONNECTIONS_MAX: usize = 32_768;
/// Files that are left for everything else.
const FILES_SPARED: usize = 512;
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
const HEADERS_MAX: Duration = Duration::from_secs(30);
/// What a connection may buffer each way, headers included. A replica keeps several connections, so this
/// is what the coordinator's memory grows by with the number of replicas.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// With HTTP/2: what may arrive before it is taken, requests at once, and how long a connection lives.
const WINDOW_BYTES: u32 = 2 << 20;
const STREAMS_MAX: u32 = 16;
const AGE_MAX: Duration = Duration::from_secs(300);
/// How long connections may take to finish their request when the service stops.
const GOODBYE_MAX: Duration = Duration::from_secs(3);
/// After a failed accept (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How a connection begins.
#[derive(Clone)]
pub(crate) struct Acceptor(Option<TlsAcceptor>);

impl Acceptor {
    pub fn tls(config: Arc<ServerConfig>) -> Self {
        Self(Some(TlsAcceptor::from(config)))
    }

    pub fn plain() -> Self {
        Self(None)
    }
}

/// Serves until `stopped` becomes true; then ends the connections, each after the request under way.
pub(crate) async fn serve(
    listener: TcpListener,
    acceptor: Acceptor,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(connections_max()));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = until_stopped(&mut stopped) => break,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, _)) => {
                let work = converse(stream, acceptor.clone(), router.clone(), stopped.clone());
                connections.spawn(async move {
                    work.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GOODBYE_MAX, all).await.is_err() {
        connections.shutdown().await;
    }
}

/// As many as the system lets this process have; asks it for all that it may give.
fn connections_max() -> usize {
    let files = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: files.maximum,
        ..files
    };
    // Refused: then it stays at what it was.
    let files = setrlimit(Resource::Nofile, most).map_or(files, |()| most);
    let files = files
        .current
        .map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let max = files
        .saturating_sub(FILES_SPARED)
        .clamp(64, CONNECTIONS_MAX);
    tracing::debug!(max, "connections at once");
    max
}

async fn converse(
    stream: TcpStream,
    acceptor: Acceptor,
    router: Router,
    stopped: watch::Receiver<bool>,
) {
    // Control messages are small; waiting to fill a packet would only delay them.
    let _ = stream.set_nodelay(true);
    match acceptor.0 {
        None => speak(stream, router, stopped).await,
        Some(tls) => match tokio::time::timeout(HANDSHAKE_MAX, tls.accept(stream)).await {
            // Agreed on in the handshake: waiting to see which version comes would have no limit of time.
            Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
                speak_two(stream, router, stopped).await;
            }
            Ok(Ok(stream)) => speak(stream, router, stopped).await,
            // Port scanners and pinned clients of another run: not worth more than this.
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        },
    }
}

/// HTTP/1.1.
async fn speak<S>(stream: S, router: Router, mut stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .max_buf_size(BUFFER_BYTES_MAX)
        .header_read_timeout(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = until_stopped(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

/// HTTP/2. Nothing in it limits how long a connection may idle, so it is asked to end after a while; what
/// is under way is finished, and the client takes a new one.
async fn speak_two<S>(stream: S, router: Router, mut stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(HEADERS_MAX)
        .keep_alive_timeout(HEADERS_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_send_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = either(until_stopped(&mut stopped), tokio::time::sleep(AGE_MAX)) => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(AGE_MAX, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    tokio::select! {
        () = one => {}
        () = other => {}
    }
}

/// Ready once the service stops, or is gone.
async fn until_stopped(stopped: &mut watch::Receiver<bool>) {
    // Without a sender nobody will ever say so: that is the end, too.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
