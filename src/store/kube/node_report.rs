//! Publishes what this node tells the operator: beside the nodes, where no peer watches.

use super::Shared;
use super::answer::Refusal;
use super::client::Failure;
use super::request::{self, Owner};
use crate::model::report::NodeReport;
use crate::store::Unpublished;

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
