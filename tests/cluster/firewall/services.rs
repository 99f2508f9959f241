//! Four nodes with tweedd and tweed-proxy, and no other proxy: every way from a client to an endpoint.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tweed_lab::{ApiServer, Family, Namespace, Node, Pod, Process, eventually, is_silence};

use crate::fixture::cluster::{PATIENCE, Stack, program};
use crate::fixture::scene::{BY_NFTABLES, Scene, network};
use crate::fixture::table::{HOST_GW, Side, VXLAN};

/// The port of all services, and that of all endpoints.
const PORT: u16 = 80;
const TARGET: u16 = 7000;

/// A way: the client, how it reaches the service, the endpoint, and the source that this sees.
type Way = (&'static str, Reach, &'static str, &'static str);

#[derive(Clone, Copy, Debug)]
enum Reach {
    ClusterIp,
    /// By a port of node 1.
    NodePort,
}

/// All endpoints; the number of each is in the addresses of its service.
const ENDPOINTS: [&str; 5] = ["pod 1", "pod 1b", "pod 2", "node 1", "node 2"];

const WAYS: [Way; 11] = [
    ("pod 1", Reach::ClusterIp, "pod 1", "bridge 1"),
    ("pod 1", Reach::ClusterIp, "pod 1b", "pod 1"),
    ("pod 1", Reach::ClusterIp, "pod 2", "pod 1"),
    ("pod 1", Reach::ClusterIp, "node 1", "pod 1"),
    ("pod 1", Reach::ClusterIp, "node 2", "node 1"),
    ("node 1", Reach::ClusterIp, "pod 1", "any"),
    ("node 1", Reach::ClusterIp, "pod 2", "any"),
    ("node 1", Reach::ClusterIp, "node 1", "any"),
    ("node 1", Reach::ClusterIp, "node 2", "any"),
    ("world", Reach::NodePort, "pod 1", "any"),
    ("world", Reach::NodePort, "pod 2", "any"),
];

#[derive(Clone, Copy, Debug)]
enum Transport {
    Tcp,
    Udp,
}

#[derive(Clone, Copy)]
enum Host<'a> {
    Pod(&'a Pod),
    Node(&'a Node),
}

impl<'a> Host<'a> {
    fn namespace(self) -> &'a Namespace {
        match self {
            Self::Pod(pod) => pod.namespace(),
            Self::Node(node) => node.namespace(),
        }
    }

    fn address(self, family: Family) -> Result<IpAddr> {
        match self {
            Self::Pod(pod) => pod.address(family),
            Self::Node(node) => node.address(family),
        }
    }
}

/// The scene, a second pod on node 1, and a proxy on each node.
struct Services {
    scene: Scene,
    second: Pod,
    server: ApiServer,
    proxies: Vec<Process>,
}

impl Services {
    fn start(side: Side) -> Result<Self> {
        let scene = Scene::of(4, Stack::Dual, side, BY_NFTABLES)?;
        let second = scene.node().pod()?;
        let server = scene.cluster.lab.api_server()?;
        let mut services = Self { scene, second, server, proxies: Vec::new() };
        services.add_objects()?;
        services.start_proxies()?;
        Ok(services)
    }

    fn add_objects(&self) -> Result<()> {
        for node in &self.scene.cluster.nodes {
            let internal =
                |address: IpAddr| json!({ "type": "InternalIP", "address": address.to_string() });
            let addresses =
                [internal(node.address(Family::V4)?), internal(node.address(Family::V6)?)];
            self.server.add_node(node.name(), &[]);
            let status = json!({ "status": { "addresses": addresses } });
            self.server.patch_node(node.name(), &status);
        }
        for (number, name) in (1..).zip(ENDPOINTS) {
            let object = format!("s{number}");
            let ports = ["TCP", "UDP"].map(|protocol| {
                json!({
                    "name": protocol.to_lowercase(), "protocol": protocol,
                    "port": PORT, "nodePort": node_port(number),
                })
            });
            let ips = [Family::V4, Family::V6].map(|family| cluster_ip(number, family).to_string());
            let spec = json!({ "type": "NodePort", "clusterIPs": ips, "ports": ports });
            self.server.add(
                "/api/v1/namespaces/default/services",
                &object,
                &json!({ "spec": spec }),
            );
            for family in [Family::V4, Family::V6] {
                self.add_slice(&object, name, family)?;
            }
        }
        Ok(())
    }

    fn add_slice(&self, service: &str, endpoint: &str, family: Family) -> Result<()> {
        let ports = ["TCP", "UDP"].map(|protocol| {
            json!({ "name": protocol.to_lowercase(), "protocol": protocol, "port": TARGET })
        });
        let node = if endpoint.contains('1') { "n1" } else { "n2" };
        let address = self.address(endpoint, family)?.to_string();
        let kind = match family {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        let slice: Value = json!({
            "metadata": { "labels": { "kubernetes.io/service-name": service } },
            "addressType": kind,
            "ports": ports,
            "endpoints": [{ "addresses": [address], "nodeName": node }],
        });
        let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        self.server.add(slices, &format!("{service}-{}", kind.to_lowercase()), &slice);
        Ok(())
    }

    fn start_proxies(&mut self) -> Result<()> {
        let program = program("tweed-proxy")?;
        let networks = format!("{},{}", network(Family::V4), network(Family::V6));
        let url = self.server.url();
        for node in &self.scene.cluster.nodes {
            node.route_to_services(Family::V4)?;
            node.route_to_services(Family::V6)?;
            let words = ["run", "--hostname-override", node.name(), "--kube-api-url", &url];
            let words = [&words[..], &["--cluster-cidr", &networks]].concat();
            let log = format!("proxy-{}", node.name());
            self.proxies.push(self.scene.cluster.lab.start_on(node, &log, &program, &words)?);
        }
        for proxy in &self.proxies {
            let is_ready = || {
                let log = proxy.log()?;
                ensure!(log.contains("all services are programmed"), log);
                Ok(())
            };
            eventually(PATIENCE, is_ready)?;
        }
        Ok(())
    }

    fn host(&self, name: &str) -> Result<Host<'_>> {
        let Scene { cluster, pods, world, .. } = &self.scene;
        Ok(match name {
            "pod 1" => Host::Pod(&pods[0]),
            "pod 1b" => Host::Pod(&self.second),
            "pod 2" => Host::Pod(&pods[1]),
            "node 1" => Host::Node(&cluster.nodes[0]),
            "node 2" => Host::Node(&cluster.nodes[1]),
            "world" => Host::Node(world),
            other => bail!("no host is named {other}"),
        })
    }

    fn address(&self, name: &str, family: Family) -> Result<IpAddr> {
        if name != "bridge 1" {
            return self.host(name)?.address(family);
        }
        let mut gateways = self.scene.node().subnet_env()?.gateways.into_iter();
        let gateway = gateways.find(|gateway| Family::of(gateway.ip()) == family);
        Ok(gateway.context("no gateway")?.ip())
    }

    fn check(&self, way: Way, transport: Transport, family: Family) -> Result<()> {
        let (client, reach, endpoint, source) = way;
        let number = (1..).zip(ENDPOINTS).find(|(_, name)| *name == endpoint);
        let number = number.context("no such endpoint")?.0;
        let target = match reach {
            Reach::ClusterIp => SocketAddr::new(cluster_ip(number, family), PORT),
            Reach::NodePort => SocketAddr::new(self.address("node 1", family)?, node_port(number)),
        };
        let at = SocketAddr::new(self.address(endpoint, family)?, TARGET);
        let (from, to) = (self.host(client)?, self.host(endpoint)?);
        let seen = match transport {
            Transport::Tcp => by_tcp(from.namespace(), target, (to.namespace(), at))?,
            Transport::Udp => by_udp(from.namespace(), target, (to.namespace(), at))?,
        };
        if source != "any" {
            let wanted = self.address(source, family)?;
            ensure!(seen == wanted, "it sees {seen}, not {wanted}");
        }
        Ok(())
    }

    fn check_all(&self) -> Result<()> {
        for way in WAYS {
            for transport in [Transport::Tcp, Transport::Udp] {
                for family in [Family::V4, Family::V6] {
                    let checked = self.check(way, transport, family);
                    checked.with_context(|| format!("{way:?} {transport:?} {family:?}"))?;
                }
            }
        }
        Ok(())
    }
}

/// Of service number `number`.
fn cluster_ip(number: u16, family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, 96, 0, 10 + number.to_be_bytes()[1]]),
        Family::V6 => IpAddr::from([0xfd96, 0, 0, 0, 0, 0, 0, 0x10 + number]),
    }
}

