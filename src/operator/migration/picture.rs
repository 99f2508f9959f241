//! Everything a migration is judged by: the config, every lease, every report, at one moment.

use std::collections::BTreeMap;

use crate::model::config::Kind;
use crate::model::lease::{BackendType, Lease, LeaseId, Malformed, Record};
use crate::model::report::{NodeReport, Quality};

use super::course::{Course, Note, Step};
use super::document::Document;

/// A cluster at one moment.
#[derive(Clone, Debug)]
pub struct Picture {
    pub course: Course,
    /// In the order of their leases.
    pub members: Vec<Member>,
    /// Records that are no lease.
    pub unreadable: Vec<(LeaseId, Malformed)>,
}

/// A node, known by its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub lease: Lease,
    /// None from stock flannel, and from a tweedd that is not running or older than reports.
    pub report: Option<NodeReport>,
}

impl Picture {
    /// A report without a lease is of a node that is gone.
    pub fn new(
        course: Course,
        records: impl IntoIterator<Item = Record>,
        reports: impl IntoIterator<Item = NodeReport>,
    ) -> Self {
        let mut reports: BTreeMap<LeaseId, NodeReport> =
            reports.into_iter().map(|report| (report.lease.clone(), report)).collect();
        let (mut members, mut unreadable) = (Vec::new(), Vec::new());
        for record in records {
            match record.lease {
                Ok(lease) => members.push(Member { report: reports.remove(&lease.id), lease }),
                Err(malformed) => unreadable.push((record.id, malformed)),
            }
        }
        members.sort_by_key(|member: &Member| member.lease.subnets().next());
        Self { course, members, unreadable }
    }

    pub fn member(&self, id: &LeaseId) -> Option<&Member> {
        self.members.iter().find(|member| member.lease.id == *id)
    }

    /// The config that `step` makes of this one; `note` says whose step it is.
    pub fn after(&self, step: &Step, note: &Note) -> Document {
        self.course.after(step, note, self.quality())
    }

    /// How well packets travel; none where nobody probes.
    pub fn quality(&self) -> Option<Quality> {
        let reports = self.members.iter().filter_map(|member| member.report.as_ref());
        Quality::of_all(reports.filter_map(|report| report.quality))
    }

    /// Nodes without a report.
    pub fn silent(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.report.is_none())
    }
}

impl Member {
    /// What people call the node: its name where it has one, else its public IP, the one of IPv4
    /// where it has two.
    pub fn name(&self) -> String {
        if let Some(name) = self.report.as_ref().and_then(|report| report.name.clone()) {
            return name;
        }
        let first = self.lease.endpoints.first();
        first.map_or_else(|| self.lease.id.to_string(), |endpoint| endpoint.public_ip.to_string())
    }

    /// What a rollout calls the node, as it knows itself: peers may be told another public IP.
    pub fn names(&self) -> Vec<String> {
        match &self.report {
            Some(report) => report.node.names().chain(report.name.clone()).collect(),
            None => self.lease.endpoints.iter().map(|it| it.public_ip.to_string()).collect(),
        }
    }

    /// The backend in force, by its report or else by its lease; none if it is not ours to speak.
    pub fn backend(&self) -> Option<Kind> {
        let published = || match self.lease.endpoints.first()?.backend {
            BackendType::Vxlan => Some(Kind::Vxlan),
            BackendType::HostGw => Some(Kind::HostGw),
            BackendType::Other(_) => None,
        };
        self.report.as_ref().map(|report| report.backend).or_else(published)
    }
}
