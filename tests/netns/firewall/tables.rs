//! Tests of tweed's nftables tables: creation, reading, notifications, and replacement during
//! traffic.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::gettid;
use tokio::time::timeout;
use tweed::kernel::{Kernel, NetlinkKernel, Observation};
use tweed::model::entry::{Entry, KernelState, Ports, Table, TableName};
use tweed::model::node::Firewalls;
use tweed::model::policy::{Forward, Masquerade, Policy};
use tweed::model::prefix::Family;
use tweed::plan::diff::{Op, diff};
use tweed::plan::scope::Scope;
use tweed_lab::is_silence;

use crate::host::{
    address, apply, dump, establish, ip, missing, on_a_host, rules, run, scope, shows, table_name,
};

/// Tables of both families, with rules of every form.
fn tables(ports: Ports) -> KernelState {
    let spared = r#","NonMasqueradeCIDRs":["192.168.0.0/16","10.0.0.7/32","fd00:16:7::/64"]"#;
    let masquerade = Some(Masquerade { ports, ..Masquerade::default() });
    let policy = Policy { masquerade, forward: Forward::Accept, ..Policy::default() };
    rules(&policy, &Firewalls::default(), spared)
}

fn usual() -> KernelState {
    tables(Ports::FullyRandom)
}

/// The foreign tables of the host, as `nft(8)` lists them.
fn foreign_tables() -> String {
    let tables = run("nft list tables");
    let foreign = tables.lines().filter(|line| !line.ends_with("tweed.1"));
    foreign.map(|line| run(&format!("nft list {line}"))).collect()
}

/// Runs a script of `nft -f`.
fn nft(script: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), script).unwrap();
    run(&format!("nft -f {}", file.path().display()));
}

/// All notifications until now. The kernel sends them before the call that made the change returns.
pub(crate) async fn heard(kernel: &mut NetlinkKernel) -> Vec<Observation> {
    let mut received = Vec::new();
    while let Ok(observation) = timeout(Duration::from_millis(100), kernel.observe()).await {
        received.push(observation.unwrap());
    }
    received
}

#[test]
fn tables_are_created_and_read_as_planned() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        assert_eq!(dump(&mut kernel).await.get(&usual().keys().next().unwrap()), None);
        for desired in [usual(), tables(Ports::Kept)] {
            assert_eq!(establish(&mut kernel, &desired).await, [""; 0]);
        }
        let removals = diff(&KernelState::default(), &dump(&mut kernel).await, &scope());
        assert_eq!(removals.len(), 2);
        apply(&mut kernel, removals.clone()).await;
        assert_eq!(run("nft list tables"), "");
        // Removing a table that is already gone is not refused.
        apply(&mut kernel, removals).await;
    });
}

#[test]
fn nft_creates_the_same_table_from_its_text() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        for entry in usual().entries() {
            nft(&entry.to_string());
        }
        assert_eq!(missing(&mut kernel, &usual()).await, [""; 0]);
    });
}

#[test]
fn every_change_in_a_table_is_notified_found_and_fixed() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &usual()).await;
        heard(&mut kernel).await;
        let handle = || {
            let rules = run("nft -a list chain ip tweed.1 postrouting");
            let rule = rules.lines().find(|line| line.contains("masquerade")).unwrap();
            rule.rsplit(' ').next().unwrap().to_owned()
        };
        let changes = [
            "flush ruleset".to_owned(),
            "delete table ip tweed.1".to_owned(),
            "flush table ip tweed.1".to_owned(),
            "flush chain ip tweed.1 forward".to_owned(),
            "add rule ip tweed.1 postrouting counter".to_owned(),
            "insert rule ip tweed.1 postrouting accept".to_owned(),
            "add rule ip tweed.1 forward ip saddr 10.244.0.0/16 accept".to_owned(),
            "add chain ip tweed.1 more".to_owned(),
            "add set ip tweed.1 more { type ipv4_addr; }".to_owned(),
            "add chain ip tweed.1 forward { policy drop; }".to_owned(),
            "add table ip tweed.1 { flags dormant; }".to_owned(),
            format!("delete rule ip tweed.1 postrouting handle {}", handle()),
        ];
        let expected = Observation::TableChanged(table_name(Family::V4));
        for change in changes {
            // Handles differ after each recreation of the rules.
            let change = match change.rsplit_once("handle ") {
                Some((words, _)) => format!("{words}handle {}", handle()),
                None => change,
            };
            nft(&change);
            assert!(heard(&mut kernel).await.contains(&expected), "{change}");
            assert_ne!(missing(&mut kernel, &usual()).await, [""; 0], "{change}");
            assert_eq!(establish(&mut kernel, &usual()).await, [""; 0], "{change}");
            heard(&mut kernel).await;
        }
    });
}

#[test]
fn foreign_tables_are_neither_notified_nor_changed() {
    on_a_host(async || {
        nft("add table ip tweed.2\n add chain ip tweed.2 postrouting\n add table inet tweed.1\n\
             add chain inet tweed.1 c\n add table ip6 theirs\n add chain ip6 theirs c");
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &usual()).await;
        heard(&mut kernel).await;
        nft("add rule ip tweed.2 postrouting accept\n add rule inet tweed.1 c return\n\
             add chain ip6 theirs d { type filter hook forward priority 0; policy drop; }");
        assert_eq!(heard(&mut kernel).await, []);
        let before = foreign_tables();
        establish(&mut kernel, &tables(Ports::Kept)).await;
        let gone = diff(&KernelState::default(), &dump(&mut kernel).await, &scope());
        assert_eq!(gone.len(), 2);
        apply(&mut kernel, gone).await;
        assert_eq!(foreign_tables(), before);
    });
}

