//! The state of the kernel in memory, and the rules of its changes.

use std::net::IpAddr;

use tweed::kernel::Observation;
use tweed::model::entry::{
    Element, Entry, KernelState, Key, Link, LinkKind, LinkName, Nexthop, NexthopId, Renewal, Route,
    Setting, SettingKind, SettingStore, Vxlan,
};
use tweed::model::node::{
    Facts, Interface, InterfaceAddress, NexthopSupport, RouteLookup, Sysctls,
};
use tweed::model::prefix::{Family, Prefix};
use tweed::plan::diff::Op;

/// The host: its interfaces, and the entries programmed on them.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) facts: Facts,
    state: KernelState,
    /// How often something may have changed.
    pub(super) changes: u64,
}

/// The notifications of a change. The kernel sends none for legacy iptables, for sysctls but reverse-path
/// filters, or for IPv4 routes that are removed with their link.
type Notifications = Vec<Observation>;

impl World {
    pub(super) fn new(facts: Facts) -> Self {
        let mut world = Self { facts, ..Self::default() };
        world.reboot();
        world
    }

    pub(super) const fn state(&self) -> &KernelState {
        &self.state
    }

    /// The present facts of the host.
    pub(super) fn facts(&self) -> Facts {
        let taken = self.state.entries().filter(|entry| entry.is_foreign_nexthop());
        let mut taken = taken.filter_map(|entry| match entry {
            Entry::Nexthop(nexthop) => Some(nexthop.id).filter(|id| id.is_ours()),
            _ => None,
        });
        let nexthops = taken.next().map_or(self.facts.nexthops, NexthopSupport::Taken);
        Facts { nexthops, makes_strict: self.makes_strict(), ..self.facts.clone() }
    }

    /// The link by which the kernel would send to `address`, by the longest prefix.
    pub(super) fn lookup(&self, address: IpAddr) -> Option<RouteLookup> {
        let on_link = self.facts.interfaces.iter().flat_map(|interface| {
            let prefixes = interface.addresses.iter();
            let prefix = |own: &InterfaceAddress| Prefix::holding(own.address, own.prefix_len);
            prefixes.filter_map(prefix).map(|prefix| (prefix, Some(interface.name.clone())))
        });
        let routed = self.state.routes().map(|route| (route.destination, route.link.clone()));
        let covering = routed.chain(on_link).filter(|(prefix, _)| prefix.contains(address));
        let longest = covering.max_by_key(|(prefix, _)| prefix.prefix_len());
        let family = Family::of(address);
        let mut defaults = self.facts.default_routes.iter().filter(|(of, _)| *of == family);
        let link = match longest {
            Some((_, link)) => link,
            None => defaults.next().and_then(|(_, link)| link.clone()),
        };
        Some(RouteLookup { link: link?, source: None })
    }

    pub(super) fn reboot(&mut self) {
        self.changes += 1;
        let (kind, on) = (SettingKind::ReversePath, self.facts.makes_strict);
        let links = self.facts.interfaces.iter().map(|it| it.name.clone());
        self.state = links.map(|link| Entry::Setting(Setting { link, kind, on })).collect();
    }

    /// Applies `op`, or returns the kernel's error message.
    pub(super) fn apply(&mut self, op: &Op) -> Result<Notifications, String> {
        match op {
            Op::Create(entry)
                if matches!(**entry, Entry::Link(_) | Entry::Nexthop(_))
                    && self.state.get(&entry.key()).is_some() =>
            {
                Err("File exists".into())
            }
            Op::Create(entry) | Op::Replace(entry) if self.is_void(entry) => {
                Ok(Notifications::new())
            }
            Op::Create(entry) | Op::Replace(entry) => {
                self.check(entry)?;
                Ok(self.put(Entry::clone(entry)))
            }
            Op::Remove(entry) => {
                let is_there = self.state.get(&entry.key()) == Some(entry.as_ref());
                Ok(if is_there { self.lose(&entry.key()) } else { Notifications::new() })
            }
        }
    }

    pub(super) fn put(&mut self, entry: Entry) -> Notifications {
        self.changes += 1;
        match &entry {
            Entry::Link(link) => self.put_link(link.clone()),
            Entry::Setting(setting) => self.put_setting(setting.clone()),
            Entry::Chain(_) => {
                self.state.insert(entry);
                Notifications::new()
            }
            Entry::Table(table) => {
                let notifications = vec![Observation::TableChanged(table.name.as_ref().clone())];
                self.state.retain(|other| !other.is_element_of(&table.name));
                self.state.insert(entry);
                notifications
            }
            Entry::Address(_)
            | Entry::Renewal(_)
            | Entry::Element(_)
            | Entry::Fdb(_)
            | Entry::Neighbour(_)
            | Entry::Nexthop(_)
            | Entry::Route(_) => {
                self.state.insert(entry.clone());
                vec![Observation::Holds(entry)]
            }
        }
    }

