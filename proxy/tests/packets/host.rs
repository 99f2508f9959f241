//! A node in a network namespace, and a router that sends packets from any address to it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
#[cfg(feature = "judge")]
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, getsockname, getsockopt,
    socket, sockopt,
};
use tweed_lab::Namespace;
#[cfg(feature = "judge")]
use tweed_netlink::Family;
use tweed_netlink::conntrack::{self, Connection as Tracked};
use tweed_netlink::{Message, Protocol, Socket};

pub(crate) struct Host {
    node: Namespace,
    router: Namespace,
    addresses: BTreeSet<IpAddr>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) source: IpAddr,
    pub(crate) is_udp: bool,
    pub(crate) to: SocketAddr,
}

pub(crate) struct Client {
    socket: UdpSocket,
    source: SocketAddr,
    to: SocketAddr,
}

/// A connection as the kernel tracks it.
#[derive(Debug)]
struct Connection {
    source: SocketAddr,
    destination: SocketAddr,
    replies_from: SocketAddr,
    replies_to: SocketAddr,
}

enum Sent {
    Tcp(OwnedFd),
    Udp(UdpSocket),
}

/// The MAC addresses of both.
const NODE: &str = "02:00:00:00:00:01";
const ROUTER: &str = "02:00:00:00:00:02";

/// How long the kernel may take for what it does at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A packet of which nothing is known after this was dropped.
pub(crate) const ANSWER: Duration = Duration::from_secs(2);

impl Host {
    /// `addresses` are those of the node; packets come from `sources`.
    pub(crate) fn new(
        addresses: &BTreeSet<IpAddr>,
        sources: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let [node, router] = ["node", "router"]
            .map(|name| Namespace::create(&format!("packets-{name}-{number}")).unwrap());
        let host = Self { node, router, addresses: addresses.clone() };
        host.connect_namespaces();
        host.add_addresses(&sources.into_iter().collect());
        // Neither closes a connection that arrives, so that it stays in the table of the node.
        let silent = "add table inet silent; \
             add chain inet silent input { type filter hook input priority 0; }; \
             add rule inet silent input tcp flags & (syn | ack) == syn drop";
        host.router.run("nft", &[silent]).unwrap();
        host.wait_for_link();
        host
    }

