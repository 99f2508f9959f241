//! Each finding, on a host with exactly one flaw.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod host;

use std::fs;
use std::path::Path;

use tweed_netlink::nftables::{FilterChain, TableFamily};

use super::*;
use crate::model::entry::{LinkName, Rule, Verdict};
use crate::model::prefix::Family;
use host::*;

/// The findings as text after `change` to a host without a flaw.
fn found(change: impl FnOnce(&mut Needs, &mut Host)) -> Vec<String> {
    let (mut needs, mut host) = (needs(), host());
    change(&mut needs, &mut host);
    words(&findings(&needs, &host))
}

fn words(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(|f| format!("{} {}: {}", f.level.as_str(), f.id, f.what)).collect()
}

#[test]
fn a_host_without_a_flaw_has_no_findings() {
    assert_eq!(found(|_, _| {}), [] as [&str; 0]);
}

#[test]
fn an_unknown_host_has_no_findings() {
    let findings = findings(&Needs::before_the_first_start(None, &[]), &Host::default());
    assert_eq!(words(&findings), [] as [&str; 0]);
}

#[test]
fn before_the_first_start_only_the_networks_have_to_be_known() {
    let networks = [prefix("10.244.0.0/16"), prefix("fd00:10:244::/56")];
    let needs = Needs::before_the_first_start(Some(LinkName::new("eth0")), &networks);
    assert_eq!((needs.families.as_slice(), needs.tunnels.len()), (Family::ALL.as_slice(), 2));
    let chains = vec![FilterChain { family: TableFamily::Both, ..forward(Verdict::Drop, []) }];
    let host = Host { sockets: Vec::new(), chains, ..host() };
    let found = words(&findings(&needs, &host));
    assert!(found.len() == 2 && found.iter().all(|f| f.contains("forward-drop")), "{found:?}");
}

type Change = fn(&mut Needs, &mut Host);

