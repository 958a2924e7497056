//! A 256-bit content hash or random token, shown as hexadecimal.

use std::fmt;
use std::str::FromStr;

/// 32 bytes: a BLAKE3 hash, a nonce or a token. `Display` and `FromStr` use 64 hexadecimal digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The first eight hexadecimal digits, for people.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({})", self.short())
    }
}

/// The text is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a hash: 64 hexadecimal digits are expected")]
pub struct ParseHashError;

impl FromStr for Hash {
    type Err = ParseHashError;

    fn from_str(text: &str) -> Result<Self, ParseHashError> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(ParseHashError);
        }
        let nibble = |digit: u8| (digit as char).to_digit(16).ok_or(ParseHashError);
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (nibble(pair[0])? * 16 + nibble(pair[1])?) as u8;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_survives_its_text_form_and_nothing_else_parses() {
        let hash = Hash(std::array::from_fn(|i| (i * 7) as u8));
        assert_eq!(hash.to_string().parse(), Ok(hash));
        let long = "0".repeat(65);
        let not_hex = "g".repeat(64);
        let wide = "é".repeat(32);
        for bad in ["", "00", &long, &not_hex, &wide] {
            assert_eq!(bad.parse::<Hash>(), Err(ParseHashError), "{bad}");
        }
    }
}
