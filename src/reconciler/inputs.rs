//! What the plan is made from, and where it stands.

use std::collections::{BTreeMap, BTreeSet};

use super::Standing;
use crate::backend::{self, Local, Network};
use crate::checkpoint::Checkpoint;
use crate::config::{Kind, NetworkConfig};
use crate::kernel::state::{Entry, KernelState, Link, LinkKind, LinkName};
use crate::lease::{Lease, LeaseId, Peers, Rules};
use crate::mac::MacAddr;
use crate::node::Node;
use crate::prefix::Family;
use crate::subnet::StoreState;

/// All inputs, as far as they are known.
#[derive(Debug)]
pub struct Inputs {
    pub config: Option<NetworkConfig>,
    /// Whether the config comes from the store, not from what was last known.
    pub confirmed: bool,
    pub node: Option<Node>,
    /// Why there is no node yet.
    pub no_node: Option<String>,
    /// Known once the kernel was read for the first time.
    pub macs: Option<BTreeMap<Family, MacAddr>>,
    pub own: Option<Lease>,
    pub peers: Peers,
    pub strict: BTreeSet<LinkName>,
    /// The backend that this node had before.
    pub former: Option<Kind>,
    /// Whether a strict reverse-path filter stays that `Mixed` must loosen: a change of backend
    /// would lose packets, so it waits.
    pub filtered: bool,
    pub store: StoreState,
    /// Missing peers and all peers, while the brake holds.
    pub held_back: Option<(usize, usize)>,
}

impl Default for Inputs {
    fn default() -> Self {
        Self {
            config: None,
            confirmed: false,
            node: None,
            no_node: None,
            macs: None,
            own: None,
            peers: Peers::default(),
            strict: BTreeSet::new(),
            former: None,
            filtered: false,
            store: StoreState::Unknown,
            held_back: None,
        }
    }
}

impl Inputs {
    /// What the plan of this node depends on; none before all of it is known.
    pub fn local(&self) -> Option<Local> {
        let mut config = self.config.clone()?;
        config.backend.kind = self.kind_kept().unwrap_or(config.backend.kind);
        Some(Local {
            config,
            node: self.node.clone()?,
            macs: self.macs.clone().unwrap_or_default(),
            own: self.own.clone(),
            strict: self.strict.clone(),
        })
    }

    /// The backend that is kept although the config asks for another.
    pub fn kind_kept(&self) -> Option<Kind> {
        let config = self.config.as_ref()?;
        self.former.filter(|former| self.filtered && config.mixed && *former != config.backend.kind)
    }

    pub fn rules(&self) -> Rules {
        self.local().map(|local| local.rules()).unwrap_or_default()
    }

    /// Keeps the MAC address of each tunnel device that exists, and derives the others.
    pub fn settle_macs(&mut self, actual: &KernelState) {
        let Some(local) = self.local().filter(|_| self.macs.is_none()) else { return };
        let vni = local.config.backend.tunnel.vni;
        let mac = |uplink: &crate::node::Uplink| {
            let device = backend::device_name(uplink.family(), vni);
            let kept = existing_mac(actual, &device);
            (uplink.family(), kept.unwrap_or_else(|| backend::derived_mac(uplink, vni)))
        };
        self.macs = Some(local.node.uplinks.iter().map(mac).collect());
        // Who finds a tunnel and remembers nothing takes over from flannel.
        let has_tunnel = actual.entries().any(|entry| matches!(entry, Entry::Link(_)));
        self.former = self.former.or(has_tunnel.then_some(Kind::Vxlan));
    }

    /// Notes which filters were strict before we loosen them.
    pub fn note_strict(&mut self, actual: &KernelState) {
        let is_mixed = self.config.as_ref().is_some_and(|config| config.mixed);
        let strict = actual.entries().filter_map(|entry| match entry {
            Entry::ReversePath(filter) if filter.strict => Some(filter.link.clone()),
            _ => None,
        });
        self.strict.extend(strict.filter(|_| is_mixed));
    }

    /// Starts from what was last known.
    pub fn remember(&mut self, checkpoint: Checkpoint) {
        let Checkpoint { local, leases, .. } = checkpoint;
        self.config = Some(local.config);
        self.own = local.own;
        self.peers = Peers::remembered(leases);
    }

    /// Where the lease `id` stands now; none if it is gone or our own.
    pub fn standing(
        &self,
        id: &LeaseId,
        rules: &Rules,
        networks: &[Box<dyn Network>],
    ) -> Option<Standing> {
        Standing::of(id, &self.peers, rules, networks)
    }

    /// Whether the store no longer names our own lease. Then it lost its data, and the others need
    /// time to claim theirs again: not all come back at once.
    pub fn is_forgotten(&self) -> bool {
        self.own.as_ref().is_some_and(|own| self.peers.missing().contains(&own.id))
    }

    /// Whether what is unwanted may be removed: only on the word of a store that has told everything and can be asked.
    pub fn may_remove(&self) -> bool {
        self.peers.is_complete() && self.store == StoreState::Reachable
    }
}

fn existing_mac(actual: &KernelState, device: &LinkName) -> Option<MacAddr> {
    let key = crate::kernel::state::Key::Link(device.clone());
    match actual.get(&key) {
        Some(Entry::Link(Link { kind: LinkKind::Vxlan(_), mac, .. })) => Some(*mac),
        _ => None,
    }
}
