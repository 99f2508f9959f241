//! The cost of guarding the tunnel: a replacement of all peers, and the change of one among many.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::runtime::Builder;
use tweed::kernel::{Kernel, NetlinkKernel};
use tweed::model::config::NetworkConfig;
use tweed::model::entry::{Element, Entry, KernelState, LinkName, Table};
use tweed::model::policy::Guard;
use tweed::plan::allow_list::{self, Guarded};
use tweed::plan::diff::Op;
use tweed::plan::scope::Scope;
use tweed_lab::Lab;

use crate::instruments::peer::NETWORK;
use crate::report::goal::Goal;
use crate::report::sample::Sample;
use crate::report::sheet::{Sheet, precise, spread, thousands};

const COUNTS: [u32; 3] = [10, 5000, 20_000];
/// The number of single changes for each replacement of all peers.
const SINGLES: u32 = 20;

/// The times with this number of peers.
#[derive(Default)]
struct Figures {
    whole: Sample<Duration>,
    one_more: Sample<Duration>,
    one_less: Sample<Duration>,
    reading: Sample<Duration>,
}

pub(crate) fn run(rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let head = ["peers", "all replaced", "one more, p50", "p99", "one less, p50", "all read"];
    sheet.table("The tunnel's guard", &head)?;
    let lab = Lab::bare()?;
    let namespace = lab.namespace("guarded")?;
    let mut goals = Vec::new();
    for count in COUNTS {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let figures = namespace.within(|| runtime.block_on(measure(count, rounds)))??;
        let Figures { whole, one_more, one_less, reading } = &figures;
        let [p50, p99] = [50, 99].map(|percent| precise(one_more.percentile(percent)));
        let less = precise(one_less.median());
        sheet.row(&[&thousands(count), &spread(whole), &p50, &p99, &less, &spread(reading)])?;
        if count == 5000 {
            let millis = |time: Duration| time.as_secs_f64() * 1000.0;
            goals.push(Goal::at_most("5,000 peers replaced", millis(whole.median()), 50.0, "ms"));
            let more = millis(one_more.median());
            goals.push(Goal::at_most("one more than 5,000 peers", more, 0.5, "ms"));
        }
    }
    sheet.goals(&goals)
}

async fn measure(count: u32, rounds: usize) -> Result<Figures> {
    let mut kernel = NetlinkKernel::open()?;
    let table = table()?;
    let name = Arc::clone(&table.name);
    let scope = Scope { tables: [table.name.as_ref().clone()].into(), ..Scope::default() };
    let element = |number: u32| {
        let address = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(172, 20, 0, 1)) + number).into();
        Arc::new(Entry::Element(Element { table: Arc::clone(&name), address }))
    };
    let whole: Vec<Op> = [Op::Replace(Arc::new(Entry::Table(table)))]
        .into_iter()
        .chain((0..count).map(element).map(Op::Create))
        .collect();
    let mut figures = Figures::default();
    for _ in 0..rounds {
        figures.whole.add(applied(&mut kernel, &whole).await?);
        for number in count..count + SINGLES {
            figures.one_more.add(applied(&mut kernel, &[Op::Create(element(number))]).await?);
        }
        for number in count..count + SINGLES {
            figures.one_less.add(applied(&mut kernel, &[Op::Remove(element(number))]).await?);
        }
        let started = Instant::now();
        let held = kernel.dump(&scope, &KernelState::default()).await?;
        figures.reading.add(started.elapsed());
        ensure!(held.len() == whole.len(), "{} entries, not {}", held.len(), whole.len());
    }
    Ok(figures)
}

fn table() -> Result<Table> {
    let config = NetworkConfig::parse(format!(r#"{{"Network":"{NETWORK}"}}"#).as_bytes())?;
    let (underlays, device) = (&[LinkName::new("eth0")], &LinkName::new("flannel.1"));
    let (tunnel, probe_port) = (&config.backend.tunnel, None);
    let ends = &[Ipv4Addr::new(172, 16, 0, 1).into()];
    let network = NETWORK.parse()?;
    let guarded =
        Guarded { tunnel, device, underlays, probe_port, ends, network, looks_back_early: false };
    Ok(allow_list::table(Guard::default(), guarded))
}

async fn applied(kernel: &mut NetlinkKernel, ops: &[Op]) -> Result<Duration> {
    let started = Instant::now();
    let refused = kernel.apply(ops).await?;
    let took = started.elapsed();
    ensure!(refused.is_empty(), "{} refused, first: {:?}", refused.len(), refused.first());
    Ok(took)
}
