//! The names by which the kernel's objects of an attachment are recognised.

use ring::digest::{SHA512, digest};

use crate::protocol::error::Error;
use crate::protocol::request::Attachment;

/// An attachment to a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) network: String,
    pub(crate) attachment: Attachment,
}

/// The kernel's limit for an alias, in bytes.
const LONGEST_ALIAS: usize = 255;

impl Identity {
    pub(super) fn new(network: &str, attachment: &Attachment) -> Self {
        Self { network: network.to_owned(), attachment: attachment.clone() }
    }

    /// # Errors
    /// The alias of its link would be cut, and name other attachments too.
    pub(super) fn check(&self) -> Result<(), Error> {
        let excess = self.whole().len().saturating_sub(LONGEST_ALIAS);
        if excess == 0 {
            return Ok(());
        }
        let longest = self.network.len().saturating_sub(excess);
        Err(Error::invalid_config(format!(
            "the name of the network is too long: it may have {longest} bytes with this container ID"
        )))
    }

    /// What the link of a port is called: `veth` and eight digits, another one for each `attempt`.
    pub(super) fn port_name(&self, attempt: usize) -> String {
        format!("veth{}", hex(&format!("{}#{attempt}", self.whole()), 8))
    }

    /// What the link of a port is marked with. Neither part can hold a slash.
    pub(super) fn alias(&self) -> String {
        let mut alias = self.whole();
        alias.truncate(LONGEST_ALIAS);
        alias
    }

    /// The attachment that `alias` names; none if it was not made here.
    pub(crate) fn of_alias(alias: &str) -> Option<Self> {
        let mut parts = alias.strip_prefix("cni:")?.split('/');
        let mut part = || parts.next().filter(|part| !part.is_empty()).map(str::to_owned);
        let network = part()?;
        let attachment = Attachment { container_id: part()?, interface: part()? };
        Some(Self { network, attachment })
    }

    fn whole(&self) -> String {
        let Attachment { container_id, interface } = &self.attachment;
        format!("cni:{}/{container_id}/{interface}", self.network)
    }
}

/// The first `length` hexadecimal digits of the SHA-512 of `text`.
pub(crate) fn hex(text: &str, length: usize) -> String {
    let digest = digest(&SHA512, text.as_bytes());
    let digits = digest.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).take(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(container_id: &str) -> Identity {
        let attachment = Attachment { container_id: container_id.into(), interface: "eth0".into() };
        Identity { network: "cbr0".into(), attachment }
    }

    #[test]
    fn an_alias_names_its_attachment() {
        let identity = identity("c1");
        assert_eq!(identity.alias(), "cni:cbr0/c1/eth0");
        assert_eq!(Identity::of_alias(&identity.alias()), Some(identity));
        for other in ["", "uplink", "cni:cbr0/c1", "cni:cbr0//eth0"] {
            assert_eq!(Identity::of_alias(other), None, "{other}");
        }
    }

    #[test]
    fn names_of_ports_fit_and_differ() {
        let names =
            [identity("c1").port_name(0), identity("c1").port_name(1), identity("c2").port_name(0)];
        assert!(identity("c1").check().is_ok());
        for name in &names {
            assert_eq!(name.len(), 12, "{name}");
        }
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
    }

    #[test]
    fn the_alias_of_a_long_name_is_cut_to_the_limit_of_the_kernel() {
        let long = identity(&"c".repeat(300));
        assert_eq!(long.alias().len(), LONGEST_ALIAS);
        assert!(long.check().is_err());
    }

    #[test]
    fn the_hash_is_the_beginning_of_sha_512() {
        assert_eq!(hex("abc", 16), "ddaf35a193617aba");
        assert_eq!(hex("", 6), "cf83e1");
    }
}
