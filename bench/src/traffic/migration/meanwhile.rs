//! What happens in the middle of a stage.

use anyhow::Result;
use tweed_lab::Files;

use tweed_lab::cluster::Cluster;

/// What a network drops that knows the addresses of its machines.
const FOREIGN: &str = "ip saddr 10.244.0.0/16";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Meanwhile {
    Nothing,
    /// The member that leads is killed; the others find another leader.
    MemberLost,
    MemberBack,
    /// The daemon of node number so many, from 0, is killed and started again.
    Killed(usize),
    /// Likewise, and all that its kernel held is gone.
    Rebooted(usize),
    /// One node more, with a daemon.
    Joined,
    /// The segment swallows what comes from pods.
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
