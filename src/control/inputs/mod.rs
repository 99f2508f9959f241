//! The inputs of the plan, and their state.

mod edit;
mod events;
mod macs;

pub use edit::Edit;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::changes::Changes;
use crate::mac::MacAddr;
use crate::model::checkpoint::Checkpoint;
use crate::model::config::{BackendType, NetworkConfig};
use crate::model::entry::{ChainName, Entry, KernelState, LinkName, Setting, SettingKind};
use crate::model::lease::{Endpoint, Lease, Peers, Rules, Withdrawal};
use crate::model::node::{FormerBridge, Node, Overlap, Sysctls};
use crate::model::node_inputs::NodeInputs;
use crate::model::path::{Cause, Fallback, Fallbacks};
use crate::model::policy::{Guard, Policy};
use crate::model::prefix::{Family, Prefix};
use crate::model::status::StoreState;
use crate::plan::backend;
use crate::plan::config_change::FormerPods;
use crate::store::{AddressConflict, Identity};

/// All inputs, as far as they are known.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Inputs {
    pub policy: Policy,
    pub guarding: GuardState,
    /// The config applied on this node; the store may have a newer one.
    pub config: Option<NetworkConfig>,
    pub edit: Edit,
    /// The number of config updates, including the first one.
    pub edits: u64,
    /// Whether the config comes from the store: a remembered one may be older than the kernel state.
    pub confirmed: bool,
    pub identity: Identity,
    pub node: Option<Node>,
    /// The iptables chains for which the host drops packets that no rule accepts.
    pub dropping: BTreeSet<ChainName>,
    /// Prefixes of this host's own addresses.
    pub occupied: Vec<Prefix>,
    /// The service IP of the API server, when running in Kubernetes.
    pub service: Option<IpAddr>,
    /// Why no node could be selected.
    pub no_node: Option<NoNode>,
    /// Bridges with pods from a former subnet of this node.
    pub bridges: Vec<FormerBridge>,
    /// The MAC address of each family's tunnel device; known after the first dump.
    pub macs: BTreeMap<Family, MacAddr>,
    pub own: Option<Lease>,
    /// Whether the store has granted `own` since the daemon started.
    pub acquired: bool,
    pub peers: Peers,
    /// The links whose reverse-path filter was strict before `Mixed` loosened it.
    pub strict: BTreeSet<LinkName>,
    /// Whether the host creates links with a strict reverse-path filter.
    pub makes_strict: bool,
    /// The links whose reverse-path filter is strict although `Mixed` requires it loose. A backend
    /// change waits for them, because it would drop packets.
    pub strict_now: BTreeSet<LinkName>,
    /// The families whose retired tunnel device still has its address.
    pub leaving: BTreeSet<Family>,
    /// Whether this node was on host-gw before or since `Mixed` was turned on.
    pub was_on_host_gw: bool,
    /// Another node that published its own lease under this node's public IP.
    pub rival: Option<AddressConflict>,
    pub fallbacks: Fallbacks,
    /// The direct paths that failed before the daemon started, or before probing did with other settings,
    /// each until there is a verdict.
    pub failed_before: FailedBefore,
    /// The remembered node, if the daemon started from a checkpoint.
    pub remembered: Option<NodeInputs>,
    /// The pods of the remembered node.
    pub former_pods: FormerPods,
    pub store: StoreState,
    /// Whether the store has had its time, since the start, to grant our lease and to list all.
    pub overdue: bool,
    /// The numbers of missing peers and of all peers, while the withdrawal limit applies.
    pub held_back: Option<(usize, usize)>,
    /// This node's own lease is missing from the store too, although the node still runs: the store
    /// lost data, and other nodes may still run as well.
    pub lost_own_lease: bool,
    /// Whether the store has listed a lease of this node, now or before the daemon started.
    pub had_lease: bool,
}

/// How the direct path failed, by the first address of the peer's subnet and its public IP then: the
/// path to another public IP is another one, and two leases may claim one subnet.
#[derive(Clone, Debug, Default)]
pub struct FailedBefore(BTreeMap<IpAddr, BTreeMap<IpAddr, Cause>>);

