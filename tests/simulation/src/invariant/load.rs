//! How often a daemon asks its store and its kernel.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::node::Node;

/// What the daemons of all nodes have asked for until the last look.
#[derive(Default)]
pub(super) struct Load {
    at: Duration,
    asked: Vec<Asked>,
}

#[derive(Clone, Copy)]
struct Asked {
    /// Of the store.
    requests: u64,
    /// Of the kernel: each lists all entries, or all of the host.
    listings: u64,
}

/// The time for which the limits are.
const PERIOD: Duration = Duration::from_secs(10);
const REQUESTS: u64 = 100;
const LISTINGS: u64 = 60;

impl Load {
    /// Which node has asked more often than it may, and how often.
    pub(super) fn check(&mut self, cluster: &Cluster) -> Option<String> {
        if cluster.age() < self.at + PERIOD {
            return None;
        }
        self.at = cluster.age();
        let now: Vec<Asked> = cluster.nodes.iter().map(Asked::by).collect();
        let before = std::mem::replace(&mut self.asked, now);
        let asked = before.iter().zip(&self.asked).map(|(before, now)| now.since(before));
        let (index, Asked { requests, listings }) =
            asked.enumerate().find(|(_, it)| it.requests > REQUESTS || it.listings > LISTINGS)?;
        Some(format!("n{}: {requests} requests, and {listings} listings", index + 1))
    }
}

impl Asked {
    fn by(node: &Node) -> Self {
        Self { requests: node.link.requests(), listings: node.kernel.listings() }
    }

    /// A boot ends the count of listings.
    fn since(self, before: &Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            listings: self.listings.saturating_sub(before.listings),
        }
    }
}
