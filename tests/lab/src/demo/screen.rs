//! The output of the demo: colour and progress on a terminal, plain lines in a pipe.

use std::fmt::Display;
use std::io::{IsTerminal, Stdout, Write, stdout};
use std::time::Instant;

use anyhow::Result;

/// All output of this program goes through it.
pub(crate) struct Screen {
    out: Stdout,
    style: Style,
}

#[derive(Clone, Copy)]
enum Style {
    Terminal,
    Plain,
}

/// The result, which is highlighted.
#[derive(Clone, Copy)]
pub(crate) enum ProbeVerdict {
    Good,
    Bad,
}

impl Screen {
    pub(crate) fn stdout() -> Self {
        let out = stdout();
        let style = if out.is_terminal() { Style::Terminal } else { Style::Plain };
        Self { out, style }
    }

    /// On its own line, after an empty one.
    pub(crate) fn heading(&mut self, text: &str) -> Result<()> {
        let text = self.coloured("1", text);
        Ok(writeln!(self.out, "\n{text}")?)
    }

    /// Every line of `text`, indented.
    pub(crate) fn block(&mut self, text: impl Display) -> Result<()> {
        let text = text.to_string();
        text.lines().try_for_each(|line| Ok(writeln!(self.out, "  {}", line.trim_end())?))
    }

    /// Prints the step's name, and its duration when it is done.
    pub(crate) fn step<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.style {
            Style::Terminal => write!(self.out, "  {name:<56} …")?,
            Style::Plain => write!(self.out, "  {name:<56}")?,
        }
        self.out.flush()?;
        let start = Instant::now();
        let outcome = work();
        let result = match &outcome {
            Ok(_) => self.coloured("32", &format!("{:>6.2} s", start.elapsed().as_secs_f64())),
            Err(_) => self.coloured("31", "  failed"),
        };
        match self.style {
            Style::Terminal => writeln!(self.out, "\r  {name:<56} {result}")?,
            Style::Plain => writeln!(self.out, " {result}")?,
        }
        outcome
    }

    pub(crate) fn verdict(&mut self, verdict: ProbeVerdict, text: &str) -> Result<()> {
        let colour = match verdict {
            ProbeVerdict::Good => "1;32",
            ProbeVerdict::Bad => "1;31",
        };
        let text = self.coloured(colour, text);
        Ok(writeln!(self.out, "  {text}")?)
    }

    fn coloured(&self, code: &str, text: &str) -> String {
        match self.style {
            Style::Terminal => format!("\x1b[{code}m{text}\x1b[0m"),
            Style::Plain => text.to_owned(),
        }
    }
}
