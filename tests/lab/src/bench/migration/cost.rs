//! What one stage has cost.

use std::time::Duration;

use tweed_lab::{Count, Report, Tally};

use crate::bench::sheet::time;

#[derive(Clone, Debug, Default)]
pub(super) struct Cost {
    pub(super) count: Count,
    /// Of the packets lost, those from and to the node that was rebooted.
    pub(super) by_reboot: u64,
    pub(super) outage: Duration,
    pub(super) tally: Tally,
    /// Of the whole case.
    pub(super) overruns: u64,
    /// Until every path was right; none if one never was.
    pub(super) took: Option<Duration>,
    pub(super) victim: Option<String>,
}

impl Cost {
    /// Takes in what became of the packets of stage number `index` of the report.
    pub(super) fn with(mut self, report: &Report, index: usize) -> Self {
        self.overruns = report.overruns;
        for pair in &report.pairs {
            let count = pair.stages.get(index).copied().unwrap_or_default();
            let is_victim =
                self.victim.as_ref().is_some_and(|it| [&pair.from, &pair.to].contains(&it));
            self.count += count;
            self.by_reboot += if is_victim { count.lost } else { 0 };
            self.outage = self.outage.max(pair.outages.get(index).copied().unwrap_or_default());
        }
        self
    }

    pub(super) fn wrong(&self) -> u64 {
        u64::from(self.took.is_none())
    }

    pub(super) fn told(&self) -> String {
        self.took.map_or_else(|| "**a path stays wrong**".to_owned(), time)
    }
}
