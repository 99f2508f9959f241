//! Faults in the middle of a stage.

use anyhow::Result;
use tweed_lab::Files;

use tweed_lab::cluster::Cluster;

/// Packets that a network drops if it knows the addresses of its machines.
const FOREIGN: &str = "ip saddr 10.244.0.0/16";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Meanwhile {
    Nothing,
    /// The leader of etcd is killed; the other members elect another one.
    MemberLost,
    MemberBack,
    /// The daemon of the node with this index, counted from 0, is killed and started again.
    Killed(usize),
    /// The same, and all entries of its kernel are lost.
    Rebooted(usize),
    /// A node with a daemon joins.
    Joined,
    /// The segment drops packets with addresses of pods.
    ForeignDropped,
    ForeignPasses,
}

impl Meanwhile {
    pub(super) fn happen(self, cluster: &mut Cluster) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::MemberLost => {
                let leader = cluster.etcd.leader()?;
                cluster.etcd.member(leader)?.kill()?;
                cluster.etcd.wait_ready().map(drop)
            }
            Self::MemberBack => cluster.etcd.start().map(drop),
            Self::Killed(index) => {
                cluster.daemon(index)?.kill()?;
                start(cluster, index)
            }
            Self::Rebooted(index) => {
                cluster.daemon(index)?.kill()?;
                cluster.node(index)?.wipe(Files::Kept)?;
                start(cluster, index)
            }
            Self::Joined => cluster.join(),
            Self::ForeignDropped => cluster.segment.filter(FOREIGN),
            Self::ForeignPasses => cluster.segment.unfilter(),
        }
    }

    /// The node whose packets may be lost.
    pub(super) fn victim(self, cluster: &Cluster) -> Result<Option<String>> {
        match self {
            Self::Rebooted(index) => Ok(Some(cluster.node(index)?.name().to_owned())),
            Self::Nothing
            | Self::MemberLost
            | Self::MemberBack
            | Self::Killed(_)
            | Self::Joined
            | Self::ForeignDropped
            | Self::ForeignPasses => Ok(None),
        }
    }
}

fn start(cluster: &mut Cluster, index: usize) -> Result<()> {
    cluster.daemon(index)?.start()?;
    cluster.daemon(index)?.wait_ready().map(drop)
}
