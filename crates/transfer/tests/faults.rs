//! Bad networks: proxies, middleboxes that cut, links that fall silent, servers that are killed. What
//! travels again is counted by the network itself.
#![allow(clippy::unwrap_used)]

mod server;

use std::path::PathBuf;
use std::time::Duration;

use hansa_base::RetryPolicy;
use hansa_store::Manifest;
use hansa_testkit::{Shape, ShapingProxy, Way};
use hansa_transfer::{
    Bandwidth, Client, Downloaded, Endpoint, HttpVersion, LaneLimits, Proxy, Route, TransferError,
    TransferOptions, Uploaded, download, upload,
};
use server::{CHUNK, TestServer};

const LANES: u64 = 3;
/// Handshakes, heads and what TLS adds: for each connection, and for all.
const CONNECTION_BYTES: u64 = 8 << 10;
const CHUNKS: u64 = 30;
const TOTAL: u64 = CHUNKS * CHUNK;

fn content() -> Vec<u8> {
    (0..TOTAL).map(|i| ((i * i) >> 7) as u8).collect()
}

/// What the server has: other bytes than are sent to it, or nothing would have to travel.
fn model() -> Vec<u8> {
    content().iter().map(|byte| !byte).collect()
}

/// A site that wants to get through.
struct Site {
    client: Client,
    dir: tempfile::TempDir,
    options: TransferOptions,
}

impl Site {
    fn new(route: &Route, endpoint: &Endpoint) -> Self {
        let mut options = TransferOptions::new(1);
        options.lanes = LaneLimits {
            first: LANES as usize,
            most: LANES as usize,
        };
        options.retry = RetryPolicy {
            first: Duration::from_millis(1),
            longest: Duration::from_millis(20),
            retries_max: Some(1000),
        };
        Self {
            client: Client::over(route, endpoint, &[]).unwrap(),
            dir: tempfile::tempdir().unwrap(),
            options,
        }
    }

    /// Through a relay that looks like the server.
    fn behind(server: &TestServer, relay: &ShapingProxy) -> Self {
        let url = format!("https://{}", relay.address());
        Self::new(&Route::default(), &server.endpoint_at(url))
    }

    fn dest(&self) -> PathBuf {
        self.dir.path().join("model")
    }

    async fn download(&self, server: &TestServer) -> Result<Downloaded, TransferError> {
        let hash = server.blob_hash();
        let prefix = format!("/blobs/{hash}");
        let none = |_| {};
        download(
            &self.client,
            &prefix,
            hash,
            &self.dest(),
            &self.options,
            &none,
        )
        .await
    }

    async fn upload(&self) -> Result<Uploaded, TransferError> {
        let source = self.dir.path().join("delta");
        std::fs::write(&source, content()).unwrap();
        let manifest = Manifest::of_bytes(&content(), CHUNK).unwrap();
        let none = |_| {};
        upload(
            &self.client,
            "/uploads/u",
            &source,
            &manifest,
            &self.options,
            &none,
        )
        .await
    }

    #[track_caller]
    fn check_downloaded(&self) {
        assert!(std::fs::read(self.dest()).unwrap() == model());
    }
}

/// A server that has one blob and waits for an upload, behind a network.
async fn behind(way: Way, shape: Shape) -> (TestServer, ShapingProxy) {
    let server = TestServer::start(&model()).await;
    server.begin_upload(&content());
    let proxy = ShapingProxy::start(way, server.address(), shape).await;
    (server, proxy.unwrap())
}

/// Slow enough that something can happen in the middle.
fn slow() -> Shape {
    Shape {
        bytes_per_s: Some(4_000_000),
        queue_bytes: Some(64 << 10),
        ..Shape::default()
    }
}

