//! Many entries by `ip -batch`, `bridge -batch` or `nft -f`, as other programs set them.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use tweed_lab::Namespace;

/// A file of lines, and the program that reads it.
pub(crate) struct Script {
    program: &'static str,
    file: PathBuf,
}

impl Script {
    /// Writes `file` before the measurement, so that only its execution is timed.
    pub(crate) fn write(
        program: &'static str,
        file: PathBuf,
        lines: impl Iterator<Item = String>,
    ) -> Result<Self> {
        let text: String = lines.map(|line| line + "\n").collect();
        std::fs::write(&file, text).with_context(|| file.display().to_string())?;
        Ok(Self { program, file })
    }

    /// Runs it to its end; a refused line is an error.
    pub(crate) fn run(&self, namespace: &Namespace) -> Result<()> {
        let mut command = Command::new(self.program);
        let option = if self.program == "nft" { "-f" } else { "-batch" };
        command.arg(option).arg(&self.file).stdout(Stdio::null()).stderr(Stdio::piped());
        let output = namespace.within(|| command.output())?.context(self.program)?;
        let output_text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} {option}: {output_text}", self.program);
        Ok(())
    }
}

/// Processor time of all ended children of this process.
pub(crate) fn processor_time_of_children() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    Ok(duration(usage.user_time()) + duration(usage.system_time()))
}

fn duration(time: TimeVal) -> Duration {
    let micros = time.tv_sec().saturating_mul(1_000_000).saturating_add(time.tv_usec());
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
