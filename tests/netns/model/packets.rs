//! The walker of the simulation predicts what becomes of packets between two hosts: real packets
//! show whether it is right.

use std::fs::{self, File};
use std::io;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::gettid;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tweed::kernel::{Kernel, NetlinkKernel};
use tweed::model::entry::{
    Address, Entry, Fdb, Hook, KernelState, Link, LinkKind, Neighbour, Route, SettingKind, Vxlan,
};
use tweed::model::node::Firewalls;
use tweed::model::policy::{Masquerade, Policy};
use tweed::model::prefix::Family;
use tweed::plan::allow_list;
use tweed::plan::diff::diff;
use tweed::plan::scope::Scope;
use tweed_model::ModelKernel;
use tweed_simulation::packets::connection::{Client, Connection};
use tweed_simulation::packets::stack::Pods;
use tweed_simulation::packets::walk::{Host, Segment};

use super::{refused, texts};
use crate::firewall::guard::{element, tables};
use crate::host::{
    address, device, direct, ip, name, on_a_host, prefix, rules_of, run, scope, shows, tunnel,
};
use crate::nexthop::by_nexthop;

/// The states of the two hosts, one after the other.
const STATES: usize = 150;
/// The time after which a packet is lost that should be.
const SOON: Duration = Duration::from_millis(10);
/// The time in which a packet arrives that should.
const LATE: Duration = Duration::from_secs(5);
/// The connections that are kept at most.
const OPEN: usize = 8;
const PORT: u16 = 5000;

/// Of connections; none uses that of another.
static NEXT_PORT: AtomicU16 = AtomicU16::new(20_000);

#[test]
fn packets_between_hosts_arrive_as_the_walker_predicts() {
    on_a_host(async || compare(rand::random()).await);
}

async fn compare(seed: u64) {
    let mut sides = two_hosts().await;
    let mut dice = StdRng::seed_from_u64(seed);
    let mut open: Vec<Conversation> = Vec::new();
    for number in 0..STATES {
        for side in &mut sides {
            side.take(&mut dice, seed).await;
        }
        let (segment, [first, second]) = (segment(&sides), sides.each_ref());
        let message = |what: &str| {
            let states = sides.each_ref().map(|side| shown(&side.model.state()));
            format!("seed {seed}, state {number}, {what}\n{}", states.join("\nand\n"))
        };
        open.retain(|conversation| {
            let predicted = segment.exchange(&conversation.connection);
            let to = if conversation.from == 0 { second } else { first };
            let came = conversation.exchange(to, predicted.is_ok());
            let what = || format!("{predicted:?} of {:?}", conversation.connection);
            assert_eq!(came, predicted.is_ok(), "{}", message(&what()));
            came
        });
        for (start, from, to) in [(0, first, second), (1, second, first)] {
            let predicted = segment.pod_to_pod((start, 1 - start), Family::V4);
            let came = from.sends(to, predicted.is_ok());
            let what = || format!("pods {} to {}: {predicted:?}", from.pod, to.pod);
            assert_eq!(came, predicted.is_ok(), "{}", message(&what()));
            let opened = segment.connect(Client::Host, (start, 1 - start), Family::V4);
            let predicted = opened.as_ref().map_err(|why| *why).and_then(|it| segment.exchange(it));
            let conversation = opened.ok().and_then(|it| from.connect(start, to, it).ok());
            let what = || format!("host {} to {}: {predicted:?}", from.address, to.pod);
            let came = conversation.filter(|it| it.exchange(to, predicted.is_ok()));
            assert_eq!(came.is_some(), predicted.is_ok(), "{}", message(&what()));
            open.extend(came);
        }
        let most = open.len().saturating_sub(OPEN);
        open.drain(..most);
    }
}

/// A host in a namespace, and its model.
struct Side {
    number: u8,
    namespace: File,
    address: IpAddr,
    pod: IpAddr,
    kernel: NetlinkKernel,
    model: ModelKernel,
    socket: UdpSocket,
}

/// An open connection of a host.
struct Conversation {
    from: usize,
    connection: Connection,
    socket: UdpSocket,
}

/// The uplinks of two namespaces are the ends of one wire.
async fn two_hosts() -> [Side; 2] {
    ip("link del eth0");
    let first = File::open("/proc/thread-self/ns/net").unwrap();
    // `ip` names a namespace by a thread in it.
    let (send, receive) = mpsc::channel();
    let (over, end) = mpsc::channel::<()>();
    let holder = thread::spawn(move || {
        send.send(gettid()).unwrap();
        let _ = end.recv();
    });
    let thread = receive.recv().unwrap();
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let second = File::open("/proc/thread-self/ns/net").unwrap();
    ip("link set lo up");
    ip(&format!(
        "link add eth0 address {} type veth peer name eth0 address {} netns {thread}",
        mac(12),
        mac(11)
    ));
    drop(over);
    holder.join().unwrap();
    for namespace in [&first, &second] {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set eth0 up");
    }
    [Side::new(1, first).await, Side::new(2, second).await]
}

