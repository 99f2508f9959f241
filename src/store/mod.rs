//! Stores that hand out subnets and report which node holds which: etcd and Kubernetes.

pub mod allocate;
mod backend_data;
pub mod backoff;
pub mod claim;
pub mod etcd;
mod failover;
mod hold;
pub mod kube;
pub mod operator;
mod report;
pub mod watch;

use std::fmt;
use std::future::{Future, pending, ready};
use std::net::IpAddr;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use hyper::Uri;
use tokio::sync::watch as channel;

use self::operator::{Away, Holdings, Swap};
use crate::mac::MacAddr;
use crate::model::config::{ConfigUpdate, NetworkConfig};
use crate::model::lease::{Endpoint, Lease, LeaseAttributes, LeaseUpdate};
use crate::model::prefix::Prefix;
use crate::model::probe_secret::Secret;
use crate::model::report::NodeReport;
use crate::model::status::StoreState;

/// Hands out subnets, and reports which node holds which subnet.
///
/// An unreachable store is no error: it is waited for, with backoff and jitter.
pub trait Leases {
    /// Allocates new subnets of this node, from now on, apart from where its host has addresses. A
    /// store in which others give nodes their subnets has no use for it.
    fn avoid(&self, _occupied: Vec<Prefix>) {}

    /// Takes a lease for this node, the one it held before where possible, and publishes
    /// `attributes` in it. Called again with other attributes, it updates the same lease.
    ///
    /// # Errors
    /// Only what waiting would not fix.
    fn acquire(
        &self,
        config: &NetworkConfig,
        attributes: &LeaseAttributes,
    ) -> impl Future<Output = Result<Lease, Error>>;

    /// Keeps `lease` alive until it is lost: gone from the store, or changed by another writer.
    /// The caller then tries to `acquire` it again.
    fn hold(&self, lease: &Lease) -> impl Future<Output = Lost>;

    /// Every change to any lease, our own included. Never ends: reconnects by itself, and starts
    /// with a snapshot, as it does again after a gap that it cannot bridge.
    fn watch(&self) -> BoxStream<'static, LeaseUpdate>;
}

/// What operators read and write: the config, the leases and the reports of one network.
pub trait ClusterStore {
    /// The name of the config in a sentence.
    fn config_name(&self) -> String;

    /// What to do if the store cannot be used.
    fn hint(&self) -> &'static str;

    fn read(&self) -> impl Future<Output = Result<Holdings, Away>>;

    /// Makes `text` the config, unless it was written after `seen`.
    fn swap(&self, seen: i64, text: &str) -> impl Future<Output = Result<Swap, Away>>;
}

/// What else a store keeps for a network: its config, what each node reports, the probe secret.
///
/// An unreachable store is no error: it is waited for, and `state` reports it.
pub trait Documents {
    /// What the network config is, and every change to it. Never ends: reconnects by itself, and
    /// starts with what is there, or with the reason why that cannot be used.
    fn watch_config(&self) -> BoxStream<'static, ConfigUpdate>;

    /// The network config, once there is one that can be used.
    fn network_config(&self) -> impl Future<Output = NetworkConfig> {
        let mut usable = self.watch_config().filter_map(|update| ready(update.config.ok()));
        async move {
            match usable.next().await {
                Some(config) => config,
                // A watch never ends.
                None => pending().await,
            }
        }
    }

    /// The identity of this node in the store, now and whenever that changes. Never ends, and starts
    /// with what is there.
    fn watch_identity(&self) -> BoxStream<'static, Identity> {
        stream::once(ready(Identity::default())).chain(stream::pending()).boxed()
    }

    /// Publishes `report` next to the lease that this node holds; it is removed with the lease.
    /// Writes nothing if the store holds it already.
    ///
    /// # Errors
    /// Why it is not published, in a sentence; nothing depends on it, and another try may succeed.
    fn publish_report(&self, report: &NodeReport) -> impl Future<Output = Result<(), String>>;

    /// The secret with which the daemons of this network seal their probes. The first node that asks
    /// creates it.
    ///
    /// # Errors
    /// Why it cannot be had, where waiting would not fix that soon, in a sentence.
    fn probe_secret(&self) -> impl Future<Output = Result<Secret, String>>;

    /// Reports to the store, from now on, that packets of this node's pods get through. Never ends.
    fn announce(&self) -> impl Future<Output = ()> {
        pending()
    }

    /// Whether the store can be used, now and whenever that changes.
    fn state(&self) -> channel::Receiver<StoreState>;
}

/// The identity of a node in a store that knows nodes apart from their leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its name there.
    pub name: Option<String>,
    /// Where peers send to, in precedence over the flags; at most one per family.
    pub public_ips: Vec<IpAddr>,
}

/// Whether secrets may be sent to the server `url`: they are encrypted, or stay on this host.
pub fn is_protected(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback = host.parse().map_or(host == "localhost", |ip: IpAddr| ip.is_loopback());
    url.scheme_str() == Some("https") || is_loopback
}

/// Why a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// For the log.
    pub reason: String,
    /// The other node that publishes our public IP in our lease, if that is why.
    pub rival: Option<Rival>,
}

impl Lost {
    pub const fn because(reason: String) -> Self {
        Self { reason, rival: None }
    }
}

/// A node that has the public IP of this one, and what else it publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival {
    pub public_ip: IpAddr,
    pub mac: Option<MacAddr>,
}

impl Rival {
    pub fn of(endpoint: &Endpoint) -> Self {
        Self { public_ip: endpoint.public_ip, mac: endpoint.vtep.map(|vtep| vtep.mac) }
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "another node announces our public IP {}", self.public_ip)?;
        self.mac.map_or(Ok(()), |mac| write!(f, " (MAC {mac})"))
    }
}

/// Why a lease cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Pods of this node may use the subnet: to renumber them is for people to decide.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_protected_by_tls_and_on_this_host() {
        let protected = ["https://10.0.0.1:6443", "http://127.0.0.1:8001", "http://[::1]:8001"];
        for url in protected.into_iter().chain(["http://localhost:8001"]) {
            assert!(is_protected(&url.parse().unwrap()), "{url}");
        }
        for url in ["http://10.0.0.1:6443", "http://[fd00::1]", "http://localhost.example.org"] {
            assert!(!is_protected(&url.parse().unwrap()), "{url}");
        }
    }
}
