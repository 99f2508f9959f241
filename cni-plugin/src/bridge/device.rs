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

use super::carried_out;
use super::plan::Plan;
use super::settings::Settings;
use crate::deadline::Deadline;
use crate::netns;
use crate::protocol::error::Error;

/// The kernel needs less than a millisecond, and on a busy host, where many pods start, over a second.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The bridge of a network, and the socket by which it is set up.
pub(super) struct Device<'a> {
    pub(super) host: Socket,
    settings: &'a Settings,
    pub(super) link: Link,
}

impl<'a> Device<'a> {
    /// The bridge, up. MTU and the like of one that exists are left as they are.
    pub(super) fn ensure(mut host: Socket, settings: &'a Settings) -> Result<Self, Error> {
        let name = &settings.bridge;
        let found = find(&mut host, name)?;
        let is_found = found.is_some();
        let mut link = found.map_or_else(|| create(&mut host, settings), Ok)?;
        if link.kind != "bridge" {
            return Err(Error::failed(format!("{name:?} already exists but is not a bridge")));
        }
        // Without IPv6 there is nothing to accept.
        let _ = netns::ensure_setting(&format!("ipv6/conf/{name}/accept_ra"), "0");
        let up = (!link.is_up).then(|| link::set_up(link.index));
        let promiscuous = (settings.is_promiscuous && !link.is_promiscuous)
            .then(|| link::set_promiscuous(link.index));
        let mac = (is_found && !link.is_operational).then(|| keep_mac(&mut link));
        let changes: Vec<_> = up.into_iter().chain(promiscuous).chain(mac).collect();
        host.apply(changes).map_err(|error| failure(name, &error))?;
        Ok(Self { host, settings, link })
    }

    /// Called before the container's port is made: all ports of that moment are of other containers.
    pub(super) fn ensure_gateways(&mut self, plan: &Plan) -> Result<(), Error> {
        if plan.gateways.is_empty() {
            return Ok(());
        }
        let index = self.link.index;
        let present = addresses(&mut self.host, index).map_err(|error| self.failure(&error))?;
        let rivals = rivals(&present, &plan.gateways);
        if let Some(rival) = rivals.first() {
            self.check_may_replace(*rival, plan)?;
        }
        let (mut changes, mut new) = (Vec::new(), Vec::new());
        changes.extend(rivals.into_iter().map(|rival| address::remove(index, rival)));
        for gateway in &plan.gateways {
            let needed = self.changes_for(&present, *gateway);
            new.extend((!needed.is_empty()).then_some(*gateway));
            changes.extend(needed);
        }
        self.change(changes, &new)?;
        forward(&plan.gateways)
    }

    fn check_may_replace(&mut self, rival: IpNetwork, plan: &Plan) -> Result<(), Error> {
        if self.settings.replaces_addresses {
            return Ok(());
        }
        let ports = self.host.list(&link::list_ports(self.link.index), link::read);
        let mut ports = ports.map_err(|error| self.failure(&error))?;
        // An older kernel lists more than it is asked for.
        ports.retain(|port| port.master == Some(self.link.index));
        if ports.is_empty() {
            return Ok(());
        }
        let (name, count) = (&self.link.name, ports.len());
        let of_family = |gateway: &&IpNetwork| gateway.is_ipv4() == rival.is_ipv4();
        let gateway = plan.gateways.iter().rfind(of_family).copied().unwrap_or(rival);
        Err(Error::failed(format!(
            "failed to set bridge addr: {name:?} already has an IP address different from {gateway}: \
             it has {rival}, and {count} of its ports are in use; drain this node and delete {name}, \
             or set forceAddress in the delegate's config and restart its pods"
        )))
    }

