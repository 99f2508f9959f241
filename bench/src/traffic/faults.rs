//! The cost of faults: lost packets, and the longest time without a packet between two pods.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use tweed_lab::{Binaries, Family, Node, Path, Report};

use crate::report::sheet::{Sheet, time};
use crate::{PAUSE, RATE};
use tweed_lab::cluster::{Cluster, Reload, Shape};

/// How long the underlay is down.
const AWAY: Duration = Duration::from_secs(2);
/// How long etcd is down.
const ETCD_AWAY: Duration = Duration::from_secs(20);
const KILLS: usize = 20;
const OTHER_MAC: &str = "02:00:00:00:00:99";
const SHAPE: Shape = Shape { reload: Reload::AtStart, ..Shape::of(3, 0) };

/// A fault of the first of three nodes, or of its entries for the second one.
struct Fault {
    name: &'static str,
    happen: fn(&mut Cluster) -> Result<()>,
    /// The part of the outage that the fault itself causes.
    inherent: Duration,
}

const TUNNEL: &[Fault] = &[
    fault("a peer's route is deleted", |it| ip(it, |peer| format!("route del {}", peer.subnet))),
    fault("a peer's neighbour is deleted", |it| {
        ip(it, |peer| format!("neighbour del {} dev flannel.1", peer.base))
    }),
    fault("a peer's FDB entry is deleted", |it| {
        let mac = Peer::of(it)?.mac;
        it.node(0)?.bridge(format!("fdb del {mac} dev flannel.1")).map(drop)
    }),
    fault("flannel.1 is set down", |it| ip(it, |_| "link set flannel.1 down".to_owned())),
    fault("flannel.1 is deleted", |it| ip(it, |_| "link del flannel.1".to_owned())),
    Fault { inherent: AWAY, ..fault("the underlay is down for 2 s", underlay_away) },
    fault("the daemon restarts without its flannel.1", |it| {
        it.daemon(0)?.stop()?;
        it.node(0)?.ip("link del flannel.1")?;
        start(it)
    }),
    fault("the node comes back with another MAC address", |it| {
        it.daemon(0)?.stop()?;
        it.node(0)?.change_mac("flannel.1", OTHER_MAC)?;
        start(it)
    }),
    fault("the node's public IP changes", |it| renumber(it, 50)),
    fault("the daemon is killed and restarted 20 times", kill_often),
    fault("etcd is away for 20 s", etcd_away),
];

const DIRECT: &[Fault] = &[
    fault("a peer's route is deleted", |it| ip(it, |peer| format!("route del {}", peer.subnet))),
    fault("a peer's route gets a wrong gateway", |it| {
        ip(it, |peer| format!("route replace {} via 10.99.1.77", peer.subnet))
    }),
    Fault { inherent: AWAY, ..fault("the underlay is down for 2 s", underlay_away) },
    fault("the node's public IP changes", |it| renumber(it, 51)),
    fault("the daemon is killed and restarted 20 times", kill_often),
    fault("etcd is away for 20 s", etcd_away),
];

const fn fault(name: &'static str, happen: fn(&mut Cluster) -> Result<()>) -> Fault {
    Fault { name, happen, inherent: Duration::ZERO }
}

pub(crate) fn run(binaries: &Binaries, sheet: &mut Sheet) -> Result<()> {
    let head = ["fault", "backend", "lost", "longest outage of a pair"];
    sheet.table("Faults", &head)?;
    for (backend, path, faults) in
        [("vxlan", Path::Tunnel, TUNNEL), ("host-gw", Path::Direct, DIRECT)]
    {
        let mut cluster = Cluster::build(binaries.clone(), SHAPE)?;
        let network = r#""Network":"10.244.0.0/16""#;
        cluster.configure(&format!(r#"{{{network},"Backend":{{"Type":"{backend}"}}}}"#))?;
        cluster.start_all()?;
        for fault in faults {
            cluster.wait_for(|_, _| path)?;
            let report = fault.measure(&mut cluster).with_context(|| fault.name)?;
            let outage = fault.describe(report.longest_outage());
            sheet.row(&[&fault.name, &backend, &report.total().lost, &outage])?;
        }
    }
    Ok(())
}

impl Fault {
    fn measure(&self, cluster: &mut Cluster) -> Result<Report> {
        let probe = cluster.probe(RATE)?;
        probe.run_for(PAUSE);
        (self.happen)(cluster)?;
        probe.run_for(PAUSE * 2);
        probe.finish()
    }

    fn describe(&self, outage: Duration) -> String {
        match self.inherent {
            Duration::ZERO => time(outage),
            inherent => format!("{} and {}", time(inherent), time(outage.saturating_sub(inherent))),
        }
    }
}

/// The second node, as the first one sees it.
struct Peer {
    subnet: String,
    base: IpAddr,
    mac: String,
}

impl Peer {
    fn of(cluster: &Cluster) -> Result<Self> {
        let node = cluster.node(1)?;
        let subnet = node.subnet_env()?.subnet(Family::V4).context("no subnet")?;
        let mac = node.link("flannel.1")?.map(|link| link.mac).unwrap_or_default();
        Ok(Self { subnet: subnet.to_string(), base: subnet.ip(), mac })
    }
}

fn ip(cluster: &Cluster, words: fn(&Peer) -> String) -> Result<()> {
    let peer = Peer::of(cluster)?;
    cluster.node(0)?.ip(words(&peer)).map(drop)
}

fn underlay_away(cluster: &mut Cluster) -> Result<()> {
    let node: &Node = cluster.node(0)?;
    node.ip("link set eth0 down")?;
    std::thread::sleep(AWAY);
    node.ip("link set eth0 up").map(drop)
}

fn renumber(cluster: &mut Cluster, last: u8) -> Result<()> {
    cluster.node(0)?.renumber(IpAddr::from([10, 99, 1, last]))
}

fn start(cluster: &mut Cluster) -> Result<()> {
    cluster.daemon(0)?.start()?;
    cluster.daemon(0)?.wait_ready().map(drop)
}

fn kill_often(cluster: &mut Cluster) -> Result<()> {
    (0..KILLS).try_for_each(|_| {
        cluster.daemon(0)?.kill()?;
        start(cluster)
    })
}

fn etcd_away(cluster: &mut Cluster) -> Result<()> {
    cluster.etcd.stop()?;
    std::thread::sleep(ETCD_AWAY);
    cluster.etcd.start().map(drop)
}