impl FailedBefore {
    /// Adds those among `fallbacks`, which are about the peers with these leases.
    fn add<'a>(&mut self, fallbacks: &Fallbacks, leases: impl Iterator<Item = &'a Arc<Lease>>) {
        for peer in leases.flat_map(|lease| &lease.endpoints) {
            let base = peer.subnet.base();
            if let Some(Fallback::Failed(cause)) = fallbacks.get(&base) {
                self.0.entry(base).or_default().insert(peer.public_ip, *cause);
            }
        }
    }

    pub(super) fn cause(&self, peer: &Endpoint) -> Option<Cause> {
        self.0.get(&peer.subnet.base())?.get(&peer.public_ip).copied()
    }

    pub(super) fn forget(&mut self, peer: IpAddr) {
        self.0.remove(&peer);
    }
}

/// Whether the kernel accepts the tables of the tunnel guard.
#[derive(Debug, Default)]
pub struct GuardState {
    /// The kernel's reason for refusing them.
    pub(super) refused: Option<String>,
    /// Whether to retry them.
    again: bool,
}

impl GuardState {
    /// The guard admits known peers only, so it is not planned before any are known. After a
    /// refusal it is not planned until a retry is due.
    fn wanted(&self, guard: Option<Guard>, know_peers: bool) -> Option<Guard> {
        guard.filter(|_| know_peers && (self.refused.is_none() || self.again))
    }

    /// A partially applied guard would block peers, so it is removed from the plan entirely.
    pub(super) fn refuse(&mut self, reason: &str) -> Changes {
        *self = Self { refused: Some(reason.to_owned()), again: false };
        Changes { plan: true, ..Changes::default() }
    }

    pub(super) fn accept(&mut self) {
        self.refused = None;
    }

    /// The kernel may support the guard by now. Returns whether the plan changes.
    pub(super) const fn try_again(&mut self) -> bool {
        self.again = self.refused.is_some();
        self.again
    }
}

/// Why no node could be selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoNode {
    pub reason: String,
    /// Whether the present node is followed in part: its interface is there with one of its families.
    pub in_part: bool,
}

impl Inputs {
    /// The node-local inputs of the plan; none until all are known.
    pub fn local(&self) -> Option<NodeInputs> {
        let mut config = self.config.clone()?;
        config.backend.kind = self.backend()?;
        let guard = self.guarding.wanted(self.policy.guard, self.know_peers());
        let mut node = self.node.clone()?;
        node.firewalls.dropping.clone_from(&self.dropping);
        Some(NodeInputs {
            config,
            node,
            macs: self.macs.clone(),
            own: self.own.clone(),
            strict: self.strict.clone(),
            leaving: self.leaving.clone(),
            was_on_host_gw: self.was_on_host_gw,
            policy: Policy { guard, ..self.policy.clone() },
        })
    }

    /// The backend of this node: that of the config, or of `Rollout`, or a kept one.
    pub fn backend(&self) -> Option<BackendType> {
        let config = self.config.as_ref()?;
        Some(self.kept_backend().unwrap_or_else(|| config.kind_of(self.names())))
    }

    /// The backend that is kept, and that peers expect, although the config selects another.
    pub fn kept_backend(&self) -> Option<BackendType> {
        let config = self.config.as_ref().filter(|_| !self.strict_now.is_empty())?;
        let published = self.own.as_ref()?.endpoints.first()?.backend.supported()?;
        (published != config.kind_of(self.names())).then_some(published)
    }

    /// Whether the peers that may send into the tunnel are known, from the store or from the
    /// checkpoint. Peers that joined after the checkpoint have no routes yet either.
    pub(super) fn know_peers(&self) -> bool {
        self.peers.is_complete() || self.remembered.is_some()
    }

    /// A description of the part of the latest config that waits, and the reason.
    pub fn pending(&self) -> Option<String> {
        let filter = |kind: BackendType| {
            let name = |link: &LinkName| format!("net/ipv4/conf/{link}/rp_filter");
            let names = self.strict_now.iter().map(name).collect::<Vec<_>>().join(" and ");
            format!("staying on {} until {names} is loose: set it to 2", kind.as_str())
        };
        let Some(pending) = &self.edit.pending else { return self.kept_backend().map(filter) };
        // Such an edit waits for filters, too.
        let is_filtered = pending.waits_for_filters() && !self.strict_now.is_empty();
        let filter = self.backend().filter(|_| is_filtered).map(filter);
        let reasons: Vec<_> = [Some(pending.to_string()), filter].into_iter().flatten().collect();
        Some(reasons.join("; "))
    }

