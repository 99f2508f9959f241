//! Markdown, line by line, as soon as there is something to tell.

use std::fmt::Display;
use std::fs::File;
use std::io::{Write, stdout};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

/// What is measured is seen at once, and lasts in a file.
pub(super) struct Sheet {
    file: File,
}

impl Sheet {
    /// Begins `results.md` in `folder` anew.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let path = folder.join("results.md");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        Ok(Self { file })
    }

    /// A paragraph.
    pub(super) fn text(&mut self, text: &str) -> Result<()> {
        self.write(&format!("{text}\n\n"))
    }

    /// A heading, and the head of the table below it.
    pub(super) fn table(&mut self, heading: &str, head: &[&str]) -> Result<()> {
        self.write(&format!("\n### {heading}\n\n"))?;
        self.row(&head.iter().map(|cell| cell as &dyn Display).collect::<Vec<_>>())?;
        self.write(&format!("|{}\n", "---|".repeat(head.len())))
    }

    pub(super) fn row(&mut self, cells: &[&dyn Display]) -> Result<()> {
        let cells: String = cells.iter().map(|cell| format!("| {cell} ")).collect();
        self.write(&format!("{cells}|\n"))
    }

    fn write(&mut self, text: &str) -> Result<()> {
        stdout().write_all(text.as_bytes())?;
        stdout().flush()?;
        Ok(self.file.write_all(text.as_bytes())?)
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
