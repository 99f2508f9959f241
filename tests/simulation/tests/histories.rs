//! Histories of whole clusters: the same seed gives the same history, and no invariant rejects one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "for tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::time::Instant;

use tweed::model::config::NetworkConfig;
use tweed_simulation::act::{
    Act, Backend, ClusterId, Config, Device, EtcdAct, InterfaceAct, KernelAct, MachineId, Order,
    SegmentAct, Step,
};
use tweed_simulation::cluster::Setup;
use tweed_simulation::dice::Dice;
use tweed_simulation::history::{play, replay, shrink};
use tweed_simulation::network::LinkState;
use tweed_simulation::packets::stack::Stack;
use tweed_simulation::store::StoreKind;

const NODES: usize = 5;
const ETCD: Setup =
    Setup { nodes: NODES, store: StoreKind::Etcd, stack: Stack::V4, flannel: None, is_wide: false };
const HOST_GW: Config = Config::Mixed(Backend::HostGw);
/// How long new histories are played.
const TIME: Duration = Duration::from_secs(60);

#[test]
fn a_seed_decides_everything() {
    let hashes: Vec<u64> = (0..20)
        .map(|seed| {
            let [first, second] = [(); 2].map(|()| play(seed, &Dice::new(NODES)).unwrap().hash);
            assert_eq!(first, second, "two plays of seed {seed} differ");
            first
        })
        .collect();
    assert!(hashes.iter().collect::<BTreeSet<_>>().len() == hashes.len(), "{hashes:?}");
}

#[test]
fn no_node_accepts_a_config_with_a_typo() {
    for (stack, number) in [Stack::V4, Stack::V6, Stack::Dual]
        .into_iter()
        .flat_map(|it| (0..Config::TYPOS).map(move |n| (it, n)))
    {
        let text = Config::Malformed(number).text(stack).unwrap();
        assert!(NetworkConfig::parse(text.as_bytes()).is_err(), "{text}");
    }
}

/// The acts that a history with this seed needed to be rejected. Other dice do not change them.
type Rejected = (u64, Setup, Vec<Step>);

fn rejected_by_two_copies() -> Vec<Rejected> {
    let copy = |node| Act::Copy(node, MachineId::Kept);
    vec![
        (1428, ETCD, vec![step(15_116, copy(1)), step(38_548, copy(1))]),
        // One copy overwrites the lease before the other has read that the original overwrote its.
        (
            24_002_276,
            Setup { stack: Stack::Dual, is_wide: true, ..ETCD },
            vec![
                step(0, Act::Configure(HOST_GW)),
                step(23_588, Act::Configure(Config::Mixed(Backend::Vxlan))),
                step(24_813, copy(4)),
                step(24_940, copy(4)),
            ],
        ),
    ]
}

