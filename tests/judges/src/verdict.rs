//! The verdicts of a judge, as a table in Markdown that grows during the run.

use std::fs::File;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Count, Outcomes};

pub(crate) struct Verdicts {
    file: File,
    only: Option<String>,
    passed: usize,
    failed: usize,
}

/// What a case that passed has counted.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// Packets between pods.
    pub(crate) packets: Count,
    /// Connections that stayed open.
    pub(crate) connections: usize,
    /// What else a reader wants to know.
    pub(crate) remark: String,
}

impl Verdicts {
    /// Only cases whose name contains `only` will run.
    pub(crate) fn open(path: &Path, only: Option<String>) -> Result<Self> {
        let folder = path.parent().context("a file without a folder")?;
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let mut verdicts = Self { file, only, passed: 0, failed: 0 };
        verdicts.row(&["case", "verdict", "packets", "lost", "connections", "time", "remarks"])?;
        verdicts.row(&["---"; 7])?;
        Ok(verdicts)
    }

    /// A failed case does not end the run.
    pub(crate) fn run(&mut self, case: &str, play: impl FnOnce() -> Result<Counted>) -> Result<()> {
        if self.only.as_ref().is_some_and(|only| !case.contains(only.as_str())) {
            return Ok(());
        }
        let started = Instant::now();
        let played = play();
        let took = format!("{:.0} s", started.elapsed().as_secs_f64());
        match played {
            Ok(Counted { packets, connections, remark }) => {
                self.passed += 1;
                let [sent, lost, open] =
                    [packets.sent.to_string(), packets.lost.to_string(), connections.to_string()];
                self.row(&[case, "passed", &sent, &lost, &open, &took, &remark])
            }
            Err(error) => {
                self.failed += 1;
                let reason = format!("{error:#}").replace('|', "\\|").replace('\n', "<br>");
                self.row(&[case, "**failed**", "", "", "", &took, &reason])
            }
        }
    }

    /// Fails, too, if no case ran.
    pub(crate) fn finish(mut self) -> Result<ExitCode> {
        let Self { passed, failed, .. } = self;
        ensure!(passed + failed > 0, "no case has such a name");
        self.write(&format!("\n{passed} passed, {failed} failed\n"))?;
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn row(&mut self, cells: &[&str]) -> Result<()> {
        self.write(&format!("| {} |\n", cells.join(" | ")))
    }

    fn write(&mut self, text: &str) -> Result<()> {
        stdout().write_all(text.as_bytes())?;
        stdout().flush()?;
        Ok(self.file.write_all(text.as_bytes())?)
    }
}

/// The number of open connections; an error that names each broken one.
pub(crate) fn all_open(outcomes: &Outcomes) -> Result<usize> {
    let broken: Vec<&str> =
        outcomes.values().flat_map(|outcome| &outcome.broken).map(String::as_str).collect();
    ensure!(broken.is_empty(), "{} broken connections: {}", broken.len(), broken.join("; "));
    Ok(outcomes.values().map(|outcome| outcome.open).sum())
}
