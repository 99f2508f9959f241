//! Connections through services: how long they take to be there, and whether a rolling update, or a
//! restart of the proxy, refuses or loses any.

use std::collections::{BTreeMap, HashSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt::Linger};
use serde_json::{Value, json};
use tweed_lab::{Family, Namespace, Node, Segment, lock};

use super::ours::Scene;
use super::{SLICES, Shape, TARGET, cluster_ip, slice};
use crate::report::goal::Goal;
use crate::report::sample::Sample;
use crate::report::sheet::{Sheet, thousands};

const COUNTS: [u32; 2] = [1000, 30_000];

/// Direct connections and those through a service take turns, with this number of connections each.
const CONNECTIONS: usize = 250;
const TURNS: usize = 40;

/// The services of the rolling update, and how often all of their endpoints are replaced.
const ROLLING: Shape = Shape { services: 100, endpoints: 3 };
const UPDATES: u32 = 6;
/// Between two steps of an update.
const STEP: Duration = Duration::from_millis(300);
/// How long a pod still accepts connections after it is terminating (Kubernetes: up to 30 s).
const GRACE: Duration = Duration::from_secs(1);
/// How often the proxy is killed and started.
const RESTARTS: u32 = 20;
/// The clients, and the time between two connections of each: 5,000 per second.
const CLIENTS: u32 = 5;
const BETWEEN: Duration = Duration::from_millis(1);
/// TCP repeats a dropped SYN after a second, so an exchange that takes longer lost one.
const REPEATED: Duration = Duration::from_millis(900);

/// The endpoints of all services, on a host with all their addresses.
struct Endpoints {
    node: Node,
    /// Those that accept no connections any more.
    ended: Arc<Mutex<HashSet<IpAddr>>>,
}

pub(super) fn run(proxy: &Path, sheet: &mut Sheet) -> Result<()> {
    let head = [
        "services",
        "direct, least (median)",
        "one nft rule",
        "direct, next to tweed-proxy",
        "through a service",
    ];
    sheet.table("A connection to an endpoint", &head)?;
    let (mut goals, mut least) = (Vec::new(), Vec::new());
    for count in COUNTS {
        let samples = latency(proxy, count)?;
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let [a, b, c, d] = samples.each_ref().map(|sample| {
            format!("{:.1} ({:.1}) µs", micros(sample.min()), micros(sample.median()))
        });
        sheet.row(&[&thousands(count), &a, &b, &c, &d])?;
        let [direct, .., through] = samples;
        let more = micros(through.min()) - micros(direct.min());
        let what = format!("{}: a service adds", thousands(count));
        goals.push(Goal::at_most(what, more, 4.0, "µs"));
        least.push(more);
    }
    let most = least.iter().copied().fold(f64::MIN, f64::max);
    let fewest = least.iter().copied().fold(f64::MAX, f64::min);
    goals.push(Goal::at_most("30,000 against 1,000 services", most - fewest, 1.0, "µs"));
    sheet.goals(&goals)?;
    rolling_update(proxy, sheet)?;
    restarts(proxy, sheet)
}

/// Times of connections from a host without a proxy, which tracks them, from one that translates them
/// by a single rule, and from one with a proxy, direct and through a service.
fn latency(proxy: &Path, count: u32) -> Result<[Sample<Duration>; 4]> {
    let shape = Shape { services: count, endpoints: 3 };
    let scene = Scene::with(shape)?;
    let segment = scene.lab.segment("10.99.2.0/24")?;
    let endpoints = Endpoints::start(&scene, &segment)?;
    let [plain, ruled] = [scene.lab.node("n3", &segment)?, scene.lab.node("n4", &segment)?];
    let direct = SocketAddr::from((shape.endpoint(0, 0, 0), TARGET));
    let through = SocketAddr::from((cluster_ip(0), 80));
    let rule = format!("ip daddr {} tcp dport 80 dnat to {direct}", through.ip());
    for (node, rule) in [(&plain, ""), (&ruled, rule.as_str())] {
        endpoints.route_from(node)?;
        let chain = format!("chain out {{\n type nat hook output priority -100;\n{rule}\n}}");
        node.namespace().run("nft", &[&format!("table ip plain {{\n{chain}\n}}")])?;
    }
    let _proxy = scene.start(proxy, "first")?;
    let own = scene.node.namespace();
    let ways =
        [(plain.namespace(), direct), (ruled.namespace(), through), (own, direct), (own, through)];
    let mut all = ways.map(|_| Vec::new());
    for _ in 0..TURNS {
        for (times, (from, to)) in all.iter_mut().zip(ways) {
            times.extend(connect_often(from, to)?);
        }
    }
    Ok(all.map(|times| times.into_iter().collect()))
}

