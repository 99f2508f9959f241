//! The cost of a storm, as tables.

use std::fmt;
use std::time::Duration;

use super::gauge::Cost;
use super::proxy::ProxyCost;

/// The cost of all phases.
#[derive(Clone, Debug)]
pub struct Report {
    pub nodes: usize,
    pub real: usize,
    pub network: String,
    /// From the cold start to the end.
    pub proxies: ProxyCost,
    pub phases: Vec<Phase>,
    pub fan_out: FanOut,
    /// With the default interval of renewals.
    pub calm: Calm,
    /// With the interval of renewals in the settings.
    pub renewals: Calm,
}

/// A phase for all nodes, until the last one is done.
#[derive(Clone, Debug)]
pub struct Phase {
    pub name: &'static str,
    pub nodes: usize,
    pub took: Duration,
    pub cost: Cost,
    /// Listings of all leases that nodes received.
    pub listings: u64,
}

/// The propagation of one change to all nodes: the median over all changes.
#[derive(Clone, Copy, Debug)]
pub struct FanOut {
    pub p50: Duration,
    pub p99: Duration,
    pub last: Duration,
    /// etcd's processor time for one change.
    pub cpu: Duration,
}

/// An idle period.
#[derive(Clone, Debug)]
pub struct Calm {
    pub name: &'static str,
    pub took: Duration,
    pub cost: Cost,
    /// Keys written; each of them would be sent to all nodes.
    pub writes: i64,
    pub resident_kib: u64,
}

impl Phase {
    /// Transactions that found their subnet taken. Each node makes one that succeeds, and a node
    /// that writes a snapshot makes another, each under its own etcd lease.
    pub fn conflicts(&self) -> u64 {
        let nodes = u64::try_from(self.nodes).unwrap_or(u64::MAX);
        let succeed = nodes.max(self.cost.calls("LeaseGrant"));
        self.cost.calls("Txn").saturating_sub(self.cost.refused).saturating_sub(succeed)
    }
}

impl Calm {
    pub fn requests_per_second(&self) -> f64 {
        let calls = u32::try_from(self.cost.all_calls()).unwrap_or(u32::MAX);
        f64::from(calls) / self.took.as_secs_f64()
    }

    fn cpu_share(&self) -> f64 {
        100.0 * self.cost.cpu.as_secs_f64() / self.took.as_secs_f64()
    }
}

/// The smallest of the sorted values that a `share` of them does not exceed.
pub(super) fn percentile(values: &[Duration], share: f64) -> Duration {
    let rank = Duration::from_secs(values.len().try_into().unwrap_or(u64::MAX)).mul_f64(share);
    let index = usize::try_from(rank.as_secs()).unwrap_or(usize::MAX);
    let last = values.len().saturating_sub(1);
    values.get(index.min(last)).copied().unwrap_or_default()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, network, real, .. } = self;
        writeln!(f, "{nodes} simulated and {real} real daemons, subnets of {network}\n")?;
        writeln!(
            f,
            "| phase | took | etcd's CPU | etcd's peak memory | sent by etcd | listings | reads | transactions | refused |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|---|---|")?;
        self.phases.iter().try_for_each(|phase| writeln!(f, "{phase}"))?;
        writeln!(
            f,
            "\n| one change until seen by | half | 99 % | all | etcd's CPU |\n|---|---|---|---|---|"
        )?;
        writeln!(f, "{}", self.fan_out)?;
        writeln!(
            f,
            "\n| meanwhile | requests/s | keys written | etcd's CPU | etcd's memory |\n|---|---|---|---|---|"
        )?;
        writeln!(f, "{}\n{}", self.calm, self.renewals)?;
        match self.proxies {
            ProxyCost { count: 0, .. } => Ok(()),
            ProxyCost { count, cpu_seconds, peak_kib } => writeln!(
                f,
                "\n{count} of `etcd grpc-proxy`: {cpu_seconds:.1} s of CPU and {} MiB in all",
                peak_kib / 1024
            ),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, took, cost, listings, .. } = self;
        let (reads, writes, refused) = (cost.calls("Range"), cost.calls("Txn"), cost.refused);
        write!(
            f,
            "| {name} | {:.2} s | {:.2} s | {} MiB | {} MB | {listings} | {reads} | {writes} | {refused} |",
            took.as_secs_f64(),
            cost.cpu.as_secs_f64(),
            cost.peak_kib / 1024,
            cost.sent_bytes / 1_000_000,
        )
    }
}

impl fmt::Display for FanOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
        let [p50, p99, last, cpu] = [self.p50, self.p99, self.last, self.cpu].map(ms);
        write!(f, "| | {p50:.1} ms | {p99:.1} ms | {last:.1} ms | {cpu:.1} ms |")
    }
}

impl fmt::Display for Calm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, share) = (self.requests_per_second(), self.cpu_share());
        let Self { name, writes, resident_kib, .. } = self;
        write!(f, "| {name} | {rate:.1} | {writes} | {share:.1} % | {} MiB |", resident_kib / 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        let at = |share| percentile(&values, share).as_millis();
        assert_eq!([at(0.0), at(0.5), at(0.99), at(1.0)], [1, 101, 199, 200]);
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
    }

    #[test]
    fn a_second_transaction_of_a_node_is_a_conflict_unless_the_first_was_refused() {
        let cost = |transactions, refused| Cost {
            requests: [("Txn".to_owned(), transactions)].into(),
            refused,
            ..Cost::default()
        };
        let phase = |cost| Phase { name: "", nodes: 5, took: Duration::ZERO, cost, listings: 0 };
        assert_eq!(phase(cost(5, 0)).conflicts(), 0);
        assert_eq!(phase(cost(7, 0)).conflicts(), 2);
        assert_eq!(phase(cost(7, 2)).conflicts(), 0);
        let mut with_snapshot = cost(7, 0);
        with_snapshot.requests.insert("LeaseGrant".to_owned(), 6);
        assert_eq!(phase(with_snapshot).conflicts(), 1);
    }
}
