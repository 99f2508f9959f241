//! `tweedctl events`: the last changes on this node, and further ones as they happen.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use tokio::time::sleep;

use super::layout::{Tone, Toned, wrap};
use super::node::{self, Unanswered};
use super::output::{Format, Output, write_text, yaml};
use super::{Error, ExitStatus};
use crate::excerpt;
use crate::model::event::{EventPage, NodeChange, NodeEvent};

#[derive(Debug, Args)]
pub(super) struct EventsOptions {
    /// Shows further events as they happen, until interrupted
    #[arg(short, long)]
    follow: bool,
}

/// The interval at which the daemon is asked for further events.
const INTERVAL: Duration = Duration::from_secs(1);

/// Where a line continues: below the kind.
const INDENT: usize = 22;

/// One line of the output.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum Line {
    Event(Arc<NodeEvent>),
    Notice(Notice),
}

/// Something about the events themselves.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Notice {
    kind: NoticeKind,
    /// The number of events that are missing here, if it is known.
    missing: Option<u64>,
    message: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum NoticeKind {
    /// Events are missing here.
    Gap,
    /// The daemon does not answer. Events may be missing if it was restarted meanwhile.
    Waiting,
}

/// How far the events of a daemon were shown.
#[derive(Debug)]
struct Cursor {
    started: Timestamp,
    last: u64,
    is_waiting: bool,
}

/// Shows the events that the daemon keeps and, if asked, each further one once.
pub(super) async fn run(
    socket: &Path,
    options: &EventsOptions,
    output: Output,
    out: &mut impl Write,
) -> Result<ExitStatus, Error> {
    let first = ask(socket, 0).await?;
    let mut cursor = Cursor::before(&first);
    // Old events are not kept, which is no gap.
    cursor.last = first.events.first().map_or(0, |event| event.sequence - 1);
    write_lines(out, output, &cursor.advance(first))?;
    if !options.follow {
        return Ok(ExitStatus::Done);
    }
    loop {
        sleep(INTERVAL).await;
        let lines = match ask(socket, cursor.last).await {
            Ok(page) if page.started == cursor.started => cursor.advance(page),
            Ok(_) => match ask(socket, 0).await {
                Ok(page) => cursor.restart(page),
                Err(unanswered) => cursor.wait(&unanswered),
            },
            Err(unanswered) => cursor.wait(&unanswered),
        };
        write_lines(out, output, &lines)?;
    }
}

async fn ask(socket: &Path, after: u64) -> Result<EventPage, Unanswered> {
    node::ask(socket, &format!("/events/{after}")).await
}

fn write_lines(out: &mut impl Write, output: Output, lines: &[Line]) -> Result<(), Error> {
    for line in lines {
        match output.format {
            Format::Text => write_text(out, output, &line.toned(wrap(&line.to_string(), INDENT)))?,
            Format::Wide => write_text(out, output, &line.toned(excerpt::line(&line.to_string())))?,
            Format::Json => {
                let json = serde_json::to_string(line).map_err(std::io::Error::from)?;
                writeln!(out, "{}", excerpt::printable_json(json))?;
            }
            Format::Yaml => write!(out, "---\n{}", yaml(line)?)?,
        }
    }
    Ok(out.flush()?)
}

impl Cursor {
    /// Before all events of the daemon that answered with `page`.
    const fn before(page: &EventPage) -> Self {
        Self { started: page.started, last: 0, is_waiting: false }
    }

    /// The events of `page` that were not shown yet, after a notice if some are missing.
    fn advance(&mut self, page: EventPage) -> Vec<Line> {
        self.is_waiting = false;
        let (mut lines, shown) = (Vec::new(), self.last);
        for event in page.events.into_iter().filter(|event| event.sequence > shown) {
            let missing = event.sequence - self.last - 1;
            if missing > 0 {
                let message = format!("{missing} events before are lost: the daemon keeps no more");
                lines.push(Line::gap(Some(missing), message));
            }
            self.last = event.sequence;
            lines.push(Line::Event(event));
        }
        lines
    }

