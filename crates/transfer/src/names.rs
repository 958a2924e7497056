//! Names of machines to addresses, in a static program as well.
//!
//! The C library's look-up loads what `/etc/nsswitch.conf` names as shared libraries. A static program cannot:
//! it would need those of the very C library it was built with. So a static build reads `/etc/hosts` and asks
//! the servers of `/etc/resolv.conf` itself. Any other build leaves it to the system, which may know more (LDAP,
//! mDNS). Never here: which names are asked for.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hickory_resolver::config::{LookupIpStrategy, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{Hosts, TokioResolver};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::net::TcpStream;

/// Whether this program looks names up itself.
const ITSELF: bool = cfg!(target_feature = "crt-static");
const HOSTS: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Connects to `host:port`.
///
/// # Errors
/// If the name is unknown, or nobody listens at any of its addresses.
pub async fn connect(address: &str) -> io::Result<TcpStream> {
    TcpStream::connect(&*addresses(address).await?).await
}

/// The addresses of `host:port`.
///
/// # Errors
/// If that is not what it says, or the name is unknown.
pub async fn addresses(address: &str) -> io::Result<Vec<SocketAddr>> {
    if !ITSELF {
        return Ok(tokio::net::lookup_host(address).await?.collect());
    }
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let parts = address.rsplit_once(':');
    let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.ok_or_else(|| {
        let why = format!("{address:?} is not HOST:PORT");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })?;
    let found = Directory::of_this_machine().look_up(host).await?;
    let found = found.into_iter().map(|ip| SocketAddr::new(ip, port));
    Ok(found.collect())
}

/// What the HTTP client must look names up with; `None`: what it does by itself.
pub(crate) fn for_http() -> Option<Arc<dyn Resolve>> {
    ITSELF.then(|| Arc::new(Itself) as Arc<dyn Resolve>)
}

struct Itself;

impl Resolve for Itself {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = Directory::of_this_machine().look_up(name.as_str()).await?;
            // The client puts the port in.
            let found = found.into_iter().map(|ip| SocketAddr::new(ip, 0));
            Ok(Box::new(found) as Addrs)
        })
    }
}

/// What this machine knows about names. Read anew for each look-up, of which there are few: a run outlives
/// changes of these files.
struct Directory {
    hosts: Hosts,
    config: ResolverConfig,
    options: ResolverOpts,
}

impl Directory {
    fn of_this_machine() -> Self {
        let read = |path| std::fs::read(path).unwrap_or_default();
        Self::from_files(&read(HOSTS), &read(RESOLV_CONF))
    }

    /// From the contents of `/etc/hosts` and `/etc/resolv.conf`; what cannot be read counts as empty.
    fn from_files(hosts: &[u8], resolv_conf: &[u8]) -> Self {
        let mut known = Hosts::default();
        if let Err(error) = known.read_hosts_conf(hosts) {
            tracing::warn!(%error, "cannot read {HOSTS}");
        }
        // Without a server the hosts file is all there is: no server is better than a stranger's.
        let (config, mut options) = parse_resolv_conf(resolv_conf).unwrap_or_else(|_| {
            let none = ResolverConfig::from_parts(None, Vec::new(), Vec::new());
            (none, ResolverOpts::default())
        });
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        Self {
            hosts: known,
            config,
            options,
        }
    }

