//! Traffic as applications see it: streams, requests and long-lived connections.

mod client;
mod connections;
mod flows;
mod line;
pub(crate) mod probe;
mod server;
mod tally;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};

pub use connections::{Connections, Outcomes, Worker};
pub use flows::{FlowCounts, Flows, source_seen};
pub use line::{Kind, Outcome};
pub use tally::Tally;

use crate::network::namespace::Namespace;
use crate::traffic::probe::Pair;
use client::{Browser, Caller};
use server::Server;
use tally::Counters;

/// Running streams and requests. Dropping it ends them.
#[derive(Debug)]
pub struct Traffic {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<()>>>,
}

/// The state that the threads share.
#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    counters: Counters,
}

impl Traffic {
    /// Connects a stream for each pair, which sends a message ten times a second, and requests a
    /// page twice a second.
    pub fn start(pairs: &[Pair]) -> Result<Self> {
        let mut traffic = Self { shared: Arc::default(), threads: Vec::new() };
        let mut targets = HashMap::new();
        for pair in pairs {
            let key = (pair.to.namespace().clone(), pair.family);
            if !targets.contains_key(&key) {
                let server = Server::bind(pair)?;
                targets.insert(key.clone(), server.targets()?);
                traffic.spawn(pair.to.namespace(), move |shared| server.run(shared));
            }
            let targets = targets.get(&key).context("a pair without a server")?;
            let caller = Caller::connect(pair, targets.stream)?;
            traffic.spawn(pair.from.namespace(), move |shared| {
                caller.run(shared);
                Ok(())
            });
            let browser = Browser { target: targets.pages };
            traffic.spawn(pair.from.namespace(), move |shared| {
                browser.run(shared);
                Ok(())
            });
        }
        Ok(traffic)
    }

    /// The counts since the last call.
    pub fn take(&self) -> Tally {
        self.shared.counters.take()
    }

    /// Ends all streams gracefully, and returns the counts since the last [`take`](Self::take).
    pub fn finish(mut self) -> Result<Tally> {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow!("a thread of the traffic panicked"))??;
        }
        Ok(self.take())
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
    }

    fn is_running(&self) -> bool {
        !self.stopped.load(Ordering::SeqCst)
    }
}
