//! A model of the kernel in memory: it follows the rules of the real one that tweed depends on.

#[cfg(test)]
mod tests;
mod world;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tweed::kernel::{Chains, Generation, Kernel, Observation, Reading, Refused};
use tweed::model::entry::{
    BasePolicy, Chain, ChainName, Entry, Iptables, KernelState, Key, LinkName,
};
use tweed::model::node::{Facts, Interface, RouteLookup, Sysctls};
use tweed::plan::diff::Op;
use tweed::plan::scope::Scope;

use world::World;

/// A handle of the kernel. All clones share one kernel: the loop gets one, and the test uses
/// another to act as the rest of the host.
#[derive(Clone, Debug, Default)]
pub struct ModelKernel {
    world: Arc<Mutex<World>>,
    conversation: Arc<Mutex<Conversation>>,
    arrival: Arc<Notify>,
}

/// The exchanges between the kernel and its one client.
#[derive(Debug, Default)]
struct Conversation {
    observations: VecDeque<Observation>,
    /// Every op since the last call of `take_log`, refused or not.
    log: Vec<Result<Op, Refused>>,
    /// Entries whose text begins like this are refused, with the reason.
    refusals: Vec<(String, String)>,
    /// The error of the next dump, batch or reading of facts.
    interruption: Option<String>,
    /// The number of observations that will fail.
    deaf: u32,
    /// The delay of iptables programs.
    hanging: Duration,
    /// The iptables chains that the host's policy drops in.
    dropping: BTreeSet<ChainName>,
    dumps: u64,
    /// The number of listings of facts, of entries, or of both at once.
    listings: u64,
}

/// The number of queued observations after which the kernel drops them all and reports an overrun.
const BACKLOG: usize = 4096;

impl ModelKernel {
    /// The kernel of a host with these facts, without programmed entries.
    pub fn new(facts: Facts) -> Self {
        let kernel = Self::default();
        *kernel.world() = World::new(facts);
        kernel
    }

    /// All of its state, owned by tweed or foreign.
    pub fn state(&self) -> KernelState {
        self.world().state().clone()
    }

    /// Reads its state without a copy.
    pub fn read_state<T>(&self, read: impl FnOnce(&KernelState) -> T) -> T {
        read(self.world().state())
    }

    /// The number of changes of its state so far, by any program.
    pub fn changes(&self) -> u64 {
        self.world().changes
    }

    /// The ops requested since the last call, in order; refused ones with the reason.
    pub fn take_log(&self) -> Vec<Result<Op, Refused>> {
        std::mem::take(&mut self.conversation().log)
    }

    /// The number of dumps.
    pub fn dumps(&self) -> u64 {
        self.conversation().dumps
    }

    /// The number of listings of its host or its entries.
    pub fn listings(&self) -> u64 {
        self.conversation().listings
    }

    /// Another program adds or changes an entry.
    pub fn set(&self, entry: Entry) {
        let key = entry.key();
        let notifications = self.world().put(entry);
        self.notify(notifications);
        self.notify_chain_change(&key);
    }

    /// Another program removes an entry; a link is removed with the entries on it.
    pub fn lose(&self, key: &Key) {
        let notifications = self.world().lose(key);
        self.notify(notifications);
        self.notify_chain_change(key);
    }

    /// As [`Self::set`], without notification.
    pub fn set_silently(&self, entry: Entry) {
        self.world().put(entry);
    }

    /// As [`Self::lose`], without notification.
    pub fn lose_silently(&self, key: &Key) {
        self.world().lose(key);
    }

    /// A link of tweed or of the host goes up. Entries lost when it went down are not restored.
    pub fn link_up(&self, link: &LinkName) {
        self.notify(self.world().link_up(link));
    }

    /// A link of tweed or of the host goes down and loses the entries that the kernel drops then.
    pub fn link_down(&self, link: &LinkName) {
        self.notify(self.world().link_down(link));
    }

    /// Another program changes an interface of the host.
    pub fn change_interface(&self, link: &LinkName, change: impl FnOnce(&mut Interface)) {
        self.notify(self.world().change_interface(link, change));
    }

    /// Makes settings of links writable, or read-only. The kernel sends no notification.
    pub fn set_sysctls(&self, sysctls: Sysctls) {
        self.world().facts.sysctls = sysctls;
    }

    /// The host gets an interface.
    pub fn add_interface(&self, interface: Interface) {
        self.world().add_interface(interface);
    }

    /// An interface of the host gets another name.
    pub fn rename_interface(&self, link: &LinkName, name: &LinkName) {
        self.notify(self.world().rename_interface(link, name));
    }

    /// An interface of the host disappears, with the tunnels bound to it.
    pub fn remove_interface(&self, link: &LinkName) {
        self.notify(self.world().remove_interface(link));
    }

    /// The host reboots: only its interfaces and their reverse-path filters remain.
    pub fn reboot(&self) {
        self.world().reboot();
        *self.conversation() = Conversation::default();
    }

    /// Refuses from now on to create or remove entries whose text begins with `words`.
    pub fn refuse(&self, words: &str, reason: &str) {
        self.conversation().refusals.push((words.to_owned(), reason.to_owned()));
    }

    /// Undoes [`Self::refuse`].
    pub fn allow(&self, words: &str) {
        self.conversation().refusals.retain(|(refused, _)| refused != words);
    }

    /// Drops all queued notifications, and reports an overrun.
    pub fn overrun(&self) {
        self.conversation().observations.clear();
        self.notify(vec![Observation::Overrun]);
    }

    /// The next dump, batch or reading of facts fails; of a batch, half is applied.
    pub fn interrupt(&self, reason: &str) {
        self.conversation().interruption = Some(reason.to_owned());
    }

