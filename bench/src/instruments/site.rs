//! A node with a daemon, one without, and any number of peers in etcd.

use std::time::Duration;

use anyhow::Result;
use tweed_lab::{Backend, Binaries, Daemon, Etcd, Family, Files, Lab, Node};

use crate::instruments::peer::{CONFIG, NETWORK, OWN_SUBNET, Peer, SUBNETS, UNDERLAY, peers};

/// A step that takes longer has failed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) struct Site {
    pub(crate) lab: Lab,
    pub(crate) etcd: Etcd,
    /// The node of the daemon.
    pub(crate) node: Node,
    /// The node of its rivals.
    pub(crate) bare: Node,
    pub(crate) backend: Backend,
    known: u32,
}

impl Site {
    /// Without peers. `more` is inserted in the network config: `"Mixed":true,`, or nothing.
    pub(crate) fn build(binaries: &Binaries, backend: Backend, more: &str) -> Result<Self> {
        let lab = Lab::new(binaries.clone())?;
        let (etcd, segment) = (lab.etcd()?, lab.segment(UNDERLAY)?);
        let (node, bare) = (lab.node("n1", &segment)?, lab.node("bare", &segment)?);
        let site = Self { lab, etcd, node, bare, backend, known: 0 };
        site.configure(more)?;
        reserve(&site.etcd, &site.node)?;
        Ok(site)
    }

    /// Writes the network config again.
    pub(crate) fn configure(&self, more: &str) -> Result<()> {
        let network = format!(r#""Network":"{NETWORK}","SubnetLen":24"#);
        let backend = format!(r#""Backend":{{"Type":"{}"}}"#, self.backend.name());
        self.etcd.put(CONFIG, &format!("{{{network},{more}{backend}}}"))
    }

    /// Writes leases until at least the first `count` peers have one.
    pub(crate) fn grow(&mut self, count: u32) -> Result<()> {
        self.announce(peers(self.known..count), self.backend)?;
        self.known = self.known.max(count);
        Ok(())
    }

    /// Writes leases, also over existing ones.
    pub(crate) fn announce(
        &self,
        peers: impl Iterator<Item = Peer>,
        backend: Backend,
    ) -> Result<()> {
        self.etcd.put_all(&peers.map(|peer| peer.lease(backend)).collect::<Vec<_>>())
    }

    pub(crate) fn start_daemon(&self) -> Result<Daemon> {
        self.node.daemon(&self.etcd).start()
    }

    /// Simulates a reboot with an empty disk.
    pub(crate) fn wipe_node(&self) -> Result<()> {
        self.node.wipe(Files::Lost)
    }

    /// Creates the device of the tunnel as a daemon does.
    pub(crate) fn prepare_bare(&self) -> Result<()> {
        let local = self.bare.address(Family::V4)?;
        let kind = format!("type vxlan id 1 dstport 8472 nolearning dev eth0 local {local}");
        self.bare.ip(format!("link add flannel.1 {kind}"))?;
        self.bare.ip("link set flannel.1 up").map(drop)
    }

    pub(crate) fn wipe_bare(&self) -> Result<()> {
        self.bare.ip(format!("route flush root {NETWORK}"))?;
        self.bare.namespace().run("nft", &["flush", "ruleset"])?;
        self.bare.ip("link del flannel.1").map(drop)
    }
}

/// Reserves a subnet for the node, which no peer gets.
fn reserve(etcd: &Etcd, node: &Node) -> Result<()> {
    let address = node.address(Family::V4)?;
    let reservation = format!(r#"{{"PublicIP":"{address}","PublicIPv6":null}}"#);
    etcd.put(&format!("{SUBNETS}/{OWN_SUBNET}"), &reservation)
}