fn rejected_by_copies() -> Vec<Rejected> {
    let copy = |node| Act::Copy(node, MachineId::Kept);
    vec![
        // A supervisor restarts the daemon of a copy.
        (2000, ETCD, vec![step(24_451, copy(2))]),
        // A distant etcd takes seconds to refuse the lease to the copy, at each of its starts.
        (
            23_000_260,
            Setup { stack: Stack::Dual, is_wide: true, ..ETCD },
            vec![
                step(0, Act::Configure(Config::Mixed(Backend::DirectRouting))),
                step(16_248, copy(4)),
                step(63_279, Act::StoreLink(4, LinkState::Cut)),
            ],
        ),
        // A copy writes again before the original has overwritten it.
        (
            10_068,
            ETCD,
            vec![
                step(63_642, Act::Etcd(EtcdAct::Down)),
                step(65_165, Act::Etcd(EtcdAct::Up)),
                step(66_071, copy(1)),
                step(67_104, Act::Configure(HOST_GW)),
            ],
        ),
        // The address changes twice before the checkpoint is saved.
        (
            10_065_364,
            Setup { stack: Stack::Dual, is_wide: true, ..ETCD },
            vec![
                step(24_329, Act::Readdress(0, 6)),
                step(24_527, Act::PowerOff(0)),
                step(25_335, Act::Readdress(0, 11)),
            ],
        ),
        // A copy, which holds no lease yet, remembers a node that has left.
        (
            10_043_272,
            Setup { is_wide: true, ..ETCD },
            vec![
                step(55_760, Act::Leave(1)),
                step(57_489, Act::Copy(3, MachineId::New)),
                step(58_946, Act::Etcd(EtcdAct::Down)),
            ],
        ),
        // A lease is created in a restored store, whose revisions have reached those of before.
        (
            9_600_586,
            ETCD,
            vec![
                step(0, Act::Configure(Config::Rollout(39))),
                step(58_781, Act::Etcd(EtcdAct::BackUp)),
                step(61_156, Act::Configure(HOST_GW)),
                step(61_872, Act::Etcd(EtcdAct::Restore(ClusterId::Kept))),
                step(61_950, Act::Copy(0, MachineId::New)),
            ],
        ),
        // The own lease vanishes together with that of a machine which leaves.
        (20_000_018, ETCD, vec![step(67_182, Act::Leave(0)), step(67_543, Act::DeleteLease(3))]),
    ]
}

/// Nodes that read the end of `Mixed` at different times.
fn rejected_by_late_reads() -> Vec<Rejected> {
    vec![
        // A node takes a subnet while etcd is slow, and loses its power before it reads that flanneld had
        // another one there.
        (
            52_011_266,
            Setup { flannel: Some(Backend::DirectRouting), ..ETCD },
            vec![
                step(42_140, Act::Etcd(EtcdAct::Slow(Duration::from_millis(2376)))),
                step(49_285, Act::TakeOver(4)),
                step(50_899, Act::PowerOff(4)),
                step(52_170, Act::PowerOn(4)),
                step(56_157, Act::Etcd(EtcdAct::Up)),
                step(59_187, Act::PowerOff(4)),
            ],
        ),
        // After an outage of etcd, one node watches the config again at once, and another one much later.
        (
            15_101_104,
            Setup { is_wide: true, ..ETCD },
            vec![
                step(35_753, Act::Configure(Config::Mixed(Backend::DirectRouting))),
                step(46_345, Act::Reinstall(4)),
                step(58_535, Act::Etcd(EtcdAct::Down)),
                step(63_721, Act::Etcd(EtcdAct::Up)),
                step(67_977, Act::Migrate(Order::Finish)),
            ],
        ),
        // A node boots while etcd takes seconds for each answer: its pods wait for the lease.
        (
            20_504_670,
            Setup { stack: Stack::V6, ..ETCD },
            vec![
                step(0, Act::Configure(HOST_GW)),
                step(26_972, Act::PowerOff(3)),
                step(28_271, Act::Etcd(EtcdAct::Slow(Duration::from_millis(2781)))),
                step(33_797, Act::Kernel(3, KernelAct::Interrupt)),
                step(34_951, Act::PowerOn(3)),
            ],
        ),
    ]
}

