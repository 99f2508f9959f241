//! The output of `tweedctl` on a live cluster, and with daemons that hang or are stopped.

use std::collections::BTreeSet;
use std::fs;
use std::process::Output;

use anyhow::{Context, Result, ensure};
use ipnetwork::IpNetwork;
use nix::sys::signal::Signal;
use serde_json::Value;
use tweed_lab::{
    DaemonPlan, Etcd, Family, Lab, Neighbour, Node, NodePlan, Path, ReversePath, SegmentPlan,
    Snapshot, eventually,
};

use crate::fixture::ask::{has_saved, is_ready, json, tweedctl};
use crate::fixture::cluster::{CONFIG, Cluster, PATIENCE, SUBNETS, binaries};
use crate::fixture::peer::{Peer, host_gw, key};

const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const MIXED: &str = r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"}}"#;

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

/// Its output, which must fit on a terminal.
fn text(output: &Output) -> Result<String> {
    let text = String::from_utf8(output.stdout.clone())?;
    let wide = text.lines().find(|line| line.chars().count() > 80);
    ensure!(wide.is_none(), "wider than 80 columns: {wide:?}");
    Ok(text)
}

/// Runs `tweedctl` as text and as JSON, which must agree on the exit code.
fn both(node: &Node, subcommand: &str) -> Result<(i32, String, Value)> {
    let (plain, json) =
        (tweedctl(node, &[subcommand])?, tweedctl(node, &[subcommand, "-o", "json"])?);
    ensure!(code(&plain) == code(&json), "{plain:?} {json:?}");
    let value = serde_json::from_slice(&json.stdout).context(format!("{json:?}"))?;
    Ok((code(&plain), text(&plain)?, value))
}

#[test]
fn an_operator_sees_what_is_routed_how_and_why() {
    let cluster = Cluster::start(3, VXLAN).unwrap();
    cluster.wait_for_paths(|_, _| Path::Tunnel).unwrap();
    cluster.etcd.put(&key("10.244.90.0/24"), &host_gw("10.99.1.90")).unwrap();
    cluster.etcd.put(&key("10.245.91.0/24"), &host_gw("10.99.1.91")).unwrap();
    let node = &cluster.nodes[0];
    let subnet = node.subnet_env().unwrap().subnets()[0].to_string();
    let all_seen = || {
        Ok::<_, anyhow::Error>(json(&cluster.daemons[0], "leases")?.as_array().unwrap().len() == 5)
    };
    eventually(PATIENCE, all_seen).unwrap();

    let (code, text, status) = both(node, "status").unwrap();
    assert_eq!(code, 0, "{text}");
    assert!(text.starts_with("tweedd") && text.contains(": ready\n"), "{text}");
    assert_eq!((&status["ready"], &status["backend"]), (&true.into(), &"vxlan".into()));
    assert_eq!((&status["subnets"][0], &status["mtu"]), (&subnet.as_str().into(), &1450.into()));
    let counts = &status["peers"];
    assert_eq!([&counts["tunnel"], &counts["skipped"], &counts["rejected"]], [&2, &1, &1]);

    let (code, text, peers) = both(node, "peers").unwrap();
    assert_eq!(code, 0, "{text}");
    let peers = peers.as_array().unwrap();
    assert_eq!(peers.len(), 4);
    for other in &cluster.nodes[1..] {
        let subnet = other.subnet_env().unwrap().subnets()[0].to_string();
        let peer = peers.iter().find(|peer| peer["subnet"] == subnet.as_str()).unwrap();
        assert_eq!((&peer["path"], &peer["programmed"]), (&"tunnel".into(), &true.into()));
        assert!(text.contains(&subnet), "{text}");
    }
    assert!(
        text.contains("skipped: its backend is host-gw, ours is vxlan, and Mixed is off"),
        "{text}"
    );
    assert!(text.contains("rejected: subnet 10.245.91.0/24 is not inside the network"), "{text}");

    let (code, text, leases) = both(node, "leases").unwrap();
    assert_eq!(code, 0, "{text}");
    let own: Vec<_> = leases.as_array().unwrap().iter().filter(|it| it["own"] == true).collect();
    assert_eq!(own.len(), 1);
    assert_eq!(own[0]["id"], subnet.replace('/', "-"));
    assert!(text.contains("own") && text.contains("reserved"), "{text}");
}

