//! Both ways at once: direct where the link allows it, through the tunnel elsewhere.

use std::sync::Arc;

use super::{HostGw, Network, Unreachable, Vxlan, Way};
use crate::model::config::BackendType;
use crate::model::entry::{Entry, KernelState, LinkName, SettingKind};
use crate::model::lease::Endpoint;
use crate::model::local::Local;
use crate::model::path::Detour;
use crate::model::prefix::Family;

pub(super) struct Mixed {
    kind: BackendType,
    tunnel: Vxlan,
    direct: HostGw,
    /// Whether the tunnel to a peer stays usable while its route is direct: probes need it.
    has_standby: bool,
}

impl Mixed {
    pub(super) fn new(local: &Local, tunnel: Vxlan, direct: HostGw) -> Self {
        let kind = local.config.backend.kind;
        let has_standby = local.config.probing().is_some();
        Self { kind, tunnel, direct, has_standby }
    }

    /// The way to `peer` over the link if it is there and there is no detour, else through the
    /// tunnel.
    fn either(&self, peer: &Endpoint, detour: Option<Detour>) -> Result<Way, Unreachable> {
        match (self.direct.direct(peer), self.tunnel.tunnelled(peer)) {
            (Ok(_), Ok(tunnel)) if detour.is_some() => Ok(Way { detour, ..tunnel }),
            (Ok(direct), _) => Ok(self.with_standby(direct, peer)),
            (Err(_), Ok(tunnel)) => Ok(tunnel),
            (Err(direct), Err(tunnel)) => {
                Err(Unreachable::NeitherWay { direct: Box::new(direct), tunnel: Box::new(tunnel) })
            }
        }
    }

    fn with_standby(&self, mut direct: Way, peer: &Endpoint) -> Way {
        if self.has_standby {
            let standby = self.tunnel.standby(peer).unwrap_or_default();
            direct.entries.splice(0..0, standby);
        }
        direct
    }

    /// While two nodes learn of a flip one after the other, packets come by one way and the answers
    /// leave by the other: a strict filter would drop them. It knows IPv4 only.
    fn loose_filters(&self) -> impl Iterator<Item = Arc<Entry>> {
        let filtered = self.family() == Family::V4;
        [&self.tunnel.device, &self.tunnel.underlay]
            .map(|link| Arc::new(Entry::Setting(SettingKind::ReversePath.off(link))))
            .into_iter()
            .filter(move |_| filtered)
    }
}

impl Network for Mixed {
    fn family(&self) -> Family {
        self.tunnel.family()
    }

    /// The smaller of both: a packet may take either way.
    fn mtu(&self) -> u32 {
        self.tunnel.mtu().min(self.direct.mtu())
    }

    fn local(&self) -> KernelState {
        // Connections of this host that began in the tunnel have its address as their source. Here
        // it outlives the device, which goes once `Mixed` is off and the peers need it no more.
        let address = self.tunnel.address_on(LinkName::loopback());
        self.tunnel.local().into_iter().chain(address).chain(self.loose_filters()).collect()
    }

    fn admit(&self, peer: &Endpoint) -> Vec<Arc<Entry>> {
        self.tunnel.admit(peer)
    }

    fn towards(&self, peer: &Endpoint, detour: Option<Detour>) -> Result<Way, Unreachable> {
        match (self.kind, super::supported(peer)?) {
            (BackendType::Vxlan, BackendType::Vxlan) if !self.tunnel.tunnel.direct_routing => {
                self.tunnel.tunnelled(peer)
            }
            (BackendType::Vxlan | BackendType::HostGw, _) => self.either(peer, detour),
        }
    }
}
