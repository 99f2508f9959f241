//! `EndpointSlices`: which endpoints serve a port.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tweed_netlink::Family;

use super::object::{EndpointConditions, EndpointPort, EndpointSliceObject, Metadata};
use super::service::{ServiceName, ServicePort};
use crate::state::{Endpoint, Transport};

/// Namespace and name of an `EndpointSlice`; the default one sorts first.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceName(Arc<str>);

/// A part of the endpoints of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    ports: Box<[(String, Transport, u16)]>,
    endpoints: Box<[Candidate]>,
    /// What is skipped.
    pub warnings: Box<[String]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    address: IpAddr,
    conditions: Conditions,
    place: Place,
}

/// Where an endpoint is, the nearest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    OtherNode,
    /// Its slice names no node, as one that an operator wrote: it may be here.
    Unknown,
    Here,
}

/// What an endpoint is able to do, the best last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Conditions {
    Unable,
    /// It is not ready, and still answers: connections that it has stay.
    Serving,
    /// It ends, and still answers.
    Terminating,
    Ready,
}

/// The endpoints of a port that connections go to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Whichever node they are on.
    pub all: BTreeSet<Endpoint>,
    /// On this node, for the policy `Local`.
    pub local: BTreeSet<Endpoint>,
    /// Those of both that may be on this node.
    pub here: BTreeSet<Endpoint>,
    /// Of a port of UDP: all that answer the connections that they have, whether or not new ones go
    /// there.
    pub serving: BTreeSet<Endpoint>,
}

const SERVICE: &str = "kubernetes.io/service-name";

impl SliceName {
    pub fn of(object: &EndpointSliceObject) -> Self {
        let Metadata { namespace, name, .. } = &object.metadata;
        Self(format!("{namespace}/{name}").into())
    }
}

impl Slice {
    /// With the service that it belongs to; none for one without a service, or with names instead of
    /// addresses. `node`: the name of this node.
    pub fn of(object: &EndpointSliceObject, node: &str) -> Option<(ServiceName, Self)> {
        let service = object.metadata.label(SERVICE).filter(|name| !name.is_empty())?;
        let family = match object.address_type.as_str() {
            "IPv4" => Family::V4,
            "IPv6" => Family::V6,
            _ => return None,
        };
        let mut warnings = Vec::new();
        let mut ports = Vec::new();
        // One without a number stands for any.
        for EndpointPort { name, protocol, port } in object.ports.iter().flatten() {
            let Some(port) = *port else { continue };
            let name = name.clone().unwrap_or_default();
            let protocol = protocol.as_deref().unwrap_or("TCP");
            let number = u16::try_from(port).ok().filter(|number| *number > 0);
            let Some((transport, number)) = Transport::parse(protocol).zip(number) else {
                let what = format!("port {name:?}: {protocol:?} {port}");
                warnings.push(format!("{what} is no protocol and port; skipped"));
                continue;
            };
            ports.push((name, transport, number));
        }
        let mut endpoints = Vec::new();
        // All addresses of an endpoint lead to one pod: the first one is enough.
        for endpoint in object.endpoints.iter().flatten() {
            let Some(text) = endpoint.addresses.first() else { continue };
            let address = text.parse().ok().filter(|address| Family::of(*address) == family);
            let Some(address) = address else {
                let kind = &object.address_type;
                warnings.push(format!("endpoint {text:?} is no {kind} address; skipped"));
                continue;
            };
            let conditions = Conditions::of(endpoint.conditions);
            let place = Place::of(endpoint.node_name.as_deref(), node);
            endpoints.push(Candidate { address, conditions, place });
        }
        let slice =
            Self { ports: ports.into(), endpoints: endpoints.into(), warnings: warnings.into() };
        Some((ServiceName::of(&object.metadata.namespace, service), slice))
    }
}

/// Those of `slices` that serve `port` in this family: the ready ones, or, if there are none, those that
/// end and still answer.
pub fn choose<'a>(
    slices: impl Iterator<Item = &'a Slice>,
    port: &ServicePort,
    family: Family,
) -> Chosen {
    let found = merge(slices, port, family);
    let all = best(&found, Place::OtherNode);
    let local = best(&found, Place::Here);
    let here = all.iter().chain(&local);
    let here = here.filter(|one| found.get(one).is_some_and(|(_, place)| *place >= Place::Unknown));
    let is_udp = port.transport == Transport::Udp;
    let serves = |conditions: Conditions| is_udp && conditions >= Conditions::Serving;
    let serving = found.iter().filter(|(_, (conditions, _))| serves(*conditions));
    let serving = serving.map(|(endpoint, _)| *endpoint).collect();
    Chosen { here: here.copied().collect(), all, local, serving }
}

