//! Validation of leases: the rules for a lease before any entry is programmed for it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Endpoint, Lease, LeaseId, Vtep};
use crate::mac::MacAddr;
use crate::model::config::Pool;
use crate::model::prefix::{Family, Prefix, is_link_local};

/// The rules for every accepted lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The networks that contain the subnets.
    pub networks: Vec<Prefix>,
    /// The lease of this node, if it holds one.
    pub own: Option<Lease>,
    pub macs: BTreeMap<Family, MacAddr>,
    pub addresses: Vec<IpAddr>,
    /// The prefixes of the underlay link. Their first and last IPv4 addresses belong to no host.
    pub on_link: Vec<Prefix>,
    pub pools: Vec<Pool>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error("its record cannot be read: {0}")]
    Malformed(String),
    #[error("subnet {0} is not inside the network")]
    OutsideNetwork(Prefix),
    #[error("subnet {0} is too short or too long for pods")]
    IllegalLength(Prefix),
    #[error("subnet {0} overlaps our own subnet {1}")]
    OverlapsOurs(Prefix, Prefix),
    #[error("subnet {0} contains {1}, an address of this node")]
    HoldsOurAddress(Prefix, IpAddr),
    #[error("its {what} conflicts with lease {id}")]
    ConflictsWith { what: Contested, id: LeaseId },
    #[error("public IP {0} is not a valid address of a node")]
    ImplausibleAddress(IpAddr),
    #[error("public IP {0} is an address of this node")]
    OurAddress(IpAddr),
    #[error("VTEP MAC {0} is not a unicast address")]
    ImplausibleMac(MacAddr),
    #[error("VTEP MAC {0} is that of this node")]
    OurMac(MacAddr),
}

/// Why the tunnel source of an accepted lease is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its source {0} is ignored: it is {1}")]
pub struct BadSource(IpAddr, BadAddress);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum BadAddress {
    #[error("not a valid address of a node")]
    Implausible,
    #[error("an address of this node")]
    Ours,
}

/// A property that is unique to one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contested {
    #[error("subnet")]
    Subnet,
    #[error("VTEP MAC")]
    VtepMac,
}

impl Rejected {
    /// The values of [`Self::conflict`], in the order of metrics.
    pub const CONFLICTS: [&str; 5] =
        ["subnet", "vtep_mac", "our_subnet", "our_vtep_mac", "our_public_ip"];

    /// The property that conflicts with another lease or with this node, if any.
    pub const fn conflict(&self) -> Option<&'static str> {
        match self {
            Self::ConflictsWith { what: Contested::Subnet, .. } => Some("subnet"),
            Self::ConflictsWith { what: Contested::VtepMac, .. } => Some("vtep_mac"),
            Self::OverlapsOurs(..) => Some("our_subnet"),
            Self::OurMac(_) => Some("our_vtep_mac"),
            Self::OurAddress(_) => Some("our_public_ip"),
            Self::Malformed(_)
            | Self::OutsideNetwork(_)
            | Self::IllegalLength(_)
            | Self::HoldsOurAddress(..)
            | Self::ImplausibleAddress(_)
            | Self::ImplausibleMac(_) => None,
        }
    }
}

impl Rules {
    /// Validates `lease` alone; [`super::Peers`] resolves conflicts between leases.
    pub fn check(&self, lease: &Lease) -> Result<(), Rejected> {
        lease.endpoints.iter().try_for_each(|endpoint| self.check_endpoint(endpoint))
    }

    /// `lease` without the address families that this node does not have: nodes read at different times
    /// that the network has a second one. None if it has no other, or only others.
    pub fn without_other_families(&self, lease: &Lease) -> Option<Lease> {
        let is_ours = |endpoint: &Endpoint| {
            let family = endpoint.subnet.family();
            self.networks.iter().any(|network| network.family() == family)
        };
        let ours = lease.endpoints.iter().filter(|endpoint| is_ours(endpoint)).count();
        let mut part = (ours > 0 && ours < lease.endpoints.len()).then(|| lease.clone())?;
        part.endpoints.retain(is_ours);
        Some(part)
    }

    /// `lease` without its invalid sources, and what is wrong with the first of these; none if all
    /// sources are valid.
    pub fn without_bad_sources(&self, lease: &Lease) -> Option<(Lease, BadSource)> {
        let bad = |endpoint: &Endpoint| self.check_source(endpoint).err();
        let first = lease.endpoints.iter().find_map(bad)?;
        let mut lease = lease.clone();
        for endpoint in lease.endpoints.iter_mut().filter(|endpoint| bad(endpoint).is_some()) {
            endpoint.vtep = endpoint.vtep.map(|vtep| Vtep { source: None, ..vtep });
        }
        Some((lease, first))
    }

