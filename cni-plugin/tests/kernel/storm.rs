//! Many processes at once, killed at any moment: no address is allocated twice, and nothing
//! remains.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Child;
use std::thread;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};
use tweed_lab::eventually;
use tweed_netlink::rtnl::link;
use tweed_netlink::{Frame, Socket};

use crate::harness::kernel::Place;
use crate::harness::{Answer, DUAL, Disk, IPV4, Node, Pod, TIMEOUT};

const POD_STORM: usize = 200;
/// The number of these pods that one GC removes.
const STALE: usize = 150;
/// The smallest number of pods that GC must remove in one batch, for which the kernel waits only
/// once. Removed singly, each pod would take as long as the batch, and every ADD would wait for all
/// of them.
const BATCH: usize = 50;

/// The number of processes to kill: `TWEED_KILLS`, or a few by default.
fn kills() -> usize {
    env::var("TWEED_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(90)
}

fn all_at_once(node: &Node, command: &str, pods: &[Pod], config: &Value) -> Vec<Answer> {
    let children: Vec<_> = pods.iter().map(|pod| node.call(command, pod, config).start()).collect();
    children.into_iter().map(Answer::of).collect()
}

#[test]
fn two_hundred_pods_are_added_and_deleted_at_once() {
    let node = Node::new(&DUAL.replace("FLANNEL_IPMASQ=true", "FLANNEL_IPMASQ=false"));
    let mut config = node.config("1.1.0");
    let pods: Vec<_> = (0..POD_STORM).map(|_| node.pod()).collect();
    let answers = all_at_once(&node, "ADD", &pods, &config);
    let addresses: BTreeSet<_> = answers.iter().flat_map(Answer::addresses).collect();
    assert_eq!(addresses.len(), 2 * POD_STORM);
    assert_eq!(node.links().len(), POD_STORM + 1);
    assert_eq!(node.reservations().len(), 2 * POD_STORM);
    let (stale, deleted) = pods.split_at(STALE);
    for answer in all_at_once(&node, "DEL", deleted, &config) {
        answer.is_silent();
    }
    assert_eq!(node.links().len(), STALE + 1);
    config["cni.dev/valid-attachments"] = json!([]);
    let mut listener = node.namespace().within(Socket::listen).unwrap().unwrap();
    setsockopt(&listener, sockopt::RcvBufForce, &(16 << 20)).unwrap();
    node.call("GC", &stale[0], &config).run().is_silent();
    // The kernel sets all links of a batch down before it removes the first.
    let batch = down_before_the_first_removal(&mut listener).len();
    assert!(batch >= BATCH, "only {batch} links were removed together");
    assert_eq!(node.links(), ["cni0"]);
    assert_eq!(node.reservations(), []);
    assert_eq!(node.states(), Vec::<String>::new());
    assert!(!node.exec("nft list table inet cni_plugins_masquerade").1.contains("net: cbr0"));
}

/// The names of the links that were set down before the first of `ports` was removed, by the
/// messages to `listener`.
fn down_before_the_first_removal(listener: &mut Socket) -> BTreeSet<String> {
    const REMOVED: u16 = 17;
    let (mut down, mut is_over) = (BTreeSet::new(), false);
    loop {
        let read = |frame: &Frame<'_>| Some((frame.kind, link::read(frame)?));
        let changes = listener.receive_changes(read).unwrap().expect("no message is lost");
        if changes.is_empty() {
            return down;
        }
        for (kind, port) in changes {
            is_over |= kind == REMOVED && port.kind == "veth";
            if !is_over && !port.is_up {
                down.insert(port.name);
            }
        }
    }
}

/// Waits until `count` processes wait for the lock on `path`.
fn are_waiting(count: usize, path: &Path) {
    let inode = format!(":{} ", fs::metadata(path).unwrap().ino());
    let waits = |line: &&str| line.contains("-> FLOCK") && line.contains(&inode);
    let waiting = || fs::read_to_string("/proc/locks").unwrap().lines().filter(waits).count();
    eventually(TIMEOUT, || waiting() == count).unwrap();
}

#[test]
fn the_second_of_two_adds_of_one_attachment_fails_and_removes_nothing_of_the_first() {
    let node = Node::new(IPV4);
    let config = node.config("1.1.0");
    // The first ADD creates the store.
    let other = node.pod();
    let _ = node.add(&other, &config).result();
    node.del(&other, &config).is_silent();
    let pod = node.pod();
    // Both begin while the store is locked.
    let lock = node.store().join("lock");
    let locked = Flock::lock(File::open(&lock).unwrap(), FlockArg::LockExclusive).unwrap();
    let both = [node.call("ADD", &pod, &config).start(), node.call("ADD", &pod, &config).start()];
    are_waiting(2, &lock);
    drop(locked);
    let (added, failed): (Vec<_>, Vec<_>) =
        both.map(Answer::of).into_iter().partition(|answer| answer.status == 0);
    assert_eq!((added.len(), failed.len()), (1, 1), "{added:?} {failed:?}");
    let (_, message) = failed[0].error();
    assert!(message.contains("duplicate allocation is not allowed"), "{message}");
    let address = added[0].address();
    let held = address.split('/').next().unwrap();
    let reserved: Vec<_> = node.reservations().into_iter().map(|(name, _)| name).collect();
    assert_eq!(reserved, [held]);
    let record = fs::read(node.state_dir().join(format!("{}:eth0", pod.id))).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["reservedAddresses"], json!([held]));
    assert!(pod.pings("10.244.7.1"));
    node.del(&pod, &config).is_silent();
    assert_eq!(node.reservations(), []);
    assert_eq!(node.states(), Vec::<String>::new());
}