    /// The same, with the first page of a daemon that was started again.
    fn restart(&mut self, page: EventPage) -> Vec<Line> {
        *self = Self::before(&page);
        let message = "tweedd was restarted: events before may be lost".to_owned();
        let mut lines = vec![Line::gap(None, message)];
        lines.extend(self.advance(page));
        lines
    }

    /// One notice until the daemon answers again.
    fn wait(&mut self, unanswered: &Unanswered) -> Vec<Line> {
        if std::mem::replace(&mut self.is_waiting, true) {
            return Vec::new();
        }
        let message = format!("{unanswered}: waiting for it");
        vec![Line::Notice(Notice { kind: NoticeKind::Waiting, missing: None, message })]
    }
}

impl Line {
    const fn gap(missing: Option<u64>, message: String) -> Self {
        Self::Notice(Notice { kind: NoticeKind::Gap, missing, message })
    }

    /// `text`, which is this line, with its end.
    fn toned(&self, text: String) -> Toned<String> {
        let tone = match self {
            Self::Event(event) if !event.change.kind.is_warning() => Tone::Plain,
            Self::Event(_) | Self::Notice(_) => Tone::Warning,
        };
        Toned(tone, text + "\n")
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(event) => {
                let NodeEvent { time, change: NodeChange { kind, subject, message, .. }, .. } =
                    &**event;
                let (time, kind) = (time.strftime("%FT%TZ"), kind.as_str());
                write!(f, "{time}  {kind:<17}  {subject}: {message}")
            }
            Self::Notice(notice) => write!(f, "({})", notice.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ColorChoice;
    use expect_test::expect;
    use serde_json::Value;

    use super::*;
    use crate::model::event::{EventHistory, EventKind, EventSubject};
    use crate::model::lease::LeaseId;

    fn history(second: i64) -> EventHistory {
        EventHistory::new(Timestamp::from_second(second).unwrap())
    }

    fn happen(history: &mut EventHistory, count: usize) {
        for number in 0..count {
            let message = format!("event {number}");
            let change = NodeChange::new(EventKind::PathChanged, EventSubject::default(), &message);
            history.push(Timestamp::UNIX_EPOCH, change);
        }
    }

    fn shown(lines: &[Line]) -> (Vec<u64>, Vec<Option<u64>>) {
        let (mut events, mut gaps) = (Vec::new(), Vec::new());
        for line in lines {
            match line {
                Line::Event(event) => events.push(event.sequence),
                Line::Notice(notice) => gaps.push(notice.missing),
            }
        }
        (events, gaps)
    }

    #[test]
    fn each_event_is_shown_once_and_in_order() {
        let mut history = history(0);
        let mut cursor = Cursor::before(&history.after(0));
        let mut all = Vec::new();
        for count in [0, 1, 0, 999, 1000, 7] {
            happen(&mut history, count);
            // A page may contain events that were shown before.
            let page = history.after(cursor.last.saturating_sub(3));
            let (events, gaps) = shown(&cursor.advance(page));
            assert_eq!(gaps, []);
            all.extend(events);
        }
        assert_eq!(all, (1..=2007).collect::<Vec<_>>());
    }

    #[test]
    fn a_gap_is_named_with_the_number_of_missing_events() {
        let mut history = history(0);
        happen(&mut history, 5);
        let mut cursor = Cursor::before(&history.after(0));
        cursor.advance(history.after(0));
        happen(&mut history, 1200);
        let lines = cursor.advance(history.after(cursor.last));
        let (events, gaps) = shown(&lines);
        assert_eq!((events[0], events.len(), gaps), (206, 1000, vec![Some(200)]));
        assert_eq!(shown(&cursor.advance(history.after(cursor.last))), (vec![], vec![]));
    }

    #[test]
    fn after_a_restart_all_events_of_the_new_daemon_are_shown() {
        let (mut old, mut new) = (history(1), history(2));
        happen(&mut old, 40);
        happen(&mut new, 3);
        let mut cursor = Cursor::before(&old.after(0));
        cursor.advance(old.after(0));
        assert_eq!(cursor.wait(&Unanswered::Absent("/s".into())).len(), 1);
        assert_eq!(cursor.wait(&Unanswered::Absent("/s".into())), []);
        assert_eq!(shown(&cursor.restart(new.after(0))), (vec![1, 2, 3], vec![None]));
        assert_eq!(cursor.started, new.after(0).started);
        assert_eq!(cursor.wait(&Unanswered::Absent("/s".into())).len(), 1);
    }

    #[test]
    fn an_event_is_a_paragraph_and_a_line_of_json() {
        let mut history = history(0);
        let message = "peer is unreachable: no probe and no ping is answered: its host is down, or \
                       a firewall drops the packets \u{1b}[2J";
        let time = "2026-11-23T10:00:07.25Z".parse().unwrap();
        let peer = Some("10.244.7.0/24 (172.16.0.7)".to_owned());
        let subject = EventSubject { lease: Some(LeaseId::new("10.244.7.0-24")), peer };
        history.push(time, NodeChange::new(EventKind::PeerUnreachable, subject, message));
        let mut cursor = Cursor::before(&history.after(0));
        let mut lines = cursor.advance(history.after(0));
        lines.extend(cursor.wait(&Unanswered::Absent("/run/flannel/subnet.sock".into())));
        lines.push(Line::gap(Some(3), "3 events before are lost".into()));
        let shown = |format| {
            let mut text = Vec::new();
            write_lines(&mut text, Output { format, color: ColorChoice::Never }, &lines).unwrap();
            String::from_utf8(text).unwrap()
        };
        let text = shown(Format::Text);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        expect![[r"
            2026-11-23T10:00:07Z  peer-unreachable   10.244.7.0/24 (172.16.0.7): peer is
                                  unreachable: no probe and no ping is answered: its host is
                                  down, or a firewall drops the packets \u{1b}[2J
            (no daemon answers on /run/flannel/subnet.sock: waiting for it)
            (3 events before are lost)
        "]]
        .assert_eq(&text);
        expect![[r"
            2026-11-23T10:00:07Z  peer-unreachable   10.244.7.0/24 (172.16.0.7): peer is unreachable: no probe and no ping is answered: its host is down, or a firewall drops the packets \u{1b}[2J
            (no daemon answers on /run/flannel/subnet.sock: waiting for it)
            (3 events before are lost)
        "]]
        .assert_eq(&shown(Format::Wide));
        expect![[r#"
            {"sequence":1,"time":"2026-11-23T10:00:07.25Z","kind":"peer-unreachable","lease":"10.244.7.0-24","peer":"10.244.7.0/24 (172.16.0.7)","message":"peer is unreachable: no probe and no ping is answered: its host is down, or a firewall drops the packets \\u{1b}[2J"}
            {"kind":"waiting","missing":null,"message":"no daemon answers on /run/flannel/subnet.sock: waiting for it"}
            {"kind":"gap","missing":3,"message":"3 events before are lost"}
        "#]]
        .assert_eq(&shown(Format::Json));
        let yaml = shown(Format::Yaml);
        assert_eq!(yaml.matches("---\n").count(), 3, "{yaml}");
        assert!(yaml.contains("kind: peer-unreachable\n"), "{yaml}");
        let read: Value = serde_saphyr::from_str(yaml.rsplit("---\n").next().unwrap()).unwrap();
        assert_eq!(read, serde_json::to_value(&lines[2]).unwrap());
        let mut coloured = Vec::new();
        let output = Output { format: Format::Text, color: ColorChoice::Always };
        write_lines(&mut coloured, output, &lines).unwrap();
        let coloured = String::from_utf8(coloured).unwrap();
        assert!(coloured.starts_with("\u{1b}[33m2026-11-23T10:00:07Z"), "{coloured:?}");
    }
}