fn node_port(number: u16) -> u16 {
    30_000 + number
}

/// The source that the endpoint sees, after a byte in both directions.
fn by_tcp(from: &Namespace, target: SocketAddr, to: (&Namespace, SocketAddr)) -> Result<IpAddr> {
    let listener = to.0.within(|| TcpListener::bind(to.1))??;
    let mut client = from.within(|| TcpStream::connect_timeout(&target, PATIENCE))??;
    let (mut server, source) = accept(&listener)?;
    let mut byte = [0];
    for (sender, receiver) in [(&client, &server), (&server, &client)] {
        receiver.set_read_timeout(Some(PATIENCE))?;
        sender.set_write_timeout(Some(PATIENCE))?;
    }
    client.write_all(&[1])?;
    server.read_exact(&mut byte)?;
    server.write_all(&byte)?;
    client.read_exact(&mut byte)?;
    Ok(source.ip())
}

/// The connection that has been made; an error if it went elsewhere.
fn accept(listener: &TcpListener) -> Result<(TcpStream, SocketAddr)> {
    listener.set_nonblocking(true)?;
    let mut accepted = None;
    eventually(PATIENCE, || {
        accepted = Some(listener.accept()?);
        Ok::<_, anyhow::Error>(())
    })?;
    let (stream, source) = accepted.context("no connection")?;
    stream.set_nonblocking(false)?;
    Ok((stream, source))
}