    pub(super) fn lose(&mut self, key: &Key) -> Notifications {
        self.changes += 1;
        match key {
            Key::Link(link) => {
                self.state.retain(|entry| entry.link() != Some(link));
                vec![Observation::LinkChanged(link.clone())]
            }
            Key::Setting(..) | Key::Chain(_) => {
                self.state.remove(key);
                Notifications::new()
            }
            Key::Table(table) => {
                self.state.retain(|entry| !entry.is_element_of(table));
                let notifications = |_| Observation::TableChanged(table.as_ref().clone());
                self.state.remove(key).map(notifications).into_iter().collect()
            }
            Key::Nexthop(id) => self.lose_nexthop(*id),
            Key::Address(link, ..) => {
                let had_one = self.has_ipv4(link);
                let lost = self.state.remove(key).map(|_| Observation::Lost(key.clone()));
                lost.into_iter().chain(self.end_ipv4(link, had_one)).collect()
            }
            Key::Renewal(_)
            | Key::Element(..)
            | Key::Fdb(..)
            | Key::Neighbour(..)
            | Key::Route(..) => {
                self.state.remove(key).map(|_| Observation::Lost(key.clone())).into_iter().collect()
            }
        }
    }

    fn has_ipv4(&self, link: &LinkName) -> bool {
        let mut interfaces = self.facts.interfaces.iter().filter(|it| it.name == *link);
        interfaces.any(|it| it.addresses.iter().any(|own| own.address.is_ipv4()))
            || self.state.entries().any(|entry| {
                matches!(entry, Entry::Address(own) if own.link == *link && own.address.is_ipv4())
            })
    }

    /// With its last IPv4 address, a link loses its IPv4 neighbours, and its routes without
    /// notification. Routes with a nexthop object stay.
    fn end_ipv4(&mut self, link: &LinkName, had_one: bool) -> Notifications {
        if !had_one || self.has_ipv4(link) {
            return Notifications::new();
        }
        let is_lost = |entry: &Entry| match entry {
            Entry::Route(route) => {
                route.destination.family() == Family::V4 && route.nexthop.is_none()
            }
            Entry::Neighbour(neighbour) => neighbour.address.is_ipv4(),
            _ => false,
        };
        let is_lost = |entry: &Entry| entry.link() == Some(link) && is_lost(entry);
        let lost = self.state.entries().filter(|entry| is_lost(entry)).map(Entry::key);
        let notified = lost.filter(|key| matches!(key, Key::Neighbour(..)));
        let notifications = notified.map(Observation::Lost).collect();
        self.state.retain(|entry| !is_lost(entry));
        notifications
    }

    /// Its routes are removed with it; only those of IPv6 are notified.
    fn lose_nexthop(&mut self, id: NexthopId) -> Notifications {
        let key = Key::Nexthop(id);
        let is_on_it = |entry: &Entry| matches!(entry, Entry::Route(r) if r.nexthop == Some(id));
        let routes = self.state.entries().filter(|entry| is_on_it(entry)).map(Entry::key);
        let notified =
            routes.filter(|it| matches!(it, Key::Route(to, _) if to.family() == Family::V6));
        let mut notifications: Notifications = notified.map(Observation::Lost).collect();
        notifications.extend(self.state.remove(&key).map(|_| Observation::Lost(key)));
        self.state.retain(|entry| !is_on_it(entry));
        notifications
    }

    pub(super) fn link_up(&mut self, link: &LinkName) -> Notifications {
        if self.is_up(link) == Some(true) {
            return Notifications::new();
        }
        self.changes += 1;
        self.set_up(link, LinkState::Up);
        vec![Observation::LinkChanged(link.clone())]
    }

    /// The link drops its routes, neighbours and IPv6 addresses; only what was IPv6 is notified.
    pub(super) fn link_down(&mut self, link: &LinkName) -> Notifications {
        if self.is_up(link) == Some(false) {
            return Notifications::new();
        }
        self.changes += 1;
        self.set_up(link, LinkState::Down);
        let on_link = |entry: &Entry| entry.link() == Some(link);
        let notifications =
            self.state.entries().filter(|entry| on_link(entry)).filter_map(|entry| match entry {
                Entry::Route(route) if route.destination.family() == Family::V6 => {
                    Some(Observation::Lost(entry.key()))
                }
                Entry::Address(own) if own.address.is_ipv6() => {
                    Some(Observation::Lost(entry.key()))
                }
                _ => None,
            });
        let notifications = notifications.chain([Observation::LinkChanged(link.clone())]).collect();
        self.state.retain(|entry| {
            let goes = match entry {
                Entry::Address(own) => own.address.is_ipv6(),
                Entry::Route(_) | Entry::Nexthop(_) | Entry::Neighbour(_) => true,
                _ => false,
            };
            !(on_link(entry) && goes)
        });
        let interface = self.facts.interfaces.iter_mut().find(|it| it.name == *link);
        if let Some(interface) = interface {
            interface.addresses.retain(|own| own.address.is_ipv4());
        }
        notifications
    }

