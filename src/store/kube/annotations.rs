//! The annotations of a node, byte for byte as flannel writes them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use crate::excerpt;
use crate::model::json::Fields;
use crate::model::lease::{
    BackendType, Endpoint, EndpointAttributes, LeaseAttributes, Malformed, Vtep,
};
use crate::model::prefix::{Family, Prefix};
use crate::store::backend_data::{self, BackendData};

/// What all keys begin with: `flannel.alpha.coreos.com/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotationPrefix(String);

/// By key.
pub(super) type Annotations = BTreeMap<String, String>;

const MANAGED: &str = "kube-subnet-manager";
const BACKEND_TYPE: &str = "backend-type";

/// The keys of one address family, without prefix.
struct Keys {
    data: &'static str,
    public_ip: &'static str,
    overwrite: &'static str,
    node_public_ip: &'static str,
}

impl Keys {
    const fn of(family: Family) -> Self {
        match family {
            Family::V4 => Self {
                data: "backend-data",
                public_ip: "public-ip",
                overwrite: "public-ip-overwrite",
                node_public_ip: "node-public-ip",
            },
            Family::V6 => Self {
                data: "backend-v6-data",
                public_ip: "public-ipv6",
                overwrite: "public-ipv6-overwrite",
                node_public_ip: "node-public-ipv6",
            },
        }
    }
}

impl AnnotationPrefix {
    /// Whether an annotation is any business of ours.
    pub(super) fn covers(&self, key: &str) -> bool {
        key.starts_with(&self.0)
    }

    /// Whether the node's lease is kept by flannel or by us.
    pub(super) fn is_managed(&self, annotations: &Annotations) -> bool {
        self.get(annotations, MANAGED) == Some("true")
    }

    /// What peers see of `attributes` on a node with these `annotations`, which may overwrite its
    /// public IPs.
    pub(super) fn published(
        &self,
        attributes: &LeaseAttributes,
        annotations: &Annotations,
    ) -> LeaseAttributes {
        let endpoint = |endpoint: &EndpointAttributes| {
            let family = Family::of(endpoint.public_ip);
            let overwrite = Keys::of(family).overwrite;
            let overwritten = self.address(annotations, overwrite, family).ok().flatten();
            let public_ip = overwritten.unwrap_or(endpoint.public_ip);
            // The guards of peers admit what comes from the public IP, and from this source.
            let source = |vtep: Vtep| vtep.source.unwrap_or(endpoint.public_ip);
            let vtep = endpoint.vtep.map(|vtep| Vtep {
                source: Some(source(vtep)).filter(|source| *source != public_ip),
                ..vtep
            });
            EndpointAttributes { public_ip, vtep }
        };
        let endpoints = attributes.endpoints.iter().map(endpoint).collect();
        LeaseAttributes { backend: attributes.backend.clone(), endpoints }
    }

    /// What publishes `attributes` on a node with these `annotations`.
    pub(super) fn wanted(
        &self,
        attributes: &LeaseAttributes,
        annotations: &Annotations,
    ) -> Annotations {
        let mut wanted = Annotations::new();
        let mut put = |name: &str, value: String| wanted.insert(self.key(name), value);
        put(MANAGED, "true".to_owned());
        put(BACKEND_TYPE, attributes.backend.as_str().to_owned());
        if attributes.backend != BackendType::Vxlan {
            // As flannel says it of a node without IPv4.
            put("backend-data", "null".to_owned());
            put("public-ip", Ipv4Addr::UNSPECIFIED.to_string());
        }
        for endpoint in self.published(attributes, annotations).endpoints {
            let keys = Keys::of(Family::of(endpoint.public_ip));
            // Numbers and addresses always have a JSON form.
            let data = serde_json::to_string(&endpoint.vtep.map(BackendData::from));
            put(keys.data, data.unwrap_or_default());
            put(keys.public_ip, endpoint.public_ip.to_string());
        }
        wanted
    }

