//! One simulated daemon: it acquires a lease, holds it and observes all others, as a real one does.

use std::future::ready;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::sync::watch;
use tweed::mac::MacAddr;
use tweed::model::config::BackendType;
use tweed::model::config::NetworkConfig;
use tweed::model::lease::{EndpointAttributes, Lease, LeaseAttributes, LeaseUpdate, Vtep};
use tweed::store::claim::Previous;
use tweed::store::etcd::{EtcdOptions, EtcdSubnetManager, LeaseTimes};
use tweed::store::{Documents, Error, Leases};

use super::view::{Digest, View};
use crate::wait::lock;

/// The first of the nodes' addresses, which are consecutive.
const FIRST_IP: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);

/// The observable state of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) lease: Option<Lease>,
    pub(super) digest: Digest,
    /// The time of the last update.
    pub(super) updated: Option<Instant>,
    pub(super) snapshots: u64,
    pub(super) losses: u64,
    /// Why it stopped, which must not happen.
    pub(super) gave_up: Option<String>,
}

/// The instructions to a node.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    pub(super) attributes: watch::Receiver<LeaseAttributes>,
    /// Whether nodes that hold a lease may observe the others'.
    pub(super) follow: watch::Receiver<bool>,
}

pub(super) struct Node {
    manager: Arc<EtcdSubnetManager>,
    orders: Orders,
    seen: Arc<Mutex<Seen>>,
}

/// The attributes that node number `number` publishes.
pub(super) fn attributes(number: usize, backend: BackendType) -> LeaseAttributes {
    let offset = u32::try_from(number).unwrap_or(u32::MAX);
    let public_ip = Ipv4Addr::from_bits(FIRST_IP.to_bits().saturating_add(offset));
    let [a, b, c, d] = public_ip.octets();
    let vtep = Some(Vtep {
        vni: Some(1),
        mac: MacAddr::new([2, 0, a, b, c, d]),
        source: None,
        mixed: false,
    });
    LeaseAttributes {
        backend,
        endpoints: vec![EndpointAttributes { public_ip: public_ip.into(), vtep }],
    }
}

impl Node {
    pub(super) fn new(
        options: EtcdOptions,
        previous: Previous,
        lease: LeaseTimes,
        orders: Orders,
        seen: Arc<Mutex<Seen>>,
    ) -> Self {
        Self { manager: EtcdSubnetManager::new(options, previous, lease), orders, seen }
    }

    /// Runs until it is aborted.
    pub(super) async fn live(self, delay: Duration) {
        tokio::time::sleep(delay).await;
        if let Err(error) = self.work().await {
            lock(&self.seen).gave_up = Some(error.to_string());
        }
        std::future::pending::<()>().await;
    }

    async fn work(&self) -> Result<(), Error> {
        let mut usable = self.manager.watch_config().filter_map(|update| ready(update.config.ok()));
        // A watch never ends.
        let Some(config) = usable.next().await else { return Ok(()) };
        let mut attributes = self.orders.attributes.clone();
        let lease = self.acquire(&config, &mut attributes).await?;
        tokio::select! {
            () = self.follow() => Ok(()),
            kept = self.keep(&config, attributes, lease) => kept,
        }
    }

    async fn keep(
        &self,
        config: &NetworkConfig,
        mut attributes: watch::Receiver<LeaseAttributes>,
        mut lease: Lease,
    ) -> Result<(), Error> {
        loop {
            tokio::select! {
                _ = self.manager.hold(&lease) => lock(&self.seen).losses += 1,
                Ok(()) = attributes.changed() => {}
            }
            lease = self.acquire(config, &mut attributes).await?;
        }
    }

    async fn acquire(
        &self,
        config: &NetworkConfig,
        attributes: &mut watch::Receiver<LeaseAttributes>,
    ) -> Result<Lease, Error> {
        let published = attributes.borrow_and_update().clone();
        let lease = self.manager.acquire(config, &published).await?;
        lock(&self.seen).lease = Some(lease.clone());
        Ok(lease)
    }

    async fn follow(&self) {
        let mut follow = self.orders.follow.clone();
        if follow.wait_for(|follow| *follow).await.is_err() {
            return;
        }
        let mut view = View::default();
        let mut updates = self.manager.watch();
        while let Some(update) = updates.next().await {
            view.apply(&update);
            let mut seen = lock(&self.seen);
            seen.digest = view.digest();
            seen.updated = Some(Instant::now());
            seen.snapshots += u64::from(matches!(update, LeaseUpdate::Snapshot(_)));
        }
    }
}