fn rejected_by_backups() -> Vec<Rejected> {
    vec![
        // A restarted node with a new address finds its former one in a restored store.
        (
            4499,
            ETCD,
            vec![
                step(15_000, Act::Kill(3)),
                step(23_019, Act::Readdress(3, 6)),
                step(37_959, Act::Etcd(EtcdAct::BackUp)),
                step(56_379, Act::Start(3)),
                step(59_703, Act::Etcd(EtcdAct::Restore(ClusterId::New))),
            ],
        ),
        // The same after a power cut, so that its etcd lease is another one than that of before.
        (
            9_401_702,
            Setup { stack: Stack::V6, ..ETCD },
            vec![
                step(15_000, Act::PowerOff(1)),
                step(15_063, Act::Readdress(1, 6)),
                step(15_656, Act::Etcd(EtcdAct::BackUp)),
                step(16_321, Act::PowerOn(1)),
                step(16_453, Act::Configure(HOST_GW)),
                step(31_354, Act::Etcd(EtcdAct::Restore(ClusterId::Kept))),
            ],
        ),
        // The same with a lease whose older version has another address.
        (
            9_112_316,
            Setup { stack: Stack::Dual, is_wide: true, ..ETCD },
            vec![
                step(0, Act::Configure(HOST_GW)),
                step(15_934, Act::Configure(HOST_GW)),
                step(19_339, Act::SwapAddresses(2, 1)),
                step(20_053, Act::PowerOn(2)),
                step(20_616, Act::Configure(Config::Mixed(Backend::Vxlan))),
                step(21_979, Act::SwapAddresses(4, 2)),
                step(23_995, Act::SwapAddresses(2, 1)),
                step(25_381, Act::Etcd(EtcdAct::BackUp)),
                step(26_694, Act::PowerOn(1)),
                step(27_623, Act::Etcd(EtcdAct::Restore(ClusterId::Kept))),
            ],
        ),
    ]
}

fn rejected_by_two_backups() -> Vec<Rejected> {
    vec![
        // The revisions of a restored backup reach those that a node knows before it watches again.
        (
            52_007_544,
            ETCD,
            vec![
                step(23_525, Act::Configure(Config::Malformed(2))),
                step(23_770, Act::Configure(HOST_GW)),
                step(49_542, Act::Configure(Config::Missing)),
                step(50_386, Act::StoreLink(4, LinkState::Cut)),
                step(53_537, Act::Configure(Config::Mixed(Backend::DirectRouting))),
                step(54_082, Act::Copy(4, MachineId::New)),
                step(57_079, Act::DeleteLease(4)),
                step(59_443, Act::Etcd(EtcdAct::BackUp)),
                step(59_452, Act::Etcd(EtcdAct::Down)),
                step(60_495, Act::Etcd(EtcdAct::Restore(ClusterId::New))),
                step(60_495, Act::Etcd(EtcdAct::Up)),
                step(61_866, Act::Configure(Config::Mixed(Backend::DirectRouting))),
                step(62_977, Act::Etcd(EtcdAct::BackUp)),
                step(67_175, Act::StoreLink(4, LinkState::Open)),
                step(67_209, Act::Etcd(EtcdAct::Restore(ClusterId::Kept))),
            ],
        ),
    ]
}

fn rejected_by_backups_of_a_moment() -> Vec<Rejected> {
    vec![
        // The backup is restored at the moment in which the first lease after a boot is written.
        (
            10_101_412,
            Setup { stack: Stack::Dual, is_wide: true, ..ETCD },
            vec![
                step(22_408, Act::Configure(Config::Mixed(Backend::DirectRouting))),
                step(23_996, Act::SwapAddresses(3, 2)),
                step(25_784, Act::Etcd(EtcdAct::BackUp)),
                step(28_491, Act::PowerOn(3)),
                step(28_501, Act::Etcd(EtcdAct::Restore(ClusterId::Kept))),
            ],
        ),
        // A distant node reads the config half a minute after the store answers, and its lease later.
        (
            10_104_770,
            Setup { is_wide: true, ..ETCD },
            vec![
                step(0, Act::Configure(Config::Mixed(Backend::DirectRouting))),
                step(35_199, Act::Etcd(EtcdAct::Compact)),
                step(39_500, Act::Configure(Config::Mixed(Backend::Vxlan))),
                step(40_385, Act::Etcd(EtcdAct::Down)),
                step(41_630, Act::SwapAddresses(4, 2)),
                step(42_062, Act::StoreLink(2, LinkState::AnswersLost)),
                step(43_669, Act::Segment(SegmentAct::DropPods)),
                step(44_336, Act::PowerOn(4)),
                step(44_336, Act::PowerOn(2)),
                step(44_648, Act::Segment(SegmentAct::PassPods)),
                step(52_361, Act::Readdress(4, 6)),
                step(54_934, Act::Etcd(EtcdAct::Up)),
                step(68_905, Act::StoreLink(2, LinkState::Open)),
            ],
        ),
        // A backup takes back a migration to which one node has already been restarted.
        (
            10_100_600,
            ETCD,
            vec![
                step(0, Act::Configure(HOST_GW)),
                step(25_314, Act::Configure(HOST_GW)),
                step(27_438, Act::Configure(Config::Finished(Backend::HostGw))),
                step(50_654, Act::Etcd(EtcdAct::BackUp)),
                step(57_954, Act::Configure(Config::Mixed(Backend::Vxlan))),
                step(61_985, Act::StoreLink(3, LinkState::Cut)),
                step(63_146, Act::Start(3)),
                step(64_519, Act::StoreLink(3, LinkState::Open)),
                step(69_799, Act::Etcd(EtcdAct::Restore(ClusterId::New))),
            ],
        ),
    ]
}

