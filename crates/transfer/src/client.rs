//! One server, as a client sees it: small control calls, and other connections for bulk.
//!
//! The two never share a connection, so that a heartbeat never waits behind a chunk; each lane of a
//! transfer has one of its own.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::endpoint::{Endpoint, Token, Trust};
use crate::error::{ErrorBody, TransferError};
use crate::{names, pinning};

const CONNECT_MAX: Duration = Duration::from_secs(10);
/// No JSON answer is larger; a manifest of the most chunks has 70 MB.
const ANSWER_BYTES_MAX: usize = 128 << 20;
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// A connection without requests for so long is closed: middleboxes forget it silently.
const IDLE_MAX: Duration = Duration::from_secs(45);
/// With HTTP/2, what the server may send ahead: a long path's worth.
const WINDOW_BYTES: u32 = 16 << 20;

/// How to get to the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Route {
    /// Which HTTP to speak.
    pub http: HttpVersion,
    /// Through which proxy.
    pub proxy: Proxy,
}

/// Which HTTP to speak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1.
    #[default]
    One,
    /// HTTP/2, where the server has it, else HTTP/1.1. Only over TLS.
    Two,
}

/// Which forward proxy to ask; a server that is named by this machine's own address needs none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Proxy {
    /// What `HTTPS_PROXY` and `NO_PROXY` say.
    #[default]
    FromEnvironment,
    /// This one, whatever the server: `http://host:port`, perhaps with user and password.
    Url(String),
    /// What this file says when a connection is made ([`ProxyFile`]): a site's relay may move to another
    /// machine while a job runs.
    File(PathBuf),
}

/// A proxy and how to log in there, as a file: secrets stay off command lines and out of the environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyFile {
    /// `http://host:port`.
    pub url: String,
    /// The user.
    pub user: String,
    /// The password.
    pub password: Token,
}

impl ProxyFile {
    /// Reads a file; its lines are in no message.
    ///
    /// # Errors
    /// If it cannot be read or says something else.
    pub fn read(path: &Path) -> Result<Self, TransferError> {
        let bad = |why: &str| TransferError::ProxyFile {
            path: path.to_owned(),
            why: why.to_owned(),
        };
        let bytes = std::fs::read(path).map_err(|error| bad(&error.to_string()))?;
        let file: Self = serde_json::from_slice(&bytes)
            .map_err(|_| bad("expected JSON with url, user and password"))?;
        file.login().ok_or_else(|| bad("its url is none"))?;
        Ok(file)
    }

    /// The same as text; empty if there is none.
    pub(crate) fn url_with_login(&self) -> String {
        self.login().map(String::from).unwrap_or_default()
    }

    /// The URL with user and password in it.
    fn login(&self) -> Option<Url> {
        let mut url = Url::parse(&self.url).ok()?;
        url.set_username(&self.user).ok()?;
        url.set_password(Some(self.password.as_str())).ok()?;
        Some(url)
    }
}

/// A client of one server. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct Client {
    control: reqwest::Client,
    bulk: reqwest::Client,
    base_url: String,
    recipe: Arc<ConnectionRecipe>,
}

/// What it takes to make a further connection.
struct ConnectionRecipe {
    tls: rustls::ClientConfig,
    headers: HeaderMap,
    proxy: Option<reqwest::Proxy>,
    no_proxy: bool,
    http: HttpVersion,
}

impl std::fmt::Debug for ConnectionRecipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Headers and proxies hold secrets.
        f.debug_struct("ConnectionRecipe").finish_non_exhaustive()
    }
}

impl ConnectionRecipe {
    fn build(&self) -> Result<reqwest::Client, TransferError> {
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .default_headers(self.headers.clone())
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_MAX)
            .pool_idle_timeout(IDLE_MAX);
        builder = match self.http {
            HttpVersion::One => builder.http1_only(),
            HttpVersion::Two => builder
                .http2_initial_stream_window_size(WINDOW_BYTES)
                .http2_initial_connection_window_size(WINDOW_BYTES),
        };
        if let Some(names) = names::for_http() {
            builder = builder.dns_resolver(names);
        }
        if let Some(proxy) = &self.proxy {
            builder = builder.proxy(proxy.clone());
        } else if self.no_proxy {
            builder = builder.no_proxy();
        }
        let built = builder.build();
        built.map_err(|error| TransferError::SetUp(error.to_string()))
    }
}

impl Client {
    /// Checks address and trust; connects to nothing yet.
    pub fn new(endpoint: &Endpoint) -> Result<Self, TransferError> {
        Self::with_headers(endpoint, &[])
    }

