//! What was last known, on disk: enough to forward packets while the store is away.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::lease::Lease;
use crate::model::local::Local;
use crate::model::path::Detours;

/// Everything that the plan is made from, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub local: Local,
    /// Of the peers, believed or not; shared with whoever goes on with them.
    pub leases: Vec<Arc<Lease>>,
    #[serde(default)]
    pub detours: Detours,
    /// Where it was saved.
    #[serde(default)]
    pub host: HostId,
}

/// A machine between two boots, as far as it says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostId {
    /// A copy of the machine gets another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
}

impl HostId {
    /// Whether both machines are known, and are not the same.
    fn is_another_machine(&self, other: &Self) -> bool {
        self.machine.is_some() && other.machine.is_some() && self.machine != other.machine
    }

    /// Whether neither has been booted since the other.
    pub fn is_of_same_boot(&self, other: &Self) -> bool {
        self.boot.is_some() && self.boot == other.boot
    }
}

impl Checkpoint {
    /// Of a machine that is a copy of the one that saved it, takes away that one's lease; returns it.
    /// What is known of the peers serves all the same.
    pub fn forget_other_machine(&mut self, host: &HostId) -> Option<Lease> {
        self.host.is_another_machine(host).then(|| self.local.own.take())?
    }

    /// A boot sets all filters back: those of an earlier one are nothing to restore.
    pub fn forget_other_boot(&mut self, host: &HostId) {
        if !self.host.is_of_same_boot(host) {
            self.local.strict.clear();
        }
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
    fn only_the_same_boot_id_says_that_filters_are_as_they_were_left() {
        let first = host("one", "first");
        assert!(first.is_of_same_boot(&host("one", "first")));
        assert!(!first.is_of_same_boot(&host("one", "second")));
        assert!(!HostId::default().is_of_same_boot(&HostId::default()), "none of them says");
    }
}