    pub fn is_own(&self, id: &LeaseId) -> bool {
        self.own.as_ref().is_some_and(|own| own.id == *id)
    }

    fn check_endpoint(&self, endpoint: &Endpoint) -> Result<(), Rejected> {
        self.check_subnet(endpoint.subnet)?;
        self.check_public_ip(endpoint)?;
        endpoint.vtep.map_or(Ok(()), |vtep| self.check_mac(endpoint.subnet.family(), vtep.mac))
    }

    fn check_subnet(&self, subnet: Prefix) -> Result<(), Rejected> {
        let network = self
            .networks
            .iter()
            .find(|network| network.covers(subnet))
            .ok_or(Rejected::OutsideNetwork(subnet))?;
        let longest = subnet.family().width() - SHORTEST_HOST_PART;
        if subnet.prefix_len() <= network.prefix_len() || subnet.prefix_len() > longest {
            return Err(Rejected::IllegalLength(subnet));
        }
        let mut ours = self.own.iter().flat_map(Lease::subnets);
        if let Some(own) = ours.find(|own| own.overlaps(subnet)) {
            return Err(Rejected::OverlapsOurs(subnet, own));
        }
        // A route to that subnet would take the packets of our own underlay.
        let mut held = self.addresses.iter().filter(|address| subnet.contains(**address));
        held.next().map_or(Ok(()), |address| Err(Rejected::HoldsOurAddress(subnet, *address)))
    }

    fn check_public_ip(&self, endpoint: &Endpoint) -> Result<(), Rejected> {
        let address = endpoint.public_ip;
        self.check_address(address, endpoint.subnet).map_err(|bad| match bad {
            BadAddress::Implausible => Rejected::ImplausibleAddress(address),
            BadAddress::Ours => Rejected::OurAddress(address),
        })
    }

    fn check_source(&self, endpoint: &Endpoint) -> Result<(), BadSource> {
        let Some(source) = endpoint.vtep.and_then(|vtep| vtep.source) else { return Ok(()) };
        self.check_address(source, endpoint.subnet).map_err(|bad| BadSource(source, bad))
    }

    /// Validates `address` as that of a node whose pods have `subnet`.
    fn check_address(&self, address: IpAddr, subnet: Prefix) -> Result<(), BadAddress> {
        if self.addresses.contains(&address) {
            return Err(BadAddress::Ours);
        }
        let is_plausible = Family::of(address) == subnet.family()
            && is_node_address(address)
            && !self.on_link.iter().any(|prefix| is_reserved(*prefix, address))
            && !self.is_pod(address, subnet);
        if is_plausible { Ok(()) } else { Err(BadAddress::Implausible) }
    }

    /// With a public IP in a pod subnet, the tunnel would route its outer packets into itself.
    fn is_pod(&self, address: IpAddr, subnet: Prefix) -> bool {
        let ours = self.own.iter().flat_map(Lease::subnets);
        let mut pools = self.pools.iter();
        ours.chain([subnet]).any(|subnet| subnet.contains(address))
            || pools.any(|pool| assigns(pool, address) && !self.is_among_pods(pool))
    }

    /// Whether this node's own addresses are in the pool, as in a flat network: then those of peers
    /// may be, too.
    fn is_among_pods(&self, pool: &Pool) -> bool {
        self.addresses.iter().any(|address| assigns(pool, *address))
    }

    fn check_mac(&self, family: Family, mac: MacAddr) -> Result<(), Rejected> {
        if !mac.is_unicast() {
            Err(Rejected::ImplausibleMac(mac))
        } else if self.macs.get(&family) == Some(&mac) {
            Err(Rejected::OurMac(mac))
        } else {
            Ok(())
        }
    }
}

/// A subnet needs a gateway and a pod in addition to its first and last address.
const SHORTEST_HOST_PART: u8 = 2;

/// Whether a node can have the address. A link-local one is ambiguous without a link.
pub fn is_node_address(address: IpAddr) -> bool {
    let is_no_host = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    let is_plausible = match address {
        IpAddr::V4(v4) => (1..240).contains(&v4.octets()[0]),
        IpAddr::V6(v6) => v6.to_ipv4_mapped().is_none(),
    };
    is_plausible && !is_no_host && !is_link_local(address)
}

/// In prefixes of more than two addresses, the kernel treats the first and the last as broadcast
/// addresses.
fn is_reserved(on_link: Prefix, address: IpAddr) -> bool {
    let is_shared = on_link.family() == Family::V4 && on_link.size() > 2;
    is_shared && (address == on_link.base() || address == on_link.last())
}

fn assigns(pool: &Pool, address: IpAddr) -> bool {
    Prefix::holding(address, pool.subnet_len).is_some_and(|subnet| pool.assigns(subnet))
}
