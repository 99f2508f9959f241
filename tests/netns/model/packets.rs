//! The walker of the simulation predicts what becomes of packets between two hosts: real packets
//! show whether it is right.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::iter;
use std::net::{IpAddr, SocketAddr, UdpSocket};
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
    Address, Entry, Fdb, Hook, KernelState, Link, LinkKind, LinkName, Neighbour, Route,
    SettingKind, Vxlan,
};
use tweed::model::node::Firewalls;
use tweed::model::policy::{Masquerade, Policy};
use tweed::model::prefix::{Family, Prefix};
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
    address, device, direct, eventually, ip, name, on_a_host, prefix, rules_of, run, scope, shows,
    tunnel, tunnel_v6,
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
            // A connected socket of IPv6 may keep a route that is gone.
            let is_kept = came && conversation.family == Family::V6;
            assert!(came == predicted.is_ok() || is_kept, "{}", message(&what()));
            predicted.is_ok()
        });
        let ways =
            Family::ALL.map(|family| [(family, 0, first, second), (family, 1, second, first)]);
        for (family, start, from, to) in ways.into_iter().flatten() {
            let predicted = segment.pod_to_pod((start, 1 - start), family);
            let came = from.sends(to, family, predicted.is_ok());
            let what = || format!("{family}, pod of {} to the other: {predicted:?}", from.number);
            assert_eq!(came, predicted.is_ok(), "{}", message(&what()));
            let opened = segment.connect(Client::Host, (start, 1 - start), family);
            let predicted = opened.as_ref().map_err(|why| *why).and_then(|it| segment.exchange(it));
            let conversation =
                opened.ok().and_then(|it| from.connect(to, (start, family), it).ok());
            let what = || format!("{family}, host {} to a pod: {predicted:?}", from.number);
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
    kernel: NetlinkKernel,
    model: ModelKernel,
    /// Of its pods, one for each family.
    sockets: [UdpSocket; 2],
}

