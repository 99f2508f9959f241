//! The result of a command as text, JSON or YAML, once or again and again.

mod selection;
mod watch;

pub(super) use self::selection::{Selection, is_named, numeric};
pub(super) use self::watch::{WatchFlag, duration};

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use clap::{Args, ColorChoice, ValueEnum};
use serde::Serialize;

use super::{Error, ExitStatus};
use crate::excerpt;

/// The result of a command: text by `Display`, with colours by `{:#}`; JSON and YAML by `Serialize`.
pub(super) trait Answer: Display + Serialize {
    /// The text with more columns, if there are any.
    fn wide(&self) -> impl Display {
        self
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::Done
    }
}

/// How results are written.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Output {
    /// Output format: text, wide, json or yaml
    #[arg(short = 'o', long = "output", value_name = "FORMAT", global = true, value_enum)]
    #[arg(default_value_t = Format::Text, hide_possible_values = true)]
    pub(super) format: Format,
    /// Colours of text: always, never or auto, which means on a terminal
    #[arg(long, value_name = "WHEN", global = true, value_enum)]
    #[arg(default_value_t = ColorChoice::Auto, hide_possible_values = true)]
    pub(super) color: ColorChoice,
}

/// The format of a command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Text,
    /// Text of any width, with more columns.
    Wide,
    Json,
    Yaml,
}

impl Output {
    fn has_colours(self) -> bool {
        let variable = |name| std::env::var(name).unwrap_or_default();
        match self.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                let is_wanted = variable("NO_COLOR").is_empty() && variable("TERM") != "dumb";
                is_wanted && io::stdout().is_terminal()
            }
        }
    }
}

pub(super) fn write(
    out: &mut impl Write,
    output: Output,
    answer: &impl Answer,
) -> Result<ExitStatus, Error> {
    match output.format {
        Format::Text => write_text(out, output, answer)?,
        Format::Wide => write_text(out, output, &answer.wide())?,
        Format::Json => writeln!(out, "{}", json(answer)?)?,
        Format::Yaml => write!(out, "{}", yaml(answer)?)?,
    }
    out.flush()?;
    Ok(answer.exit_status())
}

/// Text, with colours where these are asked for.
pub(super) fn write_text(
    out: &mut impl Write,
    output: Output,
    text: &impl Display,
) -> io::Result<()> {
    if output.has_colours() { write!(out, "{text:#}") } else { write!(out, "{text}") }
}

fn json(answer: &impl Serialize) -> io::Result<String> {
    Ok(excerpt::printable_json(serde_json::to_string_pretty(answer)?))
}

/// One document of lines that end. What is not printable is written as JSON, which is YAML, too.
pub(super) fn yaml(answer: &impl Serialize) -> io::Result<String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let yaml = serde_saphyr::to_string_with_options(answer, options).map_err(io::Error::other)?;
    let yaml = if yaml.lines().all(excerpt::is_printable) { yaml } else { json(answer)? };
    Ok(format!("{}\n", yaml.trim_end()))
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    /// A result that contains text of other nodes.
    #[derive(Serialize)]
    struct Written(&'static str);

    impl fmt::Display for Written {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Answer for Written {}

    #[test]
    fn json_drives_no_terminal() {
        let mut out = Vec::new();
        let output = Output { format: Format::Json, color: ColorChoice::Always };
        write(&mut out, output, &Written("\u{9b}2J\u{202e}")).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\"\\u009b2J\\u202e\"\n");
    }

    #[test]
    fn yaml_has_the_values_of_json_and_drives_no_terminal() {
        #[derive(Serialize)]
        struct Tricky {
            texts: Vec<&'static str>,
            number: u128,
            none: Option<u8>,
            nested: Vec<Vec<u8>>,
            long: String,
        }
        let tricky = |texts: &[&'static str]| Tricky {
            texts: texts.to_vec(),
            number: 65_536,
            none: None,
            nested: vec![vec![], vec![7]],
            long: "a reason: with a colon, # and 'quotes' ".repeat(9),
        };
        let plain = [
            "10.5.0.0/16",
            "fd00::/64",
            "null",
            "on",
            "12:30",
            "1e3",
            "",
            "~",
            "- x",
            "a: b",
            "0x1",
        ];
        for texts in [&plain[..], &["\u{9b}2J", "\u{202e}", "\u{1b}[2J", "a\nb"]] {
            let yaml = yaml(&tricky(texts)).unwrap();
            assert!(yaml.lines().all(excerpt::is_printable), "{yaml:?}");
            let read: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
            assert_eq!(read, serde_json::to_value(tricky(texts)).unwrap(), "{yaml}");
        }
    }
}
