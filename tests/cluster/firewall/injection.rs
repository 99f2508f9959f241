//! Every form of a forged tunnel packet, with every config: none is delivered.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, socket,
};
use tweed_lab::{Family, Namespace, Node, Path, Pod, eventually, listen};

use crate::firewall::forged::{Datagram, INNER_PORT, PORT, Shape, mac, tunnelled};
use crate::fixture::cluster::{Cluster, ClusterPlan, PATIENCE, Stack};

/// An address of the node that is on none of the other nodes' links.
const SECOND: [&str; 2] = ["192.0.2.77", "2001:db8:77::77"];
/// Packets with a number from here on are not forged.
const FIRST_PLAIN: u16 = 0xf000;

/// The config of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Config {
    Vxlan,
    DirectRouting,
    Mixed,
    HostGw,
}

/// The reverse-path filters of all links of all nodes, as `rp_filter` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filters {
    None = 0,
    Loose = 2,
    Strict = 1,
}

/// The destination: an address of the attacked node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    PublicIp,
    Gateway,
    Device,
    Second,
}

/// The claimed source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Own,
    Peer,
    PodOfPeer,
}

/// The destination of the inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inner {
    ToPod,
    ToNode,
}

/// The real sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    OwnPod,
    OtherPod,
    UnknownHost,
}

#[derive(Clone, Copy, Debug)]
struct Form {
    origin: Origin,
    target: Target,
    source: Source,
    inner: Inner,
    shape: Shape,
}

/// All of them: 72, each in three shapes.
fn forms() -> Vec<Form> {
    let mut forms = Vec::new();
    for origin in [Origin::OwnPod, Origin::OtherPod, Origin::UnknownHost] {
        for target in [Target::PublicIp, Target::Gateway, Target::Device, Target::Second] {
            for source in [Source::Own, Source::Peer, Source::PodOfPeer] {
                for inner in [Inner::ToPod, Inner::ToNode] {
                    for shape in [Shape::Whole, Shape::Fragments, Shape::Options] {
                        forms.push(Form { origin, target, source, inner, shape });
                    }
                }
            }
        }
    }
    forms
}

impl Form {
    /// A host on the nodes' segment can send exactly what a peer sends. Only encryption, or the
    /// network itself, could distinguish the two.
    fn is_indistinguishable(self) -> bool {
        let Self { origin, target, source, .. } = self;
        (origin, target, source) == (Origin::UnknownHost, Target::PublicIp, Source::Peer)
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, target, source, inner, shape } = self;
        write!(f, "from {origin:?} to {target:?} as {source:?}, inside {inner:?}, {shape:?}")
    }
}

impl Config {
    fn text(self) -> String {
        Stack::Dual.config(match self {
            Self::Vxlan => r#""Backend":{"Type":"vxlan"}"#,
            Self::DirectRouting => r#""Backend":{"Type":"vxlan","DirectRouting":true}"#,
            Self::Mixed => r#""Mixed":true,"Backend":{"Type":"host-gw"}"#,
            Self::HostGw => r#""Backend":{"Type":"host-gw"}"#,
        })
    }

    const fn path(self) -> Path {
        match self {
            Self::Vxlan => Path::Tunnel,
            Self::DirectRouting | Self::Mixed | Self::HostGw => Path::Direct,
        }
    }

    /// Whether a tunnelled packet of a peer is delivered.
    fn takes_tunnelled(self, family: Family, filters: Filters) -> bool {
        match self {
            Self::Vxlan | Self::Mixed => true,
            // The answer would leave by another link.
            Self::DirectRouting => family == Family::V6 || filters != Filters::Strict,
            Self::HostGw => false,
        }
    }
}

/// The attacked node, the attacking nodes, and a peer whose address they use.
struct Attack {
    config: Config,
    cluster: Cluster,
    unknown_host_node: Node,
    /// Of the attacked node: a target and an attacker; of the second, and of the third node,
    /// the peer.
    pods: [Pod; 4],
}

