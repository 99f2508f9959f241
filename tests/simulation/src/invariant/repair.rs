//! Whether daemons restore what other programs remove or change.

use std::time::Duration;

use tweed::model::entry::{Entry, Ownership};

use super::{Judge, REPAIR, SAVED};
use crate::cluster::Cluster;
use crate::node::Node;

/// What another program has removed or changed on a node, since when nothing else has happened.
pub(super) struct Spoiled {
    node: usize,
    entries: Vec<Entry>,
}

/// The entries of tweed on a node.
pub(crate) fn own_entries(node: &Node) -> Vec<Entry> {
    node.kernel.read_state(|state| state.entries().filter(|it| is_own(it)).cloned().collect())
}

fn is_own(entry: &Entry) -> bool {
    match entry {
        Entry::Link(link) => link.name.is_tunnel(),
        Entry::Address(address) => address.link.is_tunnel(),
        _ => matches!(entry.ownership(), Ownership::Owned),
    }
}

/// Those of `entries` that its kernel does not have.
fn missing<'a>(entries: &'a [Entry], node: &'a Node) -> impl Iterator<Item = &'a Entry> {
    let is_missing = |wanted: &Entry| {
        node.kernel
            .read_state(|it| it.get(&wanted.key()).is_none_or(|have| !wanted.is_met_by(have)))
    };
    entries.iter().filter(move |entry| is_missing(entry))
}

impl Judge {
    /// Whether the kernel of a node has nothing that its daemon does not want. To be asked before an act,
    /// which disturbs the cluster.
    pub fn wants_all(&self, node: usize, cluster: &Cluster) -> bool {
        // A node without `Mixed` keeps the tunnel as long as others use it, and does not need it.
        let are_wanted = self.is_mixed || cluster.follows_config();
        are_wanted && self.settled >= SAVED && cluster.nodes[node].run.is_some()
    }

    /// Another program has changed the kernel of `node`, which had these entries `before`, all of them
    /// wanted.
    pub fn spoil(&mut self, node: usize, before: &[Entry], cluster: &Cluster) {
        self.disturb();
        let entries = missing(before, &cluster.nodes[node]).cloned().collect();
        self.spoiled = Some(Spoiled { node, entries });
    }

    /// Something happens: what was spoiled before need not come back any more.
    pub(super) fn disturb(&mut self) {
        self.spoiled = None;
        self.settled = Duration::ZERO;
    }

    /// `time` has passed, in which something has disturbed the cluster, or nothing has.
    pub(super) fn settle(&mut self, time: Duration, is_calm: bool) {
        if is_calm { self.settled += time } else { self.disturb() }
    }

    /// What is not restored in time.
    pub(super) fn unrepaired(&mut self, cluster: &Cluster) -> Option<String> {
        let is_over = self.settled >= REPAIR;
        let Spoiled { node, entries } = self.spoiled.take_if(|_| is_over)?;
        let missing = missing(&entries, &cluster.nodes[node]).next()?.to_string();
        Some(format!("n{} lacks {missing}", node + 1))
    }
}
