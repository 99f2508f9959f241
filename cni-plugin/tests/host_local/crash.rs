//! Processes that are killed at any moment leave nothing that cannot be freed, and no address
//! twice.

use std::collections::BTreeSet;
use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::json;
use tweed_cni::host_local::{Kind, Repair, audit};

use super::network::{Network, Program};

const WORKERS: usize = 4;

/// The number of processes to kill: `TWEED_KILLS`, or a few by default.
fn kills() -> usize {
    env::var("TWEED_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(250)
}

/// The network and the identity of a worker.
const CONFIG: &str = "CRASH_TEST_CONFIG";
const WORKER: &str = "CRASH_TEST_WORKER";

/// A container whose addresses no other process may free.
const SURVIVOR: &str = "survivor";

/// Ids that a worker uses.
fn ids(worker: usize) -> [String; 3] {
    [0, 1, 2].map(|id| format!("worker{worker}-{id}"))
}

/// The work of the processes that are killed; run as a test, it does nothing.
#[test]
fn a_worker_allocates_and_frees_until_it_is_killed() {
    let (Ok(config), Ok(worker)) = (env::var(CONFIG), env::var(WORKER)) else { return };
    let home = tempfile::tempdir().unwrap();
    let network = Network { home, config: serde_json::from_str(&config).unwrap() };
    io::stdout().write_all(b"\nready\n").unwrap();
    let own = worker.parse().unwrap();
    let others = (0..WORKERS).filter(|worker| *worker != own).flat_map(ids);
    let others: Vec<_> = others.chain([SURVIVOR.to_owned()]).collect();
    for id in ids(own).iter().cycle() {
        drop(network.add(Program::Ours, id, "eth0"));
        network.del(Program::Ours, id, "eth0");
        drop(network.add(Program::Ours, id, "eth0"));
        if *id == ids(own)[2] {
            network.collect(&others);
        }
    }
}

fn start(network: &Network, worker: usize) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "crash::a_worker_allocates_and_frees_until_it_is_killed", "--nocapture"])
        .env(CONFIG, network.config.to_string())
        .env(WORKER, worker.to_string())
        // A killed worker leaves its temporary files; this folder is removed with the test.
        .env("TMPDIR", network.home.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    lines.map(Result::unwrap).find(|line| line == "ready").unwrap();
    child
}

/// Kills a worker, which must not have ended by itself.
fn kill_running(worker: &mut Child) {
    worker.kill().unwrap();
    let status = worker.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "it had ended: {status}");
}

/// A few milliseconds, different in each call.
fn moment(seed: &mut u64) -> Duration {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    Duration::from_micros((*seed >> 33) % 3000)
}

/// Checks that no record is half-written, no owner has two, and no other file is left.
fn assert_whole(network: &Network) {
    let location = network.parse().unwrap().location;
    let mut owners = BTreeSet::new();
    for finding in audit(&location, Repair::Nothing).unwrap() {
        let whole = ![Kind::HalfWritten, Kind::Foreign].contains(&finding.classification.kind);
        assert!(whole && owners.insert(finding.owner.clone()), "{finding:?}");
    }
    let expected = ["last_reserved_ip.0", "lock"];
    for name in network.names().iter().filter(|name| !name.starts_with("10.1.0.")) {
        assert!(expected.contains(&name.as_str()), "{name}");
    }
}

#[test]
fn killed_processes_leak_no_address_and_duplicate_none() {
    let network = Network::with(&json!({"subnet": "10.1.0.0/27"}));
    network.add(Program::Ours, SURVIVOR, "eth0").unwrap();
    let held: Vec<_> = network.held().into_keys().collect();
    let mut seed = 4711;
    let mut workers: Vec<_> = (0..WORKERS).map(|worker| start(&network, worker)).collect();
    let (_never, timer) = mpsc::channel::<()>();
    for kill in 0..kills() {
        assert!(timer.recv_timeout(moment(&mut seed)).is_err());
        let worker = kill % WORKERS;
        kill_running(&mut workers[worker]);
        if kill % 10 == 0 {
            assert_whole(&network);
        }
        workers[worker] = start(&network, worker);
    }
    workers.iter_mut().for_each(kill_running);
    assert_whole(&network);
    for id in (0..WORKERS).flat_map(ids) {
        network.del(Program::Ours, &id, "eth0");
    }
    assert_eq!(network.held().into_keys().collect::<Vec<_>>(), held);
}
