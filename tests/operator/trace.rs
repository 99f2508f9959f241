//! The hops of packets that pass a host, and the hop that drops them.

use expect_test::{Expect, expect};
use serde_json::json;
use tweed::model::entry::{Entry, Key, LinkName, Route};
use tweed::model::lease::LeaseId;
use tweed::model::node::{Interface, InterfaceAddress, Lifetime};
use tweed::model::path::{DegradedCause, Path, PeerReachability, UnknownCause, UnreachableCause};
use tweed::model::prefix::Family;
use tweed::model::status::PeerStatus;
use tweed::operator::{Error, ExitStatus};
use tweed::plan::trace::{Delivery, Hop, HopKind, HopState, PeerHops, Trace, TracedPacket};

use crate::host::Host;

const FLANNEL: &str = "flannel.1";

/// A host with a bridge for pods.
async fn host() -> Host {
    let host = Host::programmed().await;
    let bridge = LinkName::new("cni0");
    let address = InterfaceAddress {
        address: "10.244.1.1".parse().unwrap(),
        prefix_len: 24,
        usable: true,
        lifetime: Lifetime::Permanent,
    };
    let (name, addresses) = (bridge.clone(), vec![address]);
    host.kernel.add_interface(Interface { name, mtu: 1450, up: true, layer2: true, addresses });
    let route = Route::via("10.244.1.0/24".parse().unwrap(), "10.244.1.1".parse().unwrap(), bridge);
    host.kernel.set(Entry::Route(Route { gateway: None, protocol: 2, ..route }));
    host
}

async fn check(host: &Host, line: &str, exit_status: ExitStatus, expected: Expect) {
    let before = host.entries();
    let (found, text) = host.run(line).await.unwrap();
    assert_eq!(found, exit_status, "{text}");
    assert_eq!(host.entries(), before);
    assert!(host.kernel.take_log().is_empty());
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // The last sentence names the folder of the host.
    let (hops, sentence) = text.trim_end().rsplit_once("\n\n").unwrap();
    let (verdict, _) = sentence.split_once(';').unwrap();
    expected.assert_eq(&format!("{hops}\n\n{verdict}\n"));
}

/// What drops a packet to the peer behind the tunnel, after `harm`.
async fn is_dropped(harm: impl FnOnce(&Host), line: &str, expected: Expect) {
    let host = host().await;
    harm(&host);
    let (found, trace) = host.json(line).await.unwrap();
    assert_eq!(found, ExitStatus::Failing, "{trace}");
    let last = trace["hops"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["state"], &trace["delivery"]), (&json!("dropped"), &json!("dropped")));
    let [hop, text] = ["hop", "text"].map(|field| last[field].as_str().unwrap());
    expected.assert_eq(&format!("{hop}: {text}"));
}

const TO_TUNNEL: &str = "trace 10.244.1.7 10.244.3.9 --size 1450";
const FROM_TUNNEL: &str = "trace 10.244.3.9 10.244.1.7 --size 1450";

