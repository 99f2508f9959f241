//! Accesses the kernel of this host over netlink.

mod apply;
mod dump;
mod observe;
mod remedy;

#[doc(hidden)]
pub use observe::read_datagram;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;

use tweed_netlink::rtnl::{link, route};
use tweed_netlink::{AsyncSocket, Monitor, Protocol};

use super::codec::{self, Body, Links};
use super::iptables::HostChains;
use super::nftables::Tables;
use super::settings::LinkSettings;
use super::{Kernel, Observation, Refused};
use crate::model::entry::KernelState;
use crate::model::node::{Facts, Interface, RouteLookup};
use crate::plan::diff::Op;
use crate::plan::scope::Scope;

/// The size of the receive buffer, in bytes. Holds the changes of a few thousand peers.
const BACKLOG: usize = 8 << 20;

/// If tweed makes more changes than this at once, a dump costs less than receiving the
/// notifications of its own changes, for tweed and for the kernel.
const MOST_OBSERVED_OPS: usize = 4096;

pub struct NetlinkKernel {
    requests: AsyncSocket,
    tables: Tables,
    settings: LinkSettings,
    /// None while notifications are paused.
    monitor: Option<Monitor>,
    /// None if nftables notifications are unavailable: then only audits find changes.
    table_monitor: Option<Monitor>,
    backlog: usize,
    links: Links,
    /// The scope of the latest dump. Notifications outside it are dropped.
    scope: Scope,
    /// Whether the kernel refused to create nexthop objects for tweed.
    lacks_nexthops: bool,
    /// Notifications received and not yet returned.
    observed: VecDeque<Observation>,
}

impl NetlinkKernel {
    /// Subscribes to notifications first, so that no change after the first dump is missed.
    ///
    /// Must be called within a tokio runtime.
    pub fn open() -> io::Result<Self> {
        Self::with_backlog(BACKLOG)
    }

    /// `backlog`: the size of the receive buffer, in bytes. Further notifications are lost.
    pub fn with_backlog(backlog: usize) -> io::Result<Self> {
        let mut kernel = Self {
            requests: AsyncSocket::open(Protocol::Route)?,
            tables: Tables::default(),
            settings: LinkSettings::default(),
            monitor: None,
            table_monitor: None,
            backlog,
            links: Links::default(),
            scope: Scope::default(),
            lacks_nexthops: false,
            observed: VecDeque::new(),
        };
        kernel.reopen_monitors()?;
        Ok(kernel)
    }

    /// Opens new sockets; unread notifications of the old ones are dropped.
    fn reopen_monitors(&mut self) -> io::Result<()> {
        self.monitor = Some(Monitor::of_routing(self.backlog)?);
        self.table_monitor = Monitor::of_tables(self.backlog).ok();
        Ok(())
    }

    /// Lists the links and records their names.
    async fn read_links(&mut self) -> io::Result<Vec<Body>> {
        let listed = self.requests.list(&link::list(), codec::parse).await?.unwrap_or_default();
        self.links = listed.iter().filter_map(codec::listed_link).collect();
        Ok(listed)
    }
}

impl Kernel for NetlinkKernel {
    type Chains = HostChains;

    fn chains(&self) -> HostChains {
        HostChains
    }

    async fn dump(&mut self, scope: &Scope, known: &KernelState) -> io::Result<KernelState> {
        self.scope = scope.clone();
        let (_, entries) = self.list(scope, known).await?;
        self.state_of(entries, scope, known).await
    }

    async fn apply(&mut self, ops: &[Op]) -> io::Result<Vec<Refused>> {
        if ops.len() > MOST_OBSERVED_OPS {
            (self.monitor, self.table_monitor) = (None, None);
        }
        self.carry_out(ops).await
    }

    async fn observe(&mut self) -> io::Result<Observation> {
        self.next_observation().await
    }

    async fn facts(&mut self, reach: Option<IpAddr>) -> io::Result<Facts> {
        let (listed, _) = self.list(&Scope::default(), &KernelState::default()).await?;
        self.facts_of(listed, reach).await
    }

    async fn read(
        &mut self,
        reach: Option<IpAddr>,
        scope: &Scope,
        known: &KernelState,
    ) -> io::Result<(Facts, KernelState)> {
        self.scope = scope.clone();
        let (listed, entries) = self.list(scope, known).await?;
        Ok((self.facts_of(listed, reach).await?, self.state_of(entries, scope, known).await?))
    }

    async fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        let mut interfaces: Vec<Interface> = self.links.interfaces().collect();
        self.read_addresses(&mut interfaces).await?;
        Ok(interfaces)
    }

    async fn look_up(&mut self, address: IpAddr) -> io::Result<Option<RouteLookup>> {
        let answer = self.requests.get(route::lookup(address), codec::parse).await?;
        Ok(answer.ok().flatten().and_then(|route| codec::reach(&route, &self.links)))
    }
}
