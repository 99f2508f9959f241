//! The time that each call takes: one at a time, and many at once.

use std::time::Duration;

use anyhow::Result;

use super::AT_ONCE;
use super::call::Verb;
use super::comparison::Comparison;
use crate::report::goal::Goal;
use crate::report::sample::{Sample, ratio};
use crate::report::sheet::{Sheet, precise, thousands};

/// With at most this number of reservations, an ADD must stay within a fixed ratio of the time with
/// a small store.
const SMALL: u32 = 250;
/// Above this number of reservations there is no goal.
const LARGE: u32 = 20_000;

/// One line of the table.
struct Race<'a> {
    reservations: u32,
    verb: Verb,
    at_once: usize,
    tweed: &'a Sample<Duration>,
    debian: &'a Sample<Duration>,
}

pub(super) fn show(comparisons: &[Comparison<'_>], sheet: &mut Sheet) -> Result<()> {
    let head = [
        "reservations",
        "call",
        "at once",
        "flannel, p50",
        "p99",
        "`bridge` and `host-local`, p50",
        "p99",
        "ratio of p50",
    ];
    sheet.table("ADD and DEL of a pod", &head)?;
    let races: Vec<_> = comparisons.iter().flat_map(races).collect();
    races.iter().try_for_each(|race| race.show(sheet))?;
    sheet.goals(&races.iter().filter_map(Race::goal).collect::<Vec<_>>())
}

/// The races that were run.
fn races<'a>(comparison: &'a Comparison<'_>) -> impl Iterator<Item = Race<'a>> {
    let Comparison { reservations, tweed, debian } = comparison;
    let races = [(1, &tweed.alone, &debian.alone), (AT_ONCE, &tweed.at_once, &debian.at_once)];
    let races = races.into_iter().flat_map(|(at_once, tweed, debian)| {
        Verb::BOTH.map(|verb| Race {
            reservations: *reservations,
            verb,
            at_once,
            tweed: tweed.of(verb),
            debian: debian.of(verb),
        })
    });
    races.filter(|race| !race.tweed.median().is_zero())
}

impl Race<'_> {
    fn show(&self, sheet: &mut Sheet) -> Result<()> {
        let [tweed, debian] = [self.tweed, self.debian]
            .map(|sample| [50, 99].map(|percent| precise(sample.percentile(percent))));
        sheet.row(&[
            &thousands(self.reservations),
            &self.verb.name(),
            &self.at_once,
            &tweed[0],
            &tweed[1],
            &debian[0],
            &debian[1],
            &format!("{:.3} ×", ratio(self.tweed, self.debian)),
        ])
    }

    fn goal(&self) -> Option<Goal> {
        let most = match self.verb {
            Verb::Add if self.reservations <= SMALL => 0.25,
            Verb::Add => 0.1,
            Verb::Del => 1.0,
        };
        let what = format!(
            "{}, {} reservations, {} at once, p50 against `bridge`",
            self.verb.name(),
            thousands(self.reservations),
            self.at_once
        );
        let is_held = self.reservations <= LARGE;
        is_held.then(|| Goal::at_most(what, ratio(self.tweed, self.debian), most, "×"))
    }
}
