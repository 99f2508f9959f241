//! Routes.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::libc::{
    AF_INET, NLM_F_CREATE, RT_TABLE_MAIN, RTA_DST, RTA_GATEWAY, RTA_METRICS, RTA_OIF, RTA_PRIORITY,
    RTA_TABLE, RTM_GETROUTE, RTM_NEWROUTE, RTN_UNICAST, RTPROT_BOOT,
};

use super::address::family;
use crate::Family;
use crate::frame::Frame;
use crate::message::{Message, fixed};

/// A route to add. What is `None` is the kernel's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub destination: IpNetwork,
    pub gateway: Option<IpAddr>,
    pub table: Option<u32>,
    pub priority: Option<u32>,
    pub scope: Option<u32>,
    /// Bytes.
    pub mtu: Option<u32>,
    /// Bytes.
    pub advmss: Option<u32>,
}

/// A route that the kernel has, as far as it matters for whether one is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedRoute {
    pub destination: IpNetwork,
    pub gateway: Option<IpAddr>,
    pub link: Option<u32>,
}

pub(super) const RTMSG: usize = 12;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;

impl Route {
    pub const fn to(destination: IpNetwork) -> Self {
        let (table, priority, scope, mtu, advmss) = (None, None, None, None, None);
        Self { destination, gateway: None, table, priority, scope, mtu, advmss }
    }
}

/// As `ip route add` writes it.
pub fn add(link: u32, route: &Route) -> Message {
    let destination = route.destination;
    let message = Message::new(RTM_NEWROUTE, NLM_F_CREATE, &rtmsg(route))
        .u32(RTA_OIF, link)
        .u32(RTA_TABLE, route.table.unwrap_or(RT_TABLE_MAIN.into()));
    // The kernel takes a default route by the absence of a destination.
    let target = (destination.prefix() > 0).then(|| destination.network());
    message
        .with(target, |message, target| message.ip(RTA_DST, target))
        .with(route.gateway, |message, gateway| message.ip(RTA_GATEWAY, gateway))
        .with(route.priority, |message, priority| message.u32(RTA_PRIORITY, priority))
        .with(metrics(route), |message, route| {
            message.nest(RTA_METRICS, |metrics| {
                metrics
                    .with(route.mtu, |metrics, mtu| metrics.u32(RTAX_MTU, mtu))
                    .with(route.advmss, |metrics, mss| metrics.u32(RTAX_ADVMSS, mss))
            })
        })
}

/// All of one family; on a strict socket, those of `table`, or of all tables if it is 0.
pub fn list(of: Family, table: u8) -> Message {
    let family = family(of.unspecified());
    Message::new(RTM_GETROUTE, 0, &fixed::<RTMSG>(&[family, 0, 0, 0, table]))
}

/// The route that a packet to `address` would take.
pub fn lookup(address: IpAddr) -> Message {
    let fixed = fixed::<RTMSG>(&[family(address), Family::of(address).width()]);
    Message::new(RTM_GETROUTE, 0, &fixed).ip(RTA_DST, address)
}

pub fn read(frame: &Frame<'_>) -> Option<ListedRoute> {
    let [of, length, ..] = *frame.payload else { return None };
    let family = if i32::from(of) == AF_INET { Family::V4 } else { Family::V6 };
    let all = frame.attributes(RTMSG)?;
    let base = all.ip(RTA_DST).unwrap_or(family.unspecified());
    Some(ListedRoute {
        destination: IpNetwork::new(base, length).ok()?,
        gateway: all.ip(RTA_GATEWAY),
        link: all.u32(RTA_OIF),
    })
}

fn metrics(route: &Route) -> Option<&Route> {
    (route.mtu.is_some() || route.advmss.is_some()).then_some(route)
}

fn rtmsg(route: &Route) -> [u8; RTMSG] {
    let scope = u8::try_from(route.scope.unwrap_or(0)).unwrap_or_default();
    let (family, length) = (family(route.destination.ip()), route.destination.prefix());
    fixed(&[family, length, 0, 0, 0, RTPROT_BOOT, scope, RTN_UNICAST])
}
