//! What the path between two nodes costs pods: requests per second, and the throughput of one
//! stream.

mod pod_path;
mod stream;
mod web;

use anyhow::{Context, Result};
use tweed_lab::{Backend, Binaries};

use crate::report::goal::Goal;
use crate::report::sample::Sample;
use crate::report::sheet::{Sheet, thousands};
use pod_path::PodPath;

/// A path between pods, and its measurements.
struct Case {
    name: &'static str,
    pod_path: PodPath,
    /// Per second.
    requests: Sample<u64>,
    /// In megabits per second.
    flow: Sample<u64>,
}

/// The path without a daemon is the reference for the others; rounds alternate between all.
pub(crate) fn run(binaries: &Binaries, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let mut cases = vec![Case::new("plain static route", PodPath::bare()?)];
    for backend in [Backend::HostGw, Backend::Vxlan] {
        cases.push(Case::new(backend.name(), PodPath::with_daemons(binaries, backend)?));
    }
    for _ in 0..rounds {
        cases.iter_mut().try_for_each(Case::measure)?;
    }
    show(&cases, sheet)
}

impl Case {
    fn new(name: &'static str, pod_path: PodPath) -> Self {
        let (requests, flow) = Default::default();
        Self { name, pod_path, requests, flow }
    }

    fn measure(&mut self) -> Result<()> {
        let (from, to) = (&self.pod_path.from, &self.pod_path.to);
        self.requests.add(web::requests_per_second(from, to).context(self.name)?);
        self.flow.add(stream::megabits_per_second(from, to).context(self.name)?);
        Ok(())
    }
}

fn show(cases: &[Case], sheet: &mut Sheet) -> Result<()> {
    let plain = cases.first().context("no cases")?;
    let head = ["path", "requests/s", "of plain", "TCP stream, Mbit/s", "of plain"];
    sheet.table("Data path", &head)?;
    let mut goals = Vec::new();
    for case in cases {
        let requests = share(&case.requests, &plain.requests);
        let flow = share(&case.flow, &plain.flow);
        sheet.row(&[
            &case.name,
            &spread(&case.requests),
            &format!("{requests:.2} ×"),
            &spread(&case.flow),
            &format!("{flow:.2} ×"),
        ])?;
        if case.name == Backend::HostGw.name() {
            goals.push(Goal::at_least("host-gw, requests", requests, 0.97, "×"));
            goals.push(Goal::at_least("host-gw, stream", flow, 0.97, "×"));
        }
    }
    sheet.goals(&goals)
}

#[expect(clippy::cast_precision_loss, reason = "rates are far below what a float holds exactly")]
fn share(ours: &Sample<u64>, plain: &Sample<u64>) -> f64 {
    ours.median() as f64 / plain.median() as f64
}

fn spread(rates: &Sample<u64>) -> String {
    let [median, min, max] = [rates.median(), rates.min(), rates.max()].map(thousands);
    format!("{median} ({min}–{max})")
}
