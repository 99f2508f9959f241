//! Names that are derived from longer ones, as the CNI plugins derive them.

use std::fmt::Write;

use ring::digest::{SHA512, digest};

/// The first `length` hexadecimal digits of the SHA-512 of `text`.
pub(crate) fn hex(text: &str, length: usize) -> String {
    let mut hex = String::new();
    for byte in digest(&SHA512, text.as_bytes()).as_ref() {
        // Writing to a text does not fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex.truncate(length);
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_beginning_of_sha_512() {
        assert_eq!(hex("abc", 16), "ddaf35a193617aba");
        assert_eq!(hex("", 6), "cf83e1");
    }
}
