//! The settings of a link that netlink does not carry.

use std::fs;
use std::io;

use super::state::{AcceptRa, Entry, LinkName, ReversePath};

pub(super) fn reverse_path(link: &LinkName) -> Option<Entry> {
    let all = read("ipv4", "all", "rp_filter")?;
    let own = read("ipv4", link.as_str(), "rp_filter")?;
    // The kernel takes the larger of the two: 1 is strict, 2 is loose.
    Some(Entry::ReversePath(ReversePath { link: link.clone(), strict: all.max(own) == 1 }))
}

pub(super) fn accept_ra(link: &LinkName) -> Option<Entry> {
    let value = read("ipv6", link.as_str(), "accept_ra")?;
    Some(Entry::AcceptRa(AcceptRa { link: link.clone(), accept: value != 0 }))
}

/// Puts `entry` in force. Returns why it could not.
pub(super) fn put(entry: &Entry) -> Result<(), String> {
    match entry {
        Entry::ReversePath(filter) => {
            write("ipv4", &filter.link, "rp_filter", if filter.strict { "1" } else { "2" })
        }
        Entry::AcceptRa(accept) => {
            write("ipv6", &accept.link, "accept_ra", if accept.accept { "1" } else { "0" })
        }
        Entry::Link(_) | Entry::Address(_) | Entry::Fdb(_) | Entry::Neighbour(_) | Entry::Route(_) => {
            Err(format!("{entry} is no sysctl"))
        }
    }
}

fn path(family: &str, link: &str, key: &str) -> String {
    format!("/proc/sys/net/{family}/conf/{link}/{key}")
}

fn read(family: &str, link: &str, key: &str) -> Option<u8> {
    fs::read_to_string(path(family, link, key)).ok()?.trim().parse().ok()
}

fn write(family: &str, link: &LinkName, key: &str, value: &str) -> Result<(), String> {
    match fs::write(path(family, link.as_str(), key), value) {
        // A host without IPv6 takes no router's advice.
        Err(error) if error.kind() == io::ErrorKind::NotFound && family == "ipv6" => Ok(()),
        Err(error) => Err(format!("net.{family}.conf.{link}.{key} cannot be set to {value}: {error}")),
        Ok(()) => Ok(()),
    }
}
