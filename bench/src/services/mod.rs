//! The cost of services: all of them from nothing, a change of one, a restart without a change, and
//! connections through them.

mod connections;
mod ours;
mod relay;
mod rival;

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::report::goal::Goal;
use crate::report::sample::Sample;
use crate::report::sheet::{Sheet, megabytes, precise, thousands, time};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// The port of all endpoints.
const TARGET: u16 = 8080;

/// What waits for a program that is not stopped.
const LONG: Duration = Duration::from_secs(300);

/// How many services, and how many endpoints each of them has.
#[derive(Clone, Copy)]
struct Shape {
    services: u32,
    endpoints: u32,
}

/// The most seconds that writing may take and, if there is a goal, the most megabytes of the process.
const SHAPES: [(Shape, f64, Option<f64>); 6] = [
    (Shape { services: 1000, endpoints: 3 }, 0.06, None),
    (Shape { services: 5000, endpoints: 3 }, 0.25, Some(25.0)),
    (Shape { services: 10_000, endpoints: 3 }, 0.5, Some(40.0)),
    (Shape { services: 30_000, endpoints: 3 }, 1.0, Some(90.0)),
    (Shape { services: 5006, endpoints: 50 }, 1.5, None),
    (Shape { services: 44_125, endpoints: 1 }, 1.5, None),
];

/// What one program took; none, or nothing, where it was not measured or stopped.
#[derive(Default)]
struct Figures {
    is_stopped: bool,
    load: Option<Duration>,
    /// Of the load, after the last object has come.
    writing: Option<Duration>,
    /// Of all processors, until everything was programmed.
    processor: Option<Duration>,
    endpoint: Sample<Duration>,
    service: Sample<Duration>,
    /// In KiB: of the process, and of the kernel for the table.
    memory: Option<u64>,
    kernel: Option<i64>,
    restart: Option<u32>,
}

pub(crate) fn run(
    proxy: &Path,
    kube_proxy: Option<&Path>,
    rounds: usize,
    sheet: &mut Sheet,
) -> Result<()> {
    let head = [
        "services × endpoints",
        "program",
        "from nothing",
        "of it, writing",
        "CPU",
        "one endpoint, p50",
        "p99",
        "one service, p50",
        "p99",
        "memory",
        "of the kernel",
        "changes by a restart",
    ];
    sheet.table("Services", &head)?;
    let mut goals = Vec::new();
    let mut medians = Vec::new();
    for (shape, writing, memory) in SHAPES {
        let figures = ours::measure(proxy, shape, rounds)?;
        row(sheet, shape, "tweed-proxy", &figures)?;
        goals.extend(figures.goals(shape, writing, memory)?);
        if shape.endpoints == 3 {
            medians.push(figures.endpoint.median());
            if let Some(program) = kube_proxy {
                row(sheet, shape, "kube-proxy", &rival::measure(program, shape)?)?;
            }
        }
    }
    let (first, last) = (medians.first().copied(), medians.last().copied());
    let (first, last) = first.zip(last).context("no figures")?;
    let ratio = last.as_secs_f64() / first.as_secs_f64();
    goals.push(Goal::at_most("one endpoint, 30,000 against 1,000", ratio, 1.2, "×"));
    sheet.goals(&goals)?;
    connections::run(proxy, sheet)
}