fn mac(number: u8) -> String {
    format!("0e:00:00:00:00:{number:02}")
}

fn shown(state: &KernelState) -> String {
    state.entries().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn segment(sides: &[Side; 2]) -> Segment {
    let host = |side: &Side| Host {
        kernel: side.model.clone(),
        address: side.number,
        is_up: true,
        pods: Pods::new([prefix(&side.subnet())]),
    };
    Segment { hosts: sides.iter().map(host).collect(), ..Segment::default() }
}

impl Side {
    async fn new(number: u8, namespace: File) -> Self {
        setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
        let peer = 3 - number;
        shows("link show eth0", "state UP").await;
        ip(&format!("addr add 172.16.0.{number}/24 dev eth0"));
        ip("route add default via 172.16.0.254");
        // Packets shall not wait for answers, nor be lost for a wrong question.
        ip(&format!(
            "neigh replace 172.16.0.{peer} lladdr {} dev eth0 nud permanent",
            mac(10 + peer)
        ));
        // A pod; no connection of the host may have its address.
        ip("link add cni0 type bridge");
        ip("link set cni0 up");
        ip(&format!("addr add 10.244.{number}.2/32 dev cni0 scope host"));
        // A socket would accept what a filter drops, as long as no route changes.
        fs::write("/proc/sys/net/ipv4/udp_early_demux", "0").unwrap();
        // Connections are tracked from the first packet on.
        run("nft add table ip tracking");
        run("nft add chain ip tracking none { type nat hook postrouting priority 200 ; }");
        run("nft add rule ip tracking none ct state established accept");
        let mut kernel = NetlinkKernel::open().unwrap();
        let model = ModelKernel::new(kernel.facts(None).await.unwrap());
        let pod = address(&format!("10.244.{number}.2"));
        let socket = UdpSocket::bind((pod, PORT)).unwrap();
        let address = address(&format!("172.16.0.{number}"));
        Self { number, namespace, address, pod, kernel, model, socket }
    }

    fn subnet(&self) -> String {
        format!("10.244.{}.0/24", self.number)
    }

    fn enter(&self) {
        setns(&self.namespace, CloneFlags::CLONE_NEWNET).unwrap();
    }

    /// Takes the next random state, as its model does.
    async fn take(&mut self, dice: &mut StdRng, seed: u64) {
        self.enter();
        let wanted = self.state(dice);
        let scope = Scope { subnets: vec![prefix(&self.subnet())], ..scope() };
        let actual = self.model.dump(&scope, &wanted).await.unwrap();
        let ops = diff(&wanted, &actual, &scope);
        let real = refused(&mut self.kernel, &ops).await;
        assert_eq!(real, refused(&mut self.model, &ops).await, "seed {seed}");
        let [real, modelled] = [
            self.kernel.dump(&scope, &wanted).await.unwrap(),
            self.model.dump(&scope, &wanted).await.unwrap(),
        ];
        assert_eq!(texts(&real), texts(&modelled), "seed {seed}");
    }

    /// Mostly what a daemon wants, with gaps and mistakes.
    fn state(&self, dice: &mut StdRng) -> KernelState {
        let mut is_there = || dice.random_range(0..8) > 0;
        let (own, peer) = (self.number, 3 - self.number);
        let base = format!("10.244.{own}.0/32");
        let LinkKind::Vxlan(vxlan) = tunnel().kind else { unreachable!() };
        let vxlan = Box::new(Vxlan { local: Some(self.address), ..*vxlan });
        let link =
            Link { kind: LinkKind::Vxlan(vxlan), mac: mac(own).parse().unwrap(), ..tunnel() };
        let tunnel: Vec<Entry> = device(link, &base).into_iter().filter(|_| is_there()).collect();
        let has_tunnel = tunnel.iter().any(|entry| matches!(entry, Entry::Link(_)));
        let mut state: KernelState = tunnel.into_iter().filter(|_| has_tunnel).collect();
        state.extend(guard(peer).into_iter().filter(|_| is_there()));
        state.extend(self.rules(dice));
        state.extend(way_to(peer, has_tunnel, dice));
        for link in ["eth0", "flannel.1"].map(name) {
            let kind = SettingKind::ReversePath;
            let filter = if dice.random() { kind.on(&link) } else { kind.off(&link) };
            state.extend((has_tunnel || link == name("eth0")).then_some(Entry::Setting(filter)));
        }
        let spare = Address { link: name("lo"), address: prefix(&base).base(), prefix_len: 32 };
        state.extend(dice.random::<bool>().then_some(Entry::Address(spare)));
        state
    }

    /// The rules that translate sources, or some of them.
    fn rules(&self, dice: &mut StdRng) -> Option<Entry> {
        let policy = Policy { masquerade: Some(Masquerade::default()), ..Policy::default() };
        let rules = rules_of(&self.subnet(), &policy, &Firewalls::default(), r#","Mixed":true"#);
        let tables = rules.into_iter().map(Arc::unwrap_or_clone);
        let mut table = tables.into_iter().find_map(|entry| match entry {
            Entry::Table(table) if table.name.family == Family::V4 => Some(table),
            _ => None,
        })?;
        table.chains.retain(|hook, _| *hook != Hook::EarlySourceNat || dice.random());
        (dice.random_range(0..4) > 0).then_some(Entry::Table(table))
    }

    /// Sends a packet to the pod of another host; returns whether it arrives.
    fn sends(&self, to: &Self, is_predicted: bool) -> bool {
        let token = rand::random();
        let _ = self.socket.send_to(&u64::to_le_bytes(token), (to.pod, PORT));
        receive(&to.socket, token, is_predicted).is_some()
    }

    /// Opens a connection of this host itself.
    fn connect(&self, from: usize, to: &Self, predicted: Connection) -> io::Result<Conversation> {
        self.enter();
        // The kernel would remember an earlier connection by the same port, and how it was
        // translated.
        let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
        socket.connect((to.pod, PORT))?;
        Ok(Conversation { from, connection: predicted, socket })
    }
}

impl Conversation {
    /// Sends a request and its answer; returns whether both arrive.
    fn exchange(&self, to: &Side, is_predicted: bool) -> bool {
        let token: u64 = rand::random();
        let _ = self.socket.send(&token.to_le_bytes());
        receive(&to.socket, token, is_predicted).is_some_and(|source| {
            let _ = to.socket.send_to(&token.to_le_bytes(), source);
            receive(&self.socket, token, is_predicted).is_some()
        })
    }
}

/// From whom the packet comes; none if it does not.
fn receive(socket: &UdpSocket, token: u64, is_predicted: bool) -> Option<SocketAddr> {
    socket.set_read_timeout(Some(if is_predicted { LATE } else { SOON })).unwrap();
    let mut bytes = [0; 8];
    loop {
        match socket.recv_from(&mut bytes) {
            Ok((_, source)) if bytes == token.to_le_bytes() => return Some(source),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            // A packet or an error of an earlier attempt.
            Ok(_) | Err(_) => {}
        }
    }
}

/// The entries that let only the peer into the tunnel.
fn guard(peer: u8) -> Vec<Entry> {
    let tables = tables().into_iter().filter(|table| table.name.family == Family::V4);
    let of_table = |table| {
        let renewal = allow_list::renewal(&table).map(Entry::Renewal);
        iter::once(Entry::Table(table)).chain(renewal)
    };
    tables.flat_map(of_table).chain([element(address(&format!("172.16.0.{peer}")))]).collect()
}

/// The entries that lead to the pods of the peer, or to nowhere.
fn way_to(peer: u8, has_tunnel: bool, dice: &mut StdRng) -> Vec<Entry> {
    let (subnet, public_ip) = (format!("10.244.{peer}.0/24"), format!("172.16.0.{peer}"));
    let nowhere = "172.16.0.77";
    let mut choose = |right: &str, wrong: &str| match dice.random_range(0..8) {
        0 => wrong.to_owned(),
        _ => right.to_owned(),
    };
    let far = choose(&public_ip, nowhere);
    let [fdb, neighbour] = [(); 2].map(|()| choose(&mac(peer), &mac(99)));
    let (link, base) = (name("flannel.1"), prefix(&subnet).base());
    let (mac, destination) = (fdb.parse().unwrap(), address(&far));
    let fdb = Fdb { link: link.clone(), mac, destination };
    let mac = neighbour.parse().unwrap();
    let neighbour = Neighbour { link: link.clone(), address: base, mac, permanent: true };
    let mut entries = vec![Entry::Fdb(fdb), Entry::Neighbour(neighbour)];
    entries.retain(|_| has_tunnel && dice.random_range(0..8) > 0);
    let onlink = |to: &str| Route::via(prefix(to), base, link.clone()).onlink();
    let direct_by = |gateway| match direct(&subnet, gateway) {
        Entry::Route(route) => route,
        _ => unreachable!(),
    };
    let route = match dice.random_range(0..8) {
        0 => None,
        1 => Some(direct_by(nowhere)),
        2..5 if has_tunnel => Some(onlink(&subnet)),
        _ => Some(direct_by(&public_ip)),
    };
    entries.extend(route.into_iter().flat_map(|route| {
        if dice.random() { by_nexthop(route) } else { vec![Entry::Route(route)] }
    }));
    // For probes, next to a direct route.
    let to_base = Entry::Route(onlink(&format!("10.244.{peer}.0/32")));
    entries.extend((has_tunnel && dice.random()).then_some(to_base));
    entries
}
