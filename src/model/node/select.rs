//! Chooses the external interface and its addresses, by flannel's rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use regex::Regex;

use super::{Facts, Interface, InterfaceAddress, NexthopSupport, Node, Uplink, is_segment_of};
use crate::model::entry::LinkName;
use crate::model::prefix::{Family, Prefix, is_link_local};

#[derive(Clone, Debug, Default)]
pub struct InterfaceOptions {
    /// Names or addresses; the first match is used.
    pub names: Vec<String>,
    /// Tried after all names; each on addresses first and on names second.
    pub regexes: Vec<Regex>,
    /// Tried last: the interface of the kernel's route to this address.
    pub can_reach: Option<IpAddr>,
    /// The address that peers send to; by default that of the interface.
    pub public_ip: Option<Ipv4Addr>,
    pub public_ipv6: Option<Ipv6Addr>,
    /// Use no nexthop objects, even if the kernel supports them.
    pub plain_routes: bool,
}

impl InterfaceOptions {
    const fn select_by_default_route(&self) -> bool {
        self.names.is_empty()
            && self.regexes.is_empty()
            && self.can_reach.is_none()
            && self.public_ip.is_none()
            && self.public_ipv6.is_none()
    }

    /// The same options with public IPs set by another source; at most one per family.
    #[must_use]
    pub fn with_public_ips(&self, public_ips: &[IpAddr]) -> Self {
        let mut options = self.clone();
        for public_ip in public_ips {
            match public_ip {
                IpAddr::V4(ip) => options.public_ip = Some(*ip),
                IpAddr::V6(ip) => options.public_ipv6 = Some(*ip),
            }
        }
        options
    }
}

/// No interface matches, and why each candidate does not.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no interface can be used: {}", .0.join("; "))]
pub struct NoInterface(Vec<String>);

/// An interface, and those of its addresses that the options determine.
struct Candidate<'a> {
    interface: &'a Interface,
    fixed: Vec<IpAddr>,
}

/// What an interface is chosen from, and by what.
struct Search<'a> {
    facts: &'a Facts,
    options: &'a InterfaceOptions,
    families: &'a [Family],
}

type Chosen<'a> = Result<Candidate<'a>, String>;

impl Node {
    /// Chooses an interface by `options`: one that has an address in each of `families`.
    pub fn select(
        facts: &Facts,
        options: &InterfaceOptions,
        families: &[Family],
    ) -> Result<Self, NoInterface> {
        let search = Search { facts, options, families };
        search.first_usable(search.choices())
    }

    /// Keeps the interface and its addresses as long as they are usable, else chooses again: peers
    /// know these addresses, and another choice may not last.
    pub fn select_again(
        &self,
        facts: &Facts,
        options: &InterfaceOptions,
        families: &[Family],
    ) -> Result<Self, NoInterface> {
        let search = Search { facts, options, families };
        self.kept(&search).map_or_else(|| search.first_usable(search.choices()), Ok)
    }

    /// The same interface and addresses, if they are usable.
    fn kept(&self, search: &Search<'_>) -> Option<Self> {
        let fixed: Vec<IpAddr> = self.uplinks.iter().map(|uplink| uplink.address).collect();
        let is_same = self.uplinks.iter().map(Uplink::family).eq(search.families.iter().copied());
        let has_all = |interface: &&Interface| fixed.iter().all(|ip| interface.can_use(*ip));
        let interface = self.own_interface(search.facts).filter(has_all).filter(|_| is_same)?;
        search.build(&Candidate { interface, fixed }).ok()
    }

    /// The choice of a daemon that starts, after one on this node: where the options leave a choice
    /// between addresses of the interface, peers know that of the former one. So they do where another
    /// default route is preferred now, of a VPN or a second interface, next to that of the interface.
    pub fn select_after_restart(
        &self,
        facts: &Facts,
        options: &InterfaceOptions,
        families: &[Family],
    ) -> Result<Self, NoInterface> {
        let search = Search { facts, options, families };
        let has_default_route = facts.default_routes.iter().any(|(family, link)| {
            families.contains(family) && link.as_ref() == Some(&self.interface)
        });
        if options.select_by_default_route()
            && has_default_route
            && let Some(kept) = self.kept(&search)
        {
            return Ok(kept);
        }
        let choices = search.choices().into_iter().map(|choice| {
            let mut choice = choice?;
            if choice.interface.name == self.interface {
                let own = self.uplinks.iter().map(|uplink| uplink.address);
                choice.fixed.extend(own.filter(|address| choice.interface.can_use(*address)));
            }
            Ok(choice)
        });
        search.first_usable(choices)
    }