#[test]
fn the_exit_code_reports_a_waiting_or_missing_daemon() {
    let cluster = Cluster::start(0, "not JSON").unwrap();
    let node = cluster.lab.node("n1", &cluster.segment).unwrap();
    let absent = tweedctl(&node, &["status"]).unwrap();
    let printed = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert_eq!((code(&absent), printed.lines().count()), (3, 1), "{printed}");
    assert!(printed.contains("subnet.sock"), "{printed}");

    node.daemon(&cluster.etcd).start().unwrap();
    eventually(PATIENCE, || {
        let (code, text, status) = both(&node, "status")?;
        ensure!(code == 1 && text.contains("not ready"), "{code} {text}");
        ensure!(text.contains("/coreos.com/network/config"), "{text}");
        ensure!(status["ready"] == false, "{status}");
        Ok(())
    })
    .unwrap();
    let wrong = tweedctl(&node, &["stats"]).unwrap();
    assert_eq!(code(&wrong), 2, "{wrong:?}");
}

/// The differences that `diff` reports, as JSON; the text must have the same number of lines.
fn differences(node: &Node) -> Result<(i32, Vec<String>, String)> {
    let (code, text, value) = both(node, "diff")?;
    let list = value["differences"].as_array().context("no list")?;
    let line = |it: &Value| format!("{} {}", it["action"], it["entry"]).replace('"', "");
    let lines: Vec<String> = list.iter().map(line).collect();
    let marked = text.lines().filter(|line| line.starts_with(['+', '~', '-'])).count();
    ensure!(marked == lines.len(), "{text}");
    Ok((code, lines, value["source"].as_str().unwrap_or_default().to_owned()))
}

#[test]
fn a_difference_is_shown_to_the_entry_by_the_daemon_or_without_it() {
    let mut cluster = Cluster::start(1, VXLAN).unwrap();
    let [kept, lost] = [1, 2].map(Peer::numbered);
    for peer in [&kept, &lost] {
        peer.is_followed_by(&cluster.nodes, &cluster.etcd).unwrap();
    }
    let node = cluster.nodes[0].clone();
    eventually(PATIENCE, || has_saved(&node, "10.244.102.0")).unwrap();
    eventually(PATIENCE, || {
        let (code, lines, source) = differences(&node)?;
        let is_equal = code == 0 && lines.is_empty();
        ensure!(is_equal && source.starts_with("the daemon on "), "{source}: {lines:?}");
        Ok(())
    })
    .unwrap();

    // A stopped process repairs nothing and answers nothing.
    cluster.daemons[0].process().signal(Signal::SIGSTOP).unwrap();
    node.ip("route del 10.244.102.0/24").unwrap();
    let (code, lines, source) = differences(&node).unwrap();
    let id = nexthop_to(&node, "10.244.102.0").unwrap();
    let missing =
        format!("create route 10.244.102.0/24 nhid {id} via 10.244.102.0 dev flannel.1 onlink");
    assert_eq!((code, lines), (1, vec![missing]), "{source}");
    assert!(source.starts_with("the checkpoint "), "{source}");
    cluster.daemons[0].process().signal(Signal::SIGCONT).unwrap();
    eventually(PATIENCE, || lost.is_tunnelled_by(&node)).unwrap();
    eventually(PATIENCE, || differences(&node).map(|(code, ..)| code == 0)).unwrap();

    cluster.daemons[0].kill().unwrap();
    let (code, lines, source) = differences(&node).unwrap();
    assert_eq!((code, lines), (0, vec![]), "{source}");
    node.bridge("fdb del 02:00:00:00:01:02 dev flannel.1 dst 10.99.1.102").unwrap();
    node.ip("route replace 10.244.101.0/24 via 10.99.1.12 dev eth0 proto 241").unwrap();
    let before = node.snapshot().unwrap();
    let (code, lines, _) = differences(&node).unwrap();
    let id = nexthop_to(&node, "10.244.101.0").unwrap();
    let expected = [
        "create fdb 02:00:00:00:01:02 dst 10.99.1.102 dev flannel.1".to_owned(),
        format!("replace route 10.244.101.0/24 nhid {id} via 10.244.101.0 dev flannel.1 onlink"),
    ];
    assert_eq!((code, lines), (1, expected.to_vec()));
    assert_eq!(before.changes(&node.snapshot().unwrap()), Vec::<String>::new());
    cluster.daemons[0].start().unwrap();
    cluster.daemons[0].wait_ready().unwrap();
    eventually(PATIENCE, || differences(&node).map(|(code, ..)| code == 0)).unwrap();
}

