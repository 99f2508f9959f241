//! `tweedctl status`: a summary of the daemon's state.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::{sleep, timeout};

use super::layout::{Tone, Toned, counted, listed, wrap};
use super::node;
use super::output::{WatchFlag, duration};
use super::{Answer, Error, ExitStatus};
use crate::model::policy::{Conntrack, Pods, UnknownSources};
use crate::model::status::{
    ConfigStatus, FirewallStatus, GuardStatus, PeerCounts, ProbeStatus, ReachabilityCounts,
    Readiness, SettingStatus, Statistics, Status, StoreState, TableStatus,
};

#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Summary(Status);

#[derive(Debug, Args)]
pub(super) struct StatusOptions {
    /// Wait until the node is ready
    #[arg(long, conflicts_with = "interval")]
    wait: bool,
    /// Maximum time to wait, as in 90s or 10m
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    #[arg(requires = "wait")]
    timeout: Duration,
    #[command(flatten)]
    pub(super) watch: WatchFlag,
}

/// How often a node that is not ready is asked again.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) async fn answer(options: &StatusOptions, socket: &Path) -> Result<Summary, Error> {
    if options.wait { wait(socket, options.timeout).await } else { ask(socket).await }
}

/// The status once the node is ready, else the last one before the timeout.
async fn wait(socket: &Path, longest: Duration) -> Result<Summary, Error> {
    let name = socket.display();
    let mut last = Err(Error::Unavailable(format!("the daemon on {name} does not answer in time")));
    let until_ready = async {
        loop {
            last = ask(socket).await;
            if last.as_ref().is_ok_and(|summary| summary.0.ready) {
                break;
            }
            sleep(PAUSE).await;
        }
    };
    // At the end of the time, the last answer counts.
    drop(timeout(longest, until_ready).await);
    last
}

async fn ask(socket: &Path) -> Result<Summary, Error> {
    let status: Status = node::ask(socket, "/status").await?;
    // The main loop does not know whether the subnet file is up to date.
    let Readiness { ready, reasons } = node::ask(socket, "/readyz").await?;
    Ok(Summary(Status { ready, reasons, ..status }))
}