/// Likewise; the answer comes from the address that the client has sent to.
fn by_udp(from: &Namespace, target: SocketAddr, to: (&Namespace, SocketAddr)) -> Result<IpAddr> {
    let server = to.0.within(|| UdpSocket::bind(to.1))??;
    let any = match target {
        SocketAddr::V4(_) => "0.0.0.0:0",
        SocketAddr::V6(_) => "[::]:0",
    };
    let client = from.within(|| UdpSocket::bind(any))??;
    client.connect(target)?;
    client.set_read_timeout(Some(PATIENCE / 100))?;
    server.set_read_timeout(Some(PATIENCE / 100))?;
    let (started, mut byte) = (Instant::now(), [0]);
    while started.elapsed() < PATIENCE {
        client.send(&[1])?;
        match server.recv_from(&mut byte) {
            Ok((_, source)) => {
                server.send_to(&byte, source)?;
                match client.recv(&mut byte) {
                    Ok(_) => return Ok(source.ip()),
                    Err(error) if is_silence(&error) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) if is_silence(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("no answer arrives")
}

#[test]
fn every_way_to_a_service_works_over_vxlan() {
    Services::start(VXLAN).unwrap().check_all().unwrap();
}

#[test]
fn every_way_to_a_service_works_over_host_gw() {
    let services = Services::start(HOST_GW).unwrap();
    services.check_all().unwrap();
    // Another port of a cluster IP is refused at once.
    let target = SocketAddr::new(cluster_ip(1, Family::V4), PORT + 1);
    let pod = services.scene.pods[0].namespace();
    let refused = pod.within(|| TcpStream::connect_timeout(&target, PATIENCE)).unwrap();
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}
