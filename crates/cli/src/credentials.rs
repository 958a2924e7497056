//! A site's credentials: one small file with its token and the coordinator's fingerprint, copied to
//! the site once. Secrets never stand on a command line or in a log.

use anyhow::{Context as _, bail};
use hansa_transfer::{Endpoint, Fingerprint, Proxy, Route, Token, Trust};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The file's content.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// The bearer token.
    pub token: String,
    /// SHA-256 of the coordinator's certificate; absent for plain HTTP on loopback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// Where a command finds the coordinator, and what proves both sides.
#[derive(clap::Args)]
pub struct CoordinatorArguments {
    /// The coordinator's address, such as `https://vm.example:8443`.
    #[arg(long, env = "HANSA_COORDINATOR")]
    pub coordinator: String,
    /// The file with this site's token, as `hansa token add` wrote it.
    #[arg(long, env = "HANSA_TOKEN_FILE")]
    pub token_file: PathBuf,
    /// The coordinator's fingerprint, sha256:… [default: the one in the token file].
    #[arg(long, env = "HANSA_FINGERPRINT")]
    pub fingerprint: Option<String>,
}

/// The same for a command that also finds a coordinator by its data directory.
#[derive(clap::Args)]
pub struct RemoteArguments {
    /// The coordinator's address, such as `https://vm.example:8443`.
    #[arg(long, env = "HANSA_COORDINATOR")]
    coordinator: Option<String>,
    /// The file with this site's token, as `hansa token add` wrote it.
    #[arg(long, env = "HANSA_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// The coordinator's fingerprint, sha256:… [default: the one in the token file].
    #[arg(long, env = "HANSA_FINGERPRINT")]
    fingerprint: Option<String>,
    /// A file that names the proxy to the coordinator and how to log in there, as `hansa site run` writes
    /// it for its relay.
    #[arg(long, env = "HANSA_PROXY_FILE", value_name = "FILE")]
    proxy_file: Option<PathBuf>,
}

impl RemoteArguments {
    /// The way that the arguments describe.
    pub fn route(&self) -> Route {
        let proxy = match &self.proxy_file {
            Some(file) => Proxy::File(file.clone()),
            None => Proxy::FromEnvironment,
        };
        Route {
            proxy,
            ..Route::default()
        }
    }

    /// The endpoint that the arguments describe.
    pub fn endpoint(self) -> anyhow::Result<Endpoint> {
        let Self {
            coordinator,
            token_file,
            fingerprint,
            proxy_file: _,
        } = self;
        let (Some(coordinator), Some(token_file)) = (coordinator, token_file) else {
            bail!(
                "which coordinator? Give --data DIR on its own machine, or --coordinator URL with \
                 --token-file FILE"
            )
        };
        let all = CoordinatorArguments {
            coordinator,
            token_file,
            fingerprint,
        };
        all.endpoint()
    }
}

impl CoordinatorArguments {
    /// The endpoint that the arguments describe.
    pub fn endpoint(&self) -> anyhow::Result<Endpoint> {
        let credentials = Credentials::read(&self.token_file)?;
        credentials.endpoint(&self.coordinator, self.fingerprint.as_deref())
    }
}

impl Credentials {
    /// Reads a credentials file.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| {
            format!("read the token file {shown}: copy it from the coordinator's machine (`hansa token add`)")
        })?;
        // The error of the parser would quote the line, and with it the token.
        toml::from_str(&text).map_err(|_| {
            anyhow::anyhow!("{shown} is no token file: expected the lines `token = \"…\"` and `fingerprint = \"sha256:…\"`")
        })
    }

    /// The endpoint at an address; `fingerprint` wins over the file's.
    pub fn endpoint(&self, url: &str, fingerprint: Option<&str>) -> anyhow::Result<Endpoint> {
        let fingerprint = fingerprint.or(self.fingerprint.as_deref());
        let trust = match (url.starts_with("https://"), fingerprint) {
            (true, Some(text)) => Trust::Pinned(text.parse::<Fingerprint>()?),
            (true, None) => bail!(
                "{url} needs the coordinator's fingerprint: `hansa serve` prints it; give it with \
                 --fingerprint or put it into the token file"
            ),
            (false, _) => Trust::LoopbackPlain,
        };
        Ok(Endpoint {
            base_url: url.to_owned(),
            token: Token::new(&self.token),
            trust,
        })
    }
}
