//! The container's side: its interface, addresses and routes.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use nix::errno::Errno;
use tweed_netlink::Message;
use tweed_netlink::mac::MacAddr;
use tweed_netlink::rtnl::address::{self, Detection};
use tweed_netlink::rtnl::link::{self, Link};
use tweed_netlink::rtnl::route::{self, Route};
use tweed_netlink::{Protocol, Socket};

use super::device;
use super::identity::Identity;
use super::plan::Plan;
use super::settings::Settings;
use super::{Connection, carried_out};
use crate::deadline::Deadline;
use crate::netns::{self, Netns};
use crate::protocol::error::Error;
use crate::protocol::result::AddResult;

/// The timeout of the kernel's search for duplicate addresses.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The interface with everything that it is to have, some of which may not be in use yet.
pub(super) struct Configured {
    interface: Link,
    inside: Socket,
    /// None if there is nothing to wait for.
    listener: Option<Socket>,
}

pub(super) fn configure(connection: &Connection<'_>) -> Result<Configured, Error> {
    let Connection { settings, netns, identity, plan, .. } = connection;
    let name = &identity.attachment.interface;
    let sockets = netns.within(|| {
        write_settings(name, settings, plan)?;
        let inside = Socket::open(Protocol::Route)?;
        Ok((inside, plan.has_ipv6().then(Socket::listen_for_ipv6).transpose()?))
    })?;
    let configured = sockets.and_then(|(mut inside, mut listener)| {
        let interface = link::find(&mut inside, name)?.ok_or(Errno::ENODEV)?;
        set_up(&mut inside, interface.index, settings, plan)?;
        if let Some(listener) = listener.take_if(|_| settings.detects_duplicates) {
            wait_for_addresses(&mut inside, listener, interface.index)?;
        }
        Ok(Configured { interface, inside, listener })
    });
    configured.map_err(|error: Error| failure(name, &error))
}

impl Configured {
    /// Waits until the addresses of `plan` are in use; returns the MAC of the interface.
    pub(super) fn wait(self, plan: &Plan) -> Result<MacAddr, Error> {
        let Self { interface, mut inside, listener } = self;
        // The bridge has dropped the announcement that the kernel sent when the interface went up.
        // Setting the same MAC address repeats it: neighbours may still know that of a former pod.
        let _ = inside.execute(vec![link::set_mac(interface.index, interface.mac)]);
        if let Some(mut listener) = listener {
            let addresses = plan.result.addresses.iter().map(|one| one.address);
            device::wait_for_addresses(&mut listener, interface.index, addresses)
                .map_err(|error| failure(&interface.name, &error))?;
        }
        Ok(interface.mac)
    }
}

/// Removes the interface of `identity`; false if there is none.
pub(super) fn remove(netns: &Netns, identity: &Identity) -> Result<bool, Error> {
    let name = &identity.attachment.interface;
    let inside = netns.within(|| Socket::open(Protocol::Route))?;
    let removed = inside.and_then(|mut inside| match link::find(&mut inside, name)? {
        Some(interface) if !is_of_another(&interface, identity)? => {
            carried_out(&mut inside, link::delete_index(interface.index), Errno::ENODEV)
        }
        Some(_) | None => Ok(false),
    });
    removed.map_err(|error| failure(name, &error))
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
    // Neighbours learn the new MAC of the address at once, see `Configured::wait`.
    let _ = netns::ensure_setting(&format!("ipv4/conf/{name}/arp_notify"), "1");
    if !plan.has_ipv6() {
        return Ok(());
    }
    for link in ["lo", name] {
        let path = format!("ipv6/conf/{link}/disable_ipv6");
        netns::ensure_setting(&path, "0")
            .map_err(|error| Error::from(error).context(format!("net/{path}")))?;
    }
    // Without it, only a pod that sets its own link down loses its IPv6 addresses.
    let _ = netns::ensure_setting(&format!("ipv6/conf/{name}/keep_addr_on_down"), "1");
    Ok(())
}

/// Addresses, then up, then routes: each needs what comes before it.
fn set_up(inside: &mut Socket, link: u32, settings: &Settings, plan: &Plan) -> Result<(), Error> {
    let AddResult { addresses, routes, .. } = &plan.result;
    let add = if settings.detects_duplicates { address::add_detecting } else { address::add };
    let steps: Vec<(String, Message)> = addresses
        .iter()
        .map(|one| (format!("failed to add IP addr {}", one.address), add(link, one.address)))
        .chain([("failed to set it up".to_owned(), link::set_up(link))])
        .chain(routes.iter().map(|route| added(route, plan.gateway_of(route), link)))
        .collect();
    let (texts, messages): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
    let refusals = inside.execute(messages)?;
    let Some(refusal) = refusals.first() else { return Ok(()) };
    let step = texts.get(refusal.index).map_or("", String::as_str);
    Err(Error::failed(format!("{step}: {refusal}")))
}

/// What adds `route`, behind the text of the error if the kernel refuses it.
fn added(route: &Route, gateway: Option<IpAddr>, link: u32) -> (String, Message) {
    let via = gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    let message = route::add(link, &Route { gateway, ..*route });
    (format!("failed to add route '{}{via}'", route.destination), message)
}

fn wait_for_addresses(inside: &mut Socket, mut listener: Socket, link: u32) -> Result<(), Error> {
    let deadline = Deadline::after(TIMEOUT);
    loop {
        let all = device::addresses(inside, link)?;
        if let Some(one) = all.iter().find(|one| one.detection == Detection::Duplicate) {
            let duplicate = format!("another interface on the bridge has {}", one.network);
            return Err(Error::failed(duplicate));
        }
        if all.iter().all(|one| one.detection == Detection::Done) {
            return Ok(());
        }
        if !deadline.readable(&listener)? {
            return Err(Error::failed("its IPv6 addresses are still tentative"));
        }
        listener.drain()?;
    }
}

fn failure(name: &str, cause: &impl Display) -> Error {
    Error::failed(format!("the container's interface {name:?}: {cause}"))
}
