//! All kernel state of a node that a daemon could have changed, as text to compare.

use std::collections::BTreeSet;
use std::fmt::{Display, Formatter};

use anyhow::{Result, ensure};

use crate::node::Node;
use crate::wait::{PATIENCE, eventually};

/// Sorted lines in the format of `ip(8)`, `bridge(8)` and `nft(8)`, without ages and counters.
///
/// Omits neighbours and FDB entries that the kernel learns by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    lines: BTreeSet<String>,
}

impl Snapshot {
    /// Lines that only `later` has (`+`) or lacks (`-`); empty if nothing changed.
    pub fn changes(&self, later: &Self) -> Vec<String> {
        let gone = self.lines.difference(&later.lines).map(|line| format!("- {line}"));
        gone.chain(later.lines.difference(&self.lines).map(|line| format!("+ {line}"))).collect()
    }
}

impl Display for Snapshot {
    fn fmt(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(out, "{line}"))
    }
}

impl Node {
    /// Waits until the kernel has noted the carrier of each link, and checked every IPv6 address of a link
    /// with carrier.
    ///
    /// When it has, it adds addresses and routes, and reports them; on a busy machine that comes
    /// seconds after the link.
    pub fn settle(&self) -> Result<()> {
        eventually(PATIENCE, || {
            let links = self.ip("-oneline link show up")?;
            // A link shows exactly one of these words, except until a change of its carrier is noted.
            let mut links_up = links.lines();
            let unnoted = links_up.find(|it| it.contains("LOWER_UP") == it.contains("NO-CARRIER"));
            ensure!(unnoted.is_none(), "its carrier is not noted: {}", unnoted.unwrap_or_default());
            let addresses = self.ip("-6 -oneline address show tentative")?;
            let carrier = |link: &str| {
                let mut links = links.lines().filter(|it| it.contains("LOWER_UP"));
                links.any(|it| it.split([':', '@']).nth(1).map(str::trim) == Some(link))
            };
            let unchecked = addresses.lines().find(|line| {
                !line.contains("dadfailed") && line.split_whitespace().nth(1).is_some_and(carrier)
            });
            ensure!(unchecked.is_none(), "not checked yet: {}", unchecked.unwrap_or_default());
            Ok(())
        })?;
        // It has the lock under which the routes of a checked address are added.
        self.ip("link set lo up").map(drop)
    }

    /// Links, addresses, routes of all tables, nexthop objects, rules, permanent neighbours, FDB
    /// entries, chains and sets of nftables, and settings of links; once [settled](Self::settle).
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.settle()?;
        let mut lines = BTreeSet::new();
        let mut add = |kind: &str, text: &str| {
            lines.extend(text.lines().map(|line| format!("{kind} {}", without_timers(line))));
        };
        add("link", &self.ip("-oneline -details link show")?);
        add("address", &self.ip("-oneline address show")?);
        add("route", &self.ip("-4 -details route show table all")?);
        add("route", &self.ip("-6 -details route show table all")?);
        add("nexthop", &self.ip("nexthop show")?);
        add("rule", &self.ip("-4 rule show")?);
        add("rule", &self.ip("-6 rule show")?);
        add("neighbour", &self.ip("neighbour show nud permanent")?);
        add("fdb", &permanent(&self.bridge("fdb show")?));
        let rules = self.namespace().run("nft", &["--stateless", "list", "ruleset"])?;
        add("nftables", &blocks(&rules).join("\n"));
        add("setting", &self.namespace().run("sh", &["-euc", SETTINGS])?);
        Ok(Snapshot { lines })
    }
}

/// Settings of links that tweed changes.
const SETTINGS: &str =
    "cd /proc/sys/net; grep . ipv4/conf/*/rp_filter ipv6/conf/*/accept_ra | sort";

/// Each chain, set or table on a line of its own, below the names of its table: the order of rules
/// counts.
fn blocks(ruleset: &str) -> Vec<String> {
    let (mut open, mut blocks): (Vec<String>, _) = (Vec::new(), Vec::new());
    for line in ruleset.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match (line, open.last_mut()) {
            ("}", _) => {
                let block = open.pop().unwrap_or_default();
                blocks.push(open.iter().chain([&block]).cloned().collect::<Vec<_>>().join(" "));
            }
            (_, Some(block)) if !line.ends_with(" {") => block.extend([" ", line]),
            _ => open.push(line.to_owned()),
        }
    }
    blocks
}

fn permanent(entries: &str) -> String {
    let lasting =
        |line: &&str| ["permanent", "static", "extern_learn"].iter().any(|it| line.contains(it));
    entries.lines().filter(lasting).collect::<Vec<_>>().join("\n")
}

/// The details of a bridge contain timers, and an address whether it is tentative.
fn without_timers(line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if word.ends_with("_timer") {
            words.next();
        } else if word != "tentative" {
            kept.push(word);
        }
    }
    kept.join(" ")
}
