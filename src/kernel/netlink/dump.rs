//! Reading what the kernel holds.

use std::collections::BTreeSet;
use std::io;

use super::NetlinkKernel;
use crate::kernel::codec::{self, Body, Message, request};
use crate::kernel::state::{Entry, KernelState};
use crate::kernel::{Observation, Scope, sysctl};
use crate::prefix::Family;

impl NetlinkKernel {
    pub(super) async fn read_state(&mut self, scope: &Scope) -> io::Result<KernelState> {
        let mut state = KernelState::default();
        let links = self.read_links().await?;
        self.keep(links, scope, &mut state);
        state.extend(settings(scope));
        for request in self.requests_for(scope) {
            let messages = self.requests.dump(request).await?;
            self.keep(messages, scope, &mut state);
        }
        Ok(state)
    }

    fn requests_for(&self, scope: &Scope) -> Vec<Body> {
        let tunnels = scope.tunnels.iter().filter_map(|tunnel| self.links.index(tunnel).ok());
        let on_tunnels = tunnels.flat_map(|index| {
            [request::addresses_of(index), request::fdb_of(index), request::neighbours_of(index)]
        });
        let families: BTreeSet<Family> = scope.networks.iter().map(|n| n.family()).collect();
        let routes = families.into_iter().map(request::routes);
        on_tunnels.chain([request::nexthops()]).chain(routes).collect()
    }

    /// Of several entries at one key, the first is the one in force.
    fn keep(&self, messages: Vec<Message>, scope: &Scope, state: &mut KernelState) {
        for message in messages {
            if let Some(Observation::Holds(entry)) = codec::decode(&message, &self.links)
                && scope.covers(&entry)
                && state.get(&entry.key()).is_none()
            {
                state.insert(entry);
            }
        }
    }
}

fn settings(scope: &Scope) -> impl Iterator<Item = Entry> {
    let filters = scope.tunnels.iter().chain(&scope.underlay).filter_map(sysctl::read_reverse_path);
    let accepts = scope.tunnels.iter().filter_map(sysctl::read_accept_ra);
    filters.map(Entry::ReversePath).chain(accepts.map(Entry::AcceptRa))
}
