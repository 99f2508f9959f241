//! Our lease: published on our own node, for the subnets that the cluster assigned to it.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use tokio::time::sleep;
use tracing::warn;

use super::annotations::Annotations;
use super::node::{NODE_GRANT, NodeObject, Reader};
use super::own::{OwnNode, Published, Subnets};
use super::watch::KubeSource;
use super::{KubeSubnetManager, Shared, request};
use crate::model::config::NetworkConfig;
use crate::model::lease::{Lease, LeaseAttributes, LeaseId, LeaseUpdate};
use crate::store::failover::Refusal;
use crate::store::hold::{pause_after, until_lost};
use crate::store::watch::updates;
use crate::store::{Error, Leases, Lost};

/// The interval, roughly, at which a node without a subnet is read again.
const RETRY: Duration = Duration::from_secs(3);

impl Leases for KubeSubnetManager {
    async fn acquire(
        &self,
        config: &NetworkConfig,
        attributes: &LeaseAttributes,
    ) -> Result<Lease, Error> {
        let shared = &self.shared;
        let prefix = &shared.options.annotation_prefix;
        let lost = shared.ours.borrow().loss(prefix);
        pause_after(lost, &shared.losses).await;
        let name = shared.node_name().await;
        loop {
            let node = shared.own_node(&name).await;
            let subnets = match node.subnets(config) {
                Subnets::Ready(subnets) => subnets,
                Subnets::Missing(why) => {
                    shared.wait_for_subnet(&format!("node {name}: {why}")).await;
                    continue;
                }
                Subnets::Outside { subnet, network } => {
                    return Err(Error::OutsideNetwork { node: name, subnet, network });
                }
            };
            let Some(node) = shared.write(&name, node, attributes).await else { continue };
            shared.client.report.has_subnet();
            let seen = prefix.published(attributes, &node.annotations);
            let lease = Lease {
                id: LeaseId::new(name.as_str()),
                endpoints: seen.published_for(subnets.iter().copied()),
                created: node.created,
                grant: NODE_GRANT,
            };
            let published = Published { attributes: attributes.clone(), subnets };
            shared.ours.send_modify(|ours| ours.published = Some(published));
            return Ok(lease);
        }
    }

    /// The watch on all nodes detects a loss.
    async fn hold(&self, _lease: &Lease) -> Lost {
        let prefix = &self.shared.options.annotation_prefix;
        until_lost(&self.shared.ours, |ours| ours.loss(prefix)).await
    }

    fn watch(&self) -> BoxStream<'static, LeaseUpdate> {
        updates(KubeSource::new(Arc::clone(&self.shared)))
    }
}

impl Shared {
    /// The present version of our node; waits until it exists.
    pub(super) async fn own_node(&self, name: &str) -> OwnNode {
        loop {
            match self.client.request(&request::node(name)).await {
                Ok(body) => {
                    if let Some(node) = self.decode(&body) {
                        self.ours.send_if_modified(|ours| ours.set_seen(Some(node.clone())));
                        return node;
                    }
                    self.wait_for_subnet(&format!("node {name} cannot be read")).await;
                }
                Err(_) => self.wait_for_subnet(&format!("there is no node {name} yet")).await,
            }
        }
    }

    /// Writes those `attributes` that the node does not publish yet; none if it must be read again.
    async fn write(
        &self,
        name: &str,
        node: OwnNode,
        attributes: &LeaseAttributes,
    ) -> Option<OwnNode> {
        let prefix = &self.options.annotation_prefix;
        for fault in prefix.faults(&node.annotations) {
            warn!(node = name, %fault, "ignored an invalid annotation");
        }
        let mut missing: Annotations = prefix.wanted(attributes, &node.annotations);
        missing.retain(|key, value| node.annotations.get(key) != Some(value));
        if missing.is_empty() {
            return Some(node);
        }
        match self.client.request(&request::annotate(name, &missing)).await {
            Ok(body) => {
                let node = self.decode(&body)?;
                self.ours.send_if_modified(|ours| ours.set_seen(Some(node.clone())));
                Some(node)
            }
            Err(Refusal::Absent | Refusal::Exists) => None,
            Err(refusal) => {
                self.wait_for_subnet(&format!("node {name} cannot be written: {refusal}")).await;
                None
            }
        }
    }

    pub(super) fn reader(&self) -> Reader {
        let families = self.ours.borrow().families();
        Reader::new(self.options.annotation_prefix.clone(), families)
    }

    pub(super) fn decode(&self, body: &[u8]) -> Option<OwnNode> {
        let node = serde_json::from_slice::<NodeObject<'_>>(body).ok()?;
        Some(OwnNode::of(&node, &self.reader()))
    }

    async fn wait_for_subnet(&self, why: &str) {
        self.client.report.lacks_subnet(why);
        sleep(RETRY.mul_f64(0.5 + rand::random::<f64>())).await;
    }
}
