//! What the plan is made from, and where it stands.

mod edit;
mod events;
mod macs;

pub use edit::Edit;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::changes::Changes;
use crate::mac::MacAddr;
use crate::model::checkpoint::Checkpoint;
use crate::model::config::{BackendType, NetworkConfig};
use crate::model::entry::{ChainName, Entry, KernelState, LinkName, Setting, SettingKind};
use crate::model::lease::{Lease, Peers, Rules, Withdrawal};
use crate::model::local::Local;
use crate::model::node::{FormerBridge, Node, Overlap};
use crate::model::path::Detours;
use crate::model::policy::{Guard, Policy};
use crate::model::prefix::{Family, Prefix};
use crate::model::status::StoreState;
use crate::plan::backend;
use crate::store::{Identity, Rival};

/// All inputs, as far as they are known.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Inputs {
    /// What the operator's flags ask for.
    pub policy: Policy,
    /// Whether the kernel accepts its part about the tunnel.
    pub guarding: Guarding,
    /// In force on this node, whatever the store asks for beyond it.
    pub config: Option<NetworkConfig>,
    /// The newest config of the store.
    pub edit: Edit,
    /// Edits of the config, the first reading included.
    pub edits: u64,
    /// Whether the store stands behind the config: it comes from there, or the store has none that
    /// can be used, so that what was last known stays in force.
    pub confirmed: bool,
    /// Who this node is to the store.
    pub identity: Identity,
    pub node: Option<Node>,
    /// The chains of iptables in front of which this host drops what no rule accepts.
    pub dropping: BTreeSet<ChainName>,
    /// Where this host has addresses.
    pub occupied: Vec<Prefix>,
    /// The API server as a service, if this runs in Kubernetes.
    pub service: Option<IpAddr>,
    /// Why there is no node yet.
    pub no_node: Option<String>,
    /// Of pods that were made when this node had another subnet.
    pub bridges: Vec<FormerBridge>,
    /// Of the tunnel device of each family; known once the kernel was read.
    pub macs: BTreeMap<Family, MacAddr>,
    pub own: Option<Lease>,
    /// Whether the store gave us `own` in this life.
    pub held: bool,
    pub peers: Peers,
    /// The links whose reverse-path filter was strict before `Mixed` loosened it.
    pub strict: BTreeSet<LinkName>,
    /// Whether this host makes links with a strict reverse-path filter.
    pub makes_strict: bool,
    /// The links whose reverse-path filter is strict although `Mixed` wants it loose: a change of
    /// backend would lose packets, so it waits for them.
    pub strict_now: BTreeSet<LinkName>,
    /// The families whose tunnel device is out of use and still has its address.
    pub leaving: BTreeSet<Family>,
    /// A node that published its own record in the place of ours, under our public IP.
    pub rival: Option<Rival>,
    /// Peers on our link that are reached through the tunnel for now.
    pub detours: Detours,
    /// This node as it was last known, if that is what we started from.
    pub remembered: Option<Local>,
    pub store: StoreState,
    /// Missing peers and all peers, while the brake holds.
    pub held_back: Option<(usize, usize)>,
    /// Of the leases that are missing.
    pub loss: Loss,
}

/// Whether the kernel accepts the tables that guard the tunnel.
#[derive(Debug, Default)]
pub struct Guarding {
    /// Why it refused them.
    pub(super) refused: Option<String>,
    /// Whether they are to be tried once more.
    again: bool,
}

impl Guarding {
    /// A guard lets in the peers that are known: it is not wanted before any are. A kernel that has
    /// refused it is not asked again for a while.
    fn wanted(&self, guard: Option<Guard>, know_peers: bool) -> Option<Guard> {
        guard.filter(|_| know_peers && (self.refused.is_none() || self.again))
    }

    /// Half a guard would keep peers out: none is better. Puts the plan without one in its place.
    pub(super) fn refuse(&mut self, reason: &str) -> Changes {
        *self = Self { refused: Some(reason.to_owned()), again: false };
        Changes { plan: true, ..Changes::default() }
    }

    pub(super) fn accept(&mut self) {
        self.refused = None;
    }

    /// The kernel may support it by now. Returns whether the plan changes with that.
    pub(super) const fn try_again(&mut self) -> bool {
        self.again = self.refused.is_some();
        self.again
    }
}

/// What a loss of leases says about the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loss {
    /// Nodes may have gone.
    #[default]
    Plausible,
    /// Our own lease was among them, although we have not gone.
    OfOursToo,
}

impl Inputs {
    /// What the plan of this node depends on; none before all of it is known.
    pub fn local(&self) -> Option<Local> {
        let mut config = self.config.clone()?.on_node(self.names());
        config.backend.kind = self.kind_kept().unwrap_or(config.backend.kind);
        let guard = self.guarding.wanted(self.policy.guard, self.know_peers());
        let mut node = self.node.clone()?;
        node.firewalls.dropping.clone_from(&self.dropping);
        Some(Local {
            config,
            node,
            macs: self.macs.clone(),
            own: self.own.clone(),
            strict: self.strict.clone(),
            leaving: self.leaving.clone(),
            policy: Policy { guard, ..self.policy.clone() },
        })
    }

