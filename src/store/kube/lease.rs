//! Our lease: published on our own node, in the subnets that the cluster gave it, until it is lost.

use std::future::pending;
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use tokio::time::sleep;
use tracing::warn;

use super::annotations::Annotations;
use super::answer::Refusal;
use super::client::Failure;
use super::node::{NodeObject, Reader, TERM};
use super::own::{OwnNode, Published, Subnets};
use super::{Condition, Shared, request};
use crate::model::config::NetworkConfig;
use crate::model::lease::{Lease, LeaseAttributes, LeaseId};
use crate::store::backoff::Backoff;
use crate::store::hold::{change, pause_after, until_lost};
use crate::store::{Error, Lost};

/// Between two looks at a node that has no subnet yet, roughly.
const LOOK_AGAIN: Duration = Duration::from_secs(3);

impl Shared {
    pub(super) async fn acquire(
        &self,
        config: &NetworkConfig,
        attributes: &LeaseAttributes,
    ) -> Result<Lease, Error> {
        self.pause_after_loss().await;
        let name = self.node_name().await;
        loop {
            let node = self.own_node(&name).await;
            let subnets = match node.subnets(config) {
                Subnets::Ready(subnets) => subnets,
                Subnets::Missing(why) => {
                    self.wait_for_subnet(&format!("node {name}: {why}")).await;
                    continue;
                }
                Subnets::Outside { subnet, network } => {
                    return Err(Error::OutsideNetwork { node: name, subnet, network });
                }
            };
            let Some(node) = self.write(&name, node, attributes).await else { continue };
            self.client.report.has_subnet();
            let prefix = &self.options.annotation_prefix;
            let seen = prefix.published(attributes, &node.annotations);
            let lease = Lease {
                id: LeaseId::new(name.as_str()),
                endpoints: seen.published_for(subnets.iter().copied()),
                created: node.created,
                grant: TERM,
            };
            let published = Published { attributes: attributes.clone(), subnets };
            self.ours.send_modify(|ours| ours.publish(published));
            return Ok(lease);
        }
    }

    /// Our node as it is now, once there is one.
    pub(super) async fn own_node(&self, name: &str) -> OwnNode {
        loop {
            match self.client.request(&request::node(name)).await {
                Ok(body) => {
                    if let Some(node) = self.understand(&body) {
                        self.ours.send_if_modified(|ours| ours.trust(Some(node.clone())));
                        return node;
                    }
                    self.wait_for_subnet(&format!("node {name} cannot be read")).await;
                }
                Err(_) => self.wait_for_subnet(&format!("there is no node {name} yet")).await,
            }
        }
    }

    /// Writes what of `attributes` the node does not say already; none if it is to be read anew.
    async fn write(
        &self,
        name: &str,
        node: OwnNode,
        attributes: &LeaseAttributes,
    ) -> Option<OwnNode> {
        let prefix = &self.options.annotation_prefix;
        for fault in prefix.faults(&node.annotations) {
            warn!(node = name, %fault, "what was ordered cannot be followed");
        }
        let mut missing: Annotations = prefix.wanted(attributes, &node.annotations);
        missing.retain(|key, value| node.annotations.get(key) != Some(value));
        if missing.is_empty() {
            return Some(node);
        }
        match self.client.request(&request::annotate(name, &missing)).await {
            Ok(body) => {
                let node = self.understand(&body)?;
                self.ours.send_if_modified(|ours| ours.trust(Some(node.clone())));
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

    pub(super) fn understand(&self, body: &[u8]) -> Option<OwnNode> {
        let node = serde_json::from_slice::<NodeObject<'_>>(body).ok()?;
        Some(OwnNode::of(&node, &self.reader()))
    }

    async fn wait_for_subnet(&self, why: &str) {
        self.client.report.lacks_subnet(why);
        sleep(LOOK_AGAIN.mul_f64(0.5 + rand::random::<f64>())).await;
    }
}

impl Shared {
    /// The watch on all nodes notices a loss.
    pub(super) async fn hold(&self) -> Lost {
        until_lost(&self.ours, |ours| ours.loss(&self.options.annotation_prefix)).await
    }

    async fn pause_after_loss(&self) {
        let lost = self.ours.borrow().loss(&self.options.annotation_prefix);
        pause_after(lost, &self.losses).await;
    }

    /// Clears the condition that keeps pods away from our node, and again whenever the node was
    /// made anew. Never ends.
    pub(super) async fn announce(&self) {
        if self.options.condition == Condition::Untouched {
            return pending().await;
        }
        let name = self.node_name().await;
        let mut ours = self.ours.subscribe();
        let (mut told, mut backoff) = (None, Backoff::default());
        loop {
            let uid = ours.borrow_and_update().node().map(|node| node.uid.clone());
            if uid.is_none() || uid == told {
                change(&mut ours).await;
                continue;
            }
            match self.client.once(&request::clear_condition(&name, &now())).await {
                Ok(_) => {
                    backoff.reset();
                    told = uid;
                }
                Err(failure) => {
                    if let Failure::Refused(refusal) = failure {
                        warn!(%refusal, "the condition NetworkUnavailable is not cleared");
                    }
                    sleep(SHORTEST + backoff.delay(rand::random())).await;
                }
            }
        }
    }
}

const SHORTEST: Duration = Duration::from_secs(1);

/// To the second, as Kubernetes writes it.
fn now() -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(seconds.as_secs()).unwrap_or_default();
    Timestamp::from_second(seconds).unwrap_or_default().to_string()
}
