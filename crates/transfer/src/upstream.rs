//! The proxy on the way to a server, for whoever makes connections other than by [`Client`](crate::Client).
//!
//! The same rules, from the same code: what a client reaches, a relay reaches.

use hyper_util::client::proxy::matcher::Matcher;

use crate::client::{Proxy, ProxyFile, all_are_excepted, check_endpoint};
use crate::endpoint::Endpoint;
use crate::error::TransferError;

/// A forward proxy, and how to log in there.
#[derive(Clone, PartialEq, Eq)]
pub struct Upstream {
    /// `host:port`.
    pub authority: String,
    /// The value of `Proxy-Authorization`, if it wants one; secret.
    pub authorization: Option<String>,
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream")
            .field("authority", &self.authority)
            .finish_non_exhaustive()
    }
}

impl Upstream {
    /// The proxy through which a client with this proxy setting would reach the endpoint; `None` if it would
    /// connect directly.
    ///
    /// # Errors
    /// If the endpoint or the proxy's URL is none, or the proxy itself wants TLS.
    pub fn of(proxy: &Proxy, endpoint: &Endpoint) -> Result<Option<Self>, TransferError> {
        let loopback = check_endpoint(endpoint)?;
        let set_up = |why: String| TransferError::SetUp(why);
        let target: hyper::Uri = endpoint
            .base_url
            .parse()
            .map_err(|_| set_up(format!("{}: not a URL", endpoint.base_url)))?;
        let matcher = match proxy {
            Proxy::FromEnvironment if loopback || all_are_excepted() => return Ok(None),
            Proxy::FromEnvironment => Matcher::from_env(),
            Proxy::Url(url) => Matcher::builder().all(url.as_str()).build(),
            Proxy::File(path) => {
                let url = ProxyFile::read(path)?.url_with_login();
                Matcher::builder().all(url).build()
            }
        };
        let Some(found) = matcher.intercept(&target) else {
            return match proxy {
                Proxy::Url(_) => Err(set_up("the proxy's URL is none: http://host:port".into())),
                _ => Ok(None),
            };
        };
        let uri = found.uri();
        let (Some("http"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(set_up(
                "a relay reaches proxies at http://host:port only".into(),
            ));
        };
        let authority = match authority.port() {
            Some(_) => authority.to_string(),
            None => format!("{authority}:80"),
        };
        let authorization = found.basic_auth().and_then(|value| value.to_str().ok());
        Ok(Some(Self {
            authority,
            authorization: authorization.map(str::to_owned),
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Fingerprint, Token, Trust};

    #[test]
    fn a_named_proxy_is_asked_with_its_user_and_password() {
        let endpoint = Endpoint {
            base_url: "https://vm.example:8443".to_owned(),
            token: Token::new("t"),
            trust: Trust::Pinned(Fingerprint([7; 32])),
        };
        let of = |url: &str| Upstream::of(&Proxy::Url(url.to_owned()), &endpoint);
        let found = of("http://proxy:3128").unwrap().unwrap();
        assert_eq!(
            (found.authority.as_str(), found.authorization),
            ("proxy:3128", None)
        );
        let found = of("http://user:p%40ss@proxy.example/").unwrap().unwrap();
        assert_eq!(found.authority, "proxy.example:80");
        assert!(!format!("{found:?}").contains("Basic"));
        // user:p@ss
        assert_eq!(found.authorization.unwrap(), "Basic dXNlcjpwQHNz");
        assert!(of("https://proxy:3128").is_err() && of("").is_err());
    }
}
