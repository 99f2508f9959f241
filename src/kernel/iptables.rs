//! The chains of iptables on this host: read where they may have changed, and written, by programs.

mod programs;

use std::collections::{BTreeMap, BTreeSet};

use super::codec;
use super::netlink::Tables;
use super::state::{Chain, ChainName, Entry, Iptables};
use super::{Chains, Generation, Op, Reading, Refused};
use programs::{Error, Programs};

pub(super) use programs::usual;

/// Of this host, and of the network namespace that it is asked in.
#[derive(Clone, Copy, Debug)]
pub struct HostChains;

impl Chains for HostChains {
    async fn read(self, names: BTreeSet<ChainName>, seen: Option<Generation>) -> Reading {
        let mut tables = Tables::default();
        // Asked first: what is changed while we read is read once more.
        let generation = tables.generation();
        let is_as_seen = |name: &ChainName| {
            name.iptables == Iptables::Nft && generation.is_some() && generation == seen
        };
        let names: BTreeSet<ChainName> = names.into_iter().filter(|it| !is_as_seen(it)).collect();
        let mut reading = Reading { found: Vec::new(), generation, names };
        for (programs, names) in at_hand(&mut tables, &reading.names) {
            match programs.list().await {
                Ok(listing) => reading.add(&names, &listing),
                Err(error) => reading.lack(names, &error),
            }
        }
        reading
    }

    async fn carry_out(self, ops: Vec<Op>) -> Vec<Refused> {
        let mut refused = Vec::new();
        for op in ops {
            let Entry::Chain(chain) = op.entry() else { continue };
            if let Err(reason) = Programs::of(chain.name).carry_out(&op, chain).await {
                refused.push(Refused { reason: reason.to_string(), op });
            }
        }
        refused
    }
}

/// Those that may be there: no program is started for any other.
fn at_hand(tables: &mut Tables, names: &BTreeSet<ChainName>) -> BTreeMap<Programs, Vec<ChainName>> {
    let mut at_hand: BTreeMap<Programs, Vec<ChainName>> = BTreeMap::new();
    for name in names.iter().copied().filter(|name| may_be_there(tables, *name)) {
        at_hand.entry(Programs::of(name)).or_default().push(name);
    }
    at_hand
}

fn may_be_there(tables: &mut Tables, name: ChainName) -> bool {
    match name.iptables {
        Iptables::Nft => tables.has_chain(name),
        Iptables::Legacy => Programs::of(name).has_legacy_table(name.base.table()),
    }
}

impl Reading {
    fn add(&mut self, names: &[ChainName], listing: &str) {
        self.found.extend(names.iter().filter_map(|name| codec::chain(*name, listing)));
    }

    /// They are there, for the kernel says so; of the legacy kind they may as well not be.
    fn lack(&mut self, names: Vec<ChainName>, error: &Error) {
        tracing::debug!(%error, "chains were not read");
        self.generation = None;
        let there = names.into_iter().filter(|name| name.iptables == Iptables::Nft);
        let unread = |name| Chain { foreign: 1, ..Chain::of(name, Vec::new()) };
        self.found.extend(there.map(unread));
    }
}
