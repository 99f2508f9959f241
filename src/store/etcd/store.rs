//! Reads leases in etcd page by page, and writes them in transactions that overwrite no unseen
//! change.

use std::future::Future;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, Error, GetOptions, GetResponse, KeyValue, PutOptions, Txn,
    TxnOp, TxnOpResponse, TxnResponse,
};
use tweed_client::backoff::Backoff;
use tweed_client::failover::{Failure, Refusal, retry};

use super::client::{Client, Connection, LONGEST_ANSWER, revision};
use super::key::{self, Layout};
use super::value::{self, Origin};
use crate::model::lease::{LeaseId, Malformed, Record};
use crate::model::prefix::{Family, Prefix};
use crate::store::claim::HeldLease;

/// A lease as stored in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) record: Record,
    /// Empty if it is no lease, since it may then be any bytes, as long as etcd allows.
    pub(super) value: Vec<u8>,
    /// Whether the value is too long for a lease.
    pub(super) is_oversized: bool,
    pub(super) origin: Origin,
    pub(super) mod_revision: i64,
}

impl Stored {
    pub(super) fn new(id: LeaseId, value: &[u8], origin: Origin, mod_revision: i64) -> Self {
        let record = value::decode(id, value, origin);
        let is_oversized = value.len() > value::LONGEST;
        let value = if record.lease.is_ok() { value.to_vec() } else { Vec::new() };
        Self { record, value, is_oversized, origin, mod_revision }
    }

    /// A key whose value was too large for an answer.
    fn unread(id: LeaseId, origin: Origin, mod_revision: i64) -> Self {
        let reason = format!("its value is too large to be read: more than {LONGEST_ANSWER} bytes");
        let record = Record { id, lease: Err(Malformed(reason)) };
        Self { record, value: Vec::new(), is_oversized: true, origin, mod_revision }
    }

    /// None if the key contains no subnet. The etcd lease counts even if the value is malformed.
    pub(super) fn holding(&self) -> Option<HeldLease> {
        let subnets = key::claimed(&self.record.id);
        let endpoints = self.record.lease.as_ref().map_or(&[][..], |lease| &lease.endpoints);
        (!subnets.is_empty()).then(|| HeldLease {
            id: self.record.id.clone(),
            subnets,
            public_ips: endpoints.iter().map(|endpoint| endpoint.public_ip).collect(),
            grant: self.origin.grant,
            created: self.origin.created,
        })
    }
}

/// All leases at one revision, sorted by key.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    pub(super) stored: Vec<Stored>,
    pub(super) revision: i64,
}

impl Listing {
    pub(super) fn get(&self, id: &LeaseId) -> Option<&Stored> {
        self.stored.iter().find(|stored| stored.record.id == *id)
    }

    pub(super) fn newest(&self) -> Option<&Stored> {
        self.stored.iter().max_by_key(|stored| stored.mod_revision)
    }

    pub(super) fn holdings(&self) -> impl Iterator<Item = HeldLease> + '_ {
        self.stored.iter().filter_map(Stored::holding)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) id: LeaseId,
    pub(super) value: Vec<u8>,
    /// The etcd lease; none for a reservation.
    pub(super) grant: Option<i64>,
    pub(super) condition: Precondition,
    /// Leases to delete in the same transaction, with the revision at which they were read.
    pub(super) obsolete: Vec<(LeaseId, i64)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Precondition {
    /// No lease holds the subnets of the key.
    Absent,
    /// The lease was not written after this revision.
    Unchanged(i64),
}

/// Fewer than the 128 operations that etcd allows in a transaction by default.
pub(super) const MAX_OBSOLETE: usize = 64;

/// Records in one answer, some 2 MB. For each page, etcd scans all keys from its start to the end.
const PAGE: i64 = 10_000;

pub(super) struct Store {
    pub(super) client: Client,
    pub(super) layout: Layout,
}

impl Store {
    pub(super) async fn read_all(&self) -> Result<Listing, Failure> {
        let (stored, revision) =
            self.pages(GetOptions::new(), |kv, content| self.stored_to(kv, content)).await?;
        Ok(Listing { stored, revision })
    }

    pub(super) async fn claimed(&self) -> Vec<Prefix> {
        self.keys().await.into_iter().flat_map(|(_, claimed)| claimed).collect()
    }

    /// Reads all keys: whether one that is older than `created` reserves any of `subnets`.
    pub(super) async fn is_shared(&self, subnets: &[Prefix], created: u64) -> bool {
        let keys = self.keys().await;
        let mut older = keys.iter().filter(|(other, _)| *other < created);
        let is_ours = |claimed: &Prefix| subnets.iter().any(|subnet| subnet.overlaps(*claimed));
        older.any(|(_, claimed)| claimed.iter().any(is_ours))
    }

