//! Renders the metrics in the text format of Prometheus. Pure.

use std::fmt::{Display, Write};
use std::time::Duration;

use crate::model::lease::Rejected;
use crate::model::status::{
    FirewallStatus, ProbeStatus, Readiness, Statistics, Status, TableStatus,
};

/// The page at `/metrics`. `silence` is the time since the last heartbeat of the loop.
pub fn render(status: &Status, readiness: &Readiness, silence: Duration) -> String {
    let mut page = Page::default();
    page.health(status, readiness, silence);
    page.config(status);
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

/// Names and values, in the order of the page.
type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    fn health(&mut self, status: &Status, readiness: &Readiness, silence: Duration) {
        let backend = status.backend.as_deref().unwrap_or_default();
        let mixed = if status.mixed { "true" } else { "false" };
        let labels = [("version", status.version.as_str()), ("backend", backend), ("mixed", mixed)];
        self.gauge("info", "The version and the backend in force; always 1.", &[(&labels, 1)]);
        let ready = u8::from(readiness.ready);
        self.gauge(
            "ready",
            "Whether pods can be made and all peers are programmed.",
            &[(&[], ready)],
        );
        let reachable = u8::from(status.store.is_reachable());
        self.gauge("store_reachable", "Whether the store answers.", &[(&[], reachable)]);
        let help = "Since the loop last went round.";
        self.gauge("loop_silence_seconds", help, &[(&[], silence.as_secs_f64())]);
    }

    fn config(&mut self, status: &Status) {
        let config = &status.config;
        let help = "The newest config, in the store's own count.";
        self.gauge("config_revision", help, &[(&[], config.revision)]);
        let reason = config.pending.as_deref();
        self.reason("config_pending", "Whether the newest config waits, and for what.", reason);
        let reason = config.invalid.as_deref();
        self.reason("config_invalid", "Whether the newest config cannot be used, and why.", reason);
    }

    fn peers(&mut self, status: &Status) {
        let peers = &status.peers;
        let help = "Peers in one address family, by the path to them.";
        let paths = [
            ("direct", peers.direct),
            ("tunnel", peers.tunnel),
            ("left_out", peers.skipped),
            ("set_aside", peers.rejected),
        ];
        self.by_label("peers", "path", help, &paths);
        let help = "Peers that the store no longer names and that are still routed.";
        self.gauge("peers_missing", help, &[(&[], peers.missing)]);
        let help = "Leases that conflict with another or with this node, by what about.";
        let count = |what| status.conflicts.get(what).copied().unwrap_or_default();
        let conflicts = Rejected::CONFLICTS.map(|what| (what, count(what)));
        self.by_label("lease_conflicts", "about", help, &conflicts);
    }

    fn kernel(&mut self, status: &Status) {
        let help = "Entries that the kernel should hold for us.";
        self.gauge("desired_entries", help, &[(&[], status.desired)]);
        let help = "Which firewall has rules for packets of pods; none if none does.";
        self.family("firewall_info", "gauge", help);
        if let Some(FirewallStatus { name, .. }) = &status.firewall {
            self.sample("firewall_info", &[("firewall", name)], 1);
        }
        let help =
            "Whether a table by which this node masquerades, or guards its tunnel, is in place.";
        self.family("table_in_place", "gauge", help);
        let guards = status.guard.iter().flat_map(|guard| &guard.tables);
        for TableStatus { name, programmed } in status.tables.iter().chain(guards) {
            self.sample("table_in_place", &[("table", name)], u8::from(*programmed));
        }
        if let Some(guard) = &status.guard {
            let help = "Whether the tunnel is guarded as asked.";
            self.gauge("tunnel_guarded", help, &[(&[], usize::from(guard.applied))]);
            let help = "Underlay addresses that are let into the tunnel.";
            self.gauge("tunnel_admitted_addresses", help, &[(&[], guard.admitted)]);
        }
        let help = "Entries that the kernel refuses.";
        self.gauge("refused_entries", help, &[(&[], status.refused.len())]);
    }

    fn statistics(&mut self, statistics: &Statistics) {
        let help = "Entries that were put into the kernel or taken from it.";
        let done = [
            ("create", statistics.created),
            ("replace", statistics.replaced),
            ("remove", statistics.removed),
        ];
        self.family("kernel_operations_total", "counter", help);
        for (operation, count) in done {
            self.sample("kernel_operations_total", &[("operation", operation)], count);
        }
        let counters = [
            (
                "kernel_dumps_total",
                "Times that the kernel's state was read whole.",
                statistics.dumps,
            ),
            (
                "kernel_overruns_total",
                "Times that messages of the kernel were lost.",
                statistics.overruns,
            ),
            (
                "config_edits_total",
                "Edits of the config, the first reading included.",
                statistics.edits,
            ),
            (
                "path_fallbacks_total",
                "Times that a peer went into the tunnel because its direct path failed.",
                statistics.fallbacks,
            ),
            (
                "vtep_mac_changes_total",
                "Times that a tunnel device got another MAC address, for its own may be another node's.",
                statistics.mac_changes,
            ),
        ];
        self.counters(&counters);
    }

    fn probes(&mut self, probes: &ProbeStatus) {
        let verdicts = [
            ("good", probes.good),
            ("bad", probes.bad),
            ("silent", probes.silent),
            ("pending", probes.pending),
        ];
        self.by_label(
            "direct_paths",
            "verdict",
            "Direct paths, by what their probes found.",
            &verdicts,
        );
        let reason = probes.reason.as_deref();
        self.reason("probes_off", "Whether paths are not probed although they should be.", reason);
        let counts = &probes.counts;
        let counters = [
            ("probes_asked_total", "Probes that were sent.", counts.asked),
            ("probes_answered_total", "Probes that were answered.", counts.answered),
            ("probes_served_total", "Probes of peers that were answered here.", counts.served),
            (
                "probes_rejected_total",
                "Packets that no accepted peer can have sent, copies, and questions beyond the limit of a peer.",
                counts.rejected,
            ),
            ("probes_unsent_total", "Probes that the kernel would not send.", counts.unsent),
        ];
        self.counters(&counters);
    }

    /// 1 with the reason, or 0.
    fn reason(&mut self, name: &str, help: &str, reason: Option<&str>) {
        let labels = reason.map(|reason| [("reason", reason)]);
        let labels: Labels<'_> = labels.as_ref().map_or(&[], |labels| labels);
        self.gauge(name, help, &[(labels, u8::from(reason.is_some()))]);
    }

    fn by_label(&mut self, name: &str, label: &str, help: &str, values: &[(&str, usize)]) {
        self.family(name, "gauge", help);
        for (value, count) in values {
            self.sample(name, &[(label, value)], count);
        }
    }

    fn gauge(&mut self, name: &str, help: &str, samples: &[(Labels<'_>, impl Display)]) {
        self.family(name, "gauge", help);
        for (labels, value) in samples {
            self.sample(name, labels, value);
        }
    }

    fn counters(&mut self, counters: &[(&str, &str, u64)]) {
        for (name, help, count) in counters {
            self.family(name, "counter", help);
            self.sample(name, &[], count);
        }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP tweed_{name} {help}"));
        self.line(format_args!("# TYPE tweed_{name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
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
    use crate::model::status::{ConfigStatus, GuardStatus, PeerCounts, ProbeCounts, StoreState};

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
            computing: Vec::new(),
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
