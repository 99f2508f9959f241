//! `tweedctl nodes` and `dashboard` on a live cluster: ready nodes, and one that is cut off, dead, and back.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tweed_lab::{DaemonPlan, Family, eventually};

use crate::fixture::ask::{tweedctl, wait_until_reachable};
use crate::fixture::cluster::{Cluster, PATIENCE, Stack, binaries};

/// Exit code and output of `tweedctl nodes` with these arguments.
fn nodes(cluster: &Cluster, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    run(cluster, &[&["nodes"], arguments].concat())
}

/// Exit code and output of `tweedctl` on the first node.
fn run(cluster: &Cluster, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let endpoints = format!("--etcd-endpoints={}", cluster.etcd.endpoints().join(","));
    let output = tweedctl(&cluster.nodes[0], &[arguments, &[endpoints.as_str()]].concat())?;
    Ok((output.status.code(), String::from_utf8(output.stdout)?))
}

/// The pairs that `tweedctl connectivity test` lists: source, destination and state.
fn failing_pairs(cluster: &Cluster) -> Result<(Option<i32>, BTreeSet<[String; 3]>)> {
    let (code, text) = run(cluster, &["connectivity", "test", "-o", "json"])?;
    let listed: Value = serde_json::from_str(&text).context(text)?;
    let pairs = listed["pairs"].as_array().context("no list")?;
    let word = |pair: &Value, key: &str| pair[key].as_str().unwrap_or_default().to_owned();
    let pair = |pair: &Value| ["from", "to", "state"].map(|key| word(pair, key));
    Ok((code, pairs.iter().map(pair).collect()))
}

/// Waits until the nodes have these states, in their order, and the exit code is this one.
fn wait_for(cluster: &Cluster, states: [&str; 3], code: i32) {
    let is_shown = || {
        let (found, text) = nodes(cluster, &["-o", "json"])?;
        let rows: Vec<Value> = serde_json::from_str(&text).context(text.clone())?;
        for (node, state) in cluster.nodes.iter().zip(states) {
            let name = node.address(Family::V4)?.to_string();
            let row = rows.iter().find(|row| row["name"] == name.as_str()).context("no row")?;
            ensure!(row["state"] == state, "{row}");
            ensure!(row["ready"] == true && row["mtu"] == 1450, "{row}");
        }
        ensure!(rows.len() == 3 && found == Some(code), "{found:?} {text}");
        Ok(())
    };
    eventually(PATIENCE, is_shown).unwrap();
}

/// Lets the report of a node miss three refreshes within seconds.
fn refresh_each_second(cluster: &Cluster, index: usize) {
    let lease = cluster.lease(index).unwrap();
    let key = lease.key.replace("/subnets/", "/tweed/nodes/");
    let text = cluster.etcd.get(&key).unwrap().unwrap().value;
    let mut report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["refresh_seconds"], 60);
    report["refresh_seconds"] = 1.into();
    cluster.etcd.put_with_lease(&key, &report.to_string(), lease.lease).unwrap();
}