fn connect_often(namespace: &Namespace, to: SocketAddr) -> Result<Vec<Duration>> {
    namespace.within(|| {
        let one = |_| {
            let begun = Instant::now();
            let stream = TcpStream::connect(to)?;
            let took = begun.elapsed();
            end(&stream)?;
            Ok(took)
        };
        (0..CONNECTIONS).map(one).collect()
    })?
}

/// No port stays in use.
fn end(stream: &TcpStream) -> Result<()> {
    Ok(setsockopt(stream, Linger, &linger { l_onoff: 1, l_linger: 0 })?)
}

fn rolling_update(proxy: &Path, sheet: &mut Sheet) -> Result<()> {
    let head = [
        "services",
        "endpoints replaced",
        "connections",
        "per second",
        "refused",
        "reset by ended pods",
        "lost",
    ];
    sheet.table("A rolling update", &head)?;
    let scene = Scene::with(ROLLING)?;
    let segment = scene.lab.segment("10.99.2.0/24")?;
    let endpoints = Endpoints::start(&scene, &segment)?;
    let _proxy = scene.start(proxy, "first")?;
    let load = Load::during(scene.node.namespace(), || {
        (0..UPDATES).for_each(|update| update_all(&scene, &endpoints, update));
        Ok(())
    })?;
    let replaced = thousands(ROLLING.services * ROLLING.endpoints * UPDATES);
    let (total, rate, late) = (thousands(load.total()), load.rate(), load.of("late"));
    let (refused, lost) = (load.of("refused"), load.of("lost"));
    let per_second = format!("{rate:.0}");
    sheet.row(&[&ROLLING.services, &replaced, &total, &per_second, &refused, &late, &lost])?;
    let late = Goal::at_most("reset by ended pods", f64::from(late), 0.0, "");
    sheet.goals(&load.goals().into_iter().chain([late]).collect::<Vec<_>>())
}

fn restarts(proxy: &Path, sheet: &mut Sheet) -> Result<()> {
    let head =
        ["services", "restarts after kill -9", "connections", "per second", "refused", "lost"];
    sheet.table("Restarts of tweed-proxy", &head)?;
    let scene = Scene::with(ROLLING)?;
    let segment = scene.lab.segment("10.99.2.0/24")?;
    let _endpoints = Endpoints::start(&scene, &segment)?;
    let (mut running, _) = scene.start(proxy, "first")?;
    let load = Load::during(scene.node.namespace(), || {
        for restart in 0..RESTARTS {
            thread::sleep(STEP);
            running.kill()?;
            thread::sleep(STEP);
            (running, _) = scene.start(proxy, &format!("restart-{restart}"))?;
        }
        Ok(())
    })?;
    let (total, rate) = (thousands(load.total()), load.rate());
    // A pod ends no connection here, so that a reset is a lost one.
    let (refused, lost) = (load.of("refused"), load.of("lost") + load.of("late"));
    sheet.row(&[&ROLLING.services, &RESTARTS, &total, &format!("{rate:.0}"), &refused, &lost])?;
    let late = Goal::at_most("reset", f64::from(load.of("late")), 0.0, "");
    sheet.goals(&load.goals().into_iter().chain([late]).collect::<Vec<_>>())
}

/// The outcomes of connections to all services.
struct Load {
    outcomes: BTreeMap<&'static str, u32>,
    took: Duration,
}

impl Load {
    /// Clients in `namespace` connect until `work` is done.
    fn during(namespace: &Namespace, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let is_over = AtomicBool::new(false);
        let begun = Instant::now();
        let outcomes = thread::scope(|scope| -> Result<_> {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let is_over = &is_over;
                    scope.spawn(move || namespace.within(|| connect_until(is_over, client)))
                })
                .collect();
            let done = work();
            is_over.store(true, Ordering::Relaxed);
            let mut all = BTreeMap::new();
            for client in clients {
                let outcomes = client.join().ok().context("a client panicked")??;
                for (what, count) in outcomes {
                    *all.entry(what).or_default() += count;
                }
            }
            done.map(|()| all)
        })?;
        Ok(Self { outcomes, took: begun.elapsed() })
    }

    fn of(&self, outcome: &str) -> u32 {
        self.outcomes.get(outcome).copied().unwrap_or(0)
    }

    fn total(&self) -> u32 {
        self.outcomes.values().sum()
    }

    fn rate(&self) -> f64 {
        f64::from(self.total()) / self.took.as_secs_f64()
    }

    fn goals(&self) -> [Goal; 4] {
        let none = |what, outcome| Goal::at_most(what, f64::from(self.of(outcome)), 0.0, "");
        [
            Goal::at_least("connections per second", self.rate(), 4500.0, ""),
            none("refused", "refused"),
            none("lost", "lost"),
            none("answered late, by a repeated SYN", "repeated"),
        ]
    }
}

