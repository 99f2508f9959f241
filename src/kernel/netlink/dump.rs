//! Reads host facts and kernel entries from one listing.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use nix::libc::RT_TABLE_MAIN;
use tweed_netlink::Frame;
use tweed_netlink::rtnl::{address, neighbour, route};

use super::NetlinkKernel;
use crate::kernel::codec::{self, Body, Links};
use crate::kernel::iptables::{self, HostChains};
use crate::kernel::{Chains, Kernel, Observation, host, settings};
use crate::model::entry::{Entry, KernelState, Key, LinkName};
use crate::model::node::{Facts, Firewalls, Interface, InterfaceAddress, NexthopSupport, Release};
use crate::model::prefix::Family;
use crate::plan::scope::Scope;

/// The release of the running kernel.
const RELEASE: &str = "/proc/sys/kernel/osrelease";

/// What links, addresses, nexthop objects and routes show about the host.
pub(super) struct Listed {
    interfaces: Vec<Interface>,
    default_routes: Vec<(Family, Option<LinkName>)>,
    nexthops: NexthopSupport,
}

impl NetlinkKernel {
    /// Lists links, addresses, nexthop objects and routes: what they show about the host, and the
    /// relevant entries among them. Of several entries with the same key, the first is active.
    pub(super) async fn list(
        &mut self,
        scope: &Scope,
        known: &KernelState,
    ) -> io::Result<(Listed, Vec<Arc<Entry>>)> {
        let listed = self.read_links().await?;
        let (requests, links) = (&mut self.requests, &self.links);
        let held = |body: &Body| entry(body, links, scope).map(|entry| known.sharing(entry));
        let mut entries: Vec<_> = listed.iter().filter_map(held).collect();
        let mut interfaces: Vec<_> = listed.iter().filter_map(codec::interface).collect();
        for body in requests.list(&address::list(), codec::parse).await?.unwrap_or_default() {
            entries.extend(held(&body));
            add_address(&mut interfaces, codec::interface_address(&body, links));
        }
        let read = |frame: &Frame<'_>| {
            codec::parse(frame).map(|body| (codec::taken_nexthop(&body), held(&body)))
        };
        let nexthops = requests.list(&codec::nexthops(), read).await?;
        let usable = nexthops.as_ref().filter(|_| !self.lacks_nexthops).map(|listed| {
            let taken = listed.iter().find_map(|(taken, _)| *taken);
            taken.map_or(NexthopSupport::Usable, NexthopSupport::Taken)
        });
        entries.extend(nexthops.into_iter().flatten().filter_map(|(_, entry)| entry));
        let mut default_routes = Vec::new();
        for family in Family::ALL {
            let read = |frame: &Frame<'_>| {
                let may_be_default = codec::may_be_default(frame);
                let concerns = codec::may_concern(frame, &scope.networks, &[]);
                let body = (may_be_default || concerns).then(|| codec::parse(frame)).flatten()?;
                let default = may_be_default.then(|| codec::default_route(&body, links)).flatten();
                Some((default, held(&body)))
            };
            let request = route::list(family, RT_TABLE_MAIN);
            for (default, entry) in requests.list(&request, read).await?.into_iter().flatten() {
                default_routes.extend(default);
                entries.extend(entry);
            }
        }
        let nexthops = usable.unwrap_or(NexthopSupport::Unsupported);
        Ok((Listed { interfaces, default_routes, nexthops }, entries))
    }

    /// The facts of the host: what was listed, and all else.
    pub(super) async fn facts_of(
        &mut self,
        Listed { interfaces, default_routes, nexthops }: Listed,
        reach: Option<IpAddr>,
    ) -> io::Result<Facts> {
        let reach = match reach {
            Some(address) => self.look_up(address).await?,
            None => None,
        };
        // Without iptables, there is nothing else: a module of the kernel may be loaded later.
        let nftables = !self.tables.lack_masquerading || !iptables::is_installed();
        let release = std::fs::read_to_string(RELEASE).unwrap_or_default();
        Ok(Facts {
            reach,
            firewalls: Firewalls { nftables, iptables: iptables::usual(), ..Firewalls::default() },
            sysctls: settings::writable(),
            makes_strict: settings::makes_strict(),
            kernel: Release::parse(release.trim()),
            service: host::service(),
            interfaces,
            default_routes,
            nexthops,
        })
    }

    /// Adds the addresses of these interfaces to them.
    pub(super) async fn read_addresses(&mut self, interfaces: &mut [Interface]) -> io::Result<()> {
        for body in self.requests.list(&address::list(), codec::parse).await?.unwrap_or_default() {
            add_address(interfaces, codec::interface_address(&body, &self.links));
        }
        Ok(())
    }

    /// Adds the entries on tunnel devices, settings, tables and chains.
    pub(super) async fn state_of(
        &mut self,
        mut entries: Vec<Arc<Entry>>,
        scope: &Scope,
        known: &KernelState,
    ) -> io::Result<KernelState> {
        let settings = self.settings.read_all(scope);
        let tables: Vec<_> = scope.tables.iter().flat_map(|name| self.tables.read(name)).collect();
        let chains = HostChains.read(scope.chains.clone(), None).await.found;
        let chains = chains.into_iter().map(Entry::Chain);
        let rules = settings.into_iter().chain(tables).chain(chains);
        entries.extend(rules.map(|entry| known.sharing(entry)));
        let tunnels: Vec<u32> = self.indices(scope).collect();
        let (requests, links) = (&mut self.requests, &self.links);
        let read = |frame: &Frame<'_>| {
            codec::may_concern(frame, &[], &tunnels)
                .then(|| codec::parse(frame))
                .flatten()
                .and_then(|body| entry(&body, links, scope))
                .map(|entry| known.sharing(entry))
        };
        for index in &tunnels {
            let forwarding = requests.list(&neighbour::list_fdb(*index), read).await?;
            entries.extend(forwarding.unwrap_or_default());
            let request = neighbour::list(*index);
            let mut listed = requests.list(&request, read).await?.unwrap_or_default();
            let (expected, mut added) = (neighbours_on(links.name(*index), known), listed.len());
            // The kernel keeps the neighbours of all namespaces in one table, and lists it in parts.
            // If another namespace changes it meanwhile, the list may lack some of this namespace,
            // and the kernel does not report that. Missing is what a further list does not add.
            while added > 0 && listed.len() < expected {
                let found: BTreeSet<Key> = listed.iter().map(|entry| entry.key()).collect();
                let mut again = requests.list(&request, read).await?.unwrap_or_default();
                again.retain(|entry| !found.contains(&entry.key()));
                added = again.len();
                listed.extend(again);
            }
            entries.extend(listed);
        }
        Ok(entries.into_iter().rev().collect())
    }

    /// The indices of existing tunnel devices.
    pub(super) fn indices(&self, scope: &Scope) -> impl Iterator<Item = u32> {
        scope.tunnels.iter().filter_map(|tunnel| self.links.index(tunnel).ok())
    }
}

fn add_address(interfaces: &mut [Interface], found: Option<(LinkName, InterfaceAddress)>) {
    let Some((link, address)) = found else { return };
    if let Some(owner) = interfaces.iter_mut().find(|one| one.name == link) {
        owner.addresses.push(address);
    }
}

fn neighbours_on(link: Option<&LinkName>, known: &KernelState) -> usize {
    let is_on = |entry: &&Entry| match entry {
        Entry::Neighbour(neighbour) => Some(&neighbour.link) == link,
        _ => false,
    };
    known.entries().filter(is_on).count()
}

/// The entry that `body` lists, if it is in `scope`.
fn entry(body: &Body, links: &Links, scope: &Scope) -> Option<Entry> {
    let Observation::Holds(entry) = codec::decode(body, links)? else { return None };
    scope.covers(&entry).then_some(entry)
}
