//! What iptables-restore is given, and what `iptables --list-rules` tells.

use std::fmt::Write;

use ipnetwork::IpNetwork;

/// Rules for `addresses`, which are of one family.
pub(super) fn add(chain: &str, comment: &str, addresses: &[IpNetwork]) -> String {
    let comment = format!("-m comment --comment {}", quoted(comment));
    let multicast = match addresses.first() {
        Some(IpNetwork::V6(_)) => "ff00::/8",
        _ => "224.0.0.0/4",
    };
    // Naming the chain makes it, and empties one that is left from before.
    let mut script = format!("*nat\n:{chain} - [0:0]\n");
    for address in addresses {
        let (ip, network) = (address.ip(), network_of(*address));
        // Writing to a text does not fail.
        let _ = writeln!(script, "-A {chain} -d {network} {comment} -j ACCEPT");
        let _ = writeln!(script, "-A {chain} ! -d {multicast} {comment} -j MASQUERADE");
        let _ = writeln!(script, "-A POSTROUTING -s {ip} {comment} -j {chain}");
    }
    script + "COMMIT\n"
}

/// Takes away `chains` and whatever leads to them, in this listing of rules.
pub(super) fn remove(rules: &str, chains: &[String]) -> String {
    let leads = |rule: &str| chains.iter().any(|chain| target(rule) == Some(chain.as_str()));
    let mut script = String::from("*nat\n");
    for rule in rules.lines().filter(|rule| leads(rule)) {
        if let Some(rule) = rule.strip_prefix("-A ") {
            let _ = writeln!(script, "-D {rule}");
        }
    }
    for chain in chains {
        let _ = writeln!(script, "-F {chain}\n-X {chain}");
    }
    script + "COMMIT\n"
}

pub(super) fn has_chain(rules: &str, chain: &str) -> bool {
    rules.lines().any(|rule| rule.strip_prefix("-N ") == Some(chain))
}

/// Chains of containers of `network` other than `lives`, by the comments of what leads to them.
pub(super) fn stale_chains(rules: &str, network: &str, lives: &[&str]) -> Vec<String> {
    let mut stale: Vec<_> = rules
        .lines()
        .filter(|rule| rule.starts_with("-A POSTROUTING "))
        .filter(|rule| container_of(rule, network).is_some_and(|id| !lives.contains(&id.as_str())))
        .filter_map(target)
        .filter(|chain| chain.starts_with("CNI-"))
        .map(str::to_owned)
        .collect();
    stale.dedup();
    stale
}

fn container_of(rule: &str, network: &str) -> Option<String> {
    let plain = rule.replace('\\', "");
    let (_, behind) = plain.split_once(&format!("name: \"{network}\" id: \""))?;
    behind.split_once('"').map(|(id, _)| id.to_owned())
}

fn target(rule: &str) -> Option<&str> {
    let (_, behind) = rule.rsplit_once(" -j ")?;
    behind.split(' ').next()
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\\\""))
}

fn network_of(address: IpNetwork) -> String {
    format!("{}/{}", address.network(), address.prefix())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "-P POSTROUTING ACCEPT\n-N CNI-aaa\n-N CNI-bbb\n\
        -A POSTROUTING -s 10.1.0.2/32 -m comment --comment \"name: \\\"cbr0\\\" id: \\\"one\\\"\" -j CNI-aaa\n\
        -A POSTROUTING -s 10.1.0.3/32 -m comment --comment \"name: \\\"cbr0\\\" id: \\\"two\\\"\" -j CNI-bbb\n\
        -A CNI-aaa -d 10.1.0.0/24 -j ACCEPT\n";

    #[test]
    fn an_attachment_gets_a_chain_that_spares_its_own_network() {
        let address = "10.244.7.2/24".parse().unwrap();
        assert_eq!(
            add("CNI-aaa", r#"name: "a" id: "b""#, &[address]),
            "*nat\n:CNI-aaa - [0:0]\n\
             -A CNI-aaa -d 10.244.7.0/24 -m comment --comment \"name: \\\"a\\\" id: \\\"b\\\"\" -j ACCEPT\n\
             -A CNI-aaa ! -d 224.0.0.0/4 -m comment --comment \"name: \\\"a\\\" id: \\\"b\\\"\" -j MASQUERADE\n\
             -A POSTROUTING -s 10.244.7.2 -m comment --comment \"name: \\\"a\\\" id: \\\"b\\\"\" -j CNI-aaa\n\
             COMMIT\n"
        );
    }

    #[test]
    fn a_chain_goes_with_what_leads_to_it() {
        assert_eq!(
            remove(LISTED, &["CNI-aaa".to_owned()]),
            "*nat\n-D POSTROUTING -s 10.1.0.2/32 -m comment --comment \
             \"name: \\\"cbr0\\\" id: \\\"one\\\"\" -j CNI-aaa\n-F CNI-aaa\n-X CNI-aaa\nCOMMIT\n"
        );
    }

    #[test]
    fn only_chains_of_this_network_whose_container_is_gone_are_stale() {
        assert_eq!(stale_chains(LISTED, "cbr0", &["two"]), ["CNI-aaa"]);
        assert_eq!(stale_chains(LISTED, "other", &[]), Vec::<String>::new());
        assert!(has_chain(LISTED, "CNI-bbb"));
        assert!(!has_chain(LISTED, "CNI-b"));
    }
}