/// The addresses of one family.
struct Addresses {
    public_ip: IpAddr,
    gateway: IpAddr,
    device: IpAddr,
    second: IpAddr,
    pod: IpAddr,
    own_pod: IpAddr,
    other_pod: IpAddr,
    unknown_host: IpAddr,
    peer: IpAddr,
    pod_of_peer: IpAddr,
    /// MAC address of the tunnel device; arbitrary if there is none.
    mac: [u8; 6],
}

/// One family of an [`Attack`].
struct FamilyAttack<'a> {
    attack: &'a Attack,
    addresses: Addresses,
    /// The sockets that receive in the pod and on the node.
    sockets: [UdpSocket; 2],
    received: BTreeSet<u16>,
    plain: u16,
}

impl Attack {
    fn start(config: Config) -> Result<Self> {
        let plan = ClusterPlan::new(3, &config.text()).stack(Stack::Dual).flags(&["--ip-masq"]);
        let cluster = plan.start()?;
        cluster.wait_for_paths(|_, _| config.path())?;
        let nodes = &cluster.nodes;
        let pods = [nodes[0].pod()?, nodes[0].pod()?, nodes[1].pod()?, nodes[2].pod()?];
        let unknown_host_node = cluster.lab.node("outsider", &cluster.segment)?;
        let attack = Self { config, cluster, unknown_host_node, pods };
        for (family, second) in [Family::V4, Family::V6].into_iter().zip(SECOND) {
            nodes_know(&attack, family, second)?;
        }
        Ok(attack)
    }

    fn attacked(&self) -> &Node {
        &self.cluster.nodes[0]
    }

    fn addresses(&self, family: Family) -> Result<Addresses> {
        let (node, nodes) = (self.attacked(), &self.cluster.nodes);
        let gateways = node.subnet_env()?.gateways.into_iter().map(|gateway| gateway.ip());
        let mut gateways = gateways.filter(|gateway| Family::of(*gateway) == family);
        let (device, second) = match family {
            Family::V4 => ("flannel.1", SECOND[0]),
            Family::V6 => ("flannel-v6.1", SECOND[1]),
        };
        let [pod, own_pod, other_pod, pod_of_peer] = &self.pods;
        Ok(Addresses {
            public_ip: node.address(family)?,
            gateway: gateways.next().context("no gateway")?,
            device: self.cluster.subnet(0, family)?.network(),
            second: second.parse()?,
            pod: pod.address(family)?,
            own_pod: own_pod.address(family)?,
            other_pod: other_pod.address(family)?,
            unknown_host: self.unknown_host_node.address(family)?,
            peer: nodes[2].address(family)?,
            pod_of_peer: pod_of_peer.address(family)?,
            mac: match self.config {
                Config::HostGw => [2, 0, 0, 0, 0, 1],
                Config::Vxlan | Config::DirectRouting | Config::Mixed => mac(node, device)?,
            },
        })
    }

    fn origin(&self, origin: Origin) -> &Namespace {
        match origin {
            Origin::OwnPod => self.pods[1].namespace(),
            Origin::OtherPod => self.pods[2].namespace(),
            Origin::UnknownHost => self.unknown_host_node.namespace(),
        }
    }

    fn set_filters(&self, filters: Filters) -> Result<()> {
        for node in &self.cluster.nodes {
            let value = (filters as u8).to_string();
            node.namespace().set_sysctl("net.ipv4.conf.all.rp_filter", &value)?;
        }
        let loosened = |node: &Node, link: &str| {
            let name = format!("net/ipv4/conf/{link}/rp_filter");
            Ok::<_, anyhow::Error>(node.namespace().sysctl(&name)? == "2")
        };
        if self.config == Config::Mixed && filters == Filters::Strict {
            for (node, link) in
                self.cluster.nodes.iter().flat_map(|n| [(n, "eth0"), (n, "flannel.1")])
            {
                eventually(PATIENCE, || loosened(node, link))?;
            }
        }
        Ok(())
    }

