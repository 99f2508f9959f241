//! A test host in its own network namespace, and the entries that it should hold.

use std::fs;
use std::future::Future;
use std::net::IpAddr;
use std::panic;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use tweed::kernel::{Kernel, NetlinkKernel, Observation};
use tweed::mac::MacAddr;
use tweed::model::config::BackendType;
use tweed::model::config::NetworkConfig;
use tweed::model::entry::{
    Address, ChainName, Entry, Fdb, KernelState, Link, LinkKind, LinkName, Neighbour, Route,
    SettingKind, TableName, Vxlan,
};
use tweed::model::lease::{Endpoint, Lease, LeaseId};
use tweed::model::node::Firewalls;
use tweed::model::policy::Policy;
use tweed::model::prefix::{Family, Prefix};
use tweed::plan::backend::table_names;
use tweed::plan::diff::{Op, diff};
use tweed::plan::masquerade;
use tweed::plan::scope::{Extent, Scope};

/// Runs `test` on a thread with its own network namespace. The namespace has an uplink `eth0` with
/// addresses of both families; its other end is `far0`.
pub(crate) fn on_a_host<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let body = move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
        // With a lock of iptables-legacy of its own: that of other tests may be held for long.
        run("mount -t tmpfs tmpfs /run");
        // Otherwise the kernel notifies again when duplicate address detection ends.
        fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap();
        ip("link set lo up");
        add_uplink();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            shows("link show eth0", "state UP").await;
            shows("link show far0", "state UP").await;
            addresses_are_in_use().await;
            test().await;
        });
    };
    if let Err(panicked) = thread::spawn(body).join() {
        panic::resume_unwind(panicked);
    }
}

pub(crate) fn add_uplink() {
    for line in [
        "link add eth0 type veth peer name far0",
        "link set eth0 up",
        "link set far0 up",
        "addr add 172.16.0.1/24 dev eth0",
        "addr add fd00:16::1/64 dev eth0",
    ] {
        ip(line);
    }
}

pub(crate) fn ip(arguments: &str) -> String {
    run(&format!("ip {arguments}"))
}

/// Runs the command, which must succeed; returns its output.
pub(crate) fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    let mut program = Command::new(words.next().unwrap());
    // All tests of this process share the lock of iptables-legacy. Without this option it does not
    // wait for the lock.
    if program.get_program().to_string_lossy().ends_with("tables-legacy") {
        program.arg("--wait");
    }
    let output = program.args(words).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until `ip ARGUMENTS` shows `what`, because the kernel applies some changes later.
pub(crate) async fn shows(arguments: &str, what: &str) {
    let shown = || ip(arguments);
    eventually(async || shown().contains(what), || format!("ip {arguments}: {}", shown())).await;
    finish_changes();
}

/// Waits until `holds`; panics with `state` after a timeout.
pub(crate) async fn eventually(
    mut holds: impl AsyncFnMut() -> bool,
    state: impl FnOnce() -> String,
) {
    for _ in 0..1000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it stays at {}", state());
}

/// Waits until no IPv6 address is tentative and the kernel has sent the notifications.
pub(crate) async fn addresses_are_in_use() {
    let tentative = || ip("-6 addr show tentative");
    eventually(async || tentative().is_empty(), tentative).await;
    finish_changes();
}

/// Waits until the kernel has also notified of a change that it already shows. The kernel holds a
/// lock until then, and this command takes the same lock.
fn finish_changes() {
    ip("link set lo up");
}

pub(crate) fn name(text: &str) -> LinkName {
    LinkName::new(text)
}

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

pub(crate) fn scope() -> Scope {
    Scope {
        tunnels: [name("flannel.1"), name("flannel-v6.1")].into(),
        underlay: Some(name("eth0")),
        tables: table_names(1).collect(),
        chains: ChainName::all().collect(),
        extent: Extent::Spare,
        networks: vec![prefix("10.244.0.0/16"), prefix("fd00:10:244::/56")],
        subnets: vec![prefix("10.244.1.0/24"), prefix("fd00:10:244:1::/64")],
        gateways: [address("172.16.0.9"), address("fd00:16::9")].into(),
        leaving: [].into(),
        retired: Vec::new(),
    }
}

pub(crate) fn table_name(family: Family) -> TableName {
    TableName { family, name: "tweed.1".to_owned() }
}

pub(crate) fn tunnel() -> Link {
    Link {
        name: name("flannel.1"),
        kind: LinkKind::Vxlan(Box::new(Vxlan {
            vni: 1,
            underlay: Some(name("eth0")),
            local: Some(address("172.16.0.1")),
            port: 8472,
            learning: false,
            gbp: false,
            group: None,
            l2miss: false,
        })),
        mtu: 1450,
        mac: "0e:00:00:00:00:01".parse().unwrap(),
        up: true,
    }
}

pub(crate) fn tunnel_v6() -> Link {
    let LinkKind::Vxlan(vxlan) = tunnel().kind else { unreachable!() };
    Link {
        name: name("flannel-v6.1"),
        kind: LinkKind::Vxlan(Box::new(Vxlan { local: Some(address("fd00:16::1")), ..*vxlan })),
        mtu: 1430,
        mac: "0e:00:00:00:00:06".parse().unwrap(),
        ..tunnel()
    }
}

/// A tunnel device with its settings and the address `own`.
pub(crate) fn device(link: Link, own: &str) -> Vec<Entry> {
    let name = link.name.clone();
    vec![
        Entry::Link(link),
        Entry::Setting(SettingKind::ReversePath.off(&name)),
        Entry::Setting(SettingKind::AcceptRa.off(&name)),
        Entry::Address(Address {
            link: name,
            address: prefix(own).base(),
            prefix_len: prefix(own).prefix_len(),
        }),
    ]
}

