//! Kubernetes as the store: which node, and which API servers.
#![allow(clippy::unwrap_used)]

use super::{options, parse, refusal};
use crate::daemon::options::Store;
use crate::store::kube::{AnnotationPrefix, ApiOptions, Condition, KubeOptions, NodeRef, PodRef};

const NAMED: &[(&str, &str)] = &[("NODE_NAME", "n1")];

fn kube(line: &str, variables: &[(&str, &str)]) -> KubeOptions {
    match parse(&format!("-kube-subnet-mgr {line}"), variables).unwrap().store {
        Store::Kube(kube) => kube,
        Store::Etcd(etcd) => panic!("{etcd:?}"),
    }
}

#[test]
fn defaults_of_kubernetes_are_those_of_flanneld() {
    let kube = kube("", NAMED);
    assert_eq!((kube.api, kube.namespace), (ApiOptions::default(), None));
    assert_eq!(kube.annotation_prefix, AnnotationPrefix::default());
    assert_eq!(kube.net_config.to_str(), Some("/etc/kube-flannel/net-conf.json"));
    assert_eq!(kube.condition, Condition::Cleared);
}

#[test]
fn without_the_switch_flags_of_kubernetes_ask_for_nothing() {
    let line = "-kube-subnet-mgr=F -kube-api-url=http://a -kubeconfig-file=/a \
                -kube-annotation-prefix=Blue -net-config-path=";
    let options = options(line);
    assert!(matches!(options.store, Store::Etcd(_)));
}

#[test]
fn the_node_is_named_or_found_by_its_pod() {
    let pod: &[(&str, &str)] = &[("POD_NAME", "flannel-x"), ("POD_NAMESPACE", "kube-flannel")];
    assert_eq!(kube("", NAMED).node, NodeRef::Name("n1".into()));
    assert_eq!(kube("", &[NAMED, pod].concat()).node, NodeRef::Name("n1".into()));
    let of_pod = NodeRef::OfPod { namespace: "kube-flannel".into(), name: "flannel-x".into() };
    assert_eq!(kube("", pod).node, of_pod);
    assert_eq!(kube("", pod).namespace.as_deref(), Some("kube-flannel"));
    assert_eq!(kube("", &[NAMED, pod].concat()).pod, None);
    let known = kube("", &[NAMED, pod, &[("POD_UID", "5f1c")]].concat()).pod;
    assert_eq!(known, Some(PodRef { name: "flannel-x".into(), uid: "5f1c".into() }));
    let said =
        "--kube-subnet-mgr needs NODE_NAME, or POD_NAME and POD_NAMESPACE, in the environment";
    for incomplete in [&[][..], &[("POD_NAME", "flannel-x")], &[("NODE_NAME", "")]] {
        assert_eq!(refusal("-kube-subnet-mgr", incomplete), (said.to_owned(), 2));
    }
}

#[test]
fn api_servers_are_separated_by_commas() {
    let urls = kube("-kube-api-url=https://10.0.0.10:6443/,10.0.0.11:6443", NAMED).api.urls;
    assert_eq!(urls, ["https://10.0.0.10:6443", "https://10.0.0.11:6443"]);
    assert!(kube("-kube-api-url=", NAMED).api.urls.is_empty());
    for bad in ["ftp://a", "https://root:secret@a", "https://"] {
        let (said, code) = refusal(&format!("-kube-subnet-mgr -kube-api-url={bad}"), NAMED);
        assert!(said.ends_with("allowed: https:// with host and port"), "{said}");
        assert_eq!(code, 2);
    }
}

#[test]
fn the_rest_is_taken_as_it_is_said() {
    let line = "-kubeconfig-file=/k -kube-annotation-prefix=example.org/blue -net-config-path=/n \
                -set-node-network-unavailable=false";
    let kube = kube(line, NAMED);
    assert_eq!(kube.api.kubeconfig, Some("/k".into()));
    assert_eq!(kube.annotation_prefix, "example.org/blue".parse().unwrap());
    assert_eq!((kube.net_config, kube.condition), ("/n".into(), Condition::Untouched));
    let (said, _) = refusal("-kube-subnet-mgr -kube-annotation-prefix=Blue", NAMED);
    assert!(said.contains("allowed: a domain like flannel.alpha.coreos.com"), "{said}");
}