    /// As [`Client::new`]; every request carries these headers, too.
    pub fn with_headers(
        endpoint: &Endpoint,
        more: &[(&'static str, String)],
    ) -> Result<Self, TransferError> {
        Self::over(&Route::default(), endpoint, more)
    }

    /// As [`Client::with_headers`], over a route that the caller chooses.
    pub fn over(
        route: &Route,
        endpoint: &Endpoint,
        more: &[(&'static str, String)],
    ) -> Result<Self, TransferError> {
        let loopback = check_endpoint(endpoint)?;
        let tls = pinning::client_config(endpoint.trust, route.http)
            .map_err(|error| TransferError::SetUp(error.to_string()))?;
        let bearer = format!("Bearer {}", endpoint.token.as_str());
        let mut bearer = HeaderValue::try_from(bearer).map_err(|_| TransferError::BadToken)?;
        bearer.set_sensitive(true);
        let mut headers = HeaderMap::from_iter([(AUTHORIZATION, bearer)]);
        for (name, value) in more {
            let value = HeaderValue::try_from(value);
            let value = value.map_err(|error| TransferError::SetUp(format!("{name}: {error}")))?;
            headers.insert(*name, value);
        }
        let proxy = match &route.proxy {
            Proxy::FromEnvironment => None,
            Proxy::Url(url) => {
                let proxy = reqwest::Proxy::all(url);
                Some(proxy.map_err(|error| TransferError::SetUp(error.to_string()))?)
            }
            Proxy::File(path) => {
                // A mistake shows now, and not as a connection that leads nowhere.
                ProxyFile::read(path)?;
                let path = path.clone();
                Some(reqwest::Proxy::custom(move |_| {
                    ProxyFile::read(&path).ok()?.login()
                }))
            }
        };
        let recipe = ConnectionRecipe {
            tls,
            headers,
            proxy,
            no_proxy: loopback || all_are_excepted(),
            http: route.http,
        };
        let base_url = endpoint.base_url.trim_end_matches('/').to_owned();
        Ok(Self {
            control: recipe.build()?,
            bulk: recipe.build()?,
            base_url,
            recipe: Arc::new(recipe),
        })
    }

    /// Whether connections may lead through a forward proxy.
    pub(crate) fn behind_proxy(&self) -> bool {
        let names = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
        let in_environment = || names.iter().any(|name| std::env::var_os(name).is_some());
        self.recipe.proxy.is_some() || (!self.recipe.no_proxy && in_environment())
    }

    /// A connection of its own, made by the first request.
    pub(crate) fn new_connection(&self) -> Result<reqwest::Client, TransferError> {
        self.recipe.build()
    }

    /// The server's address.
    #[must_use]
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// A control call that asks. `path` begins with `/`. Not retried; see
    /// [`with_retries`](crate::with_retries).
    pub async fn get_json<T: DeserializeOwned>(
        &self,
        path: &str,
        limit: Duration,
    ) -> Result<T, TransferError> {
        let url = self.url(path);
        json(self.control.get(&url), &url, limit).await
    }

    /// A control call that tells. `path` begins with `/`. Not retried; see
    /// [`with_retries`](crate::with_retries).
    pub async fn post_json<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        limit: Duration,
    ) -> Result<T, TransferError> {
        let url = self.url(path);
        json(self.control.post(&url).json(body), &url, limit).await
    }

    /// Asks for nothing, over the connection of control calls; whether an answer came in time, whatever it
    /// said.
    pub(crate) async fn nudge(&self, limit: Duration) -> bool {
        let request = self.control.head(&self.base_url).timeout(limit);
        request.send().await.is_ok()
    }

    pub(crate) async fn bulk_json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        limit: Duration,
    ) -> Result<T, TransferError> {
        let url = self.url(path);
        json(self.bulk.request(method, &url), &url, limit).await
    }

    /// Asks over a connection of one's own.
    pub(crate) async fn json_over<T: DeserializeOwned>(
        &self,
        connection: &reqwest::Client,
        path: &str,
        limit: Duration,
    ) -> Result<T, TransferError> {
        let url = self.url(path);
        json(connection.get(&url), &url, limit).await
    }

    pub(crate) async fn bulk_bytes(
        &self,
        path: &str,
        limit: Duration,
    ) -> Result<Vec<u8>, TransferError> {
        let url = self.url(path);
        bytes(self.bulk.get(&url), &url, limit).await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base_url)
    }
}

/// Whether `NO_PROXY` excepts everything; the library takes its `*` for names only, not for addresses.
pub(crate) fn all_are_excepted() -> bool {
    let said = ["NO_PROXY", "no_proxy"].map(std::env::var);
    said.iter().flatten().any(|value| value.trim() == "*")
}

/// Turns a refusal into an error with the server's own words.
pub(crate) async fn accept(
    response: Response,
    url: &str,
    limit: Duration,
) -> Result<Response, TransferError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    if status == reqwest::StatusCode::UNAUTHORIZED {
        return Err(TransferError::Unauthorized {
            url: url.to_owned(),
        });
    }
    let body = read_body(response, url, limit, REFUSAL_BYTES_MAX)
        .await
        .unwrap_or_default();
    let status = status.as_u16();
    match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(ErrorBody { error }) => Err(TransferError::Refused {
            status,
            code: error.code,
            message: error.message,
            more: error.more,
        }),
        Err(_) => {
            let message = format!("{url} refused and did not say why");
            Err(TransferError::Refused {
                status,
                code: "status".to_owned(),
                message,
                more: serde_json::Map::new(),
            })
        }
    }
}