#[tokio::test]
async fn a_proxy_is_asked_for_a_tunnel_to_a_host_that_only_it_can_find() {
    for (http, spoken) in [
        (HttpVersion::One, "HTTP/1.1"),
        (HttpVersion::Two, "HTTP/2.0"),
    ] {
        let (server, proxy) = behind(Way::Connect, Shape::default()).await;
        let route = Route {
            http,
            proxy: Proxy::Url(format!("http://{}", proxy.address())),
        };
        let url = "https://hansa.invalid:8443".to_owned();
        let site = Site::new(&route, &server.endpoint_at(url));
        let limit = Duration::from_secs(20);
        let version: String = site.client.get_json("/version", limit).await.unwrap();
        assert_eq!(version, spoken);
        site.download(&server).await.unwrap();
        site.check_downloaded();
        site.upload().await.unwrap();
        server.check_blob(&content());
        assert!(
            proxy
                .asked()
                .iter()
                .all(|host| host == "hansa.invalid:8443")
        );
        assert!(proxy.counts().down_bytes > TOTAL && proxy.counts().up_bytes > TOTAL);
    }
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named() {
    let (server, proxy) = behind(Way::Refuse(403), Shape::default()).await;
    let route = Route {
        proxy: Proxy::Url(format!("http://{}", proxy.address())),
        ..Route::default()
    };
    let url = "https://hansa.invalid:8443".to_owned();
    let mut site = Site::new(&route, &server.endpoint_at(url));
    site.options.retry.retries_max = Some(0);
    let error = site.download(&server).await.unwrap_err();
    assert!(matches!(error, TransferError::Proxy { .. }), "{error:?}");
}

#[tokio::test]
async fn a_middlebox_that_cuts_every_connection_within_a_chunk_is_passed() {
    let cut_bytes = CHUNK * 6 / 10;
    for http in [HttpVersion::One, HttpVersion::Two] {
        let shape = Shape {
            cut_after_bytes: Some(cut_bytes),
            ..Shape::default()
        };
        let (server, relay) = behind(Way::Relay, shape).await;
        let url = format!("https://{}", relay.address());
        let route = Route {
            http,
            ..Route::default()
        };
        let site = Site::new(&route, &server.endpoint_at(url));
        site.download(&server).await.unwrap();
        site.check_downloaded();
        let down = relay.counts();
        assert!(down.cuts >= TOTAL / cut_bytes, "{down:?}");
        site.upload().await.unwrap();
        server.check_blob(&content());
        let up = relay.counts();
        assert!(up.cuts >= 2 * (TOTAL / cut_bytes), "{up:?}");
        // Not even twice, though no connection ever carried a whole chunk.
        assert!(
            down.down_bytes < 2 * TOTAL && up.up_bytes < 2 * TOTAL,
            "{up:?}"
        );
    }
}

#[tokio::test]
async fn after_silence_and_a_cut_only_what_was_under_way_travels_again() {
    let (server, relay) = behind(Way::Relay, slow()).await;
    let mut site = Site::behind(&server, &relay);
    site.options.stall_max = Duration::from_millis(300);
    let outage = async {
        relay.passed(TOTAL / 3).await;
        relay.silence();
        let connections = relay.counts().connections;
        // It has noticed: it tries new connections.
        while relay.counts().connections < connections + 2 * LANES {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        relay.break_all();
        relay.resume();
    };
    let (done, ()) = tokio::join!(site.download(&server), outage);
    done.unwrap();
    site.check_downloaded();
    let counts = relay.counts();
    let most = TOTAL + LANES * CHUNK + counts.connections * CONNECTION_BYTES;
    assert!(counts.down_bytes <= most, "{counts:?}");
}

#[tokio::test]
async fn a_server_that_is_killed_in_mid_upload_gets_again_only_what_was_under_way() {
    let (mut server, relay) = behind(Way::Relay, slow()).await;
    let site = Site::behind(&server, &relay);
    let kill = async {
        relay.passed(TOTAL / 2).await;
        server.restart().await;
        relay.break_all();
        server.begin_upload(&content());
        relay.set_target(server.address());
    };
    let (done, ()) = tokio::join!(site.upload(), kill);
    done.unwrap();
    server.check_blob(&content());
    let counts = relay.counts();
    let most = TOTAL + LANES * CHUNK + counts.connections * CONNECTION_BYTES;
    assert!(counts.up_bytes <= most, "{counts:?}");
    assert!(server.received_chunks() as u64 <= CHUNKS * 2 / 3);
}

#[tokio::test]
async fn a_byte_that_flips_on_the_way_is_noticed_and_costs_one_part() {
    let (server, relay) = behind(Way::Relay, Shape::default()).await;
    let site = Site::behind(&server, &relay);
    relay.flip_down_after(TOTAL / 2);
    site.download(&server).await.unwrap();
    site.check_downloaded();
    relay.flip_up_after(TOTAL / 2);
    site.upload().await.unwrap();
    server.check_blob(&content());
    let counts = relay.counts();
    let most = TOTAL + LANES * CHUNK + counts.connections * CONNECTION_BYTES;
    assert!(
        counts.down_bytes <= most && counts.up_bytes <= most,
        "{counts:?}"
    );
}

#[tokio::test]
async fn two_that_want_the_same_file_bring_it_once() {
    let (server, relay) = behind(Way::Relay, slow()).await;
    let site = Site::behind(&server, &relay);
    let (one, two) = tokio::join!(site.download(&server), site.download(&server));
    let travelled = one.unwrap().travelled_bytes + two.unwrap().travelled_bytes;
    assert_eq!((travelled, server.sent_bytes()), (TOTAL, TOTAL));
    site.check_downloaded();
}

#[tokio::test]
async fn a_cap_on_bandwidth_changes_nothing_but_the_time() {
    let (server, relay) = behind(Way::Relay, Shape::default()).await;
    let mut site = Site::behind(&server, &relay);
    site.options.bandwidth = Bandwidth::capped_mbit(Some(200.0));
    site.download(&server).await.unwrap();
    site.check_downloaded();
    site.upload().await.unwrap();
    server.check_blob(&content());
}

/// A file system of half the size that is needed, where this process may make one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let size = format!("size={}", TOTAL / 2);
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "hansa-test"])
            .arg(&at)
            .output();
        mount
            .is_ok_and(|done| done.status.success())
            .then_some(Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_disk_that_is_full_is_named_before_anything_travels() {
    let (server, relay) = behind(Way::Relay, Shape::default()).await;
    let site = Site::behind(&server, &relay);
    let Some(disk) = SmallDisk::mount(site.dir.path().join("small")) else {
        eprintln!("skipped: mounting a small file system takes root");
        return;
    };
    let hash = server.blob_hash();
    let (prefix, dest) = (format!("/blobs/{hash}"), disk.0.join("model"));
    let none = |_| {};
    let result = download(&site.client, &prefix, hash, &dest, &site.options, &none).await;
    let error = result.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("reserve space for"), "{text}");
    assert!(text.contains("No space left on device"), "{text}");
    assert!(!error.is_transient() && server.sent_bytes() == 0);
}
