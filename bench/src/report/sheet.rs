//! The results as Markdown, written line by line during the run.

use std::fmt::Display;
use std::fs::File;
use std::io::{Write, stdout};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::report::goal::Goal;
use crate::report::sample::Sample;

/// Every line is printed at once, and also written to a file.
pub(crate) struct Sheet {
    file: File,
    /// Missed goals that are not accepted, and what could not be measured.
    misses: Vec<String>,
}

impl Sheet {
    /// Creates an empty `results.md` in `folder`.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let path = folder.join("results.md");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        Ok(Self { file, misses: Vec::new() })
    }

    /// A paragraph.
    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        self.write(&format!("{text}\n\n"))
    }

    pub(crate) fn heading(&mut self, heading: &str) -> Result<()> {
        self.write(&format!("\n### {heading}\n\n"))
    }

    /// A heading, and the head of the table below it.
    pub(crate) fn table(&mut self, heading: &str, head: &[&str]) -> Result<()> {
        self.heading(heading)?;
        self.row(&head.iter().map(|cell| cell as &dyn Display).collect::<Vec<_>>())?;
        self.write(&format!("|{}\n", "---|".repeat(head.len())))
    }

    pub(crate) fn row(&mut self, cells: &[&dyn Display]) -> Result<()> {
        cells.iter().try_for_each(|cell| self.write(&format!("| {cell} ")))?;
        self.write("|\n")
    }

    /// A table of goals, each with its verdict.
    pub(crate) fn goals(&mut self, goals: &[Goal]) -> Result<()> {
        self.write("\n| goal | wanted | measured | |\n|---|---|---|---|\n")?;
        goals.iter().try_for_each(|goal| {
            let Goal { what, measured, bound, unit } = goal;
            let (wanted, measured) = (format!("{bound} {unit}"), format!("{measured:.2} {unit}"));
            if !goal.is_accepted() {
                self.miss(what);
            }
            self.row(&[what, &wanted, &measured, &goal.verdict()])
        })?;
        self.write("\n")
    }

    /// Notes that `what` could not be measured, or was not as wanted.
    pub(crate) fn miss(&mut self, what: impl Into<String>) {
        self.misses.push(what.into());
    }

    /// An error if anything was missed.
    pub(crate) fn conclude(mut self) -> Result<()> {
        let misses = std::mem::take(&mut self.misses);
        if misses.is_empty() {
            return Ok(());
        }
        let count = misses.len();
        self.text(&format!("\n**{count} goals missed:** {}", misses.join("; ")))?;
        bail!("{count} goals missed")
    }

    fn write(&mut self, text: &str) -> Result<()> {
        stdout().write_all(text.as_bytes())?;
        stdout().flush()?;
        Ok(self.file.write_all(text.as_bytes())?)
    }
}

/// Milliseconds with one decimal; seconds for long times; a dash for none.
pub(crate) fn time(duration: Duration) -> String {
    match duration {
        Duration::ZERO => "–".to_owned(),
        _ => Unit::of(duration).shown(duration),
    }
}

/// The median, with the smallest and the largest figure.
pub(crate) fn spread(sample: &Sample<Duration>) -> String {
    let unit = Unit::of(sample.median());
    let (min, max) = (unit.number(sample.min()), unit.number(sample.max()));
    format!("{} ({min}–{max})", unit.shown(sample.median()))
}

/// Milliseconds with two decimals; seconds for long times.
pub(crate) fn precise(duration: Duration) -> String {
    match Unit::of(duration) {
        Unit::Milliseconds => format!("{:.2} ms", duration.as_secs_f64() * 1000.0),
        Unit::Seconds => Unit::Seconds.shown(duration),
    }
}

#[derive(Clone, Copy)]
enum Unit {
    Milliseconds,
    Seconds,
}

impl Unit {
    fn of(duration: Duration) -> Self {
        if duration < Duration::from_secs(1) { Self::Milliseconds } else { Self::Seconds }
    }

    fn number(self, duration: Duration) -> String {
        match self {
            Self::Milliseconds => format!("{:.1}", duration.as_secs_f64() * 1000.0),
            Self::Seconds => format!("{:.2}", duration.as_secs_f64()),
        }
    }

    fn shown(self, duration: Duration) -> String {
        let name = match self {
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
        };
        format!("{} {name}", self.number(duration))
    }
}

/// Memory in the unit of the goals: millions of bytes.
pub(crate) fn megabytes(kib: u64) -> f64 {
    Duration::from_micros(kib * 1024).as_secs_f64()
}

/// A whole number with separated thousands.
pub(crate) fn thousands(number: impl Display) -> String {
    let digits = number.to_string();
    let apart = |(index, digit): (usize, char)| {
        let is_boundary = index > 0 && (digits.len() - index).is_multiple_of(3);
        is_boundary.then_some(',').into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(apart).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_with_a_missed_goal_fails_at_its_end() {
        let folder = std::env::temp_dir().join(format!("tweed-bench-{}", std::process::id()));
        let conclude = |goals: &[Goal]| {
            let mut sheet = Sheet::open(&folder).unwrap();
            sheet.goals(goals).unwrap();
            sheet.conclude().map_err(|error| error.to_string())
        };
        assert_eq!(conclude(&[Goal::at_most("lost", 0.0, 0.0, "packets")]), Ok(()));
        let [lost, late] = ["lost", "late"].map(|it| Goal::at_most(it, 3.0, 0.0, "packets"));
        assert_eq!(conclude(&[lost, late]), Err("2 goals missed".to_owned()));
        let written = std::fs::read_to_string(folder.join("results.md")).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        assert!(written.ends_with("**2 goals missed:** lost; late\n\n"), "{written}");
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(
            [7, 100, 5000, 20_000, 1_234_567].map(thousands),
            ["7", "100", "5,000", "20,000", "1,234,567"]
        );
    }

    #[test]
    fn times_have_the_unit_for_their_size() {
        let shown = [0, 250, 42_040, 1_500_000].map(|micros| time(Duration::from_micros(micros)));
        assert_eq!(shown, ["–", "0.2 ms", "42.0 ms", "1.50 s"]);
    }

    #[test]
    fn a_spread_has_one_unit() {
        let sample = [900, 1200, 1100].into_iter().map(Duration::from_millis).collect();
        assert_eq!(spread(&sample), "1.10 s (0.90–1.20)");
    }

    #[test]
    fn memory_is_shown_in_millions_of_bytes() {
        assert!((megabytes(19_531) - 20.0).abs() < 0.001);
    }
}