/// One flaw each, and the text of its finding.
const FLAWS: &[(Change, &str)] = &[
    (
        |_, host| host.other_daemons = vec![OtherDaemon::Process(812)],
        "fatal other-daemon: flanneld manages the routes of this host",
    ),
    (
        |_, host| host.other_daemons = vec![OtherDaemon::Health(8081)],
        "fatal other-daemon: flanneld manages the routes of this host",
    ),
    (
        |needs, host| {
            needs.networks = vec![prefix("172.16.0.0/12")];
            host.links[0].addresses.push(address("172.17.8.101/16"));
        },
        "warning network-overlap: Network 172.16.0.0/12 overlaps 172.17.0.0/16, the prefix of eth0",
    ),
    (
        |_, host| host.service = Some("10.244.0.1".parse().unwrap()),
        "warning network-overlap: Network 10.244.0.0/16 overlaps the service range of 10.244.0.1",
    ),
    (
        |_, host| set(host, "net/ipv4/ip_forward", "0"),
        "warning forwarding-off: this host does not forward IPv4",
    ),
    (
        |_, host| set(host, "net/ipv6/conf/all/forwarding", "0"),
        "warning forwarding-off: this host does not forward IPv6",
    ),
    (
        |_, host| bridge(host, "cni0", "10.244.7.0/24"),
        "warning bridge-of-another-subnet: bridge cni0 is of subnet 10.244.7.0/24, which this node \
         no longer has",
    ),
    (
        |_, host| host.chains.push(chain("KUBE-SERVICES", [])),
        "note bridge-netfilter-off: iptables does not see packets between pods of this node",
    ),
    (
        |_, host| set(host, "net/ipv4/conf/eth0/rp_filter", "1"),
        "warning strict-reverse-path: the reverse-path filter of eth0 is strict",
    ),
    (
        |_, host| set(host, "net/ipv4/conf/flannel.1/rp_filter", "0"),
        "warning strict-reverse-path: the reverse-path filter of flannel.1 is strict",
    ),
    (
        |needs, host| {
            needs.routing = Routing::Symmetric;
            set(host, "net/ipv4/conf/eth0/rp_filter", "0");
        },
        "note strict-reverse-path: the reverse-path filter of eth0 is strict",
    ),
    (
        |_, host| host.links[0].up = false,
        "warning underlay-down: eth0, the link towards the peers, is down",
    ),
    (
        |_, host| drop(host.links.remove(0)),
        "warning underlay-down: there is no link eth0, which leads to the peers",
    ),
    (
        |_, host| host.cni = cni(&[("00-multus.conf", r#"{"type":"multus"}"#), FLANNEL]),
        "note other-cni-config: runtimes use 00-multus.conf (plugins: multus), because it sorts \
         before 10-flannel.conf",
    ),
    (
        |_, host| host.cni = cni(&[("05-cilium.conf", r#"{"type":"cilium-cni"}"#), FLANNEL]),
        "warning other-cni-config: runtimes use 05-cilium.conf (plugins: cilium-cni), because it \
         sorts before 10-flannel.conf",
    ),
    (
        |_, host| host.cni = cni(&[("05-cilium.conf", "{"), FLANNEL]),
        "warning cni-config-invalid: 05-cilium.conf is no valid CNI config",
    ),
    (
        |_, host| host.cni.folders = plugins(&[&["flannel"]]),
        "warning cni-plugin-missing: the CNI plugin loopback is missing",
    ),
    (
        |_, host| host.cni.folders = plugins(&[&["flannel"], &["loopback"]]),
        "note cni-plugin-missing: the CNI plugin loopback is in /folder1, not next to flannel",
    ),
    (
        |_, host| host.unread.push(unread(Obstacle::Forbidden)),
        "unknown not-examined: rules of nftables were not examined",
    ),
    (
        |_, host| host.unread.push(unread(Obstacle::Failed("no buffer space".to_owned()))),
        "unknown not-examined: rules of nftables were not examined",
    ),
    (
        |_, host| host.unread.push(unread(Obstacle::Pod)),
        "note not-examined: rules of nftables were not examined",
    ),
    (
        |_, host| host.lacks_vxlan = true,
        "warning vxlan-missing: this kernel does not support VXLAN",
    ),
    (
        |_, host| host.lacks_nftables = true,
        "warning tunnel-unguarded: this kernel does not support nftables",
    ),
    (
        |_, host| host.links.retain(|link| !link.name.as_str().starts_with("flannel")),
        "warning port-taken: UDP port 8472 is taken",
    ),
    (
        |_, host| host.sockets[1].owner = Owner::Process(7, "other".to_owned()),
        "warning port-taken: UDP port 8475 is taken",
    ),
    (
        |_, host| host.chains = vec![forward(Verdict::Drop, [])],
        "warning forward-drop: packets between pods of 10.244.0.0/16 are dropped unless a more \
         specific rule accepts them",
    ),
    (
        |_, host| {
            host.chains = vec![forward(Verdict::Drop, [from("10.244.0.0/16", Verdict::Accept)])];
        },
        "note forward-drop: packets to 10.244.0.0/16 are dropped unless a more specific rule accepts them",
    ),
    (
        |_, host| {
            host.chains = vec![forward(Verdict::Drop, [to("10.244.0.0/16", Verdict::Accept)])];
        },
        "note forward-drop: packets from 10.244.0.0/16 are dropped unless a more specific rule accepts \
         them",
    ),
    (
        |_, host| mtu(host, "eth0", 1450),
        "warning mtu-too-large: eth0 has MTU 1450, but packets of pods need up to 1500",
    ),
    (
        |_, host| mtu(host, "flannel.1", 1400),
        "warning mtu-too-large: flannel.1 has MTU 1400, but pods send up to 1430 bytes",
    ),
    (
        |_, host| mtu(host, "cni0", 1500),
        "note pods-of-another-mtu: cni0 has MTU 1500, but new pods send up to 1430 bytes",
    ),
    (
        |needs, host| {
            needs.pod_mtu = Some(1200);
            host.links.truncate(3);
        },
        "warning mtu-too-small: pods may send 1200 bytes, less than the 1280 that IPv6 needs",
    ),
    (
        |_, host| set(host, "net/ipv4/neigh/default/gc_thresh3", "1024"),
        "warning neighbour-table-small: the IPv4 neighbour table is limited to 1024 entries, and 1000 peers are \
         on the link",
    ),
    (
        |_, host| set(host, "net/ipv4/neigh/default/gc_thresh2", "512"),
        "note neighbour-table-small: the IPv4 neighbour table is limited to 512 entries, and 1000 peers are on \
         the link",
    ),
    (
        |_, host| {
            host.systemd.networkd =
                Some(unit("networkd.conf", "[Network]\nManageForeignRoutes=no"));
        },
        "warning networkd-foreign-routes: networkd removes entries that it did not create: \
         ManageForeignNextHops is not off",
    ),
    (
        |_, host| host.systemd.version = Some(255),
        "warning networkd-foreign-nexthops: networkd of systemd 255 removes nexthop objects that \
         it did not create",
    ),
    (
        |_, host| host.systemd.version = None,
        "unknown networkd-foreign-nexthops: networkd may remove nexthop objects that it did not \
         create: the version of systemd is not known",
    ),
    (
        |_, host| {
            host.systemd
                .networks
                .insert(0, unit("05-a.network", "[Match]\nName=cni*\n[Network]\nDHCP=ipv4"));
        },
        "warning networkd-manages-link: networkd requests an address by DHCP on cni0",
    ),
    (
        |_, host| host.systemd.networks = vec![unit("a.network", "[Match]\nName=flannel.1")],
        "warning networkd-manages-link: networkd manages flannel.1",
    ),
    (
        |_, host| {
            host.systemd.links[0] = unit("10-other.link", "[Match]\nOriginalName=flannel-v6*");
        },
        "note udev-mac-policy: udev gives flannel.1 another MAC address (MACAddressPolicy=persistent)",
    ),
    (
        |_, host| host.legacy_tables.push("filter".to_owned()),
        "note legacy-iptables: there are rules of iptables-legacy, which this check does not read",
    ),
];

#[test]
fn each_flaw_has_exactly_one_finding() {
    for (change, words) in FLAWS {
        assert_eq!(found(change), [*words]);
    }
}

#[test]
fn an_old_networkd_matters_only_with_nexthop_objects() {
    let without = |keys: &'static str| {
        found(move |needs, host| {
            needs.nexthops = false;
            host.systemd.version = Some(252);
            host.systemd.networkd = Some(unit("networkd.conf", keys));
        })
    };
    assert_eq!(without("[Network]\nManageForeignRoutes=no"), [] as [&str; 0]);
    let routes = "warning networkd-foreign-routes: networkd removes entries that it did not \
                  create: ManageForeignRoutes is not off";
    assert_eq!(without("[Network]\nManageForeignNextHops=no"), [routes]);
}

#[test]
fn a_strict_filter_matters_only_with_ipv4() {
    let strict = |needs: &mut Needs, host: &mut Host| {
        needs.families = vec![Family::V6];
        set(host, "net/ipv4/conf/eth0/rp_filter", "1");
    };
    assert_eq!(found(strict), [] as [&str; 0]);
}

#[test]
fn only_a_bridge_of_pods_is_reported_as_one_of_another_subnet() {
    for (link, subnet) in [
        ("cni0", "10.244.1.0/24"),
        ("cni0", "172.17.0.0/16"),
        ("cni0", "172.17.0.0/24"),
        ("flannel.1", "10.244.7.0/26"),
    ] {
        assert_eq!(found(|_, host| bridge(host, link, subnet)), [] as [&str; 0], "{link} {subnet}");
    }
}

#[test]
fn the_worst_finding_is_listed_first() {
    let found = found(|_, host| {
        set(host, "net/ipv4/ip_forward", "0");
        host.legacy_tables.push("filter".to_owned());
        host.unread.push(unread(Obstacle::Forbidden));
        host.other_daemons = vec![OtherDaemon::Process(812)];
    });
    let levels: Vec<_> = found.iter().filter_map(|words| words.split(' ').next()).collect();
    assert_eq!(levels, ["fatal", "warning", "unknown", "note"]);
}

#[test]
fn only_another_daemon_prevents_the_start() {
    assert!(refusal(&[OtherDaemon::Process(812)]).is_some());
    assert_eq!(refusal(&[]), None);
}

#[test]
fn a_node_without_a_tunnel_needs_no_module() {
    let found = found(|needs, host| {
        needs.tunnels.clear();
        needs.ports.clear();
        host.lacks_vxlan = true;
        host.lacks_nftables = true;
    });
    assert_eq!(found, [] as [&str; 0]);
}

/// Whether chains accept packets of pods; `policy` and `rules` are those of the first chain.
fn is_accepted(policy: Verdict, rules: Vec<Rule>, others: Vec<FilterChain>) -> bool {
    let chains = [vec![forward(policy, rules)], others].concat();
    found(|_, host| host.chains = chains).is_empty()
}

#[test]
fn jumps_between_foreign_chains_are_followed() {
    use Verdict::{Accept, Drop, Goto, Jump, Return};
    const PODS: &str = "10.244.0.0/16";
    let both = || vec![from(PODS, Accept), to("10.0.0.0/8", Accept)];
    let jump = |name: &str| vec![any(Jump(name.to_owned()))];
    for (expected, policy, rules, others) in [
        (true, Accept, vec![], vec![]),
        (false, Drop, vec![], vec![]),
        (true, Drop, both(), vec![]),
        (false, Drop, vec![from(PODS, Accept)], vec![]),
        (false, Drop, vec![from("10.244.1.0/24", Accept), to(PODS, Accept)], vec![]),
        (true, Drop, jump("FLANNEL-FWD"), vec![chain("FLANNEL-FWD", both())]),
        (false, Drop, jump("FLANNEL-FWD"), vec![chain("FLANNEL-FWD", [any(Return)])]),
        (false, Drop, jump("missing"), vec![]),
        (false, Accept, vec![any(Drop)], vec![]),
        (false, Accept, jump("last"), vec![chain("last", [any(Drop)])]),
        (true, Accept, vec![any(Goto("aside".to_owned())), any(Drop)], vec![chain("aside", [])]),
        (true, Accept, vec![any(Return), any(Drop)], vec![]),
        (true, Accept, vec![from("192.168.0.0/16", Drop)], vec![]),
        (true, Accept, jump("circle"), vec![chain("circle", jump("circle"))]),
    ] {
        let case = format!("{policy:?} {rules:?} {others:?}");
        assert_eq!(is_accepted(policy, rules, others), expected, "{case}");
    }
}

#[test]
fn the_fix_for_a_chain_uses_the_command_of_its_owner() {
    let fix = |family, table: &str| {
        let (mut host, dropping) = (host(), forward(Verdict::Drop, []));
        host.chains = vec![FilterChain { family, table: table.to_owned(), ..dropping }];
        findings(&needs(), &host).pop().unwrap().fix
    };
    let v6 = fix(TableFamily::Only(Family::V6), "filter");
    assert!(
        v6.starts_with("nft insert rule ip6 filter FORWARD ip6 saddr fd00:10:244::/56 accept"),
        "{v6}"
    );
    let firewalld = fix(TableFamily::Both, "firewalld");
    assert!(firewalld.starts_with("firewall-cmd"), "{firewalld}");
}

#[test]
fn recommended_lines_are_in_the_shipped_files() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let mut files = Vec::new();
    for (change, _) in FLAWS {
        let (mut needs, mut host) = (needs(), host());
        change(&mut needs, &mut host);
        for DropIn { file, lines } in findings(&needs, &host).into_iter().filter_map(|f| f.drop_in)
        {
            let text = fs::read_to_string(config.join(file)).unwrap();
            for line in lines {
                assert!(text.lines().any(|known| known == line), "{file} lacks {line}");
            }
            files.push(file);
        }
    }
    files.sort_unstable();
    files.dedup();
    assert_eq!(
        files,
        [
            "modules-load.d/tweed.conf",
            "sysctl.d/90-tweed.conf",
            "systemd/network/10-tweed.link",
            "systemd/network/10-tweed.network",
            "systemd/networkd.conf.d/tweed.conf",
        ]
    );
}

/// The findings about the daemon and its peers, by level.
const OF_THE_DAEMON: &[(&str, &str)] = &[
    ("daemon-not-started", "note"),
    ("daemon-ended", "warning"),
    ("daemon-silent", "warning"),
    ("daemon-not-ready", "warning"),
    ("peer-unreachable", "warning"),
    ("peer-degraded", "warning"),
    ("peer-unknown", "unknown"),
    ("peer-unknown", "note"),
];

#[test]
fn every_finding_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/guides/doctor.md")).unwrap();
    let of_the_host = FLAWS.iter().map(|(_, words)| {
        let (level, id) = words.split_once(": ").unwrap().0.split_once(' ').unwrap();
        (id, level)
    });
    for (id, level) in of_the_host.chain(OF_THE_DAEMON.iter().copied()) {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{id}` |")));
        assert!(row.is_some_and(|row| row.contains(level)), "{id} as a {level}");
    }
}
