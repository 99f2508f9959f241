//! What the daemon counts and measures for Prometheus, in addition to its status.

use std::collections::BTreeMap;

use crate::model::entry::EntryKind;
use crate::model::path::Path;
use crate::model::prefix::Family;

/// The figures of the loop.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    /// Entries that were lost or changed, and restored.
    pub repairs: BTreeMap<EntryKind, u64>,
    /// Changes of the path to a peer: the new path, if there is one, and the reason.
    pub path_changes: BTreeMap<(Option<Path>, PathChangeReason), u64>,
    /// From the first event of a pass of the loop until its operations are applied, in seconds.
    pub event_to_kernel: Histogram,
    /// The times of full reads of the kernel state, in seconds.
    pub dumps: Histogram,
    /// The share of lost probes of each peer, at this moment.
    pub loss: Histogram,
    /// The last round-trip time of each peer, at this moment, in seconds.
    pub round_trip: Histogram,
    pub subnets: Vec<SubnetUsage>,
    pub rollout: RolloutPhase,
}

/// Why the path to a peer has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathChangeReason {
    /// The results of probes.
    Probes,
    /// The lease of the peer.
    Peer,
    /// The config or the host of this node.
    Node,
}

impl PathChangeReason {
    pub const ALL: [Self; 3] = [Self::Probes, Self::Peer, Self::Node];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Probes => "probes",
            Self::Peer => "peer",
            Self::Node => "node",
        }
    }
}

/// How far this node follows a staged change of backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RolloutPhase {
    /// The config has no rollout.
    #[default]
    None,
    /// This node is not selected yet.
    Waiting,
    /// This node is selected, and the change is not applied yet.
    Pending,
    Applied,
}

impl RolloutPhase {
    pub const ALL: [Self; 4] = [Self::None, Self::Waiting, Self::Pending, Self::Applied];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Waiting => "waiting",
            Self::Pending => "pending",
            Self::Applied => "applied",
        }
    }
}

/// The subnets of the cluster's network in one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubnetUsage {
    pub family: Family,
    pub used: u128,
    pub free: u128,
}

impl SubnetUsage {
    /// Whether 90 % or more are used.
    pub const fn is_nearly_exhausted(&self) -> bool {
        self.free <= self.used.saturating_add(self.free) / 10
    }
}

/// How many values are at most as large as each bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    buckets: Vec<(f64, u64)>,
    count: u64,
    sum: f64,
}

/// For times in seconds.
impl Default for Histogram {
    fn default() -> Self {
        Self::new(&[0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0])
    }
}

impl Histogram {
    /// For shares from 0 to 1.
    pub fn of_shares() -> Self {
        Self::new(&[0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
    }

    fn new(bounds: &[f64]) -> Self {
        Self { buckets: bounds.iter().map(|bound| (*bound, 0)).collect(), count: 0, sum: 0.0 }
    }

    pub fn observe(&mut self, value: f64) {
        for (bound, count) in &mut self.buckets {
            *count += u64::from(value <= *bound);
        }
        self.count += 1;
        self.sum += value;
    }

    /// The bounds, and the number of values up to each.
    pub fn buckets(&self) -> &[(f64, u64)] {
        &self.buckets
    }

    pub const fn count(&self) -> u64 {
        self.count
    }

    pub const fn sum(&self) -> f64 {
        self.sum
    }
}

impl Extend<f64> for Histogram {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.observe(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_counts_the_values_up_to_its_bound() {
        let mut histogram = Histogram::of_shares();
        histogram.extend([0.0, 0.05, 0.06, 1.0]);
        let counts: Vec<u64> = histogram.buckets().iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [1, 1, 1, 2, 3, 3, 3, 4]);
        assert_eq!(histogram.count(), 4);
        assert!((histogram.sum() - 1.11).abs() < 1e-9);
    }
}
