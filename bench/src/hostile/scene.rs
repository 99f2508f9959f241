//! Two nodes with daemons and pods, and a host on their segment that is not a node.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Backend, Binaries, Daemon, Etcd, Family, Lab, Node, Path, eventually};

use crate::instruments::listener::Listener;
use crate::instruments::peer::{CONFIG, NETWORK, SUBNETS, UNDERLAY, peers};
use crate::instruments::site::TIMEOUT;
use crate::instruments::writer::Writer;

/// No attack uses the subnet of this peer.
const NEWCOMER: u32 = 20_000;

pub(super) struct Scene {
    pub(super) lab: Lab,
    pub(super) etcd: Etcd,
    /// The node that is attacked.
    pub(super) victim: Node,
    pub(super) peer: Node,
    pub(super) unknown: Node,
    /// The daemon of the victim.
    pub(super) daemon: Daemon,
}

impl Scene {
    pub(super) fn build(binaries: &Binaries) -> Result<Self> {
        let lab = Lab::new(binaries.clone())?;
        let (etcd, segment) = (lab.etcd()?, lab.segment(UNDERLAY)?);
        let (victim, peer) = (lab.node("n1", &segment)?, lab.node("n2", &segment)?);
        let unknown = lab.node("unknown", &segment)?;
        let backend = r#""Mixed":true,"Backend":{"Type":"host-gw"}"#;
        etcd.put(CONFIG, &format!(r#"{{"Network":"{NETWORK}","SubnetLen":24,{backend}}}"#))?;
        let mut daemons = Vec::new();
        for (node, number) in [(&victim, 1), (&peer, 2)] {
            let address = node.address(Family::V4)?;
            let reservation = format!(r#"{{"PublicIP":"{address}","PublicIPv6":null}}"#);
            etcd.put(&format!("{SUBNETS}/10.128.{number}.0-24"), &reservation)?;
            daemons.push(node.daemon(&etcd).start()?);
        }
        daemons.iter().try_for_each(|daemon| daemon.wait_ready().map(drop))?;
        victim.pod()?;
        peer.pod()?;
        let daemon = daemons.swap_remove(0);
        let scene = Self { lab, etcd, victim, peer, unknown, daemon };
        eventually(TIMEOUT, || scene.are_paths_direct())?;
        Ok(scene)
    }

    /// The first address of the victim's subnet, and of its peer's, which probes use.
    pub(super) fn bases() -> [IpAddr; 2] {
        [1, 2].map(|number| IpAddr::from([10, 128, number, 0]))
    }

    /// Writes to etcd as a host does that has the rights.
    pub(super) fn writer(&self) -> Result<Writer> {
        Writer::connect(&self.etcd, self.unknown.namespace())
    }

    /// Waits until the victim routes to a node that joins now, is ready, and both nodes reach each
    /// other by the same path as before. `listener` was started before the attack.
    pub(super) fn wait_until_well(&self, listener: &Listener) -> Result<()> {
        for newcomer in peers(NEWCOMER..NEWCOMER + 1) {
            let (key, value) = newcomer.lease(Backend::HostGw);
            self.etcd.put(&key, &value)?;
            listener.wait_for([newcomer], TIMEOUT)?;
        }
        let is_well = || {
            for path in ["/healthz", "/readyz"] {
                let answer = self.daemon.get(path)?;
                ensure!(answer.status == 200, "{path}: {} {}", answer.status, answer.body);
            }
            self.are_paths_direct()
        };
        eventually(TIMEOUT, is_well).map(drop)
    }

    fn are_paths_direct(&self) -> Result<()> {
        for (from, to) in [(&self.victim, &self.peer), (&self.peer, &self.victim)] {
            let subnet = to.subnet_env()?.subnet(Family::V4).context("no subnet")?;
            let path = from.path_to(subnet)?;
            ensure!(path == Path::Direct, "{} → {}: {path}", from.name(), to.name());
        }
        Ok(())
    }
}
