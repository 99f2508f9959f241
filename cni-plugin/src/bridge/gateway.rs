//! The addresses that the bridge has as gateway of its containers.

use ipnetwork::IpNetwork;
use nix::errno::Errno;
use tweed_netlink::Message;
use tweed_netlink::rtnl::address::{self, Address};
use tweed_netlink::rtnl::link::{self, Link};
use tweed_netlink::{Refusal, Socket};

use super::plan::Plan;
use super::ready;
use super::settings::{Detection, ForeignAddress, Settings};
use crate::netns;
use crate::protocol::error::Error;

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
    let rivals = rivals(&present, &plan.gateways);
    if let Some(rival) = rivals.first() {
        check_may_replace(host, settings, bridge, *rival, plan)?;
    }
    let removed = rivals.iter().map(|rival| address::remove(bridge.index, *rival));
    let added: Vec<_> = plan
        .gateways
        .iter()
        .map(|gateway| (*gateway, changes_for(settings, bridge, &present, *gateway)))
        .filter(|(_, changes)| !changes.is_empty())
        .collect();
    let new: Vec<_> = added.iter().map(|(gateway, _)| *gateway).collect();
    let changes = removed.chain(added.into_iter().flat_map(|(_, changes)| changes)).collect();
    add(host, settings, bridge, changes, &new)?;
    forward(&plan.gateways)
}

/// Carries out `changes`, after which the bridge has `new`.
fn add(
    host: &mut Socket,
    settings: &Settings,
    bridge: &Link,
    changes: Vec<Message>,
    new: &[IpNetwork],
) -> Result<(), Error> {
    let is_awaited = settings.detection == Detection::Off && new.iter().any(IpNetwork::is_ipv6);
    let listener = is_awaited.then(Socket::listen_for_ipv6).transpose();
    let listener = listener.map_err(|error| failure(bridge, &error))?;
    let already_done = apply(host, bridge, changes, new)?;
    let Some(mut listener) = listener.filter(|_| already_done.is_empty()) else { return Ok(()) };
    let waited = ready::wait(&mut listener, bridge.index, new.iter().copied());
    waited.map_err(|error| failure(bridge, &error))
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

/// The addresses that `gateways` cannot be beside: overlapping ones, and any other of IPv4 unless
/// the bridge has the gateway of this network already. The last is that of the network, and those
/// before it are of ranges that the runtime asks for.
fn rivals(present: &[Address], gateways: &[IpNetwork]) -> Vec<IpNetwork> {
    let home = gateways.iter().rfind(|gateway| gateway.is_ipv4());
    let is_home = home.is_some_and(|home| present.iter().any(|one| one.network == *home));
    let exclude = |one: IpNetwork, other: IpNetwork| match (one, other) {
        (IpNetwork::V4(one), IpNetwork::V4(other)) => !is_home || one.overlaps(other),
        (IpNetwork::V6(one), IpNetwork::V6(other)) => one.overlaps(other),
        _ => false,
    };
    let others = present.iter().map(|one| one.network).filter(|one| !gateways.contains(one));
    others.filter(|one| gateways.iter().any(|gateway| exclude(*one, *gateway))).collect()
}

fn check_may_replace(
    host: &mut Socket,
    settings: &Settings,
    bridge: &Link,
    rival: IpNetwork,
    plan: &Plan,
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
    let of_family = |gateway: &&IpNetwork| gateway.is_ipv4() == rival.is_ipv4();
    let gateway = plan.gateways.iter().rfind(of_family).copied().unwrap_or(rival);
    Err(Error::failed(format!(
        "failed to set bridge addr: {name:?} already has an IP address different from {gateway}: \
         it has {rival}, and {count} of its ports are in use; drain this node and delete {name}, \
         or set forceAddress in the delegate's config and restart its pods"
    )))
}

/// Returns what another process did at the same time.
fn apply(
    host: &mut Socket,
    bridge: &Link,
    changes: Vec<Message>,
    new: &[IpNetwork],
) -> Result<Vec<Refusal>, Error> {
    let refusals = host.execute(changes).map_err(|error| failure(bridge, &error))?;
    let is_done = |errno| matches!(errno, Errno::EEXIST | Errno::EADDRNOTAVAIL);
    let refusal = refusals.iter().find(|refusal| !is_done(refusal.errno)).cloned();
    let Some(refusal) = refusal else { return Ok(refusals) };
    let lacks_ipv6 =
        matches!(refusal.errno, Errno::EACCES | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT);
    match new.iter().find(|gateway| gateway.is_ipv6()) {
        Some(gateway) if lacks_ipv6 => Err(without_ipv6(bridge, *gateway)),
        _ => Err(failure(bridge, &refusal)),
    }
}

/// So the kernel refuses an IPv6 address where it has been told to do without.
fn without_ipv6(bridge: &Link, gateway: IpNetwork) -> Error {
    let name = &bridge.name;
    let cause = format!(
        "IPv6 is switched off on this host, and the network has the IPv6 gateway {gateway}: set \
         net.ipv6.conf.all.disable_ipv6 and net.ipv6.conf.{name}.disable_ipv6 to 0 and boot without \
         ipv6.disable=1, or take IPv6 out of the network's config"
    );
    failure(bridge, &cause)
}

/// The host passes packets on between its containers and the rest.
fn forward(gateways: &[IpNetwork]) -> Result<(), Error> {
    for (setting, is_needed) in [
        ("ipv4/ip_forward", gateways.iter().any(IpNetwork::is_ipv4)),
        ("ipv6/conf/all/forwarding", gateways.iter().any(IpNetwork::is_ipv6)),
    ] {
        if is_needed {
            netns::ensure_setting(setting, "1").map_err(|error| {
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

    fn of(there: &[&str], gateways: &[&str]) -> Vec<String> {
        let gateways: Vec<_> = gateways.iter().map(|text| text.parse().unwrap()).collect();
        rivals(&present(there), &gateways).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn any_other_ipv4_address_is_a_rival_and_an_overlapping_ipv6_one() {
        assert_eq!(of(&["10.244.7.1/24"], &["10.244.7.1/24"]), [""; 0]);
        assert_eq!(of(&["10.244.7.1/24"], &["10.244.9.1/24"]), ["10.244.7.1/24"]);
        assert_eq!(of(&["10.244.7.1/16"], &["10.244.7.1/24"]), ["10.244.7.1/16"]);
        assert_eq!(of(&["fd00:1::1/64"], &["fd00:2::1/64"]), [""; 0]);
        assert_eq!(of(&["fd00:1::2/64"], &["fd00:1::1/64"]), ["fd00:1::2/64"]);
        assert_eq!(of(&["fd00:1::1/64"], &["10.244.9.1/24"]), [""; 0]);
    }

    #[test]
    fn gateways_of_ranges_that_runtimes_ask_for_stand_beside_that_of_the_network() {
        let (home, ranges) = ("10.244.7.1/24", ["10.7.0.1/24", "10.8.0.1/24"]);
        assert_eq!(of(&[ranges[0], home], &[ranges[0], home]), [""; 0]);
        assert_eq!(of(&[ranges[0], home], &[ranges[1], home]), [""; 0]);
        assert_eq!(of(&[ranges[0], home], &[home]), [""; 0]);
        assert_eq!(of(&["10.8.0.9/16", home], &[ranges[1], home]), ["10.8.0.9/16"]);
        // The subnet of this node is another one now.
        let moved = of(&[ranges[0], home], &[ranges[0], "10.244.9.1/24"]);
        assert_eq!(moved, [home]);
        assert_eq!(of(&[ranges[0], home], &["10.244.9.1/24"]), [ranges[0], home]);
    }
}
