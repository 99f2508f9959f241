//! Traffic as applications see it: streams, requests and long-lived connections.

mod client;
mod connections;
mod flows;
mod line;
pub(crate) mod probe;
mod progress;
mod server;
mod tally;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

pub use connections::{Connections, Outcomes, Worker};
pub use flows::{FlowCounts, Flows, source_seen};
pub use line::{Kind, Outcome};
pub use tally::Tally;

use crate::network::namespace::Namespace;
use crate::traffic::probe::Pair;
use crate::wait::lock;
use client::{Browser, Caller};
use progress::{Progress, settle};
use server::Server;
use tally::Counters;

/// Running streams and requests. Dropping it ends them.
#[derive(Debug)]
pub struct Traffic {
    shared: Arc<Shared>,
    /// One per stream, and one per requests of a pair.
    clients: Vec<Arc<Progress>>,
    threads: Vec<JoinHandle<Result<()>>>,
}

/// The state that the threads share.
#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    counters: Counters,
    /// A new number ends the pauses of clients between two exchanges.
    turn: Mutex<u64>,
    turned: Condvar,
}

impl Traffic {
    /// Connects a stream for each pair, which sends a message ten times a second, and requests a
    /// page twice a second.
    pub fn start(pairs: &[Pair]) -> Result<Self> {
        let mut traffic = Self { shared: Arc::default(), clients: Vec::new(), threads: Vec::new() };
        let mut targets = HashMap::new();
        for pair in pairs {
            let key = (pair.to.namespace().clone(), pair.family);
            if !targets.contains_key(&key) {
                let server = Server::bind(pair)?;
                targets.insert(key.clone(), server.targets()?);
                traffic.spawn(pair.to.namespace(), move |shared| server.run(shared));
            }
            let targets = targets.get(&key).context("a pair without a server")?;
            let caller = Caller::connect(pair, targets.stream, traffic.client())?;
            traffic.spawn(pair.from.namespace(), move |shared| {
                caller.run(shared);
                Ok(())
            });
            let browser = Browser { target: targets.pages, progress: traffic.client() };
            traffic.spawn(pair.from.namespace(), move |shared| {
                browser.run(shared);
                Ok(())
            });
        }
        Ok(traffic)
    }

    /// The counts since the last call. First waits until every stream has returned a message, and
    /// every page was received, that began after this call: otherwise a path that is cut would look
    /// like a healthy one until the timeout. One that is broken, or fails, meanwhile is counted.
    pub fn take(&self) -> Result<Tally> {
        settle(&self.shared, self.clients.iter().map(AsRef::as_ref)).context("traffic")?;
        Ok(self.shared.counters.take())
    }

    /// Ends all streams gracefully, and returns the counts since the last [`take`](Self::take),
    /// as that one would.
    pub fn finish(mut self) -> Result<Tally> {
        let tally = self.take()?;
        self.shared.stop();
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow!("a thread of the traffic panicked"))??;
        }
        Ok(tally)
    }

    fn client(&mut self) -> Arc<Progress> {
        let client = Arc::<Progress>::default();
        self.clients.push(Arc::clone(&client));
        client
    }

    fn spawn(
        &mut self,
        namespace: &Namespace,
        work: impl FnOnce(&Arc<Shared>) -> Result<()> + Send + 'static,
    ) {
        let (shared, namespace) = (Arc::clone(&self.shared), namespace.clone());
        self.threads.push(std::thread::spawn(move || {
            namespace.enter()?;
            work(&shared)
        }));
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Shared {
    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.hurry();
    }

    /// Ends the pauses of all clients.
    fn hurry(&self) {
        *lock(&self.turn) += 1;
        self.turned.notify_all();
    }

    fn turn(&self) -> u64 {
        *lock(&self.turn)
    }

    /// Sleeps, but not after `turn`, which the caller has read before its last exchange.
    fn pause(&self, turn: u64, duration: Duration) {
        let paused = self.turned.wait_timeout_while(lock(&self.turn), duration, |it| *it == turn);
        drop(paused.unwrap_or_else(PoisonError::into_inner));
    }

    fn is_running(&self) -> bool {
        !self.stopped.load(Ordering::SeqCst)
    }
}
