//! The bridge, created if it is absent and never removed, and its addresses as gateway of its containers.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

use ipnetwork::IpNetwork;
use nix::errno::Errno;
use tweed_netlink::mac::MacAddr;
use tweed_netlink::rtnl::address::{self, Address, Detection};
use tweed_netlink::rtnl::link::{self, Link};
use tweed_netlink::{Message, Refusal, Socket};

use super::plan::Plan;
use super::settings::Settings;
use crate::deadline::Deadline;
use crate::netns;
use crate::protocol::error::Error;

/// The kernel needs less than a millisecond, or longer while links come and go.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The bridge, up. MTU and the like of one that exists are left as they are.
pub(super) fn ensure(host: &mut Socket, settings: &Settings) -> Result<Link, Error> {
    let name = &settings.bridge;
    let bridge = match find(host, name)? {
        Some(bridge) => bridge,
        None => create(host, settings)?,
    };
    if bridge.kind != "bridge" {
        return Err(Error::failed(format!("{name:?} already exists but is not a bridge")));
    }
    // Without IPv6 there is nothing to accept.
    let _ = netns::ensure_setting(&format!("ipv6/conf/{name}/accept_ra"), "0");
    let up = (!bridge.is_up).then(|| link::set_up(bridge.index));
    let promiscuous = (settings.is_promiscuous && !bridge.is_promiscuous)
        .then(|| link::set_promiscuous(bridge.index));
    let changes: Vec<_> = up.into_iter().chain(promiscuous).collect();
    host.apply(changes).map_err(|error| failure(name, &error))?;
    Ok(bridge)
}

/// The link called `name`; none if there is none.
pub(super) fn find(host: &mut Socket, name: &str) -> Result<Option<Link>, Error> {
    link::find(host, name).map_err(|error| failure(name, &error))
}

