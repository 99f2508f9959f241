//! What Kubernetes keeps besides the leases: the mounted config, who this node is, its report, the
//! probe secret.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use k8s_openapi::ByteString;
use serde::Deserialize;
use tokio::time::sleep;

use super::answer::Refusal;
use super::client::Failure;
use super::connect::own_namespace;
use super::request::{self, Owner};
use super::{NodeRef, Shared};
use crate::excerpt;
use crate::model::config::{ConfigUpdate, NetworkConfig, Unusable};
use crate::model::probe_secret::Secret;
use crate::model::report::NodeReport;
use crate::store::backoff::Backoff;
use crate::store::failover::retry;
use crate::store::hold::change;
use crate::store::watch::distinct;
use crate::store::{Identity, Unpublished};

/// A mounted ConfigMap changes by another link in its folder, which no watch on the file tells.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// What the file holds, and whatever it holds from then on. Never ends.
pub(super) fn config_updates(shared: Arc<Shared>) -> BoxStream<'static, ConfigUpdate> {
    distinct(stream::unfold((shared, Duration::ZERO), |(shared, pause)| async move {
        sleep(pause).await;
        let update = look(&shared.options.net_config);
        Some((update, (shared, READ_AGAIN)))
    }))
}

/// All nodes give the same text the same revision.
fn look(path: &Path) -> ConfigUpdate {
    let shown = path.display();
    match std::fs::read(path) {
        Ok(text) => {
            let config = NetworkConfig::parse(&text);
            let config = config.map_err(|error| Unusable(format!("{shown}: {error}")));
            ConfigUpdate { config, revision: u64::from(crc32fast::hash(&text)) }
        }
        Err(error) => {
            let cure = match error.kind() {
                ErrorKind::NotFound => ": mount the ConfigMap with the network config there",
                _ => "",
            };
            ConfigUpdate { config: Err(Unusable(format!("{shown}: {error}{cure}"))), revision: 0 }
        }
    }
}

const RETRY: Duration = Duration::from_secs(3);

/// What is read of a Pod.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodObject {
    spec: PodSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodSpec {
    #[serde(rename = "nodeName")]
    node_name: String,
}

/// Our name and the public IPs that operators ordered, now and whenever that changes.
pub(super) fn identities(shared: Arc<Shared>) -> BoxStream<'static, Identity> {
    let steps = stream::unfold((shared, None::<Identity>), |(shared, told)| async move {
        let identity = shared.identity_other_than(told.as_ref()).await;
        Some((identity.clone(), (shared, Some(identity))))
    });
    steps.boxed()
}

impl Shared {
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
            let body = self.client.request(&request::pod(namespace, pod)).await;
            let object = body.ok().and_then(|body| serde_json::from_slice(&body).ok());
            let PodObject { spec: PodSpec { node_name } } = object.unwrap_or_default();
            if !node_name.is_empty() {
                return node_name;
            }
            let why = format!("pod {namespace}/{pod} names no node: set NODE_NAME");
            self.client.report.lacks_subnet(&why);
            sleep(RETRY).await;
        }
    }

    async fn identity_other_than(&self, told: Option<&Identity>) -> Identity {
        let name = self.node_name().await;
        if told.is_none() {
            self.own_node(&name).await;
        }
        let prefix = &self.options.annotation_prefix;
        let mut ours = self.ours.subscribe();
        loop {
            let public_ips =
                ours.borrow_and_update().node().map(|node| prefix.public_ips(&node.annotations));
            let identity =
                public_ips.map(|public_ips| Identity { name: Some(name.clone()), public_ips });
            match identity {
                Some(identity) if told != Some(&identity) => return identity,
                Some(_) | None => change(&mut ours).await,
            }
        }
    }
}

impl Shared {
    /// In an object of its own, which Kubernetes removes with the pod of the daemon: what comes after
    /// it on the node may be flanneld. Where the pod is not known, it is removed with the node.
    pub(super) async fn publish_report(&self, report: &NodeReport) -> Result<(), Unpublished> {
        let no_namespace = || Unpublished("POD_NAMESPACE is not set".to_owned());
        let namespace = self.namespace().ok_or_else(no_namespace)?;
        let text = report.encode();
        let name = self.node_name().await;
        let owner = if let Some(pod) = &self.options.pod {
            Owner { kind: "Pod", name: pod.name.clone(), uid: pod.uid.clone() }
        } else {
            let uid = self.ours.borrow().node().map(|node| node.uid.clone());
            Owner { kind: "Node", name: name.clone(), uid: uid.unwrap_or_default() }
        };
        let ask = request::publish_report(&namespace, &name, &owner, &text);
        let published = self.client.once(&ask).await;
        match &published {
            Ok(_) => self.client.report.accepts_report(),
            Err(Failure::Refused(Refusal::Invalid(why))) => self.client.report.refuses_report(why),
            Err(Failure::Refused(_) | Failure::Away) => {}
        }
        published.map(drop).map_err(unpublished)
    }
}

fn unpublished(failure: Failure) -> Unpublished {
    Unpublished(match failure {
        Failure::Away => "the API server cannot be used".to_owned(),
        Failure::Refused(Refusal::Denied(reason)) => reason,
        Failure::Refused(refusal) => format!("the API server refuses: {refusal}"),
    })
}

/// What is read of a Secret.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SecretObject {
    data: Data,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    secret: ByteString,
}

impl Shared {
    /// Waits for the API server.
    ///
    /// # Errors
    /// What keeps us from the secret, in a sentence that does not hold it.
    pub(super) async fn probe_secret(&self) -> Result<Secret, String> {
        let namespace = self.namespace().ok_or("POD_NAMESPACE is not set")?;
        retry(Backoff::LONGEST, || async {
            match self.client.once(&request::probe_secret(&namespace)).await {
                Ok(body) => Some(read_secret(&body, &namespace)),
                Err(Failure::Refused(Refusal::Absent)) => {
                    self.make_secret(&namespace).await.err().map(Err)
                }
                Err(failure) => given_up(failure).err().map(Err),
            }
        })
        .await
    }

    /// Where our own objects lie.
    pub(super) fn namespace(&self) -> Option<String> {
        self.options.namespace.clone().or_else(own_namespace)
    }

    /// Whoever was first, the next reading tells.
    async fn make_secret(&self, namespace: &str) -> Result<(), String> {
        let ask = request::create_probe_secret(namespace, &Secret::text(&rand::random()));
        match self.client.once(&ask).await {
            Ok(_) | Err(Failure::Refused(Refusal::Exists)) => Ok(()),
            Err(Failure::Refused(Refusal::Absent)) => {
                Err(format!("there is no namespace {namespace}"))
            }
            Err(Failure::Refused(Refusal::Denied(reason))) => {
                Err(format!("there is no secret {namespace}/tweed-probes, and {reason}"))
            }
            Err(failure) => given_up(failure),
        }
    }
}

/// Only what waiting may mend is waited for.
fn given_up(failure: Failure) -> Result<(), String> {
    match failure {
        Failure::Away => Ok(()),
        Failure::Refused(Refusal::Denied(reason)) => Err(reason),
        Failure::Refused(refusal) => Err(format!("the API server refuses: {refusal}")),
    }
}

fn read_secret(body: &[u8], namespace: &str) -> Result<Secret, String> {
    let named = |error: &dyn ToString| {
        format!("secret {namespace}/tweed-probes: {}", excerpt::value(&error.to_string()))
    };
    let object: SecretObject = serde_json::from_slice(body).map_err(|error| named(&error))?;
    Secret::parse(&object.data.secret.0).map_err(|error| named(&error))
}
