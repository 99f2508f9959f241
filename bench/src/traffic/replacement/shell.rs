//! A running `ip -batch`, which executes each line as soon as it has read it.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, ensure};
use tweed_lab::Namespace;

pub(super) struct Shell {
    child: Child,
    stdin: ChildStdin,
}

impl Shell {
    pub(super) fn start(namespace: &Namespace) -> Result<Self> {
        let mut command = Command::new("ip");
        command.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = namespace.within(|| command.spawn())??;
        let stdin = child.stdin.take().context("no stdin")?;
        Ok(Self { child, stdin })
    }

    pub(super) fn write(&mut self, lines: &[String]) -> Result<()> {
        let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
        self.stdin.write_all(text.as_bytes()).context("`ip -batch` has ended")
    }

    /// Waits until all lines are executed; a refused line is an error.
    pub(super) fn finish(self) -> Result<()> {
        drop(self.stdin);
        let output = self.child.wait_with_output()?;
        let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "`ip -batch`: {output_text}");
        Ok(())
    }
}
