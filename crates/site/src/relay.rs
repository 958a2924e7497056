//! The relay for compute nodes with no way out: a small CONNECT proxy on the login node.
//!
//! ```text
//!   job ──CONNECT coordinator:8443──► relay ──────────► coordinator
//!       ◄═════════ TLS, pinned, end to end ═══════════►
//! ```
//!
//! It lets those in who know the password of the relay's file, and leads nowhere but to the coordinator.
//! What goes through is encrypted end to end; the relay sees bytes. Memory is bounded: so many tunnels, two
//! small buffers each, and a tunnel that is as old as no connection of Hansa's gets is closed. Never here:
//! what is transferred.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hansa_queue::LeaseNo;
use hansa_store::host;
use hansa_transfer::{Endpoint, Proxy, ProxyFile, Token, Upstream, names};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::error::SiteError;
use crate::profile::{Profile, RelaySection};
use crate::service::{Note, Site};

const USER: &str = "hansa";
/// 32 lanes and a heartbeat for each of a few dozen replicas.
const TUNNELS_MAX: usize = 1024;
const BUFFER_BYTES: usize = 32 << 10;
const HEAD_BYTES_MAX: usize = 8 << 10;
const HEAD_WITHIN: Duration = Duration::from_secs(10);
const CONNECT_WITHIN: Duration = Duration::from_secs(20);
const LET_GO_WITHIN: Duration = Duration::from_secs(5);
const TUNNEL_MAX: Duration = Duration::from_secs(3600);

/// A running relay; it ends when this is dropped.
pub struct Relay {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens at `listen`, and leads those who log in with `password` to `target` (`host:port`), through
    /// the proxy `upstream` if there is one.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn start(
        listen: &str,
        target: String,
        upstream: Option<Upstream>,
        password: &str,
    ) -> Result<Self, SiteError> {
        let broken = |source| SiteError::Relay {
            address: listen.to_owned(),
            source,
        };
        let addresses = names::addresses(listen).await.map_err(broken)?;
        let listener = TcpListener::bind(&*addresses).await.map_err(broken)?;
        let address = listener.local_addr().map_err(broken)?;
        let door = Arc::new(Door {
            authorization: format!("Basic {}", base64(format!("{USER}:{password}").as_bytes())),
            target,
            upstream,
        });
        let task = tokio::spawn(serve(listener, door));
        Ok(Self { address, task })
    }
}

/// The relay of a site process. Jobs read at each connection where it is, so that its file is written by
/// whoever has the site, and by nobody else.
pub(crate) struct Gate<'a> {
    endpoint: &'a Endpoint,
    open: Option<Open>,
    written: Option<LeaseNo>,
}

/// A relay, and the password that lets jobs in.
struct Open {
    relay: Relay,
    password: String,
}

impl<'a> Gate<'a> {
    pub fn new(endpoint: &'a Endpoint) -> Self {
        Self {
            endpoint,
            open: None,
            written: None,
        }
    }

    /// Starts the relay of a profile that wants one, and leads jobs to it with each new lease.
    ///
    /// # Errors
    /// If it cannot listen, or its file cannot be written.
    pub async fn open(&mut self, site: &Site) -> Result<(), SiteError> {
        let (Some(section), Some(lease)) = (&site.profile.relay, site.link.lease()) else {
            return Ok(());
        };
        if self.written == Some(lease) {
            return Ok(());
        }
        let open = match self.open.take() {
            Some(open) => open,
            None => {
                let Some(open) = start(section, &site.profile, self.endpoint).await? else {
                    return Ok(());
                };
                let address = open.relay.address().to_string();
                site.tell(&Note::Relay { address });
                open
            }
        };
        write_file(section, open.relay.address(), &open.password)?;
        self.open = Some(open);
        self.written = Some(lease);
        Ok(())
    }

    /// Another process has the site: its jobs are led to that one.
    pub fn close(&mut self) {
        self.open = None;
        self.written = None;
    }
}

/// Starts the relay of a profile that wants one, and writes the file that leads jobs to it.
pub(crate) async fn start_for(
    profile: &Profile,
    endpoint: Option<&Endpoint>,
) -> Result<Option<Relay>, SiteError> {
    let (Some(section), Some(endpoint)) = (&profile.relay, endpoint) else {
        return Ok(None);
    };
    let Some(open) = start(section, profile, endpoint).await? else {
        return Ok(None);
    };
    write_file(section, open.relay.address(), &open.password)?;
    Ok(Some(open.relay))
}

