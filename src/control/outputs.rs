//! The channels out of the loop.

use tokio::sync::watch;
use tokio::time::Instant;

use crate::model::config::NetworkConfig;
use crate::model::lease::LeaseAttributes;
use crate::model::prefix::Prefix;
use crate::model::status::Readiness;
use crate::store::Identity;

/// How far the daemon has come. Others wait for it: the lease, subnet.env, systemd, health.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The config in force, once the store has told one.
    pub config: Option<NetworkConfig>,
    /// Where this host has addresses.
    pub occupied: Vec<Prefix>,
    /// Who this node is to the store, as far as what follows accounts for it.
    pub identity: Identity,
    /// What to publish, once the device can receive what it will attract.
    pub attributes: Option<LeaseAttributes>,
    /// What pods can use, once device and address are in place.
    pub usable: Option<Usable>,
    pub readiness: Readiness,
}

/// What pods of this node can be made by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usable {
    /// All pods' addresses, one prefix per family, IPv4 first.
    pub networks: Vec<Prefix>,
    /// Those of this node, likewise.
    pub subnets: Vec<Prefix>,
    /// The largest packet of pods, in bytes.
    pub mtu: u32,
}

/// The channels out of the loop.
#[derive(Debug)]
pub struct Outputs {
    pub progress: watch::Sender<Progress>,
    /// When the loop last went round.
    pub heartbeat: watch::Sender<Instant>,
    /// Counted up to have the leases read again.
    pub read_again: watch::Sender<u64>,
    /// Counted up when the node's report may differ from the last one.
    pub reported: watch::Sender<u64>,
    /// Counted up when a checkpoint would differ from the last one.
    pub changed: watch::Sender<u64>,
}

/// Their other ends.
#[derive(Debug)]
pub struct Listeners {
    pub progress: watch::Receiver<Progress>,
    pub heartbeat: watch::Receiver<Instant>,
    pub read_again: watch::Receiver<u64>,
    pub reported: watch::Receiver<u64>,
    pub changed: watch::Receiver<u64>,
}

impl Outputs {
    pub fn channels() -> (Self, Listeners) {
        let outputs = Self {
            progress: watch::Sender::default(),
            heartbeat: watch::Sender::new(Instant::now()),
            read_again: watch::Sender::default(),
            reported: watch::Sender::default(),
            changed: watch::Sender::default(),
        };
        let listeners = Listeners {
            progress: outputs.progress.subscribe(),
            heartbeat: outputs.heartbeat.subscribe(),
            read_again: outputs.read_again.subscribe(),
            reported: outputs.reported.subscribe(),
            changed: outputs.changed.subscribe(),
        };
        (outputs, listeners)
    }

    pub(super) fn read_again(&self) {
        self.read_again.send_modify(|count| *count += 1);
    }
}
