//! The effects of an event, as a value: what to read, plan, apply and report.

use std::collections::BTreeSet;
use std::ops::BitOrAssign;

use crate::model::entry::Key;

/// What to read, plan, apply and report.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Changes {
    /// Read the facts of the host.
    pub facts: bool,
    /// Read what the kernel holds.
    pub dump: bool,
    /// Read the chains of iptables.
    pub chains: bool,
    /// A new config was applied.
    pub config: bool,
    /// Check again whether a waiting config edit can be applied.
    pub edit: bool,
    /// Plan for this node and all peers. `Inputs` records which single leases changed.
    pub plan: bool,
    /// Where desired and actual state may differ.
    pub differences: Differences,
    /// A checkpoint would differ from the last one.
    pub save: bool,
    /// The node report may differ from the last one.
    pub report: bool,
    /// Leases that are missing from the store must be evaluated.
    pub losses: Option<MissingLeases>,
}

/// Where desired and actual state may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Differences {
    In(BTreeSet<Key>),
    Anywhere,
}

/// The numbers of leases missing from the store before and after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingLeases {
    pub before: usize,
    pub after: usize,
    /// Whether more losses may follow. False for a single removal that the store reported.
    pub may_grow: bool,
}

impl Default for Differences {
    fn default() -> Self {
        Self::In(BTreeSet::new())
    }
}

impl Extend<Key> for Differences {
    fn extend<I: IntoIterator<Item = Key>>(&mut self, keys: I) {
        if let Self::In(known) = self {
            known.extend(keys);
        }
    }
}

impl BitOrAssign for Changes {
    fn bitor_assign(&mut self, other: Self) {
        let Self { facts, dump, chains, config, edit, plan, differences, save, report, losses } =
            other;
        self.facts |= facts;
        self.dump |= dump;
        self.chains |= chains;
        self.config |= config;
        self.edit |= edit;
        self.plan |= plan;
        self.save |= save;
        self.report |= report;
        self.losses = losses.or(self.losses);
        match differences {
            Differences::In(keys) => self.differences.extend(keys),
            Differences::Anywhere => self.differences = Differences::Anywhere,
        }
    }
}

impl Changes {
    /// Desired and actual state may differ in `keys`.
    pub fn of_keys(keys: impl IntoIterator<Item = Key>) -> Self {
        let differences = Differences::In(keys.into_iter().collect());
        Self { differences, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::entry::LinkName;

    #[test]
    fn changes_add_up() {
        let key = Key::Link(LinkName::new("flannel.1"));
        let mut changes = Changes { save: true, ..Changes::default() };
        changes.differences.extend([key]);
        changes |=
            Changes { differences: Differences::Anywhere, facts: true, ..Changes::default() };
        assert_eq!(changes.differences, Differences::Anywhere);
        assert!(changes.save && changes.facts && !changes.plan);
    }
}
