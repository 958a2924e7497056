//! One connection that stays open, and as little work for a call as possible.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use axum::body::{Body, to_bytes};
use hansa_wire::http::Client;
use hansa_wire::{Wire, decode, encode};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Where to, and how.
pub struct Connector {
    pub address: SocketAddr,
    pub tls: Option<Arc<ClientConfig>>,
}

pub struct Connection {
    sender: SendRequest<Body>,
    headers: Vec<(&'static str, String)>,
}

impl Connector {
    pub async fn connect(&self, name: &str, token: &str) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let sender = match &self.tls {
            None => speak(stream).await?,
            Some(config) => {
                let name = ServerName::try_from("localhost")?;
                speak(
                    TlsConnector::from(config.clone())
                        .connect(name, stream)
                        .await?,
                )
                .await?
            }
        };
        let client = Client {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let mut headers = client.headers().to_vec();
        headers.push(("authorization", format!("Bearer {token}")));
        headers.push(("host", "localhost".to_owned()));
        Ok(Connection { sender, headers })
    }
}

async fn speak<S>(stream: S) -> anyhow::Result<SendRequest<Body>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

impl Connection {
    pub async fn post<Q, A>(&mut self, path: &str, request: &Q) -> anyhow::Result<A>
    where
        Q: Wire,
        A: Wire,
    {
        let mut builder = Request::post(path);
        for (name, value) in &self.headers {
            builder = builder.header(*name, value);
        }
        self.sender.ready().await?;
        let request = builder.body(Body::from(encode(request)))?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let bytes = to_bytes(Body::new(response.into_body()), ANSWER_BYTES_MAX).await?;
        if !status.is_success() {
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&bytes));
        }
        decode(&bytes).context("read an answer")
    }
}
