//! A daemon that stops, is killed or restarts loses no packet and reports its state correctly.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tweed_lab::{Daemon, Entry, Family, Node, Path, Probe, eventually, is_silence};

use crate::fixture::ask::{is_ready_with, is_waiting_for};
use crate::fixture::cluster::{CONFIG, Cluster, ClusterPlan, PATIENCE, Stack, wait_for_paths};
use crate::fixture::peer::{Peer, key_of};
use crate::fixture::table::{
    Distance, HOST_GW, HOST_GW_MIXED, Side, VXLAN, VXLAN_MIXED, expected, path,
};

/// Packets per second and ordered pair of pods.
const RATE: u32 = 500;
/// Upper limit for a stop on a busy machine, shorter than the wait for a resolver; on an idle one it
/// takes 30 ms.
const STOPPED: Duration = Duration::from_secs(20);
/// The time in which all nodes read what one has published.
const BETWEEN: Duration = Duration::from_secs(2);
/// A message that is sent too early arrives within this time.
const TOO_EARLY: Duration = Duration::from_millis(300);

/// Three nodes with pods that send to each other.
fn under_traffic(stack: Stack, side: Side) -> Result<(Cluster, Probe)> {
    let cluster = ClusterPlan::new(3, &stack.config(&side.config())).stack(stack).start()?;
    cluster.start_pods()?;
    // In Mixed, packets may get through before the final path is programmed.
    let wanted = expected(side, side, Distance::Adjacent);
    cluster.wait_for_paths(|_, _| path(wanted))?;
    let families = stack.families().iter();
    let pairs: Vec<_> = families.flat_map(|family| cluster.lab.pairs(*family)).collect();
    let probe = cluster.lab.probe(&pairs, RATE)?;
    Ok((cluster, probe))
}

fn nothing_is_lost(probe: Probe) -> Result<()> {
    let report = probe.finish()?;
    ensure!(report.lost() == 0, "lost packets:\n{report}");
    Ok(())
}

/// Runs a command with a resolver that waits 30 seconds for each attempt.
const RESOLVER: &str = r#"mount -t tmpfs tmpfs /etc
echo "nameserver 127.0.0.1
options timeout:30" >/etc/resolv.conf
exec "$@""#;

#[test]
fn a_stop_does_not_wait_for_the_resolver() {
    let cluster = ClusterPlan::new(1, &Stack::V4.config(&VXLAN.config())).build().unwrap();
    let node = &cluster.nodes[0];
    let silent = node.namespace().within(|| UdpSocket::bind("127.0.0.1:53")).unwrap().unwrap();
    silent.set_nonblocking(true).unwrap();
    let plan = node.daemon(&cluster.etcd).argument("--etcd-endpoints=http://etcd.example:2379");
    let plan = plan.through("unshare", &["--mount", "sh", "-euc", RESOLVER, "sh"]);
    let daemon = plan.start().unwrap();
    eventually(PATIENCE, || silent.recv(&mut [0; 512]).is_ok()).unwrap();
    let ended = daemon.stop().unwrap();
    assert!(ended.took < STOPPED, "{:?}", ended.took);
    assert_eq!(ended.status.code(), Some(0));
}

#[test]
fn a_stop_is_quick_and_changes_nothing() {
    for side in [VXLAN, HOST_GW, HOST_GW_MIXED] {
        let (cluster, probe) = under_traffic(Stack::V4, side).unwrap();
        let before = cluster.nodes[0].snapshot().unwrap();
        let lease = cluster.etcd.get(&key_of(&cluster.nodes[0]).unwrap()).unwrap();
        let monitor = cluster.nodes[0].monitor().unwrap();
        let ended = cluster.daemons[0].stop().unwrap();
        assert!(ended.took < STOPPED, "{:?}", ended.took);
        assert_eq!(ended.status.code(), Some(0));
        println!("{side:?}: stopped in {:.0?}", ended.took);
        probe.run_for(Duration::from_millis(500));
        monitor.nothing_changed().unwrap();
        assert_eq!(before.changes(&cluster.nodes[0].snapshot().unwrap()), [""; 0]);
        assert_eq!(cluster.etcd.get(&key_of(&cluster.nodes[0]).unwrap()).unwrap(), lease);
        assert!(cluster.nodes[0].subnet_file().exists());
        nothing_is_lost(probe).unwrap();
    }
}

