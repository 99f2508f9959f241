//! Reading what the kernel holds.

use std::collections::BTreeSet;
use std::io;

use tweed_netlink::{Frame, Message};

use super::NetlinkKernel;
use crate::kernel::codec::{self, Body, Links, request};
use crate::kernel::iptables::HostChains;
use crate::kernel::{Chains, Observation};
use crate::model::entry::{Entry, KernelState, LinkName};
use crate::model::prefix::Family;
use crate::plan::scope::Scope;

impl NetlinkKernel {
    pub(super) async fn read_state(
        &mut self,
        scope: &Scope,
        known: &KernelState,
    ) -> io::Result<KernelState> {
        let links = self.read_links().await?;
        let links = links.iter().filter_map(|body| entry(body, &self.links, scope));
        let settings = self.settings.read_all(scope);
        let mut entries: Vec<_> = links.chain(settings).map(|entry| known.sharing(entry)).collect();
        let rules = self.read_tables(scope).into_iter().chain(chains(scope).await);
        entries.extend(rules.map(|entry| known.sharing(entry)));
        let tunnels: Vec<u32> = self.indices(scope).collect();
        for request in self.requests_for(scope) {
            let links = &self.links;
            let read = |frame: &Frame<'_>| {
                codec::may_concern(frame, &scope.networks, &tunnels)
                    .then(|| codec::parse(frame))
                    .flatten()
                    .and_then(|body| entry(&body, links, scope))
                    .map(|entry| known.sharing(entry))
            };
            entries.extend(self.requests.list(&request, read).await?.unwrap_or_default());
        }
        // Of several entries at one key, the first is the one in force.
        Ok(entries.into_iter().rev().collect())
    }

    /// With their elements.
    fn read_tables(&mut self, scope: &Scope) -> Vec<Entry> {
        let mut entries = Vec::new();
        let tables: Vec<_> =
            scope.tables.iter().filter_map(|name| self.tables.read(name)).collect();
        for table in tables {
            entries.extend(self.tables.renewal(&table));
            entries.extend(self.tables.elements(&table));
            entries.push(Entry::Table(table));
        }
        entries
    }

    /// Of the tunnel devices that exist.
    pub(super) fn indices(&self, scope: &Scope) -> impl Iterator<Item = u32> {
        scope.tunnels.iter().filter_map(|tunnel| self.links.index(tunnel).ok())
    }

    fn requests_for(&self, scope: &Scope) -> Vec<Message> {
        let on_tunnels = self.indices(scope).flat_map(|index| {
            [request::addresses_of(index), request::fdb_of(index), request::neighbours_of(index)]
        });
        let families: BTreeSet<Family> = scope.networks.iter().map(|n| n.family()).collect();
        let routes = families.into_iter().map(request::routes);
        let loopback = self.links.index(&LinkName::loopback()).ok().map(request::addresses_of);
        let others = loopback.into_iter().chain([request::nexthops()]);
        on_tunnels.chain(others).chain(routes).collect()
    }
}

async fn chains(scope: &Scope) -> impl Iterator<Item = Entry> + use<> {
    let reading = HostChains.read(scope.chains.clone(), None).await;
    reading.found.into_iter().map(Entry::Chain)
}

/// What `body` says that the kernel holds, if it is of any interest.
fn entry(body: &Body, links: &Links, scope: &Scope) -> Option<Entry> {
    match codec::decode(body, links)? {
        Observation::Holds(entry) => Some(entry).filter(|entry| scope.covers(entry)),
        Observation::Lost(_)
        | Observation::LinkChanged(_)
        | Observation::TableChanged(_)
        | Observation::ChainChanged(_)
        | Observation::Overrun
        | Observation::Unheard => None,
    }
}
