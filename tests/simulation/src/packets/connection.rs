//! Connections that stay open while the cluster changes: of their packets, the kernel translates the
//! addresses as it did those of the first one.

use std::net::IpAddr;

use tweed::model::entry::{Entry, KernelState, LinkName, Verdict};
use tweed::model::policy::Masquerade;
use tweed::model::prefix::Family;
use tweed::plan::trace::translation;

use crate::packets::stack::outside;
use crate::packets::walk::{Exit, Lost, Segment, addresses_of_tunnel, is_own};

/// Who is connected with a pod of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    /// A node itself.
    Host,
    /// A client outside, by a port of a node, from which kube-proxy forwards it.
    Outside,
}

impl Client {
    pub const ALL: [Self; 2] = [Self::Host, Self::Outside];
}

/// A connection by way of one node with a pod of another one.
#[derive(Clone, Debug)]
pub struct Connection {
    from: usize,
    to: usize,
    client: IpAddr,
    pod: IpAddr,
    /// The address of the client as the pod sees it.
    source: IpAddr,
    /// The link that it was masqueraded for: the kernel ends it by any other one.
    masqueraded: Option<LinkName>,
    is_local: bool,
}

/// Why a connection does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A request.
    Request(Lost),
    /// An answer.
    Answer(Lost),
    /// It was masqueraded for another link.
    OtherLink,
    /// The node does not have the address of its end.
    NoAddress,
}

impl Segment {
    /// Opens a connection of `client` by way of `from` with a pod of `to`.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn connect(
        &self,
        client: Client,
        (from, to): (usize, usize),
        family: Family,
    ) -> Result<Connection, Broken> {
        let pod = self.pod(to, family).map_err(Broken::Request)?;
        let exit = self.exit(from, pod).map_err(Broken::Request)?;
        let host = self.host(from).map_err(Broken::Request)?;
        host.kernel.read_state(|state| {
            let outgoing = outgoing(state, &exit).unwrap_or_else(|| host.address(family));
            let is_local = client == Client::Host;
            // kube-proxy marks what it forwards from outside, and masquerades it.
            let mark = if is_local { 0 } else { Masquerade::default().mark };
            let client = if is_local { outgoing } else { outside(family) };
            let rule = translation(state, (client, pod), mark);
            let translated = rule.map(|it| &it.verdict).filter(|verdict| verdict.translates());
            let (source, masqueraded) = match translated {
                Some(Verdict::SourceNat { to, .. }) => (*to, None),
                None if is_local => (client, None),
                _ => (outgoing, Some(exit.link())),
            };
            Ok(Connection { from, to, client, pod, source, masqueraded, is_local })
        })
    }

    /// Sends a request on an open connection, and the answer.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn exchange(&self, connection: &Connection) -> Result<(), Broken> {
        let Connection { from, to, client, pod, source, masqueraded, is_local } = connection;
        let exit = self.exit(*from, *pod).map_err(Broken::Request)?;
        let host = self.host(*from).map_err(Broken::Request)?;
        host.kernel.read_state(|state| {
            // The kernel ends what is masqueraded with an address that its link loses.
            let family = Family::of(*pod);
            let mut of_tunnel = addresses_of_tunnel(state, family);
            let has_source = *source == host.address(family) || of_tunnel.any(|own| own == *source);
            if masqueraded.as_ref().is_some_and(|it| *it != exit.link() || !has_source) {
                return Err(Broken::OtherLink);
            }
            let is_there = *client == host.address(family) || is_own(state, *client);
            if *is_local && !is_there { Err(Broken::NoAddress) } else { Ok(()) }
        })?;
        let arrives = |start: usize, end: usize, addresses| match self.send(start, addresses) {
            Ok(arrival) if arrival.host != end => Err(Lost::Elsewhere),
            result => result.map(|_| ()),
        };
        arrives(*from, *to, (*source, *pod)).map_err(Broken::Request)?;
        arrives(*to, *from, (*pod, *source)).map_err(Broken::Answer)
    }
}

/// The address with which the node itself sends by this exit; none without one on the tunnel.
fn outgoing(state: &KernelState, exit: &Exit) -> Option<IpAddr> {
    let Exit::Tunnel { to, .. } = exit else { return None };
    let family = Family::of(*to);
    let of_tunnel = addresses_of_tunnel(state, family).next();
    // Without one, IPv6 chooses the address that is most like the destination.
    of_tunnel.or_else(|| spare_address(state).filter(|_| family == Family::V6))
}

/// That of IPv6 on the loopback.
fn spare_address(state: &KernelState) -> Option<IpAddr> {
    state.local().find_map(|entry| match &**entry {
        Entry::Address(own) if own.link.is_loopback() && own.address.is_ipv6() => Some(own.address),
        _ => None,
    })
}