    /// What can be followed while one of two families has no usable address: that of the other one,
    /// and the interface. None if that is not all that is missing.
    pub fn select_in_part(&self, facts: &Facts, options: &InterfaceOptions) -> Option<Self> {
        let interface = self.own_interface(facts)?;
        let has_address = |known: &&Uplink| {
            let mut preferred = interface.preferred(known.family());
            interface.can_use(known.address) || preferred.next().is_some()
        };
        let (with, without): (Vec<_>, Vec<_>) = self.uplinks.iter().partition(has_address);
        if with.is_empty() || without.is_empty() {
            return None;
        }
        let families: Vec<Family> = with.into_iter().map(Uplink::family).collect();
        let chosen = self.select_after_restart(facts, options, &families).ok();
        let mut node = chosen.filter(|node| node.interface == self.interface)?;
        let is_kept = |prefix: &&Prefix| !families.contains(&prefix.family());
        let kept: Vec<Prefix> = self.on_link.iter().filter(is_kept).copied().collect();
        node.on_link.retain(|prefix| !kept.contains(prefix));
        node.on_link.extend(kept);
        node.uplinks.extend(without.into_iter().cloned());
        node.uplinks.sort_by_key(Uplink::family);
        Some(node)
    }

    /// The address that its interface, which is still there, no longer has.
    pub fn missing_address(&self, facts: &Facts) -> Option<IpAddr> {
        let interface = self.own_interface(facts)?;
        self.uplinks.iter().map(|uplink| uplink.address).find(|ip| !interface.can_use(*ip))
    }

    /// Whether its interface is still there with one of its addresses.
    pub fn has_address(&self, facts: &Facts) -> bool {
        let can_use = |interface: &Interface| {
            self.uplinks.iter().any(|uplink| interface.can_use(uplink.address))
        };
        self.own_interface(facts).is_some_and(can_use)
    }

    fn own_interface<'a>(&self, facts: &'a Facts) -> Option<&'a Interface> {
        find(facts, |interface| interface.name == self.interface)
    }
}

impl<'a> Search<'a> {
    fn first_usable(
        &self,
        choices: impl IntoIterator<Item = Chosen<'a>>,
    ) -> Result<Node, NoInterface> {
        let mut reasons = Vec::new();
        for choice in choices {
            match choice.and_then(|choice| self.build(&choice)) {
                Ok(node) => return Ok(node),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(NoInterface(reasons))
    }

    /// The choices that the operator configured, in order; without any, the defaults.
    fn choices(&self) -> Vec<Chosen<'a>> {
        let Self { facts, options, families } = *self;
        let named = options.names.iter().map(|name| by_name(facts, name));
        let matching = options.regexes.iter().map(|regex| by_regex(facts, regex, families));
        let reaching = options.can_reach.map(|target| by_reach(facts, target));
        let choices: Vec<_> = named.chain(matching).chain(reaching).collect();
        if choices.is_empty() { vec![self.by_default()] } else { choices }
    }

    fn by_default(&self) -> Chosen<'a> {
        let Self { facts, options, families } = *self;
        if let Some(address) = options.public_ip {
            return by_address(facts, address.into(), "without --iface, --public-ip");
        }
        if let Some(address) = options.public_ipv6 {
            return by_address(facts, address.into(), "without --iface, --public-ipv6");
        }
        let links: Vec<&LinkName> =
            families.iter().map(|family| default_link(facts, *family)).collect::<Result<_, _>>()?;
        match links.as_slice() {
            [first, rest @ ..] if rest.iter().all(|link| link == first) => {
                Ok(unfixed(by_link(facts, first)?))
            }
            _ => Err(
                "the default routes of IPv4 and IPv6 use different interfaces: select one with --iface"
                    .into(),
            ),
        }
    }

    fn build(&self, choice: &Candidate<'_>) -> Result<Node, String> {
        let (facts, interface) = (self.facts, choice.interface);
        if interface.mtu == 0 {
            return Err(format!("interface {} has no MTU", interface.name));
        }
        let uplinks = self.families.iter().map(|family| self.uplink(choice, *family));
        let prefix = |it: &InterfaceAddress| Prefix::holding(it.address, it.prefix_len);
        let on_link: Vec<Prefix> = interface.addresses.iter().filter_map(prefix).collect();
        Ok(Node {
            on_segment: self.on_segment(interface),
            interface: interface.name.clone(),
            mtu: interface.mtu,
            layer2: interface.layer2,
            nexthops: facts.nexthops == NexthopSupport::Usable && !self.options.plain_routes,
            firewalls: facts.firewalls.clone(),
            sysctls: facts.sysctls,
            kernel: facts.kernel,
            on_link,
            uplinks: uplinks.collect::<Result<_, _>>()?,
        })
    }

    /// The other links with an address whose prefix contains one of `interface`.
    fn on_segment(&self, interface: &Interface) -> Vec<LinkName> {
        let own =
            || interface.addresses.iter().map(|it| it.address).filter(|it| !is_link_local(*it));
        let contains_own = |other: &InterfaceAddress| {
            Prefix::holding(other.address, other.prefix_len)
                .is_some_and(|prefix| is_segment_of(prefix, own()))
        };
        let is_other = |other: &&Interface| {
            other.name != interface.name && other.addresses.iter().any(contains_own)
        };
        self.facts.interfaces.iter().filter(is_other).map(|it| it.name.clone()).collect()
    }

