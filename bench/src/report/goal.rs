//! Goals, next to the measured figures.

use std::fmt::{Display, Formatter};

/// Goals that two cores miss at present: docs/benchmarks.md has the reasons. They are shown as missed,
/// and do not make the run fail.
const ACCEPTED: [&str; 9] = [
    "vxlan, 5,000 peers, memory later",
    "vxlan, 20,000 peers, memory later",
    "5,000 nodes, leases only, CPU of etcd",
    "`migrate plan --to host-gw`, 100 unreachable peers, time",
    "`dashboard --export FILE`, 100 unreachable peers, time",
    "ADD, 20,000 reservations, 1 at once, p50 against `bridge`",
    "30,000 × 3: memory of the kernel",
    "1,000: a service adds",
    "30,000: a service adds",
];

/// A figure of this run, and the bound that it must keep.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    pub(crate) what: String,
    pub(crate) measured: f64,
    pub(crate) bound: Bound,
    /// `ms`, `×`, `MB`.
    pub(crate) unit: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    pub(crate) fn at_most(
        what: impl Into<String>,
        measured: f64,
        most: f64,
        unit: &'static str,
    ) -> Self {
        Self { what: what.into(), measured, bound: Bound::AtMost(most), unit }
    }

    pub(crate) fn at_least(
        what: impl Into<String>,
        measured: f64,
        least: f64,
        unit: &'static str,
    ) -> Self {
        Self { what: what.into(), measured, bound: Bound::AtLeast(least), unit }
    }

    /// A figure that was not measured meets no goal.
    pub(crate) fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtMost(most) => self.measured <= most,
            Bound::AtLeast(least) => self.measured >= least,
        }
    }

    pub(crate) fn is_accepted(&self) -> bool {
        self.is_met() || ACCEPTED.contains(&self.what.as_str())
    }

    pub(crate) fn verdict(&self) -> &'static str {
        if self.is_met() { "met" } else { "**missed**" }
    }
}

impl Display for Bound {
    fn fmt(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(most) => write!(out, "at most {most}"),
            Self::AtLeast(least) => write!(out, "at least {least}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_may_equal_its_bound_but_not_exceed_it() {
        let most = |measured| Goal::at_most("", measured, 0.25, "×").is_met();
        let least = |measured| Goal::at_least("", measured, 0.97, "×").is_met();
        assert_eq!([0.2, 0.25, 0.26].map(most), [true, true, false]);
        assert_eq!([0.96, 0.97, 1.0].map(least), [false, true, true]);
    }

    #[test]
    fn a_goal_without_a_figure_is_not_met() {
        assert!(!Goal::at_most("", f64::NAN, 1.0, "ms").is_met());
        assert!(!Goal::at_least("", f64::NAN, 1.0, "ms").is_met());
    }

    #[test]
    fn a_known_miss_is_accepted_and_still_shown() {
        let [known, new] =
            ["1,000: a service adds", "lost"].map(|it| Goal::at_most(it, 9.0, 4.0, ""));
        assert_eq!([known.is_accepted(), new.is_accepted()], [true, false]);
        assert_eq!(known.verdict(), new.verdict());
    }
}
