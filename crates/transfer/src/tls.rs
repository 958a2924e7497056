//! The server's identity: a self-signed certificate, made once and kept.
//!
//! Sites pin its fingerprint, so losing the file means telling every site a new one; nothing here ever
//! replaces a file that is there.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CipherSuite, ServerConfig, SupportedCipherSuite};

use crate::endpoint::Fingerprint;

const FILE_NAME: &str = "tls.pem";

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file operation failed.
    #[error("{what} {path}: {source}")]
    Io {
        /// A bare verb phrase.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file holds no usable key and certificate.
    #[error(
        "{path} holds no usable key and certificate ({why}); restore it, or remove it to get a new \
         certificate, whose fingerprint every site must then be told"
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A certificate could not be made.
    #[error("make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// What a server needs to be recognised.
#[derive(Debug, Clone)]
pub struct ServerIdentity {
    /// For the listener; offers HTTP/2 and HTTP/1.1.
    pub config: Arc<ServerConfig>,
    /// For the sites to pin.
    pub fingerprint: Fingerprint,
}

/// Loads the identity kept in `dir`, or makes one that bears `names` (host names or IP addresses). Key
/// and certificate share one file of mode 0600, which appears complete or not at all.
pub fn load_or_make(dir: &Path, names: &[String]) -> Result<ServerIdentity, TlsError> {
    let path = dir.join(FILE_NAME);
    if !path.exists() {
        std::fs::create_dir_all(dir).map_err(io("create", dir))?;
        make(&path, names)?;
    }
    load(&path)
}

fn make(path: &Path, names: &[String]) -> Result<(), TlsError> {
    let certified = rcgen::generate_simple_self_signed(names)?;
    let pem = certified.signing_key.serialize_pem() + &certified.cert.pem();
    let draft = path.with_extension("pem.new");
    let mut options = File::options();
    let open = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft);
    let mut file = open.map_err(io("create", &draft))?;
    // A leftover of a killed start keeps its mode when it is opened again.
    file.set_permissions(Permissions::from_mode(0o600))
        .map_err(io("protect", &draft))?;
    let written = file
        .write_all(pem.as_bytes())
        .and_then(|()| file.sync_all());
    written.map_err(io("write", &draft))?;
    std::fs::rename(&draft, path).map_err(io("rename", &draft))?;
    let dir = path.parent().unwrap_or(Path::new("."));
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(io("sync", dir))
}

fn load(path: &Path) -> Result<ServerIdentity, TlsError> {
    let pem = std::fs::read(path).map_err(io("read", path))?;
    let mode = std::fs::metadata(path)
        .map_err(io("inspect", path))?
        .permissions()
        .mode();
    if mode & 0o077 != 0 {
        let path = path.display();
        tracing::warn!(%path, "others can read the server's private key; chmod it to 600");
    }
    let unusable = |why: String| TlsError::Unusable {
        path: path.to_owned(),
        why,
    };
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| unusable(error.to_string()))?;
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| unusable(error.to_string()))?;
    let first = certificates
        .first()
        .ok_or_else(|| unusable("no certificate".to_owned()))?;
    let fingerprint = Fingerprint::of_der(first);
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(certificates, key)
        })
        .map_err(|error| unusable(error.to_string()))?;
    // A client that offers both gets what it names first, or HTTP/2.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(ServerIdentity {
        config: Arc::new(config),
        fingerprint,
    })
}

/// ring's ciphers, AES with keys of 128 bits first: it takes ten passes where 256 bits take fourteen, nobody breaks
/// either, and encryption is much of what an exchange on a fast network costs. A server follows its client's order.
pub(crate) fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    let is_first =
        |suite: &SupportedCipherSuite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| !is_first(suite));
    provider
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> TlsError {
    let path = path.to_owned();
    move |source| TlsError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_identity_is_made_once_kept_private_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = load_or_make(dir.path(), &names).unwrap();
        let loaded = load_or_make(dir.path(), &[]).unwrap();
        assert_eq!(made.fingerprint, loaded.fingerprint);
        let path = dir.path().join(FILE_NAME);
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let pem = std::fs::read_to_string(&path).unwrap();
        for damaged in ["", "garbage", &pem[..pem.len() / 2]] {
            std::fs::write(&path, damaged).unwrap();
            let error = load_or_make(dir.path(), &names).unwrap_err();
            assert!(matches!(error, TlsError::Unusable { .. }), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), damaged);
        }
    }
}
