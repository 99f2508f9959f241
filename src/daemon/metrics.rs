//! Renders the metrics in the text format of Prometheus. Pure.

use std::fmt::{Display, Write};
use std::time::Duration;

use crate::model::lease::Rejected;
use crate::model::status::{ConfigStatus, ProbeStatus, Readiness, Statistics, Status};

/// The page at `/metrics`. `silence` is the time since the last heartbeat of the loop.
pub fn render(status: &Status, readiness: &Readiness, silence: Duration) -> String {
    let mut page = Page::default();
    page.health(status, readiness, silence);
    page.config(&status.config);
    page.peers(status);
    page.kernel(status);
    page.statistics(&status.statistics);
    if let Some(probes) = &status.probes {
        page.probes(probes);
    }
    page.0
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn health(&mut self, status: &Status, readiness: &Readiness, silence: Duration) {
        let backend = status.backend.as_deref().unwrap_or_default();
        let mixed = if status.mixed { "true" } else { "false" };
        let labels = [("version", status.version.as_str()), ("backend", backend), ("mixed", mixed)];
        self.family("info", "gauge", "Version and applied backend; always 1.");
        self.sample("info", &labels, 1);
        let help = "Whether the node is ready, as /readyz reports.";
        self.gauge("ready", help, u8::from(readiness.ready));
        let help = "Whether the store is reachable.";
        self.gauge("store_reachable", help, u8::from(status.store.is_reachable()));
        let help = "Time since the last pass of the main loop, in seconds.";
        self.gauge("loop_silence_seconds", help, silence.as_secs_f64());
    }

    fn config(&mut self, ConfigStatus { revision, pending, invalid, .. }: &ConfigStatus) {
        self.gauge("config_revision", "Revision of the latest config in the store.", revision);
        let help = "Whether the latest config is not fully applied yet, and why.";
        self.reason("config_pending", help, pending.as_deref());
        let help = "Whether the latest config is invalid, and why.";
        self.reason("config_invalid", help, invalid.as_deref());
    }

    fn peers(&mut self, Status { peers, reachability, conflicts, .. }: &Status) {
        let paths = [
            ("direct", peers.direct),
            ("tunnel", peers.tunnel),
            ("left_out", peers.skipped),
            ("set_aside", peers.rejected),
        ];
        let help = "Peers by path; left_out: skipped, set_aside: rejected.";
        self.by_label(("peers", "gauge"), help, "path", paths);
        let states = [
            ("reachable", reachability.reachable),
            ("degraded", reachability.degraded),
            ("unreachable", reachability.unreachable),
            ("unknown", reachability.unknown),
        ];
        let help = "Peers with a path, by whether they answer probes by it.";
        self.by_label(("peers_reachability", "gauge"), help, "state", states);
        let help = "Peers that are missing from the store and still routed.";
        self.gauge("peers_missing", help, peers.missing);
        let count = |what| conflicts.get(what).copied().unwrap_or_default();
        let conflicts = Rejected::CONFLICTS.map(|what| (what, count(what)));
        let help = "Leases that conflict with another lease or with this node, by subject.";
        self.by_label(("lease_conflicts", "gauge"), help, "about", conflicts);
    }

    fn kernel(&mut self, status: &Status) {
        self.gauge("desired_entries", "Kernel entries in the desired state.", status.desired);
        let firewall = status.firewall.iter().map(|firewall| (firewall.name.as_str(), 1));
        let help = "Firewall that holds the rules of tweed; no sample without rules.";
        self.by_label(("firewall_info", "gauge"), help, "firewall", firewall);
        let guards = status.guard.iter().flat_map(|guard| &guard.tables);
        let tables = status.tables.iter().chain(guards);
        let tables = tables.map(|table| (table.name.as_str(), u8::from(table.programmed)));
        let help = "Whether a table for masquerading or for the tunnel guard is in place.";
        self.by_label(("table_in_place", "gauge"), help, "table", tables);
        if let Some(guard) = &status.guard {
            let help = "Whether the tunnel guard is in place as configured.";
            self.gauge("tunnel_guarded", help, u8::from(guard.applied));
            let help = "Underlay addresses from which the tunnel accepts packets.";
            self.gauge("tunnel_admitted_addresses", help, guard.admitted);
        }
        self.gauge("refused_entries", "Entries that the kernel refused.", status.refused.len());
    }

    fn statistics(&mut self, statistics: &Statistics) {
        let Statistics { created, replaced, removed, .. } = *statistics;
        let operations = [("create", created), ("replace", replaced), ("remove", removed)];
        let help = "Kernel entries that were created, replaced or removed.";
        self.by_label(("kernel_operations_total", "counter"), help, "operation", operations);
        self.counter("kernel_dumps_total", "Full reads of the kernel state.", statistics.dumps);
        self.counter(
            "kernel_overruns_total",
            "Losses of kernel notifications.",
            statistics.overruns,
        );
        let help = "Config updates from the store, including the first one.";
        self.counter("config_edits_total", help, statistics.edits);
        let help = "Peers moved to the tunnel because their direct path failed.";
        self.counter("path_fallbacks_total", help, statistics.fallbacks);
        let help = "Changes of a VTEP MAC address that another node may use.";
        self.counter("vtep_mac_changes_total", help, statistics.mac_changes);
    }

    fn probes(
        &mut self,
        ProbeStatus { good, bad, silent, pending, reason, counts, .. }: &ProbeStatus,
    ) {
        let verdicts = [("good", good), ("bad", bad), ("silent", silent), ("pending", pending)];
        let help = "Direct paths, by the verdict of their probes.";
        self.by_label(("direct_paths", "gauge"), help, "verdict", verdicts);
        let help = "Whether path probing is off although the config requests it, and why.";
        self.reason("probes_off", help, reason.as_deref());
        self.counter("probes_asked_total", "Probes sent.", counts.asked);
        self.counter("probes_answered_total", "Answers received.", counts.answered);
        let help = "Probes of peers that this node answered.";
        self.counter("probes_served_total", help, counts.served);
        let help = "Packets rejected: not of an accepted peer, replayed, or above a peer's limit.";
        self.counter("probes_rejected_total", help, counts.rejected);
        let help = "Probes that the kernel refused to send.";
        self.counter("probes_unsent_total", help, counts.unsent);
    }

    /// 1 with the reason, or 0.
    fn reason(&mut self, name: &str, help: &str, reason: Option<&str>) {
        self.family(name, "gauge", help);
        let labels = reason.map(|reason| ("reason", reason));
        self.sample(name, labels.as_slice(), u8::from(reason.is_some()));
    }

    fn by_label<'a>(
        &mut self,
        (name, kind): (&str, &str),
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, impl Display)>,
    ) {
        self.family(name, kind, help);
        for (value, count) in values {
            self.sample(name, &[(label, value)], count);
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP tweed_{name} {help}"));
        self.line(format_args!("# TYPE tweed_{name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
        let labels = labels.collect::<Vec<_>>().join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        self.line(format_args!("tweed_{name}{labels} {value}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::model::policy::Guard;
    use crate::model::status::{
        FirewallStatus, GuardStatus, PeerCounts, ProbeCounts, ReachabilityCounts, StoreState,
        TableStatus,
    };

    fn status() -> Status {
        Status {
            version: "0.1.0".to_owned(),
            ready: true,
            reasons: Vec::new(),
            store: StoreState::Reachable,
            backend: Some("vxlan".to_owned()),
            mixed: true,
            config: ConfigStatus { revision: 7, ..ConfigStatus::default() },
            interface: Some("eth0".to_owned()),
            public_ips: Vec::new(),
            subnets: Vec::new(),
            mtu: Some(1450),
            peers: PeerCounts { direct: 3, tunnel: 2, skipped: 1, rejected: 0, missing: 1 },
            reachability: ReachabilityCounts {
                reachable: 4,
                unreachable: 1,
                ..ReachabilityCounts::default()
            },
            unreachable: Vec::new(),
            conflicts: [("our_public_ip".to_owned(), 1)].into(),
            firewall: Some(FirewallStatus {
                name: "nftables".to_owned(),
                reason: "this kernel supports it".to_owned(),
            }),
            tables: vec![TableStatus { name: "ip tweed.1".to_owned(), programmed: true }],
            guard: Some(GuardStatus {
                asked: Guard::default(),
                applied: true,
                tables: vec![TableStatus {
                    name: "ip tweed-tunnel.1".to_owned(),
                    programmed: true,
                }],
                admitted: 5,
                refused: None,
            }),
            settings: Vec::new(),
            desired: 25,
            refused: vec!["route".to_owned()],
            probes: None,
            statistics: Statistics { created: 25, dumps: 2, ..Statistics::default() },
        }
    }

    fn page(status: &Status) -> String {
        let readiness = Readiness { ready: status.ready, reasons: Vec::new() };
        render(status, &readiness, Duration::from_millis(1500))
    }

    /// The samples without their help.
    fn samples(status: &Status) -> String {
        let page = page(status);
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        samples.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_status_is_rendered_as_metrics() {
        expect![[r#"
        tweed_info{version="0.1.0",backend="vxlan",mixed="true"} 1
        tweed_ready 1
        tweed_store_reachable 1
        tweed_loop_silence_seconds 1.5
        tweed_config_revision 7
        tweed_config_pending 0
        tweed_config_invalid 0
        tweed_peers{path="direct"} 3
        tweed_peers{path="tunnel"} 2
        tweed_peers{path="left_out"} 1
        tweed_peers{path="set_aside"} 0
        tweed_peers_reachability{state="reachable"} 4
        tweed_peers_reachability{state="degraded"} 0
        tweed_peers_reachability{state="unreachable"} 1
        tweed_peers_reachability{state="unknown"} 0
        tweed_peers_missing 1
        tweed_lease_conflicts{about="subnet"} 0
        tweed_lease_conflicts{about="vtep_mac"} 0
        tweed_lease_conflicts{about="our_subnet"} 0
        tweed_lease_conflicts{about="our_vtep_mac"} 0
        tweed_lease_conflicts{about="our_public_ip"} 1
        tweed_desired_entries 25
        tweed_firewall_info{firewall="nftables"} 1
        tweed_table_in_place{table="ip tweed.1"} 1
        tweed_table_in_place{table="ip tweed-tunnel.1"} 1
        tweed_tunnel_guarded 1
        tweed_tunnel_admitted_addresses 5
        tweed_refused_entries 1
        tweed_kernel_operations_total{operation="create"} 25
        tweed_kernel_operations_total{operation="replace"} 0
        tweed_kernel_operations_total{operation="remove"} 0
        tweed_kernel_dumps_total 2
        tweed_kernel_overruns_total 0
        tweed_config_edits_total 0
        tweed_path_fallbacks_total 0
        tweed_vtep_mac_changes_total 0"#]]
        .assert_eq(&samples(&status()));
    }

    #[test]
    fn a_pending_config_has_its_reason_as_a_label() {
        let pending = Some("the type \"host-gw\" waits:\nC:\\ is not mixed".to_owned());
        let config = ConfigStatus { pending, ..ConfigStatus::default() };
        let samples = samples(&Status { config, ..status() });
        let expected =
            r#"tweed_config_pending{reason="the type \"host-gw\" waits:\nC:\\ is not mixed"} 1"#;
        assert!(samples.contains(expected), "{samples}");
    }

    #[test]
    fn probes_are_rendered_if_there_are_any() {
        let counts = ProbeCounts { asked: 9, answered: 8, ..ProbeCounts::default() };
        let reason = Some("the port is in use".to_owned());
        let probes = ProbeStatus { good: 4, bad: 1, counts, reason, ..ProbeStatus::default() };
        let samples = samples(&Status { probes: Some(probes), ..status() });
        for expected in [
            r#"tweed_direct_paths{verdict="good"} 4"#,
            r#"tweed_direct_paths{verdict="bad"} 1"#,
            r#"tweed_probes_off{reason="the port is in use"} 1"#,
            "tweed_probes_asked_total 9",
            "tweed_probes_answered_total 8",
        ] {
            assert!(samples.contains(expected), "{expected} in {samples}");
        }
    }

    #[test]
    fn each_metric_has_help_and_type_once() {
        let page = page(&status());
        let named = |mark: &str| {
            let lines = page.lines().filter_map(|line| line.strip_prefix(mark));
            lines.filter_map(|line| line.split(' ').next()).collect::<Vec<_>>()
        };
        let mut families: Vec<&str> = page
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split(['{', ' ']).next())
            .collect();
        families.dedup();
        assert_eq!(named("# HELP "), families);
        assert_eq!(named("# TYPE "), families);
    }
}