    async fn look_up(self, host: &str) -> io::Result<Vec<IpAddr>> {
        let servers = self.config.name_servers().len();
        let unknown = |why: String| {
            let why = format!(
                "look up {host} in {HOSTS} and with the {servers} servers of {RESOLV_CONF}: {why}"
            );
            io::Error::new(io::ErrorKind::NotFound, why)
        };
        let provider = TokioRuntimeProvider::default();
        let mut builder = TokioResolver::builder_with_config(self.config, provider);
        *builder.options_mut() = self.options;
        let mut resolver = builder
            .build()
            .map_err(|error| unknown(error.to_string()))?;
        resolver.set_hosts(Arc::new(self.hosts));
        let found = resolver.lookup_ip(host).await;
        let found = found.map_err(|error| unknown(error.to_string()))?;
        Ok(found.iter().collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hickory_resolver::proto::op::{Message, MessageType, ResponseCode};
    use hickory_resolver::proto::rr::{RData, Record, RecordType};
    use tokio::net::UdpSocket;

    use super::*;

    /// A name server that knows `vm.site.example`; the port is not 53, as only root has that.
    async fn name_server() -> u16 {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        tokio::spawn(async move {
            let mut bytes = [0; 512];
            loop {
                let (length, from) = socket.recv_from(&mut bytes).await.unwrap();
                let mut message = Message::from_vec(&bytes[..length]).unwrap();
                let query = message.queries[0].clone();
                message.metadata.message_type = MessageType::Response;
                let known = query.name().to_string() == "vm.site.example.";
                if known && query.query_type() == RecordType::A {
                    let data = RData::A("192.0.2.7".parse().unwrap());
                    message.answers = vec![Record::from_rdata(query.name().clone(), 60, data)];
                } else if !known {
                    message.metadata.response_code = ResponseCode::NXDomain;
                }
                let answer = message.to_vec().unwrap();
                socket.send_to(&answer, from).await.unwrap();
            }
        });
        port
    }

    async fn directory(hosts: &str) -> Directory {
        let resolv_conf = b"search elsewhere.example site.example\nnameserver 127.0.0.1\n";
        let mut directory = Directory::from_files(hosts.as_bytes(), resolv_conf);
        let port = name_server().await;
        let mut servers = directory.config.name_servers().to_vec();
        for connection in servers
            .iter_mut()
            .flat_map(|server| &mut server.connections)
        {
            connection.port = port;
        }
        let (domain, search) = (directory.config.domain(), directory.config.search());
        directory.config = ResolverConfig::from_parts(domain.cloned(), search.to_vec(), servers);
        directory
    }

    async fn look_up(hosts: &str, name: &str) -> Result<String, String> {
        let found = directory(hosts).await.look_up(name).await;
        let found = found.map_err(|error| error.to_string())?;
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        Ok(found.join(" "))
    }

    #[tokio::test]
    async fn the_hosts_file_comes_first_then_the_servers_with_the_search_list() {
        let hosts = "192.0.2.1 vm.site.example vm\n";
        assert_eq!(look_up(hosts, "vm").await.unwrap(), "192.0.2.1");
        assert_eq!(
            look_up(hosts, "vm.site.example").await.unwrap(),
            "192.0.2.1"
        );
        assert_eq!(look_up("", "vm.site.example").await.unwrap(), "192.0.2.7");
        assert_eq!(look_up("", "vm").await.unwrap(), "192.0.2.7");
        assert!(
            look_up("", "localhost")
                .await
                .unwrap()
                .contains("127.0.0.1")
        );
    }

    #[tokio::test]
    async fn an_unknown_name_is_told_with_where_it_was_looked_for() {
        let said = look_up("", "wm.site.example").await.unwrap_err();
        for word in [
            "wm.site.example",
            "/etc/hosts",
            "1 servers of /etc/resolv.conf",
        ] {
            assert!(said.contains(word), "{said}");
        }
    }

    #[tokio::test]
    async fn without_a_server_the_hosts_file_is_all_there_is() {
        let known = || Directory::from_files(b"192.0.2.1 vm\n", b"");
        assert_eq!(known().look_up("vm").await.unwrap().len(), 1);
        assert!(known().look_up("wm").await.is_err());
    }

    #[tokio::test]
    async fn addresses_need_no_look_up() {
        let found = addresses("[::1]:8443").await.unwrap();
        assert_eq!(found, ["[::1]:8443".parse().unwrap()]);
        assert!(addresses("no port").await.is_err());
    }
}
