//! Tests of tweed's iptables chains: equal to flannel's, read, restored and removed, for both kinds
//! of iptables.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use tweed::kernel::{Chains, Kernel, NetlinkKernel, Observation};
use tweed::model::entry::{Base, Chain, ChainName, Entry, Iptables, KernelState, Key, Ports};
use tweed::model::node::Firewalls;
use tweed::model::policy::{Forward, Masquerade, Policy, Preference};
use tweed::model::prefix::Family;
use tweed::plan::diff::{Op, diff};

use crate::firewall::tables::heard;
use crate::host::{apply, direct, dump, establish, missing, on_a_host, rules, run, scope};

/// The rules that flanneld writes for a node of these networks, as `iptables-save` shows them.
const NAT: &str = "\
-A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment \"flanneld masq\" -j RETURN
-A FLANNEL-POSTRTG -s S -d C -m comment --comment \"flanneld masq\" -j RETURN
-A FLANNEL-POSTRTG -s C -d S -m comment --comment \"flanneld masq\" -j RETURN
-A FLANNEL-POSTRTG ! -s C -d S -m comment --comment \"flanneld masq\" -j RETURN
-A FLANNEL-POSTRTG -s C ! -d M -m comment --comment \"flanneld masq\" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s C -d C -m comment --comment \"flanneld masq\" -j MASQUERADE --random-fully
";
/// The rules before them, also as `iptables-save` shows them.
const FIXED: &str = "\
-A POSTROUTING -m comment --comment \"tweedd fixed source\" -j TWEED-POSTRTG
-A TWEED-POSTRTG ! -d C -m comment --comment \"tweedd fixed source\" -j RETURN
-A TWEED-POSTRTG -d S -m comment --comment \"tweedd fixed source\" -j RETURN
-A TWEED-POSTRTG -s C -m mark ! --mark 0x4000/0x4000 -m comment --comment \"tweedd fixed source\" -j RETURN
-A TWEED-POSTRTG -m comment --comment \"tweedd fixed source\" -j MARK --set-xmark 0x0/0x4000
-A TWEED-POSTRTG -m comment --comment \"tweedd fixed source\" -j SNAT --to-source G --random-fully
";
const FILTER: &str = "\
-A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD
-A FLANNEL-FWD -s C -m comment --comment \"flanneld forward\" -j ACCEPT
-A FLANNEL-FWD -d C -m comment --comment \"flanneld forward\" -j ACCEPT
";

const KINDS: [Iptables; 2] = [Iptables::Nft, Iptables::Legacy];

/// Per family: program, network, subnet of this node, and multicast addresses.
const FAMILIES: [(&str, &str, &str, &str); 2] = [
    ("iptables", "10.244.0.0/16", "10.244.1.0/24", "224.0.0.0/4"),
    ("ip6tables", "fd00:10:244::/56", "fd00:10:244:1::/64", "ff00::/8"),
];

fn flannels(text: &str, (_, network, subnet, multicast): (&str, &str, &str, &str)) -> String {
    let gateway = tweed::model::prefix::Prefix::gateway(subnet.parse().unwrap());
    let text = text.replace(" G ", &format!(" {gateway} "));
    let text =
        text.replace(" S ", &format!(" {subnet} ")).replace(" M ", &format!(" {multicast} "));
    text.replace(" C ", &format!(" {network} "))
}

/// The planned chains of a node with iptables of this kind and without nftables.
fn chains(iptables: Iptables, ports: Ports, keys: &str) -> KernelState {
    let masquerade = Some(Masquerade { ports, ..Masquerade::default() });
    let (forward, firewall) = (Forward::Accept, Preference::Iptables);
    let policy = Policy { masquerade, forward, firewall, ..Policy::default() };
    let host = Firewalls { nftables: false, iptables, ..Firewalls::default() };
    rules(&policy, &host, keys)
}

