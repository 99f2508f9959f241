//! Renders the metrics in the text format of Prometheus. Pure. Each series has fixed labels: the
//! value changes, and no label holds a sentence.

use std::collections::BTreeMap;
use std::time::Duration;

use tweed_http::page::{Histogram, Page, number};

use super::resources::{PodUsage, Resources};
use crate::model::config::BackendType;
use crate::model::entry::EntryKind;
use crate::model::lease::Rejected;
use crate::model::measurements::{Measurements, PathChangeReason, RolloutPhase, SubnetUsage};
use crate::model::path::Path;
use crate::model::prefix::Family;
use crate::model::status::{ConfigStatus, ProbeCounts, ProbeStatus, Readiness, Statistics, Status};
use crate::plan::preflight::Level;

/// All figures of the page.
#[derive(Debug)]
pub struct Scrape {
    pub status: Status,
    pub readiness: Readiness,
    /// The time since the last heartbeat of the loop.
    pub silence: Duration,
    pub measured: Measurements,
    /// The times of requests to the store, in seconds.
    pub requests: Histogram,
    /// How long the lease is held without another renewal, in seconds.
    pub lease_remaining: f64,
    /// The time from the last renewal of a lease until it expires.
    pub lease_ttl: Duration,
    pub resources: Resources,
    /// The findings of the last check of the host; none before the first one.
    pub findings: Option<BTreeMap<Level, usize>>,
}

/// The page at `/metrics`.
pub fn render(figures: &Scrape) -> String {
    let Scrape { status, measured, resources, .. } = figures;
    let mut page = Page::default();
    health(&mut page, figures);
    store(&mut page, figures);
    config(&mut page, &status.config, measured.rollout);
    peers(&mut page, status, measured);
    kernel(&mut page, status);
    work(&mut page, &status.statistics, measured);
    probes(&mut page, status.probes.as_ref(), measured);
    if let Some(counted) = &resources.pods {
        pods(&mut page, counted);
    }
    if let Some(process) = &resources.process {
        process.add_to(&mut page);
    }
    page.into_text()
}

/// The page while the loop does not answer.
pub fn render_stuck(version: &str, readiness: &Readiness, silence: Duration) -> String {
    let mut page = Page::default();
    life(&mut page, version, readiness, silence);
    page.into_text()
}

fn life(page: &mut Page, version: &str, readiness: &Readiness, silence: Duration) {
    let help = "Version of this daemon; always 1.";
    page.by_label("tweed_build_info", help, "version", [(version, 1)]);
    let help = "Whether the node is ready, as /readyz reports.";
    page.gauge("tweed_ready", help, u8::from(readiness.ready));
    let help = "Time since the last pass of the main loop, in seconds.";
    page.gauge("tweed_loop_silence_seconds", help, silence.as_secs_f64());
}

fn health(page: &mut Page, figures: &Scrape) {
    let Scrape { status, readiness, silence, findings, .. } = figures;
    life(page, &status.version, readiness, *silence);
    let help = "Whether this node applies the backend.";
    let backends = BackendType::ALL.map(BackendType::as_str);
    page.state("tweed_backend", help, "backend", (backends, status.backend.as_deref()));
    let help = "Whether Mixed is applied: each node has its own backend.";
    page.gauge("tweed_mixed", help, u8::from(status.mixed));
    if let Some(findings) = findings {
        let levels = [Level::Fatal, Level::Warning, Level::Note];
        let count = |level| findings.get(&level).copied().unwrap_or_default();
        let findings = levels.map(|level| (level.as_str(), count(level)));
        let help = "Findings of tweedctl doctor about the host, by level; those that cannot be examined do not count.";
        page.by_label("tweed_doctor_findings", help, "level", findings);
    }
}

fn store(page: &mut Page, figures: &Scrape) {
    let Scrape { status, requests, lease_remaining, lease_ttl, measured, .. } = figures;
    let help = "Whether the store is reachable.";
    page.gauge("tweed_store_reachable", help, u8::from(status.store.is_reachable()));
    let help = "Times of requests to the store until the answer or the timeout, in seconds.";
    page.histogram("tweed_store_request_seconds", help, requests);
    let help =
        "Time until the lease expires, in seconds; 0 without a lease, +Inf for a reservation.";
    page.gauge("tweed_lease_remaining_seconds", help, number(*lease_remaining));
    let help = "Time from the last renewal of a lease until it expires, in seconds.";
    page.gauge("tweed_lease_ttl_seconds", help, lease_ttl.as_secs());
    let help = "Subnets of the pod network, by whether a lease has them.";
    usage(page, "tweed_subnets", help, &measured.subnets);
}

