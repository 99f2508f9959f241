//! Our lease: published on our own node, for the subnets that the cluster assigned to it.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use tokio::time::sleep;
use tracing::warn;
use tweed_client::failover::{Outcomes, Refusal};
use tweed_client::watch::{Spread, updates};

use super::node::{NODE_GRANT, NodeObject, Reader};
use super::own::{OurNode, OwnNode, PublishedLease};
use super::watch::KubeSource;
use super::{KubeSubnetManager, request};
use crate::model::config::NetworkConfig;
use crate::model::lease::{Lease, LeaseAttributes, LeaseId, LeaseUpdate};
use crate::model::prefix::{Family, Prefix};
use crate::random::random;
use crate::store::hold::{pause_after, until_lost};
use crate::store::{Documents, Error, LeaseTerm, Leases, Lost};

/// The interval, roughly, at which a node without a subnet is read again.
const RETRY: Duration = Duration::from_secs(3);

impl Leases for KubeSubnetManager {
    async fn acquire(
        &self,
        config: &NetworkConfig,
        attributes: &LeaseAttributes,
    ) -> Result<Lease, Error> {
        let lost = self.ours.borrow().loss();
        pause_after(lost, &self.losses, self.report()).await;
        let name = self.node_name().await;
        loop {
            let node = self.own_node(&name).await;
            let subnets = match node.subnets(&name, config)? {
                Ok(subnets) => subnets,
                Err(why) => {
                    self.note_lack(&node, &format!("node {name}: {why}"));
                    pause().await;
                    continue;
                }
            };
            let Some(node) = self.write(&name, node, attributes).await else { continue };
            self.client.report.has_subnet();
            let seen = node.annotations.published(attributes);
            let lease = Lease {
                id: LeaseId::new(name.as_str()),
                endpoints: seen.published_for(subnets.iter().copied()),
                created: node.created,
                grant: NODE_GRANT,
            };
            let published = PublishedLease { attributes: attributes.clone(), subnets };
            self.ours.send_modify(|ours| {
                ours.families = Some(families(config));
                ours.published = Some(published);
            });
            self.client.report.leased(LeaseTerm::Unlimited);
            return Ok(lease);
        }
    }

    /// The watch on all nodes detects a loss.
    async fn hold(&self, _lease: &Lease) -> Lost {
        until_lost(&self.ours, OurNode::loss).await
    }

    fn prepare_watch(&self, config: &NetworkConfig) -> bool {
        self.ours.send_if_modified(|ours| {
            ours.families = Some(families(config));
            false
        });
        true
    }

    fn watch(self: &Arc<Self>) -> BoxStream<'static, LeaseUpdate> {
        updates(KubeSource::new(Arc::clone(self)), Spread::ByRecords)
    }
}

impl KubeSubnetManager {
    /// The present version of our node; waits until it exists.
    pub(super) async fn own_node(&self, name: &str) -> OwnNode {
        loop {
            let body = self.client.request(&request::node(name)).await;
            match body.map(|body| self.see_own(&body)) {
                Ok(Some(node)) => return node,
                Err(Refusal::Absent) => {
                    self.client.report.lacks_subnet(&format!("there is no node {name} yet"));
                }
                Ok(None) => self.client.report.refuses(&format!("node {name} cannot be read")),
                Err(refusal) => {
                    self.client.report.refuses(&format!("node {name} cannot be read: {refusal}"));
                }
            }
            pause().await;
        }
    }

    /// Writes those `attributes` that the node does not publish yet; none if it must be read again.
    async fn write(
        &self,
        name: &str,
        node: OwnNode,
        attributes: &LeaseAttributes,
    ) -> Option<OwnNode> {
        for fault in node.annotations.faults() {
            warn!(node = name, %fault, "ignored an invalid annotation");
        }
        let missing = node.annotations.missing(attributes);
        if missing.is_empty() {
            return Some(node);
        }
        let why = match self.client.request(&request::annotate(name, &missing)).await {
            Ok(body) => match self.see_own(&body) {
                Some(written) => return Some(written),
                None => "the answer is no Node".to_owned(),
            },
            Err(refusal) => refusal.to_string(),
        };
        self.client.report.refuses(&format!("node {name} cannot be written: {why}"));
        pause().await;
        None
    }

    /// Notes the version of our node in an answer.
    fn see_own(&self, body: &[u8]) -> Option<OwnNode> {
        let node = self.decode(body)?;
        self.ours.send_if_modified(|ours| ours.set_seen(Some(node.clone())));
        Some(node)
    }

    pub(super) fn reader(&self) -> Reader {
        let families = self.ours.borrow().families.clone();
        Reader::new(self.options.annotation_prefix.clone(), families)
    }

    /// None if `body` is no Node, such as the answer of a proxy: it would be a Node without a subnet.
    pub(super) fn decode(&self, body: &[u8]) -> Option<OwnNode> {
        let node = serde_json::from_slice::<NodeObject<'_>>(body).ok()?;
        (!node.metadata.name.is_empty()).then(|| OwnNode::of(&node, &self.reader()))
    }

    /// A second address family that the controller manager does not assign yet takes no subnet away.
    fn note_lack(&self, node: &OwnNode, why: &str) {
        if node.has_subnets(&self.previous) {
            self.client.report.lacks_another_subnet(why);
        } else {
            self.client.report.lacks_subnet(why);
        }
    }
}

pub(super) async fn pause() {
    sleep(RETRY.mul_f64(0.5 + random::<f64>())).await;
}

fn families(config: &NetworkConfig) -> Vec<Family> {
    config.networks().map(Prefix::family).collect()
}
