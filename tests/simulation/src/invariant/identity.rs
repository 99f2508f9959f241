//! Which machine has which subnet, as far as faults leave that certain.

use std::time::Duration;

use super::{COPIED, JOIN, Judge, SAVED, is_running};
use crate::act::{Act, MachineId};
use crate::cluster::Cluster;
use crate::node::Node;

/// The time in which a daemon saves its checkpoint, also on a slow store.
const UNSAVED: Duration = Duration::from_secs(5);

impl Judge {
    pub(super) fn take_machine(&mut self, act: &Act, index: usize, cluster: &Cluster) {
        let node = &cluster.nodes[index];
        match act {
            Act::Reinstall(_) => self.reinstall(index),
            Act::Readdress(..) => {
                self.need_store(index);
                self.note_address(index, node.address);
                // Back at its former address, it has the lease from before its installation, too.
                self.forgotten.entry(index).and_modify(|leases| *leases += 1);
                // With another address, it looks like a copy that has not ended yet.
                let runs = |(copy, _): &&(usize, usize)| cluster.nodes[*copy].ends.is_empty();
                let mut copies = self.copied.iter().filter(|(_, original)| *original == index);
                if copies.any(|copy| runs(&copy)) {
                    self.free(index);
                }
                if self.unproved.contains(&index) {
                    self.moved.insert(index);
                }
            }
            Act::BackUpDisk(_) => {
                self.backups.insert(index, node.address);
            }
            Act::RestoreDisk(_) => self.restore(index, node),
            _ => {
                self.note_unsaved(index, cluster);
                // It may have taken a subnet before it had read which lease has its address.
                if node.checkpoint().is_none() && !self.is_named {
                    *self.forgotten.entry(index).or_insert(1) += 1;
                }
                self.excuse(index, self.join);
                // Flanneld remembers no peers.
                if self.calm >= SAVED && !self.may_end(node) && node.flannel.is_none() {
                    self.alone.insert(index);
                }
            }
        }
    }

    /// The daemon ends, perhaps before it has saved that its lease is another one.
    pub(super) fn note_unsaved(&mut self, node: usize, cluster: &Cluster) {
        if self.freed.get(&node).is_some_and(|freed| cluster.age() < *freed + UNSAVED) {
            self.unproved.insert(node);
        }
    }

    /// They have no pods any more, and may get each the subnet of the other one.
    pub(super) fn swap(&mut self, nodes: [usize; 2], cluster: &Cluster) {
        for node in nodes {
            self.forget(node);
            self.note_address(node, cluster.nodes[node].address);
        }
    }

    pub(super) fn copy(&mut self, node: usize, id: MachineId, cluster: &Cluster) {
        let (copy, original) = (self.debts.len() - 1, &cluster.nodes[node]);
        // An older daemon has not saved of which machine its checkpoint is.
        if id == MachineId::New && original.names_its_machine() {
            return;
        }
        // A node whose new address is not in its lease yet looks like its copy.
        let is_known = original.remembers() && cluster.holds_lease(original);
        if is_running(original) && is_known && !self.moved.contains(&node) {
            self.copied.push((copy, node));
            self.excuse(node, COPIED);
        } else {
            // Whichever of the two starts first has the subnet.
            self.moved.extend([node, copy]);
            self.excuse(node, self.join);
        }
    }

    pub(super) fn restore_etcd(&mut self, cluster: &Cluster) {
        let before = self.copied_store.iter().zip(&cluster.nodes);
        let changed = before.filter(|(address, node)| **address != node.address);
        let changed: Vec<usize> = changed.map(|(_, node)| node.index).collect();
        if self.join > JOIN {
            self.all_need_store();
        }
        // Until they have written it again, the store has their former address.
        let rejoined = self.rejoined.clone();
        changed.iter().chain(&rejoined).for_each(|node| self.need_store(*node));
        if self.is_named {
            return;
        }
        // The id of their lease in the backup is unknown to them.
        let freed = self.freed.iter().filter(|(_, at)| **at >= self.copied_store_at);
        self.unproved.extend(self.forgotten.keys().chain(freed.map(|(node, _)| node)));
        self.moved.extend(changed.into_iter().filter(|node| self.unproved.contains(node)));
        // The backup is of the moment in which the copy had the lease.
        let has_lease =
            |(copy, _): &&(usize, usize)| cluster.leases_of(&cluster.nodes[*copy]).next().is_some();
        let copied = self.copied.iter().filter(has_lease);
        let copied: Vec<usize> = copied.flat_map(|(copy, original)| [*copy, *original]).collect();
        for node in copied {
            self.need_store(node);
            self.moved.insert(node);
        }
    }

    /// A node with a former address of another one may get the subnet of that node.
    pub(super) fn note_address(&mut self, node: usize, address: u8) {
        let others = self.addresses.entry(address).or_default();
        if others.insert(node) && others.len() > 1 && !self.is_named {
            self.moved.extend(others.iter());
        }
    }

    fn reinstall(&mut self, node: usize) {
        self.forget(node);
        self.free(node);
        if !self.is_named {
            *self.forgotten.entry(node).or_default() += 1;
        }
    }

    fn restore(&mut self, node: usize, restored: &Node) {
        self.alone.remove(&node);
        if restored.is_empty() {
            self.reinstall(node);
        }
        // The disk may be of a time before the machine was installed or registered again.
        let pods = restored.pods().filter(|pods| self.pods[node] != Some(*pods));
        if pods.is_some() {
            self.forget(node);
        }
        // Its lease may have an address that the node no longer knows as its own.
        let is_moved = self.backups.get(&node).is_some_and(|before| *before != restored.address);
        if is_moved && !self.is_named {
            self.moved.insert(node);
        }
    }

    /// The subnet of a node may be claimed by a copy first.
    pub(super) fn free(&mut self, node: usize) {
        let copies = self.copied.iter().filter(|(_, original)| *original == node);
        self.moved.extend(copies.flat_map(|(copy, original)| [*copy, *original]));
    }

    fn forget(&mut self, node: usize) {
        self.need_store(node);
        if !self.is_named {
            self.pods[node] = None;
        }
    }

    /// A node whose address changes twice before its checkpoint is saved ends. One that has ended is
    /// not excused by what comes later.
    pub(super) fn note_unknown_leases(&mut self, cluster: &Cluster) {
        if self.is_named {
            return;
        }
        let is_off = |node: &&Node| node.run.is_none() && node.ends.is_empty();
        let off = cluster.nodes.iter().filter(is_off);
        let unknown = off.filter(|node| cluster.mistakes_its_lease(node));
        self.moved.extend(unknown.map(|node| node.index));
    }

    /// A copy has to end. So has its original, if the store has the lease of the copy again, and a
    /// node with a new address whose subnet is that of the node which has the previous address.
    pub(super) fn may_end(&self, node: &Node) -> bool {
        let mut copies = self.copied.iter().map(|(copy, _)| *copy);
        self.moved.contains(&node.index) || copies.any(|copy| copy == node.index)
    }
}