fn config(
    page: &mut Page,
    ConfigStatus { revision, pending, invalid, .. }: &ConfigStatus,
    rollout: RolloutPhase,
) {
    let help = "Revision of the latest config in the store.";
    page.gauge("tweed_config_revision", help, revision);
    let help = "Whether a part of the latest config waits; tweedctl status gives the reason.";
    page.gauge("tweed_config_pending", help, u8::from(pending.is_some()));
    let help = "Whether the latest config is invalid; tweedctl status gives the reason.";
    page.gauge("tweed_config_invalid", help, u8::from(invalid.is_some()));
    let help = "State of this node in the rollout of a backend; none: there is no rollout.";
    let phases = RolloutPhase::ALL.map(RolloutPhase::as_str);
    page.state("tweed_rollout", help, "phase", (phases, Some(rollout.as_str())));
}

fn peers(page: &mut Page, status: &Status, measured: &Measurements) {
    let Status { peers, reachability, conflicts, .. } = status;
    let paths = [
        ("direct", peers.direct),
        ("tunnel", peers.tunnel),
        ("skipped", peers.skipped),
        ("rejected", peers.rejected),
    ];
    let help = "Peers by path; skipped: no path, rejected: bad lease.";
    page.by_label("tweed_peers", help, "path", paths);
    let reachable = [
        ("reachable", reachability.reachable),
        ("degraded", reachability.degraded),
        ("unreachable", reachability.unreachable),
        ("unknown", reachability.unknown),
    ];
    let help = "Peers with a path, by whether they answer probes by it.";
    page.by_label("tweed_peers_reachability", help, "state", reachable);
    let help = "Peers that are missing from the store and still routed.";
    page.gauge("tweed_peers_missing", help, peers.missing);
    path_changes(page, measured);
    let count = |what| conflicts.get(what).copied().unwrap_or_default();
    let conflicts = Rejected::CONFLICTS.map(|what| (what, count(what)));
    let help = "Leases that conflict with another lease or with this node, by subject.";
    page.by_label("tweed_lease_conflicts", help, "about", conflicts);
}

fn path_changes(page: &mut Page, measured: &Measurements) {
    let name = "tweed_path_changes_total";
    let help = "Changes of the path to a peer, by the new path and the reason.";
    page.family(name, "counter", help);
    for to in Path::ALL.map(Some).into_iter().chain([None]) {
        for reason in PathChangeReason::ALL {
            let path = to.map_or("none", Path::as_str);
            let labels = [("to", path), ("reason", reason.as_str())];
            let count = measured.path_changes.get(&(to, reason)).copied().unwrap_or_default();
            page.sample(name, &labels, count);
        }
    }
}

fn kernel(page: &mut Page, status: &Status) {
    let help = "Kernel entries in the desired state.";
    page.gauge("tweed_desired_entries", help, status.desired);
    let help = "Entries that the kernel refused.";
    page.gauge("tweed_refused_entries", help, status.refused.len());
    let help = "The firewall that tweed chose for its rules; 0 for both without rules.";
    let firewall = status.firewall.as_ref().map(|firewall| firewall.name.as_str());
    page.state("tweed_firewall", help, "firewall", (["nftables", "iptables"], firewall));
    let guards = status.guard.iter().flat_map(|guard| &guard.tables);
    let tables = status.tables.iter().chain(guards);
    let tables = tables.map(|table| (&table.name, u8::from(table.programmed)));
    let help = "Whether a table for masquerading or for the tunnel guard is in place.";
    page.by_label("tweed_table_in_place", help, "table", tables);
    if let Some(guard) = &status.guard {
        let help = "Whether the tunnel guard is in place as configured.";
        page.gauge("tweed_tunnel_guarded", help, u8::from(guard.applied));
        let help = "Underlay addresses from which the tunnel accepts packets.";
        page.gauge("tweed_tunnel_admitted_addresses", help, guard.admitted);
    }
}

