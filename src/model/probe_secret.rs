//! The shared secret of the cluster's daemons, with which they authenticate probes.

use std::fmt;

use ring::hmac;

/// Its value is never printed.
#[derive(Clone)]
pub struct Secret(hmac::Key);

/// The text is not a secret. The message does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it must be 64 hexadecimal digits: delete it, and tweedd creates a new one")]
pub struct NotASecret;

impl Secret {
    /// The length of a secret, in bytes.
    pub const LENGTH: usize = 32;
    /// The length of an authentication code, in bytes.
    pub const SEAL: usize = 32;

    pub fn new(bytes: &[u8; Self::LENGTH]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Parses the output of [`text`](Self::text).
    pub fn parse(text: &[u8]) -> Result<Self, NotASecret> {
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
        let digits: Option<Vec<u8>> = text.trim_ascii().iter().map(digit).collect();
        let (pairs, rest) = digits.as_deref().map_or((&[][..], &[][..]), <[u8]>::as_chunks::<2>);
        let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
        let bytes = <[u8; Self::LENGTH]>::try_from(bytes).map_err(|_| NotASecret)?;
        rest.is_empty().then(|| Self::new(&bytes)).ok_or(NotASecret)
    }

    /// The text of the secret `bytes`, as kept in the store.
    pub fn text(bytes: &[u8; Self::LENGTH]) -> String {
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
        digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        other.has_sealed(&[], self.seal(&[]).as_ref())
    }

    pub(crate) fn seal(&self, bytes: &[u8]) -> hmac::Tag {
        hmac::sign(&self.0, bytes)
    }

    /// Whether `seal` was computed from `bytes` with this secret. Compares in constant time.
    pub(crate) fn has_sealed(&self, bytes: &[u8], seal: &[u8]) -> bool {
        hmac::verify(&self.0, bytes, seal).is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_parsed_from_its_text() {
        let bytes: [u8; 32] = std::array::from_fn(|index| u8::try_from(index * 8).unwrap());
        let read = Secret::parse(Secret::text(&bytes).as_bytes()).unwrap();
        assert_eq!(read.seal(b"probe").as_ref(), Secret::new(&bytes).seal(b"probe").as_ref());
    }

    #[test]
    fn a_text_that_is_not_a_secret_is_rejected() {
        let long = "0".repeat(66);
        for text in ["", "00", &long, &long[..63], &"g".repeat(64)] {
            assert_eq!(Secret::parse(text.as_bytes()).err(), Some(NotASecret), "{text}");
        }
        assert!(Secret::parse(format!("{}\n", &long[..64]).as_bytes()).is_ok());
    }

    #[test]
    fn a_secret_is_never_shown() {
        assert_eq!(format!("{:?}", Secret::new(&[7; 32])), "Secret");
    }
}
