//! The container's side: its interface, addresses and routes.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use ipnetwork::IpNetwork;
use nix::errno::Errno;
use tweed_netlink::Message;
use tweed_netlink::mac::MacAddr;
use tweed_netlink::rtnl::address::{self, Detection};
use tweed_netlink::rtnl::link::{self, Link};
use tweed_netlink::rtnl::route;
use tweed_netlink::{Protocol, Refusal, Socket};

use super::device;
use super::identity::Identity;
use super::plan::Plan;
use super::settings::Settings;
use crate::deadline::Deadline;
use crate::netns::{self, Netns};
use crate::protocol::error::Error;
use crate::protocol::result::Route;

/// The timeout of the kernel's search for duplicate addresses.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The interface with everything that it is to have, some of which may not be in use yet.
pub(super) struct Configured {
    interface: Link,
    addresses: Vec<IpNetwork>,
    /// None if there is nothing to wait for.
    listener: Option<Socket>,
}

pub(super) fn configure(
    netns: &Netns,
    identity: &Identity,
    settings: &Settings,
    plan: &Plan,
) -> Result<Configured, Error> {
    let name = &identity.attachment.interface;
    let (mut inside, listener) = netns.within(|| {
        write_settings(name, settings, plan)?;
        let listener = || plan.has_ipv6().then(Socket::listen_for_ipv6).transpose();
        let open = || Ok((Socket::open(Protocol::Route)?, listener()?));
        open().map_err(|error: io::Error| failure(name, &error))
    })??;
    let interface = find(&mut inside, name)?.ok_or_else(|| failure(name, &Errno::ENODEV))?;
    address_and_route(&mut inside, &interface, settings, plan)?;
    let listener = match listener {
        Some(listener) if settings.detects_duplicates => {
            wait_for_addresses(&mut inside, listener, &interface)?;
            None
        }
        listener => listener,
    };
    let addresses = plan.addresses.iter().map(|one| one.address).collect();
    Ok(Configured { interface, addresses, listener })
}

impl Configured {
    /// Waits until the addresses are in use; returns the MAC of the interface.
    pub(super) fn wait(self) -> Result<MacAddr, Error> {
        let Self { interface, addresses, listener } = self;
        let failure = |error| failure(&interface.name, &error);
        if let Some(mut listener) = listener {
            device::wait_for_addresses(&mut listener, interface.index, addresses.into_iter())
                .map_err(failure)?;
        }
        Ok(interface.mac)
    }
}

/// Removes the interface of `identity`; false if there is none.
pub(super) fn remove(netns: &Netns, identity: &Identity) -> Result<bool, Error> {
    let name = &identity.attachment.interface;
    let inside = netns.within(|| Socket::open(Protocol::Route))?;
    let mut inside = inside.map_err(|error| failure(name, &error))?;
    let Some(interface) = find(&mut inside, name)? else { return Ok(false) };
    let of_another = is_of_another(&interface, identity);
    if of_another.map_err(|error| failure(name, &error))? {
        return Ok(false);
    }
    let refusals = inside.execute(vec![link::delete_index(interface.index)]);
    match refusals.map_err(|error| failure(name, &error))?.first() {
        None => Ok(true),
        Some(Refusal { errno: Errno::ENODEV, .. }) => Ok(false),
        Some(refusal) => Err(failure(name, refusal)),
    }
}

/// A path may lead to a later container's namespace by now: then the alias of the peer is another.
fn is_of_another(interface: &Link, identity: &Identity) -> io::Result<bool> {
    let Some(peer) = interface.peer else { return Ok(false) };
    let mut host = Socket::open(Protocol::Route)?;
    let Some(port) = link::find_index(&mut host, peer)? else { return Ok(false) };
    let is_its_other_end = port.kind == "veth" && port.peer == Some(interface.index);
    let is_marked = Identity::of_alias(&port.alias).is_some() && port.alias != identity.alias();
    Ok(is_its_other_end && is_marked)
}

