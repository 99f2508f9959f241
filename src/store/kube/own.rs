//! Our own node as published, as the API server reports it, and whether the two are the same.

use super::annotations::Annotations;
use super::node::{NodeObject, Reader};
use crate::model::config::NetworkConfig;
use crate::model::lease::{LeaseAttributes, Malformed};
use crate::model::prefix::{Family, Prefix};
use crate::store::{Error, Lost};

/// Our node, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct OurNode {
    /// Known after the first lookup.
    pub(super) name: Option<String>,
    /// The address families of the network, if known.
    pub(super) families: Option<Vec<Family>>,
    pub(super) published: Option<PublishedLease>,
    seen: Option<SeenNode>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PublishedLease {
    pub(super) attributes: LeaseAttributes,
    pub(super) subnets: Vec<Prefix>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SeenNode {
    Node(OwnNode),
    Gone,
}

/// One version of our node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnNode {
    pub(super) uid: String,
    version: String,
    pub(super) created: u64,
    pub(super) annotations: Annotations,
    pub(super) pod_cidrs: Result<Vec<Prefix>, Malformed>,
}

impl OurNode {
    pub(super) fn node(&self) -> Option<&OwnNode> {
        match &self.seen {
            Some(SeenNode::Node(node)) => Some(node),
            Some(SeenNode::Gone) | None => None,
        }
    }

    /// Our node, if it has what we published.
    pub(super) fn held(&self) -> Option<&OwnNode> {
        self.node().filter(|_| self.published.is_some() && self.loss().is_none())
    }

    /// Whether a request has returned a later version of our node than this one of any node.
    pub(super) fn is_after(&self, version: u64) -> bool {
        let known = self.node().and_then(|node| node.version.parse::<u64>().ok());
        known.is_some_and(|known| known > version)
    }

    /// Notes a version of our node from the watch, unless a request has returned a later one.
    /// Returns whether it differs.
    pub(super) fn see(&mut self, node: OwnNode) -> bool {
        !self.node().is_some_and(|known| known.is_later_than(&node)) && self.set_seen(Some(node))
    }

    /// Notes that the watch reports the deletion of our node, unless a request has returned one that
    /// was made again since then. Returns whether it differs.
    pub(super) fn see_deleted(&mut self, deleted: &OwnNode) -> bool {
        !self.node().is_some_and(|known| known.is_later_than(deleted)) && self.set_seen(None)
    }

    /// Accepts any version next, since versions may have restarted. Returns false: this is no
    /// change.
    pub(super) fn forget_version(&mut self) -> bool {
        if let Some(SeenNode::Node(node)) = &mut self.seen {
            node.version.clear();
        }
        false
    }

    /// Notes the present version; none if our node does not exist. Returns whether it differs.
    pub(super) fn set_seen(&mut self, node: Option<OwnNode>) -> bool {
        let seen = Some(node.map_or(SeenNode::Gone, SeenNode::Node));
        std::mem::replace(&mut self.seen, seen.clone()) != seen
    }

    /// Why the lease is lost, if it is.
    pub(super) fn loss(&self) -> Option<Lost> {
        let published = self.published.as_ref()?;
        let name = self.name.as_deref().unwrap_or_default();
        match self.seen.as_ref()? {
            SeenNode::Gone => Some(Lost::because(format!("node {name} is gone"))),
            SeenNode::Node(node) => {
                let what = node.differs(published)?;
                Some(Lost::because(format!("node {name}: {what}")))
            }
        }
    }
}

impl OwnNode {
    pub(super) fn of(node: &NodeObject<'_>, reader: &Reader) -> Self {
        Self {
            uid: node.metadata.uid.clone().into_owned(),
            version: node.metadata.resource_version.clone().into_owned(),
            created: node.created(),
            annotations: reader.annotations(node),
            pod_cidrs: node.pod_cidrs(),
        }
    }

