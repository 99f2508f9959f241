//! The log on standard error: one line per event, for any content of its fields.

use std::io::{self, IsTerminal, Stderr, Write};

use tracing::Level;
use tracing_subscriber::EnvFilter;

use crate::excerpt;

/// Logs this daemon's events at `verbosity`, and warnings of libraries. The Kubernetes client is
/// silenced: it logs each error that it also returns.
pub fn log_to_stderr(verbosity: Level) {
    let filter = EnvFilter::new(format!("warn,kube_client=off,tweed={verbosity}"));
    let colours = io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || Lines { out: io::stderr(), colours })
        .with_ansi(colours)
        .with_target(false)
        .init();
}

/// Expects one event per write.
struct Lines<W = Stderr> {
    out: W,
    /// Whether events have colours: then the library writes escape sequences, and escapes those in
    /// fields itself.
    colours: bool,
}

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let line = if self.colours {
            text.split(ESCAPE).map(excerpt::line).collect::<Vec<_>>().join(ESCAPE)
        } else {
            excerpt::line(text)
        };
        self.out.write_all(format!("{line}\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

const ESCAPE: &str = "\u{1b}";

#[cfg(test)]
mod tests {
    use super::*;

    fn written(colours: bool, event: &str) -> String {
        let mut lines = Lines { out: Vec::new(), colours };
        assert_eq!(lines.write(event.as_bytes()).unwrap(), event.len());
        String::from_utf8(lines.out).unwrap()
    }

    #[test]
    fn no_field_adds_a_line_or_a_control_character() {
        let event = "WARN rejected lease=a\n2026-01-01 ERROR \u{9b}2J\u{202e}\u{1b}[2J\n";
        let line = "WARN rejected lease=a\\n2026-01-01 ERROR \\u{9b}2J\\u{202e}\\u{1b}[2J\n";
        assert_eq!(written(false, event), line);
    }

    #[test]
    fn only_escape_sequences_of_colours_are_kept() {
        let event = "\u{1b}[33m WARN\u{1b}[0m lease=a\nb\u{202e}\n";
        assert_eq!(written(true, event), "\u{1b}[33m WARN\u{1b}[0m lease=a\\nb\\u{202e}\n");
    }

    #[test]
    fn a_long_event_is_cut() {
        let line = written(false, &"x".repeat(1 << 20));
        assert_eq!(line.chars().count(), excerpt::LINE + 1);
    }
}
