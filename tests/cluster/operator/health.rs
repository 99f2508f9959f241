//! The health port and the metrics port: which sources reach them, and how long a probe waits.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use tweed_lab::{Family, Namespace, eventually};

use crate::fixture::cluster::{Cluster, ClusterPlan, PATIENCE, Stack};
use crate::fixture::table::VXLAN;

const PORT: u16 = 8081;
const METRICS_PORT: u16 = 8082;
/// kubelet's timeout for a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const PROBES: usize = 15;
/// More connections than the daemon accepts at once.
const SLOW: usize = 200;

fn start(flags: &'static [&'static str], stack: Stack) -> Cluster {
    let plan = ClusterPlan::new(1, &stack.config(&VXLAN.config())).stack(stack);
    plan.flags(flags).start().unwrap()
}

/// Whether kubelet's probe from the node itself is answered in time.
fn is_alive(node: &Namespace) -> Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    node.within(|| {
        let mut stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
        stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: kubelet\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 200 "), "{answer:?}");
        Ok(())
    })?
}

/// A request that never ends, from `source`.
fn slow_request(source: IpAddr, target: SocketAddr) -> Result<TcpStream> {
    let slow = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&slow, sockopt::SendTimeout, &TimeVal::milliseconds(200))?;
    bind(
        std::os::fd::AsRawFd::as_raw_fd(&slow),
        &SockaddrStorage::from(SocketAddr::new(source, 0)),
    )?;
    connect(std::os::fd::AsRawFd::as_raw_fd(&slow), &SockaddrStorage::from(target))?;
    let mut slow = TcpStream::from(slow);
    slow.write_all(b"GET /heal")?;
    Ok(slow)
}

/// Keeps slow requests open from a pod with this number of addresses while kubelet probes; returns
/// how many of the probes were answered in time.
fn answered_next_to_slow_requests(addresses: u8) -> usize {
    let cluster = start(&[], Stack::V4);
    let pod = cluster.nodes[0].pod().unwrap();
    let IpAddr::V4(first) = pod.address(Family::V4).unwrap() else { panic!("no IPv4 address") };
    let sources: Vec<IpAddr> = (0..addresses)
        .map(|number| Ipv4Addr::from(u32::from(first) + u32::from(number)).into())
        .collect();
    for source in sources.iter().skip(1) {
        pod.namespace().ip(&format!("address add {source}/24 dev eth0")).unwrap();
    }
    let target = SocketAddr::new(cluster.nodes[0].address(Family::V4).unwrap(), PORT);
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let attack = || {
        let mut open = VecDeque::new();
        for source in sources.iter().cycle() {
            if done.load(Ordering::SeqCst) {
                break;
            }
            open.extend(slow_request(*source, target));
            if open.len() > SLOW {
                begun.store(true, Ordering::SeqCst);
                open.pop_front();
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| pod.namespace().within(attack).unwrap());
        let has_begun = eventually(PATIENCE, || begun.load(Ordering::SeqCst));
        // kubelet restarts a container after three failures in a row.
        let is_answered = |number: usize| {
            let alive = is_alive(cluster.nodes[0].namespace());
            println!("probe {number}: {alive:?}");
            alive.is_ok()
        };
        let probe = |number: &usize| {
            std::thread::sleep(Duration::from_millis(200));
            (0..3).any(|_| is_answered(*number))
        };
        let answered = (0..PROBES).filter(|_| has_begun.is_ok()).filter(probe).count();
        done.store(true, Ordering::SeqCst);
        has_begun.unwrap();
        answered
    })
}

#[test]
fn slow_requests_from_a_pod_delay_no_probe() {
    assert_eq!(answered_next_to_slow_requests(1), PROBES);
}

#[test]
fn slow_requests_from_many_addresses_delay_no_probe() {
    assert_eq!(answered_next_to_slow_requests(100), PROBES);
}

#[test]
fn the_unspecified_address_listens_on_both_families() {
    for flags in [&[][..], &["--healthz-ip=::"]] {
        let cluster = start(flags, Stack::Dual);
        let node = &cluster.nodes[0];
        let own = [Family::V4, Family::V6].map(|family| node.address(family).unwrap());
        let local = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        for address in own.into_iter().chain(local) {
            let answer = node.namespace().get((address, PORT).into(), "/healthz").unwrap();
            assert_eq!(answer.status, 200, "{address}");
        }
    }
}

#[test]
fn a_host_without_ipv6_is_served_on_ipv4() {
    let mut cluster = ClusterPlan::new(1, &Stack::V4.config(&VXLAN.config())).build().unwrap();
    let node = cluster.nodes[0].namespace().clone();
    for link in ["all", "default", "lo"] {
        node.set_sysctl(&format!("net/ipv6/conf/{link}/disable_ipv6"), "1").unwrap();
    }
    cluster.start_daemons().unwrap();
    eventually(PATIENCE, || is_alive(&node)).unwrap();
}

/// promtool reads the page and finds no fault.
fn lints_metrics(page: &str) {
    let mut promtool = Command::new("promtool");
    let promtool = promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut linter = promtool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    linter.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let checked = linter.wait_with_output().unwrap();
    assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
}

#[test]
fn pods_reach_only_the_metrics_of_a_shipped_daemon() {
    let cluster = start(&["--healthz-ip=127.0.0.1", "--metrics-port=8082"], Stack::V4);
    let node = &cluster.nodes[0];
    let pod = node.pod().unwrap();
    let address = node.address(Family::V4).unwrap();
    let from_pod = |port: u16, path: &str| pod.namespace().get((address, port).into(), path);
    let metrics = from_pod(METRICS_PORT, "/metrics").unwrap();
    assert!(metrics.status == 200 && metrics.body.contains("tweed_ready 1"), "{metrics:?}");
    lints_metrics(&metrics.body);
    let value = |series: &str| -> f64 {
        let mut lines = metrics.body.lines().filter_map(|line| line.strip_prefix(series));
        lines.next().and_then(|value| value.trim().parse().ok()).unwrap_or(f64::NAN)
    };
    assert!(value("tweed_lease_remaining_seconds") > 86_000.0, "{}", metrics.body);
    for series in [
        "tweed_store_request_seconds_count",
        "tweed_dump_seconds_count",
        "tweed_event_to_kernel_seconds_count",
        "process_cpu_seconds_total",
        "tweed_subnets{family=\"ipv4\",state=\"used\"}",
    ] {
        assert!(value(series) > 0.0, "{series}: {}", metrics.body);
    }
    for path in ["/healthz", "/readyz", "/"] {
        assert_eq!(from_pod(METRICS_PORT, path).unwrap().status, 404, "{path}");
    }
    let refused = from_pod(PORT, "/healthz").unwrap_err();
    assert!(format!("{refused:#}").contains("refused"), "{refused:#}");
    eventually(PATIENCE, || is_alive(node.namespace())).unwrap();
}