    /// The public IPs that operators want the node to have, whatever its interface says.
    pub(super) fn public_ips(&self, annotations: &Annotations) -> Vec<IpAddr> {
        let ordered = |family: &Family| {
            self.address(annotations, Keys::of(*family).node_public_ip, *family).ok().flatten()
        };
        Family::ALL.iter().filter_map(ordered).collect()
    }

    /// What operators have written that cannot be followed.
    pub(super) fn faults(&self, annotations: &Annotations) -> Vec<Malformed> {
        let orders = Family::ALL.iter().flat_map(|family| {
            let keys = Keys::of(*family);
            [keys.overwrite, keys.node_public_ip].map(|name| (name, *family))
        });
        orders.filter_map(|(name, family)| self.address(annotations, name, family).err()).collect()
    }

    /// What the node publishes of `subnet`; none if it says nothing of that address family.
    pub(super) fn endpoint(
        &self,
        annotations: &Annotations,
        subnet: Prefix,
    ) -> Result<Option<Endpoint>, Malformed> {
        let keys = Keys::of(subnet.family());
        let public_ip = self.address(annotations, keys.public_ip, subnet.family())?;
        let Some(public_ip) = public_ip.filter(|ip| !ip.is_unspecified()) else { return Ok(None) };
        let backend = self.get(annotations, BACKEND_TYPE).unwrap_or_default().to_lowercase();
        let backend = BackendType::from(backend.as_str());
        let data = || self.data(annotations, keys.data);
        let vtep = backend_data::vtep(&backend, subnet.family(), data);
        let vtep =
            vtep.map_err(|error| Malformed(self.fault(keys.data, &format!("wrong: {error}"))))?;
        Ok(Some(Endpoint { subnet, public_ip, backend, vtep }))
    }

    fn data(&self, annotations: &Annotations, name: &str) -> Result<Option<Fields>, Malformed> {
        match self.get(annotations, name) {
            None | Some("" | "null") => Ok(None),
            Some(text) => Fields::parse(text.as_bytes())
                .map(Some)
                .map_err(|error| Malformed(format!("no JSON object: {error}"))),
        }
    }

    fn address(
        &self,
        annotations: &Annotations,
        name: &str,
        family: Family,
    ) -> Result<Option<IpAddr>, Malformed> {
        let Some(text) = self.get(annotations, name).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let address = text.parse().ok().filter(|address| Family::of(*address) == family);
        let wrong = || {
            let text = excerpt::quoted(text);
            Malformed(self.fault(name, &format!("{text}, but must be an {family} address")))
        };
        address.ok_or_else(wrong).map(Some)
    }

    fn fault(&self, name: &str, what: &str) -> String {
        format!("annotation {} is {what}", self.key(name))
    }

    fn get<'a>(&self, annotations: &'a Annotations, name: &str) -> Option<&'a str> {
        annotations.get(&self.key(name)).map(String::as_str)
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }
}

impl Default for AnnotationPrefix {
    fn default() -> Self {
        Self("flannel.alpha.coreos.com/".to_owned())
    }
}

/// A domain with a dot in it, then perhaps a slash and a word: `k8s.example.org/blue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a domain like flannel.alpha.coreos.com, perhaps with a slash and a word")]
pub struct NoPrefix;

impl FromStr for AnnotationPrefix {
    type Err = NoPrefix;

    fn from_str(text: &str) -> Result<Self, NoPrefix> {
        let (domain, word) = text.split_once('/').unwrap_or((text, ""));
        let mut labels = domain.split('.');
        let is_plain = |text: &str| {
            text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
        };
        let has_dot = domain.contains('.');
        if !has_dot || !labels.all(|label| !label.is_empty() && is_plain(label)) || !is_plain(word)
        {
            return Err(NoPrefix);
        }
        let dash = if word.is_empty() || word.ends_with('-') { "" } else { "-" };
        Ok(Self(format!("{domain}/{word}{dash}")))
    }
}

#[cfg(test)]
mod tests;
