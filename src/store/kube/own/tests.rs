//! When our lease counts as lost.

use super::*;
use crate::model::lease::{BackendType, EndpointAttributes};

const CONFIG: &str = r#"{"Network":"10.244.0.0/16"}"#;
const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#;

fn node(version: &str, cidrs: &[&str], more: &[(&str, &str)]) -> OwnNode {
    let prefix = AnnotationPrefix::default();
    let mut annotations = prefix.wanted(&attributes(), &Annotations::new());
    for (name, value) in more {
        annotations.insert(format!("flannel.alpha.coreos.com/{name}"), (*value).to_owned());
    }
    let pod_cidrs = Ok(cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect());
    OwnNode { uid: "1".into(), version: version.into(), created: 1, annotations, pod_cidrs }
}

fn attributes() -> LeaseAttributes {
    let public_ip = "172.18.0.1".parse().unwrap();
    let endpoints = vec![EndpointAttributes { public_ip, vtep: None }];
    LeaseAttributes { backend: BackendType::HostGw, endpoints }
}

fn holding() -> Ours {
    let mut ours = Ours { name: Some("n1".into()), ..Ours::default() };
    let subnets = vec!["10.244.1.0/24".parse().unwrap()];
    ours.publish(Published { attributes: attributes(), subnets });
    ours.trust(Some(node("7", &["10.244.1.0/24"], &[])));
    ours
}

fn loss(ours: &Ours) -> Option<String> {
    ours.loss(&AnnotationPrefix::default()).map(|lost| lost.reason)
}

#[test]
fn a_node_as_we_published_it_is_held() {
    let mut ours = holding();
    assert_eq!(loss(&ours), None);
    let others = [("somebody-elses", "x"), ("node-public-ip", "203.0.113.7")];
    assert!(ours.see(node("8", &["10.244.1.0/24"], &others)));
    assert_eq!(loss(&ours), None);
}

#[test]
fn what_somebody_else_writes_loses_the_lease() {
    let mut ours = holding();
    ours.see(node("8", &["10.244.1.0/24"], &[("public-ip", "172.18.0.9")]));
    let said = "node n1: annotation flannel.alpha.coreos.com/public-ip is not what we published";
    assert_eq!(loss(&ours).as_deref(), Some(said));
}

#[test]
fn an_order_to_overwrite_is_followed_by_a_loss() {
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
    assert_eq!(loss(&ours).as_deref(), Some("node n1: 10.244.1.0/24 is not its podCIDR any more"));
}

#[test]
fn a_node_that_is_gone_loses_the_lease() {
    let mut ours = holding();
    assert!(ours.trust(None));
    assert_eq!(loss(&ours).as_deref(), Some("node n1 is gone"));
}

/// The watch tells of our own write later than its answer does.
#[test]
fn what_a_watch_tells_late_is_no_news() {
    let mut ours = holding();
    assert!(!ours.see(node("6", &["10.244.1.0/24"], &[("public-ip", "172.18.0.9")])));
    assert_eq!(loss(&ours), None);
    assert!(ours.see(node("v10", &["10.244.9.0/24"], &[])), "no number to go by");
}

#[test]
fn after_a_new_reading_of_all_nodes_versions_may_start_over() {
    let mut ours = holding();
    assert!(!ours.doubt());
    assert!(ours.see(node("3", &["10.244.9.0/24"], &[])));
    assert!(loss(&ours).is_some());
}

#[test]
fn a_node_needs_a_subnet_of_each_family() {
    let subnets = |config: &str, cidrs: &[&str]| {
        node("7", cidrs, &[]).subnets(&NetworkConfig::parse(config.as_bytes()).unwrap())
    };
    let ready =
        |cidrs: &[&str]| Subnets::Ready(cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect());
    assert_eq!(subnets(CONFIG, &["fd00:0:0:1::/64", "10.244.0.0/24"]), ready(&["10.244.0.0/24"]));
    let both = ["10.244.1.0/25", "fd00:0:0:1::/64"];
    assert_eq!(subnets(DUAL, &[both[1], both[0]]), ready(&both), "IPv4 comes first");
    assert_eq!(subnets(DUAL, &both[..1]), Subnets::Missing("it has no IPv6 podCIDR yet".into()));
    assert_eq!(subnets(CONFIG, &[]), Subnets::Missing("it has no IPv4 podCIDR yet".into()));
    let outside = Subnets::Outside {
        subnet: "10.9.1.0/24".parse().unwrap(),
        network: "10.244.0.0/16".parse().unwrap(),
    };
    assert_eq!(subnets(CONFIG, &["10.9.1.0/24"]), outside);
}
