//! The `Mixed` mode: direct routes to peers on the same link, the tunnel to all others.

use std::sync::Arc;

use super::{HostGwNetwork, Network, PathPlan, Unreachable, VxlanNetwork};
use crate::model::config::BackendType;
use crate::model::entry::{Entry, KernelState, LinkName, SettingKind};
use crate::model::lease::Endpoint;
use crate::model::node_inputs::NodeInputs;
use crate::model::path::Fallback;
use crate::model::prefix::Family;

pub(super) struct MixedNetwork {
    kind: BackendType,
    tunnel: VxlanNetwork,
    direct: HostGwNetwork,
    /// Whether the tunnel to a peer with a direct route stays usable: probes need it.
    has_standby: bool,
}

impl MixedNetwork {
    pub(super) fn new(local: &NodeInputs, tunnel: VxlanNetwork, direct: HostGwNetwork) -> Self {
        let kind = local.config.backend.kind;
        let has_standby = local.config.probing().is_some();
        Self { kind, tunnel, direct, has_standby }
    }

    /// The direct path if `peer` is on the link and there is no fallback for it, else the tunnel.
    fn either(&self, peer: &Endpoint, fallback: Option<Fallback>) -> Result<PathPlan, Unreachable> {
        match (self.direct.direct(peer), self.tunnel.tunnelled(peer)) {
            (Ok(_), Ok(tunnel)) if fallback.is_some() => Ok(PathPlan { fallback, ..tunnel }),
            (Ok(direct), _) => Ok(self.with_standby(direct, peer)),
            (Err(_), Ok(tunnel)) => Ok(tunnel),
            (Err(direct), Err(tunnel)) => {
                Err(Unreachable::NeitherPath { direct: Box::new(direct), tunnel: Box::new(tunnel) })
            }
        }
    }

    fn with_standby(&self, mut direct: PathPlan, peer: &Endpoint) -> PathPlan {
        if self.has_standby {
            let standby = self.tunnel.standby(peer).unwrap_or_default();
            direct.entries.splice(0..0, standby);
        }
        direct
    }

    /// While two nodes change paths one after the other, packets arrive by one path and the answers
    /// leave by the other. A strict reverse-path filter would drop them. The filter exists for IPv4
    /// only.
    fn loose_filters(&self) -> impl Iterator<Item = Arc<Entry>> {
        let filtered = self.family() == Family::V4;
        [&self.tunnel.device, &self.tunnel.underlay]
            .map(|link| Arc::new(Entry::Setting(SettingKind::ReversePath.off(link))))
            .into_iter()
            .filter(move |_| filtered)
    }
}

impl Network for MixedNetwork {
    fn family(&self) -> Family {
        self.tunnel.family()
    }

    /// The smaller of both MTUs, because a packet may take either path.
    fn mtu(&self) -> u32 {
        self.tunnel.mtu().min(self.direct.mtu())
    }

    fn local(&self) -> KernelState {
        // Connections of this host that began in the tunnel have its address as their source. On
        // the loopback, the address outlives the device, which is removed once `Mixed` is off and
        // no peer needs it.
        let address = self.tunnel.address_on(LinkName::loopback());
        self.tunnel.local().into_iter().chain(address).chain(self.loose_filters()).collect()
    }

    fn admit(&self, peer: &Endpoint) -> Vec<Arc<Entry>> {
        self.tunnel.admit(peer)
    }

    fn towards(
        &self,
        peer: &Endpoint,
        fallback: Option<Fallback>,
    ) -> Result<PathPlan, Unreachable> {
        match (self.kind, super::supported(peer)?) {
            (BackendType::Vxlan, BackendType::Vxlan) if !self.tunnel.tunnel.direct_routing => {
                self.tunnel.tunnelled(peer)
            }
            (BackendType::Vxlan | BackendType::HostGw, _) => self.either(peer, fallback),
        }
    }
}
