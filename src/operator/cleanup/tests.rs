//! Removals as they are shown and done.

#![allow(clippy::unwrap_used)]

use expect_test::{Expect, expect};

use super::super::options::Command;
use super::super::tests::{Host, command, inputs};
use super::*;
use crate::daemon::checkpoint;
use crate::daemon::http;
use crate::model::checkpoint::Checkpoint;
use crate::model::entry::{Entry, Link, LinkKind};

async fn run(host: &Host, line: &str) -> Result<Leftovers, Error> {
    let Command::Cleanup(options) = command(line) else { unreachable!() };
    answer(&host.files, &options, host.kernel.clone()).await
}

fn check(host: &Host, leftovers: Leftovers, expected: &Expect) {
    let source = "known from the checkpoint".to_owned();
    let text = Leftovers { source, ..leftovers }.to_string();
    expected.assert_eq(&text.replace(host.folder.path().to_str().unwrap(), "DIR"));
}

#[tokio::test]
async fn what_would_go_is_listed_and_nothing_is_done() {
    let host = Host::programmed().await;
    let before = host.entries();
    let listed = run(&host, "cleanup").await.unwrap();
    assert_eq!(listed.verdict(), Verdict::Well);
    check(
        &host,
        listed,
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
            14 kernel entries and 2 files of ours; --yes removes them
            known from the checkpoint
        "]],
    );
    assert_eq!(host.entries(), before);
    assert!(host.kernel.take_log().is_empty() && host.files.state_file().exists());
}

#[tokio::test]
async fn what_is_ours_goes_and_what_is_not_stays() {
    let host = Host::programmed().await;
    let removed = run(&host, "cleanup --yes").await.unwrap();
    assert_eq!((removed.outcome.clone(), removed.verdict()), (Outcome::Removed, Verdict::Well));
    expect![[r"
        rp_filter strict dev eth0
        route 10.244.77.0/24 via 172.16.0.1 dev eth0 proto 4
        route 192.168.7.0/24 via 172.16.0.1 dev eth0"]]
    .assert_eq(&host.entries().join("\n"));
    assert_eq!(std::fs::read_dir(host.folder.path()).unwrap().count(), 0);

    let again = run(&host, "cleanup --yes").await.unwrap();
    assert_eq!(again.verdict(), Verdict::Well);
    expect![[r"
        nothing of ours is left
        there is no daemon, no checkpoint and no subnet file; if routes are left, say
          which --network and --vni are ours
    "]]
    .assert_eq(&again.to_string());
}

#[tokio::test]
async fn a_refusal_keeps_the_checkpoint_for_another_try() {
    let host = Host::programmed().await;
    host.kernel.refuse("route 10.244.4.0/24", "Operation not permitted (EPERM)");
    let refused = run(&host, "cleanup --yes").await.unwrap();
    assert_eq!(refused.verdict(), Verdict::Amiss);
    check(
        &host,
        refused,
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
            14 kernel entries and 2 files of ours, of which 1 refused: run it again
            known from the checkpoint
            refused: - route 10.244.4.0/24 nhid 4096512016 via 172.16.0.10 dev eth0:
                Operation not permitted (EPERM)
        "]],
    );
    assert!(host.files.state_file().exists());

    host.kernel.allow("route 10.244.4.0/24");
    assert_eq!(run(&host, "cleanup --yes").await.unwrap().outcome, Outcome::Removed);
}

#[tokio::test]
async fn where_nobody_knows_the_network_it_can_be_said() {
    let host = Host::programmed().await;
    std::fs::remove_file(host.files.state_file()).unwrap();
    let error = run(&host, "cleanup").await.err().unwrap();
    assert!(
        matches!(&error, Error::CannotTell(why) if why.ends_with("say which --network and --vni are ours"))
    );

    let listed = run(&host, "cleanup --network 10.244.0.0/16").await.unwrap();
    assert_eq!(listed.source, "as --network 10.244.0.0/16 and --vni 1 say");
    check(
        &host,
        listed,
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
            13 kernel entries and 1 file of ours; --yes removes them
            known from the checkpoint
        "]],
    );
    let listed = run(&host, "cleanup --network 10.99.0.0/16 --vni 7").await.unwrap();
    assert!(listed.entries.is_empty());
}

#[tokio::test]
async fn a_device_that_only_bears_our_name_stays() {
    let host = Host::bare();
    host.kernel.set(Entry::Link(Link {
        name: LinkName::new("flannel.1"),
        kind: LinkKind::Other("dummy".into()),
        mtu: 1500,
        mac: "0a:00:00:00:00:63".parse().unwrap(),
        up: true,
    }));
    assert_eq!(run(&host, "cleanup").await.unwrap().entries, ["~ rp_filter strict dev eth0"]);
}

#[tokio::test]
async fn filters_of_an_earlier_boot_are_not_made_strict() {
    let host = Host::bare();
    let earlier = Checkpoint { host: crate::model::checkpoint::Host::default(), ..inputs() };
    checkpoint::save(&host.files.state_file(), &earlier).unwrap();
    assert_eq!(run(&host, "cleanup").await.unwrap().entries, [] as [&str; 0]);
}

#[tokio::test]
async fn beside_a_daemon_only_force_removes() {
    let host = Host::programmed().await;
    let listener = http::bind_control(&host.files.socket()).unwrap();
    let daemon =
        http::serve(listener, async |_| http::json(200, &crate::operator::tests::inputs()));
    tokio::select! {
        () = daemon => {}
        () = async {
            assert!(matches!(run(&host, "cleanup").await, Ok(listed) if listed.files.len() == 3));
            let refused = run(&host, "cleanup --yes").await.err().unwrap();
            assert!(matches!(&refused, Error::Refused(why) if why.contains("stop it first")), "{refused}");
            assert_eq!(host.kernel.take_log(), []);
            let forced = run(&host, "cleanup --yes --force").await.unwrap();
            assert_eq!(forced.outcome, Outcome::Removed);
        } => {}
    }
}