    /// Deletes our lease, unless it was changed after `seen`.
    pub(super) async fn withdraw(&self, id: &LeaseId, seen: i64) {
        let key = self.layout.lease_key(id);
        let is_ours = unchanged(key.clone(), seen);
        let transaction = Txn::new().when([is_ours]).and_then([TxnOp::delete(key, None)]);
        // A changed lease is not this node's any more.
        let _ = self.commit(&transaction).await;
    }

    /// Retries until there is an answer.
    async fn commit(&self, transaction: &Txn) -> Result<TxnResponse, Refusal> {
        let ask = |connection: Connection| {
            let transaction = transaction.clone();
            async move { connection.kv().txn(transaction).await }
        };
        self.client.request(ask).await
    }

    /// For each key, the revision that created it and the subnets that it reserves. Values are not
    /// requested, since many nodes send this request at once.
    async fn keys(&self) -> Vec<(u64, Vec<Prefix>)> {
        let claimed = |kv: &KeyValue, _| {
            let id = self.layout.lease_id(kv.key())?;
            Some((kv.create_revision().unsigned_abs(), key::claimed(&id)))
        };
        retry(Backoff::LONGEST, || async {
            let read = self.pages(GetOptions::new().with_keys_only(), claimed).await;
            read.ok().map(|(keys, _)| keys)
        })
        .await
    }

    /// The lease at the revision `at`, or now if that is 0, and the revision of the answer.
    pub(super) async fn read_once(
        &self,
        id: &LeaseId,
        at: i64,
    ) -> Result<(Option<Stored>, i64), Failure> {
        let key = self.layout.lease_key(id);
        let options = Some(GetOptions::new().with_revision(at));
        let answer = self
            .client
            .once(|connection| async move { connection.kv().get(key, options).await })
            .await?;
        Ok((answer.kvs().first().and_then(|kv| self.stored(kv)), revision(answer.header())))
    }

    /// Returns the revision of the write, or the leases that violate the condition.
    pub(super) async fn write(&self, write: &Write) -> Result<Result<i64, Vec<Stored>>, Refusal> {
        let answer = self.commit(&self.transaction(write)).await?;
        if answer.succeeded() {
            return Ok(Ok(revision(answer.header())));
        }
        let mut found = Vec::new();
        for response in answer.op_responses() {
            if let TxnOpResponse::Get(answer) = response {
                found.extend(answer.kvs().iter().filter_map(|kv| self.stored(kv)));
            }
        }
        Ok(Err(found))
    }

    pub(super) fn stored(&self, kv: &KeyValue) -> Option<Stored> {
        self.stored_to(kv, PageContent::Whole)
    }

    /// The lease in one entry of a page.
    pub(super) fn stored_to(&self, kv: &KeyValue, content: PageContent) -> Option<Stored> {
        let id = self.layout.lease_id(kv.key())?;
        let origin = Origin {
            created: kv.create_revision().unsigned_abs(),
            grant: Some(kv.lease()).filter(|grant| *grant != 0),
        };
        Some(match content {
            PageContent::Whole => Stored::new(id, kv.value(), origin, kv.mod_revision()),
            PageContent::KeyAlone => Stored::unread(id, origin, kv.mod_revision()),
        })
    }

    /// Applies `read` to all keys below the prefix at one revision, for any number of leases, and
    /// any size of other values.
    async fn pages<T>(
        &self,
        options: GetOptions,
        read: impl Fn(&KeyValue, PageContent) -> Option<T>,
    ) -> Result<(Vec<T>, i64), Failure> {
        let page = Page::below(&self.layout.subnets, PAGE);
        let read = pages(page, read, |page, at| self.page(page, at, &options)).await;
        match read {
            Ok(all) => {
                self.client.report.withholds_leases(None);
                Ok(all)
            }
            Err(failure @ Failure::Refused(Refusal::Denied(_) | Refusal::TooLarge(_))) => {
                self.client.report.interrupted(failure);
                Err(Failure::Unreachable)
            }
            Err(failure) => Err(failure),
        }
    }

    /// One page; after the first, as of the revision `at`.
    async fn page(
        &self,
        page: Page,
        at: Option<i64>,
        options: &GetOptions,
    ) -> Result<GetResponse, Failure> {
        match at {
            None => self.client.once(|connection| page.get(connection, options)).await,
            // At a given revision, any member gives the same answer without asking the leader.
            Some(at) => {
                let options = options.clone().with_revision(at).with_serializable();
                let answer = self.client.request(|connection| page.get(connection, &options)).await;
                answer.map_err(Failure::Refused)
            }
        }
    }

