//! Tables of nftables.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tweed_netlink::Frame;
use tweed_netlink::nftables::{self, Batch, Chain, Contents, ElementTimeout, TableFamily};

use crate::model::entry::{Hook, PEERS, RENEWED, Renewal, Rule, Table, TableName, nft_chain};
use crate::model::prefix::Family;

/// Shown when an operator lists the rules of a host.
const COMMENT: &str = "made and kept by tweedd";

pub(super) fn remove(table: &Table) -> Batch {
    about(&table.name).delete_table()
}

/// Replaces `table`. Part of one transaction, so that no packet meets a partial table.
pub(super) fn put(table: &Table) -> Batch {
    // These two messages remove the table whether or not it exists.
    let empty = about(&table.name).table(None).delete_table().table(Some(COMMENT));
    let family = table.name.family;
    let empty = if table.has_peers() { empty.address_set(PEERS, family) } else { empty };
    let empty = if table.is_renewed() { empty.protocol_set(RENEWED) } else { empty };
    table.chains.iter().fold(empty, |batch, (hook, rules)| chain(batch, *hook, rules))
}

/// An empty batch for the table `name`.
pub(super) fn about(name: &TableName) -> Batch {
    Batch::of(named(name))
}

pub(crate) fn named(name: &TableName) -> nftables::Table<'_> {
    nftables::Table { family: TableFamily::Only(name.family), name: &name.name }
}

fn chain(batch: Batch, hook: Hook, rules: &[Rule]) -> Batch {
    let [name, _] = nft_chain(hook);
    let empty = batch.chain(Chain { name, hook: Some(hook), comment: None });
    rules.iter().fold(empty, |batch, rule| batch.rule(name, rule, None))
}

/// The table `name` with these contents.
pub(crate) fn table(name: TableName, contents: Contents) -> Table {
    let Contents { flags, objects, chains: listed } = contents;
    let mut foreign = usize::from(flags != 0) + usize::try_from(objects).unwrap_or(usize::MAX);
    let mut chains = BTreeMap::new();
    for nftables::Rules { chain, hook, rules } in listed {
        let Some(hook) = hook.filter(|hook| nft_chain(*hook)[0] == chain) else { continue };
        let count = rules.len();
        let known: Vec<Rule> = rules.into_iter().flatten().collect();
        foreign = (foreign + count).saturating_sub(known.len() + 1);
        chains.insert(hook, known);
    }
    let table = Table { name: name.into(), chains, foreign };
    // Sets of these rules are not foreign: the kernel keeps a set while a rule refers to it.
    let sets = usize::from(table.has_peers()) + usize::from(table.is_renewed());
    Table { foreign: table.foreign.saturating_sub(sets), ..table }
}

/// The element that keeps `table` dropping packets, with its timeout. Times are whole seconds.
pub(crate) fn renewal(table: Arc<TableName>, stay: ElementTimeout) -> Renewal {
    let seconds = |time: Duration| Duration::from_secs_f64(time.as_secs_f64().round());
    Renewal { table, timeout: seconds(stay.whole), left: seconds(stay.left) }
}

/// The table that a notification reports as changed.
pub(crate) fn changed_table(frame: &Frame<'_>) -> Option<TableName> {
    let (family, name) = nftables::changed_table(frame)?;
    let TableFamily::Only(family) = family else { return None };
    Some(table_name(family, name))
}

pub(super) fn table_name(family: Family, name: &str) -> TableName {
    TableName { family, name: name.to_owned() }
}
