//! Leases, byte for byte as flannel writes them, and their parsed form.

use std::net::IpAddr;

use anyhow::{Context, Result, bail, ensure};
use ipnetwork::IpNetwork;
use serde_json::Value;
use tweed_lab::Family;

use crate::peer::Peer;
use crate::table::Backend;

/// The prefix of flannel's annotations.
pub const PREFIX: &str = "flannel.alpha.coreos.com/";

/// The lease of a node, with an end for each family.
#[derive(Clone, Debug)]
pub struct Lease {
    pub backend: Backend,
    /// On host-gw, these have no MAC address.
    pub ends: Vec<Peer>,
}

/// The names of a family's fields in a record of either store.
struct Names {
    ip: &'static str,
    data: &'static str,
}

const fn in_etcd(family: Family) -> Names {
    match family {
        Family::V4 => Names { ip: "PublicIP", data: "BackendData" },
        Family::V6 => Names { ip: "PublicIPv6", data: "BackendV6Data" },
    }
}

const fn in_kubernetes(family: Family) -> Names {
    match family {
        Family::V4 => Names { ip: "public-ip", data: "backend-data" },
        Family::V6 => Names { ip: "public-ipv6", data: "backend-v6-data" },
    }
}

impl Lease {
    pub fn subnets(&self) -> Vec<IpNetwork> {
        self.ends.iter().map(|end| end.subnet).collect()
    }

    fn end(&self, family: Family) -> Option<&Peer> {
        self.ends.iter().find(|end| Family::of(end.public_ip) == family)
    }

    /// `10.244.1.0-24`, for both families `10.244.1.0-24&fd00:244:0:1::-64`.
    pub fn key(&self) -> String {
        let subnets = self.subnets().into_iter();
        subnets.map(|it| it.to_string().replace('/', "-")).collect::<Vec<_>>().join("&")
    }

    /// The value in etcd.
    pub fn value(&self) -> String {
        let ip = |family| self.end(family).map(|end| end.public_ip.to_string());
        let v6 = ip(Family::V6).map_or("null".to_owned(), |ip| format!("{ip:?}"));
        let (v4, backend) = (ip(Family::V4).unwrap_or_default(), name(self.backend));
        let data = |end: &Peer| {
            let field = in_etcd(Family::of(end.public_ip)).data;
            format!(r#","{field}":{}"#, tunnel(end))
        };
        let data = self.ends.iter().filter(|_| self.backend == Backend::Vxlan).map(data);
        let data: String = data.collect();
        format!(r#"{{"PublicIP":"{v4}","PublicIPv6":{v6},"BackendType":"{backend}"{data}}}"#)
    }

    /// The names of annotations, without their common prefix, and their values.
    pub fn annotations(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![
            ("kube-subnet-manager", "true".to_owned()),
            ("backend-type", name(self.backend).to_owned()),
        ];
        for end in &self.ends {
            let names = in_kubernetes(Family::of(end.public_ip));
            let data = match self.backend {
                Backend::Vxlan => tunnel(end),
                Backend::HostGw => "null".to_owned(),
            };
            all.extend([(names.data, data), (names.ip, end.public_ip.to_string())]);
        }
        all
    }

    /// From a key below the folder of subnets, and its value.
    pub fn from_etcd(key: &str, value: &str) -> Result<Self> {
        let subnets = key.split('&').map(|part| part.replace('-', "/"));
        let value: Value = serde_json::from_str(value)?;
        let text = |field: &str| value[field].as_str().map(str::to_owned);
        let data = |field: &str| (!value[field].is_null()).then(|| value[field].to_string());
        read(subnets, &text("BackendType").context("no type")?, |family| {
            (text(in_etcd(family).ip), data(in_etcd(family).data))
        })
    }

    /// None if no flannel manages this Node.
    pub fn from_node(node: &Value) -> Result<Option<Self>> {
        let annotation = |name: &str| {
            node["metadata"]["annotations"][format!("{PREFIX}{name}")].as_str().map(str::to_owned)
        };
        if annotation("kube-subnet-manager").as_deref() != Some("true") {
            return Ok(None);
        }
        let kind = annotation("backend-type").context("no type")?;
        let half = |family| {
            let Names { ip, data } = in_kubernetes(family);
            (annotation(ip), annotation(data))
        };
        read(pod_cidrs(node).into_iter(), &kind, half).map(Some)
    }
}

pub fn pod_cidrs(node: &Value) -> Vec<String> {
    let cidrs = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
    cidrs.filter_map(|cidr| cidr.as_str().map(str::to_owned)).collect()
}

const fn name(backend: Backend) -> &'static str {
    match backend {
        Backend::Vxlan => "vxlan",
        Backend::HostGw => "host-gw",
    }
}

fn tunnel(end: &Peer) -> String {
    format!(r#"{{"VNI":1,"VtepMAC":"{}"}}"#, end.mac)
}

/// `half` is the public IP and the backend data of a family.
fn read(
    subnets: impl Iterator<Item = String>,
    kind: &str,
    half: impl Fn(Family) -> (Option<String>, Option<String>),
) -> Result<Lease> {
    let backend = match kind {
        "vxlan" => Backend::Vxlan,
        "host-gw" => Backend::HostGw,
        other => bail!("flannel knows no backend {other}"),
    };
    let end = |subnet: String| {
        let subnet: IpNetwork = subnet.parse().with_context(|| subnet.clone())?;
        let (ip, data) = half(Family::of(subnet.ip()));
        let public_ip: IpAddr = ip.context("no public IP")?.parse()?;
        Ok(Peer { subnet, public_ip, mac: mac(backend, data)? })
    };
    Ok(Lease { backend, ends: subnets.map(end).collect::<Result<Vec<_>>>()? })
}

/// flannel's own host-gw never reads its backend data, but writes this.
fn mac(backend: Backend, data: Option<String>) -> Result<String> {
    if backend == Backend::HostGw {
        ensure!(data.as_deref().is_none_or(|data| data == "null"), "not flannel's: {data:?}");
        return Ok(String::new());
    }
    let data: Value = serde_json::from_str(&data.context("no end of a tunnel")?)?;
    Ok(data["VtepMAC"].as_str().context("no VtepMAC")?.to_owned())
}
