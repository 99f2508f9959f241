//! Objects of Kubernetes, as far as they are used here.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;

/// An object of a kind that is used here.
#[derive(Debug)]
pub enum Object {
    Service(ServiceObject),
    EndpointSlice(EndpointSliceObject),
    Node(NodeObject),
}

/// An object of any kind, or a list of objects.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind")]
pub enum Document {
    Service(ServiceObject),
    EndpointSlice(EndpointSliceObject),
    Node(NodeObject),
    /// As kubectl writes it: each item has its kind.
    List(Items<Document>),
    /// As the API server writes it: no item has its kind.
    ServiceList(Items<ServiceObject>),
    EndpointSliceList(Items<EndpointSliceObject>),
    NodeList(Items<NodeObject>),
    #[serde(other)]
    Other,
}

/// What a list has.
#[derive(Debug, Deserialize)]
pub struct Items<T> {
    items: Option<Vec<T>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    pub namespace: String,
    pub resource_version: String,
    pub labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
pub struct ServiceObject {
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: ServiceSpec,
    #[serde(default)]
    pub status: ServiceStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    pub r#type: String,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Option<Vec<String>>,
    #[serde(rename = "externalIPs")]
    pub external_ips: Option<Vec<String>>,
    pub ports: Option<Vec<ServicePortSpec>>,
    pub session_affinity: String,
    pub internal_traffic_policy: String,
    pub external_traffic_policy: String,
    pub load_balancer_source_ranges: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePortSpec {
    pub name: String,
    pub protocol: String,
    pub port: u16,
    pub node_port: u16,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    pub load_balancer: LoadBalancerStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    pub ingress: Option<Vec<Ingress>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ingress {
    pub ip: String,
    pub ip_mode: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSliceObject {
    pub metadata: Metadata,
    #[serde(default)]
    pub address_type: String,
    #[serde(default)]
    pub endpoints: Option<Vec<EndpointObject>>,
    #[serde(default)]
    pub ports: Option<Vec<EndpointPort>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointObject {
    pub addresses: Vec<String>,
    pub conditions: EndpointConditions,
    pub node_name: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    pub name: Option<String>,
    pub protocol: Option<String>,
    /// The API server does not check it.
    pub port: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub struct NodeObject {
    pub metadata: Metadata,
    #[serde(default)]
    pub status: NodeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    pub addresses: Option<Vec<NodeAddress>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    pub r#type: String,
    pub address: String,
}

impl Document {
    /// Those of the kinds that are used here.
    pub fn objects(self) -> Vec<Object> {
        match self {
            Self::Service(service) => vec![Object::Service(service)],
            Self::EndpointSlice(slice) => vec![Object::EndpointSlice(slice)],
            Self::Node(node) => vec![Object::Node(node)],
            Self::List(list) => list.all().flat_map(Self::objects).collect(),
            Self::ServiceList(list) => list.all().map(Object::Service).collect(),
            Self::EndpointSliceList(list) => list.all().map(Object::EndpointSlice).collect(),
            Self::NodeList(list) => list.all().map(Object::Node).collect(),
            Self::Other => Vec::new(),
        }
    }
}

impl<T> Items<T> {
    fn all(self) -> impl Iterator<Item = T> {
        self.items.into_iter().flatten()
    }
}

impl NodeObject {
    /// In the order of the object; what cannot be read is skipped.
    pub fn internal_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let all = self.status.addresses.iter().flatten();
        all.filter(|one| one.r#type == "InternalIP").filter_map(|one| one.address.parse().ok())
    }
}

impl Metadata {
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.as_ref()?.get(name).map(String::as_str)
    }
}
