//! The data of an etcd: keys with their history, leases, and observers of changes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use etcd_client::proto::{
    PbCompare, PbDeleteRequest, PbDeleteResponse, PbEvent, PbKeyValue, PbPutRequest, PbPutResponse,
    PbRangeRequest, PbRangeResponse, PbResponseHeader, PbResponseOp, PbTargetUnion, PbTxnOpRequest,
    PbTxnOpResponse, PbTxnRequest, PbTxnRequestOp, PbTxnResponse,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

/// What etcd answers, or its error.
pub(super) type Answer<T> = Result<T, Status>;

/// The revision of the last compaction before there was one; 0 can be compacted once.
const NEVER: i64 = -1;

/// The events of one revision.
pub(super) type Change = (i64, Vec<PbEvent>);

#[derive(Clone, Debug)]
pub struct State {
    pub cluster: u64,
    pub term: u64,
    revision: i64,
    compacted: i64,
    keys: BTreeMap<Vec<u8>, PbKeyValue>,
    /// In the order of revisions; those up to `compacted` are dropped.
    changes: Vec<Change>,
    leases: BTreeMap<i64, Lease>,
}

#[derive(Clone, Debug)]
struct Lease {
    ttl: i64,
    until: Instant,
    keys: BTreeSet<Vec<u8>>,
}

/// Which keys an observer wants, and from which revision on.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) key: Vec<u8>,
    pub(super) range_end: Vec<u8>,
    pub(super) from: i64,
    pub(super) previous: bool,
}

/// Observers outlive the data: a restored backup has the same ones.
pub(super) type Observers = Vec<(Wish, mpsc::Sender<Change>)>;

impl State {
    pub fn new(cluster: u64) -> Self {
        Self {
            cluster,
            term: 2,
            revision: 1,
            compacted: NEVER,
            keys: BTreeMap::new(),
            changes: Vec::new(),
            leases: BTreeMap::new(),
        }
    }

    pub const fn revision(&self) -> i64 {
        self.revision
    }

    pub const fn compacted(&self) -> i64 {
        self.compacted
    }