fn nexthop_to(node: &Node, gateway: &str) -> Result<u32> {
    let gateway = gateway.parse()?;
    let nexthop = node.nexthops()?.into_iter().find(|it| it.gateway == Some(gateway));
    Ok(nexthop.with_context(|| format!("no nexthop object for {gateway}"))?.id)
}

/// The part of a plan that the kernel's tools show, in the form of a plan.
fn programmed(node: &Node) -> Result<BTreeSet<String>> {
    let mut lines = BTreeSet::new();
    for route in node.routes(Family::V4)? {
        if route.protocol.as_deref() == Some("241") {
            let onlink = if route.onlink() { " onlink" } else { "" };
            let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
            let nhid = route.nhid.map(|nhid| format!(" nhid {nhid}")).unwrap_or_default();
            let to: IpNetwork = route.destination.parse()?;
            let dev = route.dev.context("no device")?;
            lines.insert(format!("route {to}{nhid}{via} dev {dev}{onlink}"));
        }
    }
    for nexthop in node.nexthops()? {
        let onlink = if nexthop.onlink() { " onlink" } else { "" };
        let (id, gateway) = (nexthop.id, nexthop.gateway.context("no gateway")?);
        let dev = nexthop.dev.context("no device")?;
        lines.insert(format!("nexthop id {id} via {gateway} dev {dev}{onlink}"));
    }
    for neighbour in node.neighbours("flannel.1")?.into_iter().filter(Neighbour::is_permanent) {
        let mac = neighbour.mac.context("no MAC")?;
        lines.insert(format!("neigh {} lladdr {mac} dev flannel.1", neighbour.address));
    }
    for entry in node.fdb("flannel.1")? {
        let remote = entry.remote.context("no remote")?;
        lines.insert(format!("fdb {} dst {remote} dev flannel.1", entry.mac));
    }
    for device in ["flannel.1", "lo"] {
        let addresses = node.addresses(device)?.into_iter();
        for address in addresses.filter(|it| it.address.to_string().starts_with("10.244.")) {
            lines.insert(format!("addr {} dev {device}", address.address));
        }
    }
    let link = node.link("flannel.1")?.context("no flannel.1")?;
    let vxlan = link.vxlan.context("no VXLAN device")?;
    let local = vxlan.local.context("no local address")?;
    lines.insert(format!(
        "link flannel.1 up mtu {} address {} type vxlan id {} local {local} dev eth0 dstport {} nolearning",
        link.mtu, link.mac, vxlan.id, vxlan.port
    ));
    Ok(lines)
}

