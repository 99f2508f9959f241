//! Points in time, to the second, as people and programs read them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A second of the common calendar, in universal time: `2026-11-21T14:02:09Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Moment(u64);

/// The text is no moment of that form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no time like 2026-11-21T14:02:09Z")]
pub struct NotAMoment(String);

const DAY: u64 = 24 * 60 * 60;
/// Days from the first of March of the year 0 to the first of January 1970.
const EPOCH: u64 = 719_468;
/// The calendar repeats itself after 400 years.
const ERA: u64 = 146_097;

impl Moment {
    /// `since_epoch` counts from the beginning of 1970.
    pub const fn new(since_epoch: Duration) -> Self {
        Self(since_epoch.as_secs())
    }

    #[must_use]
    pub const fn after(self, passed: Duration) -> Self {
        Self(self.0.saturating_add(passed.as_secs()))
    }

    /// None passed if `earlier` is the later one: clocks differ.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_secs(self.0.saturating_sub(earlier.0))
    }

    /// The clock alone: `14:02:09`.
    pub fn clock(self) -> String {
        let second = self.0 % DAY;
        format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
    }

    /// Year, month and day. The year of the count begins in March, so that the leap day is its last.
    const fn date(self) -> (u64, u64, u64) {
        let days = self.0 / DAY + EPOCH;
        let (era, day) = (days / ERA, days % ERA);
        let year = (day - day / 1460 + day / 36_524 - day / (ERA - 1)) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let year = year + era * 400;
        if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
    }

    fn of(date: [u64; 3], clock: [u64; 3]) -> Option<Self> {
        let ([year, month, day], [hour, minute, second]) = (date, clock);
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let (era, of_era) = (year / 400, year % 400);
        let days = era * ERA + of_era * 365 + of_era / 4 - of_era / 100;
        let days = (days + (153 * month + 2) / 5 + day).checked_sub(EPOCH + 1)?;
        Some(Self(days * DAY + hour * 3600 + minute * 60 + second))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.date();
        write!(f, "{year:04}-{month:02}-{day:02}T{}Z", self.clock())
    }
}

impl FromStr for Moment {
    type Err = NotAMoment;

    fn from_str(text: &str) -> Result<Self, NotAMoment> {
        let number = |at: usize, len: usize| text.get(at..at + len)?.parse::<u64>().ok();
        let read = || {
            let date = [number(0, 4)?.max(1), number(5, 2)?, number(8, 2)?];
            Self::of(date, [number(11, 2)?, number(14, 2)?, number(17, 2)?])
        };
        // Only what is written the same way was read the right way.
        read()
            .filter(|moment| moment.to_string() == text)
            .ok_or_else(|| NotAMoment(text.to_owned()))
    }
}

impl TryFrom<String> for Moment {
    type Error = NotAMoment;

    fn try_from(text: String) -> Result<Self, NotAMoment> {
        text.parse()
    }
}

impl From<Moment> for String {
    fn from(moment: Moment) -> Self {
        moment.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_moments_are_written_as_everybody_does() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_000_000_000, "2001-09-09T01:46:40Z"),
            (1_795_269_729, "2026-11-21T14:02:09Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Moment(seconds).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "2026-11-21",
            "2026-02-30T00:00:00Z",
            "2026-11-21T24:00:00Z",
            "0000-00-00T00:00:00Z",
            "2026-11-21 14:02:09Z",
            "ééééééééééé",
        ] {
            assert!(text.parse::<Moment>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(seconds in 0..253_402_300_800_u64) {
            prop_assert_eq!(Moment(seconds).to_string().parse(), Ok(Moment(seconds)));
        }
    }
}