#[allow(clippy::too_many_lines, reason = "the lines are expected output")]
#[tokio::test]
async fn the_hops_of_a_delivered_packet_are_listed() {
    let host = host().await;
    check(
        &host,
        "trace 10.244.1.7 10.244.3.9 --size 1450",
        ExitStatus::Done,
        expect![[r"
            10.244.1.7 to 10.244.3.9, 1450 bytes

            pod         10.244.1.7 is a pod of this node, behind cni0
            mtu         1450 of at most 1450 bytes on cni0
            rule        no policy rule selects another table
            route       route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1
                          onlink
            nexthop     nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
            mtu         1450 of at most 1450 bytes on flannel.1
            forward     no rule of tweed drops it
            masquerade  no, it keeps its source: meta mark & 0x00004000 != 0x00004000 return
            neighbour   neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
            fdb         fdb 0a:00:00:00:00:09 dst 172.17.0.9 dev flannel.1
            underlay    1500 bytes to 172.17.0.9 by eth0, which has the MTU 1500
            guard       planned, not seen: 10.244.3.0/24 (172.17.0.9) accepts packets of the
                          tunnel from this node
            pod         planned, not seen: 10.244.3.0/24 (172.17.0.9) passes it to
                          10.244.3.9

            on 10.244.3.0/24 (172.17.0.9): planned, not seen: no daemon runs on this node

            delivered, as far as this node sees
        "]],
    )
    .await;
    check(
        &host,
        "trace 10.244.1.7 10.244.4.9",
        ExitStatus::Done,
        expect![[r"
            10.244.1.7 to 10.244.4.9, 84 bytes

            pod         10.244.1.7 is a pod of this node, behind cni0
            mtu         84 of at most 1450 bytes on cni0
            rule        no policy rule selects another table
            route       route 10.244.4.0/24 nhid 4096512016 via 172.16.0.10 dev eth0
            nexthop     nexthop id 4096512016 via 172.16.0.10 dev eth0
            mtu         84 of at most 1500 bytes on eth0
            forward     no rule of tweed drops it
            masquerade  no, it keeps its source: meta mark & 0x00004000 != 0x00004000 return
            neighbour   172.16.0.10 is resolved on eth0, when the packet is sent: not read
            guard       planned, not seen: does not apply: it is no packet of the tunnel
            pod         planned, not seen: 10.244.4.0/24 (172.16.0.10) passes it to
                          10.244.4.9

            on 10.244.4.0/24 (172.16.0.10): planned, not seen: no daemon runs on this node

            delivered, as far as this node sees
        "]],
    )
    .await;
    check(
        &host,
        FROM_TUNNEL,
        ExitStatus::Done,
        expect![[r"
            10.244.3.9 to 10.244.1.7, 1450 bytes

            on 10.244.3.0/24 (172.17.0.9): planned, not seen: no daemon runs on this node

            on this node:
            peer        planned, not seen: 10.244.3.0/24 (172.17.0.9) sends it through the
                          tunnel
            guard       there is none: any host may send into the tunnel
            tunnel      flannel.1 decapsulates it
            rule        no policy rule selects another table
            route       route 10.244.1.0/24 dev cni0 proto 2
            mtu         1450 of at most 1450 bytes on cni0
            forward     no rule of tweed drops it
            masquerade  no, it keeps its source: ip daddr 10.244.1.0/24 return
            pod         10.244.1.7 is resolved on cni0, when the packet is sent

            delivered, as far as this node sees
        "]],
    )
    .await;
    check(
        &host,
        "trace 10.244.4.9 10.244.1.7",
        ExitStatus::Done,
        expect![[r"
            10.244.4.9 to 10.244.1.7, 84 bytes

            on 10.244.4.0/24 (172.16.0.10): planned, not seen: no daemon runs on this node

            on this node:
            peer        planned, not seen: 10.244.4.0/24 (172.16.0.10) sends it directly
            guard       does not apply: it is no packet of the tunnel
            rule        no policy rule selects another table
            route       route 10.244.1.0/24 dev cni0 proto 2
            mtu         84 of at most 1450 bytes on cni0
            forward     no rule of tweed drops it
            masquerade  no, it keeps its source: ip daddr 10.244.1.0/24 return
            pod         10.244.1.7 is resolved on cni0, when the packet is sent

            delivered, as far as this node sees
        "]],
    )
    .await;
    check(
        &host,
        "trace 10.244.1.7 192.0.2.1",
        ExitStatus::Done,
        expect![[r"
            10.244.1.7 to 192.0.2.1, 84 bytes

            pod         10.244.1.7 is a pod of this node, behind cni0
            mtu         84 of at most 1450 bytes on cni0
            route       the kernel sends packets to 192.0.2.1 by eth0
            mtu         84 of at most 1500 bytes on eth0
            forward     no rule of tweed drops it
            masquerade  no, it keeps its source: ip daddr != 10.244.0.0/16 return
            outside     planned, not seen: other hosts need a route to 10.244.1.0/24 for
                          their answers

            delivered, as far as this node sees
        "]],
    )
    .await;
    check(
        &host,
        "trace 10.244.1.7 10.244.1.8",
        ExitStatus::Done,
        expect![[r"
            10.244.1.7 to 10.244.1.8, 84 bytes

            pod         10.244.1.7 is a pod of this node, behind cni0
            mtu         84 of at most 1450 bytes on cni0
            pod         cni0 passes it to 10.244.1.8: it is not routed

            delivered
        "]],
    )
    .await;
}

/// The peer behind the tunnel, as the daemon reports it.
fn peer(reachability: PeerReachability) -> PeerStatus {
    let (subnet, public_ip) = ("10.244.3.0/24".parse().ok(), "172.17.0.9".parse().ok());
    PeerStatus {
        lease: LeaseId::new("10.244.3.0-24"),
        family: Some(Family::V4),
        subnet,
        public_ip,
        backend: "vxlan".to_owned(),
        path: Some(Path::Tunnel),
        reason: None,
        programmed: true,
        reachability: Some(reachability),
        probes: None,
    }
}

#[tokio::test]
async fn a_packet_is_not_delivered_where_probes_are_lost() {
    let (unreachable, lossy) = (UnreachableCause::TunnelSilent, DegradedCause::Loss);
    let unreachable = PeerReachability::Unreachable { cause: unreachable, since_ms: Some(7000) };
    let degraded = |cause| PeerReachability::Degraded { cause };
    let unknown = PeerReachability::Unknown { cause: UnknownCause::NeverAnswered };
    let large = "--size 1400";
    let rows = [
        (PeerReachability::Reachable, large, "delivered", "passed", "answers by this path"),
        (unreachable, large, "unknown", "unknown", "is unreachable: direct probes are answered"),
        (unreachable, "--size 60", "unknown", "unknown", "is unreachable"),
        (degraded(lossy), large, "delivered", "passed", "is degraded: 5 %"),
        (degraded(DegradedCause::LargeLost), large, "unknown", "unknown", "check the MTU"),
        (degraded(DegradedCause::LargeLost), "--size 60", "delivered", "passed", "check the MTU"),
        (unknown, large, "delivered", "planned", "is unknown: it has never answered"),
    ];
    let host = &host().await;
    for (reachability, size, delivery, state, text) in rows {
        let work = async || {
            for line in ["trace 10.244.1.7 10.244.3.9", "trace 10.244.3.9 10.244.1.7"] {
                let (found, trace) = host.json(&format!("{line} {size}")).await.unwrap();
                let hops = trace["hops"].as_array().unwrap();
                let probe = hops.iter().find(|hop| hop["hop"] == "probe").unwrap();
                assert_eq!(
                    (&trace["delivery"], &probe["state"]),
                    (&json!(delivery), &json!(state))
                );
                assert!(probe["text"].as_str().unwrap().contains(text), "{probe}");
                let is_delivered = delivery == "delivered";
                assert_eq!(found == ExitStatus::Done, is_delivered, "{trace}");
                assert_eq!(found == ExitStatus::Unexamined, !is_delivered, "{trace}");
            }
            // Nothing is probed on the way to another peer.
            let (_, trace) = host.json("trace 10.244.1.7 10.244.4.9").await.unwrap();
            assert!(!trace.to_string().contains("\"probe\""), "{trace}");
        };
        host.next_to_a_daemon_with(&[peer(reachability)], work).await;
        std::fs::remove_file(host.folder.path().join("subnet.sock")).unwrap();
    }
}

#[tokio::test]
async fn the_hop_that_drops_a_packet_is_named() {
    let base = || "10.244.3.0".parse().unwrap();
    let device = || LinkName::new(FLANNEL);
    let mac = || "0a:00:00:00:00:09".parse().unwrap();
    let lose = |key: Key| move |host: &Host| host.kernel.lose(&key);
    let set = |text: &'static str| move |host: &Host| host.kernel.set(crate::notation::entry(text));
    let subnet = "10.244.3.0/24".parse().unwrap();
    is_dropped(lose(Key::Route(subnet, 0)), TO_TUNNEL, expect!["route: the main table has no route to 10.244.3.0/24 (172.17.0.9); another route, by eth0, leads out of the network"]).await;
    is_dropped(
        lose(Key::Neighbour(device(), base())),
        TO_TUNNEL,
        expect!["neighbour: flannel.1 has no neighbour 10.244.3.0, and no host answers for it"],
    )
    .await;
    is_dropped(
        lose(Key::Fdb(device(), mac())),
        TO_TUNNEL,
        expect!["fdb: flannel.1 has no forwarding entry for 0a:00:00:00:00:09"],
    )
    .await;
    let elsewhere = "fdb 0a:00:00:00:00:09 dst 172.17.0.99 dev flannel.1";
    is_dropped(
        set(elsewhere),
        TO_TUNNEL,
        expect!["fdb: the forwarding entry leads to 172.17.0.99, and the peer is 172.17.0.9"],
    )
    .await;
    let other_mac = "neigh 10.244.3.0 lladdr 0a:00:00:00:00:0a dev flannel.1";
    is_dropped(
        set(other_mac),
        TO_TUNNEL,
        expect!["fdb: the forwarding entry leads to 172.16.0.10, and the peer is 172.17.0.9"],
    )
    .await;
    is_dropped(
        |_| {},
        "trace 10.244.1.7 10.244.3.9 --size 1451",
        expect!["mtu: 1451 bytes are more than the MTU 1450 of cni0"],
    )
    .await;
    let strict = |host: &Host| {
        set("rp_filter strict dev flannel.1")(host);
        set("route 10.244.3.0/24 via 172.16.0.10 dev eth0")(host);
    };
    is_dropped(strict, FROM_TUNNEL, expect!["filter: rp_filter of flannel.1 is strict, and the route back to 10.244.3.9 is by another link"]).await;
}

#[tokio::test]
async fn what_no_trace_can_answer_is_refused_in_one_sentence() {
    let host = host().await;
    for (line, expected) in [
        ("10.244.1.7 fd00::9", "10.244.1.7 and fd00::9 are of different address families"),
        (
            "10.244.1.7 10.244.3.9 --size 27",
            "a packet of 27 bytes is not possible: the size is 28 to 65535 bytes",
        ),
        (
            "10.244.1.7 10.244.3.9 --size 65536",
            "a packet of 65536 bytes is not possible: the size is 28 to 65535 bytes",
        ),
        (
            "10.244.1.7 224.0.0.1",
            "224.0.0.1 is a multicast address: only packets to one host are traced",
        ),
        (
            "10.244.1.7 10.244.9.9",
            "10.244.9.9 is in the network of pods 10.244.0.0/16, and in no lease",
        ),
        ("192.0.2.1 10.244.1.7", "192.0.2.1 is in no lease, and is not an address of this node"),
        (
            "10.244.3.9 10.244.4.9",
            "packets from 10.244.3.9 to 10.244.4.9 do not pass this node: trace them on the node \
             172.17.0.9, which has the subnet of 10.244.3.9",
        ),
        ("fd00::1 fd00::9", ""),
    ] {
        match host.run(&format!("trace {line}")).await.err().unwrap() {
            Error::Usage(reason) => assert_eq!(reason, expected),
            Error::Unavailable(reason) => {
                assert_eq!((reason.as_str(), expected), ("this node has no lease of IPv6 yet", ""));
            }
            other => panic!("{other}"),
        }
    }
}

/// The hops on the peer, as its daemon answers.
fn seen(leaves_by: Option<Path>, hops: &[(HopKind, HopState, &str)]) -> PeerHops {
    let [source, destination] = ["10.244.1.7", "10.244.3.9"].map(|it| it.parse().unwrap());
    let packet = TracedPacket::parse(source, destination, 84).unwrap();
    let dropped = hops.iter().any(|(_, state, _)| *state == HopState::Dropped);
    let delivery = if dropped { Delivery::Dropped } else { Delivery::Delivered };
    let hop = |(hop, state, text): &(_, _, &str)| Hop {
        hop: *hop,
        state: *state,
        text: (*text).to_owned(),
    };
    let hops = hops.iter().map(hop).collect();
    PeerHops::Seen(Trace { packet, translated_to: None, leaves_by, hops, delivery })
}

const ARRIVAL: [(HopKind, HopState, &str); 8] = [
    (
        HopKind::Guard,
        HopState::Passed,
        "accepts packets of the tunnel from 172.16.0.5: udp dport 8472 iifname \"eth0\" ip saddr \
         @peers ip daddr 172.17.0.9/32 accept",
    ),
    (HopKind::Tunnel, HopState::Passed, "flannel.1 decapsulates it"),
    (HopKind::Rule, HopState::Passed, "no policy rule selects another table"),
    (HopKind::Route, HopState::Passed, "route 10.244.3.0/24 dev cni0 proto 2"),
    (HopKind::Mtu, HopState::Passed, "1450 of at most 1450 bytes on cni0"),
    (HopKind::Forward, HopState::Passed, "no rule of tweed drops it"),
    (
        HopKind::Masquerade,
        HopState::Passed,
        "no, it keeps its source: ip saddr 10.244.0.0/16 ip daddr 10.244.3.0/24 return",
    ),
    (HopKind::Pod, HopState::Passed, "10.244.3.9 is resolved on cni0, when the packet is sent"),
];
const SENDING: [(HopKind, HopState, &str); 2] = [
    (HopKind::Pod, HopState::Passed, "10.244.3.9 is a pod of this node, behind cni0"),
    (HopKind::Route, HopState::Passed, "route 10.244.1.0/24 via 172.16.0.5 dev eth0"),
];

#[allow(clippy::too_many_lines, reason = "the lines are expected output")]
#[tokio::test]
async fn the_hops_on_the_peer_are_those_that_its_daemon_answers() {
    let host = &host().await;
    let answers = |path: &str| match path {
        "/trace/10.244.3.0/10.244.1.7/10.244.3.9/1450/tunnel" => seen(None, &ARRIVAL),
        "/trace/10.244.3.0/10.244.3.9/10.244.1.7/84/sent" => seen(Some(Path::Direct), &SENDING),
        other => panic!("{other}"),
    };
    let work = async || {
        let (out, back) =
            ("trace 10.244.1.7 10.244.3.9 --size 1450", "trace 10.244.3.9 10.244.1.7");
        check(
            host,
            out,
            ExitStatus::Done,
            expect![[r#"
                10.244.1.7 to 10.244.3.9, 1450 bytes

                pod         10.244.1.7 is a pod of this node, behind cni0
                mtu         1450 of at most 1450 bytes on cni0
                rule        no policy rule selects another table
                route       route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1
                              onlink
                nexthop     nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
                mtu         1450 of at most 1450 bytes on flannel.1
                forward     no rule of tweed drops it
                masquerade  no, it keeps its source: meta mark & 0x00004000 != 0x00004000 return
                neighbour   neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
                fdb         fdb 0a:00:00:00:00:09 dst 172.17.0.9 dev flannel.1
                underlay    1500 bytes to 172.17.0.9 by eth0, which has the MTU 1500

                on 10.244.3.0/24 (172.17.0.9), by its daemon:
                guard       accepts packets of the tunnel from 172.16.0.5: udp dport 8472
                              iifname "eth0" ip saddr @peers ip daddr 172.17.0.9/32 accept
                tunnel      flannel.1 decapsulates it
                rule        no policy rule selects another table
                route       route 10.244.3.0/24 dev cni0 proto 2
                mtu         1450 of at most 1450 bytes on cni0
                forward     no rule of tweed drops it
                masquerade  no, it keeps its source: ip saddr 10.244.0.0/16 ip daddr
                              10.244.3.0/24 return
                pod         10.244.3.9 is resolved on cni0, when the packet is sent

                delivered
            "#]],
        )
        .await;
        check(
            host,
            back,
            ExitStatus::Done,
            expect![[r"
            10.244.3.9 to 10.244.1.7, 84 bytes

            on 10.244.3.0/24 (172.17.0.9), by its daemon:
            pod         10.244.3.9 is a pod of this node, behind cni0
            route       route 10.244.1.0/24 via 172.16.0.5 dev eth0

            on this node:
            guard       does not apply: it is no packet of the tunnel
            rule        no policy rule selects another table
            route       route 10.244.1.0/24 dev cni0 proto 2
            mtu         84 of at most 1450 bytes on cni0
            forward     no rule of tweed drops it
            masquerade  no, it keeps its source: ip daddr 10.244.1.0/24 return
            pod         10.244.1.7 is resolved on cni0, when the packet is sent

            delivered
        "]],
        )
        .await;
        let (_, trace) = host.json(out).await.unwrap();
        let peer = &trace["peer"];
        assert_eq!((&peer["role"], &peer["subnet"]), (&json!("receiver"), &json!("10.244.3.0/24")));
        assert_eq!(peer["seen"]["hops"][7]["hop"], "pod");
    };
    host.next_to_a_daemon_that_asks(&[], answers, work).await;
}

#[tokio::test]
async fn a_packet_that_the_peer_drops_is_dropped() {
    let host = &host().await;
    let route = (HopKind::Route, HopState::Dropped, "the main table has no route");
    let answers = |path: &str| match path {
        "/trace/10.244.3.0/10.244.1.7/10.244.3.9/84/tunnel" => seen(None, &[ARRIVAL[0], route]),
        "/trace/10.244.3.0/10.244.3.9/10.244.1.7/84/sent" => seen(None, &[SENDING[0], route]),
        other => panic!("{other}"),
    };
    let work = async || {
        let (out, back) = ("trace 10.244.1.7 10.244.3.9", "trace 10.244.3.9 10.244.1.7");
        for line in [out, back] {
            let (exit_status, text) = host.run(line).await.unwrap();
            assert_eq!(exit_status, ExitStatus::Failing, "{text}");
            assert!(text.contains("\ndropped: route on 10.244.3.0/24 (172.17.0.9);"), "{text}");
            let (_, trace) = host.json(line).await.unwrap();
            assert_eq!(trace["delivery"], "dropped");
            // The packet does not arrive here.
            assert_eq!(trace["hops"].as_array().unwrap().is_empty(), line == back, "{trace}");
        }
    };
    host.next_to_a_daemon_that_asks(&[], answers, work).await;
}

#[tokio::test]
async fn without_an_answer_the_reason_is_shown() {
    let host = &host().await;
    let (_, text) = host.run("trace 10.244.1.7 10.244.3.9").await.unwrap();
    let line = "on 10.244.3.0/24 (172.17.0.9): planned, not seen: ";
    assert!(text.contains(&format!("\n{line}no daemon runs on this node\n")), "{text}");
    let answers = |_: &str| PeerHops::Unseen("probes are off in the network config".to_owned());
    let work = async || {
        for line in ["trace 10.244.1.7 10.244.3.9", "trace 10.244.3.9 10.244.1.7"] {
            let (exit_status, trace) = host.json(line).await.unwrap();
            assert_eq!(exit_status, ExitStatus::Done);
            assert_eq!(trace["peer"]["unseen"], "probes are off in the network config");
            let hops = trace["hops"].as_array().unwrap();
            assert!(hops.iter().any(|hop| hop["state"] == "planned"), "{trace}");
        }
        // A packet that is dropped here is no question for the peer.
        let (_, trace) = host.json("trace 10.244.1.7 10.244.3.9 --size 1451").await.unwrap();
        assert_eq!(trace["peer"], json!(null));
        let (_, trace) = host.json("trace 10.244.1.7 192.0.2.1").await.unwrap();
        assert_eq!(trace["peer"], json!(null));
    };
    host.next_to_a_daemon_that_asks(&[], answers, work).await;
}