fn rejected_by_backups_of_kubernetes() -> Vec<Rejected> {
    vec![
        // A backup lacks only what a node wrote while its watch was interrupted.
        (
            10_065_787,
            Setup { store: StoreKind::Kubernetes, ..ETCD },
            vec![
                step(0, Act::Configure(HOST_GW)),
                step(17_295, Act::DeleteLease(3)),
                step(25_498, Act::Interface(1, InterfaceAct::Recreate)),
                step(55_463, Act::Configure(Config::Rollout(47))),
                step(57_684, Act::Etcd(EtcdAct::BackUp)),
                step(57_710, Act::Etcd(EtcdAct::Down)),
                step(59_965, Act::Etcd(EtcdAct::Up)),
                step(61_987, Act::Etcd(EtcdAct::Restore(ClusterId::Kept))),
            ],
        ),
        // A backup restores the Node of a machine that has left, with the address of another one.
        (
            10_061_279,
            Setup { store: StoreKind::Kubernetes, stack: Stack::V6, is_wide: true, ..ETCD },
            vec![
                step(32_963, Act::SwapAddresses(3, 2)),
                step(45_424, Act::Etcd(EtcdAct::BackUp)),
                step(46_868, Act::Leave(3)),
                step(48_350, Act::Etcd(EtcdAct::Restore(ClusterId::Kept))),
            ],
        ),
    ]
}

fn rejected_by_the_kernel() -> Vec<Rejected> {
    vec![
        // The subnet of a node that is gone belongs to another machine before its route is removed.
        (
            63_000_392,
            ETCD,
            vec![
                step(16_156, Act::Kernel(0, KernelAct::RefuseRoutes)),
                step(26_658, Act::SwapAddresses(4, 3)),
                step(39_165, Act::Leave(3)),
            ],
        ),
        // The interface is back after a while, and reading the host fails once.
        (
            10_095_741,
            Setup { store: StoreKind::Kubernetes, stack: Stack::Dual, ..ETCD },
            vec![
                step(0, Act::Configure(Config::Rollout(82))),
                step(20_439, Act::Interface(4, InterfaceAct::Down(Device::Underlay))),
                step(35_144, Act::Kernel(4, KernelAct::Interrupt)),
                step(38_013, Act::Interface(4, InterfaceAct::Up(Device::Underlay))),
            ],
        ),
        // The tunnel device is down when a daemon starts without etcd.
        (
            10_096_996,
            Setup { stack: Stack::Dual, ..ETCD },
            vec![
                step(17_741, Act::Kill(1)),
                step(17_742, Act::StoreLink(1, LinkState::Cut)),
                step(25_944, Act::Interface(1, InterfaceAct::Down(Device::Tunnel))),
                step(26_998, Act::Start(1)),
            ],
        ),
    ]
}

