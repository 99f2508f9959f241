//! The kernel in memory, which scenarios and simulations use, changes as the real one.

mod packets;

use std::collections::BTreeSet;
use std::fmt;
use std::iter;
use std::process::Command;
use std::time::Duration;

use futures::FutureExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::timeout;
use tweed::kernel::{Kernel, NetlinkKernel, Observation};
use tweed::model::entry::{Address, Entry, KernelState, Key, Renewal, Route, SettingKind};
use tweed::model::node::{Interface, InterfaceAddress, Lifetime};
use tweed::model::prefix::Family;
use tweed::plan::diff::{Op, diff};
use tweed_model::ModelKernel;

use crate::firewall::guard::guarding;
use crate::host::{
    add_uplink, address, device, direct, dump, ip, name, notifications_until, on_a_host, prefix,
    run, scope, shows, tunnel, tunnel_v6, tunnelled,
};
use crate::nexthop::by_nexthop;
use crate::roundtrip::is_created_by_the_kernel;

const HOSTS: usize = 4;
/// Changes of each host.
const CHANGES: usize = 100;
/// The changes that a failure shows.
const SHOWN: usize = 6;
/// A link that nothing else changes.
const MARKER: &str = "marker0";

/// A change of the host.
#[derive(Clone, Debug)]
enum Change {
    /// By tweed.
    Apply(Vec<Op>),
    /// Another program adds an entry, or removes one.
    Add(Entry),
    Lose(Entry),
    Up(&'static str),
    Down(&'static str),
    /// The uplink gets its address of this family, or loses it.
    AddAddress(Family),
    LoseAddress(Family),
    /// The driver of the uplink is loaded again.
    Recreate,
    FlushTables,
    FlushNexthops,
}

#[test]
fn the_model_of_the_kernel_changes_as_the_real_one() {
    for _ in 0..HOSTS {
        on_a_host(async || compare(rand::random()).await);
    }
}

async fn compare(seed: u64) {
    ip(&format!("link add {MARKER} type veth peer name marker1"));
    ip(&format!("link set {MARKER} up"));
    let mut kernel = NetlinkKernel::open().unwrap();
    let mut model = ModelKernel::new(kernel.facts(None).await.unwrap());
    let (mut dice, all) = (StdRng::seed_from_u64(seed), universe());
    let (mut known, mut known_of_model) = (dump(&mut kernel).await, dump(&mut model).await);
    let mut story = Vec::new();
    for _ in 0..CHANGES {
        let change = change(&mut dice, &all, &model.state());
        story.push(change.to_string());
        let story = story[story.len().saturating_sub(SHOWN)..].join("\n");
        let refused = match &change {
            Change::Apply(ops) => [refused(&mut kernel, ops).await, refused(&mut model, ops).await],
            change => {
                change_both(change, &model).await;
                Default::default()
            }
        };
        expect_equal("refused", &refused, seed, &story);
        let mut noticed = notifications_until(&mut kernel, MARKER).await;
        // Those of tables wait on a socket of their own.
        while let Ok(more) = timeout(Duration::from_millis(1), kernel.observe()).await {
            noticed.push(more.unwrap());
        }
        expect_equal("there", &[shown(&mut kernel).await, shown(&mut model).await], seed, &story);
        learn(&mut known, noticed, &mut kernel).await;
        let noticed = iter::from_fn(|| model.observe().now_or_never()).map(Result::unwrap);
        let noticed: Vec<Observation> = noticed.collect();
        learn(&mut known_of_model, noticed, &mut model).await;
        expect_equal("known", &[texts(&known), texts(&known_of_model)], seed, &story);
    }
}

fn expect_equal(what: &str, [real, modelled]: &[BTreeSet<String>; 2], seed: u64, story: &str) {
    let (only_real, only_modelled) = (real - modelled, modelled - real);
    assert!(
        real == modelled,
        "seed {seed}\n{story}\n{what} only with the real kernel: {only_real:#?}\n\
         {what} only with the model: {only_modelled:#?}"
    );
}

/// What a daemon knows of the kernel after notifications.
async fn learn(known: &mut KernelState, noticed: Vec<Observation>, kernel: &mut impl Kernel) {
    let mut is_dump_due = false;
    for observation in noticed {
        match observation {
            Observation::Holds(entry) if scope().covers(&entry) => {
                known.insert(entry);
            }
            Observation::Holds(_) => {}
            Observation::Lost(key) => {
                known.remove(&key);
            }
            _ => is_dump_due = true,
        }
    }
    if is_dump_due {
        *known = dump(kernel).await;
    }
}

async fn refused(kernel: &mut impl Kernel, ops: &[Op]) -> BTreeSet<String> {
    kernel.apply(ops).await.unwrap().iter().map(|refused| refused.op.to_string()).collect()
}

/// What a kernel shows.
async fn shown(kernel: &mut impl Kernel) -> BTreeSet<String> {
    let (facts, state) = kernel.read(None, &scope(), &KernelState::default()).await.unwrap();
    let uplinks = facts.interfaces.iter().filter(|it| it.name == name("eth0")).map(|uplink| {
        let addresses = uplink.addresses.iter().map(|own| own.address.to_string());
        let addresses: BTreeSet<String> = addresses.filter(|it| !it.starts_with("fe80")).collect();
        format!("eth0 {} {addresses:?}", if uplink.up { "up" } else { "down" })
    });
    uplinks.chain(texts(&state)).collect()
}

fn texts(state: &KernelState) -> BTreeSet<String> {
    state.entries().filter(|entry| !is_created_by_the_kernel(entry)).map(text).collect()
}

/// Without what passes with time, and what a route has of its nexthop object.
fn text(entry: &Entry) -> String {
    match entry {
        Entry::Renewal(renewal) => Entry::Renewal(Renewal::of(renewal.table.clone())).to_string(),
        Entry::Route(route) if route.nexthop.is_some() => {
            let route = Route { gateway: None, link: None, onlink: false, ..route.clone() };
            route.to_string()
        }
        entry => entry.to_string(),
    }
}

/// Entries that a daemon may want, some instead of others.
fn universe() -> Vec<Entry> {
    let mut all = device(tunnel(), "10.244.1.0/32");
    all.extend(device(tunnel_v6(), "fd00:10:244:1::/128"));
    all.push(Entry::Setting(SettingKind::ReversePath.on(&name("eth0"))));
    all.push(Entry::Setting(SettingKind::ReversePath.off(&name("eth0"))));
    all.push(Entry::Setting(SettingKind::ReversePath.on(&name("flannel.1"))));
    all.push(Entry::Address(Address {
        link: name("lo"),
        address: address("10.244.1.0"),
        prefix_len: 32,
    }));
    all.extend(guarding(2).into_iter().map(|entry| Entry::clone(&entry)));
    for subnet in ["10.244.2.0/24", "10.244.3.0/24"] {
        let tunnelled = tunnelled("flannel.1", subnet, "172.16.5.2", "0e:00:00:00:00:02");
        let other = ["172.16.0.9", "172.16.0.8", "198.51.100.1"].map(|it| direct(subnet, it));
        all.extend(tunnelled.into_iter().chain(other).flat_map(with_nexthop));
    }
    for subnet in ["fd00:10:244:2::/64", "fd00:10:244:3::/64"] {
        let tunnelled = tunnelled("flannel-v6.1", subnet, "fd00:16:5::2", "0e:00:00:00:00:62");
        let other = ["fd00:16::9", "fd00:16::8", "2001:db8::1"].map(|it| direct(subnet, it));
        all.extend(tunnelled.into_iter().chain(other).flat_map(with_nexthop));
    }
    let mut moved = tunnelled("flannel.1", "10.244.2.0/24", "172.16.5.3", "0e:00:00:00:00:02");
    moved.extend(tunnelled("flannel.1", "10.244.2.0/24", "172.16.5.2", "0e:00:00:00:00:03"));
    moved.retain(|entry| !matches!(entry, Entry::Route(_)));
    all.extend(moved);
    all.extend(
        ["10.244.1.0/24", "fd00:10:244:1::/64"]
            .map(|own| Entry::Route(Route::unreachable(prefix(own)))),
    );
    all
}

/// A route also with a nexthop object.
fn with_nexthop(entry: Entry) -> Vec<Entry> {
    match &entry {
        Entry::Route(route) => iter::once(entry.clone()).chain(by_nexthop(route.clone())).collect(),
        _ => vec![entry],
    }
}

const LINKS: [&str; 3] = ["eth0", "flannel.1", "flannel-v6.1"];

fn change(dice: &mut StdRng, all: &[Entry], state: &KernelState) -> Change {
    let link = LINKS[dice.random_range(0..LINKS.len())];
    let family = Family::ALL[dice.random_range(0..2)];
    let entry = &all[dice.random_range(0..all.len())];
    let key = entry.key();
    match dice.random_range(0..32) {
        0 => existing(link, state, Change::Down(link)),
        1 => existing(link, state, Change::Up(link)),
        2 if dice.random() => Change::AddAddress(family),
        2 => Change::LoseAddress(family),
        3 if dice.random_range(0..4) == 0 => Change::Recreate,
        4 if dice.random_range(0..4) == 0 => Change::FlushTables,
        5 if dice.random_range(0..4) == 0 => Change::FlushNexthops,
        6..10 => match state.get(&key) {
            Some(Entry::Setting(_)) | None => Change::Apply(Vec::new()),
            Some(have) => Change::Lose(have.clone()),
        },
        10 => match entry {
            Entry::Route(route) => {
                Change::Add(Entry::Route(Route { protocol: 4, ..route.clone() }))
            }
            _ => Change::Apply(Vec::new()),
        },
        11..24 => Change::Apply(op(entry, state).into_iter().collect()),
        _ => {
            let wanted = |_: &&Entry| dice.random_range(0..3) > 0;
            let desired = all.iter().filter(wanted).cloned().collect();
            Change::Apply(diff(&desired, state, &scope()))
        }
    }
}

fn existing(link: &'static str, state: &KernelState, change: Change) -> Change {
    let is_there = link == "eth0" || state.get(&Key::Link(name(link))).is_some();
    if is_there { change } else { Change::Apply(Vec::new()) }
}

/// The op that a daemon sends for an entry that it wants, or no longer wants. None for a setting that is
/// as wanted: it would write the file, for which off is 0 or 2, and the kernel notifies of other values.
fn op(entry: &Entry, state: &KernelState) -> Option<Op> {
    let shared = entry.clone().into();
    match state.get(&entry.key()) {
        None => Some(Op::Create(shared)),
        Some(have) if have != entry => Some(Op::Replace(shared)),
        Some(Entry::Setting(_)) => None,
        Some(_) => Some(Op::Remove(shared)),
    }
}

/// Carries out a change by others.
async fn change_both(change: &Change, model: &ModelKernel) {
    // Another program knows nothing of the links before.
    let mut others = NetlinkKernel::open().unwrap();
    match change {
        Change::Apply(_) => {}
        Change::Add(entry) => {
            if refused(&mut others, &[Op::Create(entry.clone().into())]).await.is_empty() {
                model.set(entry.clone());
            }
        }
        Change::Lose(entry) => {
            assert!(refused(&mut others, &[Op::Remove(entry.clone().into())]).await.is_empty());
            model.lose(&entry.key());
        }
        Change::Up(link) => {
            ip(&format!("link set {link} up"));
            if *link == "eth0" {
                uplink_is_up().await;
            }
            model.link_up(&name(link));
        }
        Change::Down(link) => {
            ip(&format!("link set {link} down"));
            model.link_down(&name(link));
        }
        Change::AddAddress(family) => change_address(model, *family, "replace"),
        Change::LoseAddress(family) => change_address(model, *family, "del"),
        Change::Recreate => {
            ip("link del eth0");
            add_uplink();
            uplink_is_up().await;
            model.remove_interface(&name("eth0"));
            let addresses = Family::ALL.map(uplink_address).to_vec();
            let eth0 =
                Interface { name: name("eth0"), mtu: 1500, up: true, layer2: true, addresses };
            model.add_interface(eth0);
        }
        Change::FlushTables => {
            run("nft flush ruleset");
            lose_all(model, |key| matches!(key, Key::Table(_)));
        }
        Change::FlushNexthops => {
            ip("nexthop flush");
            lose_all(model, |key| matches!(key, Key::Nexthop(_)));
        }
    }
}

/// The kernel detects the carrier after the link is set up.
async fn uplink_is_up() {
    shows("link show eth0", "state UP").await;
}

fn lose_all(model: &ModelKernel, is_lost: impl Fn(&Key) -> bool) {
    for key in model.state().keys().filter(is_lost) {
        model.lose(&key);
    }
}

fn uplink_address(family: Family) -> InterfaceAddress {
    let (own, prefix_len) = match family {
        Family::V4 => ("172.16.0.1", 24),
        Family::V6 => ("fd00:16::1", 64),
    };
    let lifetime = Lifetime::Permanent;
    InterfaceAddress { address: address(own), prefix_len, usable: true, lifetime }
}

/// Does nothing if the uplink has the address already, or not at all.
fn change_address(model: &ModelKernel, family: Family, verb: &str) {
    let own = uplink_address(family);
    let text = format!("{}/{}", own.address, own.prefix_len);
    let changed = Command::new("ip").args(["addr", verb, &text, "dev", "eth0"]).output().unwrap();
    if changed.status.success() {
        model.change_interface(&name("eth0"), |eth0| {
            eth0.addresses.retain(|it| it.address != own.address);
            eth0.addresses.extend((verb != "del").then_some(own));
        });
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apply(ops) => {
                f.write_str("apply")?;
                ops.iter().try_for_each(|op| write!(f, "\n  {op:#}"))
            }
            Self::Add(entry) => write!(f, "others add {entry:#}"),
            Self::Lose(entry) => write!(f, "others remove {entry:#}"),
            Self::Up(link) => write!(f, "link {link} goes up"),
            Self::Down(link) => write!(f, "link {link} goes down"),
            Self::AddAddress(family) => write!(f, "eth0 gets its address of {family}"),
            Self::LoseAddress(family) => write!(f, "eth0 loses its address of {family}"),
            Self::Recreate => f.write_str("eth0 is created again"),
            Self::FlushTables => f.write_str("nft flush ruleset"),
            Self::FlushNexthops => f.write_str("ip nexthop flush"),
        }
    }
}