#[test]
fn a_node_is_ready_unreachable_dead_and_ready_again() {
    let config = r#""Backend":{"Type":"vxlan"},"Probe":{"Interval":"200ms"}"#;
    let mut cluster = Cluster::start(3, &Stack::V4.config(config)).unwrap();
    wait_until_reachable(&cluster).unwrap();
    wait_for(&cluster, ["ready"; 3], 0);
    let all_are_reachable = || {
        let (code, text) = run(&cluster, &["connectivity", "test"])?;
        ensure!(code == Some(0) && text == "6 pairs: 6 reachable\n", "{text}");
        Ok(())
    };
    eventually(PATIENCE, all_are_reachable).unwrap();
    cluster.daemons[1].kill().unwrap();
    cluster.nodes[1].underlay().cut().unwrap();
    wait_for(&cluster, ["ready", "unreachable", "ready"], 5);
    let names = [0, 1, 2].map(|node| cluster.nodes[node].address(Family::V4).unwrap().to_string());
    let unreachable =
        [0, 2].map(|from| [names[from].clone(), names[1].clone(), "unreachable".to_owned()]);
    let are_listed = || {
        let found = failing_pairs(&cluster)?;
        ensure!(found == (Some(5), unreachable.clone().into()), "{found:?}");
        let text = run(&cluster, &["connectivity", "test"])?.1;
        ensure!(text.contains("no probe and no ping is answered"), "{text}");
        ensure!(text.ends_with("\n6 pairs: 4 reachable, 2 unreachable\n"), "{text}");
        Ok(())
    };
    eventually(PATIENCE, are_listed).unwrap();
    refresh_each_second(&cluster, 1);
    wait_for(&cluster, ["ready", "dead", "ready"], 5);

    let [alive, dead] = [0, 1].map(|node| cluster.nodes[node].address(Family::V4).unwrap());
    // A busy machine loses some probes of the others.
    let only_it_fails = || {
        let (code, text) = nodes(&cluster, &["--failing"])?;
        ensure!(code == Some(5) && text.contains(&format!("\n{dead} ")), "{text}");
        ensure!(!text.contains(&format!("\n{alive} ")), "{text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        ensure!(words.join(" ").contains("it is not reached from 2 of 2 nodes"), "{text}");
        ensure!(text.ends_with("\n3 nodes: 2 ready, 1 dead\n"), "{text}");
        ensure!(text.lines().all(|line| line.len() <= 80), "{text}");
        let (code, text) = nodes(&cluster, &["--node", &alive.to_string(), "-o", "wide"])?;
        ensure!(code == Some(0) && text.contains(env!("CARGO_PKG_VERSION")), "{text}");
        Ok(())
    };
    eventually(PATIENCE, only_it_fails).unwrap();
    assert_eq!(nodes(&cluster, &["--node", "n9"]).unwrap().0, Some(2));
    a_migration_names_the_dead_node(&cluster, &dead.to_string());

    cluster.nodes[1].underlay().restore().unwrap();
    cluster.daemons[1].start().unwrap();
    wait_for(&cluster, ["ready"; 3], 0);
    let none_fails = || {
        let (_, text) = nodes(&cluster, &["--failing"])?;
        ensure!(text.starts_with("3 nodes: 3 ready"), "{text}");
        Ok(())
    };
    eventually(PATIENCE, none_fails).unwrap();
}

/// One node of three is dead: it stops a stage by its own name, and no other node waits for it.
fn a_migration_names_the_dead_node(cluster: &Cluster, dead: &str) {
    let migrate = |line: &str| {
        let words: Vec<&str> = ["migrate"].into_iter().chain(line.split(' ')).collect();
        let (code, text) = run(cluster, &words).unwrap();
        println!("# tweedctl migrate {line}\n{text}");
        (code, text.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let outage = format!("{dead} is dead: its report is not refreshed for ");
    // These change nothing, and a probe between the others may be lost meanwhile.
    let is_named = |line: &str, expected: i32| {
        let named = || {
            let (code, text) = migrate(line);
            let is_once = code == Some(expected) && text.matches(&outage).count() == 1;
            ensure!(is_once && text.contains("not reached from 2 of 2 nodes"), "{code:?} {text}");
            // It is named by itself, not with its peers.
            let among_peers = [format!("→ {dead}"), format!("to {dead}")];
            ensure!(!among_peers.iter().any(|it| text.contains(it)), "{text}");
            Ok(())
        };
        eventually(PATIENCE, named).unwrap();
    };
    is_named("plan --to host-gw", 3);
    is_named("start --to host-gw", 3);
    is_named("status", 4);
    let (code, text) = migrate("start --to host-gw --percent 50 --force");
    assert!(code == Some(0) && text.ends_with("1 node dead"), "{code:?} {text}");
    is_named("next", 3);
    is_named("status", 4);
    assert_eq!(migrate("rollback").0, Some(0));
    assert_eq!(migrate("finish").0, Some(0));
}

/// The data of a page, or of an event.
fn data(text: &str, before: &str, after: &str) -> Result<Value> {
    let (_, text) = text.split_once(before).context(text.to_owned())?;
    let (text, _) = text.split_once(after).context(text.to_owned())?;
    serde_json::from_str(text).context(text.to_owned())
}

#[test]
fn the_page_shows_the_nodes_and_follows_changes() {
    let config = r#""Backend":{"Type":"vxlan"},"Probe":{"Interval":"200ms"}"#;
    let cluster = Cluster::start(2, &Stack::V4.config(config)).unwrap();
    wait_until_reachable(&cluster).unwrap();
    let (node, address) = (&cluster.nodes[0], "127.0.0.1:8080".parse().unwrap());
    let endpoints = format!("--etcd-endpoints={}", cluster.etcd.endpoints().join(","));
    let server = DaemonPlan::program(node, binaries().tweedctl).argument("dashboard");
    let _server = server.argument(&endpoints).start().unwrap();
    let of_page = |page: &str| data(page, r#"id="data">"#, "</script>");
    let has_states = |path: &str, state: &str| {
        let answer = node.namespace().get(address, path)?;
        ensure!(answer.status == 200, "{}", answer.body);
        let found = match path {
            "/" => of_page(&answer.body)?,
            _ => data(&answer.body, "event: message\ndata: ", "\n")?,
        };
        let states: Vec<_> = found["nodes"].as_array().context("no nodes")?.iter().collect();
        let is_so = states.len() == 2 && states.iter().all(|node| node["state"] == state);
        ensure!(is_so && found["migration"].is_null(), "{found}");
        Ok(())
    };
    for path in ["/", "/events"] {
        eventually(PATIENCE, || has_states(path, "ready")).unwrap();
    }
    cluster.segment.filter("udp dport 8472").unwrap();
    eventually(PATIENCE, || has_states("/events", "unreachable")).unwrap();
    assert_eq!(node.namespace().get(address, "/other").unwrap().status, 404);

    let file = node.folder().join("page.html");
    let words = ["dashboard", &endpoints, "--export", file.to_str().unwrap()];
    let output = tweedctl(node, &words).unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let exported = of_page(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(exported["nodes"][0]["failing_peers"][0]["state"], "unreachable", "{exported}");
}
