//! A Service: the ways to reach it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::object::{Ingress, ServiceObject, ServicePortSpec};
use crate::state::{Frontend, Transport};

/// Namespace and name of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName(Arc<str>);

#[expect(clippy::struct_excessive_bools, reason = "a Service decides about all of these")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub ports: Vec<ServicePort>,
    addresses: Vec<(Reach, IpAddr)>,
    /// Connections to cluster IPs, and those from outside the cluster, go to endpoints on this node
    /// only.
    is_local_inside: bool,
    is_local_outside: bool,
    /// The networks from which clients reach its load balancer IPs.
    clients: Vec<IpNetwork>,
    /// Whether one of these could not be read.
    has_unknown_clients: bool,
    /// Whether it asks for all connections of a client to go to one endpoint.
    pub has_affinity: bool,
    /// What is not done as the Service asks for it.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Empty if it is the only one.
    pub name: String,
    pub transport: Transport,
    port: u16,
    node_port: Option<u16>,
}

/// By which of a service's addresses clients reach it. If two services have one frontend, the first
/// of these gets it: no service takes another one's cluster IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    #[default]
    ClusterIp,
    LoadBalancerIp,
    ExternalIp,
    NodePort,
}

/// What is asked for: objects without a label that leaves them to another proxy, or to none.
pub const LABELS: &str =
    "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";

/// The policy by which connections stay on the node.
const LOCAL: &str = "Local";

impl ServiceName {
    pub fn of(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
    }
}

