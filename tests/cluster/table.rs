//! The path of a node to each peer, by the design: an independent second implementation.

use tweed_lab::Path;

/// The backend in a node's config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    Vxlan,
    HostGw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mixed {
    Off,
    On,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    Adjacent,
    BehindRouter,
}

/// The config with which a node's daemon was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Side {
    pub backend: Backend,
    pub mixed: Mixed,
}

pub const VXLAN: Side = Side { backend: Backend::Vxlan, mixed: Mixed::Off };
pub const VXLAN_MIXED: Side = Side { backend: Backend::Vxlan, mixed: Mixed::On };
pub const HOST_GW: Side = Side { backend: Backend::HostGw, mixed: Mixed::Off };
pub const HOST_GW_MIXED: Side = Side { backend: Backend::HostGw, mixed: Mixed::On };

const MIXED_IS_OFF: &str = "Mixed is off";
const NOT_ON_LINK: &str = "is not on the link";
const NO_VTEP: &str = "published no VTEP";

/// A path, or a part of the reason why there is none.
pub type Expected = Result<Path, &'static str>;

/// One row of the table.
#[allow(clippy::match_same_arms, reason = "an arm is a row")]
pub fn expected(this: Side, peer: Side, distance: Distance) -> Expected {
    use Backend::{HostGw, Vxlan};
    use Distance::{Adjacent, BehindRouter};
    use Mixed::{Off, On};
    let tunnel = if peer.publishes_vtep() { Ok(Path::Tunnel) } else { Err(NO_VTEP) };
    match (this.backend, peer.backend, this.mixed, distance) {
        (Vxlan, Vxlan, Off | On, Adjacent | BehindRouter) => Ok(Path::Tunnel),
        (Vxlan, HostGw, Off, Adjacent | BehindRouter) => Err(MIXED_IS_OFF),
        (Vxlan, HostGw, On, Adjacent) => Ok(Path::Direct),
        (Vxlan, HostGw, On, BehindRouter) => tunnel,
        (HostGw, HostGw, Off | On, Adjacent) => Ok(Path::Direct),
        (HostGw, HostGw, Off, BehindRouter) => Err(NOT_ON_LINK),
        (HostGw, HostGw, On, BehindRouter) => tunnel,
        (HostGw, Vxlan, Off, Adjacent | BehindRouter) => Err(MIXED_IS_OFF),
        (HostGw, Vxlan, On, Adjacent) => Ok(Path::Direct),
        (HostGw, Vxlan, On, BehindRouter) => Ok(Path::Tunnel),
    }
}

/// [`expected`], with a variant for no path.
pub fn path(expected: Expected) -> Path {
    expected.unwrap_or(Path::None)
}

impl Side {
    /// The remaining fields of the network config.
    pub fn config(self) -> String {
        let backend = match self.backend {
            Backend::Vxlan => "vxlan",
            Backend::HostGw => "host-gw",
        };
        let mixed = self.mixed == Mixed::On;
        format!(r#""Mixed":{mixed},"Backend":{{"Type":"{backend}"}}"#)
    }

    fn publishes_vtep(self) -> bool {
        self.backend == Backend::Vxlan || self.mixed == Mixed::On
    }
}