pub(super) fn find(inside: &mut Socket, name: &str) -> Result<Option<Link>, Error> {
    link::find(inside, name).map_err(|error| failure(name, &error))
}

/// Where there is no IPv6, or these are not ours to set, pods do without, but for IPv6 itself.
fn write_settings(name: &str, settings: &Settings, plan: &Plan) -> Result<(), Error> {
    let detect = if settings.detects_duplicates { "1" } else { "0" };
    let _ = netns::ensure_setting(&format!("ipv6/conf/{name}/accept_dad"), detect);
    if settings.detects_duplicates {
        let _ = netns::ensure_setting(&format!("ipv6/conf/{name}/enhanced_dad"), "1");
    }
    // Neighbours learn the new MAC of the address at once.
    let _ = netns::ensure_setting(&format!("ipv4/conf/{name}/arp_notify"), "1");
    if !plan.has_ipv6() {
        return Ok(());
    }
    for link in ["lo", name] {
        let path = format!("ipv6/conf/{link}/disable_ipv6");
        netns::ensure_setting(&path, "0")
            .map_err(|error| failure(name, &format!("net/{path}: {error}")))?;
    }
    // Without it, only a pod that sets its own link down loses its IPv6 addresses.
    let _ = netns::ensure_setting(&format!("ipv6/conf/{name}/keep_addr_on_down"), "1");
    Ok(())
}

/// Addresses, then up, then routes: each needs what comes before it.
fn address_and_route(
    inside: &mut Socket,
    interface: &Link,
    settings: &Settings,
    plan: &Plan,
) -> Result<(), Error> {
    let index = interface.index;
    let add = if settings.detects_duplicates { address::add_detecting } else { address::add };
    let steps: Vec<(String, Message)> = plan
        .addresses
        .iter()
        .map(|one| (format!("failed to add IP addr {}", one.address), add(index, one.address)))
        .chain([("failed to set it up".to_owned(), link::set_up(index))])
        .chain(plan.routes.iter().map(|route| added(route, plan.gateway_of(route), index)))
        .collect();
    let (texts, messages): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
    let refusals = inside.execute(messages).map_err(|error| failure(&interface.name, &error))?;
    match refusals.first() {
        None => Ok(()),
        Some(refusal) => {
            let step = texts.get(refusal.index).map_or("", String::as_str);
            Err(failure(&interface.name, &format!("{step}: {refusal}")))
        }
    }
}

/// What adds `route`, behind the text of the error if the kernel refuses it.
fn added(route: &Route, gateway: Option<IpAddr>, link: u32) -> (String, Message) {
    let &Route { destination, table, priority, scope, mtu, advmss, .. } = route;
    let via = gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    let message = route::add(&route::Route {
        destination,
        gateway,
        link,
        table,
        priority,
        scope,
        mtu,
        advmss,
    });
    (format!("failed to add route '{destination}{via}'"), message)
}

fn wait_for_addresses(
    inside: &mut Socket,
    mut listener: Socket,
    interface: &Link,
) -> Result<(), Error> {
    let name = &interface.name;
    let deadline = Deadline::after(TIMEOUT);
    loop {
        let all = inside.list(&address::list(), address::read);
        let mut all = all.map_err(|error| failure(name, &error))?;
        all.retain(|one| one.link == interface.index && one.is_global);
        if let Some(one) = all.iter().find(|one| one.detection == Detection::Duplicate) {
            let duplicate = format!("another interface on the bridge has {}", one.network);
            return Err(failure(name, &duplicate));
        }
        if all.iter().all(|one| one.detection == Detection::Done) {
            return Ok(());
        }
        if !deadline.readable(&listener).map_err(|errno| failure(name, &errno))? {
            return Err(failure(name, &"its IPv6 addresses are still tentative"));
        }
        listener.drain().map_err(|error| failure(name, &error))?;
    }
}

fn failure(name: &str, cause: &impl Display) -> Error {
    Error::failed(format!("the container's interface {name:?}: {cause}"))
}
