//! `tweed-simulate`: plays histories of whole clusters, and prints those that an invariant rejects.

use std::fmt;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use clap::Parser;
use tokio::time::Instant;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tweed_simulation::coverage::Coverage;
use tweed_simulation::dice::Dice;
use tweed_simulation::fault::Fault;
use tweed_simulation::history::{Finding, play, replay, shrink};
use tweed_simulation::packets::stack::Stack;
use tweed_simulation::store::StoreKind;

#[derive(Parser)]
struct Options {
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many histories; each has the next seed
    #[arg(long, default_value_t = 1)]
    histories: u64,
    /// Stop after this many minutes, whatever the number of histories
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Nodes of each cluster
    #[arg(long, default_value_t = 5)]
    nodes: usize,
    /// Only these faults happen [default: all]
    #[arg(long, value_delimiter = ',')]
    faults: Vec<Fault>,
    /// Only with this store [default: the seed decides]
    #[arg(long)]
    store: Option<StoreKind>,
    /// Only with pods of these families [default: the seed decides]
    #[arg(long)]
    stack: Option<Stack>,
    /// Only with clusters that begin with flanneld [default: the seed decides]
    #[arg(long)]
    flannel: bool,
    /// Histories at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Stop at the first history that is rejected
    #[arg(long)]
    first: bool,
    /// Show what the daemons log in the history, or in what is left of it if it is rejected
    #[arg(long)]
    log: bool,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let begun = Instant::now();
    let end = begun + Duration::from_secs(options.minutes * 60);
    let next = AtomicU64::new(options.seed);
    let (last, played) = (AtomicU64::new(options.seed + options.histories), AtomicU64::new(0));
    let Options { store, stack, flannel, .. } = options;
    let mut dice = Dice { store, stack, flannel, ..Dice::new(options.nodes) };
    if !options.faults.is_empty() {
        dice.faults = options.faults;
    }
    let findings = Mutex::new(Vec::new());
    let coverage = Mutex::new(Coverage::new(&dice.faults));
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while Instant::now() < end {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last.load(Ordering::Relaxed) {
                        return;
                    }
                    played.fetch_add(1, Ordering::Relaxed);
                    lock(&coverage).add(&dice.throw(seed));
                    match one(seed, &dice, options.log) {
                        Ok(None) => {}
                        Ok(Some(finding)) => {
                            let _ = writeln!(io::stdout(), "{finding}");
                            lock(&findings).push(finding);
                            if options.first {
                                last.store(0, Ordering::Relaxed);
                            }
                        }
                        Err(error) => {
                            let _ = writeln!(io::stderr(), "seed {seed}: {error}");
                        }
                    }
                }
            });
        }
    });
    let played = played.into_inner();
    let mut out = io::stdout();
    write!(out, "{}", lock(&coverage))?;
    let rate = f64::from(u32::try_from(played)?) / begun.elapsed().as_secs_f64() * 60.0;
    let found = lock(&findings).len();
    let seconds = begun.elapsed().as_secs();
    writeln!(out, "{played} histories in {seconds} s, {rate:.0} per minute, {found} findings")?;
    anyhow::ensure!(found == 0, "{found} histories were rejected");
    Ok(())
}

fn one(seed: u64, dice: &Dice, is_logged: bool) -> io::Result<Option<Finding>> {
    let outcome = play(seed, dice)?;
    let finding = outcome.violation.map(|it| shrink(seed, dice, it)).transpose()?;
    if is_logged {
        let _logged = tracing::subscriber::set_default(log());
        match &finding {
            Some(finding) => replay(seed, finding.setup, &finding.steps)?,
            None => play(seed, dice)?,
        };
    }
    Ok(finding)
}

fn log() -> impl tracing::Subscriber {
    tracing_subscriber::fmt()
        .with_env_filter("warn,kube_client=off,tweed=debug")
        .with_writer(io::stderr)
        .with_timer(Seconds(Instant::now()))
        .with_target(false)
        .with_ansi(false)
        .finish()
}

/// Virtual time; before it begins, it is that of this machine.
struct Seconds(Instant);

impl FormatTime for Seconds {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{:8.3}", (Instant::now() - self.0).as_secs_f64())
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