    /// Records which filters are strict. The plan may change, and an edit that waits for them.
    pub fn note_filters(&mut self, actual: &KernelState) -> Changes {
        let (kept, is_mixed) = (self.kept_backend(), self.is_mixed());
        let strict = if is_mixed { self.strict_in(actual) } else { BTreeSet::new() };
        let edit = std::mem::replace(&mut self.strict_now, strict) != self.strict_now;
        Changes { plan: self.kept_backend() != kept, edit, ..Changes::default() }
    }

    /// Records which retired tunnel devices still have their address; returns whether that changed.
    pub fn note_leaving(&mut self, actual: &KernelState) -> bool {
        let config = self.config.as_ref().filter(|config| !config.has_tunnel());
        let leaves = |subnet: &Prefix| {
            let vni = config.map(|config| config.backend.tunnel.vni)?;
            let device = LinkName::tunnel(subnet.family(), vni);
            let address = Entry::Address(backend::tunnel_address(*subnet, device));
            actual.get(&address.key()).map(|_| subnet.family())
        };
        let subnets = self.own.iter().flat_map(Lease::subnets);
        let leaving: BTreeSet<_> = subnets.filter_map(|subnet| leaves(&subnet)).collect();
        std::mem::replace(&mut self.leaving, leaving) != self.leaving
    }

    /// Records for which of `names` the host drops packets; returns whether that changed.
    pub fn note_dropping(
        &mut self,
        names: &BTreeSet<ChainName>,
        dropping: BTreeSet<ChainName>,
    ) -> bool {
        let known = self.dropping.difference(names).copied();
        let now: BTreeSet<ChainName> = known.chain(dropping).collect();
        std::mem::replace(&mut self.dropping, now) != self.dropping
    }

    pub fn rules(&self) -> Rules {
        self.local().map(|local| local.rules()).unwrap_or_default()
    }