#[test]
fn ten_kills_and_restarts_lose_and_change_nothing() {
    for (stack, side) in [(Stack::V4, HOST_GW), (Stack::Dual, VXLAN_MIXED)] {
        let (mut cluster, probe) = under_traffic(stack, side).unwrap();
        let lease = cluster.lease(0).unwrap();
        cluster.wait_for_checkpoint(0).unwrap();
        let monitors: Vec<_> = cluster.nodes.iter().map(|it| it.monitor().unwrap()).collect();
        for _ in 0..10 {
            cluster.daemons[0].kill().unwrap();
            cluster.daemons[0].start().unwrap();
            cluster.daemons[0].wait_ready().unwrap();
        }
        probe.run_for(Duration::from_millis(500));
        for monitor in monitors {
            monitor.nothing_changed().unwrap();
        }
        let now = cluster.lease(0).unwrap();
        let known = |it: &Entry| (it.key.clone(), it.value.clone(), it.lease);
        assert_eq!(known(&now), known(&lease), "{stack:?} {side:?}");
        nothing_is_lost(probe).unwrap();
    }
}

#[test]
fn a_restart_without_a_config_still_observes_peers() {
    let mut cluster = ClusterPlan::new(1, &Stack::V4.config(&VXLAN.config())).start().unwrap();
    cluster.daemons[0].wait_ready().unwrap();
    let lease = cluster.lease(0).unwrap();
    cluster.wait_for_checkpoint(0).unwrap();
    cluster.daemons[0].stop().unwrap();
    cluster.etcd.put(CONFIG, "{").unwrap();
    cluster.daemons[0].start().unwrap();
    let peer = Peer::numbered(1);
    peer.is_followed_by(&cluster.nodes, &cluster.etcd).unwrap();
    let warning = "the previous config stays applied: key";
    eventually(PATIENCE, || is_ready_with(&cluster.daemons[0], warning)).unwrap();
    assert_eq!(cluster.lease(0).unwrap().lease, lease.lease);
}

/// The messages that a daemon sends to systemd.
struct Systemd {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Systemd {
    fn listen(node: &Node) -> Result<Self> {
        let path = node.folder().join("notify");
        let socket = UnixDatagram::bind(&path)?;
        Ok(Self { socket, path })
    }

