//! Reads and writes leases in etcd: pages, guarded transactions, nothing unseen overwritten.

use std::future::Future;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, Error, GetOptions, GetResponse, KeyValue, PutOptions, Txn,
    TxnOp, TxnOpResponse,
};
use tokio::time::sleep;

use super::answer::{Failure, Refusal};
use super::client::{Client, Connection, revision};
use super::key::{self, Layout};
use super::ours::Own;
use super::value::{self, Origin};
use crate::backoff::Backoff;
use crate::lease::{LeaseId, Record};
use crate::prefix::{Family, Prefix};
use crate::subnet::claim::Holding;

/// A lease as etcd holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) value: Vec<u8>,
    pub(super) origin: Origin,
    pub(super) mod_revision: i64,
}

impl Stored {
    /// The etcd lease counts even where the value cannot be read.
    pub(super) fn holding(&self) -> Option<Holding> {
        Holding::of(&self.record).map(|held| Holding { grant: self.origin.grant, ..held })
    }
}

/// All leases at one revision, in the order of their keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    pub(super) stored: Vec<Stored>,
    pub(super) revision: i64,
}

/// A lease to write.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) id: LeaseId,
    pub(super) value: Vec<u8>,
    /// None makes it a reservation.
    pub(super) grant: Option<i64>,
    pub(super) condition: Condition,
    /// Leases that vanish as this one is written, with the revision at which they were seen.
    pub(super) obsolete: Vec<(LeaseId, i64)>,
}

#[derive(Clone, Debug)]
pub(super) enum Condition {
    /// Nobody holds these subnets under any key of ours or flannel's.
    Absent(Vec<Prefix>),
    /// The lease was not written since this revision.
    Unchanged(i64),
}

#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// At this revision.
    Written(i64),
    /// The condition does not hold; what stands in its way, the lease itself included.
    Refused(Vec<Stored>),
}

/// The library's strictest server allows 128 operations in a transaction.
const MAX_OBSOLETE: usize = 64;

/// Records in one answer, some 2 MB. For each page etcd looks at all keys from there to the end.
const PAGE: i64 = 10_000;

pub(super) struct Store {
    pub(super) client: Client,
    pub(super) layout: Layout,
}

impl Store {
    pub(super) async fn read_all(&self) -> Result<Listing, Failure> {
        let (stored, revision) = self.pages(GetOptions::new(), |kv| self.stored(kv)).await?;
        Ok(Listing { stored, revision })
    }

    /// The subnets that any key keeps from others.
    pub(super) async fn claimed(&self) -> Vec<Prefix> {
        let kvs = self.keys().await;
        let ids = kvs.iter().filter_map(|kv| self.layout.lease_id(kv.key()));
        ids.flat_map(|id| key::claimed(&id)).collect()
    }

    /// Whether an older key keeps any of our subnets from others.
    pub(super) async fn is_shared(&self, own: &Own) -> bool {
        let kvs = self.keys().await;
        let mut older = kvs.iter().filter(|kv| kv.create_revision().unsigned_abs() < own.created);
        older.any(|kv| {
            let id = self.layout.lease_id(kv.key());
            let claimed = id.map_or_else(Vec::new, |id| key::claimed(&id));
            claimed.iter().any(|claimed| own.subnets.iter().any(|subnet| subnet.overlaps(*claimed)))
        })
    }

    /// Deletes our lease, unless somebody has changed it.
    pub(super) async fn withdraw(&self, own: &Own) {
        let key = self.layout.lease_key(&own.id);
        let ask = |connection: Connection| {
            let transaction = Txn::new()
                .when([unchanged(key.clone(), own.mod_revision)])
                .and_then([TxnOp::delete(key.clone(), None)]);
            async move { connection.kv().txn(transaction).await }
        };
        // Refused or not, it is not ours any more.
        let _ = self.client.request(ask).await;
    }

    /// All keys without their values, since many nodes ask at once.
    async fn keys(&self) -> Vec<KeyValue> {
        let mut backoff = Backoff::default();
        loop {
            match self.pages(GetOptions::new().with_keys_only(), |kv| Some(kv.clone())).await {
                Ok((kvs, _)) => return kvs,
                Err(_) => sleep(backoff.delay(rand::random())).await,
            }
        }
    }

    /// The lease `id` and the revision of the answer.
    pub(super) async fn read_once(&self, id: &LeaseId) -> Result<(Option<Stored>, i64), Failure> {
        let key = self.layout.lease_key(id);
        let answer = self
            .client
            .once(|connection| async move { connection.kv().get(key, None).await })
            .await?;
        Ok((answer.kvs().first().and_then(|kv| self.stored(kv)), revision(answer.header())))
    }

