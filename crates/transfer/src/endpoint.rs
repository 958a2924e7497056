//! Whom a client talks to, and how it knows that it is the right one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// SHA-256 of a certificate's DER bytes; as text `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The fingerprint of a certificate.
    #[must_use]
    pub fn of_der(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hansa_base::Hash(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is no fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a fingerprint: \"sha256:\" and 64 hexadecimal digits are expected, as the server prints it"
)]
pub struct ParseFingerprintError;

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    fn from_str(text: &str) -> Result<Self, ParseFingerprintError> {
        let digits = text
            .trim()
            .strip_prefix("sha256:")
            .ok_or(ParseFingerprintError)?;
        let hash: hansa_base::Hash = digits.parse().map_err(|_| ParseFingerprintError)?;
        Ok(Self(hash.0))
    }
}

/// A bearer token. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    /// Takes a token as read from its file; surrounding white space goes.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Why the server is believed to be the right one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// HTTPS with exactly this certificate, whoever signed it and whatever names it bears.
    Pinned(Fingerprint),
    /// Plain HTTP, to this machine only.
    LoopbackPlain,
}

/// A server.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// `https://host:port`, perhaps with a path that all requests share.
    pub base_url: String,
    /// Sent with every request.
    pub token: Token,
    /// How the server is recognised.
    pub trust: Trust,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn fingerprints_survive_their_text_and_tokens_stay_secret() {
        let print = Fingerprint::of_der(b"certificate");
        assert!(print.to_string().starts_with("sha256:") && print.to_string().len() == 71);
        assert_eq!(print.to_string().parse(), Ok(print));
        for bad in ["", "sha256:", "sha256:zz", &"0".repeat(64)] {
            assert_eq!(
                bad.parse::<Fingerprint>(),
                Err(ParseFingerprintError),
                "{bad}"
            );
        }
        let token = Token::new(" secret\n");
        assert_eq!(token.as_str(), "secret");
        assert!(!format!("{token:?}").contains("secret"));
    }
}