impl Service {
    /// None for one that no proxy serves, or another one. What cannot be read is skipped, with a
    /// warning; the rest is served.
    pub fn of(object: &ServiceObject) -> Option<Self> {
        let spec = &object.spec;
        let is_foreign = foreign_labels().any(|label| object.metadata.label(label).is_some());
        let mut service = Self {
            ports: Vec::new(),
            addresses: Vec::new(),
            is_local_inside: spec.internal_traffic_policy == LOCAL,
            is_local_outside: spec.external_traffic_policy == LOCAL,
            clients: Vec::new(),
            has_unknown_clients: false,
            has_affinity: spec.session_affinity == "ClientIP",
            warnings: Vec::new(),
        };
        let first = [spec.cluster_ip.clone()];
        let cluster_ips = spec.cluster_ips.as_deref().unwrap_or(&first);
        let is_headless = cluster_ips.iter().all(|ip| ip.is_empty() || ip == "None");
        if is_foreign || is_headless || spec.r#type == "ExternalName" {
            return None;
        }
        service.add_addresses(Reach::ClusterIp, "clusterIPs", cluster_ips);
        let ingress = object.status.load_balancer.ingress.as_deref().unwrap_or_default();
        let balanced: Vec<String> = ingress.iter().filter(|one| is_ours(one)).map(ip_of).collect();
        // Before external IPs: an address that is both is restricted, too.
        service.add_addresses(Reach::LoadBalancerIp, "status.loadBalancer", &balanced);
        let external = spec.external_ips.as_deref().unwrap_or_default();
        service.add_addresses(Reach::ExternalIp, "externalIPs", external);
        for text in spec.load_balancer_source_ranges.iter().flatten() {
            service.add_client(text);
        }
        for port in spec.ports.iter().flatten() {
            service.add_port(port);
        }
        // There are tens of thousands of services.
        service.ports.shrink_to_fit();
        service.addresses.shrink_to_fit();
        Some(service)
    }

    /// All of its frontends, with the number of the port that each belongs to. `node`: the addresses
    /// for node ports.
    pub fn frontends<'a>(
        &'a self,
        node: &'a [IpAddr],
    ) -> impl Iterator<Item = (Frontend, Reach, usize)> + 'a {
        self.ports.iter().enumerate().flat_map(move |(index, port)| {
            let transport = port.transport;
            let families = self.addresses.iter().filter(|(reach, _)| *reach == Reach::ClusterIp);
            let families: Vec<bool> = families.map(|(_, address)| address.is_ipv4()).collect();
            let by_address = self.addresses.iter().map(move |(reach, address)| {
                (Frontend { address: *address, transport, port: port.port }, *reach, index)
            });
            let by_node = port.node_port.into_iter().flat_map(move |port| {
                node.iter().map(move |address| {
                    (Frontend { address: *address, transport, port }, Reach::NodePort, index)
                })
            });
            // A service serves the families of its cluster IPs.
            by_address
                .chain(by_node)
                .filter(move |(frontend, ..)| families.contains(&frontend.address.is_ipv4()))
        })
    }

    /// Whether it is reached by addresses of nodes.
    pub fn has_node_ports(&self) -> bool {
        self.ports.iter().any(|port| port.node_port.is_some())
    }

    /// Whether connections by these addresses go to endpoints on this node only.
    pub fn is_local(&self, reach: Reach) -> bool {
        if reach == Reach::ClusterIp { self.is_local_inside } else { self.is_local_outside }
    }

    /// The networks from which clients reach `frontend`, if not all do. `node`: the address of this
    /// node.
    pub fn clients(
        &self,
        frontend: &Frontend,
        reach: Reach,
        node: Option<IpAddr>,
    ) -> Option<BTreeSet<IpNetwork>> {
        let is_v4 = |network: &&IpNetwork| network.is_ipv4() == frontend.address.is_ipv4();
        let networks: Vec<IpNetwork> = self.clients.iter().filter(is_v4).copied().collect();
        let is_restricted = !networks.is_empty() || self.has_unknown_clients;
        let admits = |address| networks.iter().any(|network| network.contains(address));
        // A node that has the address itself connects from it.
        let own = node.filter(|node| admits(*node) && !admits(frontend.address));
        let own = own.map(|_| IpNetwork::from(frontend.address));
        // Elements of a set do not overlap.
        let is_apart = |network: &IpNetwork| {
            let includes = |other: &IpNetwork| {
                other.prefix() < network.prefix() && other.contains(network.network())
            };
            !networks.iter().any(includes)
        };
        let networks = networks.iter().copied().filter(is_apart).chain(own).collect();
        (reach == Reach::LoadBalancerIp && is_restricted).then_some(networks)
    }

    fn add_client(&mut self, text: &str) {
        let network = text.trim().parse::<IpNetwork>().ok();
        let network = network.and_then(|it| IpNetwork::new(it.network(), it.prefix()).ok());
        if let Some(network) = network {
            return self.clients.push(network);
        }
        self.has_unknown_clients = true;
        let what = format!("loadBalancerSourceRanges: {text:?} is no network; skipped");
        self.warnings.push(what);
    }

    fn add_addresses(&mut self, reach: Reach, field: &str, texts: &[String]) {
        for text in texts {
            match text.parse::<IpAddr>() {
                Ok(address) if !self.addresses.iter().any(|(_, known)| *known == address) => {
                    self.addresses.push((reach, address));
                }
                Ok(_) => {}
                Err(_) => {
                    self.warnings.push(format!("{field}: {text:?} is no IP address; skipped"));
                }
            }
        }
    }

    fn add_port(&mut self, spec: &ServicePortSpec) {
        let protocol = if spec.protocol.is_empty() { "TCP" } else { &spec.protocol };
        let transport = Transport::parse(protocol);
        let Some(transport) = transport.filter(|_| spec.port > 0) else {
            let ServicePortSpec { name, protocol, port, .. } = spec;
            let what =
                format!("port {name:?}: {protocol:?} {port} is no protocol and port; skipped");
            return self.warnings.push(what);
        };
        self.ports.push(ServicePort {
            name: spec.name.clone(),
            transport,
            port: spec.port,
            node_port: Some(spec.node_port).filter(|port| *port > 0),
        });
    }
}

fn foreign_labels() -> impl Iterator<Item = &'static str> {
    LABELS.split(',').filter_map(|label| label.strip_prefix('!'))
}

/// Whether connections to it come to the nodes: another kind of load balancer translates them itself.
fn is_ours(ingress: &Ingress) -> bool {
    !ingress.ip.is_empty() && ingress.ip_mode.as_deref().is_none_or(|mode| mode == "VIP")
}