    /// The networks of the former daemon that the config no longer contains. Entries left there are
    /// still owned by tweed.
    pub fn former_networks(&self) -> impl Iterator<Item = Prefix> + '_ {
        let former = self.remembered.iter().flat_map(|local| local.config.networks());
        let named = |network: &Prefix| {
            self.config.as_ref().is_some_and(|config| config.networks().any(|n| n == *network))
        };
        former.filter(move |network| !named(network))
    }

    /// The VNI of the former daemon, if the config has another one.
    pub fn former_vni(&self) -> Option<u32> {
        let vni = |config: &NetworkConfig| config.backend.tunnel.vni;
        let former = self.remembered.as_ref().map(|local| vni(&local.config));
        former.filter(|former| self.config.as_ref().is_some_and(|config| vni(config) != *former))
    }

    /// The pod networks that overlap the underlay or the service range.
    pub fn overlaps(&self) -> Vec<Overlap> {
        let (Some(config), Some(node)) = (&self.config, &self.node) else { return Vec::new() };
        let underlay: Vec<_> =
            node.on_link.iter().map(|prefix| (&node.interface, *prefix)).collect();
        Overlap::of(config.networks(), &underlay, self.service)
    }

    pub(super) fn is_mixed(&self) -> bool {
        self.config.as_ref().is_some_and(|config| config.mixed)
    }

    /// Whether enough inputs are known to plan.
    pub const fn are_known(&self) -> bool {
        self.config.is_some() && self.node.is_some()
    }

    /// Records which filters were strict before `Mixed` loosens them; returns whether any are new.
    pub fn note_strict(&mut self, actual: &KernelState) -> bool {
        let known = self.strict.len();
        if self.is_mixed() && self.sets_filters() {
            self.strict.extend(self.strict_in(actual));
        }
        self.strict.len() != known
    }

    /// Records that `link` was created, possibly with a strict filter, before `Mixed` loosens it.
    /// Returns whether it was strict.
    pub fn note_created(&mut self, link: &LinkName) -> bool {
        let is_strict = self.is_mixed() && self.makes_strict && self.is_filtered(link);
        is_strict && self.sets_filters() && self.strict.insert(link.clone())
    }

    /// Otherwise, it is the operator who loosens filters and makes them strict again.
    fn sets_filters(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.sysctls == Sysctls::Writable)
    }

    /// The links of `actual` with a strict filter.
    fn strict_in(&self, actual: &KernelState) -> BTreeSet<LinkName> {
        let links = actual.local().filter_map(|entry| match entry.as_ref() {
            Entry::Setting(it) if it.is_on(SettingKind::ReversePath) => Some(&it.link),
            _ => None,
        });
        links.filter(|link| self.is_filtered(link)).cloned().collect()
    }

    fn is_filtered(&self, link: &LinkName) -> bool {
        link.filters(self.config.iter().flat_map(NetworkConfig::networks).map(Prefix::family))
    }

    /// Forgets filters whose strict value was restored: from then on the operator owns them.
    /// Returns whether there were any.
    pub fn forget_restored(&mut self, actual: &KernelState) -> bool {
        let known = self.strict.len();
        if self.config.as_ref().is_some_and(|config| !config.mixed) {
            let sets_filters = self.sets_filters();
            self.strict.retain(|link| {
                let loose = Entry::Setting(SettingKind::ReversePath.off(link));
                sets_filters && actual.get(&loose.key()) == Some(&loose)
            });
        }
        self.strict.len() != known
    }

    /// Initializes the inputs from a checkpoint.
    pub fn remember(&mut self, checkpoint: Checkpoint, pods: FormerPods) {
        self.former_pods = if checkpoint.pods_may_remain() { pods } else { FormerPods::None };
        let Checkpoint { local, leases, mut fallbacks, host: _ } = checkpoint;
        // A path that failed is not assumed to work after a restart. All else is determined again.
        self.failed_before.add(&fallbacks, leases.iter());
        fallbacks.retain(|_, fallback| matches!(fallback, Fallback::Failed(_)));
        self.fallbacks = fallbacks;
        self.config = Some(local.config.clone());
        self.own.clone_from(&local.own);
        self.was_on_host_gw = local.was_on_host_gw;
        // If nodes are named, each lease ID is the name of its node.
        self.identity.name = local.own.as_ref().map(|own| own.id.to_string());
        self.strict.extend(local.strict.iter().cloned());
        self.peers = Peers::from_checkpoint(leases);
        self.remembered = Some(local);
    }

    /// Keeps which direct paths failed: all results of probes are about to be discarded.
    pub fn keep_failures(&mut self) {
        self.failed_before.add(&self.fallbacks, self.peers.leases());
    }

    /// Removes the fallback of `peer`, and what is known from before probing began.
    pub(super) fn forget_fallback(&mut self, peer: IpAddr) -> Option<Fallback> {
        self.failed_before.forget(peer);
        self.fallbacks.remove(&peer)
    }

    /// Records whether this node's own lease is missing from the store along with the peers.
    pub fn note_missing(&mut self) {
        self.had_lease |= self.own.is_some() && self.is_listed();
        if self.peers.missing().is_empty() {
            self.lost_own_lease = false;
        } else if !self.is_listed() {
            self.note_lost();
        }
    }

    /// If the store had a lease of this node, it has lost that, and possibly those of the missing peers.
    fn note_lost(&mut self) {
        if self.had_lease {
            self.lost_own_lease = true;
            self.peers.mark_all_unlisted();
        }
    }

    /// Checks the first listing against the checkpoint. If the store granted another lease than the
    /// remembered one, it lost that lease, and possibly those of the unlisted peers.
    pub fn check_checkpoint(&mut self) {
        let remembered = self.remembered.as_ref().and_then(|local| local.own.as_ref());
        self.had_lease |= remembered.is_some();
        let is_same = match (remembered, &self.own) {
            (Some(before), Some(now)) => {
                // A handle that one of them lacks shows no difference.
                let is_other = before.grant.zip(now.grant).is_some_and(|(one, two)| one != two);
                (&before.id, before.created) == (&now.id, now.created) && !is_other
            }
            (before, now) => before.is_none() && now.is_none(),
        };
        if !is_same && !self.peers.missing().is_empty() {
            self.note_lost();
        }
    }

    /// Whether the store lists this node's own lease, if it holds one.
    fn is_listed(&self) -> bool {
        self.own.as_ref().is_none_or(|own| self.peers.is_listed(&own.id))
    }

    /// Whether nothing indicates that the store lost data or is unreachable.
    pub fn trusts_store(&self) -> bool {
        self.is_listed() && self.may_remove()
    }

    /// Withdraws the missing peers. If this node's own lease was missing too, the store lost data:
    /// wait one more period, because other nodes may need longer to register again.
    pub fn withdraw(&mut self, max_percent: u8) -> Withdrawal {
        self.peers.validate_by(self.rules());
        match (std::mem::take(&mut self.lost_own_lease), self.peers.count_missing()) {
            (true, (missing @ 1.., of)) => Withdrawal::Limited { missing, of },
            _ => self.peers.withdraw(max_percent),
        }
    }

    /// Whether the store is unreachable, refuses what the lease of this node needs, or is too slow, so
    /// that the checkpoint must be used. If it has no subnet for this node, that of the checkpoint is
    /// another node's by now, or will be.
    pub fn lacks_store(&self) -> bool {
        use StoreState::{ListRefused, RequestRefused, Unreachable};
        let is_slow = self.overdue && !(self.acquired && self.peers.is_complete());
        is_slow || matches!(self.store, Unreachable(_) | ListRefused(_) | RequestRefused(_))
    }

    /// Whether the store shows that this node has no subnet: pods may get no address of a former one.
    pub const fn has_no_subnet(&self) -> bool {
        matches!(self.store, StoreState::NoSubnet(_))
    }

    /// Whether forwarding relies on the checkpoint. A config file on this host may be newer than
    /// the known peers.
    pub fn uses_checkpoint(&self) -> bool {
        let lacks_peers = !self.peers.is_complete() && self.lacks_store();
        self.remembered.is_some() && (!self.may_use_config() || lacks_peers)
    }

    /// This node's lease, if the store confirms it or is unreachable: pods may rely on it only
    /// then.
    pub fn relied_on(&self) -> Option<&Lease> {
        let is_known = self.lacks_store() && self.has_proof() && self.has_own_network();
        self.own.as_ref().filter(|_| self.acquired || is_known)
    }

    /// Whether the lease has the store's handle. Without it, this node may be a copy of the machine that
    /// has the subnet, or may have lost it.
    pub fn has_proof(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.grant.is_some())
    }

    /// Whether our subnets are in the networks of the applied config. A config that a start has applied
    /// may be of another cluster by mistake: until the store grants us a subnet there, all stays.
    fn has_own_network(&self) -> bool {
        let Some((own, config)) = self.own.as_ref().zip(self.config.as_ref()) else { return true };
        own.subnets().all(|subnet| config.contains(subnet))
    }

    /// Whether `entry` may replace kernel state. Remembered entries may be older than the kernel
    /// state, so they only add missing entries, and settings that make the host drop less.
    pub fn may_replace_with(&self, entry: &Entry) -> bool {
        let drops_less = matches!(entry, Entry::Setting(Setting { on: false, .. }));
        // Replacing such a table removes the peers that it admits.
        let is_of_peers = matches!(entry, Entry::Table(table) if table.has_peers());
        let is_of_config = entry.is_local() && !is_of_peers;
        // A device is bound to its interface, whatever name that has now.
        let is_lost = self.no_node.as_ref().is_some_and(|no_node| !no_node.in_part);
        let is_bound = matches!(entry, Entry::Link(_)) && is_lost;
        let may_replace =
            if is_of_config { self.follows_config() } else { self.peers.is_complete() };
        let is_of_this_node = self.acquired || self.has_own_network();
        drops_less || (may_replace && !is_bound && is_of_this_node)
    }

    /// Whether undesired entries may be removed: only with a complete snapshot from a reachable
    /// store that has granted our lease, or lists it.
    pub fn may_remove(&self) -> bool {
        let is_ours = self.acquired || self.is_listed_without_grant();
        is_ours && self.peers.is_complete() && self.store.is_reachable()
    }

    /// Whether the store lists our lease as we know it, but refuses what it needs, such as a podCIDR of a
    /// second family. In Kubernetes, that may last as long as the Node.
    fn is_listed_without_grant(&self) -> bool {
        let Some(own) = self.own.as_ref().filter(|own| self.peers.is_listed(&own.id)) else {
            return false;
        };
        let is_listed = |end: &Endpoint| {
            let listed = self.peers.lease(&own.id).and_then(|it| it.endpoint(end.subnet.family()));
            listed.is_some_and(|it| (it.subnet, it.public_ip) == (end.subnet, end.public_ip))
        };
        matches!(self.store, StoreState::RequestRefused(_)) && own.endpoints.iter().all(is_listed)
    }
}