    pub(super) async fn write(&self, write: &Write) -> Result<Outcome, Refusal> {
        let transaction = self.transaction(write);
        let ask = |connection: Connection| {
            let transaction = transaction.clone();
            async move { connection.kv().txn(transaction).await }
        };
        let answer = self.client.request(ask).await?;
        if answer.succeeded() {
            return Ok(Outcome::Written(revision(answer.header())));
        }
        let mut found = Vec::new();
        for response in answer.op_responses() {
            if let TxnOpResponse::Get(answer) = response {
                found.extend(answer.kvs().iter().filter_map(|kv| self.stored(kv)));
            }
        }
        Ok(Outcome::Refused(found))
    }

    pub(super) fn stored(&self, kv: &KeyValue) -> Option<Stored> {
        let id = self.layout.lease_id(kv.key())?;
        let origin = Origin {
            created: kv.create_revision().unsigned_abs(),
            grant: Some(kv.lease()).filter(|grant| *grant != 0),
        };
        let record = value::decode(id, kv.value(), origin);
        Some(Stored { record, value: kv.value().to_vec(), origin, mod_revision: kv.mod_revision() })
    }

    /// What `read` makes of everything below the prefix as of one revision, however many leases
    /// there are.
    async fn pages<T>(
        &self,
        options: GetOptions,
        read: impl Fn(&KeyValue) -> Option<T>,
    ) -> Result<(Vec<T>, i64), Failure> {
        let end = prefix_end(&self.layout.subnets);
        let mut from = self.layout.subnets.clone().into_bytes();
        let options = options.with_range(end).with_limit(PAGE);
        let mut page = self.client.once(|connection| get(connection, &from, &options)).await?;
        let at = revision(page.header());
        let mut all: Vec<T> = page.kvs().iter().filter_map(&read).collect();
        // What is asked for a revision is the same on every member: nobody needs to ask the leader.
        let options = options.with_revision(at).with_serializable();
        while let Some(last) = page.kvs().last().filter(|_| page.more()) {
            from = [last.key(), b"\0"].concat();
            let ask = |connection| get(connection, &from, &options);
            self.client.breathe().await;
            page = self.client.request(ask).await.map_err(Failure::Refused)?;
            all.extend(page.kvs().iter().filter_map(&read));
        }
        Ok((all, at))
    }

    fn transaction(&self, write: &Write) -> Txn {
        let key = self.layout.lease_key(&write.id);
        let mut guards = Vec::new();
        let mut looks = vec![TxnOp::get(key.clone(), None)];
        match &write.condition {
            Condition::Unchanged(seen) => guards.push(unchanged(key.clone(), *seen)),
            Condition::Absent(subnets) => {
                guards.push(absent(key.clone()));
                self.guard_pairs(write, subnets, &mut guards, &mut looks);
            }
        }
        let grant = write.grant.unwrap_or(0);
        let put = PutOptions::new().with_lease(grant);
        let mut operations = vec![TxnOp::put(key, write.value.clone(), Some(put))];
        for (id, seen) in write.obsolete.iter().take(MAX_OBSOLETE) {
            let key = self.layout.lease_key(id);
            guards.push(unchanged(key.clone(), *seen));
            operations.push(TxnOp::delete(key, Some(DeleteOptions::new())));
        }
        Txn::new().when(guards).and_then(operations).or_else(looks)
    }

    /// One IPv4 subnet has several keys: one alone, and one with each IPv6 subnet.
    fn guard_pairs(
        &self,
        write: &Write,
        subnets: &[Prefix],
        guards: &mut Vec<Compare>,
        looks: &mut Vec<TxnOp>,
    ) {
        let Some(v4) = subnets.iter().find(|subnet| subnet.family() == Family::V4) else { return };
        let is_ours = |id: &LeaseId| write.obsolete.iter().any(|(obsolete, _)| obsolete == id);
        let alone = key::encode(&[*v4]);
        if alone != write.id && !is_ours(&alone) {
            guards.push(absent(self.layout.lease_key(&alone)));
            looks.push(TxnOp::get(self.layout.lease_key(&alone), None));
        }
        let (first, last) = self.layout.paired_with(*v4);
        let shares = |(id, _): &(LeaseId, i64)| {
            (first.as_str()..last.as_str()).contains(&self.layout.lease_key(id).as_str())
        };
        if !write.obsolete.iter().any(shares) {
            guards.push(absent(first.clone()).with_range(last.clone()));
            looks.push(TxnOp::get(first, Some(GetOptions::new().with_range(last))));
        }
    }
}

fn get(
    connection: Connection,
    from: &[u8],
    options: &GetOptions,
) -> impl Future<Output = Result<GetResponse, Error>> {
    let (from, options) = (from.to_vec(), options.clone());
    async move { connection.kv().get(from, Some(options)).await }
}

fn absent(key: String) -> Compare {
    Compare::version(key, CompareOp::Equal, 0)
}

fn unchanged(key: String, seen: i64) -> Compare {
    Compare::mod_revision(key, CompareOp::Equal, seen)
}

/// The first key behind all that begin with `prefix`, which ends with a slash.
pub(super) fn prefix_end(prefix: &str) -> Vec<u8> {
    let (parent, slash) = (prefix.trim_end_matches('/'), b'/');
    [parent.as_bytes(), &[slash + 1]].concat()
}
