//! Real etcd on the management network: one member or three, with faults.

mod keys;
mod member;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

pub use keys::Entry;
pub use member::Member;

use crate::network::segment::Segment;
use crate::wait::{PATIENCE, eventually};
use crate::world::World;

/// The plan of an etcd cluster.
#[derive(Clone, Debug)]
pub struct EtcdPlan {
    members: usize,
    arguments: Vec<String>,
}

impl EtcdPlan {
    pub fn new(members: usize) -> Self {
        Self { members, arguments: Vec::new() }
    }

    /// A member that stands still for two seconds, as on a busy machine, causes no election, in
    /// which a request would fail.
    #[must_use]
    pub fn patient(self) -> Self {
        self.argument("--heartbeat-interval=100").argument("--election-timeout=3000")
    }

    /// A flag for every member.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }
}

/// A cluster of etcd members. All key operations use a running member.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
}

impl Etcd {
    pub(crate) fn build(world: &Arc<World>, management: &Segment, plan: &EtcdPlan) -> Result<Self> {
        let names = (0..plan.members).map(|_| format!("etcd{}", world.number()));
        let build = |name| Member::build(world, management, name);
        let mut members = names.map(build).collect::<Result<Vec<_>>>()?;
        let peers = members.iter().map(Member::peer).collect::<Vec<_>>().join(",");
        members.iter_mut().try_for_each(|member| member.found(&peers, &plan.arguments))?;
        let etcd = Self { members };
        etcd.wait_ready()?;
        Ok(etcd)
    }

    /// `http://ADDRESS:2379` of each member, running or not.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Member::endpoint).collect()
    }

    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// A number beyond the cluster is an error.
    pub fn member(&mut self, index: usize) -> Result<&mut Member> {
        self.members.get_mut(index).with_context(|| format!("there is no member {index}"))
    }

    /// SIGTERM to every running member.
    pub fn stop(&mut self) -> Result<()> {
        self.members.iter_mut().filter(|member| member.is_up()).try_for_each(Member::stop)
    }

    /// SIGKILL to every member.
    pub fn kill(&mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(Member::kill)
    }

    /// SIGSTOP: connections stay open, but no request is answered.
    pub fn freeze(&mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(Member::freeze)
    }

    /// SIGCONT.
    pub fn thaw(&mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(Member::thaw)
    }

    /// Starts the stopped members with their old data, and waits until all serve.
    pub fn start(&mut self) -> Result<Duration> {
        self.members.iter_mut().filter(|member| !member.is_up()).try_for_each(Member::start)?;
        self.wait_ready()
    }

    /// Stops all members, deletes their data and starts an empty cluster at the same addresses.
    pub fn wipe(&mut self) -> Result<Duration> {
        self.kill()?;
        self.members.iter_mut().try_for_each(Member::forget)?;
        self.start()
    }

    /// Waits until every running member serves, which needs a quorum.
    pub fn wait_ready(&self) -> Result<Duration> {
        eventually(PATIENCE, || {
            self.members.iter().filter(|member| member.is_up()).try_for_each(Member::healthy)
        })
    }

    /// The index of the leader.
    pub fn leader(&self) -> Result<usize> {
        for (index, member) in self.members.iter().enumerate().filter(|(_, it)| it.is_up()) {
            let text = member.etcdctl(&["endpoint", "status", "-w", "json"])?;
            let statuses: Vec<MemberStatus> = serde_json::from_str(&text)?;
            if statuses.iter().any(|it| it.status.header.member_id == it.status.leader) {
                return Ok(index);
            }
        }
        bail!("no member leads")
    }

    /// Enables authentication; from then on, this lab's `etcdctl` is the user `root`.
    pub fn require_password(&mut self, password: &str) -> Result<()> {
        let root = format!("root:{password}");
        self.etcdctl(&["user", "add", &root])?;
        self.etcdctl(&["user", "grant-role", "root", "root"])?;
        self.etcdctl(&["auth", "enable"])?;
        self.members.iter_mut().for_each(|member| member.log_in(&root));
        Ok(())
    }

    fn any(&self) -> Result<&Member> {
        self.members.iter().find(|member| member.is_up()).context("no member of etcd runs")
    }
}

#[derive(Deserialize)]
struct MemberStatus {
    #[serde(rename = "Status")]
    status: Status,
}

#[derive(Deserialize)]
struct Status {
    header: Header,
    leader: u64,
}

#[derive(Deserialize)]
struct Header {
    member_id: u64,
}