fn usual(iptables: Iptables) -> KernelState {
    chains(iptables, Ports::FullyRandom, "")
}

/// The rules of all chains of this table, in order.
fn saved(program: &str, kind: Iptables, table: &str) -> String {
    let listing = run(&format!("{program}-{kind}-save -t {table}"));
    listing.split_inclusive('\n').filter(|line| line.starts_with("-A")).collect()
}

fn restore(program: &str, kind: Iptables, script: &str) {
    let mut child = Command::new(format!("{program}-{kind}-restore"))
        .args(["--noflush", "--wait"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{script}");
}

/// Removes all entries of tweed.
async fn remove_all(kernel: &mut NetlinkKernel) {
    let gone = diff(&KernelState::default(), &dump(kernel).await, &scope());
    apply(kernel, gone).await;
}

#[test]
fn the_rules_are_byte_for_byte_those_of_flannel() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        for kind in KINDS {
            assert_eq!(establish(&mut kernel, &usual(kind)).await, [""; 0], "{kind}");
            for family in FAMILIES {
                let nat = saved(family.0, kind, "nat");
                let expected = flannels(FIXED, family) + &flannels(NAT, family);
                assert_eq!(sorted(&nat), sorted(&expected), "{kind}");
                for chain in ["POSTROUTING", "FLANNEL-POSTRTG", "TWEED-POSTRTG"] {
                    assert_eq!(in_chain(&nat, chain), in_chain(&expected, chain), "{kind}");
                }
                assert_eq!(saved(family.0, kind, "filter"), flannels(FILTER, family), "{kind}");
            }
            let gone = diff(&KernelState::default(), &dump(&mut kernel).await, &scope());
            assert_eq!(gone.len(), 6);
            apply(&mut kernel, gone.clone()).await;
            assert_eq!(dump(&mut kernel).await.entries().filter(|it| it.is_rules()).count(), 0);
            // Removing chains that are already gone is not refused.
            apply(&mut kernel, gone).await;
        }
    });
}

/// The two kinds list chains in different orders.
fn sorted(rules: &str) -> Vec<&str> {
    let mut rules: Vec<&str> = rules.lines().collect();
    rules.sort_unstable();
    rules
}

fn in_chain<'a>(rules: &'a str, chain: &str) -> Vec<&'a str> {
    rules.lines().filter(|rule| rule.starts_with(&format!("-A {chain} "))).collect()
}

#[test]
fn rules_of_flanneld_are_adopted() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        for kind in KINDS {
            for family in FAMILIES {
                let (nat, filter) = (flannels(NAT, family), flannels(FILTER, family));
                let script = format!(
                    "*nat\n:FLANNEL-POSTRTG - [0:0]\n{nat}COMMIT\n\
                     *filter\n:FLANNEL-FWD - [0:0]\n{filter}COMMIT\n"
                );
                restore(family.0, kind, &script);
            }
            let missing = missing(&mut kernel, &usual(kind)).await;
            assert_eq!(missing.len(), 2, "{kind}: {missing:?}");
            let is_ours = |op: &String| op.starts_with("+ ") && op.contains(" TWEED-POSTRTG ");
            assert!(missing.iter().all(is_ours), "{kind}: {missing:?}");
            remove_all(&mut kernel).await;
        }
    });
}

