//! Who this node is to Kubernetes.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use serde::Deserialize;
use std::sync::Arc;
use tokio::time::sleep;

use super::Shared;
use super::hold::news;
use super::options::NodeRef;
use super::request;
use crate::store::Identity;

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
                Some(_) | None => news(&mut ours).await,
            }
        }
    }
}
