//! Publishes what this node tells the operator: beside the nodes, where no peer watches.

use super::Shared;
use super::answer::Refusal;
use super::client::Failure;
use super::request;
use crate::report::NodeReport;
use crate::subnet::Unpublished;

impl Shared {
    /// In an object of its own, which goes with the node.
    pub(super) async fn publish_report(&self, report: &NodeReport) -> Result<(), Unpublished> {
        let no_namespace = || Unpublished("POD_NAMESPACE is not set".to_owned());
        let namespace = self.namespace().ok_or_else(no_namespace)?;
        let text = report.encode();
        let uid = self.ours.borrow().node().map(|node| node.uid.clone());
        let name = self.node_name().await;
        let owner = (name.as_str(), uid.as_deref().unwrap_or_default());
        let published = self.client.once(&request::publish_report(&namespace, owner, &text)).await;
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
