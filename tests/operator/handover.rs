//! A node that is handed over to flanneld: output and effect.

use expect_test::{Expect, expect};
use serde_json::Value;
use tweed::model::entry::{Entry, Key, Table};
use tweed::model::policy::{Guard, Masquerade};
use tweed::operator::{Error, ExitStatus};
use tweed::plan::masquerade;

use crate::host::{Host, desired, inputs};

/// No etcd listens there.
const ETCD: &str = "--etcd-endpoints=http://127.0.0.1:1";

async fn run(host: &Host, line: &str) -> Result<(ExitStatus, String), Error> {
    host.run(&format!("{line} {ETCD}")).await
}

async fn json(host: &Host, line: &str) -> (ExitStatus, Value) {
    host.json(&format!("{line} {ETCD}")).await.unwrap()
}

fn check(host: &Host, text: &str, expected: &Expect) {
    let text: String =
        text.lines().filter(|line| !line.contains("etcd")).collect::<Vec<_>>().join("\n");
    expected.assert_eq(&host.anonymous(&text, "DIR"));
}

#[tokio::test]
async fn a_dry_run_only_lists_the_changes() {
    let host = Host::programmed().await;
    let before = host.entries();
    let (exit_status, listed) = json(&host, "handover --dry-run").await;
    assert_eq!((exit_status, &listed["report"]), (ExitStatus::Done, &Value::Null));
    assert_eq!(host.entries(), before);
    assert!(host.kernel.take_log().is_empty() && host.state_file().exists());
}

