//! `--watch`: shows a result again and again.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use tokio::time::sleep;

use super::{Answer, Format, Output, write};
use crate::excerpt;
use crate::operator::{Error, ExitStatus};

#[derive(Clone, Copy, Debug, Default, Args)]
pub(in crate::operator) struct WatchFlag {
    /// Repeat every 2s, or as often as given, until interrupted
    #[arg(long = "watch", value_name = "TIME", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "2s", value_parser = interval)]
    interval: Option<Duration>,
}

/// The shortest interval: a result takes some milliseconds of the daemon or the store.
const SHORTEST: Duration = Duration::from_millis(100);

/// Moves the cursor home and clears the screen; what was scrolled away is kept.
const CLEAR: &str = "\x1b[H\x1b[J";

impl WatchFlag {
    /// Writes the result once, or again and again. If a later one is unavailable, its error is
    /// printed instead: a daemon may be restarting.
    pub(in crate::operator) async fn show<A: Answer>(
        self,
        out: &mut impl Write,
        output: Output,
        ask: impl AsyncFn() -> Result<A, Error>,
    ) -> Result<ExitStatus, Error> {
        let first = ask().await?;
        let Some(interval) = self.interval else { return write(out, output, &first) };
        let (before, after) = marks(output.format);
        let mut result = Ok(first);
        loop {
            // In one piece, so that the screen does not flicker.
            let mut page = before.as_bytes().to_vec();
            if let Ok(answer) = &result {
                write(&mut page, output, answer)?;
                page.extend(after.as_bytes());
            }
            out.write_all(&page)?;
            out.flush()?;
            match result {
                Err(Error::Unavailable(why) | Error::Store(why)) => {
                    writeln!(io::stderr(), "tweedctl: {}", excerpt::line(&why))?;
                }
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            sleep(interval).await;
            result = ask().await;
        }
    }
}

/// What is written before and after each result.
fn marks(format: Format) -> (&'static str, &'static str) {
    match format {
        Format::Text | Format::Wide if io::stdout().is_terminal() => (CLEAR, ""),
        Format::Text | Format::Wide => ("", "\n"),
        Format::Json => ("", ""),
        Format::Yaml => ("---\n", ""),
    }
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    let interval = duration(text)?;
    if interval < SHORTEST { Err("expected 100ms or more") } else { Ok(interval) }
}

/// A number needs a unit: otherwise minutes would be taken for seconds.
pub(in crate::operator) fn duration(text: &str) -> Result<Duration, &'static str> {
    let time = text.parse::<SignedDuration>().ok();
    let time = time.and_then(|time| Duration::try_from(time).ok());
    time.ok_or("expected a time with a unit, as in 90s, 10m or 1h")
}