    pub(super) fn change_interface(
        &mut self,
        link: &LinkName,
        change: impl FnOnce(&mut Interface),
    ) -> Notifications {
        self.changes += 1;
        let had_one = self.has_ipv4(link);
        let mut interfaces = self.facts.interfaces.iter_mut();
        if let Some(interface) = interfaces.find(|interface| interface.name == *link) {
            change(interface);
        }
        let mut notifications = self.end_ipv4(link, had_one);
        notifications.push(Observation::LinkChanged(link.clone()));
        notifications
    }

    pub(super) fn add_interface(&mut self, interface: Interface) {
        self.changes += 1;
        let (link, kind, on) =
            (interface.name.clone(), SettingKind::ReversePath, self.makes_strict());
        self.state.insert(Entry::Setting(Setting { link, kind, on }));
        self.facts.interfaces.push(interface);
    }

    /// All that is on the interface stays there.
    pub(super) fn rename_interface(&mut self, link: &LinkName, name: &LinkName) -> Notifications {
        self.changes += 1;
        let renamed = |it: LinkName| if it == *link { name.clone() } else { it };
        for interface in self.facts.interfaces.iter_mut().filter(|it| it.name == *link) {
            interface.name = name.clone();
        }
        for (_, device) in &mut self.facts.default_routes {
            *device = device.take().map(renamed);
        }
        let entries: Vec<Entry> = self.state.entries().cloned().collect();
        let moved = entries.into_iter().map(|entry| match entry {
            Entry::Link(Link { kind: LinkKind::Vxlan(vxlan), name, mtu, mac, up }) => {
                let underlay = vxlan.underlay.clone().map(renamed);
                let kind = LinkKind::Vxlan(Box::new(Vxlan { underlay, ..*vxlan }));
                Entry::Link(Link { kind, name, mtu, mac, up })
            }
            Entry::Setting(it) => Entry::Setting(Setting { link: renamed(it.link), ..it }),
            Entry::Route(it) => Entry::Route(Route { link: it.link.map(renamed), ..it }),
            Entry::Nexthop(it) => Entry::Nexthop(Nexthop { link: it.link.map(renamed), ..it }),
            other => other,
        });
        self.state = moved.collect();
        [link, name].map(|link| Observation::LinkChanged(link.clone())).into()
    }

    pub(super) fn remove_interface(&mut self, link: &LinkName) -> Notifications {
        self.facts.interfaces.retain(|interface| interface.name != *link);
        self.facts.default_routes.retain(|(_, device)| device.as_ref() != Some(link));
        let bound = self.state.entries().filter_map(|entry| match entry {
            Entry::Link(Link { name, kind: LinkKind::Vxlan(vxlan), .. }) => {
                (vxlan.underlay.as_ref() == Some(link)).then(|| name.clone())
            }
            _ => None,
        });
        let gone: Vec<LinkName> = bound.chain([link.clone()]).collect();
        gone.into_iter().flat_map(|link| self.lose(&Key::Link(link))).collect()
    }

    fn put_setting(&mut self, setting: Setting) -> Notifications {
        let (link, kind) = (setting.link.clone(), setting.kind);
        let before = self.state.insert(Entry::Setting(setting.clone()));
        let is_changed = before.is_none_or(|it| *it != Entry::Setting(setting));
        let is_notified = kind == SettingKind::ReversePath && self.is_up(&link).is_some();
        if is_changed && is_notified { vec![Observation::LinkChanged(link)] } else { Vec::new() }
    }

    fn put_link(&mut self, link: Link) -> Notifications {
        let name = link.name.clone();
        if self.state.get(&Key::Link(name.clone())).is_none() {
            let (link, kind, on) = (name.clone(), SettingKind::ReversePath, self.makes_strict());
            let settings = [SettingKind::AcceptRa.on(&name), Setting { link, kind, on }];
            self.state.extend(settings.map(Entry::Setting));
        }
        let notifications = if link.up { Notifications::new() } else { self.link_down(&name) };
        self.state.insert(Entry::Link(link));
        if notifications.is_empty() { vec![Observation::LinkChanged(name)] } else { notifications }
    }

    fn set_up(&mut self, link: &LinkName, state: LinkState) {
        let up = matches!(state, LinkState::Up);
        self.change_interface(link, |interface| interface.up = up);
        if let Some(Entry::Link(tunnel)) = self.state.get(&Key::Link(link.clone())) {
            self.state.insert(Entry::Link(Link { up, ..tunnel.clone() }));
        }
    }

