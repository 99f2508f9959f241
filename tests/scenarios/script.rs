//! The form of a scenario: commands with their lines, and everything between them as it was written.

use std::fmt::Write;

/// A line that is kept as it is, or a command.
pub(crate) enum Part {
    Remark(String),
    Command(Command),
}

/// A verb, what follows it, and the indented lines below it.
pub(crate) struct Command {
    pub(crate) verb: String,
    pub(crate) rest: String,
    pub(crate) more: Vec<String>,
    /// As it was written.
    text: String,
}

/// Where what follows the verb begins.
const INDENT: usize = 17;

pub(crate) fn parse(script: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    for line in script.lines() {
        match (line.chars().next(), parts.last_mut()) {
            (None | Some('#'), _) => parts.push(Part::Remark(line.to_owned())),
            (Some(' '), Some(Part::Command(command))) => {
                command.more.push(line.trim().to_owned());
                writeln!(command.text, "{line}").unwrap();
            }
            _ => {
                let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
                let (verb, rest) = (verb.to_owned(), rest.trim().to_owned());
                let text = format!("{line}\n");
                parts.push(Part::Command(Command { verb, rest, more: Vec::new(), text }));
            }
        }
    }
    parts
}

impl Command {
    /// What follows the verb: one item per line.
    pub(crate) fn items(&self) -> impl Iterator<Item = &str> {
        let lines = [&self.rest].into_iter().chain(&self.more);
        lines.map(String::as_str).filter(|item| !item.is_empty())
    }

    /// The same without the first word of the first line, which is the kind of items.
    pub(crate) fn items_of(&self, kind: &str) -> impl Iterator<Item = &str> {
        let first = self.rest.strip_prefix(kind).unwrap_or(&self.rest).trim();
        let more = self.more.iter().map(String::as_str);
        [first].into_iter().filter(|item| !item.is_empty()).chain(more)
    }

    pub(crate) fn kind(&self) -> &str {
        self.rest.split_whitespace().next().unwrap_or_default()
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The command with these items instead of its own.
    pub(crate) fn with(&self, items: &[String]) -> String {
        let mut text = String::new();
        for (index, item) in items.iter().enumerate() {
            let head = if index == 0 { &self.verb } else { "" };
            writeln!(text, "{head:INDENT$}{item}").unwrap();
        }
        text
    }
}
