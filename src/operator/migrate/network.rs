//! The network that is migrated: read as one picture, written one step at a time.

use std::io::Read;
use std::time::SystemTime;

use tokio::time::Instant;

use crate::operator::Error;
use crate::operator::migration::{Course, Document, Moment, Note, Picture};
use crate::store::operator::{Away, Holdings, Swap};
use crate::store::{etcd, kube};

/// Where config, leases and reports lie.
pub(super) trait Network {
    /// What to call the config in a sentence.
    fn shown(&self) -> String;

    /// What to do if the store cannot be used.
    fn hint(&self) -> &'static str;

    async fn read(&self) -> Result<Holdings, Away>;

    /// Makes `text` the config, unless it was written after `seen`.
    async fn swap(&self, seen: i64, text: &str) -> Result<Swap, Away>;
}

impl Network for etcd::Operator {
    fn shown(&self) -> String {
        format!("key {}", self.config_key())
    }

    fn hint(&self) -> &'static str {
        "name the servers with --etcd-endpoints"
    }

    async fn read(&self) -> Result<Holdings, Away> {
        self.read().await
    }

    async fn swap(&self, seen: i64, text: &str) -> Result<Swap, Away> {
        self.swap(seen, text).await
    }
}

impl Network for kube::Operator {
    fn shown(&self) -> String {
        self.shown().to_owned()
    }

    fn hint(&self) -> &'static str {
        "name the cluster with --kubeconfig-file or --kube-api-url"
    }

    async fn read(&self) -> Result<Holdings, Away> {
        self.read().await
    }

    async fn swap(&self, seen: i64, text: &str) -> Result<Swap, Away> {
        self.swap(seen, text).await
    }
}

/// Everything at this moment.
pub(super) async fn picture(network: &impl Network) -> Result<Picture, Error> {
    let key = network.shown();
    let Holdings { config, records, reports } =
        network.read().await.map_err(|away| told(network, &away))?;
    let written = config.ok_or_else(|| Error::Store(format!("{key} is missing")))?;
    let course = Course::parse(&written.text, written.revision)
        .map_err(|error| Error::Store(format!("{key}: {error}")))?;
    Ok(Picture::new(course, records, reports))
}

pub(super) async fn swap(
    network: &impl Network,
    seen: i64,
    document: &Document,
) -> Result<Swap, Error> {
    network.swap(seen, document.text()).await.map_err(|away| told(network, &away))
}

fn told(network: &impl Network, Away(why): &Away) -> Error {
    Error::Store(format!("{why}: {}", network.hint()))
}

/// Who gives orders, and a clock.
#[derive(Clone, Debug)]
pub(super) struct Hand {
    pub(super) by: String,
    started: Moment,
    since: Instant,
}

impl Hand {
    pub(super) fn new(by: String, started: Moment) -> Self {
        Self { by, started, since: Instant::now() }
    }

    /// This user on this host.
    pub(super) fn here() -> Self {
        let user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self::new(format!("{user}@{}", host()), Moment::new(since_epoch.unwrap_or_default()))
    }

    pub(super) fn now(&self) -> Moment {
        self.started.after(self.since.elapsed())
    }

    pub(super) fn note(&self) -> Note {
        Note { at: self.now(), by: self.by.clone() }
    }
}

/// A name is short; what a file system hands us may not be.
fn host() -> String {
    let mut name = String::new();
    let file = std::fs::File::open("/proc/sys/kernel/hostname");
    let read = file.and_then(|file| file.take(64).read_to_string(&mut name));
    if read.is_ok() { name.trim().to_owned() } else { "unknown".to_owned() }
}
