//! The store of a cluster, in memory: etcd, or the API server of Kubernetes.

pub mod etcd;
pub mod kubernetes;

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use tokio::time::sleep;
use tweed::daemon::options::StoreOptions;
use tweed_lab::Backup;

use etcd::{Etcd, State};
use kubernetes::Kubernetes;

use crate::act::ClusterId;
use crate::network::Link;
use crate::packets::stack::Stack;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    Etcd,
    Kubernetes,
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Etcd => "etcd",
            Self::Kubernetes => "kubernetes",
        })
    }
}

/// Clones share one store.
#[derive(Clone, Debug)]
pub enum Store {
    Etcd(Etcd),
    Kubernetes(Kubernetes),
}

/// A copy of the data of a store.
#[derive(Debug)]
pub enum StoreBackup {
    Etcd(State),
    Kubernetes(Backup),
}

/// How etcd refuses to write.
const FULL: &str = "etcdserver: mvcc: database space exceeded";

/// How the server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Up,
    /// It accepts no connection, and has closed all of them.
    Down,
    /// It answers that etcd has no leader.
    Leaderless,
    /// It refuses to write: its quota is used up.
    Full,
    /// It answers each request after this time.
    Slow(Duration),
}

impl Health {
    /// Whether anyone can write to the store.
    pub const fn is_writable(self) -> bool {
        matches!(self, Self::Up | Self::Slow(_))
    }
}

impl Store {
    pub fn new(kind: StoreKind, stack: Stack) -> Self {
        match kind {
            StoreKind::Etcd => Self::Etcd(Etcd::new()),
            StoreKind::Kubernetes => Self::Kubernetes(Kubernetes::new(stack)),
        }
    }

    /// Lets a daemon with these options reach the store by `link`.
    pub fn connect(&self, options: &mut StoreOptions, link: &Link) {
        match (options, self) {
            (StoreOptions::Etcd(options), Self::Etcd(etcd)) => {
                options.transport = etcd.transport(link);
            }
            (StoreOptions::Kube(options), Self::Kubernetes(server)) => {
                options.api.transport = server.transport(link);
            }
            (StoreOptions::Etcd(_) | StoreOptions::Kube(_), _) => unreachable!("by the flags"),
        }
    }

    pub fn health(&self) -> Health {
        match self {
            Self::Etcd(etcd) => etcd.health(),
            Self::Kubernetes(kubernetes) => kubernetes.health(),
        }
    }

    pub fn set_health(&self, health: Health) {
        match self {
            Self::Etcd(etcd) => etcd.set_health(health),
            Self::Kubernetes(kubernetes) => kubernetes.set_health(health),
        }
    }

    pub fn compact(&self) {
        match self {
            Self::Etcd(etcd) => etcd.compact(),
            Self::Kubernetes(kubernetes) => kubernetes.compact(),
        }
    }

    pub fn back_up(&self) -> StoreBackup {
        match self {
            Self::Etcd(etcd) => StoreBackup::Etcd(etcd.read(Clone::clone)),
            Self::Kubernetes(kubernetes) => StoreBackup::Kubernetes(kubernetes.back_up()),
        }
    }

    /// Takes the data of a backup, in a cluster of these `nodes`.
    pub fn restore(&self, backup: StoreBackup, nodes: &[usize], id: ClusterId) {
        match (self, backup) {
            (Self::Etcd(etcd), StoreBackup::Etcd(state)) => etcd.restore(state, id),
            (Self::Kubernetes(kubernetes), StoreBackup::Kubernetes(backup)) => {
                kubernetes.restore(backup, nodes);
            }
            (Self::Etcd(_), StoreBackup::Kubernetes(_))
            | (Self::Kubernetes(_), StoreBackup::Etcd(_)) => {}
        }
    }
}

/// Until the server answers, if it is slow.
async fn think(health: Health) {
    if let Health::Slow(time) = health {
        sleep(time).await;
    }
}