fn row(sheet: &mut Sheet, shape: Shape, program: &str, figures: &Figures) -> Result<()> {
    let or_stopped = |text: String| {
        let is_stopped = text.is_empty() && figures.is_stopped;
        if is_stopped { "stopped after 60 s".to_owned() } else { text }
    };
    let percentile = |sample: &Sample<Duration>, percent| match sample.len() {
        0 => String::new(),
        _ => precise(sample.percentile(percent)),
    };
    let optional = |duration: Option<Duration>| duration.map_or_else(String::new, time);
    let memory = |megabytes: Option<f64>| {
        megabytes.map_or_else(String::new, |megabytes| format!("{megabytes:.1} MB"))
    };
    sheet.row(&[
        &format!("{} × {}", thousands(shape.services), shape.endpoints),
        &program,
        &or_stopped(optional(figures.load)),
        &optional(figures.writing),
        &optional(figures.processor),
        &or_stopped(percentile(&figures.endpoint, 50)),
        &percentile(&figures.endpoint, 99),
        &percentile(&figures.service, 50),
        &percentile(&figures.service, 99),
        &memory(figures.memory.map(megabytes)),
        &memory(figures.kernel.map(megabytes_of_kernel)),
        &figures.restart.map_or_else(String::new, |changes| changes.to_string()),
    ])
}

/// Another table that the kernel frees meanwhile makes it less, or less than nothing.
fn megabytes_of_kernel(kib: i64) -> f64 {
    let size = megabytes(kib.unsigned_abs());
    if kib < 0 { -size } else { size }
}

impl Figures {
    fn goals(&self, shape: Shape, writing: f64, memory: Option<f64>) -> Result<Vec<Goal>> {
        let name = format!("{} × {}", thousands(shape.services), shape.endpoints);
        let goal = |what: &str, measured, most, unit| {
            Goal::at_most(format!("{name}: {what}"), measured, most, unit)
        };
        let measured = self.writing.context("no time of writing")?;
        let mut goals = vec![goal("writing", measured.as_secs_f64(), writing, "s")];
        if let Some(most) = memory {
            let kib = self.memory.context("no figure of memory")?;
            goals.push(goal("memory", megabytes(kib), most, "MB"));
        }
        for (what, sample) in [("one endpoint", &self.endpoint), ("one service", &self.service)] {
            for (percent, most) in [(50, 0.8), (99, 2.0)] {
                let millis = sample.percentile(percent).as_secs_f64() * 1000.0;
                goals.push(goal(&format!("{what}, p{percent}"), millis, most, "ms"));
            }
        }
        if shape.services == 30_000 {
            let processor = self.processor.context("no figure of CPU time")?;
            goals.push(goal("CPU", processor.as_secs_f64(), 2.0, "s"));
            let kib = self.kernel.context("no figure of the kernel")?;
            goals.push(goal("memory of the kernel", megabytes_of_kernel(kib), 10.9, "MB"));
        }
        let restart = self.restart.context("no restart")?;
        goals.push(goal("changes by a restart", f64::from(restart), 0.0, ""));
        Ok(goals)
    }
}

impl Shape {
    /// The endpoints of a service, all of them ready; `variant`, at most 3, decides about the address of the last.
    fn slice(self, number: u32, variant: u32) -> Value {
        let endpoint = |index: u32| {
            let variant = if index + 1 == self.endpoints { variant } else { 0 };
            json!({ "addresses": [self.endpoint(number, index, variant)] })
        };
        slice(number, &(0..self.endpoints).map(endpoint).collect::<Vec<_>>())
    }

    fn endpoint(self, number: u32, index: u32, variant: u32) -> Ipv4Addr {
        let first = u32::from(Ipv4Addr::new(10, 128, 0, 1));
        Ipv4Addr::from_bits(first + (number * self.endpoints + index) * 4 + variant)
    }
}

fn service(number: u32) -> Value {
    let address = cluster_ip(number).to_string();
    json!({
        "kind": "Service",
        "metadata": { "namespace": "default", "name": format!("s{number}") },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address,
            "clusterIPs": [address],
            "ports": [{ "name": "web", "protocol": "TCP", "port": 80 }],
        },
        "status": { "loadBalancer": {} },
    })
}

fn cluster_ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + number)
}

fn slice(number: u32, endpoints: &[Value]) -> Value {
    json!({
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default", "name": format!("s{number}-1"),
            "labels": { "kubernetes.io/service-name": format!("s{number}") },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "web", "protocol": "TCP", "port": TARGET }],
        "endpoints": endpoints,
    })
}