fn plan_equals_the_kernel(config: &str, path: Path) -> Result<()> {
    let cluster = Cluster::start(2, config)?;
    cluster.wait_for_paths(|_, _| path)?;
    let node = &cluster.nodes[0];
    // A vxlan peer that answers no probe would stay in the tunnel.
    let backend = if path == Path::Direct { r#""host-gw""# } else { r#""vxlan""# };
    for peer in [1, 2].map(Peer::numbered) {
        cluster.etcd.put(&peer.key(), &peer.vxlan().replace(r#""vxlan""#, backend))?;
        eventually(PATIENCE, || Ok::<_, anyhow::Error>(node.route_to(peer.subnet)?.is_some()))?;
    }
    let (config_file, leases_file) =
        (node.folder().join("config.json"), node.folder().join("leases"));
    fs::write(&config_file, config)?;
    fs::write(&leases_file, listing(&cluster.etcd)?)?;
    let words = [
        format!("--config={}", config_file.display()),
        format!("--leases={}", leases_file.display()),
        format!("--public-ip={}", node.address(Family::V4)?),
    ];
    let words = ["plan", &words[0], &words[1], &words[2]];
    let shown = tweedctl(node, &words)?;
    ensure!(code(&shown) == 0, "{shown:?}");
    text(&shown)?;
    let plan: Value =
        serde_json::from_slice(&tweedctl(node, &[&words[..], &["-o", "json"]].concat())?.stdout)?;
    let entries = plan["entries"].as_array().context("no entries")?;
    // Entries that ip(8) and bridge(8) do not show.
    let elsewhere = ["accept_ra", "rp_filter", "table", "element"];
    let is_elsewhere = |line: &&str| elsewhere.iter().any(|kind| line.starts_with(kind));
    let planned: BTreeSet<String> = entries
        .iter()
        .filter_map(Value::as_str)
        .filter(|it| !is_elsewhere(it))
        .map(str::to_owned)
        .collect();
    let held = programmed(node)?;
    ensure!(
        planned == held,
        "planned, not held: {:?}; held, not planned: {:?}",
        planned.difference(&held),
        held.difference(&planned)
    );
    Ok(())
}

/// The leases, in the form that operators save to a file.
fn listing(etcd: &Etcd) -> Result<String> {
    etcd.etcdctl(&["get", "--prefix", SUBNETS])
}

#[test]
fn a_plan_is_what_the_kernel_holds_with_vxlan() {
    plan_equals_the_kernel(VXLAN, Path::Tunnel).unwrap();
}

#[test]
fn a_plan_is_what_the_kernel_holds_with_mixed() {
    plan_equals_the_kernel(MIXED, Path::Direct).unwrap();
}

#[test]
fn a_cleanup_removes_only_entries_of_tweed() {
    let mut cluster = Cluster::start(0, MIXED).unwrap();
    let plan = NodePlan::new("n1", &cluster.segment).reverse_path(ReversePath::Strict);
    let node = cluster.lab.node_with(&plan).unwrap();
    let foreign = "link add flannel.9 type vxlan id 9 dev eth0 dstport 4789 nolearning
        link set flannel.9 up
        route add 10.244.200.0/24 via 10.99.1.200 proto static
        route add 10.78.0.0/16 via 10.99.1.201
        neighbour add 10.99.1.201 lladdr 02:00:00:00:02:01 dev eth0 nud permanent
        rule add to 10.79.0.0/16 blackhole";
    node.namespace().ip_batch(foreign).unwrap();
    node.bridge("fdb add 02:00:00:00:09:09 dev flannel.9 dst 10.99.1.209 self permanent").unwrap();
    let filter = || node.namespace().sysctl("net/ipv4/conf/eth0/rp_filter").unwrap();
    let (before, strict) = (node.snapshot().unwrap(), filter());
    cluster.add(node.clone()).unwrap();
    Peer::numbered(1).join(&cluster.etcd).unwrap();
    eventually(PATIENCE, || Peer::numbered(1).is_tunnelled_by(&node)).unwrap();
    assert_ne!(strict, filter());
    eventually(PATIENCE, || has_saved(&node, "10.244.101.0")).unwrap();

    let running = node.snapshot().unwrap();
    let refused = tweedctl(&node, &["cleanup", "--yes"]).unwrap();
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((code(&refused), printed.lines().count()), (1, 1), "{printed}");
    let (listed, listing, _) = both(&node, "cleanup").unwrap();
    assert_eq!(listed, 0, "{listing}");
    for ours in ["flannel.1", "10.244.101.0/24", "subnet.env", "subnet.state.json"] {
        assert!(listing.contains(ours), "{listing}");
    }
    assert!(!listing.contains("flannel.9") && !listing.contains("10.244.200.0"), "{listing}");
    assert_eq!(running.changes(&node.snapshot().unwrap()), Vec::<String>::new());
    eventually(PATIENCE, || is_ready(&cluster.daemons[0])).unwrap();

    cluster.daemons[0].kill().unwrap();
    for _ in 0..2 {
        let cleaned = tweedctl(&node, &["cleanup", "--yes"]).unwrap();
        assert_eq!(code(&cleaned), 0, "{cleaned:?}");
        text(&cleaned).unwrap();
        assert_eq!(before.changes(&node.snapshot().unwrap()), Vec::<String>::new());
        assert_eq!(filter(), strict);
        let left: Vec<_> = fs::read_dir(node.folder()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
    // The next start recreates all entries.
    cluster.daemons[0].start().unwrap();
    cluster.daemons[0].wait_ready().unwrap();
    eventually(PATIENCE, || Peer::numbered(1).is_tunnelled_by(&node)).unwrap();
    eventually(PATIENCE, || has_saved(&node, "10.244.101.0")).unwrap();
    cluster.daemons[0].kill().unwrap();
    assert_is_left_clean(&cluster, &node, &before);
}

/// With `--cni --lease`, also what the CNI plugin and etcd have of the node is removed.
fn assert_is_left_clean(cluster: &Cluster, node: &Node, before: &Snapshot) {
    let cni = tempfile::tempdir().unwrap();
    let folder = |name: &str| cni.path().join(name);
    let (configs, networks, records) = (folder("net.d"), folder("networks"), folder("flannel"));
    fs::create_dir_all(networks.join("cbr0")).unwrap();
    fs::create_dir_all(networks.join("others")).unwrap();
    fs::create_dir_all(&configs).unwrap();
    fs::create_dir_all(&records).unwrap();
    let [own, other] = ["10-flannel.conflist", "87-podman.conflist"].map(|it| configs.join(it));
    let config = r#"{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"}]}"#;
    fs::write(&own, config).unwrap();
    let config = r#"{"name":"others","plugins":[{"type":"bridge","bridge":"br1"}]}"#;
    fs::write(&other, config).unwrap();
    let reservation = networks.join("cbr0/10.244.1.7");
    fs::write(&reservation, "container\r\neth0").unwrap();
    node.ip("link add cni0 type bridge").unwrap();
    node.ip("link set cni0 up").unwrap();
    let endpoints = cluster.etcd.endpoints().join(",");
    let path = |path: &std::path::Path| path.display().to_string();
    let flags = [
        "cleanup".to_owned(),
        "--yes".to_owned(),
        "--cni".to_owned(),
        "--lease".to_owned(),
        format!("--cni-conf-dir={}", path(&configs)),
        format!("--data-dir={}", path(&networks)),
        format!("--records-dir={}", path(&records)),
        format!("--etcd-endpoints={endpoints}"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let subnet = node.subnet_env().unwrap().subnet(Family::V4).unwrap().to_string();
    let is_leased = || {
        let leases = cluster.etcd.list(SUBNETS).unwrap();
        leases.iter().any(|it| it.key.ends_with(&subnet.replace('/', "-")))
    };
    let refused = tweedctl(node, &flags).unwrap();
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(code(&refused) == 1 && printed.contains("containers have 1 address"), "{printed}");
    assert!(is_leased() && own.exists());
    fs::remove_file(reservation).unwrap();
    // Another IPAM plugin may have given the address of this one.
    node.ip("link add veth7 type veth peer name veth8").unwrap();
    node.ip("link set veth7 master cni0").unwrap();
    let refused = tweedctl(node, &flags).unwrap();
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(code(&refused) == 1 && printed.contains("1 interface on cni0"), "{printed}");
    node.ip("link del veth7").unwrap();
    let cleaned = tweedctl(node, &flags).unwrap();
    let printed = text(&cleaned).unwrap();
    assert_eq!(code(&cleaned), 0, "{printed}");
    let released = format!("lease {subnet} is released");
    assert!(printed.contains(&released) && printed.contains("link cni0"), "{printed}");
    assert!(!is_leased() && !own.exists() && !records.exists());
    assert!(!networks.join("cbr0").exists());
    assert!(other.exists() && networks.join("others").exists());
    assert_eq!(before.changes(&node.snapshot().unwrap()), Vec::<String>::new());
}

/// The commands in the README, without comments.
fn typed() -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let page = fs::read_to_string(page).unwrap();
    let mark =
        "<!-- run by tests/cluster/operator/ctl.rs: the_commands_of_the_readme_work_as_written -->";
    let blocks = page.split(mark).skip(1).map(|rest| rest.strip_prefix("\n```\n").unwrap());
    let blocks = blocks.map(|rest| rest.split_once("```").unwrap().0);
    let line = |line: &str| line.split("  #").next().unwrap_or(line).trim().to_owned();
    blocks.flat_map(str::lines).map(line).collect()
}

#[test]
fn the_commands_of_the_readme_work_as_written() {
    let lab = Lab::new(binaries()).unwrap();
    let etcd = lab.etcd().unwrap();
    let segment = lab.segment(SegmentPlan::new("10.99.1.0/24")).unwrap();
    let nodes = ["n1", "n2", "n3"].map(|name| lab.node(name, &segment).unwrap());
    let endpoints = etcd.endpoints().join(",");
    let canary = nodes[1].address(Family::V4).unwrap().to_string();
    // Adapts addresses, paths of files and time limits to the lab.
    let here = |line: &str| {
        let line = line.replace("http://10.0.0.2:2379", &endpoints).replace("10.0.0.7", &canary);
        line.replace("--hold 10m", "--hold 1s")
    };
    let tweedctl = format!(
        "tweedctl() {{ {} --subnet-file={} \"$@\"; }}",
        binaries().tweedctl.display(),
        nodes[0].subnet_file().display()
    );
    let (mut exports, mut daemons) = (String::new(), Vec::new());
    for line in typed().iter().map(|line| here(line)) {
        let run = || {
            let script = format!("{exports}\n{tweedctl}\n{line}");
            let output = nodes[0].namespace().output("sh", &["-eu", "-c", &script])?;
            let is_well = output.status.success() || line == "tweedctl doctor";
            ensure!(is_well, "{line}: {output:?}");
            Ok(())
        };
        if line.starts_with("export ") {
            exports.clone_from(&line);
        } else if let Some(words) = line.strip_prefix("tweedd ") {
            for node in &nodes {
                let plan = DaemonPlan::program(node, binaries().tweedd);
                let plan = words.split(' ').fold(plan, DaemonPlan::argument);
                let file = format!("--subnet-file={}", node.subnet_file().display());
                let plan = plan.argument(file).argument("--healthz-port=8081");
                let plan = plan.environment("FLANNELD_ETCD_ENDPOINTS", &endpoints);
                daemons.push(plan.start().unwrap());
            }
            for daemon in &daemons {
                daemon.wait_ready().unwrap();
            }
        } else if ["migrate plan", "tweedctl status", "tweedctl peers"]
            .iter()
            .any(|words| line.contains(words))
        {
            // Succeeds once all nodes have reported, and all peers are programmed.
            eventually(PATIENCE, run).unwrap();
        } else {
            run().unwrap();
        }
    }
    assert_eq!(daemons.len(), nodes.len());
    assert!(!etcd.get(CONFIG).unwrap().unwrap().value.contains("Rollout"), "it is not finished");
}