    /// The next message; none if none arrives within `patience`.
    fn receives(&self, patience: Duration) -> Result<Option<String>> {
        self.socket.set_read_timeout(Some(patience))?;
        let mut buffer = [0; 4096];
        match self.socket.recv(&mut buffer) {
            Ok(length) => Ok(Some(String::from_utf8(buffer[..length].to_vec())?)),
            Err(error) if error.kind() == ErrorKind::Interrupted => self.receives(patience),
            Err(error) if is_silence(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn readiness(daemon: &Daemon) -> Result<(u16, Value)> {
    let answer = daemon.get("/readyz")?;
    Ok((answer.status, serde_json::from_str(&answer.body).context(answer.body)?))
}

#[test]
fn systemd_is_notified_once_every_peer_is_programmed() {
    let cluster = ClusterPlan::new(1, "{}").build().unwrap();
    let (node, etcd) = (&cluster.nodes[0], &cluster.etcd);
    etcd.delete(CONFIG).unwrap();
    let peers: Vec<Peer> = (1..=100).map(Peer::numbered).collect();
    for peer in &peers {
        peer.join(etcd).unwrap();
    }
    let systemd = Systemd::listen(node).unwrap();
    let plan = node.daemon(etcd).environment("NOTIFY_SOCKET", &systemd.path);
    let daemon = plan.start().unwrap();
    assert_eq!(systemd.receives(TOO_EARLY).unwrap(), None);
    assert!(!node.subnet_file().exists());
    eventually(PATIENCE, || is_waiting_for(&daemon, "no network config yet")).unwrap();
    assert_eq!(daemon.get("/healthz").unwrap().body, "tweedd is running\n");
    etcd.put(CONFIG, &Stack::V4.config(&VXLAN.config())).unwrap();
    assert_eq!(systemd.receives(PATIENCE).unwrap().as_deref(), Some("READY=1"));
    let routes = node.ip("route show proto 241").unwrap();
    assert_eq!(routes.lines().count(), peers.len());
    assert!(node.subnet_file().exists());
    assert_eq!(systemd.receives(PATIENCE).unwrap().as_deref(), Some("STATUS=running"));
    let (status, body) = readiness(&daemon).unwrap();
    assert_eq!((status, body), (200, json!({"ready": true, "reasons": []})));
    assert_eq!(daemon.get("/healthz").unwrap().status, 200);
    assert_eq!(systemd.receives(TOO_EARLY).unwrap(), None);
}

#[test]
fn health_distinguishes_a_stuck_loop_from_a_waiting_one() {
    let cluster = ClusterPlan::new(1, "{}").build().unwrap();
    cluster.etcd.delete(CONFIG).unwrap();
    let daemon = cluster.nodes[0].daemon(&cluster.etcd).start().unwrap();
    eventually(PATIENCE, || {
        let answer = daemon.get("/healthz")?;
        ensure!(answer.status == 200, "{} {}", answer.status, answer.body);
        Ok(())
    })
    .unwrap();
    assert_eq!(daemon.get("/nowhere").unwrap().status, 404);
}

#[test]
fn the_subnet_file_has_flannels_form() {
    let v4 = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\n";
    let v6 = "FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:7::1/64\n";
    let rest = |mtu: u32| format!("FLANNEL_MTU={mtu}\nFLANNEL_IPMASQ=false\n");
    let cases = [
        (Stack::V4, VXLAN, "10.244.7.0-24", format!("{v4}{}", rest(1450))),
        (Stack::V4, HOST_GW, "10.244.7.0-24", format!("{v4}{}", rest(1500))),
        (Stack::Dual, VXLAN, "10.244.7.0-24&fd00:244:0:7::-64", format!("{v4}{v6}{}", rest(1430))),
    ];
    for (stack, side, id, expected) in cases {
        let plan = ClusterPlan::new(1, &stack.config(&side.config())).stack(stack);
        let mut cluster = plan.build().unwrap();
        let ip = |family: &tweed_lab::Family| cluster.nodes[0].address(*family).unwrap();
        let ips: Vec<String> = stack.families().iter().map(|it| ip(it).to_string()).collect();
        let v6 = ips.get(1).map_or("null".to_owned(), |ip| format!("{ip:?}"));
        let reserved = format!(r#"{{"PublicIP":"{}","PublicIPv6":{v6}}}"#, ips[0]);
        cluster.etcd.put(&format!("{}/{id}", crate::fixture::cluster::SUBNETS), &reserved).unwrap();
        cluster.start_daemons().unwrap();
        let written = std::fs::read_to_string(cluster.nodes[0].subnet_file()).unwrap();
        assert_eq!(written, expected);
    }
}

/// The network gets a second address family: running daemons leave that to their next start.
#[test]
fn restarts_one_by_one_add_a_family_without_a_lost_packet_of_the_first() {
    let [first, both] = [Stack::V4, Stack::Dual].map(|stack| stack.config(&VXLAN.config()));
    let mut cluster = ClusterPlan::new(3, &first).stack(Stack::Dual).start().unwrap();
    cluster.start_pods().unwrap();
    wait_for_paths(&cluster.nodes, Stack::V4, |_, _| Path::Tunnel).unwrap();
    let probe = cluster.lab.probe(&cluster.lab.pairs(Family::V4), RATE).unwrap();
    cluster.etcd.put(CONFIG, &both).unwrap();
    for index in 0..3 {
        cluster.wait_for_checkpoint(index).unwrap();
        let daemon = &mut cluster.daemons[index];
        daemon.stop().unwrap();
        daemon.start().unwrap();
        daemon.wait_ready().unwrap();
        cluster.subnet(index, Family::V6).unwrap();
        probe.run_for(BETWEEN);
    }
    nothing_is_lost(probe).unwrap();
}
