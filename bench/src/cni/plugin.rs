//! The plugins that are called, and their configs.

use std::path::Path;

use serde_json::{Value, json};

/// The folder of Debian's package `containernetworking-plugins`.
pub(super) const DEBIAN: &str = "/usr/lib/cni";

/// The network of all pods; the subnet below belongs to this node.
const NETWORK: &str = "10.0.0.0/8";
const SUBNET: &str = "10.244.0.0/16";
const GATEWAY: &str = "10.244.0.1/16";
const MTU: u16 = 1450;

#[derive(Clone, Copy, Debug)]
pub(super) enum Plugin<'a> {
    /// tweed's plugin at this path, called as a runtime calls flannel's.
    Flannel(&'a Path),
    /// Debian's `bridge`, which runs `host-local`; it is called directly, without flannel's plugin.
    Bridge,
}

impl Plugin<'_> {
    /// The program that `bridge` runs for addresses.
    pub(super) const HOST_LOCAL: &'static str = "/usr/lib/cni/host-local";

    pub(super) fn program(&self) -> &Path {
        match self {
            Self::Flannel(program) => program,
            Self::Bridge => Path::new("/usr/lib/cni/bridge"),
        }
    }

    /// The config that a runtime passes on a node whose files are in `home`.
    pub(super) fn config(&self, home: &Path) -> Value {
        match self {
            Self::Flannel(_) => kube_flannel(home),
            Self::Bridge => delegate(home),
        }
    }
}

/// The content of subnet.env, as the daemon writes it.
pub(super) fn subnet_env() -> String {
    format!(
        "FLANNEL_NETWORK={NETWORK}\nFLANNEL_SUBNET={GATEWAY}\nFLANNEL_MTU={MTU}\nFLANNEL_IPMASQ=true\n"
    )
}

/// The config of kube-flannel's manifest.
fn kube_flannel(home: &Path) -> Value {
    json!({
        "cniVersion": "0.3.1",
        "name": "cbr0",
        "type": "flannel",
        "subnetFile": home.join("subnet.env"),
        "dataDir": home.join("flannel"),
        "ipam": { "dataDir": home.join("networks") },
        "delegate": { "hairpinMode": true, "isDefaultGateway": true },
    })
}

/// The config that flannel's plugin passes to its delegate.
fn delegate(home: &Path) -> Value {
    json!({
        "cniVersion": "0.3.1",
        "name": "cbr0",
        "type": "bridge",
        "hairpinMode": true,
        "isDefaultGateway": true,
        "isGateway": true,
        "ipMasq": false,
        "mtu": MTU,
        "ipam": {
            "type": "host-local",
            "dataDir": home.join("networks"),
            "ranges": [[{ "subnet": SUBNET }]],
            "routes": [{ "dst": NETWORK }],
        },
    })
}