/// The entries for the peer with `subnet` and the public IP `public`, through the tunnel device
/// `link`.
pub(crate) fn tunnelled(link: &str, subnet: &str, public: &str, mac: &str) -> Vec<Entry> {
    let (link, subnet, mac): (_, _, MacAddr) = (name(link), prefix(subnet), mac.parse().unwrap());
    vec![
        Entry::Fdb(Fdb { link: link.clone(), mac, destination: address(public) }),
        Entry::Neighbour(Neighbour {
            link: link.clone(),
            address: subnet.base(),
            mac,
            permanent: true,
        }),
        Entry::Route(Route::via(subnet, subnet.base(), link).onlink()),
    ]
}

/// The route to the peer with `subnet` and the public IP `public` on the same link.
pub(crate) fn direct(subnet: &str, public: &str) -> Entry {
    Entry::Route(Route::via(prefix(subnet), address(public), name("eth0")))
}

/// Both tunnel devices, and per family one peer in the tunnel and one on the link.
pub(crate) fn everything() -> KernelState {
    let mut state: KernelState = device(tunnel(), "10.244.1.0/32").into_iter().collect();
    state.extend(device(tunnel_v6(), "fd00:10:244:1::/128"));
    state.extend(tunnelled("flannel.1", "10.244.2.0/24", "172.16.5.2", "0e:00:00:00:00:02"));
    state.extend(tunnelled(
        "flannel-v6.1",
        "fd00:10:244:2::/64",
        "fd00:16:5::2",
        "0e:00:00:00:00:62",
    ));
    state.extend([
        direct("10.244.9.0/24", "172.16.0.9"),
        direct("fd00:10:244:9::/64", "fd00:16::9"),
    ]);
    state.insert(Entry::Setting(SettingKind::ReversePath.off(&name("eth0"))));
    state
}

pub(crate) async fn dump(kernel: &mut impl Kernel) -> KernelState {
    kernel.dump(&scope(), &KernelState::default()).await.unwrap()
}

/// Applies `ops`; none may be refused.
pub(crate) async fn apply(kernel: &mut NetlinkKernel, ops: Vec<Op>) {
    let refused = kernel.apply(&ops).await.unwrap();
    let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
    assert!(refused.is_empty(), "refused: {refused:#?}");
}

/// Makes the kernel hold `desired`; returns the remaining differences as text.
pub(crate) async fn establish(kernel: &mut NetlinkKernel, desired: &KernelState) -> Vec<String> {
    let actual = dump(kernel).await;
    apply(kernel, diff(desired, &actual, &scope())).await;
    missing(kernel, desired).await
}

/// The difference between `desired` and the kernel state, as text.
pub(crate) async fn missing(kernel: &mut NetlinkKernel, desired: &KernelState) -> Vec<String> {
    let actual = kernel.dump(&scope(), desired).await.unwrap();
    diff(desired, &actual, &scope()).iter().map(ToString::to_string).collect()
}

/// All notifications until now.
pub(crate) async fn notifications(kernel: &mut NetlinkKernel) -> Vec<Observation> {
    notifications_until(kernel, "lo").await
}

/// All notifications until now; `marker` is a link that nothing else changes.
pub(crate) async fn notifications_until(
    kernel: &mut NetlinkKernel,
    marker: &str,
) -> Vec<Observation> {
    addresses_are_in_use().await;
    // The kernel sends notifications in order: the marker comes after all earlier ones.
    let mark = || ip(&format!("link set {marker} alias marker"));
    mark();
    let end = Observation::LinkChanged(name(marker));
    let mut observations = Vec::new();
    loop {
        let next = tokio::time::timeout(Duration::from_secs(60), kernel.observe());
        let observation = next.await.expect("no notification of the marker").unwrap();
        match observation {
            _ if observation == end => return observations,
            // It did not listen yet.
            Observation::Paused => drop(mark()),
            _ => {}
        }
        observations.push(observation);
    }
}

/// Runs all of `lines` in one `ip -batch` or `bridge -batch`.
pub(crate) fn batch(program: &str, lines: impl Iterator<Item = String>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), lines.collect::<Vec<_>>().join("\n")).unwrap();
    run(&format!("{program} -batch {}", file.path().display()));
}

/// The rules that this node plans, with additional config keys.
pub(crate) fn rules(policy: &Policy, host: &Firewalls, keys: &str) -> KernelState {
    let own = [("10.244.1.0/24", "172.16.0.1"), ("fd00:10:244:1::/64", "fd00:16::1")];
    let own = own.map(|(subnet, public_ip)| (prefix(subnet), address(public_ip)));
    rules_of(own, policy, host, keys)
}

/// As [`rules`], of the node with these subnets and public IPs.
pub(crate) fn rules_of(
    own: [(Prefix, IpAddr); 2],
    policy: &Policy,
    host: &Firewalls,
    keys: &str,
) -> KernelState {
    let config = format!(
        r#"{{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/56"{keys}}}"#
    );
    let config = NetworkConfig::parse(config.as_bytes()).unwrap();
    let endpoint = |(subnet, public_ip)| Endpoint {
        subnet,
        public_ip,
        backend: BackendType::HostGw.into(),
        vtep: None,
    };
    let endpoints = own.into_iter().map(endpoint).collect();
    let own = Lease { id: LeaseId::new("own"), endpoints, created: 1, grant: None };
    masquerade::rules(policy, &config, host, &own).into_iter().collect()
}