#[test]
fn a_rule_that_masquerades_before_tweeds_chain_is_a_difference() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        for kind in KINDS {
            establish(&mut kernel, &usual(kind)).await;
            run(&format!("iptables-{kind} -t nat -N KUBE-POSTROUTING"));
            for rule in [
                "-j KUBE-POSTROUTING",
                "-s 172.17.0.0/16 -j MASQUERADE",
                "-s 172.17.0.0/16 -j MASQUERADE --random-fully",
            ] {
                run(&format!("iptables-{kind} -t nat -I POSTROUTING {rule}"));
                assert_ne!(missing(&mut kernel, &usual(kind)).await, [""; 0], "{kind} {rule}");
                assert_eq!(establish(&mut kernel, &usual(kind)).await, [""; 0], "{kind} {rule}");
            }
            // A rule that matches no pod packets may be in any position.
            run(&format!("iptables-{kind} -t nat -I POSTROUTING -j ACCEPT -s 198.51.100.0/24"));
            assert_eq!(missing(&mut kernel, &usual(kind)).await, [""; 0], "{kind}");
            let places = saved("iptables", kind, "nat");
            let targets: Vec<&str> = in_chain(&places, "POSTROUTING")
                .into_iter()
                .map(|rule| rule.split_once(" -j ").unwrap().1)
                .collect();
            assert_eq!(targets[..2], ["ACCEPT", "TWEED-POSTRTG"], "{kind}");
            assert_eq!(targets.len(), 6, "{kind}: {targets:?}");
            run(&format!("iptables-{kind} -t nat -F POSTROUTING"));
            run(&format!("iptables-{kind} -t nat -X KUBE-POSTROUTING"));
            remove_all(&mut kernel).await;
        }
    });
}

#[test]
fn rules_of_every_form_are_read_as_they_were_planned() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let keys = r#","NonMasqueradeCIDRs":["192.168.0.0/16","10.0.0.7/32","fd00:16:7::/64"]"#;
        for kind in KINDS {
            for desired in
                [usual(kind), chains(kind, Ports::Kept, keys), chains(kind, Ports::Kept, "")]
            {
                assert_eq!(establish(&mut kernel, &desired).await, [""; 0], "{kind}");
            }
        }
    });
}

#[test]
fn every_change_in_a_chain_is_found_and_fixed() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        for kind in KINDS {
            establish(&mut kernel, &usual(kind)).await;
            for change in [
                "-t nat -F",
                "-t nat -F POSTROUTING",
                "-t nat -F FLANNEL-POSTRTG",
                "-t nat -D TWEED-POSTRTG 4",
                "-t nat -A POSTROUTING -j TWEED-POSTRTG",
                "-t nat -D FLANNEL-POSTRTG 3",
                "-t nat -I FLANNEL-POSTRTG -j ACCEPT",
                "-t nat -I POSTROUTING -j FLANNEL-POSTRTG",
                "-t nat -A POSTROUTING -m comment --comment flanneld -j FLANNEL-POSTRTG",
                "-t filter -F FORWARD",
                "-t filter -A FLANNEL-FWD -s 10.244.0.0/16 -p tcp -j ACCEPT",
                "-t filter -R FLANNEL-FWD 1 -j DROP",
            ] {
                run(&format!("iptables-{kind} {change}"));
                assert_ne!(missing(&mut kernel, &usual(kind)).await, [""; 0], "{kind} {change}");
                assert_eq!(establish(&mut kernel, &usual(kind)).await, [""; 0], "{kind} {change}");
            }
            let all_gone = "*nat\n-F\n-X\nCOMMIT\n*filter\n-F\n-X\nCOMMIT\n";
            restore("ip6tables", kind, all_gone);
            assert_eq!(establish(&mut kernel, &usual(kind)).await, [""; 0], "{kind}");
        }
    });
}

#[test]
fn foreign_rules_are_kept() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        for kind in KINDS {
            let foreign = "*nat\n:KUBE-POSTROUTING - [0:0]\n-A POSTROUTING -j KUBE-POSTROUTING\n\
                -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n\
                -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\nCOMMIT\n\
                *filter\n:DOCKER-USER - [0:0]\n-A FORWARD -j DOCKER-USER\n\
                -A DOCKER-USER -s 10.244.7.0/24 -j DROP\nCOMMIT\n";
            restore("iptables", kind, foreign);
            let of_others = || ["nat", "filter"].map(|table| saved("iptables", kind, table));
            let before = of_others();
            establish(&mut kernel, &usual(kind)).await;
            let added = of_others();
            assert!(before.iter().zip(&added).all(|(old, new)| new.len() > old.len()), "{kind}");
            remove_all(&mut kernel).await;
            assert_eq!(of_others(), before, "{kind}");
        }
    });
}

