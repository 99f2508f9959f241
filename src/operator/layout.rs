//! Text in 80 columns: tables, and wrapped lines.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use clap::builder::styling::AnsiColor;

use crate::excerpt;
use crate::model::path::ReachabilityState;

const WIDTH: usize = 80;
const GAP: usize = 2;
/// Other nodes write leases: a long text in one must not fill the screen. `-o json` shows it whole.
const LONGEST: usize = 400;

/// How much a text matters: its colour, where there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Good,
    Warning,
    Bad,
}

/// A text that is in colour if the format is `{:#}`.
pub(super) struct Toned<T>(pub(super) Tone, pub(super) T);

/// Rows under a heading, each with an optional note below it.
pub(super) struct TextTable {
    heading: &'static [&'static str],
    width: usize,
    /// The heading is the first.
    rows: Vec<Row>,
}

struct Row {
    tone: Tone,
    cells: Vec<String>,
    note: Option<String>,
}

impl<T: fmt::Display> fmt::Display for Toned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(tone, text) = self;
        let colour = match tone {
            Tone::Plain => None,
            Tone::Good => Some(AnsiColor::Green),
            Tone::Warning => Some(AnsiColor::Yellow),
            Tone::Bad => Some(AnsiColor::Red),
        };
        match colour.filter(|_| f.alternate()).map(AnsiColor::on_default) {
            Some(style) => write!(f, "{style}{text}{style:#}"),
            None => write!(f, "{text}"),
        }
    }
}

impl From<Option<ReachabilityState>> for Tone {
    fn from(state: Option<ReachabilityState>) -> Self {
        match state {
            Some(ReachabilityState::Unreachable) => Self::Bad,
            Some(ReachabilityState::Degraded) => Self::Warning,
            Some(ReachabilityState::Reachable | ReachabilityState::Unknown) | None => Self::Plain,
        }
    }
}

impl TextTable {
    pub(super) fn new(heading: &'static [&'static str]) -> Self {
        let words = heading.iter().map(ToString::to_string).collect();
        let first = Row { tone: Tone::Plain, cells: words, note: None };
        Self { heading, width: WIDTH, rows: vec![first] }
    }

    /// As [`TextTable::new`], with columns as wide as their cells.
    pub(super) fn wide(heading: &'static [&'static str]) -> Self {
        Self { width: usize::MAX, ..Self::new(heading) }
    }

    /// One cell for each word of the heading.
    pub(super) fn row(&mut self, cells: &[&dyn fmt::Display], note: Option<String>) {
        self.toned_row(Tone::Plain, cells, note);
    }

    pub(super) fn toned_row(
        &mut self,
        tone: Tone,
        cells: &[&dyn fmt::Display],
        note: Option<String>,
    ) {
        let cells = cells.iter().map(|cell| printable(&cell.to_string())).collect();
        self.rows.push(Row { tone, cells, note });
    }

    /// Where each column starts. The widest columns shrink until all fit; a cell that is too long
    /// for its column moves the cells after it to the next line.
    fn starts(&self) -> Vec<usize> {
        let mut widths = vec![0; self.heading.len()];
        for Row { cells, .. } in &self.rows {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = length(cell).max(*width);
            }
        }
        let used = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * (widths.len() - 1);
        while used(&widths) > self.width {
            let columns = widths.iter_mut().zip(self.heading);
            let widest = columns.filter(|(width, word)| **width > word.len()).max_by_key(|c| *c.0);
            let Some((width, _)) = widest else { break };
            *width -= 1;
        }
        let start = |column| widths.iter().take(column).map(|width| width + GAP).sum();
        (0..widths.len()).map(start).collect()
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let starts = self.starts();
        for Row { tone, cells, note } in &self.rows {
            let mut lines = lines(&starts, cells);
            lines.extend(note.as_ref().map(|note| wrap(&format!("    {note}"), 6)));
            Toned(*tone, lines.join("\n")).fmt(f)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The lines of a row, usually one.
fn lines(starts: &[usize], cells: &[String]) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for (start, cell) in starts.iter().zip(cells) {
        if length(&line) + GAP > *start && *start > 0 {
            lines.push(line.trim_end().to_owned());
            line.clear();
        }
        line.extend(std::iter::repeat_n(' ', start - length(&line)));
        line.push_str(cell);
    }
    lines.push(line.trim_end().to_owned());
    lines
}

/// `text` in lines of 80 columns; all but the first are indented by `indent`.
pub(super) fn wrap(text: &str, indent: usize) -> String {
    let text = printable(text);
    let words = text.trim_start();
    let mut wrapped = " ".repeat(text.len() - words.len());
    let mut column = wrapped.len();
    let mut separator = "";
    for word in words.split(' ') {
        if column + separator.len() + length(word) > WIDTH && column > indent {
            wrapped.push('\n');
            wrapped.push_str(&" ".repeat(indent));
            (column, separator) = (indent, "");
        }
        wrapped.push_str(separator);
        wrapped.push_str(word);
        column += separator.len() + length(word);
        separator = " ";
    }
    wrapped
}