    /// The backend that is kept although the config asks for another: the one that peers know.
    pub fn kind_kept(&self) -> Option<BackendType> {
        let config = self.config.as_ref().filter(|_| !self.strict_now.is_empty())?;
        let published = self.own.as_ref()?.endpoints.first()?.backend.supported()?;
        (published != config.kind_of(self.names())).then_some(published)
    }

    /// Whether it is known which peers may send into the tunnel: by the store, or by what was last
    /// known. Peers that joined since then are not routed to either.
    pub(super) fn know_peers(&self) -> bool {
        self.peers.is_complete() || self.remembered.is_some()
    }

    /// What of the newest config waits, and for what.
    pub fn pending(&self) -> Option<String> {
        let filter = |kind: BackendType| {
            let names =
                self.strict_now.iter().map(|link| format!("net.ipv4.conf.{link}.rp_filter"));
            let names = names.collect::<Vec<_>>().join(" and ");
            format!("staying on {} until {names} is loose: set it to 2", kind.as_str())
        };
        let waits = self.edit.waits.as_ref().map(ToString::to_string);
        waits.or_else(|| self.kind_kept().map(filter))
    }

    /// Notes which filters are strict; returns whether the plan changes with that.
    pub fn note_filters(&mut self, actual: &KernelState) -> bool {
        let kept = self.kind_kept();
        let is_mixed = self.is_mixed();
        self.strict_now = strict(actual).filter(|_| is_mixed).collect();
        self.kind_kept() != kept
    }

    /// Notes which tunnel devices out of use have their address; returns whether that is news.
    pub fn note_leaving(&mut self, actual: &KernelState) -> bool {
        let config = self.config.as_ref().filter(|config| !config.has_tunnel());
        let leaves = |config: &NetworkConfig, subnet: &Prefix| {
            let device = LinkName::tunnel(subnet.family(), config.backend.tunnel.vni);
            let address = Entry::Address(backend::tunnel_address(*subnet, device));
            actual.get(&address.key()).is_some()
        };
        let leaving = config.zip(self.own.as_ref()).map(|(config, own)| {
            let subnets = own.subnets().filter(|subnet| leaves(config, subnet));
            subnets.map(Prefix::family).collect()
        });
        let leaving = leaving.unwrap_or_default();
        let is_news = leaving != self.leaving;
        self.leaving = leaving;
        is_news
    }

    /// Notes in front of which of `names` the host drops; returns whether that is news.
    pub fn note_dropping(
        &mut self,
        names: &BTreeSet<ChainName>,
        dropping: BTreeSet<ChainName>,
    ) -> bool {
        let known = self.dropping.difference(names).copied();
        let now: BTreeSet<ChainName> = known.chain(dropping).collect();
        let is_news = now != self.dropping;
        self.dropping = now;
        is_news
    }

    pub fn rules(&self) -> Rules {
        self.local().map(|local| local.rules()).unwrap_or_default()
    }