/// Kills the plugin about this number of microseconds after its start.
fn kill_after(mut child: Child, microseconds: u64) -> bool {
    // A short wait that does not yield the processor, because the targeted steps are short too.
    let pause = std::time::Duration::from_micros(microseconds);
    let waited = thread::spawn(move || thread::park_timeout(pause));
    let _ = waited.join();
    let _ = child.kill();
    child.wait().unwrap().signal().is_some()
}

/// A moment within a call, different in each round, and the same in each run.
fn moment(round: usize) -> u64 {
    let step = u64::try_from(round).unwrap().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (step >> 32) % 40_000
}

/// A further fault in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    ReadOnlyDisk,
    FullDisk,
    DamagedRecord,
    DamagedReservation,
}

impl Fault {
    const ALL: [Self; 5] = [
        Self::Nothing,
        Self::ReadOnlyDisk,
        Self::FullDisk,
        Self::DamagedRecord,
        Self::DamagedReservation,
    ];

    fn begin(self, disk: &Disk) {
        match self {
            Self::ReadOnlyDisk => disk.make_read_only(),
            Self::FullDisk => disk.fill(),
            _ => {}
        }
    }

    fn end(self, disk: &Disk) {
        match self {
            Self::ReadOnlyDisk => disk.make_writable(),
            Self::FullDisk => disk.make_room(),
            _ => {}
        }
    }

    /// Damages the remains of `pod`.
    fn damage(self, node: &Node, pod: &Pod) {
        let damaged = match self {
            Self::DamagedRecord => {
                let of_pod = node.states().into_iter().filter(|name| name.starts_with(&pod.id));
                of_pod.map(|name| node.state_dir().join(name)).collect()
            }
            Self::DamagedReservation => {
                let of_pod =
                    node.reservations().into_iter().filter(|(_, owner)| owner.starts_with(&pod.id));
                of_pod.map(|(name, _)| node.store().join(name)).collect()
            }
            Self::Nothing | Self::ReadOnlyDisk | Self::FullDisk => Vec::new(),
        };
        for path in damaged.iter().filter(|path| path.exists()) {
            fs::write(path, "\0\0\0").unwrap();
        }
    }
}

#[test]
fn remains_of_killed_processes_are_removed_by_del_or_gc() {
    let env = DUAL.replace("FLANNEL_IPMASQ=true", "FLANNEL_IPMASQ=false");
    let node = Node::new(&env);
    let disk = Disk::at(node.home.path());
    node.write_subnet_env(&env);
    let mut config = node.config("1.1.0");
    let live = node.pod();
    let kept = node.add(&live, &config).addresses();
    config["cni.dev/valid-attachments"] = json!([{"containerID": live.id, "ifname": "eth0"}]);
    let pod = node.pod();
    let (mut killed, rounds) = (0, kills());
    // A busy machine may kill many too late.
    for round in 0..10 * rounds {
        if round >= rounds && killed > rounds / 10 {
            break;
        }
        let command = ["ADD", "DEL", "GC"][round % 3];
        let fault = Fault::ALL[round / 3 % Fault::ALL.len()];
        if command != "ADD" {
            let added = node.add(&pod, &config).addresses();
            assert!(added.iter().all(|address| !kept.contains(address)), "round {round}");
        }
        fault.begin(&disk);
        let child = node.call(command, &pod, &config).start();
        killed += usize::from(kill_after(child, moment(round)));
        let deleted = node.del(&pod, &config);
        // A DEL may leave only a reservation on a disk that cannot be written.
        assert!(
            deleted.status == 0 || fault == Fault::ReadOnlyDisk,
            "{round} {fault:?} {deleted:?}"
        );
        fault.end(&disk);
        if fault != Fault::Nothing {
            let _ = node.add(&pod, &config);
            fault.damage(&node, &pod);
        }
        // A damaged record does not name its owner.
        let by_gc = round % 2 == 1 && fault != Fault::DamagedRecord;
        node.call(if by_gc { "GC" } else { "DEL" }, &pod, &config).run().is_silent();
        is_clean_but_for(&node, &live, &pod, round);
    }
    assert!(killed > rounds / 10, "only {killed} were hit");
    assert!(live.pings("10.244.7.1"));
}

/// Checks that nothing of `gone` is left, and everything of `live`.
#[track_caller]
fn is_clean_but_for(node: &Node, live: &Pod, gone: &Pod, round: usize) {
    let owners: Vec<_> = node.reservations().into_iter().map(|(_, owner)| owner).collect();
    assert_eq!(owners.len(), 2, "round {round}: {owners:?}");
    assert!(owners.iter().all(|owner| owner.starts_with(&live.id)), "round {round}: {owners:?}");
    assert_eq!(node.links().len(), 2, "round {round}");
    assert_eq!(gone.links(), Vec::<String>::new(), "round {round}");
    assert_eq!(node.states().len(), 2, "round {round}: {:?}", node.states());
    let (_, rules) = node.exec("nft list table inet cni_plugins_masquerade");
    assert!(!rules.contains(&gone.id), "round {round}: {rules}");
}
