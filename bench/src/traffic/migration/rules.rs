//! What translates addresses on each node, and the number of connections that broke.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::AddAssign;
use std::time::Duration;

use anyhow::Result;
use tweed_lab::{Kind, Proxy};

use super::cost::Cost;
use crate::report::sheet::{Sheet, time};

const BY_NFTABLES: &[&str] = &["--ip-masq"];
const BY_IPTABLES: &[&str] = &["--ip-masq", "--iptables"];

/// Flags of the daemons of nodes 1, 2, …; the first are those of the unit and of the manifests.
pub(super) const FLAGS: &[&[&str]] =
    &[BY_NFTABLES, BY_IPTABLES, BY_NFTABLES, BY_IPTABLES, BY_NFTABLES, BY_IPTABLES];

/// The program that handles services on these nodes.
pub(super) const PROXIES: &[Proxy] = &[
    Proxy::Plain,
    Proxy::Plain,
    Proxy::KubeIptables,
    Proxy::KubeIptables,
    Proxy::KubeNftables,
    Proxy::KubeNftables,
];

#[derive(Clone, Copy, Default)]
struct Total {
    opened: usize,
    broken: usize,
    worst: Duration,
}

impl AddAssign for Total {
    fn add_assign(&mut self, other: Self) {
        self.opened += other.opened;
        self.broken += other.broken;
        self.worst = self.worst.max(other.worst);
    }
}

/// One row for each kind of rules, over several migrations.
pub(super) fn show<'a>(
    cases: impl Iterator<Item = &'a Vec<Cost>>,
    sheet: &mut Sheet,
) -> Result<()> {
    let mut totals = BTreeMap::<(usize, Kind), Total>::new();
    for costs in cases {
        add(costs, &mut totals);
    }
    let kinds = Kind::ALL.map(Kind::as_str);
    let head = ["`--ip-masq` by", "services by"].into_iter().chain(kinds).chain(["worst exchange"]);
    sheet.table("Connections broken by flips", &head.collect::<Vec<_>>())?;
    for (number, (flags, proxy)) in FLAGS.iter().zip(PROXIES).enumerate() {
        let firewall = if *flags == BY_NFTABLES { "nftables" } else { "iptables" };
        let of_kind = |kind| totals.get(&(number, kind)).copied().unwrap_or_default();
        let broken = |Total { broken, opened, .. }| format!("{broken} of {opened}");
        let cells = Kind::ALL.map(|kind| broken(of_kind(kind)));
        let worst =
            time(Kind::ALL.iter().map(|kind| of_kind(*kind).worst).max().unwrap_or_default());
        let firm: [&dyn Display; 2] = [&firewall, &proxy.as_str()];
        let cells = cells.iter().chain([&worst]).map(|cell| cell as &dyn Display);
        sheet.row(&firm.into_iter().chain(cells).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// One migration, stage by stage: connections that are open in the last stage, and all that broke.
fn add(costs: &[Cost], totals: &mut BTreeMap<(usize, Kind), Total>) {
    for (index, cost) in costs.iter().enumerate() {
        let is_last = index + 1 == costs.len();
        for ((kind, node), outcome) in &cost.connections {
            let Some(number) = rules_of(node) else { continue };
            let (broken, worst) = (outcome.broken.len(), outcome.worst);
            let opened = if is_last { outcome.open } else { broken };
            *totals.entry((number, *kind)).or_default() += Total { opened, broken, worst };
        }
    }
}

/// The number of the rules of a node, by its name: n1, n2, ….
fn rules_of(node: &str) -> Option<usize> {
    let number: usize = node.strip_prefix('n')?.parse().ok()?;
    Some(number.checked_sub(1)? % FLAGS.len())
}