    /// The networks of the daemon before us that the config no longer names: what we left there is ours still.
    pub fn former_networks(&self) -> impl Iterator<Item = Prefix> + '_ {
        let former = self.remembered.iter().flat_map(|local| local.config.networks());
        let named = |network: &Prefix| {
            self.config.as_ref().is_some_and(|config| config.networks().any(|n| n == *network))
        };
        former.filter(move |network| !named(network))
    }

    /// The networks of pods that overlap the underlay or the service range.
    pub fn overlaps(&self) -> Vec<Overlap> {
        let (Some(config), Some(node)) = (&self.config, &self.node) else { return Vec::new() };
        let underlay: Vec<_> =
            node.on_link.iter().map(|prefix| (&node.interface, *prefix)).collect();
        Overlap::of(config.networks(), &underlay, self.service)
    }

    pub(super) fn is_mixed(&self) -> bool {
        self.config.as_ref().is_some_and(|config| config.mixed)
    }

    /// Whether enough is known to plan.
    pub const fn are_known(&self) -> bool {
        self.config.is_some() && self.node.is_some()
    }

    /// Notes which filters were strict before we loosen them; returns whether there are new ones.
    pub fn note_strict(&mut self, actual: &KernelState) -> bool {
        let known = self.strict.len();
        if self.is_mixed() {
            self.strict.extend(strict(actual));
        }
        self.strict.len() != known
    }

    /// Notes that `link` was created, and with it its filter, before `Mixed` loosens that; returns
    /// whether it was strict.
    pub fn note_created(&mut self, link: &LinkName) -> bool {
        self.is_mixed() && self.makes_strict && self.strict.insert(link.clone())
    }

    /// Forgets the filters that are as strict again as they were: from then on they are the
    /// operator's. Returns whether there were any.
    pub fn forget_restored(&mut self, actual: &KernelState) -> bool {
        let known = self.strict.len();
        if self.config.as_ref().is_some_and(|config| !config.mixed) {
            self.strict.retain(|link| {
                let loose = Entry::Setting(SettingKind::ReversePath.off(link));
                actual.get(&loose.key()) == Some(&loose)
            });
        }
        self.strict.len() != known
    }

    /// Starts from what was last known.
    pub fn remember(&mut self, checkpoint: Checkpoint) {
        // What the probes of another life found is not known in this one.
        let Checkpoint { local, leases, detours: _, host: _ } = checkpoint;
        self.config = Some(local.config.clone());
        self.own.clone_from(&local.own);
        // Where nodes have names, their leases are called by them.
        self.identity.name = local.own.as_ref().map(|own| own.id.to_string());
        self.strict.extend(local.strict.iter().cloned());
        self.peers = Peers::remembered(leases);
        self.remembered = Some(local);
    }

    /// Notes whether the store has forgotten our own lease beside those that are missing.
    pub fn note_loss(&mut self) {
        if self.peers.missing().is_empty() {
            self.loss = Loss::Plausible;
        } else if !self.are_named() {
            self.loss = Loss::OfOursToo;
            self.peers.doubt_all();
        }
    }

    /// Looks at the first listing. A store that gave us another lease than the one we remember had
    /// forgotten that one, and perhaps those of the peers that it does not list.
    pub fn check_memory(&mut self) {
        let identity = |own: &Lease| (own.id.clone(), own.created, own.grant);
        let remembered = self.remembered.as_ref().and_then(|local| local.own.as_ref());
        let is_same = remembered.map(identity) == self.own.as_ref().map(identity);
        if !is_same && !self.peers.missing().is_empty() {
            self.loss = Loss::OfOursToo;
            self.peers.doubt_all();
        }
    }

    /// Whether the store names our own lease, if we hold one.
    fn are_named(&self) -> bool {
        self.own.as_ref().is_none_or(|own| self.peers.names(&own.id))
    }

    /// Whether the store gives every reason to believe what it says.
    pub fn trust_the_store(&self) -> bool {
        self.held && self.are_named() && self.may_remove()
    }

    /// Withdraws the missing peers. A store that forgot us too lost its data: then it waits once
    /// more, because not all nodes come back as soon as we do.
    pub fn withdraw(&mut self, max_percent: u8) -> Withdrawal {
        self.peers.judge_by(self.rules());
        match (std::mem::take(&mut self.loss), self.peers.vanished()) {
            (Loss::OfOursToo, (missing @ 1.., of)) => Withdrawal::Held { missing, of },
            (Loss::OfOursToo | Loss::Plausible, _) => self.peers.withdraw(max_percent),
        }
    }

    /// Whether the store cannot be asked, or has no subnet for us, so that what was last known must do.
    pub const fn are_alone(&self) -> bool {
        matches!(self.store, StoreState::Waiting(_) | StoreState::Lacks(_))
    }

    /// Whether we forward by what was last known. A config that lies on this host may be newer than
    /// all we know of the peers.
    pub fn rest_on_memory(&self) -> bool {
        let peers_are = !self.peers.is_complete() && self.are_alone();
        self.remembered.is_some() && (!self.confirmed || peers_are)
    }

    /// Our lease, if the store stands behind it or cannot be asked: only then may pods rely on it.
    pub fn relied_on(&self) -> Option<&Lease> {
        self.own.as_ref().filter(|_| self.held || self.are_alone())
    }

    /// Whether `entry` may replace what the kernel holds. What is only remembered may be older than
    /// that: it adds what is missing, and sets what makes the host drop less.
    pub fn may_replace_with(&self, entry: &Entry) -> bool {
        let drops_less = matches!(entry, Entry::Setting(Setting { on: false, .. }));
        // With such a table, the peers go that it lets in.
        let is_of_peers = matches!(entry, Entry::Table(table) if table.has_peers());
        let is_of_config = entry.is_local() && !is_of_peers;
        drops_less || if is_of_config { self.confirmed } else { self.peers.is_complete() }
    }

    /// Whether what is unwanted may be removed: only on the word of a store that has told everything and can be asked.
    pub fn may_remove(&self) -> bool {
        self.peers.is_complete() && self.store.is_reachable()
    }
}

/// The links whose filter is strict; settings come first in the order of keys, but for links.
fn strict(actual: &KernelState) -> impl Iterator<Item = LinkName> + '_ {
    let first = actual.entries().take_while(|e| matches!(e, Entry::Link(_) | Entry::Setting(_)));
    first.filter_map(|entry| match entry {
        Entry::Setting(it) if it.is_on(SettingKind::ReversePath) => Some(it.link.clone()),
        _ => None,
    })
}
