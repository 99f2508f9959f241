//! Leases in memory, for tests of what comes behind the store.

mod source;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::BoxStream;
use tokio::sync::watch as channel;

use super::allocate::Draw;
use super::claim::{Claimant, Holding, Previous, Way};
use super::etcd::key;
use super::watch::updates;
use super::{Error, Lost, SubnetManager, Unpublished};
use crate::model::config::{ConfigUpdate, NetworkConfig, Unusable};
use crate::model::lease::{Lease, LeaseAttributes, LeaseId, LeaseUpdate, Malformed, Record};
use crate::model::prefix::Prefix;
use crate::model::probe_secret::Secret;
use crate::model::report::NodeReport;
use crate::model::status::StoreState;
use source::MemorySource;

/// A store that tests fill, empty and take away. Clones share its content.
#[derive(Clone, Debug)]
pub struct MemoryStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    content: Mutex<Content>,
    changed: channel::Sender<()>,
    state: channel::Sender<StoreState>,
}

#[derive(Debug, Default)]
struct Content {
    config: Option<ConfigUpdate>,
    /// How often the config was written.
    config_writes: u64,
    reports: BTreeMap<LeaseId, NodeReport>,
    records: BTreeMap<LeaseId, Record>,
    history: Vec<LeaseUpdate>,
    /// How much of the history may no longer be read.
    compacted: usize,
    away: bool,
    grants: i64,
    probe_secret: Option<[u8; Secret::LENGTH]>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self(Arc::new(Shared {
            content: Mutex::default(),
            changed: channel::Sender::new(()),
            state: channel::Sender::new(StoreState::Reachable),
        }))
    }
}

impl MemoryStore {
    pub fn configure(&self, config: NetworkConfig) {
        self.change(|content| content.write_config(Ok(config)));
    }

    /// The config is gone, or is none any more.
    pub fn misconfigure(&self, reason: &str) {
        self.change(|content| content.write_config(Err(Unusable(reason.to_owned()))));
    }

    pub fn put(&self, lease: Lease) {
        self.change(|content| content.put(Record { id: lease.id.clone(), lease: Ok(lease) }));
    }

    pub fn put_malformed(&self, id: LeaseId, reason: &str) {
        let lease = Err(Malformed(reason.to_owned()));
        self.change(|content| content.put(Record { id, lease }));
    }

    pub fn remove(&self, id: &LeaseId) {
        self.change(|content| content.remove(id));
    }

    /// Nobody gets an answer any more; what changes meanwhile is told once the store is back.
    pub fn go_away(&self, reason: &str) {
        self.change(|content| content.away = true);
        self.0.state.send_replace(StoreState::Waiting(reason.to_owned()));
    }

    pub fn come_back(&self) {
        self.change(|content| content.away = false);
        self.0.state.send_replace(StoreState::Reachable);
    }

    /// Forgets how its content came about: who has not followed so far needs a snapshot.
    pub fn compact(&self) {
        self.change(|content| content.compacted = content.history.len());
    }

    pub fn records(&self) -> Vec<Record> {
        self.content().records.values().cloned().collect()
    }