    fn changes_for(&self, present: &[Address], gateway: IpNetwork) -> Vec<Message> {
        let index = self.link.index;
        let is_detecting = self.settings.detects_duplicates;
        // No other station can have it: it can be used at once.
        let add = if is_detecting { address::add_detecting } else { address::add };
        let add = add(index, gateway);
        let its = present.iter().find(|one| one.network == gateway);
        match its.map(|one| one.detection) {
            // Added by another program, with detection of duplicates: no pod could use it yet.
            Some(Detection::Running | Detection::Duplicate) if !is_detecting => {
                vec![address::remove(index, gateway), add]
            }
            Some(_) => Vec::new(),
            // A MAC that was set stays, whatever ports come and go.
            None => vec![add, link::set_mac(index, self.link.mac)],
        }
    }

    /// Carries out `changes`, after which the bridge has `new`.
    fn change(&mut self, changes: Vec<Message>, new: &[IpNetwork]) -> Result<(), Error> {
        let is_awaited = !self.settings.detects_duplicates && new.iter().any(IpNetwork::is_ipv6);
        let listener = is_awaited.then(Socket::listen_for_ipv6).transpose();
        let listener = listener.map_err(|error| self.failure(&error))?;
        let refusals = self.host.execute(changes).map_err(|error| self.failure(&error))?;
        // What another process did at the same time.
        let is_done = |errno| matches!(errno, Errno::EEXIST | Errno::EADDRNOTAVAIL);
        if let Some(refusal) = refusals.iter().find(|refusal| !is_done(refusal.errno)) {
            return Err(self.refused(refusal, new));
        }
        let Some(mut listener) = listener.filter(|_| refusals.is_empty()) else { return Ok(()) };
        wait_for_addresses(&mut listener, self.link.index, new.iter().copied())
            .map_err(|error| self.failure(&error))
    }

    /// The kernel refuses IPv6 addresses where IPv6 is switched off.
    fn refused(&self, refusal: &Refusal, new: &[IpNetwork]) -> Error {
        let lacks_ipv6 =
            matches!(refusal.errno, Errno::EACCES | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT);
        let Some(gateway) = new.iter().find(|gateway| lacks_ipv6 && gateway.is_ipv6()) else {
            return self.failure(refusal);
        };
        self.failure(&format!(
            "IPv6 is disabled on this host, and the network has the IPv6 gateway {gateway}: set \
             net.ipv6.conf.all.disable_ipv6 and net.ipv6.conf.{}.disable_ipv6 to 0 and boot without \
             ipv6.disable=1, or remove IPv6 from the network config",
            self.link.name
        ))
    }

    fn failure(&self, cause: &impl Display) -> Error {
        Error::failed(format!("failed to set bridge addr: {:?}: {cause}", self.link.name))
    }
}

/// The link called `name`; none if there is none.
pub(super) fn find(host: &mut Socket, name: &str) -> Result<Option<Link>, Error> {
    link::find(host, name).map_err(|error| failure(name, &error))
}

/// The addresses of `link` that are reachable from elsewhere.
pub(super) fn addresses(host: &mut Socket, link: u32) -> io::Result<Vec<Address>> {
    let mut all = host.list(&address::list(), address::read)?;
    all.retain(|one| one.link == link && one.is_global);
    Ok(all)
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
    let failure = |error: io::Error| failure(name, &error);
    let bridge = link::create_bridge(name, made_up_mac().map_err(failure)?, settings.mtu);
    // Another process may be faster.
    carried_out(host, bridge, Errno::EEXIST).map_err(failure)?;
    find(host, name)?.ok_or_else(|| failure(io::ErrorKind::NotFound.into()))
}

/// Another program may have created the bridge, and the kernel then gives it the lowest MAC of its ports,
/// or none when it has lost all ports. As long as it has no port, no neighbour knows its MAC yet.
fn keep_mac(bridge: &mut Link) -> Message {
    if !bridge.mac.is_unicast() {
        // The same one for each ADD of this moment.
        bridge.mac = MacAddr::derived_from(&bridge.name);
    }
    link::set_mac(bridge.index, bridge.mac)
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

#[cfg(test)]
#[path = "tests/device.rs"]
mod tests;
