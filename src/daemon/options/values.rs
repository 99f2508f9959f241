//! Parses the values of flags, in Go's notation.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use regex::Regex;
use tracing::Level;

use crate::daemon::log::LogFormat;
use crate::model::policy::Checksums;

/// Describes in an error which values a flag allows.
pub(super) type Allowed = &'static str;

/// Go's spellings.
pub(super) fn boolean(text: &str) -> Result<bool, Allowed> {
    match text {
        "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false),
        _ => Err("true or false"),
    }
}

/// What a boolean stands for.
pub(super) fn either<T: Copy>(yes: T, no: T) -> impl Fn(&str) -> Result<T, Allowed> {
    move |text| Ok(if boolean(text)? { yes } else { no })
}

/// Go's notation: `0x`, `0o` or just `0`, and `0b` change the base.
pub(super) fn integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (radix, digits) = match digits.get(..2).unwrap_or(digits) {
        "0x" | "0X" => (16, digits.get(2..)?),
        "0o" | "0O" => (8, digits.get(2..)?),
        "0b" | "0B" => (2, digits.get(2..)?),
        start if start.len() == 2 && start.starts_with('0') => (8, digits),
        _ => (10, digits),
    };
    // The library would accept another sign here.
    let digits = Some(digits).filter(|digits| !digits.starts_with(['+', '-']))?;
    let size = i64::from_str_radix(digits, radix).ok()?;
    Some(if text.starts_with('-') { -size } else { size })
}

fn within<T: TryFrom<i64>>(text: &str, range: RangeInclusive<i64>) -> Option<T> {
    integer(text).filter(|number| range.contains(number)).and_then(|number| number.try_into().ok())
}

pub(super) fn renew_margin(text: &str) -> Result<Duration, Allowed> {
    let minutes = within::<u64>(text, 1..=1439).ok_or("1 to 1439 minutes")?;
    Ok(Duration::from_secs(minutes * 60))
}

pub(super) fn lease_ttl(text: &str) -> Result<Duration, Allowed> {
    let minutes = within::<u64>(text, 2..=525_600).ok_or("2 to 525600 minutes")?;
    Ok(Duration::from_secs(minutes * 60))
}

/// flanneld accepts any number; the nearest one within the bounds is used.
pub(super) fn resync(text: &str) -> Result<Duration, Allowed> {
    let seconds = integer(text).ok_or("a number of seconds")?.clamp(1, 86_400);
    Ok(Duration::from_secs(seconds.unsigned_abs()))
}

pub(super) fn percent(text: &str) -> Result<u8, Allowed> {
    within(text, 0..=100).ok_or("0 to 100 percent")
}

pub(super) fn bit(text: &str) -> Result<u8, Allowed> {
    within(text, 0..=31).ok_or("a bit from 0 to 31")
}

/// A negative one means no port, like 0.
pub(super) fn port(text: &str) -> Result<u16, Allowed> {
    let port = integer(text).map(|port| port.max(0));
    port.and_then(|port| port.try_into().ok()).ok_or("a port from 0 to 65535")
}

pub(super) fn checksums(text: &str) -> Result<Checksums, Allowed> {
    match text {
        "auto" => Ok(Checksums::WhereNeeded),
        "computed" => Ok(Checksums::Computed),
        "keep" => Ok(Checksums::Left),
        _ => Err("auto, computed or keep"),
    }
}

pub(super) fn level(text: &str) -> Result<Level, Allowed> {
    match integer(text).ok_or("a number")? {
        ..=1 => Ok(Level::INFO),
        2..=4 => Ok(Level::DEBUG),
        5.. => Ok(Level::TRACE),
    }
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, Allowed> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("text or json"),
    }
}

pub(super) fn file(text: &str) -> Result<PathBuf, Allowed> {
    let path = PathBuf::from(text);
    if path.file_name().is_some() { Ok(path) } else { Err("the path of a file") }
}

/// The library's error has several lines; the last one is the reason.
pub(super) fn regex(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| {
        let message = error.to_string();
        let reason = message.lines().last().unwrap_or_default();
        format!("a regular expression ({})", reason.trim_start_matches("error: "))
    })
}

pub(super) fn parsed<T: FromStr>(allowed: Allowed) -> impl Fn(&str) -> Result<T, Allowed> {
    move |text| text.parse().map_err(|_| allowed)
}