    fn uplink(&self, choice: &Candidate<'_>, family: Family) -> Result<Uplink, String> {
        let fixed = choice.fixed.iter().copied().find(|address| Family::of(*address) == family);
        let address =
            fixed.or_else(|| choice.interface.preferred(family).next()).ok_or_else(|| {
                format!("interface {} has no usable {family} address", choice.interface.name)
            })?;
        let given = match family {
            Family::V4 => self.options.public_ip.map(IpAddr::from),
            Family::V6 => self.options.public_ipv6.map(IpAddr::from),
        };
        let public_ip = given.unwrap_or(address);
        // Behind NAT, no interface has the public IP, so outer packets cannot use it as their source.
        let is_local = find(self.facts, |interface| interface.has(public_ip)).is_some();
        let source = if is_local { public_ip } else { address };
        let others = choice.interface.addresses.iter().map(|own| own.address);
        let is_other = |own: &IpAddr| !is_local && Family::of(*own) == family && *own != address;
        let others = others.filter(is_other).collect();
        Ok(Uplink { address, public_ip, source, others })
    }
}

fn by_name<'a>(facts: &'a Facts, name: &str) -> Chosen<'a> {
    match name.parse() {
        Ok(address) => by_address(facts, address, "--iface"),
        Err(_) => {
            find(facts, |interface| interface.name.as_str() == name).map(unfixed).ok_or_else(|| {
                format!("--iface {name} is not an interface of this host ({})", listed(facts))
            })
        }
    }
}

fn by_address<'a>(facts: &'a Facts, address: IpAddr, flag: &str) -> Chosen<'a> {
    find(facts, |interface| interface.has(address))
        .map(|interface| Candidate { interface, fixed: vec![address] })
        .ok_or_else(|| format!("{flag} {address} is not an address of this host"))
}

/// Among addresses, an interface matches only with a matching address in every family.
fn by_regex<'a>(facts: &'a Facts, regex: &Regex, families: &[Family]) -> Chosen<'a> {
    let matching = |interface: &'a Interface| {
        let fixed: Option<Vec<_>> = families
            .iter()
            .map(|family| interface.preferred(*family).find(|ip| regex.is_match(&ip.to_string())))
            .collect();
        fixed.map(|fixed| Candidate { interface, fixed })
    };
    let by_address = facts.interfaces.iter().find_map(matching);
    let by_name = || find(facts, |interface| regex.is_match(interface.name.as_str())).map(unfixed);
    by_address
        .or_else(by_name)
        .ok_or_else(|| format!("--iface-regex {regex} matches no interface ({})", listed(facts)))
}

fn by_reach(facts: &Facts, target: IpAddr) -> Chosen<'_> {
    let reach = facts
        .reach
        .as_ref()
        .ok_or_else(|| format!("--iface-can-reach {target}: this host has no route to it"))?;
    let interface = by_link(facts, &reach.link)?;
    Ok(Candidate { interface, fixed: reach.source.into_iter().collect() })
}

fn default_link(facts: &Facts, family: Family) -> Result<&LinkName, String> {
    let route = facts.default_routes.iter().find(|(of, _)| *of == family);
    let (_, link) = route
        .ok_or_else(|| format!("there is no {family} default route, and --iface is not given"))?;
    link.as_ref().ok_or_else(|| {
        format!(
            "the {family} default route has several next hops: select an interface with --iface"
        )
    })
}

impl Interface {
    fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.address == address)
    }

    fn can_use(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.usable && own.address == address)
    }

    /// The addresses of `family` that can be published to peers, best first.
    fn preferred(&self, family: Family) -> impl Iterator<Item = IpAddr> + use<> {
        let fits = |own: &&InterfaceAddress| {
            own.usable && Family::of(own.address) == family && is_publishable(own.address)
        };
        let mut addresses: Vec<_> = self.addresses.iter().filter(fits).cloned().collect();
        addresses.sort_by_key(|own| (is_link_local(own.address), own.lifetime));
        addresses.into_iter().map(|own| own.address)
    }
}

/// An IPv6 link-local address is meaningless to a peer.
fn is_publishable(address: IpAddr) -> bool {
    let is_scoped = address.is_ipv6() && is_link_local(address);
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || is_scoped)
}

fn find(facts: &Facts, fits: impl Fn(&Interface) -> bool) -> Option<&Interface> {
    facts.interfaces.iter().find(|interface| fits(interface))
}

fn by_link<'a>(facts: &'a Facts, link: &LinkName) -> Result<&'a Interface, String> {
    find(facts, |interface| interface.name == *link)
        .ok_or_else(|| format!("interface {link} does not exist"))
}

const fn unfixed(interface: &Interface) -> Candidate<'_> {
    Candidate { interface, fixed: Vec::new() }
}

fn listed(facts: &Facts) -> String {
    let names: Vec<_> = facts.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    format!("there are {}", names.join(", "))
}

#[cfg(test)]
mod tests;
