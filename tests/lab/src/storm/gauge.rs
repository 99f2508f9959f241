//! etcd's cost: processor time and memory from the kernel, requests and bytes from its own metrics.

use std::collections::BTreeMap;
use std::ops::Sub;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::Process;
use crate::stores::etcd::{Etcd, Member};
use crate::wait::{PATIENCE, eventually};

/// The unit of `/proc/PID/stat`: fixed by the kernel's interface.
const TICKS_PER_SECOND: f64 = 100.0;

/// What etcd has used since it started.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    cpu: f64,
    sent: f64,
    requests: BTreeMap<String, f64>,
    refused: f64,
    peak_kib: u64,
}

/// What etcd has used for one phase.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    pub cpu: Duration,
    pub sent_bytes: u64,
    /// Calls by the name of the method, streams included.
    pub requests: BTreeMap<String, u64>,
    /// Calls that returned an error.
    pub refused: u64,
    /// Peak resident memory.
    pub peak_kib: u64,
}

impl Cost {
    pub fn calls(&self, method: &str) -> u64 {
        self.requests.get(method).copied().unwrap_or(0)
    }

    pub fn all_calls(&self) -> u64 {
        self.requests.values().sum()
    }
}

/// What the first member has used so far; resets the peak for the next reading.
pub(super) fn read(etcd: &Etcd) -> Result<Reading> {
    let (member, pid) = (member(etcd)?, process(etcd)?.pid());
    let mut metrics = String::new();
    eventually(PATIENCE, || {
        metrics = member.get("/metrics")?.body;
        anyhow::Ok(())
    })?;
    let status = proc(pid, "status")?;
    let peak_kib = field(&status, "VmHWM:").context("no VmHWM")?;
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").context("forgetting the peak")?;
    Ok(Reading {
        cpu: cpu_seconds(&proc(pid, "stat")?).context("no times")?,
        peak_kib,
        ..parse(&metrics)
    })
}

/// Seconds of processor time since its start.
pub(super) fn cpu(etcd: &Etcd) -> Result<f64> {
    cpu_of(process(etcd)?)
}

/// Seconds of processor time of a process since its start.
pub(super) fn cpu_of(process: &Process) -> Result<f64> {
    cpu_seconds(&proc(process.pid(), "stat")?).context("no times")
}

/// Resident memory at present.
pub(super) fn resident_kib(etcd: &Etcd) -> Result<u64> {
    process(etcd)?.resident_kib()
}

impl Sub<&Reading> for Reading {
    type Output = Cost;

    fn sub(self, before: &Reading) -> Cost {
        let since = |name: &String, now: f64| now - before.requests.get(name).unwrap_or(&0.0);
        let requests =
            self.requests.iter().map(|(name, now)| (name.clone(), whole(since(name, *now))));
        Cost {
            cpu: Duration::from_secs_f64((self.cpu - before.cpu).max(0.0)),
            sent_bytes: whole(self.sent - before.sent),
            requests: requests.filter(|(_, calls)| *calls > 0).collect(),
            refused: whole(self.refused - before.refused),
            peak_kib: self.peak_kib,
        }
    }
}

fn member(etcd: &Etcd) -> Result<&Member> {
    etcd.members().first().context("the cluster has no member")
}

fn process(etcd: &Etcd) -> Result<&Process> {
    member(etcd)?.process().context("etcd does not run")
}

fn proc(pid: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{file}");
    std::fs::read_to_string(&path).context(path)
}

fn field(status: &str, name: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// User and system time: fields 14 and 15, counted from the state after the name.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let times: Vec<f64> = behind_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|text| text.parse().ok())
        .collect();
    Some(times.iter().sum::<f64>() / TICKS_PER_SECOND)
}

/// Lines like `name{label="value",…} number`.
fn parse(metrics: &str) -> Reading {
    let mut reading = Reading::default();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        let value: f64 = value.parse().unwrap_or(0.0);
        let is = |metric: &str| name.split('{').next() == Some(metric);
        if is("etcd_network_client_grpc_sent_bytes_total") {
            reading.sent = value;
        } else if is("grpc_server_started_total") && value > 0.0 {
            let method = label(name, "grpc_method").unwrap_or_default();
            *reading.requests.entry(method.to_owned()).or_default() += value;
        } else if is("grpc_server_handled_total") && is_refusal(name) {
            reading.refused += value;
        }
    }
    reading
}

/// A stream always ends with an error, so it does not count.
fn is_refusal(name: &str) -> bool {
    label(name, "grpc_type") == Some("unary") && label(name, "grpc_code") != Some("OK")
}

fn label<'a>(name: &'a str, label: &str) -> Option<&'a str> {
    let (_, rest) = name.split_once(&format!("{label}=\""))?;
    rest.split('"').next()
}

/// Metrics are floating-point numbers.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count is neither negative nor beyond 64 bits"
)]
fn whole(count: f64) -> u64 {
    count.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = r#"# HELP etcd_network_client_grpc_sent_bytes_total bytes
etcd_network_client_grpc_sent_bytes_total 1.5e+06
grpc_server_started_total{grpc_method="Range",grpc_service="etcdserverpb.KV",grpc_type="unary"} 7
grpc_server_started_total{grpc_method="Compact",grpc_service="etcdserverpb.KV",grpc_type="unary"} 0
grpc_server_handled_total{grpc_code="OK",grpc_method="Range",grpc_service="etcdserverpb.KV",grpc_type="unary"} 5
grpc_server_handled_total{grpc_code="Unavailable",grpc_method="Range",grpc_service="etcdserverpb.KV",grpc_type="unary"} 2
grpc_server_handled_total{grpc_code="Unavailable",grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 3
"#;

    #[test]
    fn metrics_become_a_cost() {
        let earlier = Reading { sent: 500_000.0, ..Reading::default() };
        let cost = parse(METRICS) - &earlier;
        assert_eq!(cost.sent_bytes, 1_000_000);
        assert_eq!(cost.requests, BTreeMap::from([("Range".to_owned(), 7)]));
        assert_eq!(cost.refused, 2);
    }

    #[test]
    fn times_are_found_behind_a_name_with_spaces_and_brackets() {
        let stat = "42 (et cd) x) S 1 1 1 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 8 0 1000";
        assert!((cpu_seconds(stat).unwrap() - 2.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_field_is_found_by_its_name() {
        assert_eq!(field("VmPeak:\t  9 kB\nVmHWM:\t  812 kB\n", "VmHWM:"), Some(812));
        assert_eq!(field("VmPeak:\t  9 kB\n", "VmHWM:"), None);
    }
}