/// `iptables-save` shows nothing of a table with a rule that only nftables knows, and ends well.
#[test]
fn rules_are_not_added_again_to_a_table_that_iptables_cannot_show() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &usual(Iptables::Nft)).await;
        run("nft add rule ip nat POSTROUTING ct mark 7 masquerade");
        for _ in 0..3 {
            let ops = diff(&usual(Iptables::Nft), &dump(&mut kernel).await, &scope());
            let refused = kernel.apply(&ops).await.unwrap();
            assert!(
                refused.iter().any(|it| it.to_string().contains("incompatible")),
                "{refused:?}"
            );
        }
        let rules = run("nft list chain ip nat POSTROUTING");
        assert_eq!(rules.matches("jump FLANNEL-POSTRTG").count(), 1, "{rules}");
    });
}

#[test]
fn flannels_chain_is_kept_while_the_host_drops_forwarded_packets() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        for kind in KINDS {
            establish(&mut kernel, &usual(kind)).await;
            run(&format!("iptables-{kind} -P FORWARD DROP"));
            assert_eq!(missing(&mut kernel, &usual(kind)).await, [""; 0], "{kind}");
            let gone = diff(&KernelState::default(), &dump(&mut kernel).await, &scope());
            assert_eq!(gone.len(), 5, "{kind}");
            apply(&mut kernel, gone).await;
            assert_eq!(saved("iptables", kind, "filter"), flannels(FILTER, FAMILIES[0]));
            run(&format!("iptables-{kind} -P FORWARD ACCEPT"));
            remove_all(&mut kernel).await;
            assert_eq!(saved("iptables", kind, "filter"), "", "{kind}");
        }
    });
}

#[test]
fn reading_creates_no_missing_tables() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        dump(&mut kernel).await;
        assert_eq!(run("nft list tables"), "");
        let legacy = fs::read_to_string("/proc/thread-self/net/ip_tables_names").unwrap();
        assert_eq!(legacy, "");
    });
}

#[test]
fn chains_are_read_again_where_something_may_have_changed() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        for kind in KINDS {
            establish(&mut kernel, &usual(kind)).await;
            let all = dump(&mut kernel).await;
            let all: Vec<&Chain> = all.entries().filter_map(chain).collect();
            let read = async |seen| kernel.chains().read(ChainName::all().collect(), seen).await;
            let mut first = read(None).await;
            first.found.sort_by_key(|chain| chain.name);
            assert_eq!(first.found.iter().collect::<Vec<_>>(), all, "{kind}");
            assert_eq!((first.names.len(), all.len()), (12, 6), "{kind}");
            // Legacy iptables does not show whether it has changed.
            let second = read(first.generation).await;
            assert!(second.names.iter().all(|name| name.iptables == Iptables::Legacy), "{kind}");
            assert_eq!(second.found.len(), if kind == Iptables::Legacy { 6 } else { 0 });
            run(&format!("iptables-{kind} -t nat -D FLANNEL-POSTRTG 3"));
            let mut third = read(first.generation).await;
            third.found.sort_by_key(|chain| chain.name);
            assert_eq!((third.found.len(), third.found == first.found), (6, false), "{kind}");
            remove_all(&mut kernel).await;
        }
    });
}

fn forward(iptables: Iptables, family: Family) -> ChainName {
    ChainName { iptables, family, base: Base::Forward }
}

