//! What each call took, one at a time and in a crowd.

use std::time::Duration;

use anyhow::Result;

use super::CROWD;
use super::call::Verb;
use super::contest::Contest;
use crate::report::goal::Goal;
use crate::report::sample::{Sample, ratio};
use crate::report::sheet::{Sheet, precise, thousands};

/// Up to so many reservations an ADD is held to a share of what a small store allows.
const SMALL: u32 = 250;
/// Up to so many there is a goal at all.
const LARGE: u32 = 20_000;

/// One line of the table.
struct Race<'a> {
    reservations: u32,
    verb: Verb,
    at_once: usize,
    ours: &'a Sample<Duration>,
    theirs: &'a Sample<Duration>,
}

pub(super) fn show(contests: &[Contest<'_>], sheet: &mut Sheet) -> Result<()> {
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
    sheet.table("A pod comes and goes", &head)?;
    let races: Vec<_> = contests.iter().flat_map(races).collect();
    races.iter().try_for_each(|race| race.show(sheet))?;
    sheet.goals(&races.iter().filter_map(Race::goal).collect::<Vec<_>>())
}

/// Those that were run.
fn races<'a>(contest: &'a Contest<'_>) -> impl Iterator<Item = Race<'a>> {
    let Contest { reservations, ours, theirs } = contest;
    let races = [(1, &ours.alone, &theirs.alone), (CROWD, &ours.crowd, &theirs.crowd)];
    let races = races.into_iter().flat_map(|(at_once, ours, theirs)| {
        Verb::BOTH.map(|verb| Race {
            reservations: *reservations,
            verb,
            at_once,
            ours: ours.of(verb),
            theirs: theirs.of(verb),
        })
    });
    races.filter(|race| !race.ours.median().is_zero())
}

impl Race<'_> {
    fn show(&self, sheet: &mut Sheet) -> Result<()> {
        let [ours, theirs] = [self.ours, self.theirs]
            .map(|sample| [50, 99].map(|percent| precise(sample.percentile(percent))));
        sheet.row(&[
            &thousands(self.reservations),
            &self.verb.name(),
            &self.at_once,
            &ours[0],
            &ours[1],
            &theirs[0],
            &theirs[1],
            &format!("{:.3} ×", ratio(self.ours, self.theirs)),
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
        is_held.then(|| Goal::at_most(what, ratio(self.ours, self.theirs), most, "×"))
    }
}