async fn json<T: DeserializeOwned>(
    request: RequestBuilder,
    url: &str,
    limit: Duration,
) -> Result<T, TransferError> {
    let body = bytes(request, url, limit).await?;
    serde_json::from_slice(&body).map_err(|error| TransferError::BadAnswer {
        url: url.to_owned(),
        why: error.to_string(),
    })
}

async fn bytes(
    request: RequestBuilder,
    url: &str,
    limit: Duration,
) -> Result<Vec<u8>, TransferError> {
    let sent = request.timeout(limit).send().await;
    let response = sent.map_err(|error| TransferError::from_http(&error, url, limit))?;
    let response = accept(response, url, limit).await?;
    read_body(response, url, limit, ANSWER_BYTES_MAX).await
}

/// The request's own time limit covers the body, too.
async fn read_body(
    mut response: Response,
    url: &str,
    limit: Duration,
    bytes_max: usize,
) -> Result<Vec<u8>, TransferError> {
    let mut body = Vec::new();
    let broke = |error: reqwest::Error| TransferError::from_http(&error, url, limit);
    while let Some(piece) = response.chunk().await.map_err(broke)? {
        if body.len() + piece.len() > bytes_max {
            let why = format!("more than {bytes_max} bytes");
            return Err(TransferError::BadAnswer {
                url: url.to_owned(),
                why,
            });
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// Whether the address is this machine; refuses what would show the token to others.
pub(crate) fn check_endpoint(endpoint: &Endpoint) -> Result<bool, TransferError> {
    let text = endpoint.base_url.clone();
    let bad = |why: &str| TransferError::BadUrl {
        url: text.clone(),
        why: why.to_owned(),
    };
    let url = Url::parse(&text).map_err(|error| bad(&error.to_string()))?;
    let host = url.host_str().ok_or_else(|| bad("no host"))?;
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err(bad("only host, port and path are allowed"));
    }
    let address = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    let loopback = address.map_or(host == "localhost", |address| address.is_loopback());
    match (url.scheme(), endpoint.trust) {
        ("https", Trust::Pinned(_)) => Ok(loopback),
        ("https", Trust::LoopbackPlain) => Err(TransferError::FingerprintMissing(text)),
        ("http", _) if !loopback => Err(TransferError::PlainNotLoopback(text)),
        ("http", Trust::LoopbackPlain) => Ok(true),
        ("http", Trust::Pinned(_)) => Err(TransferError::FingerprintUnused(text)),
        _ => Err(bad("neither https nor http")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::endpoint::Fingerprint;

    fn check(base_url: &str, trust: Trust) -> Result<bool, TransferError> {
        check_endpoint(&Endpoint {
            base_url: base_url.to_owned(),
            token: Token::new("t"),
            trust,
        })
    }

    #[test]
    fn only_https_with_a_pin_and_plain_http_to_this_machine_are_accepted() {
        let pinned = Trust::Pinned(Fingerprint([7; 32]));
        let plain = Trust::LoopbackPlain;
        for url in [
            "http://127.0.0.1:8471",
            "http://[::1]:8471",
            "http://localhost/x",
        ] {
            assert!(check(url, plain).unwrap(), "{url}");
            assert!(matches!(
                check(url, pinned),
                Err(TransferError::FingerprintUnused(_))
            ));
        }
        for url in [
            "http://10.0.0.1:8471",
            "http://hansa.example",
            "http://127.0.0.1.evil.com",
        ] {
            assert!(
                matches!(check(url, plain), Err(TransferError::PlainNotLoopback(_))),
                "{url}"
            );
            assert!(
                matches!(check(url, pinned), Err(TransferError::PlainNotLoopback(_))),
                "{url}"
            );
        }
        assert!(!check("https://hansa.example:8471", pinned).unwrap());
        assert!(check("https://127.0.0.1:8471", pinned).unwrap());
        let missing = check("https://hansa.example", plain);
        assert!(matches!(missing, Err(TransferError::FingerprintMissing(_))));
        for url in [
            "",
            "hansa.example:8471",
            "ftp://127.0.0.1",
            "http://u:p@127.0.0.1",
        ] {
            assert!(
                matches!(check(url, plain), Err(TransferError::BadUrl { .. })),
                "{url}"
            );
        }
    }
}