fn ip_of(ingress: &Ingress) -> String {
    ingress.ip.clone()
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: &Value, labels: &Value, ingress: &Value) -> Option<Service> {
        let object = json!({
            "metadata": {"namespace": "default", "name": "web", "labels": labels},
            "spec": spec,
            "status": {"loadBalancer": {"ingress": ingress}},
        });
        Service::of(&serde_json::from_value(object).unwrap())
    }

    fn shown(service: &Service) -> Vec<String> {
        let node = ["172.16.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        service.frontends(&node).map(|(frontend, ..)| frontend.to_string()).collect()
    }

    #[test]
    fn a_service_is_reached_by_all_addresses_of_the_families_of_its_cluster_ips() {
        let ports = json!([
            {"name": "http", "port": 80, "nodePort": 30080},
            {"name": "dns", "port": 53, "protocol": "UDP"},
        ]);
        let spec = json!({
            "clusterIPs": ["10.96.0.1"], "externalIPs": ["192.0.2.1", "fd02::1"], "ports": ports,
        });
        let ingress = json!([
            {"ip": "198.51.100.1"},
            {"ip": "198.51.100.2", "ipMode": "VIP"},
            {"ip": "198.51.100.3", "ipMode": "Proxy"},
            {"hostname": "lb.example"},
        ]);
        let service = service(&spec, &json!({}), &ingress).unwrap();
        assert_eq!(
            shown(&service),
            [
                "TCP 10.96.0.1:80",
                "TCP 198.51.100.1:80",
                "TCP 198.51.100.2:80",
                "TCP 192.0.2.1:80",
                "TCP 172.16.0.1:30080",
                "UDP 10.96.0.1:53",
                "UDP 198.51.100.1:53",
                "UDP 198.51.100.2:53",
                "UDP 192.0.2.1:53",
            ]
        );
        assert_eq!(service.warnings, [] as [&str; 0]);
    }

    #[test]
    fn what_no_proxy_or_another_one_serves_is_skipped() {
        let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}]});
        assert!(service(&spec, &json!({}), &json!([])).is_some());
        for label in ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"]
        {
            assert!(service(&spec, &json!({label: ""}), &json!([])).is_none(), "{label}");
        }
        for spec in [
            json!({"clusterIP": "None", "ports": [{"port": 80}]}),
            json!({"clusterIP": "", "ports": [{"port": 80}]}),
            json!({"type": "ExternalName", "clusterIP": "10.96.0.1"}),
        ] {
            assert!(service(&spec, &json!({}), &json!([])).is_none(), "{spec}");
        }
    }

    #[test]
    fn ranges_of_clients_do_not_overlap() {
        let ranges = ["10.1.2.3/16", "10.0.0.0/8", "10.0.0.0/8", "192.0.2.0/24", "fd00::/8"];
        let spec = json!({
            "clusterIP": "10.96.0.1", "ports": [{"port": 80}], "loadBalancerSourceRanges": ranges,
        });
        let service = service(&spec, &json!({}), &json!([{"ip": "198.51.100.1"}])).unwrap();
        let frontend = service.frontends(&[]).last().unwrap().0;
        let shown = |reach, node: &str| {
            let clients = service.clients(&frontend, reach, node.parse().ok())?;
            Some(clients.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let networks = vec!["10.0.0.0/8".to_owned(), "192.0.2.0/24".to_owned()];
        assert_eq!(shown(Reach::LoadBalancerIp, "172.16.0.1"), Some(networks.clone()));
        let with_own = [&networks[..], &["198.51.100.1/32".to_owned()]].concat();
        assert_eq!(shown(Reach::LoadBalancerIp, "10.9.9.9"), Some(with_own));
        assert_eq!(shown(Reach::ExternalIp, "10.9.9.9"), None);
    }

    #[test]
    fn a_load_balancer_ip_is_restricted_even_if_it_is_an_external_ip_too() {
        let spec = json!({
            "clusterIP": "10.96.0.1", "ports": [{"port": 80}], "externalIPs": ["198.51.100.1"],
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
        });
        let service = service(&spec, &json!({}), &json!([{"ip": "198.51.100.1"}])).unwrap();
        let all: Vec<_> = service.frontends(&[]).map(|(_, reach, _)| reach).collect();
        assert_eq!(all, [Reach::ClusterIp, Reach::LoadBalancerIp]);
    }

    #[test]
    fn what_cannot_be_read_costs_nothing_else() {
        let spec = json!({
            "clusterIP": "10.96.0.1",
            "externalIPs": ["192.0.2.300", "192.0.2.1"],
            "ports": [{"name": "a", "port": 80, "protocol": "DCCP"}, {"name": "b", "port": 81}],
            "loadBalancerSourceRanges": ["all"],
        });
        let service = service(&spec, &json!({}), &json!([{"ip": "198.51.100.1"}])).unwrap();
        assert_eq!(
            shown(&service),
            ["TCP 10.96.0.1:81", "TCP 198.51.100.1:81", "TCP 192.0.2.1:81"]
        );
        assert_eq!(
            service.warnings,
            [
                "externalIPs: \"192.0.2.300\" is no IP address; skipped",
                "loadBalancerSourceRanges: \"all\" is no network; skipped",
                "port \"a\": \"DCCP\" 80 is no protocol and port; skipped",
            ]
        );
        // A range that cannot be read opens nothing.
        let frontend = service.frontends(&[]).nth(1).unwrap().0;
        let clients = service.clients(&frontend, Reach::LoadBalancerIp, None);
        assert_eq!(clients, Some(BTreeSet::new()));
    }
}
