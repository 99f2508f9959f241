//! The setup of a storm: etcd in its own namespace, and the threads of the simulated daemons.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use tokio::runtime::{Builder, Runtime};
use tweed::store::Leases;
use tweed::store::claim::Previous;
use tweed::store::etcd::{EtcdOptions, EtcdSubnetManager, LeaseTimes};

use super::Settings;
use super::proxy::Proxies;
use super::view::View;
use crate::Lab;
use crate::stores::etcd::Etcd;

/// The default of `tweedd`.
pub(super) const LEASE: LeaseTimes =
    LeaseTimes { ttl: Duration::from_secs(86_400), renew_margin: Duration::from_secs(3600) };

pub(super) const PREFIX: &str = "/coreos.com/network";

/// With Mixed, nodes that change backend stay peers of the real daemons. Simulated nodes answer no
/// probes.
const MIXED: &str = r#""Backend":{"Type":"vxlan"},"Mixed":true,"Probe":{"Enabled":false}"#;

/// Dropped in the order of the fields.
pub(super) struct Scene {
    pub(super) runtime: Runtime,
    pub(super) proxies: Proxies,
    pub(super) etcd: Etcd,
    pub(super) lab: Lab,
}

impl Scene {
    pub(super) fn build(settings: &Settings) -> Result<Self> {
        let lab = Lab::new(settings.binaries.clone())?;
        let etcd = lab.etcd()?;
        let network = &settings.network;
        let config = format!(r#"{{"Network":"{network}","SubnetLen":24,{MIXED}}}"#);
        etcd.put(&format!("{PREFIX}/config"), &config)?;
        let proxies = Proxies::start(&lab, &etcd, settings.proxies)?;
        let member = etcd.members().first().context("the cluster has no member")?;
        // The threads start in etcd's namespace, so their sockets are in it too.
        let runtime =
            member.namespace().within(|| Builder::new_multi_thread().enable_all().build())??;
        Ok(Self { runtime, proxies, etcd, lab })
    }

    /// Of etcd itself.
    pub(super) fn options(&self) -> EtcdOptions {
        let (endpoints, prefix) = (self.etcd.endpoints(), PREFIX.to_owned());
        EtcdOptions { endpoints, prefix, ..EtcdOptions::default() }
    }

    /// What simulated daemons use in turn: one proxy each, or etcd itself.
    pub(super) fn servers(&self) -> Vec<EtcdOptions> {
        let through = |proxy| EtcdOptions { endpoints: vec![proxy], ..self.options() };
        match self.proxies.endpoints() {
            none if none.is_empty() => vec![self.options()],
            proxies => proxies.into_iter().map(through).collect(),
        }
    }

    /// The content of etcd, read by a separate client.
    pub(super) fn truth(&self) -> Result<View> {
        let manager = EtcdSubnetManager::new(self.options(), Previous::default(), LEASE);
        let first = self.runtime.spawn(async move { manager.watch().next().await });
        let update = self.runtime.block_on(first)?.context("the watch ended")?;
        let mut view = View::default();
        view.apply(&update);
        Ok(view)
    }

    /// The revision of the last change.
    pub(super) fn revision(&self) -> Result<i64> {
        self.etcd.revision()
    }
}
