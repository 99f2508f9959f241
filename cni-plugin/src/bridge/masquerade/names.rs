//! By what the rules of an attachment are known: the names that the CNI plugins give them.

use crate::bridge::identity::{Identity, hex};

/// In front of the comments of all rules of a network, in nftables.
pub(super) fn of_network(network: &str) -> String {
    hex(network, 16)
}

/// In front of the comment of each rule of an attachment, in nftables.
pub(super) fn of_attachment(identity: &Identity) -> String {
    let attachment = &identity.attachment;
    let own = hex(&format!("{}:{}", attachment.interface, attachment.container_id), 16);
    format!("{}-{own}", of_network(&identity.network))
}

/// The whole comment in nftables.
pub(super) fn comment(identity: &Identity) -> String {
    let (key, network) = (of_attachment(identity), &identity.network);
    let attachment = &identity.attachment;
    let (interface, container_id) = (&attachment.interface, &attachment.container_id);
    format!("{key}, net: {network}, if: {interface}, id: {container_id}")
}

/// The chain in iptables: all interfaces of a container share it.
pub(super) fn chain(identity: &Identity) -> String {
    let container_id = &identity.attachment.container_id;
    format!("CNI-{}", hex(&format!("{}{container_id}", identity.network), 24))
}

/// The comment of each rule in iptables.
pub(super) fn iptables_comment(network: &str, container_id: &str) -> String {
    format!("name: \"{network}\" id: \"{container_id}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::request::Attachment;

    #[test]
    fn the_names_equal_those_of_the_go_plugins() {
        let attachment = Attachment { container_id: "c1".into(), interface: "eth0".into() };
        let identity = Identity { network: "cbr0".into(), attachment };
        assert_eq!(
            comment(&identity),
            format!("{}-{}, net: cbr0, if: eth0, id: c1", hex("cbr0", 16), hex("eth0:c1", 16))
        );
        assert_eq!(chain(&identity), format!("CNI-{}", hex("cbr0c1", 24)));
        assert_eq!(chain(&identity).len(), 28);
    }
}
