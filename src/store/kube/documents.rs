//! The data of a network in Kubernetes apart from its leases: mounted config, identity and report
//! of this node, probe secret.

use std::future::pending;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret as SecretObject;
use serde_json::Value;
use tokio::time::sleep;
use tracing::warn;
use tweed_client::api::{Dropped, own_namespace};
use tweed_client::backoff::Backoff;
use tweed_client::failover::{Failure, Outcomes, Refusal, retry};
use tweed_client::watch::distinct;

use super::lease::pause;
use super::{KubeSubnetManager, NodeRef, PodRef, request};
use crate::excerpt;
use crate::model::config::{ConfigUpdate, NetworkConfig, Unusable};
use crate::model::event::EventDigest;
use crate::model::probe_secret::Secret;
use crate::model::report::NodeReport;
use crate::random::random;
use crate::store::hold::change;
use crate::store::{Documents, Identity, Report, Unpublished};

/// The interval at which the config is read: Kubernetes replaces a symbolic link in the folder of a
/// mounted ConfigMap, which a watch on the file would miss.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// The shortest time between two attempts to clear the condition of our node.
const CLEAR_AGAIN: Duration = Duration::from_secs(1);

impl Documents for KubeSubnetManager {
    fn watch_config(self: &Arc<Self>) -> BoxStream<'static, ConfigUpdate> {
        let start = (Arc::clone(self), Duration::ZERO);
        distinct(stream::unfold(start, |(manager, pause)| async move {
            sleep(pause).await;
            let update = read_config(&manager.options.net_config);
            Some((update, (manager, READ_AGAIN)))
        }))
    }

    fn watch_identity(self: &Arc<Self>) -> BoxStream<'static, Identity> {
        let start = (Arc::clone(self), None::<Identity>);
        let steps = stream::unfold(start, |(manager, known)| async move {
            let identity = manager.identity_other_than(known).await;
            Some((identity.clone(), (manager, Some(identity))))
        });
        steps.boxed()
    }

    /// Writes an object that Kubernetes removes with the pod of the daemon, since flanneld may
    /// follow on the node. If the pod is not known, the object is removed with the node.
    async fn publish_report(&self, report: &NodeReport) -> Result<(), Unpublished> {
        let homeless = || Unpublished::Failed(NO_NAMESPACE.to_owned());
        let namespace = self.namespace().ok_or_else(homeless)?;
        let text = report.encode();
        let name = self.node_name().await;
        let owner = if let Some(PodRef { name, uid }) = &self.options.pod {
            ("Pod", name.as_str(), uid.clone())
        } else {
            let uid = self.ours.borrow().node().map(|node| node.uid.clone());
            ("Node", name.as_str(), uid.unwrap_or_default())
        };
        let content = (text.as_str(), Timestamp::now());
        let ask = request::publish_report(&namespace, &name, owner, content);
        self.client.report.published(match self.client.send_unnoticed(&ask).await {
            Err(Dropped::Failed(reason)) => return Err(Unpublished::Failed(reason)),
            Err(Dropped::Refused(refusal)) => Err(Failure::Refused(refusal)),
            Ok(()) => Ok(()),
        })
    }

    /// The report is written with the time of the write.
    async fn refresh_report(&self, report: &NodeReport) -> Result<(), Unpublished> {
        self.publish_report(report).await
    }

    async fn publish_event(&self, event: &EventDigest) -> Result<(), String> {
        let ours = self.ours.borrow().clone();
        let node = ours.name.as_deref().ok_or("the Node of this host is not known yet")?;
        // A kubelet uses the name if it does not know the uid, and kubectl searches for both.
        let uid = ours.node().map_or(node, |known| known.uid.as_str());
        let ask = request::create_event((node, uid), event, random());
        self.client.send_unnoticed(&ask).await.map_err(|dropped| match dropped {
            Dropped::Failed(reason) => reason,
            Dropped::Refused(refusal) => self.client.report.refused(refusal),
        })
    }

    async fn probe_secret(&self) -> Result<Secret, String> {
        let namespace = self.namespace().ok_or(NO_NAMESPACE)?;
        retry(Backoff::LONGEST, || async {
            match self.client.once(&request::probe_secret(&namespace)).await {
                Ok(body) => Some(read_secret(&body, &namespace)),
                Err(Failure::Refused(Refusal::Absent)) => {
                    self.create_secret(&namespace).await.err().map(Err)
                }
                Err(Failure::Refused(refusal)) => Some(Err(self.client.report.refused(refusal))),
                Err(Failure::Unreachable) => None,
            }
        })
        .await
    }

    /// Clears the condition that keeps pods off our node, and again after the node was recreated: then
    /// the subnet may be another, and the daemon must use it first.
    async fn announce(&self, until_ready: impl AsyncFn()) {
        if !self.options.clears_condition {
            return pending().await;
        }
        let name = self.node_name().await;
        let mut ours = self.ours.subscribe();
        let (mut cleared, mut refused, mut backoff) = (None, None, Backoff::default());
        loop {
            let uid = ours.borrow_and_update().held().map(|node| node.uid.clone());
            if uid.is_none() || uid == cleared {
                change(&mut ours).await;
                continue;
            }
            until_ready().await;
            if ours.borrow().held().map(|node| &node.uid) != uid.as_ref() {
                continue;
            }
            let now = Timestamp::now().strftime(request::SECONDS).to_string();
            match self.client.send_unnoticed(&request::clear_condition(&name, &now)).await {
                Ok(()) => {
                    backoff.reset();
                    (cleared, refused) = (uid, None);
                }
                Err(dropped) => {
                    if let Dropped::Refused(refusal) = dropped
                        && refused.as_ref() != Some(&refusal)
                    {
                        warn!(%refusal, "the condition NetworkUnavailable is not cleared");
                        refused = Some(refusal);
                    }
                    sleep(CLEAR_AGAIN + backoff.delay(random())).await;
                }
            }
        }
    }

    fn report(&self) -> &Report {
        &self.client.report
    }
}