    /// Makes the next `times` observations fail.
    pub fn deafen(&self, times: u32) {
        self.conversation().deaf = times;
        self.arrival.notify_one();
    }

    /// Sets the policy of the host's chain in front of `name` for packets without a rule.
    pub fn set_policy(&self, name: ChainName, base_policy: BasePolicy) {
        match base_policy {
            BasePolicy::Drop => self.conversation().dropping.insert(name),
            BasePolicy::Accept => self.conversation().dropping.remove(&name),
        };
        self.notify_chain_change(&Key::Chain(name));
    }

    /// Whether the host's chain in front of `name` drops packets without a rule.
    pub fn drops(&self, name: ChainName) -> bool {
        self.conversation().dropping.contains(&name)
    }

    /// Legacy iptables sends no notifications.
    fn notify_chain_change(&self, key: &Key) {
        if let Key::Chain(name @ ChainName { iptables: Iptables::Nft, .. }) = key {
            self.notify(vec![Observation::ChainChanged(*name)]);
        }
    }

    /// Sets the delay of iptables programs.
    pub fn hang(&self, time: Duration) {
        self.conversation().hanging = time;
    }

    async fn hanging(&self) {
        let time = self.conversation().hanging;
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
    }

    fn notify(&self, notifications: Vec<Observation>) {
        let mut conversation = self.conversation();
        let waiting = &mut conversation.observations;
        waiting.extend(notifications);
        if waiting.len() > BACKLOG {
            waiting.clear();
            waiting.push_back(Observation::Overrun);
        }
        self.arrival.notify_one();
    }

    fn carry_out_one(&self, op: Op) -> Option<Refused> {
        let words = op.entry().to_string();
        let refusal = self.conversation().refusals.iter().find_map(|(refused, reason)| {
            words.starts_with(refused.as_str()).then(|| reason.clone())
        });
        let outcome = match refusal {
            Some(reason) => Err(reason),
            None => self.world().apply(&op),
        };
        match outcome {
            Ok(notifications) => {
                self.notify(notifications);
                self.conversation().log.push(Ok(op));
                None
            }
            Err(reason) => {
                let refused = Refused { op, reason };
                self.conversation().log.push(Err(refused.clone()));
                Some(refused)
            }
        }
    }

    fn seen(&self, scope: &Scope) -> KernelState {
        self.conversation().dumps += 1;
        let mut seen = self.state();
        seen.retain(|entry| scope.covers(entry));
        seen
    }

    fn interruption(&self) -> io::Result<()> {
        self.conversation().interruption.take().map_or(Ok(()), |why| Err(io::Error::other(why)))
    }

    fn next_observation(&self) -> Option<io::Result<Observation>> {
        let mut conversation = self.conversation();
        if conversation.deaf > 0 {
            conversation.deaf -= 1;
            return Some(Err(io::Error::other("the socket is broken")));
        }
        conversation.observations.pop_front().map(Ok)
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn conversation(&self) -> MutexGuard<'_, Conversation> {
        self.conversation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernel for ModelKernel {
    type Chains = Self;

    fn chains(&self) -> Self {
        self.clone()
    }

    async fn dump(&mut self, scope: &Scope, _: &KernelState) -> io::Result<KernelState> {
        self.interruption()?;
        self.conversation().listings += 1;
        Ok(self.seen(scope))
    }

    async fn apply(&mut self, ops: &[Op]) -> io::Result<Vec<Refused>> {
        let interruption = self.interruption();
        let reached = if interruption.is_err() { ops.len() / 2 } else { ops.len() };
        let carried = ops.iter().take(reached);
        let refused = carried.filter_map(|op| self.carry_out_one(op.clone())).collect();
        interruption.map(|()| refused)
    }

    async fn observe(&mut self) -> io::Result<Observation> {
        loop {
            let arrival = self.arrival.notified();
            if let Some(observation) = self.next_observation() {
                return observation;
            }
            arrival.await;
        }
    }

    async fn facts(&mut self, reach: Option<IpAddr>) -> io::Result<Facts> {
        self.interruption()?;
        self.conversation().listings += 1;
        let world = self.world();
        let facts = world.facts();
        let reach = reach.and_then(|address| world.lookup(address));
        Ok(Facts { reach: facts.reach.or(reach), ..facts })
    }

    async fn read(
        &mut self,
        reach: Option<IpAddr>,
        scope: &Scope,
        _: &KernelState,
    ) -> io::Result<(Facts, KernelState)> {
        Ok((self.facts(reach).await?, self.seen(scope)))
    }

    async fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        Ok(self.world().facts().interfaces)
    }

    async fn look_up(&mut self, address: IpAddr) -> io::Result<Option<RouteLookup>> {
        Ok(self.world().lookup(address))
    }
}

impl Chains for ModelKernel {
    async fn read(self, names: BTreeSet<ChainName>, _seen: Option<Generation>) -> Reading {
        self.hanging().await;
        let dropping = &self.conversation().dropping & &names;
        let found = |entry: &Entry| match entry {
            Entry::Chain(chain) if names.contains(&chain.name) => {
                let is_dropped = dropping.contains(&chain.name);
                let base_policy = if is_dropped { BasePolicy::Drop } else { chain.base_policy };
                Some(Chain { base_policy, ..chain.clone() })
            }
            _ => None,
        };
        let found = self.state().entries().filter_map(found).collect();
        Reading { found, names, dropping, unread: BTreeMap::new(), generation: None }
    }

    async fn carry_out(self, ops: Vec<Op>) -> Vec<Refused> {
        self.hanging().await;
        ops.into_iter().filter_map(|op| self.carry_out_one(op)).collect()
    }
}