impl Answer for Summary {
    fn exit_status(&self) -> ExitStatus {
        let ReachabilityCounts { degraded, unreachable, .. } = self.0.reachability;
        match (self.0.ready, degraded + unreachable) {
            (false, _) => ExitStatus::Problems,
            (true, 0) => ExitStatus::Done,
            (true, _) => ExitStatus::Failing,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = &self.0;
        let state = if status.ready { "ready" } else { "not ready" };
        let tone = match self.exit_status() {
            ExitStatus::Done => Tone::Good,
            ExitStatus::Failing => Tone::Warning,
            _ => Tone::Bad,
        };
        Toned(tone, format!("tweedd {}: {state}", status.version)).fmt(f)?;
        writeln!(f)?;
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

fn facts(status: &Status) -> [(&'static str, String); 14] {
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
        ("reachable", reachability(status)),
        ("direct paths", probes(status)),
        ("firewall", firewall(status)),
        ("tunnel", [guard(status.guard.as_ref()), settings(&status.settings)].concat()),
        ("since start", done(&status.statistics)),
        ("entries", format!("{} desired, {} refused", status.desired, status.refused.len())),
    ]
}

fn store(state: &StoreState) -> String {
    match state {
        StoreState::Unknown => "not contacted yet".to_owned(),
        StoreState::Reachable => "reachable".to_owned(),
        StoreState::OversizedValue(what) => format!("reachable; {what}"),
        StoreState::OptionalRefused(what) => format!("reachable, but refuses {what}"),
        StoreState::RequestRefused(what) | StoreState::NoSubnet(what) => {
            format!("reachable, but {what}")
        }
        StoreState::ListRefused(what) => format!("answers, but {what}"),
        StoreState::Unreachable(reason) => format!("unreachable: {reason}"),
    }
}

/// Waiting and failed configs are among the reasons.
fn config(config: &ConfigStatus) -> String {
    let revision = match config.revision {
        0 => "none".to_owned(),
        revision => format!("revision {revision}"),
    };
    [Some(revision), config.rollout.clone()].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn peers(counts: &PeerCounts) -> String {
    let PeerCounts { direct, tunnel, skipped, rejected, missing } = counts;
    format!(
        "{direct} direct, {tunnel} by tunnel, {skipped} skipped, {rejected} rejected, \
         {missing} missing"
    )
}

/// How many peers answer by the paths in use, and which do not.
fn reachability(status: &Status) -> String {
    let ReachabilityCounts { reachable, degraded, unreachable, unknown } = status.reachability;
    let total = status.reachability.total();
    if total == unknown && status.probes.as_ref().is_none_or(|probes| probes.state == "off") {
        return "unknown: paths are not probed".to_owned();
    }
    let counts = format!(
        "{reachable} of {}; {degraded} degraded, {unreachable} unreachable, {unknown} unknown",
        counted(total, "peer"),
    );
    let more = unreachable.saturating_sub(status.unreachable.len());
    let more = (more > 0).then(|| format!("{more} more"));
    match status.unreachable.iter().cloned().chain(more).collect::<Vec<_>>() {
        names if names.is_empty() => counts,
        names => format!("{counts}: {}", names.join(", ")),
    }
}

/// The direct paths, by the result of their probes.
fn probes(status: &Status) -> String {
    let Some(probes) = &status.probes else { return "not probed".to_owned() };
    let ProbeStatus { good, bad, silent, pending, .. } = probes;
    match &probes.reason {
        Some(reason) => format!("not probed: {reason}"),
        None if !status.mixed => "not compared with the tunnel: Mixed is off".to_owned(),
        None => format!("{good} good, {bad} bad, {silent} without answers, {pending} pending"),
    }
}

fn firewall(status: &Status) -> String {
    match &status.firewall {
        Some(FirewallStatus { name, reason }) => {
            format!("{name} ({reason}): {}", tables(&status.tables))
        }
        None => "no rules of tweed".to_owned(),
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

/// What protects the tunnel, in addition to the routes into it.
fn guard(guard: Option<&GuardStatus>) -> String {
    let Some(GuardStatus { asked, applied, tables: kept, admitted, refused }) = guard else {
        return "none, or not guarded".to_owned();
    };
    if let Some(reason) = refused {
        return format!("not guarded: {reason}");
    }
    if kept.is_empty() {
        return "not guarded before all leases are read".to_owned();
    }
    let measures = [
        (asked.conntrack == Conntrack::Untracked).then(|| "not tracked".to_owned()),
        (asked.unknown_sources == UnknownSources::Drop)
            .then(|| "unknown sources dropped".to_owned()),
        (asked.pods == Pods::Drop).then(|| "pods dropped".to_owned()),
        Some(format!("{} allowed", counted(*admitted, "source"))),
        (!applied).then(|| tables(kept)),
    ];
    measures.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn settings(settings: &[SettingStatus]) -> String {
    let setting = |SettingStatus { link, effect, programmed }: &SettingStatus| {
        let missing = if *programmed { "" } else { " (not yet)" };
        format!("; {link} {effect}{missing}")
    };
    settings.iter().map(setting).collect()
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

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::model::policy::Guard;

    fn status() -> Status {
        Status {
            version: "0.1.0".into(),
            ready: true,
            reasons: vec![],
            store: StoreState::Reachable,
            backend: Some("vxlan".into()),
            mixed: true,
            config: ConfigStatus {
                revision: 12,
                rollout: Some("stays on vxlan: the rollout is at 25 %".into()),
                ..ConfigStatus::default()
            },
            interface: Some("eth0".into()),
            public_ips: vec!["172.16.0.5".parse().unwrap(), "fd00:172::5".parse().unwrap()],
            subnets: vec!["10.244.1.0/24".parse().unwrap(), "fd00:10:244:1::/64".parse().unwrap()],
            mtu: Some(1430),
            peers: PeerCounts { direct: 12, tunnel: 3, ..PeerCounts::default() },
            reachability: ReachabilityCounts::default(),
            unreachable: vec![],
            conflicts: [].into(),
            firewall: Some(FirewallStatus {
                name: "nftables".into(),
                reason: "this kernel supports it".into(),
            }),
            tables: [("ip tweed.1", true), ("ip6 tweed.1", false)]
                .map(|(name, programmed)| TableStatus { name: name.into(), programmed })
                .into(),
            guard: Some(guard()),
            settings: vec![],
            desired: 31,
            refused: vec![],
            probes: None,
            statistics: Statistics { created: 31, dumps: 1, edits: 2, ..Statistics::default() },
        }
    }

    fn guard() -> GuardStatus {
        let table = TableStatus { name: "ip tweed-tunnel.1".into(), programmed: true };
        GuardStatus {
            asked: Guard::default(),
            applied: true,
            tables: vec![table],
            admitted: 15,
            refused: None,
        }
    }

    #[test]
    fn a_guard_that_is_off_shows_the_reason() {
        let missing = TableStatus { name: "ip tweed-tunnel.1".into(), programmed: false };
        let refused = Some("this kernel lacks nftables".to_owned());
        let cases = [
            (guard(), "not tracked, unknown sources dropped, pods dropped, 15 sources allowed"),
            (
                GuardStatus { asked: Guard { pods: Pods::Accept, ..Guard::default() }, ..guard() },
                "not tracked, unknown sources dropped, 15 sources allowed",
            ),
            (
                GuardStatus { applied: false, tables: vec![missing], admitted: 0, ..guard() },
                "not tracked, unknown sources dropped, pods dropped, 0 sources allowed, \
                 ip tweed-tunnel.1 (missing)",
            ),
            (GuardStatus { tables: vec![], ..guard() }, "not guarded before all leases are read"),
            (
                GuardStatus { tables: vec![], refused, ..guard() },
                "not guarded: this kernel lacks nftables",
            ),
        ];
        for (status, expected) in cases {
            assert_eq!(super::guard(Some(&status)), expected);
        }
        let shown = |programmed| {
            let (link, effect) = ("flannel.1".into(), "computes checksums".into());
            super::settings(&[SettingStatus { link, effect, programmed }])
        };
        assert_eq!(shown(true), "; flannel.1 computes checksums");
        assert_eq!(shown(false), "; flannel.1 computes checksums (not yet)");
    }

    #[test]
    fn a_healthy_node_fits_on_half_a_screen() {
        expect![[r"
            tweedd 0.1.0: ready

            store        reachable
            config       revision 12; stays on vxlan: the rollout is at 25 %
            backend      vxlan, mixed
            interface    eth0
            public IP    172.16.0.5, fd00:172::5
            subnet       10.244.1.0/24, fd00:10:244:1::/64
            pod MTU      1430
            peers        12 direct, 3 by tunnel, 0 skipped, 0 rejected, 0 missing
            reachable    unknown: paths are not probed
            direct paths not probed
            firewall     nftables (this kernel supports it): ip tweed.1, ip6 tweed.1
                         (missing)
            tunnel       not tracked, unknown sources dropped, pods dropped, 15 sources
                         allowed
            since start  31 created, 0 replaced, 0 removed, 1 dump, 0 overruns, 2 configs
                         read, 0 fallbacks, 0 MAC changes
            entries      31 desired, 0 refused
        "]]
        .assert_eq(&Summary(status()).to_string());
    }

    #[test]
    fn unreachable_peers_are_named() {
        let counts = |reachable, degraded, unreachable, unknown| Status {
            reachability: ReachabilityCounts { reachable, degraded, unreachable, unknown },
            probes: Some(ProbeStatus { state: "on".into(), ..ProbeStatus::default() }),
            ..status()
        };
        let all = counts(15, 0, 0, 0);
        assert_eq!(reachability(&all), "15 of 15 peers; 0 degraded, 0 unreachable, 0 unknown");
        assert_eq!(Summary(all).exit_status(), ExitStatus::Done);
        let unreachable = vec!["10.244.7.0/24 (172.16.0.7)".into()];
        let some = Status { unreachable, ..counts(12, 1, 2, 0) };
        assert_eq!(
            reachability(&some),
            "12 of 15 peers; 1 degraded, 2 unreachable, 0 unknown: 10.244.7.0/24 (172.16.0.7), \
             1 more"
        );
        assert_eq!(Summary(some.clone()).exit_status(), ExitStatus::Failing);
        assert_eq!(Summary(Status { ready: false, ..some }).exit_status(), ExitStatus::Problems);
        assert_eq!(Summary(counts(14, 1, 0, 0)).exit_status(), ExitStatus::Failing);
        let off = Status { probes: None, ..counts(0, 0, 0, 15) };
        assert_eq!(reachability(&off), "unknown: paths are not probed");
        assert_eq!(Summary(off).exit_status(), ExitStatus::Done);
    }

    #[test]
    fn faults_are_shown_in_full() {
        let refusal = "+ route fd00:10:244:3::/64 via fd00:10:244:3:: dev flannel-v6.1 onlink: Nexthop has invalid gateway (no route to host)";
        let status = Status {
            ready: false,
            reasons: vec![refusal.into()],
            store: StoreState::Unreachable("etcd at http://10.0.0.2:2379 and http://10.0.0.3:2379: connection refused, next try in 3 s".into()),
            refused: vec![refusal.into()],
            ..status()
        };
        let text = Summary(status).to_string();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        expect![[r"
            tweedd 0.1.0: not ready
              + route fd00:10:244:3::/64 via fd00:10:244:3:: dev flannel-v6.1 onlink:
                Nexthop has invalid gateway (no route to host)

            store        unreachable: etcd at http://10.0.0.2:2379 and http://10.0.0.3:2379:
                         connection refused, next try in 3 s
            config       revision 12; stays on vxlan: the rollout is at 25 %
            backend      vxlan, mixed
            interface    eth0
            public IP    172.16.0.5, fd00:172::5
            subnet       10.244.1.0/24, fd00:10:244:1::/64
            pod MTU      1430
            peers        12 direct, 3 by tunnel, 0 skipped, 0 rejected, 0 missing
            reachable    unknown: paths are not probed
            direct paths not probed
            firewall     nftables (this kernel supports it): ip tweed.1, ip6 tweed.1
                         (missing)
            tunnel       not tracked, unknown sources dropped, pods dropped, 15 sources
                         allowed
            since start  31 created, 0 replaced, 0 removed, 1 dump, 0 overruns, 2 configs
                         read, 0 fallbacks, 0 MAC changes
            entries      31 desired, 1 refused
              + route fd00:10:244:3::/64 via fd00:10:244:3:: dev flannel-v6.1 onlink:
                Nexthop has invalid gateway (no route to host)
        "]]
        .assert_eq(&text);
    }

    #[test]
    fn a_node_without_leases_or_config_shows_that() {
        let status = Status {
            ready: false,
            reasons: vec!["no network config yet".into()],
            store: StoreState::Unknown,
            config: ConfigStatus::default(),
            backend: None,
            interface: None,
            public_ips: vec![],
            subnets: vec![],
            mtu: None,
            peers: PeerCounts::default(),
            firewall: None,
            tables: vec![],
            guard: None,
            desired: 0,
            statistics: Statistics::default(),
            ..status()
        };
        assert_eq!(Summary(status.clone()).exit_status(), ExitStatus::Problems);
        expect![[r"
        tweedd 0.1.0: not ready
          no network config yet

        store        not contacted yet
        config       none
        backend      unknown
        interface    unknown
        public IP    unknown
        subnet       none
        pod MTU      unknown
        peers        0 direct, 0 by tunnel, 0 skipped, 0 rejected, 0 missing
        reachable    unknown: paths are not probed
        direct paths not probed
        firewall     no rules of tweed
        tunnel       none, or not guarded
        since start  0 created, 0 replaced, 0 removed, 0 dumps, 0 overruns, 0 configs
                     read, 0 fallbacks, 0 MAC changes
        entries      0 desired, 0 refused
    "]]
        .assert_eq(&Summary(status).to_string());
    }
}
