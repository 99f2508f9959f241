//! The last known state, saved to disk: enough to forward packets while the store is unreachable.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::lease::Lease;
use crate::model::node_inputs::NodeInputs;
use crate::model::path::Fallbacks;
use crate::model::prefix::Prefix;

/// The inputs of the plan at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub local: NodeInputs,
    /// The leases of the peers, accepted or not, shared with their other users.
    pub leases: Vec<Arc<Lease>>,
    #[serde(default, rename = "detours")]
    pub fallbacks: Fallbacks,
    #[serde(default)]
    pub host: HostId,
}

/// Identifies a machine and its current boot, as far as the host reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostId {
    /// The machine id: a copy of the machine gets another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
}

impl HostId {
    /// Whether both machine ids are known and differ.
    fn is_another_machine(&self, other: &Self) -> bool {
        self.machine.is_some() && other.machine.is_some() && self.machine != other.machine
    }

    pub fn is_of_same_boot(&self, other: &Self) -> bool {
        self.boot.is_some() && self.boot == other.boot
    }
}

impl Checkpoint {
    /// The public IPs of the peers.
    pub fn public_ips(&self) -> impl Iterator<Item = IpAddr> {
        self.leases.iter().flat_map(|lease| &lease.endpoints).map(|endpoint| endpoint.public_ip)
    }

    /// The subnets of this node that the store has granted, as far as that is known.
    pub fn granted_subnets(&self) -> Vec<Prefix> {
        let own = self.local.own.as_ref().filter(|own| own.grant.is_some());
        own.into_iter().flat_map(Lease::subnets).collect()
    }

    /// If this host is a copy of the machine that saved the checkpoint, removes that machine's
    /// lease and returns it. The leases of the peers stay valid.
    pub fn forget_other_machine(&mut self, host: &HostId) -> Option<Lease> {
        self.host.is_another_machine(host).then(|| self.local.own.take())?
    }

    /// Unless `host` is still in the boot that saved the checkpoint, forgets what a boot ends: it
    /// resets all reverse-path filters, so those saved before it must not be restored.
    pub fn forget_other_boot(&mut self, host: &HostId) {
        if !self.host.is_of_same_boot(host) {
            self.local.strict.clear();
            self.host.boot = None;
        }
    }

    /// Whether pods of that time may still run; to be called after
    /// [`forget_other_boot`](Self::forget_other_boot).
    pub const fn pods_may_remain(&self) -> bool {
        self.host.boot.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_machine_with_another_id_is_a_copy() {
        let [one, two] = ["one", "two"].map(|id| host(id, "boot"));
        assert!(one.is_another_machine(&two));
        assert!(!one.is_another_machine(&one.clone()));
        assert!(!HostId::default().is_another_machine(&two), "it was saved by an older version");
        assert!(!one.is_another_machine(&HostId::default()), "this container does not see the id");
    }

    fn host(machine: &str, boot: &str) -> HostId {
        HostId { machine: Some(machine.to_owned()), boot: Some(boot.to_owned()) }
    }

    #[test]
    fn saved_filters_are_kept_only_with_the_same_boot_id() {
        let first = host("one", "first");
        assert!(first.is_of_same_boot(&host("one", "first")));
        assert!(!first.is_of_same_boot(&host("one", "second")));
        assert!(!HostId::default().is_of_same_boot(&HostId::default()), "no id is known");
    }
}
