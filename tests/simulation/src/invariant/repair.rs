//! Whether daemons restore what other programs remove or change.

use std::time::Duration;

use tweed::model::entry::{Entry, Ownership};

use super::{Judge, REPAIR, SAVED};
use crate::cluster::Cluster;
use crate::node::Node;

/// What another program has removed or changed on a node.
pub(super) struct Spoiled {
    node: usize,
    entries: Vec<Entry>,
    /// How long nothing else has happened since.
    undisturbed: Duration,
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
    /// Another program has changed the kernel of `node`, which had these entries `before`. Where the
    /// daemon has had nothing else to do, they are all wanted.
    pub fn spoil(&mut self, node: usize, before: &[Entry], cluster: &Cluster) {
        let entries: Vec<Entry> = missing(before, &cluster.nodes[node]).cloned().collect();
        // A node without `Mixed` keeps the tunnel as long as others use it, and does not need it.
        let are_wanted = self.is_mixed || cluster.follows_config();
        if are_wanted && self.settled >= SAVED && cluster.nodes[node].run.is_some() {
            self.spoiled.push(Spoiled { node, entries, undisturbed: Duration::ZERO });
        }
    }

    /// Something happens: what was spoiled before need not come back any more.
    pub(super) fn disturb(&mut self) {
        self.spoiled.clear();
        self.settled = Duration::ZERO;
    }

    /// `time` has passed, in which something has disturbed the cluster, or nothing has.
    pub(super) fn pass_since_spoiled(&mut self, time: Duration, is_calm: bool) {
        if !is_calm {
            return self.disturb();
        }
        self.settled += time;
        self.spoiled.iter_mut().for_each(|it| it.undisturbed += time);
    }

    /// What is not restored in time.
    pub(super) fn unrepaired(&mut self, cluster: &Cluster) -> Option<String> {
        let mut over = self.spoiled.extract_if(.., |it| it.undisturbed >= REPAIR);
        over.find_map(|it| {
            let missing = missing(&it.entries, &cluster.nodes[it.node]).next()?.to_string();
            Some(format!("n{} lacks {missing}", it.node + 1))
        })
    }
}