    pub const fn header(&self) -> PbResponseHeader {
        PbResponseHeader {
            cluster_id: self.cluster,
            member_id: 1,
            revision: self.revision,
            raft_term: self.term,
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = &PbKeyValue> {
        self.keys.values()
    }

    /// The changes from `revision` on.
    pub fn since(&self, revision: i64) -> impl Iterator<Item = &Change> {
        let first = self.changes.partition_point(|(at, _)| *at < revision);
        self.changes.iter().skip(first)
    }

    pub fn range(&self, request: &PbRangeRequest) -> Answer<PbRangeResponse> {
        let at = request.revision;
        if at > self.revision {
            return Err(future_revision());
        }
        if at > 0 && at < self.compacted {
            return Err(compacted());
        }
        let past = (at > 0 && at < self.revision).then(|| self.as_of(at));
        let keys = past.as_ref().unwrap_or(&self.keys);
        let all = keys.values().filter(|kv| is_in(&kv.key, &request.key, &request.range_end));
        // The count is that before the filters.
        let count = all.clone().count();
        let is_since = |revision: i64, least: i64| least == 0 || revision >= least;
        let found: Vec<&PbKeyValue> = all
            .filter(|kv| is_since(kv.mod_revision, request.min_mod_revision))
            .filter(|kv| is_since(kv.create_revision, request.min_create_revision))
            .collect();
        let limit = usize::try_from(request.limit).unwrap_or(0);
        let limit = if limit == 0 { found.len() } else { limit };
        let shown = |kv: &PbKeyValue| {
            let value = if request.keys_only { Vec::new() } else { kv.value.clone() };
            PbKeyValue { value, ..kv.clone() }
        };
        let taken = if request.count_only { 0 } else { limit };
        let more = found.len() > taken && !request.count_only;
        Ok(PbRangeResponse {
            header: Some(self.header()),
            kvs: found.into_iter().take(taken).map(shown).collect(),
            more,
            count: i64::try_from(count).unwrap_or(i64::MAX),
        })
    }

    /// The keys as they were after `revision`.
    fn as_of(&self, revision: i64) -> BTreeMap<Vec<u8>, PbKeyValue> {
        let mut keys = self.keys.clone();
        for event in self.since(revision + 1).rev_events() {
            let Some(kv) = &event.kv else { continue };
            match &event.prev_kv {
                Some(previous) => keys.insert(kv.key.clone(), previous.clone()),
                None => keys.remove(&kv.key),
            };
        }
        keys
    }

    /// Carries out a transaction; returns its answer and what it changed.
    pub fn txn(&mut self, request: &PbTxnRequest) -> Answer<(PbTxnResponse, Option<Change>)> {
        let succeeded = request.compare.iter().all(|compare| self.holds(compare));
        let ops = if succeeded { &request.success } else { &request.failure };
        self.check(ops)?;
        let (mut events, next) = (Vec::new(), self.revision + 1);
        let mut responses = Vec::new();
        for op in ops {
            let mut response = self.carry_out(op, next, &mut events)?;
            // The revision is that after this part.
            let revision = if events.is_empty() { self.revision } else { next };
            set_header(&mut response, PbResponseHeader { revision, ..self.header() });
            responses.push(response);
        }
        let change = self.commit(events);
        let header = Some(self.header());
        Ok((PbTxnResponse { header, succeeded, responses }, change))
    }

    /// Nothing is changed if an operation of a transaction is not possible.
    fn check(&self, ops: &[PbTxnRequestOp]) -> Answer<()> {
        let puts = ops.iter().filter_map(|op| match &op.request {
            Some(PbTxnOpRequest::RequestPut(put)) => Some(put),
            _ => None,
        });
        for put in puts {
            if put.lease != 0 && !self.leases.contains_key(&put.lease) {
                return Err(lease_not_found());
            }
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        op: &PbTxnRequestOp,
        next: i64,
        events: &mut Vec<PbEvent>,
    ) -> Answer<PbResponseOp> {
        let response = match &op.request {
            Some(PbTxnOpRequest::RequestRange(range)) => {
                PbTxnOpResponse::ResponseRange(self.range(range)?)
            }
            Some(PbTxnOpRequest::RequestPut(put)) => {
                PbTxnOpResponse::ResponsePut(self.put_in(put, next, events))
            }
            Some(PbTxnOpRequest::RequestDeleteRange(delete)) => {
                PbTxnOpResponse::ResponseDeleteRange(self.delete_in(delete, next, events))
            }
            Some(PbTxnOpRequest::RequestTxn(_)) | None => {
                return Err(Status::unimplemented("nested transactions are not simulated"));
            }
        };
        Ok(PbResponseOp { response: Some(response) })
    }

    fn put_in(
        &mut self,
        put: &PbPutRequest,
        next: i64,
        events: &mut Vec<PbEvent>,
    ) -> PbPutResponse {
        let previous = self.keys.get(&put.key).cloned();
        if let Some(lease) = previous.as_ref().and_then(|kv| self.leases.get_mut(&kv.lease)) {
            lease.keys.remove(&put.key);
        }
        let kv = PbKeyValue {
            key: put.key.clone(),
            create_revision: previous.as_ref().map_or(next, |kv| kv.create_revision),
            mod_revision: next,
            version: previous.as_ref().map_or(1, |kv| kv.version + 1),
            value: put.value.clone(),
            lease: put.lease,
        };
        if let Some(lease) = self.leases.get_mut(&put.lease) {
            lease.keys.insert(put.key.clone());
        }
        self.keys.insert(put.key.clone(), kv.clone());
        events.push(PbEvent { r#type: 0, kv: Some(kv), prev_kv: previous.clone() });
        PbPutResponse { header: Some(self.header()), prev_kv: previous.filter(|_| put.prev_kv) }
    }

    fn delete_in(
        &mut self,
        delete: &PbDeleteRequest,
        next: i64,
        events: &mut Vec<PbEvent>,
    ) -> PbDeleteResponse {
        let is_meant = |key: &&Vec<u8>| is_in(key, &delete.key, &delete.range_end);
        let keys: Vec<Vec<u8>> = self.keys.keys().filter(is_meant).cloned().collect();
        let mut prev_kvs = Vec::new();
        for key in keys {
            let Some(previous) = self.keys.remove(&key) else { continue };
            if let Some(lease) = self.leases.get_mut(&previous.lease) {
                lease.keys.remove(&key);
            }
            let kv = PbKeyValue { key, mod_revision: next, ..PbKeyValue::default() };
            events.push(PbEvent { r#type: 1, kv: Some(kv), prev_kv: Some(previous.clone()) });
            prev_kvs.push(previous);
        }
        let deleted = i64::try_from(prev_kvs.len()).unwrap_or(i64::MAX);
        let prev_kvs = if delete.prev_kv { prev_kvs } else { Vec::new() };
        PbDeleteResponse { header: Some(self.header()), deleted, prev_kvs }
    }

    fn commit(&mut self, events: Vec<PbEvent>) -> Option<Change> {
        if events.is_empty() {
            return None;
        }
        self.revision += 1;
        self.changes.push((self.revision, events));
        self.changes.last().cloned()
    }

    fn holds(&self, compare: &PbCompare) -> bool {
        let is_meant = |kv: &&PbKeyValue| is_in(&kv.key, &compare.key, &compare.range_end);
        let mut found = self.keys.values().filter(is_meant).peekable();
        if found.peek().is_none() {
            // A value of a key that does not exist differs from any.
            let is_value = matches!(compare.target_union, Some(PbTargetUnion::Value(_)));
            return !is_value && compares(compare, &PbKeyValue::default());
        }
        found.all(|kv| compares(compare, kv))
    }

    pub fn grant(&mut self, id: i64, ttl: i64) -> Answer<i64> {
        let id =
            if id == 0 { self.leases.keys().next_back().map_or(1, |last| last + 1) } else { id };
        if self.leases.contains_key(&id) {
            return Err(Status::failed_precondition("etcdserver: lease already exists"));
        }
        let until = Instant::now() + seconds(ttl);
        self.leases.insert(id, Lease { ttl, until, keys: BTreeSet::new() });
        Ok(id)
    }

    pub fn revoke(&mut self, id: i64) -> Answer<Option<Change>> {
        let lease = self.leases.remove(&id).ok_or_else(lease_not_found)?;
        let (mut events, next) = (Vec::new(), self.revision + 1);
        for key in lease.keys {
            let delete = PbDeleteRequest { key, ..PbDeleteRequest::default() };
            self.delete_in(&delete, next, &mut events);
        }
        Ok(self.commit(events))
    }

    /// The TTL of a renewed lease; 0 if it does not exist.
    pub fn keep_alive(&mut self, id: i64) -> i64 {
        let Some(lease) = self.leases.get_mut(&id) else { return 0 };
        lease.until = Instant::now() + seconds(lease.ttl);
        lease.ttl
    }

    /// The granted TTL, the remaining one and the keys of a lease; none if it does not exist.
    pub fn time_to_live(&self, id: i64) -> Option<(i64, i64, Vec<Vec<u8>>)> {
        let lease = self.leases.get(&id)?;
        let left = lease.until.saturating_duration_since(Instant::now()).as_secs();
        let keys = lease.keys.iter().cloned().collect();
        Some((lease.ttl, i64::try_from(left).unwrap_or(0), keys))
    }

    /// The leases that have ended.
    pub fn expired(&self) -> Vec<i64> {
        let now = Instant::now();
        self.leases.iter().filter(|(_, it)| it.until <= now).map(|(id, _)| *id).collect()
    }

    /// All leases have their full term again, as after an election.
    pub fn renew_all(&mut self) {
        let now = Instant::now();
        self.leases.values_mut().for_each(|lease| lease.until = now + seconds(lease.ttl));
    }

    /// The data as a cluster that was restored from it has it: with another identity, in its first
    /// term.
    #[must_use]
    pub fn restored(self, cluster: u64) -> Self {
        Self { cluster, term: 2, ..self }
    }

    pub fn compact(&mut self, revision: i64) -> Answer<()> {
        if revision <= self.compacted {
            return Err(compacted());
        }
        if revision > self.revision {
            return Err(future_revision());
        }
        self.compacted = revision;
        self.changes.retain(|(at, _)| *at >= revision);
        Ok(())
    }
}

/// The events of changes, the newest first.
trait RevEvents<'a> {
    fn rev_events(self) -> Vec<&'a PbEvent>;
}

impl<'a, I: Iterator<Item = &'a Change>> RevEvents<'a> for I {
    fn rev_events(self) -> Vec<&'a PbEvent> {
        let mut events: Vec<&PbEvent> = self.flat_map(|(_, events)| events).collect();
        events.reverse();
        events
    }
}

impl Wish {
    /// The events of `change` that this observer wants.
    pub(super) fn of(&self, (revision, events): &Change) -> Option<Change> {
        if *revision < self.from {
            return None;
        }
        let wanted = events.iter().filter(|event| {
            event.kv.as_ref().is_some_and(|kv| is_in(&kv.key, &self.key, &self.range_end))
        });
        let shown = |event: &PbEvent| {
            let prev_kv = event.prev_kv.clone().filter(|_| self.previous);
            PbEvent { prev_kv, ..event.clone() }
        };
        let wanted: Vec<PbEvent> = wanted.map(shown).collect();
        (!wanted.is_empty()).then_some((*revision, wanted))
    }
}

fn set_header(response: &mut PbResponseOp, header: PbResponseHeader) {
    match &mut response.response {
        Some(PbTxnOpResponse::ResponseRange(part)) => part.header = Some(header),
        Some(PbTxnOpResponse::ResponsePut(part)) => part.header = Some(header),
        Some(PbTxnOpResponse::ResponseDeleteRange(part)) => part.header = Some(header),
        Some(PbTxnOpResponse::ResponseTxn(part)) => part.header = Some(header),
        None => {}
    }
}

fn compacted() -> Status {
    Status::out_of_range("etcdserver: mvcc: required revision has been compacted")
}

fn future_revision() -> Status {
    Status::out_of_range("etcdserver: mvcc: required revision is a future revision")
}

fn lease_not_found() -> Status {
    Status::not_found("etcdserver: requested lease not found")
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

/// Without an end, the range is the one key; the end `\0` means all keys from it on.
fn is_in(key: &[u8], from: &[u8], range_end: &[u8]) -> bool {
    match range_end {
        [] => key == from,
        [0] => key >= from,
        end => key >= from && key < end,
    }
}

/// Whether the end of a range is not after its begin.
pub(super) fn is_empty(from: &[u8], range_end: &[u8]) -> bool {
    !matches!(range_end, [] | [0]) && range_end <= from
}

fn compares(compare: &PbCompare, kv: &PbKeyValue) -> bool {
    let order = match &compare.target_union {
        Some(PbTargetUnion::Version(version)) => kv.version.cmp(version),
        Some(PbTargetUnion::CreateRevision(revision)) => kv.create_revision.cmp(revision),
        Some(PbTargetUnion::ModRevision(revision)) => kv.mod_revision.cmp(revision),
        Some(PbTargetUnion::Value(value)) => kv.value.cmp(value),
        Some(PbTargetUnion::Lease(lease)) => kv.lease.cmp(lease),
        None => return false,
    };
    match compare.result {
        0 => order.is_eq(),
        1 => order.is_gt(),
        2 => order.is_lt(),
        _ => order.is_ne(),
    }
}