    fn transaction(&self, write: &Write) -> Txn {
        let key = self.layout.lease_key(&write.id);
        let mut guards = Vec::new();
        let mut looks = vec![TxnOp::get(key.clone(), None)];
        match &write.condition {
            Precondition::Unchanged(seen) => guards.push(unchanged(key.clone(), *seen)),
            Precondition::Absent => {
                guards.push(absent(key.clone()));
                self.guard_pairs(write, &mut guards, &mut looks);
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
    fn guard_pairs(&self, write: &Write, guards: &mut Vec<Compare>, looks: &mut Vec<TxnOp>) {
        let subnets = key::claimed(&write.id);
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

fn absent(key: String) -> Compare {
    Compare::version(key, CompareOp::Equal, 0)
}

pub(super) fn unchanged(key: String, seen: i64) -> Compare {
    Compare::mod_revision(key, CompareOp::Equal, seen)
}

/// The keys below a prefix, from one of them on. If a value is too large for an answer, only its
/// key is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) from: Vec<u8>,
    /// Exclusive.
    pub(super) end: Vec<u8>,
    most: i64,
    limit: i64,
    content: PageContent,
}

/// Which parts of each key are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageContent {
    Whole,
    KeyAlone,
}

/// The longest answer with a key without its value, in bytes.
const LONGEST_KEY: usize = 64 * 1024 * 1024;

/// Applies `read` to all keys from `page` on; returns also the revision of the first answer. `ask`
/// requests one page, at that revision once it is known.
pub(super) async fn pages<T, F>(
    mut page: Page,
    read: impl Fn(&KeyValue, PageContent) -> Option<T>,
    ask: impl Fn(Page, Option<i64>) -> F,
) -> Result<(Vec<T>, i64), Failure>
where
    F: Future<Output = Result<GetResponse, Failure>>,
{
    let (mut all, mut at) = (Vec::new(), None);
    loop {
        let answer = match ask(page.clone(), at).await {
            Err(Failure::Refused(Refusal::TooLarge(_))) if page.shrink() => continue,
            answer => answer?,
        };
        all.extend(answer.kvs().iter().filter_map(|kv| read(kv, page.content)));
        let first = *at.get_or_insert(revision(answer.header()));
        if !page.advance(&answer) {
            return Ok((all, first));
        }
    }
}

impl Page {
    /// The first of all keys below `prefix`, which ends with a slash; at most `most` of them.
    pub(super) fn below(prefix: &str, most: i64) -> Self {
        let (parent, slash) = (prefix.trim_end_matches('/'), b'/');
        let end = [parent.as_bytes(), &[slash + 1]].concat();
        let from = prefix.as_bytes().to_vec();
        Self { from, end, most, limit: most, content: PageContent::Whole }
    }

    pub(super) fn get(
        &self,
        connection: Connection,
        options: &GetOptions,
    ) -> impl Future<Output = Result<GetResponse, Error>> + use<> {
        let options = options.clone().with_range(self.end.clone()).with_limit(self.limit);
        let (options, longest) = match self.content {
            PageContent::Whole => (options, LONGEST_ANSWER),
            PageContent::KeyAlone => (options.with_keys_only(), LONGEST_KEY),
        };
        let from = self.from.clone();
        async move { connection.kv_of(longest).get(from, Some(options)).await }
    }

    /// Requests fewer keys after an answer that was too large. Returns false if it was a single
    /// key.
    fn shrink(&mut self) -> bool {
        match (self.limit, self.content) {
            (2.., _) => self.limit /= 2,
            (_, PageContent::Whole) => self.content = PageContent::KeyAlone,
            (_, PageContent::KeyAlone) => return false,
        }
        true
    }

    /// Continues after the keys of `answer`. Returns false if they were the last.
    fn advance(&mut self, answer: &GetResponse) -> bool {
        let Some(last) = answer.kvs().last().filter(|_| answer.more()) else { return false };
        self.from = [last.key(), b"\0"].concat();
        self.grow();
        true
    }

    /// Requests more keys again after an answer that was not too large.
    fn grow(&mut self) {
        (self.limit, self.content) = (self.most.min(self.limit * 2), PageContent::Whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(limit: i64, content: PageContent) -> Page {
        Page { limit, content, ..Page::below("/n/", 10) }
    }

    #[test]
    fn a_page_that_is_too_large_is_halved_down_to_one_key() {
        let halved = std::iter::successors(Some(page(10, PageContent::Whole)), |page| {
            let mut smaller = page.clone();
            smaller.shrink().then_some(smaller)
        });
        let seen: Vec<_> = halved.map(|page| (page.limit, page.content)).collect();
        let whole = [10, 5, 2, 1].map(|limit| (limit, PageContent::Whole));
        assert_eq!(seen, [whole.as_slice(), &[(1, PageContent::KeyAlone)]].concat());
    }

    #[test]
    fn a_page_grows_again_to_its_former_size() {
        let grown = |page: &Page| {
            let mut larger = page.clone();
            larger.grow();
            larger
        };
        let pages =
            std::iter::successors(Some(page(1, PageContent::Whole)), |page| Some(grown(page)));
        assert_eq!(pages.take(6).map(|page| page.limit).collect::<Vec<_>>(), [1, 2, 4, 8, 10, 10]);
        assert_eq!(grown(&page(1, PageContent::KeyAlone)), page(2, PageContent::Whole));
    }
}
