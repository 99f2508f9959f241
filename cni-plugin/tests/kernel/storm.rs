//! Many at once, and killed at any moment: nothing is handed out twice, nothing stays behind.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::thread;

use serde_json::{Value, json};

use crate::harness::kernel::Place;
use crate::harness::{Answer, DUAL, IPV4, Node, Pod};

const POD_STORM: usize = 200;
const KILLS: usize = 150;

fn all_at_once(node: &Node, command: &str, pods: &[Pod], config: &Value) -> Vec<Answer> {
    let children: Vec<_> = pods.iter().map(|pod| node.call(command, pod, config).start()).collect();
    children.into_iter().map(finish).collect()
}

fn finish(child: Child) -> Answer {
    let output = child.wait_with_output().unwrap();
    Answer {
        status: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn two_hundred_pods_come_and_go_at_once() {
    let node = Node::new(&IPV4.replace("FLANNEL_IPMASQ=true", "FLANNEL_IPMASQ=false"));
    let config = node.config("0.3.1");
    let pods: Vec<_> = (0..POD_STORM).map(|_| node.pod()).collect();
    let answers = all_at_once(&node, "ADD", &pods, &config);
    let addresses: BTreeSet<_> = answers.iter().map(Answer::address).collect();
    assert_eq!(addresses.len(), POD_STORM);
    assert_eq!(node.links().len(), POD_STORM + 1);
    assert_eq!(node.reservations().len(), POD_STORM);
    for answer in all_at_once(&node, "DEL", &pods, &config) {
        answer.is_silent();
    }
    assert_eq!(node.links(), ["cni0"]);
    assert_eq!(node.reservations(), []);
    assert_eq!(node.states(), Vec::<String>::new());
}

/// Kills the plugin after about so many microseconds of its life.
fn kill_after(mut child: Child, microseconds: u64) -> bool {
    // A short wait that does not give up the processor: what is to be hit is short too.
    let pause = std::time::Duration::from_micros(microseconds);
    let waited = thread::spawn(move || thread::park_timeout(pause));
    let _ = waited.join();
    let _ = child.kill();
    child.wait().unwrap().signal().is_some()
}

/// A moment within a call, another one each time, and the same in each run.
fn moment(round: usize) -> u64 {
    let step = u64::try_from(round).unwrap().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (step >> 32) % 40_000
}

#[test]
fn whatever_is_killed_leaves_nothing_that_del_or_gc_does_not_take() {
    let node = Node::new(&DUAL.replace("FLANNEL_IPMASQ=true", "FLANNEL_IPMASQ=false"));
    let mut config = node.config("1.1.0");
    let live = node.pod();
    let kept = node.add(&live, &config).addresses();
    config["cni.dev/valid-attachments"] = json!([{"containerID": live.id, "ifname": "eth0"}]);
    let pod = node.pod();
    let mut killed = 0;
    for round in 0..KILLS {
        if round % 3 == 2 {
            let added = node.add(&pod, &config).addresses();
            assert!(added.iter().all(|address| !kept.contains(address)));
        }
        let command = if round % 3 == 2 { "DEL" } else { "ADD" };
        let child = node.call(command, &pod, &config).start();
        killed += usize::from(kill_after(child, moment(round)));
        let clear = if round % 2 == 0 { "DEL" } else { "GC" };
        node.call(clear, &pod, &config).run().is_silent();
        let owners = node.reservations().into_iter().map(|(_, owner)| owner);
        assert!(owners.into_iter().all(|owner| owner.starts_with(&live.id)), "round {round}");
        assert_eq!(node.links().len(), 2, "round {round}");
        assert_eq!(pod.links(), Vec::<String>::new(), "round {round}");
        assert_eq!(node.states().len(), 2, "round {round}: {:?}", node.states());
        let (_, rules) = node.exec("nft list table inet cni_plugins_masquerade");
        assert!(!rules.contains(&pod.id), "round {round}: {rules}");
    }
    assert!(killed > KILLS / 10, "only {killed} were hit");
    assert!(live.exec("ping -n -c 1 -W 2 10.244.7.1").0);
}