#[tokio::test]
async fn routes_get_flannels_form_in_place_and_all_else_that_packets_need_stays() {
    let host = Host::programmed().await;
    let (exit_status, handover) = run(&host, "handover").await.unwrap();
    assert_eq!(exit_status, ExitStatus::Done);
    check(
        &host,
        &handover,
        &expect![[r"
        ~ rp_filter strict dev eth0
        ~ route 10.244.3.0/24 via 10.244.3.0 dev flannel.1 proto 3 onlink
        ~ route 10.244.4.0/24 via 172.16.0.10 dev eth0 proto 3
        - route 10.244.4.0/32 dev flannel.1
        - nexthop id 4096512016 via 172.16.0.10 dev eth0
        - nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
        - table ip tweed.1 { chain fixed-source { type nat hook postrouting priority
            srcnat - 1;
            policy accept;
            ip daddr != 10.244.0.0/16 return;
            ip daddr 10.244.1.0/24 return;
            meta mark & 0x00004000 != 0x00004000 return;
            meta mark set meta mark & 0xffffbfff;
            snat to 10.244.1.1 fully-random;
            };
            }
        - addr 10.244.1.0/32 dev lo
        - file DIR/subnet.state.json
        handed over with 8 changes and 1 file: start flanneld
        read from the checkpoint DIR/subnet.state.json, because no daemon
          answers on DIR/subnet.sock"]],
    );
    expect![[r"
        link flannel.1 up mtu 1450 address 0a:00:00:00:00:05 type vxlan id 1 local 172.16.0.5 dev eth0 dstport 8472 nolearning
        rp_filter strict dev eth0
        rp_filter loose dev flannel.1
        accept_ra 0 dev flannel.1
        addr 10.244.1.0/32 dev flannel.1
        fdb 0a:00:00:00:00:09 dst 172.17.0.9 dev flannel.1
        fdb 0a:00:00:00:00:0a dst 172.16.0.10 dev flannel.1
        neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
        neigh 10.244.4.0 lladdr 0a:00:00:00:00:0a dev flannel.1
        route 10.244.3.0/24 via 10.244.3.0 dev flannel.1 proto 3 onlink
        route 10.244.4.0/24 via 172.16.0.10 dev eth0 proto 3
        route 10.244.77.0/24 via 172.16.0.1 dev eth0 proto 4
        route 192.168.7.0/24 via 172.16.0.1 dev eth0"]].assert_eq(&host.entries().join("\n"));
    assert!(!host.state_file().exists() && host.subnet_file().exists());

    // A second handover, with only the subnet file, finds nothing to do.
    std::fs::write(host.subnet_file(), "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n").unwrap();
    let (exit_status, again) = json(&host, "handover").await;
    assert_eq!(
        (&again["entries"], &again["files"], exit_status),
        (&serde_json::json!([]), &serde_json::json!([]), ExitStatus::Done)
    );
}

#[tokio::test]
async fn without_checkpoint_and_subnet_file_nothing_is_called_handed_over() {
    let host = Host::programmed().await;
    std::fs::remove_file(host.state_file()).unwrap();
    let before = host.entries();
    for text in ["FLANNEL_MTU=1450", "no subnet file", ""] {
        std::fs::write(host.subnet_file(), text).unwrap();
        let refused = run(&host, "handover").await.unwrap_err().to_string();
        assert!(refused.contains("--subnet-file") && refused.contains("--network"), "{refused}");
    }
    std::fs::remove_file(host.subnet_file()).unwrap();
    run(&host, "handover").await.unwrap_err();
    assert_eq!(host.entries(), before);
}

#[tokio::test]
async fn an_address_that_is_on_the_loopback_alone_stays_there() {
    let host = Host::programmed().await;
    let words = |entry: &Entry| entry.to_string().starts_with("addr 10.244.1.0/32 dev flannel.1");
    let on_tunnel = host.kernel.state().entries().find(|entry| words(entry)).unwrap().key();
    host.kernel.lose(&on_tunnel);
    assert_eq!(json(&host, "handover").await.1["outcome"], "removed");
    assert!(host.entries().contains(&"addr 10.244.1.0/32 dev lo".to_owned()));
}

#[tokio::test]
async fn the_guard_is_removed_with_its_content_and_tables_of_flannel_stay() {
    let host = Host::programmed().await;
    let mut known = inputs();
    known.local.policy.guard = Some(Guard::default());
    known.local.policy.masquerade = Some(Masquerade::default());
    host.save(&known);
    desired(&known)
        .entries()
        .filter(|entry| !matches!(entry, Entry::Link(_)))
        .for_each(|entry| host.kernel.set(entry.clone()));
    let flannels = Table {
        name: masquerade::flannels_tables().next().unwrap().into(),
        chains: [].into(),
        foreign: 1,
    };
    host.kernel.set(Entry::Table(flannels.clone()));
    assert_eq!(json(&host, "handover").await.1["outcome"], "removed");
    let is_of_firewall =
        |key: &Key| matches!(key, Key::Table(_) | Key::Renewal(_) | Key::Element(..));
    let left: Vec<Key> = host.kernel.state().keys().filter(is_of_firewall).collect();
    assert_eq!(left, [Key::Table(flannels.name)]);
}

#[tokio::test]
async fn a_nexthop_object_that_a_route_still_needs_is_not_removed() {
    let host = Host::programmed().await;
    host.kernel.refuse("route 10.244.4.0/24", "Network is down");
    let (exit_status, _) = run(&host, "handover").await.unwrap();
    assert_eq!(exit_status, ExitStatus::Problems);
    let entries = host.entries();
    assert!(
        entries.iter().any(|entry| entry.starts_with("route 10.244.4.0/24 nhid")),
        "{entries:?}"
    );
    assert!(host.state_file().exists());
    host.kernel.allow("route 10.244.4.0/24");
    assert_eq!(json(&host, "handover").await.1["outcome"], "removed");
}

#[tokio::test]
async fn next_to_a_daemon_nothing_is_done() {
    let host = Host::programmed().await;
    host.next_to_a_daemon(async || {
        let refused = run(&host, "handover").await.err().unwrap();
        assert!(
            matches!(&refused, Error::Refused(why) if why.ends_with("stop it first")),
            "{refused}"
        );
        assert_eq!(host.kernel.take_log(), []);
    })
    .await;
}
