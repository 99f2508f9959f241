//! The kernel of this host, over netlink.

mod apply;
mod dump;
mod facts;
mod observe;
mod remedy;

#[doc(hidden)]
pub use observe::read_datagram;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;

use tweed_netlink::{AsyncSocket, Monitor, Protocol};

use super::codec::{self, Body, Links, request};
use super::iptables::HostChains;
use super::nftables::Tables;
use super::settings::LinkSettings;
use super::{Kernel, Observation, Refused};
use crate::model::entry::KernelState;
use crate::model::node::Facts;
use crate::plan::diff::Op;
use crate::plan::scope::Scope;

pub(crate) use facts::service;

/// Room for the changes of a few thousand peers, in bytes.
const BACKLOG: usize = 8 << 20;

/// To hear the kernel repeat more than so many changes of ours costs more than to read afterwards
/// what it holds, and the kernel the time that it takes to tell them.
const TOO_MANY_TO_HEAR: usize = 4096;

pub struct NetlinkKernel {
    requests: AsyncSocket,
    tables: Tables,
    settings: LinkSettings,
    /// None while we do not listen.
    monitor: Option<Monitor>,
    /// None where nftables cannot be listened to, either: then an audit has to do.
    table_monitor: Option<Monitor>,
    backlog: usize,
    links: Links,
    /// Of the latest dump: what does not concern it is not told.
    scope: Scope,
    /// Whether the kernel would not make nexthop objects for us.
    lacks_nexthops: bool,
    /// Told by the kernel, not yet by us.
    observed: VecDeque<Observation>,
}

impl NetlinkKernel {
    /// Listens from now on: no change between the first dump and the first observation is missed.
    ///
    /// Must be called within a tokio runtime.
    pub fn open() -> io::Result<Self> {
        Self::with_backlog(BACKLOG)
    }

    /// `backlog`: so many bytes of changes may wait before some are lost.
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
        kernel.listen_anew()?;
        Ok(kernel)
    }

    /// Whatever the kernel has told so far and we have not heard is forgotten.
    fn listen_anew(&mut self) -> io::Result<()> {
        self.monitor = Some(Monitor::of_routing(self.backlog)?);
        self.table_monitor = Monitor::of_tables(self.backlog).ok();
        Ok(())
    }

    fn stop_listening(&mut self) {
        self.monitor = None;
        self.table_monitor = None;
    }

    /// Lists the links and learns their names.
    async fn read_links(&mut self) -> io::Result<Vec<Body>> {
        let listed = self.requests.list(&request::links(), codec::parse).await?.unwrap_or_default();
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
        let listing = self.list(scope, known).await?;
        self.state_of(listing, scope, known).await
    }

    async fn apply(&mut self, ops: &[Op]) -> io::Result<Vec<Refused>> {
        if ops.len() > TOO_MANY_TO_HEAR {
            self.stop_listening();
        }
        self.carry_out(ops).await
    }

    async fn observe(&mut self) -> io::Result<Observation> {
        self.next_observation().await
    }

    async fn facts(&mut self, reach: Option<IpAddr>) -> io::Result<Facts> {
        let listing = self.list(&Scope::default(), &KernelState::default()).await?;
        self.facts_of(&listing, reach).await
    }

    async fn read(
        &mut self,
        reach: Option<IpAddr>,
        scope: &Scope,
        known: &KernelState,
    ) -> io::Result<(Facts, KernelState)> {
        self.scope = scope.clone();
        let listing = self.list(scope, known).await?;
        Ok((self.facts_of(&listing, reach).await?, self.state_of(listing, scope, known).await?))
    }
}
