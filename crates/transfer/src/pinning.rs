//! Trust in one certificate: its fingerprint, and proof that the server holds its key.
//!
//! A self-signed certificate has no authority behind it; the fingerprint that the operator copied is
//! stronger. The handshake's signature is still verified, as anybody could send a copied certificate.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};

use crate::client::HttpVersion;
use crate::endpoint::{Fingerprint, Trust};

/// The server showed another certificate than the pinned one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the certificate is {got}, but {expected} is pinned")]
pub struct WrongFingerprint {
    /// The pinned one.
    pub expected: Fingerprint,
    /// The server's.
    pub got: Fingerprint,
}

/// The TLS settings of a client. Plain HTTP gets settings that trust nobody, as redirects and proxies
/// must not find a way to TLS either.
pub(crate) fn client_config(
    trust: Trust,
    http: HttpVersion,
) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(crate::tls::provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let mut config = match trust {
        Trust::Pinned(expected) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned { expected, provider }))
            .with_no_client_auth(),
        Trust::LoopbackPlain => builder
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth(),
    };
    // As many connections as requests: over long distances that is what makes parallel requests fast,
    // and a dead connection holds up one request only.
    config.alpn_protocols = match http {
        HttpVersion::One => vec![b"http/1.1".to_vec()],
        HttpVersion::Two => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
    };
    Ok(config)
}

/// The mismatch behind an error of the HTTP client, if that was the cause.
pub(crate) fn find_wrong_fingerprint(
    error: &(dyn std::error::Error + 'static),
) -> Option<WrongFingerprint> {
    if let Some(rustls::Error::Other(OtherError(inner))) = error.downcast_ref() {
        return inner.downcast_ref().copied();
    }
    // `source` of an I/O error skips the error that it wraps.
    let wrapped = error
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::get_ref);
    wrapped
        .and_then(|inner| find_wrong_fingerprint(inner))
        .or_else(|| error.source().and_then(find_wrong_fingerprint))
}

#[derive(Debug)]
struct Pinned {
    expected: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let got = Fingerprint::of_der(end_entity);
        if got == self.expected {
            return Ok(ServerCertVerified::assertion());
        }
        let mismatch = WrongFingerprint {
            expected: self.expected,
            got,
        };
        Err(rustls::Error::Other(OtherError(Arc::new(mismatch))))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
