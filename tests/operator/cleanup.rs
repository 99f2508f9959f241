//! Removals: their output and their effect.

use expect_test::{Expect, expect};
use serde_json::json;
use tweed::model::checkpoint::{self, Checkpoint};
use tweed::model::entry::{Entry, Link, LinkKind, LinkName};
use tweed::operator::{Error, ExitStatus};

use crate::host::{Host, inputs};

/// Omits the source of the inputs if it is the checkpoint.
fn check(host: &Host, text: &str, expected: &Expect) {
    let mut is_in_source = false;
    let mut shown = String::new();
    for line in text.lines() {
        is_in_source = line.starts_with(SOURCE) || (is_in_source && line.starts_with("  "));
        match line {
            line if line.starts_with(SOURCE) => shown += SOURCE,
            _ if is_in_source => continue,
            line => shown += line,
        }
        shown.push('\n');
    }
    expected.assert_eq(&host.anonymous(&shown, "DIR"));
}

const SOURCE: &str = "read from the checkpoint";

#[tokio::test]
async fn without_yes_the_removal_is_only_listed() {
    let host = Host::programmed().await;
    let before = host.entries();
    let (exit_status, listed) = host.run("cleanup").await.unwrap();
    assert_eq!(exit_status, ExitStatus::Done);
    check(
        &host,
        &listed,
        &expect![[r"
            ~ rp_filter strict dev eth0
            - route 10.244.4.0/32 dev flannel.1
            - route 10.244.4.0/24 nhid 4096512016 via 172.16.0.10 dev eth0
            - route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
            - nexthop id 4096512016 via 172.16.0.10 dev eth0
            - nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
            - neigh 10.244.4.0 lladdr 0a:00:00:00:00:0a dev flannel.1
            - neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
            - fdb 0a:00:00:00:00:0a dst 172.16.0.10 dev flannel.1
            - fdb 0a:00:00:00:00:09 dst 172.17.0.9 dev flannel.1
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
            - addr 10.244.1.0/32 dev flannel.1
            - link flannel.1 up mtu 1450 address 0a:00:00:00:00:05 type vxlan id 1 local
                172.16.0.5 dev eth0 dstport 8472 nolearning
            - file DIR/subnet.env
            - file DIR/subnet.state.json
            14 kernel entries and 2 files of tweed; --yes removes them
            read from the checkpoint
        "]],
    );
    assert_eq!(host.entries(), before);
    assert!(host.kernel.take_log().is_empty() && host.state_file().exists());
}

#[tokio::test]
async fn entries_of_tweed_are_removed_and_others_stay() {
    let host = Host::programmed().await;
    let (exit_status, removed) = host.json("cleanup --yes").await.unwrap();
    assert_eq!((&removed["outcome"], exit_status), (&json!("removed"), ExitStatus::Done));
    expect![[r"
        rp_filter strict dev eth0
        route 10.244.77.0/24 via 172.16.0.1 dev eth0 proto 4
        route 192.168.7.0/24 via 172.16.0.1 dev eth0"]]
    .assert_eq(&host.entries().join("\n"));
    assert_eq!(std::fs::read_dir(host.folder.path()).unwrap().count(), 0);

    let (exit_status, again) = host.run("cleanup --yes").await.unwrap();
    assert_eq!(exit_status, ExitStatus::Done);
    expect![[r"
        no entries or files of tweed found
        no daemon, checkpoint or subnet file found; if routes are left, name the network
          with --network and --vni
    "]]
    .assert_eq(&again);
}

#[tokio::test]
async fn a_refusal_keeps_the_checkpoint_for_another_try() {
    let host = Host::programmed().await;
    host.kernel.refuse("route 10.244.4.0/24", "Operation not permitted (EPERM)");
    let (exit_status, refused) = host.run("cleanup --yes").await.unwrap();
    assert_eq!(exit_status, ExitStatus::Problems);
    check(
        &host,
        &refused,
        &expect![[r"
            ~ rp_filter strict dev eth0
            - route 10.244.4.0/32 dev flannel.1
            - route 10.244.4.0/24 nhid 4096512016 via 172.16.0.10 dev eth0
            - route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
            - nexthop id 4096512016 via 172.16.0.10 dev eth0
            - nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
            - neigh 10.244.4.0 lladdr 0a:00:00:00:00:0a dev flannel.1
            - neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
            - fdb 0a:00:00:00:00:0a dst 172.16.0.10 dev flannel.1
            - fdb 0a:00:00:00:00:09 dst 172.17.0.9 dev flannel.1
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
            - addr 10.244.1.0/32 dev flannel.1
            - link flannel.1 up mtu 1450 address 0a:00:00:00:00:05 type vxlan id 1 local
                172.16.0.5 dev eth0 dstport 8472 nolearning
            - file DIR/subnet.env
            - file DIR/subnet.state.json
            14 kernel entries and 2 files of tweed, of which 1 refused: run the command
              again
            read from the checkpoint
            refused: - route 10.244.4.0/24 nhid 4096512016 via 172.16.0.10 dev eth0:
                Operation not permitted (EPERM)
        "]],
    );
    assert!(host.state_file().exists());

    host.kernel.allow("route 10.244.4.0/24");
    assert_eq!(host.json("cleanup --yes").await.unwrap().1["outcome"], "removed");
}

#[tokio::test]
async fn an_unknown_network_can_be_named() {
    let host = Host::programmed().await;
    std::fs::remove_file(host.state_file()).unwrap();
    let error = host.run("cleanup").await.err().unwrap();
    assert!(
        matches!(&error, Error::Unavailable(why) if why.ends_with("the network with --network and --vni"))
    );

    let (_, listed) = host.run("cleanup --network 10.244.0.0/16").await.unwrap();
    check(
        &host,
        &listed,
        &expect![[r"
            - route 10.244.4.0/32 dev flannel.1
            - route 10.244.4.0/24 nhid 4096512016 via 172.16.0.10 dev eth0
            - route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
            - nexthop id 4096512016 via 172.16.0.10 dev eth0
            - nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
            - neigh 10.244.4.0 lladdr 0a:00:00:00:00:0a dev flannel.1
            - neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
            - fdb 0a:00:00:00:00:0a dst 172.16.0.10 dev flannel.1
            - fdb 0a:00:00:00:00:09 dst 172.17.0.9 dev flannel.1
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
            - addr 10.244.1.0/32 dev flannel.1
            - link flannel.1 up mtu 1450 address 0a:00:00:00:00:05 type vxlan id 1 local
                172.16.0.5 dev eth0 dstport 8472 nolearning
            - file DIR/subnet.env
            13 kernel entries and 1 file of tweed; --yes removes them
            from --network 10.244.0.0/16 and --vni 1
        "]],
    );
    let (_, listed) = host.json("cleanup --network 10.99.0.0/16 --vni 7").await.unwrap();
    assert_eq!(listed["entries"], json!([]));
}

#[tokio::test]
async fn what_the_checkpoint_knows_is_not_overridden() {
    let host = Host::programmed().await;
    for refused in ["cleanup --yes --network 10.224.0.0/16", "handover --network 10.224.0.0/16"] {
        let error = host.run(refused).await.err().unwrap().to_string();
        assert!(error.contains("the network is 10.244.0.0/16"), "{error}");
    }
    assert!(host.state_file().exists() && host.kernel.take_log().is_empty());
    let (_, named) = host.json("cleanup --network 10.244.0.0/16 --vni 7").await.unwrap();
    let (_, known) = host.json("cleanup").await.unwrap();
    assert_eq!(named, known);

    std::fs::remove_file(host.state_file()).unwrap();
    let error = host.run("cleanup --yes --lease --network 10.244.0.0/16").await.err().unwrap();
    assert!(error.to_string().contains("the lease of this node is unknown"), "{error}");
    assert!(host.kernel.take_log().is_empty());
    let (exit_status, _) = host.run("cleanup --yes --network 10.244.0.0/16").await.unwrap();
    assert_eq!(exit_status, ExitStatus::Done);
    let (exit_status, _) = host.run("cleanup --yes --lease").await.unwrap();
    assert_eq!(exit_status, ExitStatus::Done);
}

#[tokio::test]
async fn a_device_of_another_kind_with_the_same_name_stays() {
    let host = Host::bare();
    host.kernel.set(Entry::Link(Link {
        name: LinkName::new("flannel.1"),
        kind: LinkKind::Other("dummy".into()),
        mtu: 1500,
        mac: "0a:00:00:00:00:63".parse().unwrap(),
        up: true,
    }));
    let (_, listed) = host.json("cleanup").await.unwrap();
    assert_eq!(listed["entries"], json!(["~ rp_filter strict dev eth0"]));
}

#[tokio::test]
async fn filters_of_an_earlier_boot_are_not_made_strict() {
    let host = Host::bare();
    host.save(&Checkpoint { host: checkpoint::HostId::default(), ..inputs() });
    let (_, listed) = host.json("cleanup").await.unwrap();
    assert_eq!(listed["entries"], json!([]));
}

#[tokio::test]
async fn next_to_a_daemon_only_force_removes() {
    let host = Host::programmed().await;
    host.next_to_a_daemon(async || {
        let (_, listed) = host.json("cleanup").await.unwrap();
        assert_eq!(listed["files"].as_array().map(Vec::len), Some(3));
        let refused = host.run("cleanup --yes").await.err().unwrap();
        assert!(
            matches!(&refused, Error::Refused(why) if why.contains("stop it first")),
            "{refused}"
        );
        assert_eq!(host.kernel.take_log(), []);
        let (_, forced) = host.json("cleanup --yes --force").await.unwrap();
        assert_eq!(forced["outcome"], "removed");
    })
    .await;
}