    fn connect_namespaces(&self) {
        let Self { node, router, .. } = self;
        let name = node.name();
        router
            .ip_batch(&format!(
                "link add eth0 address {ROUTER} type veth peer name eth0 address {NODE} netns {name}\n\
                 link add sink type veth peer name out netns {name}\n\
                 link set sink up\n\
                 link set eth0 up\n\
                 addr add 198.18.0.2/24 dev eth0\n\
                 addr add fd18::2/64 dev eth0 nodad\n\
                 neigh add 198.18.0.1 lladdr {NODE} dev eth0\n\
                 neigh add fd18::1 lladdr {NODE} dev eth0\n\
                 route add default via 198.18.0.1\n\
                 route add ::/0 via fd18::1\n"
            ))
            .unwrap();
        node.ip_batch(&format!(
            "link set eth0 up\n\
             addr add 198.18.0.1/24 dev eth0\n\
             addr add fd18::1/64 dev eth0 nodad\n\
             neigh add 198.18.0.2 lladdr {ROUTER} dev eth0\n\
             neigh add fd18::2 lladdr {ROUTER} dev eth0\n\
             link set out up\n\
             addr add 198.19.0.1/24 dev out\n\
             addr add fd19::1/64 dev out nodad\n\
             route add default dev out\n\
             route add ::/0 dev out\n"
        ))
        .unwrap();
        // What is refused is answered each time.
        let unlimited = [("ipv4/icmp_ratelimit", "0"), ("ipv6/icmp/ratelimit", "0")];
        let forwarding = [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];
        for (key, value) in unlimited.into_iter().chain(forwarding) {
            node.set_sysctl(&format!("net/{key}"), value).unwrap();
        }
        for device in ["all", "eth0"] {
            node.set_sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "0").unwrap();
        }
    }

    /// Those of the node, and on the router the sources of packets.
    fn add_addresses(&self, sources: &BTreeSet<IpAddr>) {
        let Self { node, router, addresses } = self;
        let add = |address: &IpAddr, device: &str| match address {
            IpAddr::V4(_) => format!("addr add {address}/32 dev {device}\n"),
            IpAddr::V6(_) => format!("addr add {address}/128 dev {device} nodad\n"),
        };
        let mut of_node: String = addresses.iter().map(|address| add(address, "lo")).collect();
        let mut of_router = String::new();
        for source in sources.difference(addresses) {
            let router = if source.is_ipv4() { "198.18.0.2" } else { "fd18::2" };
            of_router += &add(source, "lo");
            let _ = writeln!(of_node, "route add {source} via {router}");
        }
        node.ip_batch(&of_node).unwrap();
        router.ip_batch(&of_router).unwrap();
    }

    /// A link that has just come up may drop packets for a moment.
    fn wait_for_link(&self) {
        let begun = Instant::now();
        for [source, node] in [["198.18.0.2", "198.18.0.1"], ["fd18::2", "fd18::1"]] {
            let [source, node]: [IpAddr; 2] = [source, node].map(|it| it.parse().unwrap());
            let closed = Packet { source, is_udp: true, to: SocketAddr::new(node, 9) };
            let mut sent = Vec::new();
            while !sent.iter().any(Sent::is_refused) {
                assert!(begun.elapsed() < PATIENCE, "the node does not answer at {node}");
                sent.push(self.router.within(|| send(closed)).unwrap().0);
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Lets a program of the node listen, as long as the result is kept.
    pub(crate) fn listen(&self, at: SocketAddr) -> TcpListener {
        self.node.within(|| TcpListener::bind(at).unwrap()).unwrap()
    }

    /// Runs a program on the node; it must succeed.
    pub(crate) fn run(&self, program: &str, words: &[&str], input: &str) {
        let output = self.node.output_for(program, words, input).unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Starts a program on the node, with pipes for its input and output.
    #[cfg(feature = "judge")]
    pub(crate) fn spawn(&self, program: &str, words: &[&str]) -> Child {
        let start = || {
            let mut command = Command::new(program);
            command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().unwrap()
        };
        self.node.within(start).unwrap()
    }

    /// What `nft(8)` lists of a table of the node.
    #[cfg(feature = "judge")]
    pub(crate) fn table(&self, family: &str, name: &str) -> String {
        self.node.run("nft", &["list", "table", family, name]).unwrap()
    }

    /// Deletes all connections that the node tracks.
    #[cfg(feature = "judge")]
    pub(crate) fn forget_connections(&self) {
        let delete = || {
            let mut socket = Socket::open(Protocol::Netfilter).unwrap();
            for family in Family::ALL {
                let all = socket.list(&conntrack::list_all(family), conntrack::read).unwrap();
                // One that has ended meanwhile is no loss.
                let _ = socket.execute(all.iter().map(Tracked::delete).collect());
            }
        };
        self.node.within(delete).unwrap();
    }

    /// Without a rule that needs it, the kernel tracks no connections.
    pub(crate) fn track_connections(&self) {
        let table = "add table inet tracked; \
             add chain inet tracked early { type filter hook prerouting priority 0; }; \
             add rule inet tracked early ct state new";
        self.run("nft", &[table], "");
    }

    /// The connections that the kernel lists.
    pub(crate) fn tracked(&self, question: &Message) -> Vec<Tracked> {
        let list = || {
            let mut socket = Socket::open(Protocol::Netfilter).unwrap();
            socket.list(question, conntrack::read).unwrap()
        };
        self.node.within(list).unwrap()
    }

    /// Where the packet went, in the words of the recording, and whether it was masqueraded.
    #[cfg(feature = "judge")]
    pub(crate) fn fate(&self, packet: Packet) -> (String, bool) {
        self.fate_within(ANSWER, packet)
    }

    /// The same; without a trace for `limit`, it was dropped.
    pub(crate) fn fate_within(&self, limit: Duration, packet: Packet) -> (String, bool) {
        let is_own = self.addresses.contains(&packet.source);
        let from = if is_own { &self.node } else { &self.router };
        let (sent, source) = from.within(|| send(packet)).unwrap();
        let begun = Instant::now();
        loop {
            // Before the look: this process may stand still for a while.
            let is_last = begun.elapsed() >= limit;
            if let Some(found) = self.connection(source, packet.to) {
                let is_same = found.replies_from == packet.to;
                let output = if is_same { String::new() } else { found.replies_from.to_string() };
                return (output, found.replies_to.ip() != source.ip());
            }
            if sent.is_refused() {
                return ("REJECT".to_owned(), false);
            }
            if is_last {
                return ("DROP".to_owned(), false);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A client that sends packets of one connection.
    pub(crate) fn connect(&self, packet: Packet) -> Client {
        let (sent, source) = self.router.within(|| send(packet)).unwrap();
        let Sent::Udp(socket) = sent else { panic!("not a connection of UDP") };
        Client { socket, source, to: packet.to }
    }

    /// Where answers to the next packet of this client come from.
    pub(crate) fn answering(&self, client: &Client) -> SocketAddr {
        let begun = Instant::now();
        loop {
            let _ = client.socket.send(b"packet");
            if let Some(found) = self.connection(client.source, client.to) {
                return found.replies_from;
            }
            assert!(begun.elapsed() < PATIENCE, "packets of {} are lost", client.source);
            thread::yield_now();
        }
    }

    fn connection(&self, source: SocketAddr, destination: SocketAddr) -> Option<Connection> {
        let read = || std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
        let all = self.node.within(read).unwrap();
        all.lines()
            .filter_map(Connection::parse)
            .find(|one| one.source == source && one.destination == destination)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = (self.node.delete(), self.router.delete());
    }
}

impl Connection {
    fn parse(line: &str) -> Option<Self> {
        let values = |key: &str| {
            let prefix = format!("{key}=");
            let words = line
                .split_whitespace()
                .filter_map(move |word| word.strip_prefix(&prefix).map(str::to_owned));
            words.collect::<Vec<_>>()
        };
        let (sources, destinations) = (values("src"), values("dst"));
        let (from, to) = (values("sport"), values("dport"));
        let address = |addresses: &[String], ports: &[String], index: usize| {
            let ip: IpAddr = addresses.get(index)?.parse().ok()?;
            Some(SocketAddr::from((ip, ports.get(index)?.parse().ok()?)))
        };
        Some(Self {
            source: address(&sources, &from, 0)?,
            destination: address(&destinations, &to, 0)?,
            replies_from: address(&sources, &from, 1)?,
            replies_to: address(&destinations, &to, 1)?,
        })
    }
}

/// The socket, and the address that it is bound to.
fn send(packet: Packet) -> (Sent, SocketAddr) {
    let source = SocketAddr::from((packet.source, 0));
    if packet.is_udp {
        let socket = UdpSocket::bind(source).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.connect(packet.to).unwrap();
        // A rule that rejects lets the call fail, too.
        let _ = socket.send(b"packet");
        let source = socket.local_addr().unwrap();
        return (Sent::Udp(socket), source);
    }
    let family = if source.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
    bind(socket.as_raw_fd(), &SockaddrStorage::from(source)).unwrap();
    let _ = connect(socket.as_raw_fd(), &SockaddrStorage::from(packet.to));
    let bound: SockaddrStorage = getsockname(socket.as_raw_fd()).unwrap();
    let v4 = bound.as_sockaddr_in().map(|v4| SocketAddr::from((v4.ip(), v4.port())));
    let v6 = || bound.as_sockaddr_in6().map(|v6| SocketAddr::from((v6.ip(), v6.port())));
    (Sent::Tcp(socket), v4.or_else(v6).unwrap())
}

impl Sent {
    fn is_refused(&self) -> bool {
        match self {
            Self::Tcp(socket) => {
                let error = getsockopt(socket, sockopt::SocketError).unwrap();
                std::io::Error::from_raw_os_error(error).kind() == ErrorKind::ConnectionRefused
            }
            Self::Udp(socket) => {
                let received = socket.recv(&mut [0; 16]);
                received.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            }
        }
    }
}