/// Called before the container's port is made: all ports of that moment are of other containers.
pub(super) fn ensure_gateways(
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

/// Waits until the kernel has notified `listener`, which was opened before, of all IPv6 addresses.
///
/// The kernel uses an address a moment after it lists it, and notifies after that. Without a
/// notification, only the first packets are late.
pub(super) fn wait_for_addresses(
    listener: &mut Socket,
    link: u32,
    addresses: impl Iterator<Item = IpNetwork>,
) -> io::Result<()> {
    let deadline = Deadline::after(TIMEOUT);
    let mut pending: Vec<_> = addresses.filter(IpNetwork::is_ipv6).collect();
    while !pending.is_empty() && deadline.readable(listener)? {
        let Some(changes) = listener.receive_changes(address::read_new)? else { break };
        pending.retain(|address| {
            !changes.iter().any(|one| {
                one.link == link && one.network == *address && one.detection == Detection::Done
            })
        });
    }
    Ok(())
}

/// Its MAC is its own from the start: one that is left to the kernel changes with the ports.
fn create(host: &mut Socket, settings: &Settings) -> Result<Link, Error> {
    let name = &settings.bridge;
    let mac = made_up_mac().map_err(|error| failure(name, &error))?;
    let created = host.execute(vec![link::create_bridge(name, mac, settings.mtu)]);
    match created.map_err(|error| failure(name, &error))?.first() {
        // Another process was faster.
        None | Some(Refusal { errno: Errno::EEXIST, .. }) => {}
        Some(refusal) => return Err(failure(name, refusal)),
    }
    let missing = || failure(name, &io::Error::from(io::ErrorKind::NotFound));
    find(host, name)?.ok_or_else(missing)
}

/// A random one, of those that are administered locally.
fn made_up_mac() -> io::Result<MacAddr> {
    const LOCAL: u8 = 0b10;
    const MULTICAST: u8 = 0b01;
    let mut octets = [0; 6];
    File::open("/dev/urandom")?.read_exact(&mut octets)?;
    if let Some(first) = octets.first_mut() {
        *first = (*first | LOCAL) & !MULTICAST;
    }
    Ok(MacAddr::new(octets))
}

/// Carries out `changes`, after which the bridge has `new`.
fn add(
    host: &mut Socket,
    settings: &Settings,
    bridge: &Link,
    changes: Vec<Message>,
    new: &[IpNetwork],
) -> Result<(), Error> {
    let is_awaited = !settings.detects_duplicates && new.iter().any(IpNetwork::is_ipv6);
    let listener = is_awaited.then(Socket::listen_for_ipv6).transpose();
    let listener = listener.map_err(|error| address_failure(bridge, &error))?;
    let already_done = apply(host, bridge, changes, new)?;
    let Some(mut listener) = listener.filter(|_| already_done.is_empty()) else { return Ok(()) };
    let waited = wait_for_addresses(&mut listener, bridge.index, new.iter().copied());
    waited.map_err(|error| address_failure(bridge, &error))
}

fn changes_for(
    settings: &Settings,
    bridge: &Link,
    present: &[Address],
    gateway: IpNetwork,
) -> Vec<Message> {
    // No other station can have it: it can be used at once.
    let add = if settings.detects_duplicates { address::add_detecting } else { address::add };
    let add = add(bridge.index, gateway);
    let its = present.iter().find(|one| one.network == gateway);
    match its.map(|one| one.detection) {
        // Added by another program, with detection of duplicates: no pod could use it yet.
        Some(Detection::Running | Detection::Duplicate) if !settings.detects_duplicates => {
            vec![address::remove(bridge.index, gateway), add]
        }
        Some(_) => Vec::new(),
        // A MAC that was set stays, whatever ports come and go.
        None => vec![add, link::set_mac(bridge.index, bridge.mac)],
    }
}

fn addresses(host: &mut Socket, bridge: &Link) -> Result<Vec<Address>, Error> {
    let all = host.list(&address::list(), address::read);
    let mut all = all.map_err(|error| address_failure(bridge, &error))?;
    all.retain(|one| one.link == bridge.index && one.is_global);
    Ok(all)
}

/// The addresses that exclude one of `gateways`: overlapping ones, and any other of IPv4 unless the
/// bridge has the gateway of this network, which is the last. Those before it are requested ranges.
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
    if settings.replaces_addresses {
        return Ok(());
    }
    let ports = host.list(&link::list_ports(bridge.index), link::read);
    let mut ports = ports.map_err(|error| address_failure(bridge, &error))?;
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
    let refusals = host.execute(changes).map_err(|error| address_failure(bridge, &error))?;
    let is_done = |errno| matches!(errno, Errno::EEXIST | Errno::EADDRNOTAVAIL);
    let refusal = refusals.iter().find(|refusal| !is_done(refusal.errno)).cloned();
    let Some(refusal) = refusal else { return Ok(refusals) };
    let lacks_ipv6 =
        matches!(refusal.errno, Errno::EACCES | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT);
    match new.iter().find(|gateway| gateway.is_ipv6()) {
        Some(gateway) if lacks_ipv6 => Err(without_ipv6(bridge, *gateway)),
        _ => Err(address_failure(bridge, &refusal)),
    }
}

/// The kernel refuses IPv6 addresses where IPv6 is switched off.
fn without_ipv6(bridge: &Link, gateway: IpNetwork) -> Error {
    let name = &bridge.name;
    let cause = format!(
        "IPv6 is disabled on this host, and the network has the IPv6 gateway {gateway}: set \
         net.ipv6.conf.all.disable_ipv6 and net.ipv6.conf.{name}.disable_ipv6 to 0 and boot without \
         ipv6.disable=1, or remove IPv6 from the network config"
    );
    address_failure(bridge, &cause)
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

fn failure(name: &str, cause: &impl Display) -> Error {
    Error::failed(format!("could not set up the bridge {name:?}: {cause}"))
}

fn address_failure(bridge: &Link, cause: &impl Display) -> Error {
    Error::failed(format!("failed to set bridge addr: {:?}: {cause}", bridge.name))
}

#[cfg(test)]
#[path = "tests/device.rs"]
mod tests;
