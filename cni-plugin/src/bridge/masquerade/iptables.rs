//! Masquerading by iptables, as the CNI plugins do it that know nothing else.

use std::collections::HashSet;
use std::fmt::{Display, Write as _};
use std::io::{self, Write};
use std::process::{Command, Output, Stdio};

use ipnetwork::IpNetwork;
use tweed_netlink::Family;

use super::names;
use crate::bridge::identity::Identity;
use crate::excerpt;
use crate::protocol::error::Error;
use crate::protocol::request::Attachment;
use crate::subnet_env::masked;

pub(super) fn ensure(identity: &Identity, addresses: &[IpNetwork]) -> Result<(), Error> {
    let chain = names::chain(identity);
    let comment = names::iptables_comment(&identity.network, &identity.attachment.container_id);
    for family in Family::ALL {
        let of_family = addresses.iter().copied().filter(|one| Family::of(one.ip()) == family);
        let of_family: Vec<_> = of_family.collect();
        if !of_family.is_empty() {
            restore(family, &script_of(&chain, &comment, &of_family))?;
        }
    }
    Ok(())
}

/// Without iptables there are no rules of it either.
pub(super) fn remove(identity: &Identity) -> Result<(), Error> {
    let chain = names::chain(identity);
    remove_chains(|rules| has_chain(rules, &chain).then(|| chain.clone()).into_iter().collect())
}

pub(super) fn collect(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let lives: HashSet<_> = valid.iter().map(|one| one.container_id.as_str()).collect();
    remove_chains(|rules| stale_chains(rules, network, &lives))
}

fn remove_chains(choose: impl Fn(&str) -> Vec<String>) -> Result<(), Error> {
    for family in Family::ALL {
        let Some(rules) = list(family) else { continue };
        let chains = choose(&rules);
        if !chains.is_empty() {
            restore(family, &removal(&rules, &chains))?;
        }
    }
    Ok(())
}

/// The rules of the table in which addresses are translated; none if they cannot be read.
fn list(family: Family) -> Option<String> {
    let arguments = ["--wait", "--table", "nat", "--list-rules"];
    let mut list = Command::new(family.iptables());
    let output = list.args(arguments).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Executes all lines of `script`, or none of them.
fn restore(family: Family, script: &str) -> Result<(), Error> {
    let program = family.iptables();
    let failure =
        |cause: &dyn Display| Error::failed(format!("masquerading by {program}: {cause}"));
    let output = feed(&format!("{program}-restore"), script).map_err(|error| failure(&error))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let errors = excerpt::sentence(errors.trim());
    if output.status.success() { Ok(()) } else { Err(failure(&errors)) }
}

fn feed(program: &str, script: &str) -> io::Result<Output> {
    let mut child = Command::new(program)
        .args(["--wait", "--noflush"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes())?;
    }
    child.wait_with_output()
}

/// Rules for `addresses`, which are of one family.
fn script_of(chain: &str, comment: &str, addresses: &[IpNetwork]) -> String {
    let comment = format!("-m comment --comment {}", quoted(comment));
    let family = addresses.first().map_or(Family::V4, |first| Family::of(first.ip()));
    let multicast = family.multicast();
    // Naming the chain makes it, and empties one that is left from before.
    let mut script = format!("*nat\n:{chain} - [0:0]\n");
    for address in addresses {
        let (ip, network) = (address.ip(), masked(*address));
        // Writing to a text does not fail.
        let _ = writeln!(script, "-A {chain} -d {network} {comment} -j ACCEPT");
        let _ = writeln!(script, "-A {chain} ! -d {multicast} {comment} -j MASQUERADE");
        let _ = writeln!(script, "-A POSTROUTING -s {ip} {comment} -j {chain}");
    }
    script + "COMMIT\n"
}

/// Takes away `chains` and whatever leads to them, in this listing of rules.
fn removal(rules: &str, chains: &[String]) -> String {
    let removed: HashSet<_> = chains.iter().map(String::as_str).collect();
    let leads = |rule: &str| target(rule).is_some_and(|chain| removed.contains(chain));
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

fn has_chain(rules: &str, chain: &str) -> bool {
    rules.lines().any(|rule| rule.strip_prefix("-N ") == Some(chain))
}

/// Chains of containers of `network` other than `lives`, by the comments of what leads to them.
fn stale_chains(rules: &str, network: &str, lives: &HashSet<&str>) -> Vec<String> {
    let mut stale: Vec<_> = rules
        .lines()
        .filter(|rule| rule.starts_with("-A POSTROUTING "))
        .filter(|rule| container_of(rule, network).is_some_and(|id| !lives.contains(id.as_str())))
        .filter_map(target)
        .filter(|chain| chain.starts_with("CNI-"))
        .map(str::to_owned)
        .collect();
    // A container with several interfaces may have rules apart from one another.
    stale.sort();
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

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "-P POSTROUTING ACCEPT\n-N CNI-aaa\n-N CNI-bbb\n\
        -A POSTROUTING -s 10.1.0.2/32 -m comment --comment \"name: \\\"cbr0\\\" id: \\\"one\\\"\" -j CNI-aaa\n\
        -A POSTROUTING -s 10.1.0.3/32 -m comment --comment \"name: \\\"cbr0\\\" id: \\\"two\\\"\" -j CNI-bbb\n\
        -A CNI-aaa -d 10.1.0.0/24 -j ACCEPT\n";

    #[test]
    fn an_attachment_gets_a_chain_that_excludes_its_own_network() {
        let address = "10.244.7.2/24".parse().unwrap();
        assert_eq!(
            script_of("CNI-aaa", r#"name: "a" id: "b""#, &[address]),
            "*nat\n:CNI-aaa - [0:0]\n\
             -A CNI-aaa -d 10.244.7.0/24 -m comment --comment \"name: \\\"a\\\" id: \\\"b\\\"\" -j ACCEPT\n\
             -A CNI-aaa ! -d 224.0.0.0/4 -m comment --comment \"name: \\\"a\\\" id: \\\"b\\\"\" -j MASQUERADE\n\
             -A POSTROUTING -s 10.244.7.2 -m comment --comment \"name: \\\"a\\\" id: \\\"b\\\"\" -j CNI-aaa\n\
             COMMIT\n"
        );
    }

    #[test]
    fn a_chain_is_removed_with_the_rules_that_jump_to_it() {
        assert_eq!(
            removal(LISTED, &["CNI-aaa".to_owned()]),
            "*nat\n-D POSTROUTING -s 10.1.0.2/32 -m comment --comment \
             \"name: \\\"cbr0\\\" id: \\\"one\\\"\" -j CNI-aaa\n-F CNI-aaa\n-X CNI-aaa\nCOMMIT\n"
        );
    }

    #[test]
    fn only_chains_of_this_network_whose_container_is_gone_are_stale() {
        assert_eq!(stale_chains(LISTED, "cbr0", &HashSet::from(["two"])), ["CNI-aaa"]);
        assert_eq!(stale_chains(LISTED, "other", &HashSet::new()), Vec::<String>::new());
        assert!(has_chain(LISTED, "CNI-bbb"));
        assert!(!has_chain(LISTED, "CNI-b"));
    }
}
