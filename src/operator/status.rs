//! `tweedctl status`: the daemon at a glance.

#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;

use super::layout::{counted, listed, wrap};
use super::options::Files;
use super::{Answer, Error, Verdict, daemon};
use crate::model::policy::{Connections, Pods, Strangers};
use crate::model::status::{
    ChecksumStatus, ConfigStatus, FirewallStatus, GuardStatus, PeerCounts, ProbeStatus, Readiness,
    Statistics, Status, StoreState, TableStatus,
};

#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Glance(Status);

pub(super) async fn ask(files: &Files) -> Result<Glance, Error> {
    let socket = files.socket();
    let status: Status = daemon::ask(&socket, "/status").await?;
    // The loop does not know whether what it knows has reached the subnet file.
    let Readiness { ready, reasons } = daemon::ask(&socket, "/readyz").await?;
    Ok(Glance(Status { ready, reasons, ..status }))
}

impl Answer for Glance {
    fn verdict(&self) -> Verdict {
        if self.0.ready { Verdict::Well } else { Verdict::Amiss }
    }
}

impl fmt::Display for Glance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = &self.0;
        let state = if status.ready { "ready" } else { "not ready" };
        writeln!(f, "tweedd {}: {state}", status.version)?;
        for reason in &status.reasons {
            writeln!(f, "{}", wrap(&format!("  {reason}"), 4))?;
        }
        writeln!(f)?;
        for (name, value) in facts(status) {
            writeln!(f, "{}", wrap(&format!("{name:13}{value}"), 13))?;
        }
        for refused in &status.refused {
            writeln!(f, "{}", wrap(&format!("  {refused}"), 4))?;
        }
        Ok(())
    }
}

fn facts(status: &Status) -> [(&'static str, String); 13] {
    let unknown = || "unknown".to_owned();
    let mixed = if status.mixed { ", mixed" } else { "" };
    let backend = status.backend.as_ref().map_or_else(unknown, |kind| format!("{kind}{mixed}"));
    [
        ("store", store(&status.store)),
        ("config", config(&status.config)),
        ("backend", backend),
        ("interface", status.interface.clone().unwrap_or_else(unknown)),
        ("public IP", listed(&status.public_ips, "unknown")),
        ("subnet", listed(&status.subnets, "none")),
        ("pod MTU", status.mtu.map_or_else(unknown, |mtu| mtu.to_string())),
        ("peers", peers(&status.peers)),
        ("direct paths", probes(status)),
        ("firewall", firewall(status)),
        ("tunnel", [guard(status.guard.as_ref()), computing(&status.computing)].concat()),
        ("since start", done(&status.statistics)),
        ("entries", format!("{} desired, {} refused", status.desired, status.refused.len())),
    ]
}

fn store(state: &StoreState) -> String {
    match state {
        StoreState::Unknown => "not asked yet".to_owned(),
        StoreState::Reachable => "reachable".to_owned(),
        StoreState::Holds(what) => format!("reachable; {what}"),
        StoreState::Refuses(what) => format!("reachable, but refuses {what}"),
        StoreState::Lacks(reason) => {
            format!("reachable, but has no subnet for this node: {reason}")
        }
        StoreState::Waiting(reason) => format!("away: {reason}"),
    }
}

/// What waits and what is wrong stands among the reasons.
fn config(config: &ConfigStatus) -> String {
    let revision = match config.revision {
        0 => "none".to_owned(),
        revision => format!("revision {revision}"),
    };
    [Some(revision), config.rollout.clone()].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn peers(counts: &PeerCounts) -> String {
    let PeerCounts { direct, tunnel, left_out, set_aside, missing } = counts;
    format!(
        "{direct} direct, {tunnel} by tunnel, {left_out} left out, {set_aside} set aside, \
         {missing} missing"
    )
}

/// The direct paths, by what their probes found.
fn probes(status: &Status) -> String {
    let Some(probes) = &status.probes else { return "not probed".to_owned() };
    let ProbeStatus { good, bad, silent, pending, .. } = probes;
    match &probes.reason {
        Some(reason) => format!("not probed: {reason}"),
        None => format!("{good} good, {bad} bad, {silent} without answers, {pending} not known"),
    }
}

fn firewall(status: &Status) -> String {
    match &status.firewall {
        Some(FirewallStatus { name, reason }) => {
            format!("{name} ({reason}): {}", tables(&status.tables))
        }
        None => "has no rules of ours".to_owned(),
    }
}

fn tables(tables: &[TableStatus]) -> String {
    let table = |TableStatus { name, programmed }: &TableStatus| {
        let missing = if *programmed { "" } else { " (missing)" };
        format!("{name}{missing}")
    };
    let tables: Vec<String> = tables.iter().map(table).collect();
    listed(&tables, "nothing yet")
}

/// What is done for the tunnel beside routing into it.
fn guard(guard: Option<&GuardStatus>) -> String {
    let Some(GuardStatus { asked, in_force, tables: kept, admitted, refused }) = guard else {
        return "none, or not guarded".to_owned();
    };
    if let Some(reason) = refused {
        return format!("not guarded: {reason}");
    }
    if kept.is_empty() {
        return "not guarded before all leases are read".to_owned();
    }
    let measures = [
        (asked.connections == Connections::Untracked).then(|| "not tracked".to_owned()),
        (asked.strangers == Strangers::Drop).then(|| "strangers dropped".to_owned()),
        (asked.pods == Pods::Drop).then(|| "pods dropped".to_owned()),
        Some(format!("{} let in", counted(*admitted, "source"))),
        (!in_force).then(|| tables(kept)),
    ];
    measures.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn computing(links: &[ChecksumStatus]) -> String {
    let link = |ChecksumStatus { link, programmed }: &ChecksumStatus| {
        let missing = if *programmed { "" } else { " (not yet)" };
        format!("; {link} computes checksums{missing}")
    };
    links.iter().map(link).collect()
}

fn done(statistics: &Statistics) -> String {
    let Statistics { created, replaced, removed, dumps, overruns, edits, fallbacks, mac_changes } =
        statistics;
    let counted = |count: u64, what| counted(usize::try_from(count).unwrap_or(usize::MAX), what);
    let (dumps, edits) = (counted(*dumps, "dump"), counted(*edits, "config"));
    format!(
        "{created} created, {replaced} replaced, {removed} removed, {dumps}, {overruns} overruns, \
         {edits} read, {fallbacks} fallbacks, {mac_changes} MAC changes"
    )
}