/// As [`wrap`], for a kernel entry; each rule of a table starts a new line.
pub(super) fn wrap_entry(text: &str, indent: usize) -> String {
    let margin = " ".repeat(indent);
    let rules = text.split_inclusive("; ").enumerate();
    let lines = rules.map(|(number, rule)| match number {
        0 => wrap(rule.trim_end(), indent),
        _ => wrap(&format!("{margin}{}", rule.trim_end()), indent + 2),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// `items` separated by commas, or `nothing`.
pub(super) fn listed(items: &[impl ToString], nothing: &str) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    if items.is_empty() { nothing.to_owned() } else { items.join(", ") }
}

/// The text of a table's cell: `-` without a value.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// As in `48 s`.
pub(super) fn age(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// As in ` for 48 s`; empty if the time is unknown.
pub(super) fn lasting(time: Option<Duration>) -> String {
    time.map(|time| format!(" for {}", age(time))).unwrap_or_default()
}

/// As in `6 pairs: 4 reachable, 2 unreachable`.
pub(super) fn summary(what: &str, totals: &BTreeMap<impl fmt::Display, usize>) -> String {
    let states = totals.iter().filter(|(_, count)| **count > 0);
    let states: Vec<String> = states.map(|(state, count)| format!("{count} {state}")).collect();
    let all = counted(totals.values().sum(), what);
    format!("{all}{}{}", if states.is_empty() { "" } else { ": " }, states.join(", "))
}

/// `1 route`, `2 routes`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Without characters that move the cursor, change colours or reverse the text direction.
fn printable(text: &str) -> String {
    let is_printable = |c: &char| excerpt::is_printable(c.encode_utf8(&mut [0; 4]));
    let mut printable: String = text
        .chars()
        .take(LONGEST)
        .map(|c| if is_printable(&c) { c } else { char::REPLACEMENT_CHARACTER })
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        printable.push('…');
    }
    printable
}

fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn table(rows: &[[&str; 3]]) -> String {
        let mut table = TextTable::new(&["SUBNET", "PUBLIC IP", "STATE"]);
        for row in rows {
            table.row(&row.each_ref().map(|cell| cell as &dyn fmt::Display), None);
        }
        table.to_string()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        expect![[r"
            SUBNET         PUBLIC IP   STATE
            10.244.3.0/24  172.16.0.9  here
            fd00::/64      fd00::9     there
        "]]
        .assert_eq(&table(&[
            ["10.244.3.0/24", "172.16.0.9", "here"],
            ["fd00::/64", "fd00::9", "there"],
        ]));
    }

    #[test]
    fn a_row_that_is_too_long_is_continued_below() {
        let address = "2001:db8:1234:5678:9abc:def0:1234:5678";
        let text = table(&[
            ["2001:db8:1234:5678:9abc::/80", address, "not programmed"],
            ["10.244.3.0/24", "172.16.0.9", "not programmed"],
        ]);
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        expect![[r"
            SUBNET                        PUBLIC IP                           STATE
            2001:db8:1234:5678:9abc::/80  2001:db8:1234:5678:9abc:def0:1234:5678
                                                                              not programmed
            10.244.3.0/24                 172.16.0.9                          not programmed
        "]]
        .assert_eq(&text);
    }

    #[test]
    fn rows_have_colours_only_where_these_are_asked_for() {
        let mut table = TextTable::new(&["NODE", "STATE"]);
        table.row(&[&"n1", &"ready"], None);
        table.toned_row(Tone::Bad, &[&"n2", &"dead"], Some("why".into()));
        table.toned_row(Tone::Warning, &[&"n3", &"stale"], None);
        let text = "NODE  STATE\nn1    ready\nn2    dead\n    why\nn3    stale\n";
        assert_eq!(table.to_string(), text);
        let red = "\u{1b}[31mn2    dead\n    why\u{1b}[0m\n";
        let yellow = "\u{1b}[33mn3    stale\u{1b}[0m\n";
        assert_eq!(format!("{table:#}"), format!("NODE  STATE\nn1    ready\n{red}{yellow}"));
    }

    #[test]
    fn long_lines_wrap_between_words() {
        let text = wrap(&format!("- {}", "twelve bytes ".repeat(10).trim_end()), 4);
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        expect![[r"
            - twelve bytes twelve bytes twelve bytes twelve bytes twelve bytes twelve bytes
                twelve bytes twelve bytes twelve bytes twelve bytes"]]
        .assert_eq(&text);
    }

    #[test]
    fn foreign_text_cannot_control_the_terminal() {
        let text = table(&[["\u{1b}[2J\u{202e}", "\n\u{9b}31m", &"x".repeat(100_000)]]);
        assert!(text.lines().all(excerpt::is_printable), "{text:?}");
        assert_eq!(text.lines().count(), 2);
        assert!(text.len() < 1000);
    }
}
