//! A model of the kernel, in memory: it keeps the rules of the real one as far as they matter to tweed.

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
    Chain, ChainName, Entry, Iptables, KernelState, Key, LinkName, Otherwise,
};
use tweed::model::node::{Facts, Interface, Sysctls};
use tweed::plan::diff::Op;
use tweed::plan::scope::Scope;

use world::World;

/// A handle of the kernel. Every clone is a handle of the same one: the loop gets one, the test
/// keeps another and plays everybody else on the host.
#[derive(Clone, Debug, Default)]
pub struct ModelKernel {
    world: Arc<Mutex<World>>,
    conversation: Arc<Mutex<Conversation>>,
    told: Arc<Notify>,
}

/// What went to and fro between the kernel and its one client.
#[derive(Debug, Default)]
struct Conversation {
    observations: VecDeque<Observation>,
    /// Every op since the last look, refused or not.
    log: Vec<Result<Op, Refused>>,
    /// Entries whose text begins so are refused, and why.
    refusals: Vec<(String, String)>,
    /// Why the next dump, batch or reading of facts breaks off.
    interruption: Option<String>,
    /// How many times more observing fails.
    deaf: u32,
    /// How long the programs of iptables take.
    hanging: Duration,
    /// The chains of iptables in front of which the host drops.
    dropping: BTreeSet<ChainName>,
    dumps: u64,
    /// How often the facts of the host or the entries were listed, or both at once.
    listings: u64,
}

/// So many observations wait before the kernel drops them all and tells of an overrun.
const BACKLOG: usize = 4096;

impl ModelKernel {
    /// The kernel of a host that looks like `facts` and on which nothing was ever programmed.
    pub fn new(facts: Facts) -> Self {
        let kernel = Self::default();
        *kernel.world() = World::new(facts);
        kernel
    }

    /// Everything that it holds, ours or not.
    pub fn state(&self) -> KernelState {
        self.world().state().clone()
    }

    /// The ops that were asked for since the last call, in order; refused ones with the reason.
    pub fn take_log(&self) -> Vec<Result<Op, Refused>> {
        std::mem::take(&mut self.conversation().log)
    }

    /// How often it was dumped.
    pub fn dumps(&self) -> u64 {
        self.conversation().dumps
    }

    /// How often its host, or what it holds, was listed.
    pub fn listings(&self) -> u64 {
        self.conversation().listings
    }

    /// Somebody adds or changes an entry.
    pub fn set(&self, entry: Entry) {
        let key = entry.key();
        let told = self.world().put(entry);
        self.tell(told);
        self.tell_of_chain(&key);
    }

    /// Somebody removes an entry; a link takes with it what sits on it.
    pub fn lose(&self, key: &Key) {
        let told = self.world().lose(key);
        self.tell(told);
        self.tell_of_chain(key);
    }

    /// As [`Self::set`], and the message is lost.
    pub fn set_silently(&self, entry: Entry) {
        self.world().put(entry);
    }

    /// As [`Self::lose`], and the message is lost.
    pub fn lose_silently(&self, key: &Key) {
        self.world().lose(key);
    }

    /// A link, ours or the host's, goes up. What it lost when it went down does not come back.
    pub fn link_up(&self, link: &LinkName) {
        self.tell(self.world().link_up(link));
    }

    /// A link, ours or the host's, goes down and drops what the kernel drops then.
    pub fn link_down(&self, link: &LinkName) {
        self.tell(self.world().link_down(link));
    }

    /// Somebody changes an interface of the host.
    pub fn change_interface(&self, link: &LinkName, change: impl FnOnce(&mut Interface)) {
        self.tell(self.world().change_interface(link, change));
    }

    /// Settings of links can, or cannot, be written from now on. The kernel sends no message.
    pub fn set_sysctls(&self, sysctls: Sysctls) {
        self.world().facts.sysctls = sysctls;
    }

    /// An interface of the host disappears, and the tunnels bound to it.
    pub fn remove_interface(&self, link: &LinkName) {
        self.tell(self.world().remove_interface(link));
    }

    /// The host starts afresh: only the interfaces and their reverse-path filters are there.
    pub fn reboot(&self) {
        self.world().reboot();
        *self.conversation() = Conversation::default();
    }

    /// Refuses, from now on, to make or remove any entry whose text begins with `words`.
    pub fn refuse(&self, words: &str, reason: &str) {
        self.conversation().refusals.push((words.to_owned(), reason.to_owned()));
    }

    /// Ends what [`Self::refuse`] began.
    pub fn allow(&self, words: &str) {
        self.conversation().refusals.retain(|(refused, _)| refused != words);
    }

    /// Loses all messages that wait, and says so.
    pub fn overrun(&self) {
        self.conversation().observations.clear();
        self.tell(vec![Observation::Overrun]);
    }

    /// Breaks off the next dump, batch or reading of facts; of a batch, half was carried out.
    pub fn interrupt(&self, reason: &str) {
        self.conversation().interruption = Some(reason.to_owned());
    }

    /// Makes the next `times` observations fail.
    pub fn deafen(&self, times: u32) {
        self.conversation().deaf = times;
        self.told.notify_one();
    }

    /// What the host's chain in front of `name` does from now on with what it has no rule for.
    pub fn set_policy(&self, name: ChainName, otherwise: Otherwise) {
        match otherwise {
            Otherwise::Dropped => self.conversation().dropping.insert(name),
            Otherwise::Accepted => self.conversation().dropping.remove(&name),
        };
        self.tell_of_chain(&Key::Chain(name));
    }

    /// Legacy iptables notifies of nothing.
    fn tell_of_chain(&self, key: &Key) {
        if let Key::Chain(name @ ChainName { iptables: Iptables::Nft, .. }) = key {
            self.tell(vec![Observation::ChainChanged(*name)]);
        }
    }

    /// Lets the programs of iptables take so long from now on.
    pub fn hang(&self, time: Duration) {
        self.conversation().hanging = time;
    }

    async fn hanging(&self) {
        let time = self.conversation().hanging;
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
    }

    fn tell(&self, told: Vec<Observation>) {
        let mut conversation = self.conversation();
        let waiting = &mut conversation.observations;
        waiting.extend(told);
        if waiting.len() > BACKLOG {
            waiting.clear();
            waiting.push_back(Observation::Overrun);
        }
        self.told.notify_one();
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
            Ok(told) => {
                self.tell(told);
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
            let told = self.told.notified();
            if let Some(observation) = self.next_observation() {
                return observation;
            }
            told.await;
        }
    }

    async fn facts(&mut self, _reach: Option<IpAddr>) -> io::Result<Facts> {
        self.interruption()?;
        self.conversation().listings += 1;
        Ok(self.world().facts())
    }

    async fn read(
        &mut self,
        reach: Option<IpAddr>,
        scope: &Scope,
        _: &KernelState,
    ) -> io::Result<(Facts, KernelState)> {
        Ok((self.facts(reach).await?, self.seen(scope)))
    }
}

impl Chains for ModelKernel {
    async fn read(self, names: BTreeSet<ChainName>, _seen: Option<Generation>) -> Reading {
        self.hanging().await;
        let dropping = &self.conversation().dropping & &names;
        let found = |entry: &Entry| match entry {
            Entry::Chain(chain) if names.contains(&chain.name) => {
                let is_dropped = dropping.contains(&chain.name);
                let otherwise = if is_dropped { Otherwise::Dropped } else { chain.otherwise };
                Some(Chain { otherwise, ..chain.clone() })
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
