//! Flags of Kubernetes, and variables that name the node.
#![allow(clippy::unwrap_used)]

use super::{options, parse, refusal};
use crate::daemon::options::StoreOptions;
use crate::store::kube::{AnnotationPrefix, KubeOptions, NodeRef, PodRef};

const NAMED: &[(&str, &str)] = &[("NODE_NAME", "n1")];

fn kube(line: &str, variables: &[(&str, &str)]) -> KubeOptions {
    match parse(&format!("-kube-subnet-mgr {line}"), variables).unwrap().store {
        StoreOptions::Kube(kube) => kube,
        StoreOptions::Etcd(etcd) => panic!("{etcd:?}"),
    }
}

#[test]
fn defaults_of_kubernetes_are_those_of_flanneld() {
    let kube = kube("", NAMED);
    assert_eq!((kube.api.urls, kube.api.kubeconfig, kube.namespace), (vec![], None, None));
    assert_eq!(kube.annotation_prefix, AnnotationPrefix::default());
    assert_eq!(kube.net_config.to_str(), Some("/etc/kube-flannel/net-conf.json"));
    assert!(kube.clears_condition);
}

#[test]
fn flags_of_kubernetes_have_no_effect_if_it_is_not_the_store() {
    let line = "-kube-subnet-mgr=F -kube-api-url=http://a -kubeconfig-file=/a \
                -kube-annotation-prefix=Blue -net-config-path=";
    let options = options(line);
    assert!(matches!(options.store, StoreOptions::Etcd(_)));
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
    let message =
        "--kube-subnet-mgr needs NODE_NAME, or POD_NAME and POD_NAMESPACE, in the environment";
    for incomplete in [&[][..], &[("POD_NAME", "flannel-x")], &[("NODE_NAME", "")]] {
        assert_eq!(refusal("-kube-subnet-mgr", incomplete), (message.to_owned(), 2));
    }
}

#[test]
fn api_servers_are_separated_by_commas() {
    let urls = kube("-kube-api-url=https://10.0.0.10:6443/,10.0.0.11:6443", NAMED).api.urls;
    assert_eq!(urls, ["https://10.0.0.10:6443", "https://10.0.0.11:6443"]);
    assert!(kube("-kube-api-url=", NAMED).api.urls.is_empty());
    for bad in ["ftp://a", "https://root:secret@a", "https://"] {
        let (message, code) = refusal(&format!("-kube-subnet-mgr -kube-api-url={bad}"), NAMED);
        assert!(message.ends_with("allowed: https:// with host and port"), "{message}");
        assert!(!message.contains("secret"), "{message}");
        assert_eq!(code, 2);
    }
}

#[test]
fn other_values_are_used_unchanged() {
    let line = "-kubeconfig-file=/k -kube-annotation-prefix=example.org/blue -net-config-path=/n \
                -set-node-network-unavailable=false";
    let kube = kube(line, NAMED);
    assert_eq!(kube.api.kubeconfig, Some("/k".into()));
    assert_eq!(kube.annotation_prefix, "example.org/blue".parse().unwrap());
    assert_eq!((kube.net_config, kube.clears_condition), ("/n".into(), false));
    let (message, _) = refusal("-kube-subnet-mgr -kube-annotation-prefix=Blue", NAMED);
    assert!(message.contains("allowed: a domain like flannel.alpha.coreos.com"), "{message}");
}
