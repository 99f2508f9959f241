//! Markdown, line by line, as soon as there is something to tell.

use std::fmt::Display;
use std::io::{Stdout, Write, stdout};
use std::time::Duration;

use anyhow::Result;

pub(super) struct Sheet {
    out: Stdout,
}

impl Sheet {
    pub(super) fn stdout() -> Self {
        Self { out: stdout() }
    }

    /// A paragraph.
    pub(super) fn text(&mut self, text: &str) -> Result<()> {
        Ok(writeln!(self.out, "{text}\n")?)
    }

    /// A heading, and the head of the table below it.
    pub(super) fn table(&mut self, heading: &str, head: &[&str]) -> Result<()> {
        writeln!(self.out, "\n### {heading}\n")?;
        self.row(&head.iter().map(|cell| cell as &dyn Display).collect::<Vec<_>>())?;
        Ok(writeln!(self.out, "|{}", "---|".repeat(head.len()))?)
    }

    pub(super) fn row(&mut self, cells: &[&dyn Display]) -> Result<()> {
        cells.iter().try_for_each(|cell| write!(self.out, "| {cell} "))?;
        writeln!(self.out, "|")?;
        Ok(self.out.flush()?)
    }
}

/// Milliseconds with a digit behind the point; seconds where they are many; a dash for none.
pub(super) fn time(duration: Duration) -> String {
    let milliseconds = duration.as_secs_f64() * 1000.0;
    match duration {
        Duration::ZERO => "–".to_owned(),
        _ if milliseconds < 1000.0 => format!("{milliseconds:.1} ms"),
        _ => format!("{:.2} s", duration.as_secs_f64()),
    }
}