    pub fn reports(&self) -> Vec<NodeReport> {
        self.content().reports.values().cloned().collect()
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Content) -> T) -> T {
        let result = change(&mut self.content());
        self.0.changed.send_replace(());
        result
    }

    /// What `find` finds, once it finds something and the store is not away.
    async fn when<T>(&self, find: impl Fn(&Content) -> Option<T>) -> T {
        let mut changed = self.0.changed.subscribe();
        loop {
            let found = Some(self.content()).filter(|content| !content.away);
            if let Some(found) = found.and_then(|content| find(&content)) {
                return found;
            }
            // The sender lives as long as we do.
            if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Content {
    fn write_config(&mut self, config: Result<NetworkConfig, Unusable>) {
        self.config_writes += 1;
        self.config = Some(ConfigUpdate { config, revision: self.config_writes });
    }

    fn put(&mut self, record: Record) {
        self.history.push(LeaseUpdate::Put(record.clone()));
        self.records.insert(record.id.clone(), record);
    }

    fn remove(&mut self, id: &LeaseId) {
        self.reports.remove(id);
        if self.records.remove(id).is_some() {
            self.history.push(LeaseUpdate::Remove(id.clone()));
        }
    }
}

/// A node's view of a [`MemoryStore`].
#[derive(Debug)]
pub struct MemorySubnetManager {
    store: MemoryStore,
    previous: Previous,
    own: channel::Sender<Option<Lease>>,
}

/// Id, subnets and grant of a lease to publish.
type Claimed = (LeaseId, Vec<Prefix>, Option<i64>);

impl MemorySubnetManager {
    pub fn new(store: MemoryStore, previous: Previous) -> Self {
        Self { store, previous, own: channel::Sender::new(None) }
    }

    fn claim(&self, content: &mut Content, claimant: &Claimant<'_>) -> Result<Claimed, Error> {
        let holdings: Vec<Holding> = content.records.values().filter_map(Holding::of).collect();
        if let Some(own) = self.own.borrow().as_ref() {
            return claim_again(own, claimant, &holdings);
        }
        let claim = claimant.claim(&holdings)?;
        let (id, subnets) = match claim.way {
            Way::Take(id) => (id.clone(), key::claimed(&id)),
            Way::Create(wish) => {
                let slot = claimant.public_ips.first();
                let subnets = wish.fulfil(slot.map_or(Draw::Any(0), |ip| Draw::SlotOf(*ip, 0)))?;
                (key::encode(&subnets), subnets)
            }
        };
        claim.obsolete.iter().for_each(|id| content.remove(id));
        let held = holdings.iter().find(|held| held.id == id);
        let grant = if held.is_some_and(|held| held.grant.is_none()) {
            None
        } else {
            Some(self.grant(content))
        };
        Ok((id, subnets, grant))
    }

    fn grant(&self, content: &mut Content) -> i64 {
        self.previous.grant.unwrap_or_else(|| {
            content.grants += 1;
            content.grants
        })
    }

    fn publish(
        &self,
        content: &mut Content,
        claimant: &Claimant<'_>,
        attributes: &LeaseAttributes,
    ) -> Result<Lease, Error> {
        let (id, subnets, grant) = self.claim(content, claimant)?;
        let known = content.records.get(&id).and_then(|record| record.lease.as_ref().ok());
        let created = known.map_or(content.history.len() as u64 + 1, |lease| lease.created);
        let endpoints = attributes.published_for(subnets);
        let lease = Lease { id: id.clone(), endpoints, created, grant };
        content.put(Record { id, lease: Ok(lease.clone()) });
        self.own.send_replace(Some(lease.clone()));
        Ok(lease)
    }
}

fn claim_again(
    own: &Lease,
    claimant: &Claimant<'_>,
    holdings: &[Holding],
) -> Result<Claimed, Error> {
    let subnets: Vec<Prefix> = own.subnets().collect();
    let held = holdings.iter().find(|held| held.id == own.id);
    let same_term = |held: &Holding| held.grant.is_some() && held.grant == own.grant;
    match (held, subnets.first()) {
        (Some(held), Some(subnet)) if !same_term(held) && !claimant.owns(held) => {
            Err(claimant.taken(*subnet, held))
        }
        _ => Ok((own.id.clone(), subnets, own.grant)),
    }
}

impl SubnetManager for MemorySubnetManager {
    fn watch_config(&self) -> BoxStream<'static, ConfigUpdate> {
        source::config_updates(self.store.clone())
    }

    async fn acquire(
        &self,
        config: &NetworkConfig,
        attributes: &LeaseAttributes,
    ) -> Result<Lease, Error> {
        self.store.when(|_| Some(())).await;
        let public_ips = attributes.endpoints.iter().map(|endpoint| endpoint.public_ip).collect();
        let (pools, previous) = (&config.pools, &self.previous);
        let claimant = Claimant { pools, public_ips, previous, occupied: &[] };
        self.store.change(|content| self.publish(content, &claimant, attributes))
    }

    async fn hold(&self, lease: &Lease) -> Lost {
        self.store
            .when(|content| match content.records.get(&lease.id) {
                None => Some(Lost::because(format!("key {} is gone", lease.id))),
                Some(record) if record.lease.as_ref().ok() == self.own.borrow().as_ref() => None,
                Some(_) => Some(Lost::because(format!("key {} was overwritten", lease.id))),
            })
            .await
    }

    fn watch_leases(&self) -> BoxStream<'static, LeaseUpdate> {
        updates(MemorySource::new(self.store.clone()))
    }

    async fn publish_report(&self, report: &NodeReport) -> Result<(), Unpublished> {
        let publish = |content: &mut Content| {
            if content.away {
                return Err(Unpublished("the store is away".to_owned()));
            }
            content.reports.insert(report.lease.clone(), report.clone());
            Ok(())
        };
        self.store.change(publish)
    }

    async fn probe_secret(&self) -> Result<Secret, String> {
        self.store.when(|_| Some(())).await;
        let secret = |content: &mut Content| *content.probe_secret.get_or_insert_with(rand::random);
        Ok(Secret::new(&self.store.change(secret)))
    }

    fn state(&self) -> channel::Receiver<StoreState> {
        self.store.0.state.subscribe()
    }
}

#[cfg(test)]
mod tests;
