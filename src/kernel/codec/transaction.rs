//! Several changes of tables as one transaction.

use std::iter::repeat_n;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use tweed_netlink::Frame;
use tweed_netlink::nftables::{self, Batch, Change, ChangedElements, MOST_ADDRESSES};

use super::table;
use crate::kernel::Observation;
use crate::model::entry::{Element, Entry, Key, PEERS, RENEWED, TableName};
use crate::plan::diff::Op;

/// Changes that are applied together or not at all.
pub(crate) struct Transaction {
    pub(crate) batch: Batch,
    /// The range of ops that each message applies.
    pub(crate) owners: Vec<Range<usize>>,
}

/// The transaction that applies `ops` on tables and their elements in order. Consecutive elements
/// share a message.
pub(crate) fn transaction(ops: &[Op]) -> Option<Transaction> {
    let (mut whole, mut owners, mut end) = (None, Vec::new(), 0);
    let runs = ops.chunk_by(share_a_message).flat_map(|run| run.chunks(MOST_ADDRESSES));
    for run in runs {
        let start = end;
        end += run.len();
        let Some(part) = encode(run) else { continue };
        owners.extend(repeat_n(start..end, part.len()));
        whole = Some(match whole {
            None => part,
            Some(whole) => Batch::followed_by(whole, part),
        });
    }
    whole.map(|batch| Transaction { batch, owners })
}

/// The element changes that a notification reports; empty for other notifications.
pub(crate) fn changed_elements(frame: &Frame<'_>) -> Vec<Observation> {
    let Some(changed) = nftables::changed_elements(frame) else { return Vec::new() };
    let table = Arc::new(table::table_name(changed.family, changed.table));
    match changed.set {
        PEERS => changed_peers(&changed, &table),
        RENEWED => vec![changed_renewal(&changed, table)],
        _ => Vec::new(),
    }
}

fn changed_renewal(changed: &ChangedElements<'_>, table: Arc<TableName>) -> Observation {
    match (changed.change, changed.stay) {
        (Change::Added, Some(stay)) => {
            Observation::Holds(Entry::Renewal(table::renewal(table, stay)))
        }
        // An element without a timeout is not a renewal.
        (Change::Added, None) | (Change::Deleted, _) => Observation::Lost(Key::Renewal(table)),
    }
}

fn changed_peers(changed: &ChangedElements<'_>, table: &Arc<TableName>) -> Vec<Observation> {
    let observation = |address: &IpAddr| {
        let address = *address;
        let element = Element { table: Arc::clone(table), address };
        match changed.change {
            Change::Added => Observation::Holds(Entry::Element(element)),
            Change::Deleted => Observation::Lost(Key::Element(element.table, element.address)),
        }
    };
    changed.addresses.iter().map(observation).collect()
}

fn share_a_message(one: &Op, other: &Op) -> bool {
    let both_put = matches!(one, Op::Remove(_)) == matches!(other, Op::Remove(_));
    match (one.entry(), other.entry()) {
        (Entry::Element(one), Entry::Element(other)) => both_put && one.table == other.table,
        _ => false,
    }
}

/// None for ops on neither tables nor elements.
fn encode(run: &[Op]) -> Option<Batch> {
    let addresses = run.iter().filter_map(|op| match op.entry() {
        Entry::Element(element) => Some(element.address),
        _ => None,
    });
    let first = run.first()?;
    let removes = matches!(first, Op::Remove(_));
    Some(match first.entry() {
        Entry::Table(table) if removes => table::remove(table),
        Entry::Table(table) => table::put(table),
        Entry::Renewal(it) if removes => table::about(&it.table).delete_udp(RENEWED),
        Entry::Renewal(it) => table::about(&it.table).renew_udp(RENEWED, it.timeout),
        Entry::Element(it) if removes => table::about(&it.table).delete_addresses(PEERS, addresses),
        Entry::Element(it) => table::about(&it.table).add_addresses(PEERS, addresses),
        _ => return None,
    })
}
