//! A stream of numbered packets per pair of pods, to count the packets that a change loses.

mod packet;
mod queues;
mod receiver;
mod report;
mod sender;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

pub use queues::overruns_at;
pub use report::{Count, PairReport, Report, Stage};

use crate::network::address::Family;
use crate::network::pod::Pod;
use crate::wait::{PATIENCE, eventually, lock};
use queues::{Burst, Queues};
use receiver::{Receiver, Track};
use sender::{Sender, Timeline};

/// From one pod to another, in one direction.
#[derive(Clone, Debug)]
pub struct Pair {
    pub from: Pod,
    pub to: Pod,
    pub family: Family,
}

/// The streams to send.
#[derive(Clone, Debug)]
pub struct ProbePlan {
    pairs: Vec<Pair>,
    rate: u32,
    payload: usize,
    start: Start,
    answers: Answers,
}

/// Whether the receivers answer the first packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    None,
    First,
}

#[derive(Clone, Copy, Debug)]
enum Start {
    /// Once a packet of every pair has arrived, within this time.
    Warm(Duration),
    Cold,
}

impl ProbePlan {
    /// `rate` is packets per second and pair.
    pub fn new(pairs: &[Pair], rate: u32) -> Self {
        let (start, answers) = (Start::Warm(PATIENCE), Answers::None);
        Self { pairs: pairs.to_vec(), rate, payload: 64, start, answers }
    }

    /// Bytes per packet without UDP and IP headers; at least the length of the packet's number.
    #[must_use]
    pub fn payload(mut self, bytes: usize) -> Self {
        self.payload = bytes.max(packet::LENGTH);
        self
    }

    /// How long the first packets may take.
    #[must_use]
    pub fn warm_within(mut self, time: Duration) -> Self {
        self.start = Start::Warm(time);
        self
    }

    /// Counts from the first packet on, even if a pair has no path yet.
    #[must_use]
    pub fn cold(mut self) -> Self {
        self.start = Start::Cold;
        self
    }

    /// The receivers answer the first packets: firewalls see established connections then.
    #[must_use]
    pub fn established(mut self) -> Self {
        self.answers = Answers::First;
        self
    }

    /// Starts to send. Unless [`cold`](Self::cold), first waits until a packet of every pair has
    /// arrived.
    pub fn start(&self) -> Result<Probe> {
        ensure!(self.rate > 0 && !self.pairs.is_empty(), "nothing to send");
        let shared = Arc::new(Shared::new(self.pairs.len()));
        let guard = Guard(Arc::clone(&shared));
        let receiver = Receiver::bind(&self.pairs, self.answers, &shared)?;
        let sender = Sender::bind(&self.pairs, &receiver.targets()?, self.payload)?;
        let receiver = std::thread::spawn(move || receiver.run());
        match self.start {
            Start::Warm(time) => self.warm_up(&sender, &shared, time)?,
            Start::Cold => {}
        }
        let (queues, watching) = (Queues::of(&self.pairs)?, Arc::clone(&shared));
        let queues = std::thread::spawn(move || queues.watch(&watching));
        let (rate, running) = (self.rate, Arc::clone(&shared));
        let sender = std::thread::spawn(move || sender.run(rate, &running));
        Ok(Probe { pairs: self.pairs.clone(), guard, sender, receiver, queues })
    }

    fn warm_up(&self, sender: &Sender, shared: &Shared, time: Duration) -> Result<()> {
        let waited = eventually(time, || {
            let cold = shared.warm.iter().zip(&self.pairs).filter(|(warm, _)| !is_set(warm));
            let cold: Vec<_> = cold.map(|(_, pair)| pair.to_string()).collect();
            sender.warm_up();
            ensure!(cold.is_empty(), "no packet has arrived: {}", cold.join(", "));
            Ok(())
        });
        waited.map(drop).context("warming the probe up")
    }
}

/// Running streams. Dropping it ends them without a report.
#[derive(Debug)]
pub struct Probe {
    pairs: Vec<Pair>,
    guard: Guard,
    sender: JoinHandle<Timeline>,
    receiver: JoinHandle<Result<Vec<Track>>>,
    queues: JoinHandle<Result<Vec<Burst>>>,
}

impl Probe {
    /// Packets sent from now on belong to a stage of this name. Returns when those of the round in
    /// progress are sent: they belong to the stage before, so what follows must not lose them.
    pub fn mark(&self, stage: &str) {
        let shared = &self.guard.0;
        let begun = shared.begun.load(Ordering::SeqCst);
        lock(&shared.marks).push((begun, stage.to_owned()));
        while shared.sent.load(Ordering::SeqCst) < begun && !self.sender.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sleeps while packets flow: at least one of each pair, also on a busy machine.
    pub fn run_for(&self, duration: Duration) {
        let shared = &self.guard.0;
        let begun = shared.begun.load(Ordering::SeqCst);
        std::thread::sleep(duration);
        while shared.sent.load(Ordering::SeqCst) <= begun && !self.sender.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops sending, waits for packets in transit, and counts.
    pub fn finish(self) -> Result<Report> {
        let shared = &self.guard.0;
        shared.sending.store(false, Ordering::SeqCst);
        let timeline = self.sender.join().map_err(|_| anyhow!("the sender panicked"))?;
        shared.receiving.store(false, Ordering::SeqCst);
        let tracks = self.receiver.join().map_err(|_| anyhow!("the receiver panicked"))??;
        shared.watching.store(false, Ordering::SeqCst);
        let bursts = self.queues.join().map_err(|_| anyhow!("the watch of queues panicked"))??;
        Ok(Report::count(&self.pairs, &timeline, &tracks, &lock(&shared.marks), &bursts))
    }
}

/// The state that the threads of a probe share.
#[derive(Debug)]
struct Shared {
    sending: AtomicBool,
    receiving: AtomicBool,
    /// Whether drops of queues still count.
    watching: AtomicBool,
    /// The number of rounds begun; in each, every pair sends the packet of the same number.
    begun: AtomicUsize,
    /// The number of rounds of which every packet is sent.
    sent: AtomicUsize,
    warm: Vec<AtomicBool>,
    marks: Mutex<Vec<(usize, String)>>,
    epoch: Instant,
}

impl Shared {
    fn new(pairs: usize) -> Self {
        Self {
            sending: AtomicBool::new(true),
            receiving: AtomicBool::new(true),
            watching: AtomicBool::new(true),
            begun: AtomicUsize::new(0),
            sent: AtomicUsize::new(0),
            warm: (0..pairs).map(|_| AtomicBool::new(false)).collect(),
            marks: Mutex::default(),
            epoch: Instant::now(),
        }
    }
}

/// Ends the threads when the probe is dropped.
#[derive(Debug)]
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.sending.store(false, Ordering::SeqCst);
        self.0.receiving.store(false, Ordering::SeqCst);
        self.0.watching.store(false, Ordering::SeqCst);
    }
}

impl std::fmt::Display for Pair {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.pad(&format!("{} → {}", self.from.label(), self.to.label()))
    }
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::SeqCst)
}