/// Outcomes of connections, by turns to all services.
fn connect_until(is_over: &AtomicBool, client: u32) -> BTreeMap<&'static str, u32> {
    let mut outcomes = BTreeMap::new();
    let begun = Instant::now();
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        thread::sleep((BETWEEN * number).saturating_sub(begun.elapsed()));
        let service = (number * CLIENTS + client) % ROLLING.services;
        let outcome = exchange(SocketAddr::from((cluster_ip(service), 80)));
        *outcomes.entry(outcome).or_default() += 1;
    }
    outcomes
}

fn exchange(to: SocketAddr) -> &'static str {
    let begun = Instant::now();
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5));
    let answer = stream.and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.read_exact(&mut [0])?;
        Ok(end(&stream))
    });
    match answer.map_err(|error| error.kind()) {
        Ok(_) if begun.elapsed() > REPEATED => "repeated",
        Ok(_) => "answered",
        Err(ErrorKind::ConnectionRefused) => "refused",
        // The change came later than the end of the pod.
        Err(ErrorKind::ConnectionReset) => "late",
        Err(_) => "lost",
    }
}

/// All services replace their endpoints, one after the other, as a Deployment does it: a new one is ready
/// before an old one ends.
fn update_all(scene: &Scene, endpoints: &Endpoints, update: u32) {
    let (old, new) = (update % 2, (update + 1) % 2);
    for index in 0..ROLLING.endpoints {
        let all = |variant| {
            (0..ROLLING.services).map(move |service| ROLLING.endpoint(service, index, variant))
        };
        endpoints.begin(all(new));
        replace(scene, [old, new], index, Some(&json!({ "ready": true })));
        thread::sleep(STEP);
        let ending = json!({ "ready": false, "serving": true, "terminating": true });
        replace(scene, [old, new], index, Some(&ending));
        thread::sleep(GRACE);
        endpoints.end(all(old));
        replace(scene, [old, new], index, None);
        thread::sleep(STEP);
    }
}

/// Endpoint number `index` of each service is there in its new variant, and in its old one with these
/// conditions, if any.
fn replace(scene: &Scene, [old, new]: [u32; 2], index: u32, conditions: Option<&Value>) {
    for service in 0..ROLLING.services {
        let address = |other, variant| ROLLING.endpoint(service, other, variant);
        let variant = |other| if other <= index { new } else { old };
        let ready = (0..ROLLING.endpoints).map(|other| address(other, variant(other)));
        let ready = ready.map(|address| json!({ "addresses": [address] }));
        let former = conditions.iter().map(
            |conditions| json!({ "addresses": [address(index, old)], "conditions": conditions }),
        );
        let slice = slice(service, &ready.chain(former).collect::<Vec<_>>());
        scene.server.patch(SLICES, &format!("s{service}-1"), &slice);
    }
}

impl Endpoints {
    /// Accepts connections to all of their addresses, which the node of the scene reaches.
    fn start(scene: &Scene, segment: &Segment) -> Result<Self> {
        let node = scene.lab.node("n2", segment)?;
        scene.node.connect("eth1", segment)?;
        node.ip("route add local 10.128.0.0/9 dev lo")?;
        let ended = Arc::<Mutex<HashSet<IpAddr>>>::default();
        let listener = node.namespace().within(|| TcpListener::bind(("0.0.0.0", TARGET)))??;
        let known = Arc::clone(&ended);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                accept(stream, &known);
            }
        });
        let endpoints = Self { node, ended };
        endpoints.route_from(&scene.node)?;
        Ok(endpoints)
    }

    /// Has packets to them, and to cluster IPs, leave `node` towards their host.
    fn route_from(&self, node: &Node) -> Result<()> {
        let host = self.node.address(Family::V4)?;
        for network in ["10.128.0.0/9", "10.96.0.0/12"] {
            node.ip(format!("route add {network} via {host}"))?;
        }
        Ok(())
    }

    fn begin(&self, addresses: impl Iterator<Item = Ipv4Addr>) {
        let mut ended = lock(&self.ended);
        for address in addresses {
            ended.remove(&IpAddr::from(address));
        }
    }

    fn end(&self, addresses: impl Iterator<Item = Ipv4Addr>) {
        let mut ended = lock(&self.ended);
        ended.extend(addresses.map(IpAddr::from));
    }
}

/// One byte, or a reset, as from a pod that is gone.
fn accept(mut stream: TcpStream, ended: &Mutex<HashSet<IpAddr>>) {
    let Ok(address) = stream.local_addr() else { return };
    if lock(ended).contains(&address.ip()) {
        let _ = end(&stream);
    } else {
        let _ = stream.write_all(&[0]);
    }
}