    /// The subnets of this node, `name`, for the families of `config`, or why it lacks one yet.
    ///
    /// # Errors
    /// A subnet is not in the network.
    pub(super) fn subnets(
        &self,
        name: &str,
        config: &NetworkConfig,
    ) -> Result<Result<Vec<Prefix>, String>, Error> {
        let cidrs = match &self.pod_cidrs {
            Ok(cidrs) => cidrs,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let mut subnets = Vec::new();
        for network in config.networks() {
            let family = network.family();
            match cidrs.iter().find(|cidr| cidr.family() == family) {
                Some(subnet) if network.covers(*subnet) => subnets.push(*subnet),
                Some(subnet) => {
                    let (node, subnet) = (name.to_owned(), *subnet);
                    return Err(Error::OutsideNetwork { node, subnet, network });
                }
                None => return Ok(Err(format!("it has no {family} podCIDR yet"))),
            }
        }
        Ok(Ok(subnets))
    }

    /// Whether all of these, and at least one, are its podCIDRs.
    pub(super) fn has_subnets(&self, subnets: &[Prefix]) -> bool {
        let has = |cidrs: &Vec<Prefix>| subnets.iter().all(|subnet| cidrs.contains(subnet));
        !subnets.is_empty() && self.pod_cidrs.as_ref().is_ok_and(has)
    }

    /// What differs from the published lease, if anything.
    fn differs(&self, published: &PublishedLease) -> Option<String> {
        let missing = self.annotations.missing(&published.attributes);
        if let Some((key, _)) = missing.first_key_value() {
            return Some(format!("annotation {key} differs from the published value"));
        }
        let holds =
            |subnet: &Prefix| self.pod_cidrs.as_ref().map_or(true, |it| it.contains(subnet));
        let gone = published.subnets.iter().find(|subnet| !holds(subnet))?;
        Some(format!("{gone} is not its podCIDR any more"))
    }

    /// Versions grow; one that is no number is never later.
    pub(super) fn is_later_than(&self, other: &Self) -> bool {
        let number = |node: &Self| node.version.parse::<u64>().ok();
        number(self).zip(number(other)).is_some_and(|(ours, theirs)| ours > theirs)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::config::BackendType;
    use crate::model::lease::EndpointAttributes;
    use crate::store::kube::AnnotationPrefix;

    const CONFIG: &str = r#"{"Network":"10.244.0.0/16"}"#;
    const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#;

    fn node(version: &str, cidrs: &[&str], more: &[(&str, &str)]) -> OwnNode {
        let prefix = AnnotationPrefix::default();
        let mut annotations = Annotations { prefix, values: BTreeMap::new() };
        annotations.values = annotations.missing(&attributes());
        for (name, value) in more {
            annotations
                .values
                .insert(format!("flannel.alpha.coreos.com/{name}"), (*value).to_owned());
        }
        let pod_cidrs = Ok(cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect());
        OwnNode { uid: "1".into(), version: version.into(), created: 1, annotations, pod_cidrs }
    }

    fn attributes() -> LeaseAttributes {
        let public_ip = "172.18.0.1".parse().unwrap();
        let endpoints = vec![EndpointAttributes { public_ip, vtep: None }];
        LeaseAttributes { backend: BackendType::HostGw, endpoints }
    }

    fn holding() -> OurNode {
        let mut ours = OurNode { name: Some("n1".into()), ..OurNode::default() };
        let subnets = vec!["10.244.1.0/24".parse().unwrap()];
        ours.published = Some(PublishedLease { attributes: attributes(), subnets });
        ours.set_seen(Some(node("7", &["10.244.1.0/24"], &[])));
        ours
    }

    fn loss(ours: &OurNode) -> Option<String> {
        ours.loss().map(|lost| lost.reason)
    }

    #[test]
    fn a_node_as_we_published_it_is_held() {
        let mut ours = holding();
        assert_eq!(loss(&ours), None);
        let others = [("foreign", "x"), ("node-public-ip", "203.0.113.7")];
        assert!(ours.see(node("8", &["10.244.1.0/24"], &others)));
        assert_eq!(loss(&ours), None);
    }

    #[test]
    fn a_write_of_another_client_loses_the_lease() {
        let mut ours = holding();
        ours.see(node("8", &["10.244.1.0/24"], &[("public-ip", "172.18.0.9")]));
        let reason = "node n1: annotation flannel.alpha.coreos.com/public-ip differs from the published value";
        assert_eq!(loss(&ours).as_deref(), Some(reason));
    }

    #[test]
    fn an_overwritten_public_ip_loses_the_lease() {
        let mut ours = holding();
        ours.see(node("8", &["10.244.1.0/24"], &[("public-ip-overwrite", "203.0.113.7")]));
        assert!(loss(&ours).is_some());
        let followed = [("public-ip-overwrite", "203.0.113.7"), ("public-ip", "203.0.113.7")];
        ours.see(node("9", &["10.244.1.0/24"], &followed));
        assert_eq!(loss(&ours), None);
    }

    #[test]
    fn another_pod_cidr_loses_the_lease() {
        let mut ours = holding();
        ours.see(node("8", &["10.244.9.0/24"], &[]));
        assert_eq!(
            loss(&ours).as_deref(),
            Some("node n1: 10.244.1.0/24 is not its podCIDR any more")
        );
    }

    #[test]
    fn a_removed_node_loses_the_lease() {
        let mut ours = holding();
        assert!(ours.set_seen(None));
        assert_eq!(loss(&ours).as_deref(), Some("node n1 is gone"));
    }

    /// The watch reports our own write after the answer to it.
    #[test]
    fn a_late_event_of_the_watch_is_ignored() {
        let mut ours = holding();
        assert!(!ours.see(node("6", &["10.244.1.0/24"], &[("public-ip", "172.18.0.9")])));
        assert_eq!(loss(&ours), None);
        assert!(ours.see(node("v10", &["10.244.9.0/24"], &[])), "no number to go by");
    }

    #[test]
    fn a_late_deletion_of_the_former_node_is_ignored() {
        let mut ours = holding();
        assert!(!ours.see_deleted(&node("6", &["10.244.1.0/24"], &[])));
        assert_eq!(loss(&ours), None);
        assert!(ours.see_deleted(&node("8", &["10.244.1.0/24"], &[])));
        assert!(loss(&ours).is_some());
    }

    #[test]
    fn after_a_new_listing_of_all_nodes_versions_may_restart() {
        let mut ours = holding();
        assert!(!ours.forget_version());
        assert!(ours.see(node("3", &["10.244.9.0/24"], &[])));
        assert!(loss(&ours).is_some());
    }

    #[test]
    fn a_node_needs_a_subnet_of_each_family() {
        let subnets = |config: &str, cidrs: &[&str]| {
            let config = NetworkConfig::parse(config.as_bytes()).unwrap();
            node("7", cidrs, &[]).subnets("n1", &config).map_err(|error| error.to_string())
        };
        let ready =
            |cidrs: &[&str]| Ok(Ok(cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect()));
        assert_eq!(
            subnets(CONFIG, &["fd00:0:0:1::/64", "10.244.0.0/24"]),
            ready(&["10.244.0.0/24"])
        );
        let both = ["10.244.1.0/25", "fd00:0:0:1::/64"];
        assert_eq!(subnets(DUAL, &[both[1], both[0]]), ready(&both), "IPv4 comes first");
        assert_eq!(subnets(DUAL, &both[..1]), Ok(Err("it has no IPv6 podCIDR yet".into())));
        assert_eq!(subnets(CONFIG, &[]), Ok(Err("it has no IPv4 podCIDR yet".into())));
        let outside = subnets(CONFIG, &["10.9.1.0/24"]).unwrap_err();
        assert!(outside.starts_with("podCIDR 10.9.1.0/24 of node n1 is not inside 10.244.0.0/16"));
    }
}