async fn start(
    section: &RelaySection,
    profile: &Profile,
    endpoint: &Endpoint,
) -> Result<Option<Open>, SiteError> {
    let Some(target) = authority(&endpoint.base_url) else {
        return Ok(None);
    };
    // As the site process itself gets there.
    let upstream = Upstream::of(&proxy_of(profile), endpoint)?;
    let password = password()?;
    let since = Instant::now();
    loop {
        let (target, upstream) = (target.clone(), upstream.clone());
        match Relay::start(&section.listen, target, upstream, &password).await {
            Ok(relay) => return Ok(Some(Open { relay, password })),
            // Whoever had the site before, on this machine, is about to let go of the port.
            Err(SiteError::Relay { source, .. })
                if source.kind() == ErrorKind::AddrInUse && since.elapsed() < LET_GO_WITHIN =>
            {
                tokio::time::sleep(LET_GO_WITHIN / 20).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The proxy of the login node.
pub(crate) fn proxy_of(profile: &Profile) -> Proxy {
    match &profile.coordinator.proxy {
        Some(url) => Proxy::Url(url.clone()),
        None => Proxy::FromEnvironment,
    }
}

fn write_file(
    section: &RelaySection,
    address: SocketAddr,
    password: &str,
) -> Result<(), SiteError> {
    let here = match address.ip().is_unspecified() {
        true => host(),
        false => address.ip().to_string(),
    };
    let host = section.host.clone().unwrap_or(here);
    let host = match host.contains(':') {
        true => format!("[{host}]"),
        false => host,
    };
    let file = ProxyFile {
        url: format!("http://{host}:{}", address.port()),
        user: USER.to_owned(),
        password: Token::new(password),
    };
    let bytes = serde_json::to_vec_pretty(&file).unwrap_or_default();
    Ok(hansa_store::replace_file(&section.file, &bytes, 0o600)?)
}

/// `host:port` of a URL.
fn authority(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let authority = authority.rsplit('@').next()?;
    let (_, last) = authority.rsplit_once(']').unwrap_or(("", authority));
    Some(match (last.contains(':'), scheme) {
        (true, _) => authority.to_owned(),
        (false, "https") => format!("{authority}:443"),
        (false, _) => format!("{authority}:80"),
    })
}

fn password() -> Result<String, SiteError> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 24];
    std::fs::File::open(path)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes))
        .map_err(SiteError::io("read", path))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

struct Door {
    authorization: String,
    target: String,
    upstream: Option<Upstream>,
}

async fn serve(listener: TcpListener, door: Arc<Door>) {
    let places = Arc::new(Semaphore::new(TUNNELS_MAX));
    loop {
        // Whoever finds no place waits in the listener's queue, which is bounded by the system.
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let door = door.clone();
        tokio::spawn(async move {
            // A tunnel's end is the client's business: it sees it.
            let _ = tunnel(client, &door).await;
            drop(place);
        });
    }
}

async fn tunnel(mut client: TcpStream, door: &Door) -> std::io::Result<()> {
    let head = match timeout(HEAD_WITHIN, read_head(&mut client)).await {
        Ok(head) => head?,
        Err(_) => return Ok(()),
    };
    if let Err(refusal) = door.admits(&head) {
        let answer =
            format!("HTTP/1.1 {refusal}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return client.write_all(answer.as_bytes()).await;
    }
    let server = timeout(CONNECT_WITHIN, door.connect()).await;
    let Ok(Ok(mut server)) = server else {
        let answer = b"HTTP/1.1 502 The coordinator is not reached\r\nContent-Length: 0\r\n\r\n";
        return client.write_all(answer).await;
    };
    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let copy = copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER_BYTES, BUFFER_BYTES);
    let _ = timeout(TUNNEL_MAX, copy).await;
    Ok(())
}

/// Up to the empty line. A client that speaks TLS says nothing more before it is answered.
async fn read_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= HEAD_BYTES_MAX {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

impl Door {
    /// Who may pass; for others the status line.
    fn admits(&self, head: &str) -> Result<(), &'static str> {
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        if words.next() != Some("CONNECT") {
            return Err("405 This is a relay for CONNECT only");
        }
        let target = words.next().unwrap_or_default();
        let mut headers = lines.filter_map(|line| line.split_once(':'));
        let said = headers.find(|(name, _)| name.eq_ignore_ascii_case("proxy-authorization"));
        let said = said.map(|(_, value)| value.trim()).unwrap_or_default();
        if !equal(said.as_bytes(), self.authorization.as_bytes()) {
            return Err(
                "407 Log in as the relay's file says\r\nProxy-Authenticate: Basic realm=\"hansa\"",
            );
        }
        match target.eq_ignore_ascii_case(&self.target) {
            true => Ok(()),
            false => Err("403 This relay leads to the coordinator only"),
        }
    }

    async fn connect(&self) -> std::io::Result<TcpStream> {
        let Some(upstream) = &self.upstream else {
            return names::connect(&self.target).await;
        };
        let mut stream = names::connect(&upstream.authority).await?;
        let target = &self.target;
        let login = upstream.authorization.as_ref();
        let login = login.map(|login| format!("Proxy-Authorization: {login}\r\n"));
        let login = login.unwrap_or_default();
        let ask = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n");
        stream.write_all(ask.as_bytes()).await?;
        let head = read_head(&mut stream).await?;
        match head.split(' ').nth(1) {
            Some("200") => Ok(stream),
            _ => Err(std::io::ErrorKind::ConnectionRefused.into()),
        }
    }
}

/// Takes the same time wherever the first difference is.
fn equal(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    a.len() == b.len() && differences == 0
}

/// RFC 4648.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * index) & 63) as usize];
            text.push(if index <= group.len() {
                char::from(digit)
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, text) in cases {
            assert_eq!(base64(plain.as_bytes()), text);
        }
    }

    #[test]
    fn authorities_have_a_port() {
        for (url, expected) in [
            ("https://vm.example:8443", "vm.example:8443"),
            ("https://vm.example/x", "vm.example:443"),
            ("http://proxy:3128/", "proxy:3128"),
            ("https://[::1]", "[::1]:443"),
            ("https://[::1]:8443", "[::1]:8443"),
        ] {
            assert_eq!(authority(url).as_deref(), Some(expected), "{url}");
        }
    }

    async fn echo_server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        address
    }

    async fn ask(relay: SocketAddr, request: &str) -> (String, TcpStream) {
        let mut stream = TcpStream::connect(relay).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await.unwrap();
        (head.lines().next().unwrap().to_owned(), stream)
    }

    #[tokio::test]
    async fn only_who_knows_the_password_passes_and_only_to_the_coordinator() {
        let target = echo_server().await.to_string();
        let relay = Relay::start("127.0.0.1:0", target.clone(), None, "secret")
            .await
            .unwrap();
        let login = format!("Proxy-Authorization: Basic {}\r\n", base64(b"hansa:secret"));
        let wrong = format!("Proxy-Authorization: Basic {}\r\n", base64(b"hansa:Secret"));
        let connect = |to: &str, header: &str| format!("CONNECT {to} HTTP/1.1\r\n{header}\r\n");
        for (request, status) in [
            (connect(&target, ""), "407"),
            (connect(&target, &wrong), "407"),
            (connect("example.org:443", &login), "403"),
            (
                format!("GET http://{target}/ HTTP/1.1\r\n{login}\r\n"),
                "405",
            ),
        ] {
            let (answer, _) = ask(relay.address(), &request).await;
            assert!(answer.contains(status), "{answer}");
        }
        let (answer, mut stream) = ask(relay.address(), &connect(&target, &login)).await;
        assert!(answer.contains("200"), "{answer}");
        stream.write_all(b"hello").await.unwrap();
        let mut back = [0; 5];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"hello");
    }

    #[tokio::test]
    async fn relays_chain_where_the_login_node_has_a_proxy_too() {
        let target = echo_server().await.to_string();
        // Stands for a site's proxy with a user of its own.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Upstream {
            authority: listener.local_addr().unwrap().to_string(),
            authorization: Some("Basic dXNlcjpwQHNz".to_owned()),
        };
        let to = target.clone();
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let head = read_head(&mut client).await.unwrap();
            assert!(head.starts_with(&format!("CONNECT {to} HTTP/1.1")));
            assert!(
                head.contains("Proxy-Authorization: Basic dXNlcjpwQHNz\r\n"),
                "{head}"
            );
            let mut server = TcpStream::connect(to).await.unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
        let relay = Relay::start("127.0.0.1:0", target.clone(), Some(upstream), "x")
            .await
            .unwrap();
        let login = base64(b"hansa:x");
        let request =
            format!("CONNECT {target} HTTP/1.1\r\nproxy-authorization: Basic {login}\r\n\r\n");
        let (answer, mut stream) = ask(relay.address(), &request).await;
        assert!(answer.contains("200"), "{answer}");
        stream.write_all(b"hello").await.unwrap();
        let mut back = [0; 5];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"hello");
    }
}
