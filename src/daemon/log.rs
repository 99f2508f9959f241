//! The log on standard error: one line per event, for any content of its fields.

use std::io::{self, IsTerminal, Stderr, Write};

use tracing::Level;
use tracing_subscriber::EnvFilter;

use crate::excerpt;

/// The form of each line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// Logs this daemon's events at `verbosity`, and warnings of libraries. The Kubernetes client is
/// silenced: it logs each error that it also returns.
pub fn log_to_stderr(verbosity: Level, format: LogFormat) {
    let filter = EnvFilter::new(format!("warn,kube_client=off,tweed={verbosity}"));
    let colours = io::stderr().is_terminal();
    let form = match format {
        LogFormat::Json => Form::Json,
        LogFormat::Text if colours => Form::Coloured,
        LogFormat::Text => Form::Plain,
    };
    let lines = move || Lines { out: io::stderr(), form };
    let events = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    let events = events.with_writer(lines);
    match format {
        LogFormat::Text => events.with_ansi(colours).init(),
        LogFormat::Json => {
            let events = events.json().flatten_event(true);
            events.with_current_span(false).with_span_list(false).init();
        }
    }
}

#[derive(Clone, Copy)]
enum Form {
    Plain,
    /// The library writes escape sequences, and escapes those in fields itself.
    Coloured,
    /// The library escapes line ends.
    Json,
}

/// Expects one event per write.
struct Lines<W = Stderr> {
    out: W,
    form: Form,
}

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let line = match self.form {
            Form::Plain => excerpt::line(text),
            Form::Coloured => {
                text.split(ESCAPE).map(excerpt::line).collect::<Vec<_>>().join(ESCAPE)
            }
            // What is cut would be no JSON; long values are cut where they are decoded.
            Form::Json => excerpt::printable_json(text.to_owned()),
        };
        // A full disk or a reader that has ended costs the log, and not the daemon: the library panics
        // if it cannot report the error on standard error either.
        drop(self.out.write_all(format!("{line}\n").as_bytes()));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        drop(self.out.flush());
        Ok(())
    }
}

const ESCAPE: &str = "\u{1b}";

#[cfg(test)]
mod tests {
    use super::*;

    fn written(form: Form, event: &str) -> String {
        let mut lines = Lines { out: Vec::new(), form };
        assert_eq!(lines.write(event.as_bytes()).unwrap(), event.len());
        String::from_utf8(lines.out).unwrap()
    }

    #[test]
    fn no_field_adds_a_line_or_a_control_character() {
        let event = "WARN rejected lease=a\n2026-01-01 ERROR \u{9b}2J\u{202e}\u{1b}[2J\n";
        let line = "WARN rejected lease=a\\n2026-01-01 ERROR \\u{9b}2J\\u{202e}\\u{1b}[2J\n";
        assert_eq!(written(Form::Plain, event), line);
    }

    #[test]
    fn only_escape_sequences_of_colours_are_kept() {
        let event = "\u{1b}[33m WARN\u{1b}[0m lease=a\nb\u{202e}\n";
        assert_eq!(
            written(Form::Coloured, event),
            "\u{1b}[33m WARN\u{1b}[0m lease=a\\nb\\u{202e}\n"
        );
    }

    #[test]
    fn an_event_in_json_stays_json_and_drives_no_terminal() {
        let event = "{\"message\":\"rejected\",\"lease\":\"a\u{9b}2J\u{202e}\"}\n";
        let line = written(Form::Json, event);
        assert_eq!(line, "{\"message\":\"rejected\",\"lease\":\"a\\u009b2J\\u202e\"}\n");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["lease"], "a\u{9b}2J\u{202e}");
    }

    /// Standard error on a full disk.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn a_log_that_cannot_be_written_is_no_error() {
        for form in [Form::Plain, Form::Coloured, Form::Json] {
            let mut lines = Lines { out: Full, form };
            assert_eq!(lines.write(b"{}\n").unwrap(), 3);
            lines.flush().unwrap();
        }
    }

    #[test]
    fn a_long_event_is_cut() {
        let line = written(Form::Plain, &"x".repeat(1 << 20));
        assert_eq!(line.chars().count(), excerpt::LINE + 1);
    }
}