#[test]
fn a_refused_table_is_named_and_does_not_stop_routes() {
    on_a_host(async || {
        // A name that the kernel refuses represents any refusal.
        let long = TableName { family: Family::V4, name: "t".repeat(300) };
        let scope = Scope { tables: [long.clone()].into(), ..scope() };
        let table = Table { name: long.into(), chains: BTreeMap::new(), foreign: 0 };
        let route = crate::host::direct("10.244.9.0/24", "172.16.0.9");
        let ops = [Entry::Table(table), route.clone()].map(|entry| Op::Create(entry.into()));
        let mut kernel = NetlinkKernel::open().unwrap();
        let refused = kernel.apply(&ops).await.unwrap();
        let words: Vec<String> = refused.iter().map(ToString::to_string).collect();
        assert!(words.len() == 1 && words[0].starts_with("+ table ip ttt"), "{words:?}");
        let held = kernel.dump(&scope, &KernelState::default()).await.unwrap();
        assert_eq!(held.get(&route.key()), Some(&route));
        assert_eq!(held.entries().filter(|entry| matches!(entry, Entry::Table(_))).count(), 0);
    });
}

/// A host at the other end of `eth0` that records the source of each numbered packet.
struct World {
    stop: Arc<AtomicBool>,
    received: JoinHandle<Vec<(u32, IpAddr)>>,
}

const WORLD: &str = "172.16.0.2:7000";

impl World {
    fn start() -> Self {
        let (stop, (ready, is_ready)) = (Arc::new(AtomicBool::new(false)), channel());
        let stopped = Arc::clone(&stop);
        let (plug, plugged) = channel();
        let (bound, is_bound) = channel();
        let received = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            ready.send(gettid()).unwrap();
            listen(&plugged, &bound, &stopped)
        });
        let thread = is_ready.recv().unwrap();
        // Permanent, because the kernel removes other neighbours if all namespaces of the machine
        // together have too many.
        ip("link set far0 address 0e:00:00:00:00:ff");
        ip("neigh replace 172.16.0.2 lladdr 0e:00:00:00:00:ff dev eth0 nud permanent");
        ip(&format!("link set far0 netns {thread}"));
        plug.send(()).unwrap();
        is_bound.recv().unwrap();
        Self { stop, received }
    }

    fn finish(self) -> Vec<(u32, IpAddr)> {
        self.stop.store(true, Ordering::SeqCst);
        self.received.join().unwrap()
    }
}

fn listen(plugged: &Receiver<()>, bound: &Sender<()>, stopped: &AtomicBool) -> Vec<(u32, IpAddr)> {
    plugged.recv().unwrap();
    ip("addr add 172.16.0.2/24 dev far0");
    ip("link set far0 up");
    let socket = UdpSocket::bind(WORLD).unwrap();
    setsockopt(&socket, sockopt::RcvBufForce, &(32 << 20)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    bound.send(()).unwrap();
    let (mut received, mut buffer) = (Vec::new(), [0; 4]);
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((_, from)) => received.push((u32::from_be_bytes(buffer), from.ip())),
            Err(error) if is_silence(&error) && stopped.load(Ordering::SeqCst) => return received,
            Err(error) if is_silence(&error) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends packet number `number` in its own flow.
fn send(number: u32) {
    let socket = UdpSocket::bind("10.244.1.7:0").unwrap();
    socket.send_to(&number.to_be_bytes(), WORLD).unwrap();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the thread that sleeps is the sender's own")]
fn no_new_flow_meets_a_partially_replaced_table() {
    const FLOWS: u32 = 5000;
    on_a_host(async || {
        let world = World::start();
        ip("addr add 10.244.1.7/32 dev lo");
        shows("link show eth0", "state UP").await;
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &usual()).await;
        let dropped = || tweed_lab::overruns_at([]).unwrap();
        let (before, is_over) = (dropped(), Arc::new(AtomicBool::new(false)));
        let may_end = Arc::clone(&is_over);
        // A busy machine may replace little while many flows begin.
        let flows = thread::spawn(move || {
            let mut number = 0;
            while number < FLOWS || !may_end.load(Ordering::SeqCst) {
                send(number);
                number += 1;
                thread::sleep(Duration::from_micros(100));
            }
            u64::from(number)
        });
        let mut replaced = 0;
        while !flows.is_finished() {
            for entry in tables([Ports::Kept, Ports::FullyRandom][replaced % 2]).entries() {
                apply(&mut kernel, vec![Op::Replace(entry.clone().into())]).await;
            }
            replaced += 1;
            is_over.store(replaced > 5, Ordering::SeqCst);
        }
        let sent = flows.join().unwrap();
        let received = world.finish();
        let wrong: Vec<_> =
            received.iter().filter(|(_, from)| *from != address("172.16.0.1")).collect();
        assert!(wrong.is_empty(), "{} of {sent} unmasqueraded: {:?}", wrong.len(), wrong.first());
        // Those that full queues of a busy machine dropped are no loss.
        let came = u64::try_from(received.len()).unwrap() + (dropped() - before);
        assert!(came >= sent, "{came} of {sent}; {replaced} replacements");
    });
}
