//! `HTTPS_PROXY` and `NO_PROXY`, as a job's environment has them. An environment belongs to a process, so
//! the site is one of its own: this program, started again for one of its tests.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;

use common::{TOKEN, TestServer};
use hansa_testkit::{Shape, ShapingProxy, Way};
use hansa_transfer::{Client, Endpoint, Token, TransferOptions, Trust, download};
use tokio::process::Command;

/// What the site is told; without it there is nothing to do for [`site`].
const TOLD: &str = "HANSA_TEST_SITE";
const TOTAL: usize = 3 << 20;

/// Server, proxy, and where the site puts what it gets.
struct Stage {
    server: TestServer,
    proxy: ShapingProxy,
    dir: tempfile::TempDir,
}

impl Stage {
    async fn new() -> Self {
        let server = TestServer::start(&model()).await;
        let proxy = ShapingProxy::start(Way::Connect, server.address(), Shape::default()).await;
        Self {
            server,
            proxy: proxy.unwrap(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// Downloads in a process with these variables from `host` at the server's port; gives the hosts that
    /// the proxy was asked for.
    async fn asked_for(&self, host: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let url = format!("https://{host}:{}", self.server.address().port());
        let endpoint = self.server.endpoint_at(url);
        let Trust::Pinned(fingerprint) = endpoint.trust else {
            panic!("the server has a certificate");
        };
        let dest = self.dir.path().join("model");
        let hash = self.server.blob_hash();
        let told = [
            &endpoint.base_url,
            TOKEN,
            &fingerprint.to_string(),
            &hash.to_string(),
            dest.to_str().unwrap(),
        ]
        .join(" ");
        let mut site = Command::new(std::env::current_exe().unwrap());
        site.args(["--exact", "site", "--nocapture"]);
        for name in ["HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "HTTP_PROXY"] {
            site.env_remove(name).env_remove(name.to_lowercase());
        }
        site.envs(variables.iter().copied()).env(TOLD, told);
        let output = site.output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(std::fs::read(&dest).unwrap() == model());
        std::fs::remove_file(&dest).unwrap();
        let mut asked = self.proxy.asked();
        asked.dedup();
        asked
    }

    fn proxy_url(&self) -> String {
        format!("http://{}", self.proxy.address())
    }
}

fn model() -> Vec<u8> {
    (0..TOTAL).map(|i| ((i * i) >> 7) as u8).collect()
}

/// The site's process.
#[tokio::test]
async fn site() {
    let Ok(told) = std::env::var(TOLD) else {
        return;
    };
    let told: Vec<&str> = told.split(' ').collect();
    let endpoint = Endpoint {
        base_url: told[0].to_owned(),
        token: Token::new(told[1]),
        trust: Trust::Pinned(told[2].parse().unwrap()),
    };
    let client = Client::new(&endpoint).unwrap();
    let (prefix, dest) = (format!("/blobs/{}", told[3]), PathBuf::from(told[4]));
    let (hash, options) = (told[3].parse().unwrap(), TransferOptions::new(1));
    let none = |_| {};
    download(&client, &prefix, hash, &dest, &options, &none)
        .await
        .unwrap();
}

#[tokio::test]
async fn the_proxy_of_the_environment_gets_what_is_far_and_not_excepted() {
    // It leads to this machine, but no rule about loopback knows it.
    let far = "0.0.0.0";
    for name in ["HTTPS_PROXY", "https_proxy"] {
        let stage = Stage::new().await;
        let url = stage.proxy_url();
        let port = stage.server.address().port();
        let nobody = Vec::<String>::new();
        assert_eq!(stage.asked_for(far, &[]).await, nobody);
        for exception in ["0.0.0.0", "10.0.0.0/8,0.0.0.0/32", "*"] {
            let variables = [(name, url.as_str()), ("NO_PROXY", exception)];
            assert_eq!(
                stage.asked_for(far, &variables).await,
                nobody,
                "{exception}"
            );
        }
        // A proxy elsewhere would look for a server on itself.
        for near in ["127.0.0.1", "localhost"] {
            assert_eq!(stage.asked_for(near, &[(name, &url)]).await, nobody);
        }
        for other in ["10.1.2.3", "example.org"] {
            let variables = [(name, url.as_str()), ("NO_PROXY", other)];
            let asked = stage.asked_for(far, &variables).await;
            assert_eq!(asked, [format!("{far}:{port}")], "{other}");
        }
    }
}
