//! The source that receivers see: by the masquerading rules of flanneld and of `tweedd`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};
use tweed_lab::{Backend, Family, Namespace, source_seen};

use super::site::Site;

/// The port that packets are sent to.
const PORT: u16 = 7000;

/// A flow of one node, to and from the node after the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Flow {
    PodToPod,
    PodToItsNode,
    PodToNode,
    PodToOutside,
    NodeToItsPod,
    NodeToPod,
    NodeToOutside,
    OutsideToPod,
}

const ALL: [Flow; 8] = [
    Flow::PodToPod,
    Flow::PodToItsNode,
    Flow::PodToNode,
    Flow::PodToOutside,
    Flow::NodeToItsPod,
    Flow::NodeToPod,
    Flow::NodeToOutside,
    Flow::OutsideToPod,
];

/// With `--ip-masq` and host-gw, packets of a node to pods of others have the bridge's address with
/// `tweedd`: the same on every link, so that connections survive a change of the backend.
const EXPLAINED: (Flow, &str, &str) = (Flow::NodeToPod, "the node", "the bridge");

/// Other differences are errors; returns a sentence about what was compared.
pub(super) fn compare(site: &Site, nodes: [usize; 2]) -> Result<String> {
    let outside = site.lab.node("outside", &site.segment)?;
    let (mut different, mut count, mut explained) = (Vec::new(), 0, 0);
    for family in site.setting.stack.families() {
        for flow in ALL {
            let seen = nodes
                .into_iter()
                .map(|index| flow.source(site, index, &outside, *family))
                .collect::<Result<Vec<_>>>()
                .with_context(|| format!("{flow:?}, {family}"))?;
            let [theirs, ours] = seen.as_slice() else { bail!("not two nodes") };
            count += 1;
            if site.setting.backend == Backend::HostGw
                && (flow, theirs.as_str(), ours.as_str()) == EXPLAINED
            {
                explained += 1;
            } else if theirs != ours {
                different.push(format!(
                    "{flow:?}, {family}: {theirs} with flanneld, {ours} with tweedd"
                ));
            }
        }
    }
    ensure!(different.is_empty(), "other sources:\n{}", different.join("\n"));
    let from_bridge = match explained {
        0 => "all the same".to_owned(),
        _ => format!("from a node to pods of others, the bridge's with tweedd ({explained})"),
    };
    Ok(format!("Sources of {count} flows: {from_bridge}"))
}

impl Flow {
    fn source(
        self,
        site: &Site,
        index: usize,
        outside: &tweed_lab::Node,
        family: Family,
    ) -> Result<String> {
        let (node, peer) = (site.node(index)?, site.node(index + 2)?);
        let pods = site.lab.pods();
        let pod = |index: usize| pods.get(index).context("no such pod");
        let (own, other) = (pod(index)?, pod(index + 2)?);
        let (node_ip, own_ip) = (node.address(family)?, own.address(family)?);
        let world = outside.address(family)?;
        let space = |node: &tweed_lab::Node| node.namespace().clone();
        let pod_space = |pod: &tweed_lab::Pod| pod.namespace().clone();
        let (from, to, target): (Namespace, Namespace, IpAddr) = match self {
            Self::PodToPod => (pod_space(own), pod_space(other), other.address(family)?),
            Self::PodToItsNode => (pod_space(own), space(node), node_ip),
            Self::PodToNode => (pod_space(own), space(peer), peer.address(family)?),
            Self::PodToOutside => (pod_space(own), space(outside), world),
            Self::NodeToItsPod => (space(node), pod_space(own), own_ip),
            Self::NodeToPod => (space(node), pod_space(other), other.address(family)?),
            Self::NodeToOutside => (space(node), space(outside), world),
            Self::OutsideToPod => {
                outside.ip(format!("{} route replace {own_ip} via {node_ip}", family.flag()))?;
                (space(outside), pod_space(own), own_ip)
            }
        };
        let source = source_seen((&from, None), &to, SocketAddr::new(target, PORT))?;
        let gateways = node.subnet_env()?.gateways;
        let gateway = gateways.iter().find(|it| Family::of(it.ip()) == family);
        let gateway = gateway.context("no gateway")?;
        let names = [
            (own_ip, "the pod"),
            (node_ip, "the node"),
            (world, "outside"),
            (gateway.ip(), "the bridge"),
            (gateway.network(), "the tunnel"),
        ];
        let names: BTreeMap<IpAddr, &str> = names.into();
        Ok(names.get(&source).map_or_else(|| source.to_string(), |name| (*name).to_owned()))
    }
}