const NO_NAMESPACE: &str = "POD_NAMESPACE is not set";

/// Derived from the text, so that all nodes compute the same revision.
fn read_config(path: &Path) -> ConfigUpdate {
    let text = std::fs::read(path);
    let revision = text.as_ref().map_or(0, |text| u64::from(crc32fast::hash(text)));
    let config = match text {
        Ok(text) => NetworkConfig::parse(&text).map_err(|error| error.to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(format!("{error}: mount the ConfigMap with the network config there"))
        }
        Err(error) => Err(error.to_string()),
    };
    let config = config.map_err(|error| Unusable(format!("{}: {error}", path.display())));
    ConfigUpdate { config, revision }
}

impl KubeSubnetManager {
    pub(super) async fn node_name(&self) -> String {
        if let Some(name) = self.ours.borrow().name.clone() {
            return name;
        }
        let name = match &self.options.node {
            NodeRef::Name(name) => name.clone(),
            NodeRef::OfPod { namespace, name } => self.node_of_pod(namespace, name).await,
        };
        self.ours.send_modify(|ours| ours.name = Some(name.clone()));
        name
    }

    async fn node_of_pod(&self, namespace: &str, pod: &str) -> String {
        loop {
            let why = match self.client.request(&request::pod(namespace, pod)).await {
                Ok(body) => {
                    let object = serde_json::from_slice::<Value>(&body).ok();
                    let node =
                        object.as_ref().and_then(|it| it.pointer("/spec/nodeName")?.as_str());
                    if let Some(node) = node.filter(|node| !node.is_empty()) {
                        return node.to_owned();
                    }
                    "it has no nodeName".to_owned()
                }
                Err(Refusal::Absent) => "it does not exist".to_owned(),
                Err(refusal) => refusal.to_string(),
            };
            // An unknown node name is no proof of a missing subnet.
            let why = format!("pod {namespace}/{pod} does not name its node: {why}; set NODE_NAME");
            self.client.report.refuses(&why);
            pause().await;
        }
    }

    async fn identity_other_than(&self, known: Option<Identity>) -> Identity {
        let name = self.node_name().await;
        if known.is_none() {
            self.own_node(&name).await;
        }
        let mut ours = self.ours.subscribe();
        loop {
            let public_ips = ours.borrow_and_update().node().map(|it| it.annotations.public_ips());
            let name = Some(name.clone());
            match public_ips.map(|public_ips| Identity { name, public_ips }) {
                Some(identity) if known.as_ref() != Some(&identity) => return identity,
                Some(_) | None => change(&mut ours).await,
            }
        }
    }

    pub(super) fn namespace(&self) -> Option<String> {
        self.options.namespace.clone().or_else(own_namespace)
    }

    /// If several nodes create it at once, one succeeds, and the next read returns its secret.
    async fn create_secret(&self, namespace: &str) -> Result<(), String> {
        let ask = request::create_probe_secret(namespace, &Secret::text(&random()));
        match self.client.send_unnoticed(&ask).await {
            Ok(()) | Err(Dropped::Refused(Refusal::Exists) | Dropped::Failed(_)) => Ok(()),
            Err(Dropped::Refused(Refusal::Absent)) => {
                Err(format!("there is no namespace {namespace}"))
            }
            Err(Dropped::Refused(Refusal::Denied(reason))) => {
                Err(format!("there is no secret {namespace}/tweed-probes, and {reason}"))
            }
            Err(Dropped::Refused(refusal)) => Err(self.client.report.refused(refusal)),
        }
    }
}

fn read_secret(body: &[u8], namespace: &str) -> Result<Secret, String> {
    let named = |error: &dyn ToString| {
        format!("secret {namespace}/tweed-probes: {}", excerpt::value(&error.to_string()))
    };
    let object: SecretObject = serde_json::from_slice(body).map_err(|error| named(&error))?;
    let secret = object.data.unwrap_or_default().remove("secret").unwrap_or_default();
    Secret::parse(&secret.0).map_err(|error| named(&error))
}
