//! What this node tells the operator about itself.

use super::Reconciler;
use crate::kernel::Kernel;
use crate::model::lease::Lease;
use crate::model::report::{NodeReport, OtherMtu, Quality, exceptions, failing};
use crate::plan::backend;

impl<K: Kernel> Reconciler<K> {
    /// None before there is a lease to publish it beside.
    pub(super) fn node_report(&self) -> Option<NodeReport> {
        let own = self.inputs.own.as_ref().filter(|_| self.inputs.held)?;
        let local = self.inputs.local()?;
        let peers = self.peers();
        let quality = Quality::of_peers(&peers);
        let (exceptions, exceptions_total) = exceptions(peers);
        Some(NodeReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            lease: own.id.clone(),
            name: self.inputs.identity.name.clone(),
            subnets: Lease::subnets(own).collect(),
            backend: local.config.backend.kind,
            mixed: local.config.mixed,
            config_revision: self.inputs.edit.revision(),
            follows: self.inputs.follows(),
            pending: self.inputs.pending(),
            invalid: self.inputs.edit.unusable(),
            strict_filters: self.inputs.strict_now.iter().cloned().collect(),
            pod_mtu: backend::pod_mtu(&self.networks),
            // Whoever publishes it looks at the pods: they are no business of the loop.
            other_mtu: OtherMtu::default(),
            keeps_connections: local.policy.masquerade.is_some() && self.rules_are_met(),
            peers: self.counts(),
            failing: failing(&self.inputs.detours),
            exceptions,
            exceptions_total,
            quality,
            node: local.node,
        })
    }

    /// Tells that the report may differ from the last one.
    pub(super) fn announce_report(&mut self) {
        if self.unreported && self.inputs.held && self.inputs.are_known() {
            self.unreported = false;
            self.outputs.reported.send_modify(|count| *count += 1);
        }
    }
}