fn rejected_by_edits() -> Vec<Rejected> {
    vec![
        // The public IP changes while the tunnel device waits for its removal.
        (
            51_007_765,
            Setup { store: StoreKind::Kubernetes, stack: Stack::Dual, ..ETCD },
            vec![
                step(39_515, Act::Configure(HOST_GW)),
                step(49_016, Act::Configure(Config::Finished(Backend::HostGw))),
                step(58_840, Act::Readdress(0, 10)),
                step(60_374, Act::Leave(1)),
            ],
        ),
        // An edit that corrects the network is lost, as etcd has no leader.
        (
            10_067_366,
            Setup { stack: Stack::V6, is_wide: true, ..ETCD },
            vec![
                step(34_335, Act::Configure(Config::OtherNetwork)),
                step(42_801, Act::Etcd(EtcdAct::Leaderless)),
                step(45_812, Act::Configure(HOST_GW)),
            ],
        ),
        // The tunnel is wanted again at the moment in which its device was removed.
        (
            3_008_200,
            ETCD,
            vec![
                step(50_055, Act::Configure(HOST_GW)),
                step(55_010, Act::Configure(Config::Finished(Backend::HostGw))),
                step(65_142, Act::Configure(HOST_GW)),
            ],
        ),
        // `Mixed` is removed while every direct path fails.
        (
            3_007_652,
            ETCD,
            vec![
                step(15_000, Act::Segment(SegmentAct::DropPods)),
                step(21_564, Act::Configure(HOST_GW)),
                step(21_976, Act::Configure(Config::Finished(Backend::HostGw))),
            ],
        ),
        // The tunnel is wanted again while the host cannot be read once.
        (
            8_000_728,
            ETCD,
            vec![
                step(40_561, Act::Configure(HOST_GW)),
                step(40_600, Act::Configure(Config::Finished(Backend::HostGw))),
                step(51_756, Act::Kernel(2, KernelAct::Interrupt)),
                step(55_058, Act::Configure(Config::Mixed(Backend::Vxlan))),
            ],
        ),
    ]
}

fn step(milliseconds: u64, act: Act) -> Step {
    Step { at: Duration::from_millis(milliseconds), act }
}

#[test]
fn no_history_that_was_rejected_once_is_rejected_again() {
    let rejected = [
        rejected_by_copies(),
        rejected_by_two_copies(),
        rejected_by_late_reads(),
        rejected_by_backups(),
        rejected_by_two_backups(),
        rejected_by_backups_of_a_moment(),
        rejected_by_backups_of_kubernetes(),
        rejected_by_the_kernel(),
        rejected_by_edits(),
    ];
    for (seed, setup, steps) in rejected.into_iter().flatten() {
        let outcome = replay(seed, setup, &steps).unwrap();
        assert_eq!(outcome.violation, None, "seed {seed}: {steps:?}");
    }
}

#[test]
fn new_histories_are_accepted() {
    let end = Instant::now() + TIME;
    let first: u64 = rand::random();
    for seed in (0..).map(|number| first.wrapping_add(number)) {
        if Instant::now() >= end {
            break;
        }
        accept(seed);
    }
}

/// Each takes back a fix, so that it can be measured after how many histories the defect is found.
#[test]
fn the_patches_that_revert_fixes_apply() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["store", "node"].map(|it| root.join("tests/simulation/reverted").join(it));
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let patches: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    assert!(!patches.is_empty());
    for patch in patches {
        let mut check = Command::new("git");
        let output = check.args(["apply", "--check"]).arg(&patch).current_dir(&root).output();
        let output = output.unwrap();
        let reason = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {reason}", patch.display());
    }
}

fn accept(seed: u64) {
    if let Some(violation) = play(seed, &Dice::new(NODES)).unwrap().violation {
        panic!("{}", shrink(seed, &Dice::new(NODES), violation).unwrap());
    }
}
