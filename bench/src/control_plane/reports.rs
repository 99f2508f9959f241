//! What the reports of thousands of nodes cost etcd: while nothing changes, and after one dies.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::runtime::Builder;
use tokio::time::{interval, sleep_until};
use tweed_lab::Etcd;

use crate::report::sample::Sample;
use crate::report::sheet::{Sheet, thousands, time};

/// A node's report as etcd holds it.
pub(crate) struct Reported {
    pub(crate) key: String,
    /// The etcd lease of the node.
    pub(crate) grant: i64,
    /// The report after another node died.
    pub(crate) next: String,
}

/// How long a daemon waits at most until it reports a peer that does not answer, with 200 peers
/// and more.
const UNTIL_ALL_KNOW: Duration = Duration::from_secs(15);
/// The refreshes of all nodes within a second, as daemons limit them.
const REFRESHES: u32 = 20;
const CALM: Duration = Duration::from_secs(60);
/// Requests to etcd at once.
const AT_ONCE: usize = 256;

/// The processor time and the revision of etcd so far.
struct Reading {
    processor: Duration,
    revision: i64,
    at: Instant,
}

/// To be called inside a namespace that reaches etcd.
pub(crate) fn run(etcd: &Etcd, reported: &[Reported], sheet: &mut Sheet) -> Result<()> {
    let nodes = thousands(reported.len());
    let heading = ["phase", "requests/s", "bytes written", "keys written", "request", "etcd's CPU"];
    sheet.table(&format!("Reports of {nodes} nodes, at etcd"), &heading)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(Client::connect(etcd.endpoints(), None))?;

    let before = Reading::of(etcd)?;
    let times = runtime.block_on(refresh(&client, reported))?;
    before.add_row(etcd, "nothing changes", (&times, 0), sheet)?;

    let before = Reading::of(etcd)?;
    let times = runtime.block_on(publish(&client, reported))?;
    let bytes = reported.iter().map(|it| it.next.len()).sum();
    before.add_row(etcd, "one node dies", (&times, bytes), sheet)
}

impl Reading {
    fn of(etcd: &Etcd) -> Result<Self> {
        let process = etcd.members().first().and_then(|member| member.process());
        let processor = process.context("etcd does not run")?.processor_time()?;
        Ok(Self { processor, revision: etcd.revision()?, at: Instant::now() })
    }

    fn add_row(
        self,
        etcd: &Etcd,
        phase: &str,
        (times, bytes): (&Sample<Duration>, usize),
        sheet: &mut Sheet,
    ) -> Result<()> {
        let took = self.at.elapsed();
        let now = Self::of(etcd)?;
        let rate = f64::from(u32::try_from(times.len())?) / took.as_secs_f64();
        sheet.row(&[
            &format!("{phase}, {} s", took.as_secs()),
            &format!("{rate:.0}"),
            &format!("{:.1} MB", f64::from(u32::try_from(bytes)?) / 1e6),
            &(now.revision - self.revision),
            &format!("{}, 99 % within {}", time(times.median()), time(times.percentile(99))),
            &time(now.processor.saturating_sub(self.processor)),
        ])
    }
}

/// Keeps the etcd leases of the nodes alive, one after the other; returns how long each took.
async fn refresh(client: &Client, reported: &[Reported]) -> Result<Sample<Duration>> {
    let (end, mut ticks) = (Instant::now() + CALM, interval(Duration::from_secs(1) / REFRESHES));
    let mut times = Sample::default();
    for node in reported.iter().cycle() {
        ticks.tick().await;
        let asked = Instant::now();
        if asked >= end {
            break;
        }
        // Returns with the first answer.
        client.clone().lease_keep_alive(node.grant).await?;
        times.add(asked.elapsed());
    }
    Ok(times)
}

/// Writes the next report of each node, as `tweedd` does, evenly within the time until all know.
async fn publish(client: &Client, reported: &[Reported]) -> Result<Sample<Duration>> {
    let start = tokio::time::Instant::now();
    let pause = UNTIL_ALL_KNOW / u32::try_from(reported.len())?;
    let write = async |(number, node): (u32, &Reported)| {
        sleep_until(start + pause * number).await;
        let (key, value) = (node.key.as_str(), node.next.as_str());
        let is_there = [
            Compare::value(key, CompareOp::Equal, value),
            Compare::lease(key, CompareOp::Equal, node.grant),
        ];
        let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(node.grant)));
        let asked = Instant::now();
        client.clone().txn(Txn::new().when(is_there).or_else([put])).await?;
        anyhow::Ok(asked.elapsed())
    };
    let written = stream::iter((0..).zip(reported)).map(write).buffer_unordered(AT_ONCE);
    let times: Vec<Duration> = written.try_collect().await?;
    Ok(times.into_iter().collect())
}