/// With their conditions and places.
fn merge<'a>(
    slices: impl Iterator<Item = &'a Slice>,
    port: &ServicePort,
    family: Family,
) -> BTreeMap<Endpoint, (Conditions, Place)> {
    let mut found: BTreeMap<Endpoint, (Conditions, Place)> = BTreeMap::new();
    for slice in slices {
        let is_of_port = |(name, transport, _): &&(String, Transport, u16)| {
            *name == port.name && *transport == port.transport
        };
        for (_, _, number) in slice.ports.iter().filter(is_of_port) {
            let of_family = |one: &&Candidate| Family::of(one.address) == family;
            for one in slice.endpoints.iter().filter(of_family) {
                let endpoint = Endpoint { address: one.address, port: *number };
                let known = found.entry(endpoint).or_insert((one.conditions, one.place));
                // Two slices have an endpoint while it moves from one to the other.
                *known = (known.0.max(one.conditions), known.1.max(one.place));
            }
        }
    }
    found
}

/// Of those that are in `place` or nearer.
fn best(found: &BTreeMap<Endpoint, (Conditions, Place)>, place: Place) -> BTreeSet<Endpoint> {
    let asked = || found.iter().filter(|(_, (_, of))| *of >= place);
    let best = asked().map(|(_, (conditions, _))| *conditions).max();
    let best = best.filter(|best| *best > Conditions::Serving);
    let chosen = asked().filter(|(_, (conditions, _))| Some(*conditions) == best);
    chosen.map(|(endpoint, _)| *endpoint).collect()
}

impl fmt::Display for SliceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Place {
    fn of(named: Option<&str>, node: &str) -> Self {
        match named {
            None => Self::Unknown,
            Some(name) if name == node => Self::Here,
            Some(_) => Self::OtherNode,
        }
    }
}

impl Conditions {
    fn of(conditions: EndpointConditions) -> Self {
        let is_ready = conditions.ready.unwrap_or(true);
        // A slice without it is of before it existed.
        let is_serving = conditions.serving.unwrap_or(true);
        match (is_ready, is_serving, conditions.terminating.unwrap_or(false)) {
            (true, ..) => Self::Ready,
            (false, true, true) => Self::Terminating,
            (false, true, false) => Self::Serving,
            (false, false, _) => Self::Unable,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::service::Service;

    /// Slices that an operator writes need not name any.
    #[test]
    fn an_endpoint_of_no_named_node_may_be_on_this_one_and_is_not_local() {
        let endpoint = |number: u8, node: Option<&str>| {
            let addresses = [format!("10.1.0.{number}")];
            json!({"addresses": addresses, "nodeName": node})
        };
        let slice = json!({
            "metadata": {"labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"port": 8080}],
            "endpoints": [endpoint(1, Some("here")), endpoint(2, None), endpoint(3, Some("there"))],
        });
        let (_, slice) = Slice::of(&serde_json::from_value(slice).unwrap(), "here").unwrap();
        let service = json!({
            "metadata": {}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}
        });
        let service = Service::of(&serde_json::from_value(service).unwrap()).unwrap();
        let Chosen { all, local, here, .. } =
            choose([&slice].into_iter(), &service.ports[0], Family::V4);
        let of = |numbers: &[u8]| -> BTreeSet<Endpoint> {
            let address = |number: &u8| IpAddr::from([10, 1, 0, *number]);
            numbers.iter().map(|it| Endpoint { address: address(it), port: 8080 }).collect()
        };
        assert_eq!((all, local, here), (of(&[1, 2, 3]), of(&[1]), of(&[1, 2])));
    }

    #[test]
    fn what_cannot_be_read_is_named_and_costs_nothing_else() {
        let slice = json!({
            "metadata": {"labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"name": "a", "port": 70000}, {"name": "b", "port": 80}, {"name": "any"}],
            "endpoints": [
                {"addresses": ["10.1.0.300"]}, {"addresses": ["fd01::1"]},
                {"addresses": ["10.1.0.1"]}, {"addresses": []},
            ],
        });
        let (_, slice) = Slice::of(&serde_json::from_value(slice).unwrap(), "here").unwrap();
        assert_eq!((slice.ports.len(), slice.endpoints.len()), (1, 1));
        assert_eq!(
            *slice.warnings,
            [
                "port \"a\": \"TCP\" 70000 is no protocol and port; skipped",
                "endpoint \"10.1.0.300\" is no IPv4 address; skipped",
                "endpoint \"fd01::1\" is no IPv4 address; skipped",
            ]
        );
    }

    #[test]
    fn an_endpoint_without_conditions_is_ready_and_one_that_ends_may_still_serve() {
        let of = |ready, serving, terminating| {
            Conditions::of(EndpointConditions { ready, serving, terminating })
        };
        assert_eq!(of(None, None, None), Conditions::Ready);
        assert_eq!(of(Some(false), None, None), Conditions::Serving);
        assert_eq!(of(Some(false), None, Some(true)), Conditions::Terminating);
        assert_eq!(of(Some(false), Some(true), Some(true)), Conditions::Terminating);
        assert_eq!(of(Some(false), Some(false), Some(true)), Conditions::Unable);
        assert_eq!(of(Some(false), Some(true), Some(false)), Conditions::Serving);
    }
}
