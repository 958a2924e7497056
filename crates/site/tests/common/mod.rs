//! A site process of a profile, and a coordinator's side that a test plays.

use std::path::Path;

use axum::Router;
use hansa_site::{Notes, Options, Profile};
use hansa_transfer::{Endpoint, Token, Trust};

/// Serves on a free port for as long as the test runs; its URL.
pub async fn serve(app: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

/// For a process with its home in a folder.
pub fn options(
    profile: Profile,
    folder: &Path,
    url: &str,
    take_over: bool,
    notes: Notes,
) -> Options {
    Options {
        profile,
        home: folder.join("home"),
        endpoint: Endpoint {
            base_url: url.to_owned(),
            token: Token::new("t"),
            trust: Trust::LoopbackPlain,
        },
        take_over,
        once: false,
        notes,
    }
}
