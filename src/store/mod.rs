//! The stores of leases: etcd and Kubernetes.

pub mod allocate;
mod backend_data;
pub mod claim;
pub mod etcd;
mod hold;
pub mod kube;
pub mod operator;
mod report;

pub use report::Report;

use std::fmt;
use std::future::{Future, pending, ready};
use std::net::IpAddr;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::watch as channel;
use tokio::time::Instant;
use tweed_client::watch::Listed;

use self::operator::{StoreContents, Swap, Unavailable};
use crate::mac::MacAddr;
use crate::model::config::{ConfigUpdate, NetworkConfig};
use crate::model::event::EventDigest;
use crate::model::lease::{Endpoint, Lease, LeaseAttributes, LeaseUpdate, Record};
use crate::model::prefix::Prefix;
use crate::model::probe_secret::Secret;
use crate::model::report::NodeReport;
use crate::model::status::StoreState;

/// Allocates subnets, and reports which node holds which subnet.
///
/// An unreachable store is no error: requests are retried, with backoff and jitter.
pub trait Leases {
    /// Excludes `occupied`, the addresses of this host, from new subnets of this node. Without
    /// effect in a store that assigns subnets to nodes itself.
    fn avoid(&self, _occupied: Vec<Prefix>) {}

    /// Acquires a lease for this node, its previous one if possible, and publishes `attributes` in
    /// it. Another call with other attributes updates the same lease.
    ///
    /// # Errors
    /// Only errors that waiting would not fix.
    fn acquire(
        &self,
        config: &NetworkConfig,
        attributes: &LeaseAttributes,
    ) -> impl Future<Output = Result<Lease, Error>>;

    /// Renews `lease` until it is lost: removed from the store, or changed by another writer. The
    /// caller should then `acquire` it again.
    fn hold(&self, lease: &Lease) -> impl Future<Output = Lost>;

    /// Prepares to watch all leases before our own is acquired under `config`. Returns whether that is
    /// possible: in a store whose first read of all leases acquires ours, it would be a second read.
    fn prepare_watch(&self, _config: &NetworkConfig) -> bool {
        false
    }

    /// All changes to all leases, including our own. Never ends, and reconnects by itself. Sends a
    /// snapshot first, and again after each gap in the history.
    fn watch(self: &Arc<Self>) -> BoxStream<'static, LeaseUpdate>;

    /// Gives the lease back, if this node holds one with a term. Returns whether it is given back.
    fn release(&self) -> impl Future<Output = bool> {
        ready(false)
    }
}

/// What operators read and write: the config, the leases and the reports of one network.
pub trait ClusterStore {
    /// The name of the config in a sentence.
    fn config_name(&self) -> String;

    /// What to do if the store cannot be used.
    fn hint(&self) -> &'static str;

    /// The config, all leases, and the reports of their nodes.
    fn read(&self) -> impl Future<Output = Result<StoreContents, Unavailable>>;

    /// Writes `text` as the config, unless the config was written after `seen`.
    fn swap(&self, seen: i64, text: &str) -> impl Future<Output = Result<Swap, Unavailable>>;
}

/// The other data of a network in a store: config, node reports, probe secret.
///
/// An unreachable store is no error: requests are retried, and `state` reports it.
pub trait Documents {
    /// The network config and its changes. Never ends, and reconnects by itself. Sends the present
    /// config first, or the reason why it cannot be used.
    fn watch_config(self: &Arc<Self>) -> BoxStream<'static, ConfigUpdate>;

    /// The identity of this node in the store, and its changes. Never ends.
    fn watch_identity(self: &Arc<Self>) -> BoxStream<'static, Identity> {
        stream::once(ready(Identity::default())).chain(stream::pending()).boxed()
    }

    /// Publishes `report` next to the lease of this node; it is removed with the lease. Writes
    /// nothing if the store has it already.
    ///
    /// # Errors
    /// Nothing depends on the report, and a retry may succeed.
    fn publish_report(&self, report: &NodeReport) -> impl Future<Output = Result<(), Unpublished>>;

    /// Records that the published `report` is still true at this time.
    ///
    /// # Errors
    /// The report must be published again.
    fn refresh_report(&self, report: &NodeReport) -> impl Future<Output = Result<(), Unpublished>>;

    /// Adds changes of this node to the events that the store keeps of it, if it keeps any. Sent
    /// once; nothing depends on it.
    ///
    /// # Errors
    /// A sentence with the reason.
    fn publish_event(&self, _event: &EventDigest) -> impl Future<Output = Result<(), String>> {
        ready(Ok(()))
    }

    /// The secret with which the daemons of this network seal their probes. The first node that
    /// reads it creates it.
    ///
    /// # Errors
    /// A sentence with the reason, if an immediate retry would not help.
    fn probe_secret(&self) -> impl Future<Output = Result<Secret, String>>;

    /// Reports to the store, from now on, that the network of this node's pods works, each time once
    /// `until_ready` has ended. Never ends.
    fn announce(&self, _until_ready: impl AsyncFn()) -> impl Future<Output = ()> {
        pending()
    }

    /// What becomes of the requests to the store, and of our lease.
    fn report(&self) -> &Report;

    /// Whether the store can be used.
    fn state(&self) -> channel::Receiver<StoreState> {
        self.report().state()
    }
}

/// Why the report of this node was not written, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unpublished {
    /// The store rejects it, and will do so until an operator or another report changes that.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Failed(String),
}

/// How long a lease is held without another renewal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseTerm {
    /// No lease is held.
    #[default]
    None,
    Until(Instant),
    /// A reservation, or a subnet that Kubernetes assigned.
    Unlimited,
}

/// The identity of a node in a store that knows nodes apart from their leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its name in the store.
    pub name: Option<String>,
    /// The public IPs for peers, which override the flags; at most one per family.
    pub public_ips: Vec<IpAddr>,
}

fn snapshot(records: Vec<Record>) -> Listed<LeaseUpdate> {
    Listed { size: records.len(), snapshot: LeaseUpdate::Snapshot(records) }
}

/// Why a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// For the log.
    pub reason: String,
    /// The other node that published our public IP in our lease, if that is the reason.
    pub rival: Option<AddressConflict>,
}

impl Lost {
    pub const fn because(reason: String) -> Self {
        Self { reason, rival: None }
    }
}

/// Another node with our public IP, and what else it publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressConflict {
    pub public_ip: IpAddr,
    pub mac: Option<MacAddr>,
}

impl AddressConflict {
    pub fn of(endpoint: &Endpoint) -> Self {
        Self { public_ip: endpoint.public_ip, mac: endpoint.vtep.map(|vtep| vtep.mac) }
    }
}

impl fmt::Display for AddressConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "another node announces our public IP {}", self.public_ip)?;
        self.mac.map_or(Ok(()), |mac| write!(f, " (MAC {mac})"))
    }
}

/// Why a lease cannot be acquired.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Pods of this node may use the subnet, and only an operator may decide to renumber them.
    #[error(
        "subnet {subnet} of this node is held by {holder}: stop one of the two nodes, \
         or remove {subnet_file} to take a new subnet"
    )]
    Taken { subnet: Prefix, holder: String, subnet_file: String },
    #[error(
        "no subnet is free in {pool}: all {count} are leased; \
         widen the network or delete the leases of nodes that are gone"
    )]
    Exhausted { pool: Prefix, count: u128 },
    #[error(
        "podCIDR {subnet} of node {node} is not inside {network}: \
         make the network config agree with --cluster-cidr of the controller manager"
    )]
    OutsideNetwork { node: String, subnet: Prefix, network: Prefix },
}
