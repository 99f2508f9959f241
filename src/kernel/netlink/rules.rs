//! Reading tables and chains: those of nftables, and those of iptables where there are any.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::NetlinkKernel;
use crate::kernel::Scope;
use crate::kernel::codec;
use crate::kernel::iptables::Programs;
use crate::kernel::state::{Chain, ChainName, Entry, Iptables, KernelState};

impl NetlinkKernel {
    pub(super) async fn read_rules(
        &mut self,
        scope: &Scope,
        known: &KernelState,
    ) -> Vec<Arc<Entry>> {
        let tables = scope.tables.iter().filter_map(|table| self.tables.read(table));
        let mut entries: Vec<Entry> = tables.map(Entry::Table).collect();
        for (programs, chains) in self.chains_at_hand(scope) {
            entries.extend(listed(programs, chains).await.into_iter().map(Entry::Chain));
        }
        entries.into_iter().map(|entry| known.sharing(entry)).collect()
    }

    /// Those that may be there: no program is started for any other.
    fn chains_at_hand(&mut self, scope: &Scope) -> BTreeMap<Programs, Vec<ChainName>> {
        let mut at_hand: BTreeMap<Programs, Vec<ChainName>> = BTreeMap::new();
        for name in scope.chains.iter().copied().filter(|name| self.may_have(*name)) {
            at_hand.entry(Programs::of(name)).or_default().push(name);
        }
        at_hand
    }

    fn may_have(&mut self, name: ChainName) -> bool {
        match name.iptables {
            Iptables::Nft => self.tables.has_chain(name),
            Iptables::Legacy => Programs::of(name).has_legacy_table(name.base.table()),
        }
    }
}

async fn listed(programs: Programs, chains: Vec<ChainName>) -> Vec<Chain> {
    match programs.list().await {
        Ok(listing) => chains.iter().filter_map(|name| codec::chain(*name, &listing)).collect(),
        Err(error) => {
            tracing::debug!(%error, "chains were not read");
            chains.into_iter().filter_map(unread).collect()
        }
    }
}

/// It is there, for the kernel says so; of the legacy kind it may as well not be.
fn unread(name: ChainName) -> Option<Chain> {
    let chain = Chain { foreign: 1, ..Chain::of(name, Vec::new()) };
    (name.iptables == Iptables::Nft).then_some(chain)
}
