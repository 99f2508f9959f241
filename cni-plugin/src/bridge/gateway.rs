//! The addresses that the bridge has as gateway of its containers.

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use super::plan::Plan;
use super::settings::{Detection, ForeignAddress, Settings};
use crate::error::Error;
use crate::netlink::Socket;
use crate::netlink::address::{self, Address};
use crate::netlink::link::{self, Link};
use crate::netlink::message::Message;
use crate::sysctl;

/// Called before the container's port is made: whoever has a port by then is somebody else.
pub(super) fn ensure(
    host: &mut Socket,
    settings: &Settings,
    bridge: &Link,
    plan: &Plan,
) -> Result<(), Error> {
    if plan.gateways.is_empty() {
        return Ok(());
    }
    let present = addresses(host, bridge)?;
    let mut changes = Vec::new();
    for gateway in &plan.gateways {
        if let Some(rival) = rival(&present, *gateway) {
            check_may_replace(host, settings, bridge, rival, *gateway)?;
            changes.push(address::remove(bridge.index, rival));
        }
        changes.extend(changes_for(settings, bridge, &present, *gateway));
    }
    apply(host, bridge, changes)?;
    forward(&plan.gateways)
}

fn changes_for(
    settings: &Settings,
    bridge: &Link,
    present: &[Address],
    gateway: IpNetwork,
) -> Vec<Message> {
    // Nobody else can have it, so that it can be used at once.
    let add = match settings.detection {
        Detection::Off => address::add(bridge.index, gateway),
        Detection::On => address::add_detecting(bridge.index, gateway),
    };
    let its = present.iter().find(|one| one.network == gateway);
    match (its.map(|one| one.detection), settings.detection) {
        // Added by somebody who has the kernel look for others with it: no pod could use it yet.
        (Some(address::Detection::Running | address::Detection::Duplicate), Detection::Off) => {
            vec![address::remove(bridge.index, gateway), add]
        }
        (Some(_), _) => Vec::new(),
        // A MAC that was set stays, whatever ports come and go.
        (None, _) => vec![add, link::set_mac(bridge.index, bridge.mac)],
    }
}

fn addresses(host: &mut Socket, bridge: &Link) -> Result<Vec<Address>, Error> {
    let all = host.list(&address::list(), address::read);
    let mut all = all.map_err(|error| failure(bridge, &error))?;
    all.retain(|one| one.link == bridge.index && one.is_global);
    Ok(all)
}

/// An address that `gateway` cannot be beside: any of IPv4, an overlapping one of IPv6.
fn rival(present: &[Address], gateway: IpNetwork) -> Option<IpNetwork> {
    let excludes = |other: IpNetwork| match (other, gateway) {
        (IpNetwork::V4(_), IpNetwork::V4(_)) => true,
        (IpNetwork::V6(one), IpNetwork::V6(two)) => one.overlaps(two),
        _ => false,
    };
    let others = present.iter().map(|one| one.network).filter(|other| *other != gateway);
    others.into_iter().find(|other| excludes(*other))
}

fn check_may_replace(
    host: &mut Socket,
    settings: &Settings,
    bridge: &Link,
    rival: IpNetwork,
    gateway: IpNetwork,
) -> Result<(), Error> {
    let ports = match settings.foreign_address {
        ForeignAddress::Replace => return Ok(()),
        ForeignAddress::Unused => host.list(&link::list_ports(bridge.index), link::read),
    };
    let mut ports = ports.map_err(|error| failure(bridge, &error))?;
    // An older kernel lists more than it is asked for.
    ports.retain(|port| port.master == Some(bridge.index));
    if ports.is_empty() {
        return Ok(());
    }
    let (name, count) = (&bridge.name, ports.len());
    Err(Error::failed(format!(
        "failed to set bridge addr: {name:?} already has an IP address different from {gateway}: \
         it has {rival}, and {count} of its ports are in use; drain this node and delete {name}, \
         or set forceAddress in the delegate's config and restart its pods"
    )))
}

fn apply(host: &mut Socket, bridge: &Link, changes: Vec<Message>) -> Result<(), Error> {
    let refusals = host.execute(changes).map_err(|error| failure(bridge, &error))?;
    // Somebody else may do the same at the same time.
    let is_done = |errno| matches!(errno, Errno::EEXIST | Errno::EADDRNOTAVAIL);
    match refusals.into_iter().find(|refusal| !is_done(refusal.errno)) {
        Some(refusal) => Err(failure(bridge, &refusal)),
        None => Ok(()),
    }
}

/// The host passes packets on between its containers and the rest.
fn forward(gateways: &[IpNetwork]) -> Result<(), Error> {
    for (setting, is_needed) in [
        ("ipv4/ip_forward", gateways.iter().any(IpNetwork::is_ipv4)),
        ("ipv6/conf/all/forwarding", gateways.iter().any(IpNetwork::is_ipv6)),
    ] {
        if is_needed {
            sysctl::ensure(setting, "1").map_err(|error| {
                Error::failed(format!("failed to enable forwarding: net/{setting}: {error}"))
            })?;
        }
    }
    Ok(())
}

fn failure(bridge: &Link, cause: &impl std::fmt::Display) -> Error {
    Error::failed(format!("failed to set bridge addr: {:?}: {cause}", bridge.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(addresses: &[&str]) -> Vec<Address> {
        let address = |text: &&str| Address {
            link: 1,
            network: text.parse().unwrap(),
            is_global: true,
            detection: address::Detection::Done,
        };
        addresses.iter().map(address).collect()
    }

    #[test]
    fn any_other_ipv4_address_is_a_rival_and_an_overlapping_ipv6_one() {
        let rival = |there: &[&str], gateway: &str| {
            rival(&present(there), gateway.parse().unwrap()).map(|rival| rival.to_string())
        };
        assert_eq!(rival(&["10.244.7.1/24"], "10.244.7.1/24"), None);
        assert_eq!(rival(&["10.244.7.1/24"], "10.244.9.1/24"), Some("10.244.7.1/24".into()));
        assert_eq!(rival(&["10.244.7.1/16"], "10.244.7.1/24"), Some("10.244.7.1/16".into()));
        assert_eq!(rival(&["fd00:1::1/64"], "fd00:2::1/64"), None);
        assert_eq!(rival(&["fd00:1::2/64"], "fd00:1::1/64"), Some("fd00:1::2/64".into()));
        assert_eq!(rival(&["fd00:1::1/64"], "10.244.9.1/24"), None);
    }
}
