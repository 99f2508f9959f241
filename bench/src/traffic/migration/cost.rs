//! The cost of one stage.

use std::time::Duration;

use tweed_lab::{Count, Kind, Outcomes, Report, Tally};

use crate::report::sheet::{thousands, time};

#[derive(Clone, Debug, Default)]
pub(super) struct Cost {
    pub(super) count: Count,
    /// The lost packets from and to the node that was rebooted.
    pub(super) by_reboot: u64,
    pub(super) outage: Duration,
    /// The longest outage from or to the node that was rebooted, if one was.
    pub(super) outage_by_reboot: Option<Duration>,
    pub(super) tally: Tally,
    /// Connections that are not between pods.
    pub(super) connections: Outcomes,
    /// The overruns in the whole case.
    pub(super) overruns: u64,
    /// The time until every path was correct; none after a timeout.
    pub(super) took: Option<Duration>,
    pub(super) victim: Option<String>,
}

impl Cost {
    /// Adds the results of stage number `index` of the report.
    pub(super) fn with(mut self, report: &Report, index: usize) -> Self {
        self.overruns = report.overruns;
        for pair in &report.pairs {
            let count = pair.stages.get(index).copied().unwrap_or_default();
            let is_victim =
                self.victim.as_ref().is_some_and(|it| [&pair.from, &pair.to].contains(&it));
            self.count += count;
            let outage = pair.outages.get(index).copied().unwrap_or_default();
            self.outage = self.outage.max(outage);
            if is_victim {
                self.by_reboot += count.lost;
                self.outage_by_reboot = self.outage_by_reboot.max(Some(outage));
            }
        }
        self
    }

    /// The numbers of open and of broken connections of one kind.
    fn of_kind(&self, wanted: Kind) -> (usize, usize) {
        let of_kind = self.connections.iter().filter(|((kind, _), _)| *kind == wanted);
        of_kind.fold((0, 0), |(open, broken), (_, it)| (open + it.open, broken + it.broken.len()))
    }

    pub(super) fn broken(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self.of_kind(*kind).1 as u64).sum()
    }

    /// The longest time from a request to its answer, on unbroken connections.
    fn worst_exchange(&self) -> Duration {
        self.connections.values().map(|it| it.worst).max().unwrap_or_default()
    }

    pub(super) fn wrong(&self) -> u64 {
        u64::from(self.took.is_none())
    }

    /// The cells of a row of the table, without its name.
    pub(super) fn cells(&self) -> impl Iterator<Item = String> {
        let Self { count, by_reboot, outage, tally, .. } = self;
        let failed = format!("{} of {}", tally.failed, thousands(tally.pages + tally.failed));
        let of_kind = |kind| {
            let (open, broken) = self.of_kind(kind);
            format!("{broken} of {open}")
        };
        let before = [thousands(count.sent), thousands(count.lost), by_reboot.to_string()];
        let pods = [time(*outage), tally.broken.to_string(), failed];
        let after = [time(self.worst_exchange()), self.described()];
        before.into_iter().chain(pods).chain(Kind::ALL.map(of_kind)).chain(after)
    }

    fn described(&self) -> String {
        self.took.map_or_else(|| "**a path stays wrong**".to_owned(), time)
    }
}
