//! Both ways at once: direct where the link allows it, through the tunnel elsewhere.

use super::{HostGw, Network, Unreachable, Vxlan, Way};
use crate::config::Kind;
use crate::kernel::state::{Entry, KernelState, LinkName, ReversePath};
use crate::lease::{BackendType, Endpoint};
use crate::prefix::Family;

pub(super) struct Mixed {
    kind: Kind,
    tunnel: Vxlan,
    direct: HostGw,
}

impl Mixed {
    pub(super) const fn new(kind: Kind, tunnel: Vxlan, direct: HostGw) -> Self {
        Self { kind, tunnel, direct }
    }

    /// The way to `peer` over the link if it is there, through the tunnel if not.
    fn either(&self, peer: &Endpoint) -> Result<Way, Unreachable> {
        self.direct.direct(peer).or_else(|direct| {
            self.tunnel.tunnelled(peer).map_err(|tunnel| Unreachable::NeitherWay {
                direct: Box::new(direct),
                tunnel: Box::new(tunnel),
            })
        })
    }

    /// While two nodes learn of a flip one after the other, packets come by one way and the answers
    /// leave by the other: a strict filter would drop them. It knows IPv4 only.
    fn loose_filters(&self) -> impl Iterator<Item = Entry> {
        let loose =
            |link: &LinkName| Entry::ReversePath(ReversePath { link: link.clone(), strict: false });
        let filtered = self.family() == Family::V4;
        [self.tunnel.device(), self.tunnel.underlay()]
            .map(loose)
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
        self.tunnel.local().into_iter().chain(self.loose_filters()).collect()
    }

    fn towards(&self, peer: &Endpoint) -> Result<Way, Unreachable> {
        match (self.kind, &peer.backend) {
            (Kind::Vxlan, BackendType::Vxlan) => self.tunnel.preferred(peer),
            (Kind::Vxlan, BackendType::HostGw)
            | (Kind::HostGw, BackendType::Vxlan | BackendType::HostGw) => self.either(peer),
            (Kind::Vxlan | Kind::HostGw, BackendType::Other(name)) => {
                Err(Unreachable::UnknownBackend(name.clone()))
            }
        }
    }
}
