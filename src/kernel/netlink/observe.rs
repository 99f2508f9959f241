//! Receives kernel notifications.

use std::collections::BTreeSet;
use std::io;

use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as M};
use nix::libc::ENOBUFS;
use tweed_netlink::{Frame, Monitor};

use super::NetlinkKernel;
use crate::kernel::Observation;
use crate::kernel::codec::{self, Body, Links};
use crate::model::entry::Key;
use crate::model::prefix::Prefix;

impl NetlinkKernel {
    pub(super) async fn next_observation(&mut self) -> io::Result<Observation> {
        loop {
            if let Some(observation) = self.observed.pop_front() {
                return Ok(observation);
            }
            let tunnels: Vec<u32> = self.indices(&self.scope).collect();
            let Some(monitor) = self.monitor.as_mut() else {
                self.reopen_monitors()?;
                return Ok(Observation::Paused);
            };
            let (mut bodies, networks) = (Vec::new(), &self.scope.networks);
            let read = |frame: &Frame<'_>| {
                if codec::may_concern(frame, networks, &tunnels) {
                    bodies.extend(codec::parse(frame));
                }
            };
            let (mut changed, mut elements) = (BTreeSet::new(), Vec::new());
            let mut chains = BTreeSet::new();
            let read_tables = |frame: &Frame<'_>| {
                let received = codec::changed_elements(frame);
                changed.extend(codec::changed_table(frame).filter(|_| received.is_empty()));
                chains.extend(codec::changed_chain(frame));
                elements.extend(received);
            };
            let received = tokio::select! {
                received = monitor.receive(read) => received,
                received = receive_tables(self.table_monitor.as_mut(), read_tables) => received,
            };
            match received {
                Ok(()) => {
                    for body in &bodies {
                        self.apply_message(body);
                    }
                    changed.retain(|table| self.scope.tables.contains(table));
                    let elements = elements.into_iter().filter_map(|it| self.relevant(it));
                    let elements: Vec<_> = elements.collect();
                    self.observed.extend(elements);
                    self.observed.extend(changed.into_iter().map(Observation::TableChanged));
                    self.observed.extend(chains.into_iter().map(Observation::ChainChanged));
                }
                Err(error) if error.raw_os_error() == Some(ENOBUFS) => {
                    // Notifications left in the old sockets are older than the dump that follows.
                    self.reopen_monitors()?;
                    return Ok(Observation::Overrun);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn apply_message(&mut self, body: &Body) {
        match body {
            Body::ChangedFilter(index) => self.observed.extend(self.link_of_setting(*index)),
            Body::Rtnl(M::NewLink(link)) if is_link_message(link) => {
                if let Some((name, known)) = codec::listed_link(body) {
                    let renamed = self.links.insert(&name, known);
                    let links = renamed.into_iter().chain([name]);
                    self.observed.extend(links.map(Observation::LinkChanged));
                }
            }
            Body::Rtnl(M::DelLink(link)) if is_link_message(link) => {
                self.links.remove(link.header.index);
                self.observed.extend(codec::link_name(link).map(Observation::LinkChanged));
            }
            Body::Rtnl(M::NewLink(_) | M::DelLink(_)) => {}
            _ => {
                let observation = codec::decode(body, &self.links);
                self.observed.extend(observation.and_then(|it| self.relevant(it)));
            }
        }
    }

    /// A setting of all links also applies to the underlay.
    fn link_of_setting(&self, index: u32) -> Option<Observation> {
        let link = match index {
            codec::ALL_LINKS => self.scope.underlay.as_ref(),
            _ => self.links.name(index),
        };
        link.cloned().map(Observation::LinkChanged)
    }

    /// Returns changes of entries in scope, and address changes of other links as link changes;
    /// drops the rest.
    fn relevant(&self, observation: Observation) -> Option<Observation> {
        let key = match &observation {
            Observation::Holds(entry) => entry.key(),
            Observation::Lost(key) => key.clone(),
            Observation::LinkChanged(_)
            | Observation::AddressChanged(..)
            | Observation::TableChanged(_)
            | Observation::ChainChanged(_)
            | Observation::Overrun
            | Observation::Paused => {
                return Some(observation);
            }
        };
        match key {
            _ if self.scope.covers_key(&key) => Some(observation),
            Key::Address(link, address, len) => Some(match Prefix::holding(address, len) {
                Some(prefix) => Observation::AddressChanged(link, prefix),
                None => Observation::LinkChanged(link),
            }),
            _ => None,
        }
    }
}

/// The notifications of a datagram, decoded by all of the daemon's message readers. For tests with
/// arbitrary input.
#[doc(hidden)]
pub fn read_datagram(datagram: &[u8]) -> Vec<Observation> {
    let (mut links, mut observations) = (Links::default(), Vec::new());
    for frame in Frame::all(datagram) {
        let frame = &frame;
        observations.extend(codec::changed_elements(frame));
        observations.extend(codec::changed_table(frame).map(Observation::TableChanged));
        observations.extend(codec::changed_chain(frame).map(Observation::ChainChanged));
        let _ = (codec::may_concern(frame, &[], &[]), codec::may_be_default(frame));
        let Some(body) = codec::parse(frame) else { continue };
        if let Some((name, known)) = codec::listed_link(&body) {
            links.insert(&name, known);
        }
        let _ = (codec::interface(&body), codec::interface_address(&body, &links));
        let _ = (codec::default_route(&body, &links), codec::reach(&body, &links));
        observations.extend(codec::decode(&body, &links));
    }
    observations
}

/// Like [`Monitor::receive`]; never resolves without a monitor.
async fn receive_tables(
    monitor: Option<&mut Monitor>,
    read: impl FnMut(&Frame<'_>),
) -> io::Result<()> {
    match monitor {
        Some(monitor) => monitor.receive(read).await,
        None => std::future::pending().await,
    }
}

/// Bridges report their ports with the same messages: a removed port is not a removed link.
fn is_link_message(link: &LinkMessage) -> bool {
    link.header.interface_family == AddressFamily::Unspec
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::LinkAttribute;

    use super::*;
    use crate::model::entry::LinkName;

    fn veth7(family: AddressFamily) -> LinkMessage {
        let mut link = LinkMessage::default();
        link.header.interface_family = family;
        link.header.index = 7;
        link.attributes = vec![LinkAttribute::IfName("veth7".to_owned())];
        link
    }

    #[tokio::test]
    async fn a_port_that_leaves_its_bridge_is_not_a_removed_link() {
        let mut kernel = NetlinkKernel::open().unwrap();
        let name = LinkName::new("veth7");
        kernel.apply_message(&Body::Rtnl(M::NewLink(veth7(AddressFamily::Unspec))));
        kernel.apply_message(&Body::Rtnl(M::DelLink(veth7(AddressFamily::Bridge))));
        assert_eq!(kernel.links.index(&name), Ok(7));
        kernel.apply_message(&Body::Rtnl(M::DelLink(veth7(AddressFamily::Unspec))));
        assert!(kernel.links.index(&name).is_err());
        let changes = [Observation::LinkChanged(name.clone()), Observation::LinkChanged(name)];
        assert_eq!(kernel.observed, changes);
    }
}
