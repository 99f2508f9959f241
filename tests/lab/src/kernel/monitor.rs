//! A record of every change to a node's kernel.

use std::fmt::{Display, Formatter};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::node::Node;
use crate::process::Process;
use crate::wait::{PATIENCE, eventually};

/// One message of the kernel, as `ip monitor` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Local time with microseconds.
    pub time: String,
    /// `LINK`, `ADDR`, `ROUTE`, `NEIGH` (includes FDB entries, marked `NOARP`), `RULE`, `NEXTHOP`.
    pub kind: String,
    /// Begins with `Deleted` for a removal.
    pub text: String,
}

/// A running record.
#[derive(Debug)]
pub struct Monitor {
    process: Process,
}

/// A route table that nothing else uses.
const MARKER: &str = "table 199";

impl Node {
    /// Records changes from this call on; begins once [settled](Self::settle).
    pub fn monitor(&self) -> Result<Monitor> {
        self.settle()?;
        let mut command = Command::new("ip");
        command.args(["-timestamp", "-tshort", "monitor", "all"]);
        let name = format!("{}-monitor{}", self.name(), self.world().number());
        let process = self.world().start(&mut command, self.namespace(), &name)?;
        // Until it has listed all links, `ip monitor` discards what it is notified of.
        let mut number = 0;
        eventually(PATIENCE, || {
            number = number % 250 + 1;
            let marker = format!("unreachable 192.0.2.{number} {MARKER}");
            self.ip(format!("route add {marker}"))?;
            self.ip(format!("route del {marker}"))?;
            ensure!(process.log()?.contains(MARKER), "`ip monitor` does not listen yet");
            Ok(())
        })
        .context("starting `ip monitor`")?;
        Ok(Monitor { process })
    }
}

impl Monitor {
    /// Ends the record. Omits neighbours that the kernel learns and removes by itself.
    pub fn finish(self) -> Result<Vec<Change>> {
        eventually(PATIENCE, || {
            ensure!(self.waiting()? == 0 && self.is_asleep()?, "`ip monitor` is behind");
            Ok(())
        })?;
        self.process.kill()?;
        let log = self.process.log()?;
        let lost = log.lines().find(|line| line.starts_with("netlink receive error"));
        ensure!(lost.is_none(), "the record has a gap: {}", lost.unwrap_or_default());
        let changes = log.lines().filter_map(Change::parse).collect::<Vec<_>>();
        Ok(changes.into_iter().filter(|it| !it.text.contains(MARKER)).collect())
    }

    /// Ends the record, which must be empty.
    pub fn nothing_changed(self) -> Result<()> {
        let changes: Vec<_> = self.finish()?.iter().map(Change::to_string).collect();
        ensure!(changes.is_empty(), "{}", changes.join("\n"));
        Ok(())
    }

    /// Bytes of unread messages. An error before the monitor listens.
    fn waiting(&self) -> Result<u64> {
        let (pid, path) = (self.process.pid(), format!("/proc/{}/net/netlink", self.process.pid()));
        let sockets = std::fs::read_to_string(&path).context(path)?;
        let mut sockets = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let bytes = sockets.find_map(|fields| match fields.as_slice() {
            [_, _, owner, groups, bytes, ..] if *owner == pid.to_string() => {
                groups.contains(|digit| digit != '0').then(|| bytes.parse())
            }
            _ => None,
        });
        Ok(bytes.context("`ip monitor` does not listen yet")??)
    }

    fn is_asleep(&self) -> Result<bool> {
        let path = format!("/proc/{}/stat", self.process.pid());
        Ok(std::fs::read_to_string(&path).context(path)?.contains(") S "))
    }
}

impl Change {
    fn parse(line: &str) -> Option<Self> {
        let (time, rest) = line.strip_prefix('[')?.split_once("] [")?;
        let (kind, text) = rest.split_once(']')?;
        let lasting = match kind {
            "NEIGH" => text.contains("PERMANENT"),
            "LINK" | "ADDR" | "ROUTE" | "RULE" | "NEXTHOP" => true,
            _ => false,
        };
        let (time, kind, text) = (time.to_owned(), kind.to_owned(), text.trim().to_owned());
        lasting.then_some(Self { time, kind, text })
    }
}

impl Display for Change {
    fn fmt(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {} {}", self.time, self.kind, self.text)
    }
}