    /// Whether a new device has a strict filter, by the host's default.
    fn makes_strict(&self) -> bool {
        let default = Key::Setting(SettingKind::ReversePath, LinkName::new("default"));
        let default = self.state.get(&default);
        default.map_or(
            self.facts.makes_strict,
            |entry| matches!(entry, Entry::Setting(setting) if setting.on),
        )
    }

    fn check(&self, entry: &Entry) -> Result<(), String> {
        match entry {
            Entry::Link(link) => self.check_link(link),
            Entry::Setting(setting) => self.check_setting(setting),
            Entry::Nexthop(nexthop) => {
                let Nexthop { link, gateway, onlink, .. } = nexthop;
                self.check_way(link.as_ref(), *gateway, *onlink)
            }
            Entry::Route(Route { nexthop: Some(id), .. }) => {
                let is_there = self.state.get(&Key::Nexthop(*id)).is_some();
                is_there.then_some(()).ok_or_else(|| "Nexthop id does not exist".to_owned())
            }
            Entry::Route(route) => self.check_way(route.link.as_ref(), route.gateway, route.onlink),
            Entry::Table(_) | Entry::Chain(_) => Ok(()),
            Entry::Renewal(Renewal { table, .. }) | Entry::Element(Element { table, .. }) => {
                let is_there = self.state.get(&Key::Table(table.clone())).is_some();
                is_there.then_some(()).ok_or_else(|| "No such file or directory".to_owned())
            }
            Entry::Address(_) | Entry::Neighbour(_) | Entry::Fdb(_) => {
                entry.link().map_or(Ok(()), |link| self.check_device(link))
            }
        }
    }

    /// A link that has no settings of IPv6 needs none.
    fn is_void(&self, entry: &Entry) -> bool {
        let Entry::Setting(Setting { link, kind: SettingKind::AcceptRa, .. }) = entry else {
            return false;
        };
        self.is_up(link).is_none()
    }

    fn check_setting(&self, Setting { link, kind, .. }: &Setting) -> Result<(), String> {
        match kind.policy().store {
            SettingStore::Sysctl(_) if self.facts.sysctls == Sysctls::ReadOnly => {
                Err("Read-only file system".into())
            }
            SettingStore::Sysctl(_) | SettingStore::Feature(_) => {
                self.is_up(link).map(|_| ()).ok_or_else(|| "No such file or directory".to_owned())
            }
        }
    }

    fn check_link(&self, link: &Link) -> Result<(), String> {
        let LinkKind::Vxlan(want) = &link.kind else {
            return Err("Operation not supported".into());
        };
        want.underlay.as_ref().map_or(Ok(()), |underlay| self.check_device(underlay))?;
        match self.state.get(&Key::Link(link.name.clone())) {
            Some(Entry::Link(Link { kind: LinkKind::Vxlan(have), .. })) => {
                let is_same = Vxlan { learning: want.learning, ..Vxlan::clone(have) } == **want;
                is_same.then_some(()).ok_or_else(|| "Operation not supported".to_owned())
            }
            Some(_) => Err("File exists".into()),
            None => Ok(()),
        }
    }

    fn check_device(&self, link: &LinkName) -> Result<(), String> {
        self.is_up(link).map(|_| ()).ok_or_else(|| format!("Cannot find device {link}"))
    }

    fn check_way(
        &self,
        link: Option<&LinkName>,
        gateway: Option<IpAddr>,
        onlink: bool,
    ) -> Result<(), String> {
        let Some(link) = link else { return Ok(()) };
        self.check_device(link)?;
        if self.is_up(link) != Some(true) {
            return Err("Network is down".into());
        }
        match gateway {
            Some(gateway) if !onlink && !self.is_on_link(gateway, link) => {
                Err("Nexthop has invalid gateway".into())
            }
            Some(_) | None => Ok(()),
        }
    }

    fn is_on_link(&self, gateway: IpAddr, link: &LinkName) -> bool {
        let interface = self.facts.interfaces.iter().find(|interface| interface.name == *link);
        let prefixes = interface.into_iter().flat_map(|interface| &interface.addresses);
        let mut prefixes = prefixes.filter_map(|own| Prefix::holding(own.address, own.prefix_len));
        prefixes.any(|prefix| prefix.contains(gateway))
    }

    /// Whether `link` is up; none if there is no such link.
    fn is_up(&self, link: &LinkName) -> Option<bool> {
        let mut interfaces = self.facts.interfaces.iter();
        let up = interfaces.find(|interface| interface.name == *link).map(|it| it.up);
        match self.state.get(&Key::Link(link.clone())) {
            _ if link.is_loopback() => Some(true),
            Some(Entry::Link(tunnel)) => up.or(Some(tunnel.up)),
            _ => up,
        }
    }
}

#[derive(Clone, Copy)]
enum LinkState {
    Up,
    Down,
}
