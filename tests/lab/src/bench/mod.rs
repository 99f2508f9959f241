//! The bench: what migrations and faults cost in packets, and what the daemon costs in memory, as Markdown.

mod faults;
mod flips;
mod machine;
mod scale;
mod sheet;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use tweed_lab::Binaries;

use sheet::Sheet;

/// Packets per second and pair of pods.
const RATE: u32 = 1000;

/// Packets flow for so long after each step.
const PAUSE: Duration = Duration::from_millis(500);

/// `rounds`: so many migrations of each kind.
pub(crate) fn run(binaries: &Binaries, rounds: usize) -> Result<ExitCode> {
    let mut sheet = Sheet::stdout();
    sheet.text(&machine::describe()?)?;
    flips::run(binaries, rounds, &mut sheet)?;
    faults::run(binaries, &mut sheet)?;
    scale::run(binaries, &mut sheet)?;
    Ok(ExitCode::SUCCESS)
}