    /// Forged packets that were delivered, and others that were not.
    fn unexpected(&self, filters: Filters) -> Result<Vec<String>> {
        self.set_filters(filters)?;
        let mut unexpected = Vec::new();
        for family in [Family::V4, Family::V6] {
            let mut family_attack = FamilyAttack::open(self, family)?;
            for (form, what) in family_attack.unexpected(filters)? {
                unexpected.push(format!("{family}, {filters:?} filters, {form}: {what}"));
            }
        }
        Ok(unexpected)
    }
}

/// Adds routes so that every sender reaches all targets.
fn nodes_know(attack: &Attack, family: Family, second: &str) -> Result<()> {
    let attacked = attack.attacked();
    let (flag, by) = (family.flag(), attacked.address(family)?);
    attacked.ip(format!("address add {second} dev lo"))?;
    let others = attack.cluster.nodes.iter().skip(1).chain([&attack.unknown_host_node]);
    for node in others {
        node.ip(format!("{flag} route add {second} via {by}"))?;
    }
    let subnet = attack.cluster.subnet(0, family)?;
    let subnet = format!("{}/{}", subnet.network(), subnet.prefix());
    attack.unknown_host_node.ip(format!("{flag} route add {subnet} via {by}")).map(drop)
}

impl<'a> FamilyAttack<'a> {
    fn open(attack: &'a Attack, family: Family) -> Result<Self> {
        let addresses = attack.addresses(family)?;
        let receiver = |place: &Namespace, address: IpAddr| -> Result<UdpSocket> {
            let socket = place.within(|| listen(SocketAddr::new(address, INNER_PORT)))??;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let sockets = [
            receiver(attack.pods[0].namespace(), addresses.pod)?,
            receiver(attack.attacked().namespace(), addresses.gateway)?,
        ];
        Ok(Self { attack, addresses, sockets, received: BTreeSet::new(), plain: FIRST_PLAIN })
    }

    fn unexpected(&mut self, filters: Filters) -> Result<Vec<(Form, &'static str)>> {
        let forms = forms();
        let family = Family::of(self.addresses.pod);
        let passes = self.attack.config.takes_tunnelled(family, filters);
        let awaited = |form: &Form| passes && form.is_indistinguishable();
        let raw_sockets = [Origin::OwnPod, Origin::OtherPod, Origin::UnknownHost]
            .map(|origin| Ok::<_, anyhow::Error>((origin, self.raw_socket(origin)?)));
        let raw_sockets = raw_sockets.into_iter().collect::<Result<Vec<_>>>()?;
        // Neighbours are resolved before packets are counted.
        self.receive_all()?;
        let numbered = || forms.iter().zip(0..);
        for (form, number) in numbered() {
            let (_, raw_socket) =
                raw_sockets.iter().find(|(it, _)| *it == form.origin).context("no mouth")?;
            self.send(*form, number, raw_socket)?;
        }
        self.receive_all()?;
        let lost = |received: &BTreeSet<u16>, (form, number): &(&Form, u16)| {
            awaited(form) && !received.contains(number)
        };
        // Only what may be delivered is sent again.
        let again = eventually(PATIENCE, || {
            for (form, number) in numbered().filter(|it| lost(&self.received, it)) {
                let raw_socket =
                    raw_sockets.iter().find(|(it, _)| *it == form.origin).context("no mouth")?;
                self.send(*form, number, &raw_socket.1)?;
            }
            self.receive()?;
            ensure!(!numbered().any(|it| lost(&self.received, &it)), "some are lost");
            Ok::<_, anyhow::Error>(())
        });
        drop(again);
        let what =
            |(form, number): (&Form, u16)| match (awaited(form), self.received.contains(&number)) {
                (false, true) => Some((*form, "it arrives")),
                (true, false) => Some((*form, "it does not arrive")),
                _ => None,
            };
        Ok(numbered().filter_map(what).collect())
    }

    /// Waits until all earlier packets are delivered or lost: on each path, a packet that is not
    /// forged is delivered after them.
    fn receive_all(&mut self) -> Result<()> {
        let ends = [self.addresses.pod, self.addresses.gateway];
        for origin in [Origin::OwnPod, Origin::OtherPod, Origin::UnknownHost] {
            for end in ends {
                self.plain += 1;
                let (target, number) = (SocketAddr::new(end, INNER_PORT), self.plain);
                let any = if end.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let raw_socket = self.attack.origin(origin).within(|| UdpSocket::bind(any))??;
                eventually(PATIENCE, || {
                    raw_socket.send_to(&number.to_be_bytes(), target)?;
                    self.receive()?;
                    ensure!(self.received.contains(&number), "nothing comes from {origin:?}");
                    Ok::<_, anyhow::Error>(())
                })?;
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        for socket in &self.sockets {
            let mut number = [0; 2];
            loop {
                match socket.recv(&mut number) {
                    Ok(_) => self.received.insert(u16::from_be_bytes(number)),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                };
            }
        }
        Ok(())
    }

    /// A raw socket, which sends packets with the given headers.
    fn raw_socket(&self, origin: Origin) -> Result<OwnedFd> {
        let family = match self.addresses.pod {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        let open = || socket(family, SockType::Raw, SockFlag::empty(), SockProtocol::Raw);
        Ok(self.attack.origin(origin).within(open)??)
    }

    fn send(&self, form: Form, number: u16, raw_socket: &OwnedFd) -> Result<()> {
        let all = &self.addresses;
        let destination = match form.target {
            Target::PublicIp => all.public_ip,
            Target::Gateway => all.gateway,
            Target::Device => all.device,
            Target::Second => all.second,
        };
        let source = match (form.source, form.origin) {
            (Source::Own, Origin::OwnPod) => all.own_pod,
            (Source::Own, Origin::OtherPod) => all.other_pod,
            (Source::Own, Origin::UnknownHost) => all.unknown_host,
            (Source::Peer, _) => all.peer,
            (Source::PodOfPeer, _) => all.pod_of_peer,
        };
        let inner = match form.inner {
            Inner::ToPod => all.pod,
            Inner::ToNode => all.gateway,
        };
        let payload = tunnelled(all.mac, (all.pod_of_peer, inner), &number.to_be_bytes());
        let ends = (source, destination);
        let datagram = Datagram { ends, port: PORT, number: number + 1, payload: &payload };
        let to = SockaddrStorage::from(SocketAddr::new(destination, 0));
        for packet in datagram.packets(form.shape) {
            let sent = sendto(raw_socket.as_raw_fd(), &packet, &to, MsgFlags::empty());
            sent.with_context(|| form.to_string())?;
        }
        Ok(())
    }
}

fn nothing_arrives(config: Config) {
    let attack = Attack::start(config).unwrap();
    for filters in [Filters::None, Filters::Loose, Filters::Strict] {
        let unexpected = attack.unexpected(filters).unwrap();
        assert!(unexpected.is_empty(), "{config:?}:\n{}", unexpected.join("\n"));
    }
}

#[test]
fn forged_packets_arrive_with_vxlan_only_if_identical_to_a_peers() {
    nothing_arrives(Config::Vxlan);
}

#[test]
fn forged_packets_arrive_with_direct_routing_only_if_identical_to_a_peers() {
    nothing_arrives(Config::DirectRouting);
}

#[test]
fn forged_packets_arrive_with_mixed_only_if_identical_to_a_peers() {
    nothing_arrives(Config::Mixed);
}

#[test]
fn no_forged_packet_arrives_with_host_gw() {
    nothing_arrives(Config::HostGw);
}