fn work(page: &mut Page, statistics: &Statistics, measured: &Measurements) {
    let Statistics { created, replaced, removed, overruns, edits, mac_changes, .. } = *statistics;
    let operations = [("create", created), ("replace", replaced), ("remove", removed)];
    let help = "Kernel entries that were created, replaced or removed.";
    page.counters("tweed_kernel_operations_total", help, "operation", operations);
    let count = |kind| measured.repairs.get(kind).copied().unwrap_or_default();
    let repairs = EntryKind::ALL.iter().map(|kind| (kind.name(), count(kind)));
    let help = "Kernel entries that were lost or changed, and restored, by kind.";
    page.counters("tweed_repairs_total", help, "kind", repairs);
    let help = "Times from the first event of a pass of the main loop until the kernel has \
                applied its operations, in seconds.";
    page.histogram("tweed_event_to_kernel_seconds", help, &measured.event_to_kernel);
    let help = "Times of full reads of the kernel state, in seconds.";
    page.histogram("tweed_dump_seconds", help, &measured.dumps);
    let help = "Losses of kernel notifications.";
    page.counter("tweed_kernel_overruns_total", help, overruns);
    let help = "Config updates from the store, including the first one.";
    page.counter("tweed_config_edits_total", help, edits);
    let help =
        "Changes of this node's VTEP MAC address because another node may use the former one.";
    page.counter("tweed_vtep_mac_changes_total", help, mac_changes);
}

fn probes(page: &mut Page, probes: Option<&ProbeStatus>, measured: &Measurements) {
    let ProbeStatus { good, bad, silent, pending, state, counts, .. } =
        probes.cloned().unwrap_or_default();
    let state = if probes.is_some() { state.as_str() } else { "disabled" };
    let states = ["on", "off", "starting", "disabled"];
    let help = "Whether paths are probed; off: the probes do not work, disabled: by the config.";
    page.state("tweed_probing", help, "state", (states, Some(state)));
    let verdicts = [("good", good), ("bad", bad), ("silent", silent), ("pending", pending)];
    let help = "Direct paths, by the verdict of their probes.";
    page.by_label("tweed_direct_paths", help, "verdict", verdicts);
    let help = "Share of lost probes of each peer by the path in use: the peers at this \
                moment, so use it without rate().";
    page.histogram("tweed_probe_loss_ratio", help, &measured.loss);
    let help = "Last round-trip time of each peer by the path in use, in seconds: the peers at \
                this moment, so use it without rate().";
    page.histogram("tweed_probe_rtt_seconds", help, &measured.round_trip);
    let ProbeCounts { asked, answered, served, rejected, unsent } = counts;
    page.counter("tweed_probes_asked_total", "Probes sent.", asked);
    page.counter("tweed_probes_answered_total", "Answers received.", answered);
    let help = "Probes of peers that this node answered.";
    page.counter("tweed_probes_served_total", help, served);
    let help = "Probe packets rejected: unknown sender, replayed, or above a limit.";
    page.counter("tweed_probes_rejected_total", help, rejected);
    let help = "Probes that the kernel refused to send.";
    page.counter("tweed_probes_unsent_total", help, unsent);
}

fn pods(page: &mut Page, PodUsage { attachments, addresses }: &PodUsage) {
    let help = "Attachments of containers that the CNI plugin has recorded.";
    page.gauge("tweed_cni_attachments", help, attachments);
    let help = "Addresses of this node's subnets, by whether a container has them.";
    usage(page, "tweed_cni_addresses", help, addresses);
}

