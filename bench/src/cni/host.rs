//! A node that uses one of the plugins.

use std::fs::{create_dir_all, write};
use std::path::Path;
use std::sync::Barrier;
use std::thread::{ScopedJoinHandle, scope};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tweed_lab::{Lab, Namespace};

use super::call::{Call, Container, Verb};
use super::memory;
use super::plugin::{Plugin, subnet_env};
use super::store;

pub(super) struct Host<'a> {
    pub(super) plugin: Plugin<'a>,
    namespace: Namespace,
    config: String,
}

impl<'a> Host<'a> {
    /// A node with its files in `home`, a bridge that is up, and everything that a first call
    /// creates.
    pub(super) fn build(
        lab: &Lab,
        name: &str,
        plugin: Plugin<'a>,
        home: &Path,
        reservations: u32,
    ) -> Result<Self> {
        create_dir_all(home).with_context(|| home.display().to_string())?;
        write(home.join("subnet.env"), subnet_env())?;
        let namespace = lab.namespace(name)?;
        store::fill(home, reservations)?;
        let host = Self { plugin, namespace, config: plugin.config(home).to_string() };
        let first =
            Container { id: "f".repeat(64), namespace: lab.namespace(&format!("{name}-first"))? };
        host.time(Verb::Add, &first)?;
        host.time(Verb::Del, &first)?;
        host.hold_bridge()?;
        Ok(host)
    }

    /// A bridge without a port has no carrier; on a real node, other pods hold it up.
    fn hold_bridge(&self) -> Result<()> {
        self.namespace.ip_batch(
            "link add other type veth peer name inside
             link set inside up
             link set other master cni0 up",
        )
    }

    pub(super) fn time(&self, verb: Verb, container: &Container) -> Result<Duration> {
        let call = self.call(verb, container);
        self.namespace.within(|| call.time())?
    }

    /// Calls for all `containers` at once; returns the time of each.
    pub(super) fn time_all(&self, verb: Verb, containers: &[Container]) -> Result<Vec<Duration>> {
        let start = Barrier::new(containers.len());
        let call = |container| {
            start.wait();
            self.call(verb, container).time()
        };
        self.namespace.within(|| {
            scope(|threads| {
                let calls: Vec<_> = containers
                    .iter()
                    .map(|container| threads.spawn(move || call(container)))
                    .collect();
                calls.into_iter().map(join).collect()
            })
        })?
    }

    /// The peak memory of an ADD by `program`, in KiB; a DEL removes what it created.
    pub(super) fn memory(&self, program: &Path, container: &Container) -> Result<u64> {
        let add = Call { program, ..self.call(Verb::Add, container) };
        let most = self.namespace.within(|| memory::most(&add))??;
        let del = Call { verb: Verb::Del, ..add };
        self.namespace.within(|| del.time())??;
        Ok(most)
    }

    fn call<'b>(&'b self, verb: Verb, container: &'b Container) -> Call<'b> {
        Call { program: self.plugin.program(), verb, container, config: &self.config }
    }
}

fn join(call: ScopedJoinHandle<'_, Result<Duration>>) -> Result<Duration> {
    call.join().map_err(|_| anyhow!("a call panicked"))?
}