#[test]
fn the_policy_of_the_host_is_read_and_kept() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        for kind in KINDS {
            let dropping = async || {
                let reading = kernel.chains().read(ChainName::all().collect(), None).await;
                assert_eq!(reading.unread.len(), 0);
                reading.dropping.into_iter().collect::<Vec<_>>()
            };
            assert_eq!(dropping().await, [], "{kind}");
            run(&format!("ip6tables-{kind} -P FORWARD DROP"));
            assert_eq!(dropping().await, [forward(kind, Family::V6)], "{kind}");
            let policy = Policy { forward: Forward::Accept, ..Policy::default() };
            let host =
                Firewalls { dropping: [forward(kind, Family::V6)].into(), ..Firewalls::default() };
            let desired = rules(&policy, &host, "");
            assert_eq!(desired.len(), 1);
            assert_eq!(establish(&mut kernel, &desired).await, [""; 0], "{kind}");
            assert_eq!(saved("ip6tables", kind, "filter"), flannels(FILTER, FAMILIES[1]));
            let listing = run(&format!("ip6tables-{kind}-save -t filter"));
            assert!(listing.contains("\n:FORWARD DROP ["), "{listing}");
            // The form in which flanneld checks for its rules.
            for rule in [
                "FORWARD -m comment --comment flanneldX -j FLANNEL-FWD",
                "FLANNEL-FWD -s fd00:10:244::/56 -m comment --comment flanneldX -j ACCEPT",
            ] {
                let words = rule.split(' ').map(|word| word.replace("dX", "d forward"));
                let mut command = Command::new(format!("ip6tables-{kind}"));
                command.args(["--wait", "-C"]).args(words);
                assert!(command.status().unwrap().success(), "{rule}");
            }
            run(&format!("ip6tables-{kind} -P FORWARD ACCEPT"));
            remove_all(&mut kernel).await;
            assert_eq!(saved("ip6tables", kind, "filter"), "", "{kind}");
        }
    });
}

#[test]
fn every_change_of_what_iptables_nft_forwards_is_notified() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &usual(Iptables::Nft)).await;
        heard(&mut kernel).await;
        let changed = Observation::ChainChanged(forward(Iptables::Nft, Family::V4));
        for (command, is_notified) in [
            ("iptables-nft -P FORWARD DROP", true),
            ("iptables-nft -N DOCKER-USER", false),
            ("iptables-nft -A DOCKER-USER -s 192.0.2.0/24 -j DROP", false),
            ("iptables-nft -I FORWARD -j DOCKER-USER", true),
            ("iptables-nft -D FLANNEL-FWD 1", true),
            ("iptables-nft -F", true),
            ("nft flush ruleset", true),
            ("iptables-nft -P FORWARD DROP", true),
            ("ip6tables-nft -P FORWARD DROP", false),
            ("iptables-legacy -P FORWARD DROP", false),
        ] {
            run(command);
            let received = heard(&mut kernel).await;
            assert_eq!(received.contains(&changed), is_notified, "{command}: {received:?}");
        }
    });
}

fn chain(entry: &Entry) -> Option<&Chain> {
    match entry {
        Entry::Chain(chain) => Some(chain),
        _ => None,
    }
}

#[test]
fn a_refused_chain_does_not_stop_routes() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        // iptables-nft refuses its own table if another program created it in another form.
        run("nft add table ip nat");
        run("nft add chain ip nat POSTROUTING { type nat hook output priority 0; }");
        let name = |base| ChainName { iptables: Iptables::Nft, family: Family::V4, base };
        let key = Key::Chain(name(Base::Postrouting));
        let chain = usual(Iptables::Nft).get(&key).unwrap().clone();
        let route = direct("10.244.9.0/24", "172.16.0.9");
        let ops = [chain, route.clone()].map(|entry| Op::Create(entry.into()));
        let refused = kernel.apply(&ops).await.unwrap();
        assert_eq!(refused.len(), 1, "{refused:?}");
        let refusal = refused[0].to_string();
        assert!(
            refusal.starts_with("+ chain iptables-nft -t nat FLANNEL-POSTRTG: iptables-nft"),
            "{refusal}"
        );
        assert_eq!(dump(&mut kernel).await.get(&route.key()), Some(&route));
    });
}
