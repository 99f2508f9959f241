//! Elements as the kernel has them.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use tweed_netlink::nftables::ListedElement;
use tweed_netlink::{Family, ip, nftables, octets};

use crate::state::{Element, Endpoint, Frontend, Set, Transport};

/// More endpoints than any frontend has.
const MOST_SLOTS: u32 = 1 << 16;

/// Each field of a key begins at a multiple of this, in bytes.
const REGISTER: usize = 4;

pub fn encode(element: &Element) -> nftables::Element {
    let (key, end, value) = match element {
        Element::Slot(_, frontend, index, Endpoint { address, port }) => {
            let key = [of_frontend(frontend), index.to_ne_bytes().to_vec()].concat();
            let value = [octets(*address), padded(&port.to_be_bytes())].concat();
            (key, None, Some(value))
        }
        Element::Hairpin(transport, Endpoint { address, port }) => {
            let destination = Frontend { address: *address, transport: *transport, port: *port };
            ([octets(*address), of_frontend(&destination)].concat(), None, None)
        }
        Element::ClusterIp(address) => (octets(*address), None, None),
        Element::Client(frontend, network) => {
            let key = |address| [of_frontend(frontend), octets(address)].concat();
            (key(network.network()), Some(key(network.broadcast())), None)
        }
        Element::Count(_, frontend, _) | Element::Flag(_, frontend) => {
            (of_frontend(frontend), None, None)
        }
    };
    nftables::Element { key, end, value }
}

/// None for an element of no known form, as other programs may add it.
pub fn decode(set: Set, family: Family, element: ListedElement<'_>) -> Option<Element> {
    let ListedElement { key, end, value } = element;
    let (first, rest) = split(key, family)?;
    Some(match set {
        Set::Endpoints(list) => {
            let (frontend, index) = frontend(key, family)?;
            let (address, port) = split(value?, family)?;
            let index = u32::from_ne_bytes(index.try_into().ok()?);
            // Another program may have written any; no packet looks up more.
            let index = Some(index).filter(|index| *index < MOST_SLOTS)?;
            Element::Slot(list, frontend, index, Endpoint { address, port: number(port)? })
        }
        Set::Hairpins => {
            let (Frontend { address, transport, port }, _) = frontend(rest, family)?;
            (address == first).then_some(Element::Hairpin(transport, Endpoint { address, port }))?
        }
        Set::ClusterIps => Element::ClusterIp(first),
        Set::Clients => {
            let (frontend, first) = frontend(key, family)?;
            let (same, last) = self::frontend(end?, family)?;
            Element::Client(frontend, network(ip(first)?, ip(last)?).filter(|_| same == frontend)?)
        }
        Set::Count(list, count) => Element::Count(list, whole(key, family)?, count),
        Set::Flag(flag) => Element::Flag(flag, whole(key, family)?),
    })
}

fn of_frontend(frontend: &Frontend) -> Vec<u8> {
    let protocol = padded(&[frontend.transport.number()]);
    [octets(frontend.address), protocol, padded(&frontend.port.to_be_bytes())].concat()
}

fn whole(key: &[u8], family: Family) -> Option<Frontend> {
    frontend(key, family).filter(|(_, rest)| rest.is_empty()).map(|(frontend, _)| frontend)
}

/// And what is behind it.
fn frontend(key: &[u8], family: Family) -> Option<(Frontend, &[u8])> {
    let (address, rest) = split(key, family)?;
    let (protocol, rest) = rest.split_at_checked(REGISTER)?;
    let (port, rest) = rest.split_at_checked(REGISTER)?;
    let protocol = protocol.first()?;
    let transport = Transport::ALL.into_iter().find(|known| known.number() == *protocol)?;
    Some((Frontend { address, transport, port: number(port)? }, rest))
}

fn split(bytes: &[u8], family: Family) -> Option<(IpAddr, &[u8])> {
    let (address, rest) = bytes.split_at_checked(usize::from(family.width() / 8))?;
    Some((ip(address)?, rest))
}

/// The one with this first and this last address.
fn network(first: IpAddr, last: IpAddr) -> Option<IpNetwork> {
    let lengths = 0..=Family::of(first).width();
    let mut networks = lengths.filter_map(|length| IpNetwork::new(first, length).ok());
    networks.find(|network| network.network() == first && network.broadcast() == last)
}

fn number(port: &[u8]) -> Option<u16> {
    port.get(..2)?.try_into().ok().map(u16::from_be_bytes)
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut field = bytes.to_vec();
    field.resize(REGISTER, 0);
    field
}