fn usage(page: &mut Page, name: &str, help: &str, usages: &[SubnetUsage]) {
    page.family(name, "gauge", help);
    for SubnetUsage { family, used, free } in usages {
        let family = match family {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        };
        page.sample(name, &[("family", family), ("state", "used")], used);
        page.sample(name, &[("family", family), ("state", "free")], free);
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;
    use tweed_http::process::Process;

    use super::*;
    use crate::model::policy::Guard;
    use crate::model::status::{
        FirewallStatus, GuardStatus, PeerCounts, ReachabilityCounts, StoreState, TableStatus,
    };

    fn table(name: &str) -> TableStatus {
        TableStatus { name: name.to_owned(), programmed: true }
    }

    fn status() -> Status {
        let counts = ProbeCounts { asked: 9, answered: 8, ..ProbeCounts::default() };
        let state = "on".to_owned();
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
            tables: vec![table("ip tweed.1")],
            guard: Some(GuardStatus {
                asked: Guard::default(),
                applied: true,
                tables: vec![table("ip tweed-tunnel.1")],
                admitted: 5,
                refused: None,
            }),
            settings: Vec::new(),
            desired: 25,
            refused: vec!["route".to_owned()],
            probes: Some(ProbeStatus { good: 4, bad: 1, state, counts, ..ProbeStatus::default() }),
            statistics: Statistics { created: 25, dumps: 2, ..Statistics::default() },
        }
    }

    fn histogram(mut histogram: Histogram, values: &[f64]) -> Histogram {
        histogram.extend(values.iter().copied());
        histogram
    }

    fn times(seconds: &[f64]) -> Histogram {
        histogram(Histogram::default(), seconds)
    }

    fn figures(status: Status) -> Scrape {
        let by_probes = (Some(Path::Tunnel), PathChangeReason::Probes);
        let usage = |used, free| vec![SubnetUsage { family: Family::V4, used, free }];
        Scrape {
            readiness: Readiness { ready: status.ready, reasons: Vec::new() },
            status,
            silence: Duration::from_millis(1500),
            measured: Measurements {
                repairs: [(EntryKind::Route, 3)].into(),
                path_changes: [(by_probes, 2)].into(),
                event_to_kernel: times(&[0.0005, 0.25]),
                dumps: times(&[0.002, 0.004]),
                loss: histogram(Histogram::of_shares(), &[0.0, 0.0, 0.0, 0.0625, 1.0]),
                round_trip: times(&[0.0002, 0.0002, 0.0005]),
                subnets: usage(6, 249),
                rollout: RolloutPhase::Waiting,
            },
            requests: times(&[0.001, 0.002, 0.02]),
            lease_remaining: 57_600.5,
            lease_ttl: Duration::from_secs(86_400),
            resources: Resources {
                process: Some(Process {
                    cpu_seconds: 1.25,
                    open_files: 19,
                    max_files: 1024.0,
                    virtual_memory: 64 << 20,
                    resident_memory: 18 << 20,
                    threads: 2,
                    started: 1_795_000_000.25,
                }),
                pods: Some(PodUsage { attachments: 7, addresses: usage(7, 246) }),
            },
            findings: Some([(Level::Warning, 1)].into()),
        }
    }

    /// What a node is that has none of the states of the page.
    fn empty() -> Status {
        let empty = Status { backend: None, mixed: false, ready: false, ..status() };
        let reason = Some("the type \"host-gw\" waits:\nC:\\ is not mixed".to_owned());
        let config = ConfigStatus { pending: reason.clone(), invalid: reason, ..empty.config };
        Status { config, firewall: None, probes: None, store: StoreState::Unknown, ..empty }
    }

    /// The series of a page, without their values.
    fn series(figures: &Scrape) -> Vec<String> {
        let page = render(figures);
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        let series = samples.filter_map(|line| line.rsplit_once(' '));
        series.map(|(series, _)| series.to_owned()).collect()
    }

    /// Other tests read the page, too. `UPDATE_EXPECT=1` writes it again.
    #[test]
    fn a_status_is_rendered_as_metrics() {
        let golden = expect_file!["../../tests/monitoring/metrics.txt"];
        golden.assert_eq(&render(&figures(status())));
    }

    #[test]
    fn every_state_has_the_same_series() {
        let mut other = figures(empty());
        other.measured.rollout = RolloutPhase::None;
        other.findings = Some(BTreeMap::new());
        assert_eq!(series(&other), series(&figures(status())));
    }

    #[test]
    fn states_are_values_and_not_labels() {
        let page = render(&figures(empty()));
        let expected = [
            "tweed_config_pending 1",
            "tweed_config_invalid 1",
            "tweed_backend{backend=\"vxlan\"} 0",
            "tweed_backend{backend=\"host-gw\"} 0",
            "tweed_probing{state=\"on\"} 0",
            "tweed_probing{state=\"disabled\"} 1",
            "tweed_firewall{firewall=\"nftables\"} 0",
            "tweed_store_reachable 0",
        ];
        for line in expected {
            assert!(page.lines().any(|it| it == line), "{line} in {page}");
        }
        assert!(!page.contains("is not mixed"), "{page}");
    }

    #[test]
    fn a_lease_without_an_end_has_infinite_time() {
        let figures = Scrape { lease_remaining: f64::INFINITY, ..figures(status()) };
        let page = render(&figures);
        assert!(page.contains("\ntweed_lease_remaining_seconds +Inf\n"), "{page}");
    }

    /// Otherwise, a loop that does not answer would look like a daemon that does not run.
    #[test]
    fn the_page_of_a_stuck_loop_has_what_alerts_need() {
        let readiness = Readiness { ready: true, reasons: Vec::new() };
        let page = render_stuck("0.1.0", &readiness, Duration::from_secs(40));
        for line in [
            "tweed_build_info{version=\"0.1.0\"} 1",
            "tweed_ready 1",
            "tweed_loop_silence_seconds 40",
        ] {
            assert!(page.lines().any(|it| it == line), "{line}: {page}");
        }
    }

    #[test]
    fn labels_are_escaped() {
        let tables = vec![table("C:\\ \"quoted\"\n")];
        let page = render(&figures(Status { tables, ..status() }));
        let expected = r#"tweed_table_in_place{table="C:\\ \"quoted\"\n"} 1"#;
        assert!(page.contains(expected), "{page}");
    }
}
