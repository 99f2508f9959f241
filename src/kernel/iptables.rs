//! Reads and writes the iptables chains of this host. External programs are used only where
//! nftables cannot express the chain.

mod programs;

use std::collections::{BTreeMap, BTreeSet};

use super::codec;
use super::nftables::Tables;
use super::{Chains, Generation, Reading, Refused};
use crate::model::entry::{Base, BasePolicy, Chain, ChainName, Entry, Iptables};
use crate::plan::diff::Op;
use programs::{ProgramError, Programs};

pub(super) use programs::{is_installed, usual};

/// The chains of this host, in the current network namespace.
#[derive(Clone, Copy, Debug)]
pub struct HostChains;

impl Chains for HostChains {
    async fn read(self, names: BTreeSet<ChainName>, seen: Option<Generation>) -> Reading {
        let mut tables = Tables::default();
        // Read the generation first, so that changes during the read cause another read.
        let generation = tables.generation();
        let is_as_seen = |name: &ChainName| {
            name.iptables == Iptables::Nft && generation.is_some() && generation == seen
        };
        let names: BTreeSet<ChainName> = names.into_iter().filter(|it| !is_as_seen(it)).collect();
        let mut reading = Reading { names, generation, ..Reading::default() };
        for name in reading.names.clone().into_iter().filter(|name| needs_no_program(*name)) {
            match tables.host_chain(name) {
                Ok(host) => {
                    reading.note_policy(name, host.base_policy);
                    reading.found.extend(host.chain(name));
                }
                // Without nftables, there is no such chain.
                Err(_) if generation.is_none() => {}
                Err(error) => {
                    tracing::debug!(%error, %name, "a chain was not read");
                    reading.generation = None;
                    reading.names.remove(&name);
                }
            }
        }
        for ((programs, table), names) in existing(&mut tables, &reading.names) {
            match programs.list(Some(table)).await {
                Ok(listing) => reading.add(&names, &listing),
                // Such as a table with rules of nftables that iptables cannot show.
                Err(error) => reading.note_unreadable(names, &error),
            }
        }
        reading
    }

    async fn carry_out(self, ops: Vec<Op>) -> Vec<Refused> {
        let mut refused = Vec::new();
        for op in ops {
            let Entry::Chain(chain) = op.entry() else { continue };
            if let Err(reason) = carry_out(&op, chain).await {
                refused.push(Refused { op, reason });
            }
        }
        refused
    }
}

async fn carry_out(op: &Op, chain: &Chain) -> Result<(), String> {
    let is_removal = matches!(op, Op::Remove(_));
    if needs_no_program(chain.name) || (is_removal && chain.name.iptables == Iptables::Nft) {
        return Tables::default().carry_out_on_chain(op, chain);
    }
    let carried_out = Programs::of(chain.name).carry_out(op, chain).await;
    carried_out.map_err(|reason| reason.to_string())
}

/// Whether nftables shows the whole chain. Masquerading uses an expression specific to iptables.
fn needs_no_program(name: ChainName) -> bool {
    (name.iptables, name.base) == (Iptables::Nft, Base::Forward)
}

/// The chains that may exist, by table. No program is started for other chains.
fn existing(
    tables: &mut Tables,
    names: &BTreeSet<ChainName>,
) -> BTreeMap<(Programs, &'static str), Vec<ChainName>> {
    let mut existing: BTreeMap<_, Vec<ChainName>> = BTreeMap::new();
    let names = names.iter().copied().filter(|name| !needs_no_program(*name));
    for name in names.filter(|name| may_be_there(tables, *name)) {
        existing.entry((Programs::of(name), name.base.table())).or_default().push(name);
    }
    existing
}

fn may_be_there(tables: &mut Tables, name: ChainName) -> bool {
    match name.iptables {
        Iptables::Nft => tables.has_chain(name),
        Iptables::Legacy => Programs::of(name).has_legacy_table(name.base.table()),
    }
}

impl Reading {
    fn note_policy(&mut self, name: ChainName, base_policy: BasePolicy) {
        if name.base == Base::Forward && base_policy == BasePolicy::Drop {
            self.dropping.insert(name);
        }
    }

    fn add(&mut self, names: &[ChainName], listing: &str) {
        for name in names {
            self.note_policy(*name, codec::base_policy(*name, listing));
            self.found.extend(codec::chain(*name, listing));
        }
    }

    /// Records chains that cannot be read. A chain of iptables-nft exists, because nftables lists
    /// it; whether a legacy chain exists is unknown.
    fn note_unreadable(&mut self, names: Vec<ChainName>, error: &ProgramError) {
        tracing::debug!(%error, "chains were not read");
        for name in names {
            match (name.iptables, name.base) {
                (Iptables::Nft, _) => {
                    self.generation = None;
                    self.found.push(Chain { foreign: 1, ..Chain::of(name, Vec::new()) });
                }
                (Iptables::Legacy, Base::Forward) => {
                    self.unread.insert(name, error.to_string());
                }
                (Iptables::Legacy, Base::EarlyPostrouting | Base::Postrouting) => {}
            }
        }
    }
}
