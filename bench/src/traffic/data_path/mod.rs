//! What pods feel of the path between their nodes: requests per second, and the flow of one stream.

mod road;
mod stream;
mod web;

use anyhow::{Context, Result};
use tweed_lab::Binaries;

use crate::instruments::peer::Backend;
use crate::report::goal::Goal;
use crate::report::sample::Sample;
use crate::report::sheet::{Sheet, thousands};
use road::Road;

/// A road, and what went over it.
struct Lane {
    name: &'static str,
    road: Road,
    /// Per second.
    requests: Sample<u64>,
    /// In megabits per second.
    flow: Sample<u64>,
}

/// The road without a daemon is the measure of the others; rounds alternate between all.
pub(crate) fn run(binaries: &Binaries, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let mut lanes = vec![Lane::new("plain static route", Road::bare()?)];
    for backend in [Backend::HostGw, Backend::Vxlan] {
        lanes.push(Lane::new(backend.name(), Road::with_daemons(binaries, backend)?));
    }
    for _ in 0..rounds {
        lanes.iter_mut().try_for_each(Lane::measure)?;
    }
    show(&lanes, sheet)
}

impl Lane {
    fn new(name: &'static str, road: Road) -> Self {
        let (requests, flow) = Default::default();
        Self { name, road, requests, flow }
    }

    fn measure(&mut self) -> Result<()> {
        let (from, to) = (&self.road.from, &self.road.to);
        self.requests.add(web::requests_per_second(from, to).context(self.name)?);
        self.flow.add(stream::megabits_per_second(from, to).context(self.name)?);
        Ok(())
    }
}

fn show(lanes: &[Lane], sheet: &mut Sheet) -> Result<()> {
    let plain = lanes.first().context("no lanes")?;
    let head = ["path", "requests/s", "of plain", "TCP stream, Mbit/s", "of plain"];
    sheet.table("Data path", &head)?;
    let mut goals = Vec::new();
    for lane in lanes {
        let requests = share(&lane.requests, &plain.requests);
        let flow = share(&lane.flow, &plain.flow);
        sheet.row(&[
            &lane.name,
            &spread(&lane.requests),
            &format!("{requests:.2} ×"),
            &spread(&lane.flow),
            &format!("{flow:.2} ×"),
        ])?;
        if lane.name == Backend::HostGw.name() {
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