/// An open connection of a host.
struct Conversation {
    from: usize,
    family: Family,
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
    // New addresses are in use at once, as in the first one.
    fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap();
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

/// The number in the MAC address of a tunnel device.
fn vtep(family: Family, number: u8) -> u8 {
    match family {
        Family::V4 => number,
        Family::V6 => 60 + number,
    }
}

/// The subnet of the pods of a host.
fn subnet(family: Family, number: u8) -> Prefix {
    prefix(&match family {
        Family::V4 => format!("10.244.{number}.0/24"),
        Family::V6 => format!("fd00:10:244:{number}::/64"),
    })
}

fn pod(family: Family, number: u8) -> IpAddr {
    subnet(family, number).nth(2)
}

/// The address of a host on the segment.
fn public_ip(family: Family, number: u8) -> IpAddr {
    address(&match family {
        Family::V4 => format!("172.16.0.{number}"),
        Family::V6 => format!("fd00:16::{number}"),
    })
}

fn shown(state: &KernelState) -> String {
    state.entries().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The kernel delivers packets to an IPv6 address only once it has added the route of that, a moment
/// later.
async fn addresses_have_routes() {
    let missing = || {
        let (routes, shown) =
            (run("ip -6 route show table local"), run("ip -6 -oneline addr show up"));
        let own = shown.lines().filter_map(|it| it.split_whitespace().nth(3)?.split('/').next());
        let missing = own.filter(|it| !routes.contains(&format!("local {it} ")));
        missing.collect::<Vec<_>>().join(" ")
    };
    eventually(async || missing().is_empty(), missing).await;
}

fn segment(sides: &[Side; 2]) -> Segment {
    let host = |side: &Side| Host {
        kernel: side.model.clone(),
        address: side.number,
        is_up: true,
        pods: Pods::new(side.subnets()),
    };
    Segment { hosts: sides.iter().map(host).collect(), ..Segment::default() }
}

impl Side {
    async fn new(number: u8, namespace: File) -> Self {
        setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
        let peer = 3 - number;
        shows("link show eth0", "state UP").await;
        ip(&format!("addr add 172.16.0.{number}/24 dev eth0"));
        ip(&format!("addr add fd00:16::{number}/64 dev eth0 nodad"));
        ip("link add cni0 type bridge");
        ip("link set cni0 up");
        for (family, router) in [(Family::V4, "172.16.0.254"), (Family::V6, "fd00:16::254")] {
            ip(&format!("route add default via {router}"));
            // Packets shall not wait for answers, nor be lost for a wrong question.
            let (peer, mac) = (public_ip(family, peer), mac(10 + peer));
            ip(&format!("neigh replace {peer} lladdr {mac} dev eth0 nud permanent"));
            // A pod; no connection of the host may have its address.
            let (pod, is_no_source) = match family {
                Family::V4 => (pod(family, number), "scope host"),
                Family::V6 => (pod(family, number), "preferred_lft 0 nodad"),
            };
            ip(&format!("addr add {pod} dev cni0 {is_no_source}"));
        }
        // A socket would accept what a filter drops, as long as no route changes.
        fs::write("/proc/sys/net/ipv4/udp_early_demux", "0").unwrap();
        // Connections are tracked from the first packet on.
        run("nft add table inet tracking");
        run("nft add chain inet tracking none { type nat hook postrouting priority 200 ; }");
        run("nft add rule inet tracking none ct state established accept");
        addresses_have_routes().await;
        let mut kernel = NetlinkKernel::open().unwrap();
        let model = ModelKernel::new(kernel.facts(None).await.unwrap());
        let sockets =
            Family::ALL.map(|family| UdpSocket::bind((pod(family, number), PORT)).unwrap());
        Self { number, namespace, kernel, model, sockets }
    }

    fn subnets(&self) -> [Prefix; 2] {
        Family::ALL.map(|family| subnet(family, self.number))
    }

    /// The socket of its pod.
    fn socket(&self, family: Family) -> &UdpSocket {
        let [v4, v6] = &self.sockets;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    fn enter(&self) {
        setns(&self.namespace, CloneFlags::CLONE_NEWNET).unwrap();
    }

    /// Takes the next random state, as its model does.
    async fn take(&mut self, dice: &mut StdRng, seed: u64) {
        self.enter();
        let wanted = self.state(dice);
        let scope = Scope { subnets: self.subnets().to_vec(), ..scope() };
        let actual = self.model.dump(&scope, &wanted).await.unwrap();
        let ops = diff(&wanted, &actual, &scope);
        let refused = [refused(&mut self.kernel, &ops).await, refused(&mut self.model, &ops).await];
        let of_v4 = refused.map(|all| all.into_iter().filter(|op| !op.contains("fd00:")).collect());
        let [real, modelled]: [BTreeSet<String>; 2] = of_v4;
        assert_eq!(real, modelled, "seed {seed}");
        let real = self.kernel.dump(&scope, &wanted).await.unwrap();
        let modelled = self.model.dump(&scope, &wanted).await.unwrap();
        self.take_ways_of_v6(&real, &modelled);
        let modelled = self.model.dump(&scope, &wanted).await.unwrap();
        assert_eq!(texts(&real), texts(&modelled), "seed {seed}");
        addresses_have_routes().await;
    }

    /// Whether the kernel accepts a gateway of IPv6 in the tunnel depends on its routes there, which the
    /// model does not follow: it takes what the kernel holds.
    fn take_ways_of_v6(&self, real: &KernelState, modelled: &KernelState) {
        let is_way = |entry: &&Entry| match entry {
            Entry::Route(route) => route.destination.family() == Family::V6,
            Entry::Nexthop(nexthop) => nexthop.gateway.is_some_and(|it| it.is_ipv6()),
            _ => false,
        };
        for way in modelled.entries().filter(is_way) {
            self.model.lose_silently(&way.key());
        }
        for way in real.entries().filter(is_way) {
            self.model.set_silently(way.clone());
        }
    }

    /// Mostly what a daemon wants, with gaps and mistakes.
    fn state(&self, dice: &mut StdRng) -> KernelState {
        let mut state: KernelState =
            guard(3 - self.number).into_iter().filter(|_| is_there(dice)).collect();
        state.extend(self.rules(dice));
        state.insert(filter(&name("eth0"), dice));
        for family in Family::ALL {
            state.extend(self.state_of(family, dice));
        }
        state
    }

    fn state_of(&self, family: Family, dice: &mut StdRng) -> Vec<Entry> {
        let link = match family {
            Family::V4 => tunnel(),
            Family::V6 => tunnel_v6(),
        };
        let LinkKind::Vxlan(vxlan) = link.kind else { unreachable!() };
        let local = Some(public_ip(family, self.number));
        let kind = LinkKind::Vxlan(Box::new(Vxlan { local, ..*vxlan }));
        let mac = mac(vtep(family, self.number)).parse().unwrap();
        let (link, base) = (Link { kind, mac, ..link }, Prefix::host(self.base(family)));
        let name_of_tunnel = link.name.clone();
        let mut entries = device(link, &base.to_string());
        entries.retain(|_| is_there(dice));
        let has_tunnel = entries.iter().any(|entry| matches!(entry, Entry::Link(_)));
        if has_tunnel {
            entries.push(filter(&name_of_tunnel, dice));
        } else {
            entries.clear();
        }
        entries.extend(way_to((family, 3 - self.number), has_tunnel, dice));
        let (address, prefix_len) = (base.base(), base.prefix_len());
        let spare = Address { link: name("lo"), address, prefix_len };
        entries.extend(dice.random::<bool>().then_some(Entry::Address(spare)));
        entries
    }

    /// The address of its tunnel device.
    fn base(&self, family: Family) -> IpAddr {
        subnet(family, self.number).base()
    }

    /// The rules that translate sources, or some of them.
    fn rules(&self, dice: &mut StdRng) -> Vec<Entry> {
        let policy = Policy { masquerade: Some(Masquerade::default()), ..Policy::default() };
        let own = Family::ALL.map(|it| (subnet(it, self.number), public_ip(it, self.number)));
        let rules = rules_of(own, &policy, &Firewalls::default(), r#","Mixed":true"#);
        let mut entries: Vec<Entry> = rules.into_iter().map(Arc::unwrap_or_clone).collect();
        for entry in &mut entries {
            let Entry::Table(table) = entry else { continue };
            table.chains.retain(|hook, _| *hook != Hook::EarlySourceNat || dice.random());
        }
        entries.retain(|entry| matches!(entry, Entry::Table(_)) && dice.random_range(0..4) > 0);
        entries
    }

    /// Sends a packet to the pod of another host; returns whether it arrives.
    fn sends(&self, to: &Self, family: Family, is_predicted: bool) -> bool {
        let token = rand::random();
        let destination = (pod(family, to.number), PORT);
        let _ = self.socket(family).send_to(&u64::to_le_bytes(token), destination);
        receive(to.socket(family), token, is_predicted).is_some()
    }

    /// Opens a connection of this host itself.
    fn connect(
        &self,
        to: &Self,
        (from, family): (usize, Family),
        predicted: Connection,
    ) -> io::Result<Conversation> {
        self.enter();
        // The kernel would remember an earlier connection by the same port, and how it was
        // translated.
        let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        let socket = UdpSocket::bind((family.unspecified(), port))?;
        socket.connect((pod(family, to.number), PORT))?;
        Ok(Conversation { from, family, connection: predicted, socket })
    }
}

impl Conversation {
    /// Sends a request and its answer; returns whether both arrive.
    fn exchange(&self, to: &Side, is_predicted: bool) -> bool {
        let token: u64 = rand::random();
        let _ = self.socket.send(&token.to_le_bytes());
        let pod = to.socket(self.family);
        receive(pod, token, is_predicted).is_some_and(|source| {
            let _ = pod.send_to(&token.to_le_bytes(), source);
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

/// Mostly.
fn is_there(dice: &mut StdRng) -> bool {
    dice.random_range(0..8) > 0
}

/// A reverse-path filter, strict or not.
fn filter(link: &LinkName, dice: &mut StdRng) -> Entry {
    let kind = SettingKind::ReversePath;
    Entry::Setting(if dice.random() { kind.on(link) } else { kind.off(link) })
}

/// The entries that let only the peer into the tunnels.
fn guard(peer: u8) -> Vec<Entry> {
    let of_table = |table| {
        let renewal = allow_list::renewal(&table).map(Entry::Renewal);
        iter::once(Entry::Table(table)).chain(renewal)
    };
    let elements = Family::ALL.map(|family| element(public_ip(family, peer)));
    tables().into_iter().flat_map(of_table).chain(elements).collect()
}

/// The entries that lead to the pods of the peer, or to nowhere.
fn way_to((family, peer): (Family, u8), has_tunnel: bool, dice: &mut StdRng) -> Vec<Entry> {
    let (subnet, link) = (subnet(family, peer), LinkName::tunnel(family, 1));
    let (right, nowhere) = (public_ip(family, peer), public_ip(family, 77));
    let destination = if is_there(dice) { right } else { nowhere };
    let mut some_mac =
        || mac(if is_there(dice) { vtep(family, peer) } else { 99 }).parse().unwrap();
    let (far, near) = (some_mac(), some_mac());
    let fdb = Fdb { link: link.clone(), mac: far, destination };
    let neighbour =
        Neighbour { link: link.clone(), address: subnet.base(), mac: near, permanent: true };
    let mut entries = vec![Entry::Fdb(fdb), Entry::Neighbour(neighbour)];
    entries.retain(|_| has_tunnel && is_there(dice));
    let onlink = |to| Route::via(to, subnet.base(), link.clone()).onlink();
    let direct_by = |gateway: IpAddr| match direct(&subnet.to_string(), &gateway.to_string()) {
        Entry::Route(route) => route,
        _ => unreachable!(),
    };
    let route = match dice.random_range(0..8) {
        0 => None,
        1 => Some(direct_by(nowhere)),
        2..5 if has_tunnel => Some(onlink(subnet)),
        _ => Some(direct_by(right)),
    };
    entries.extend(route.into_iter().flat_map(|route| {
        if dice.random() { by_nexthop(route) } else { vec![Entry::Route(route)] }
    }));
    // For probes, next to a direct route.
    let to_base = onlink(Prefix::host(subnet.base()));
    let to_base = Entry::Route(Route { gateway: None, onlink: false, ..to_base });
    entries.extend((has_tunnel && dice.random()).then_some(to_base));
    entries
}
