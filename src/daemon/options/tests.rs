//! Values of flags and environment, and errors.
#![allow(clippy::unwrap_used)]

mod etcd;
mod kube;
mod syntax;

use std::time::Duration;

use tracing::Level;

use super::{Guard, LogFormat, Masquerade, Options, Stop, StoreOptions};
use crate::model::entry::Ports;
use crate::model::policy::{Checksums, Conntrack, Forward, Pods, Preference, UnknownSources};
use crate::plan::config_change::Reload;
use crate::store::etcd::{EtcdOptions, LeaseTimes};

const NO_VARIABLES: &[(&str, &str)] = &[];

fn parse(line: &str, variables: &[(&str, &str)]) -> Result<Options, Stop> {
    let variables = variables.to_vec();
    Options::parse(line.split_whitespace(), move |asked| {
        let variable = variables.iter().find(|(name, _)| *name == asked);
        variable.map(|(_, value)| (*value).to_owned())
    })
}

impl Options {
    fn etcd(&self) -> EtcdOptions {
        match &self.store {
            StoreOptions::Etcd(etcd) => etcd.clone(),
            StoreOptions::Kube(kube) => panic!("{kube:?}"),
        }
    }
}

fn options(line: &str) -> Options {
    parse(line, NO_VARIABLES).unwrap()
}

/// The message and the exit code.
fn refusal(line: &str, variables: &[(&str, &str)]) -> (String, u8) {
    let stop = parse(line, variables).unwrap_err();
    (stop.to_string(), stop.exit_code())
}

fn check_refusal(line: &str, message: &str) {
    assert_eq!(refusal(line, NO_VARIABLES), (message.to_owned(), 2), "{line}");
}

#[test]
fn defaults_are_those_of_flanneld() {
    let options = options("");
    assert_eq!(options.etcd().endpoints, ["http://127.0.0.1:4001", "http://127.0.0.1:2379"]);
    assert_eq!(options.etcd().prefix, "/coreos.com/network");
    assert_eq!((options.etcd().ca_file, options.etcd().credentials), (None, None));
    assert_eq!(options.subnet_file.to_str(), Some("/run/flannel/subnet.env"));
    let [ttl, renew_margin] = [24, 1].map(|hours| Duration::from_secs(hours * 3600));
    assert_eq!(options.lease, LeaseTimes { ttl, renew_margin });
    assert!(!options.release_on_exit);
    assert_eq!((options.health, options.verbosity), (None, Level::INFO));
    assert!(
        options.control.interface.names.is_empty() && options.control.interface.regexes.is_empty()
    );
    assert_eq!((options.control.max_withdraw, options.control.reload), (50, Reload::Live));
}

#[test]
fn edits_of_the_config_can_be_applied_at_the_next_start() {
    assert_eq!(options("-config-reload=false").control.reload, Reload::AtStart);
    assert_eq!(options("-config-reload").control.reload, Reload::Live);
    check_refusal("-config-reload=no", "--config-reload is \"no\"; allowed: true or false");
}

#[test]
fn our_own_files_are_next_to_the_subnet_file() {
    for (line, state_file, socket) in [
        ("", "/run/flannel/subnet.state.json", "/run/flannel/subnet.sock"),
        ("-subnet-file /run/a.env", "/run/a.state.json", "/run/a.sock"),
        ("-subnet-file=/run/a.env -state-file=/var/s -control-socket=/c", "/var/s", "/c"),
        (
            "-state-file=/var/s -state-file=",
            "/run/flannel/subnet.state.json",
            "/run/flannel/subnet.sock",
        ),
    ] {
        let options = options(line);
        assert_eq!(options.state_file.to_str(), Some(state_file), "{line}");
        assert_eq!(options.control_socket.to_str(), Some(socket), "{line}");
    }
}

#[test]
fn health_is_served_only_on_a_port() {
    assert_eq!(options("-healthz-ip=127.0.0.1 -healthz-port=0").health, None);
    assert_eq!(options("-healthz-port=1").health.unwrap().to_string(), "0.0.0.0:1");
    assert_eq!(options("-healthz-ip=::1 -healthz-port=1").health.unwrap().to_string(), "[::1]:1");
    assert_eq!(options("-healthz-ip=no.invalid").health, None);
    check_refusal(
        "-healthz-ip=no.invalid -healthz-port=1",
        "--healthz-ip is \"no.invalid\"; allowed: an IP address, or a name of this host",
    );
}

#[test]
fn health_is_served_on_the_addresses_of_gos_listener() {
    for (line, address) in [
        ("-healthz-ip=localhost -healthz-port=1", Some("127.0.0.1:1")),
        ("-healthz-ip= -healthz-port=1", Some("0.0.0.0:1")),
        ("-healthz-port=-1", None),
    ] {
        let health = options(line).health.map(|address| address.to_string());
        assert_eq!(health.as_deref(), address, "{line}");
    }
    assert_eq!(options("-healthz-port=-1").warnings, ["--healthz-port is -1; 0 is used"]);
}

#[test]
fn metrics_have_an_address_of_their_own_only_on_a_port() {
    assert_eq!(options("-healthz-port=1").metrics, None);
    assert_eq!(options("-metrics-port=2").metrics.unwrap().to_string(), "0.0.0.0:2");
    assert_eq!(options("-metrics-ip=::1 -metrics-port=2").metrics.unwrap().to_string(), "[::1]:2");
    check_refusal(
        "-metrics-ip=no.invalid -metrics-port=1",
        "--metrics-ip is \"no.invalid\"; allowed: an IP address, or a name of this host",
    );
}

#[test]
fn the_margin_and_the_share_have_bounds() {
    assert_eq!(
        options("-subnet-lease-renew-margin=1439").lease.renew_margin,
        Duration::from_secs(86_340)
    );
    assert_eq!(
        (
            options("-max-withdraw=0").control.max_withdraw,
            options("-max-withdraw=100").control.max_withdraw
        ),
        (0, 100)
    );
    for margin in ["0", "1440", "-5", "1h"] {
        let message =
            format!("--subnet-lease-renew-margin is {margin:?}; allowed: 1 to 1439 minutes");
        check_refusal(&format!("-subnet-lease-renew-margin={margin}"), &message);
    }
    check_refusal("-max-withdraw=101", "--max-withdraw is \"101\"; allowed: 0 to 100 percent");
}

#[test]
fn verbosity_follows_klog() {
    for (v, level) in [
        (-1, Level::INFO),
        (1, Level::INFO),
        (2, Level::DEBUG),
        (4, Level::DEBUG),
        (5, Level::TRACE),
        (10, Level::TRACE),
    ] {
        assert_eq!(
            options(&format!("-v={v} -vmodule=a=1 -log_backtrace_at=a.go:1")).verbosity,
            level
        );
        assert_eq!(options(&format!("--v {v}")).verbosity, level);
    }
    check_refusal("-v=much", "--v is \"much\"; allowed: a number");
}

#[test]
fn the_log_is_text_unless_json_is_requested() {
    assert_eq!(options("").log_format, LogFormat::Text);
    assert_eq!(options("--log-format=json").log_format, LogFormat::Json);
    check_refusal("--log-format=xml", "--log-format is \"xml\"; allowed: text or json");
}

#[test]
fn all_interfaces_and_the_last_value_of_other_flags_are_used() {
    let line = "-iface=eth1 -iface 10.0.0.5 -iface= -iface-regex=^eth -iface-regex=10\\. \
                -iface-can-reach=fd00::1 -public-ip=1.2.3.4 -public-ip=5.6.7.8 -public-ipv6=fd00::2";
    let interface = options(line).control.interface;
    assert_eq!(interface.names, ["eth1", "10.0.0.5"]);
    let patterns: Vec<_> = interface.regexes.iter().map(regex::Regex::as_str).collect();
    assert_eq!(patterns, ["^eth", "10\\."]);
    assert_eq!(interface.can_reach, "fd00::1".parse().ok());
    assert_eq!(interface.public_ip, "5.6.7.8".parse().ok());
    assert_eq!(interface.public_ipv6, "fd00::2".parse().ok());
    assert_eq!(options("-public-ip=1.2.3.4 -public-ip=").control.interface.public_ip, None);
}

#[test]
fn a_bad_address_or_pattern_is_named() {
    check_refusal("-public-ip=::1", "--public-ip is \"::1\"; allowed: an IPv4 address");
    check_refusal("-public-ipv6=1.2.3.4", "--public-ipv6 is \"1.2.3.4\"; allowed: an IPv6 address");
    check_refusal("-iface-can-reach=gw", "--iface-can-reach is \"gw\"; allowed: an IP address");
    check_refusal(
        "-iface-regex=eth(",
        "--iface-regex is \"eth(\"; allowed: a regular expression (unclosed group)",
    );
    // Another flag names an interface, which flanneld uses.
    let options = options("-iface=eth0 -iface-regex=eth( -iface-can-reach=gw");
    assert_eq!((options.control.interface.names.len(), options.warnings.len()), (1, 2));
    check_refusal("-subnet-file=/", "--subnet-file is \"/\"; allowed: the path of a file");
}

#[test]
fn masquerading_is_off_by_default_and_otherwise_as_flannel_does_it() {
    assert_eq!(options("").control.policy.masquerade, None);
    assert_eq!(options("-iptables -iptables-masquerade-bit=7").control.policy.masquerade, None);
    let usual = Masquerade { ports: Ports::FullyRandom, mark: 0x4000 };
    assert_eq!(options("-ip-masq").control.policy.masquerade, Some(usual));
    for line in ["", "-ip-masq"] {
        let policy = options(line).control.policy;
        assert_eq!((policy.forward, policy.firewall), (Forward::Accept, Preference::Any));
    }
    let line = "-ip-masq -ip-masq-fully-random-disable -iptables-forward-rules=false \
                -iptables-masquerade-bit=31 -iptables -iptables-resync=30";
    let other = Masquerade { ports: Ports::Kept, mark: 1 << 31 };
    let policy = options(line).control.policy;
    assert_eq!(policy.masquerade, Some(other));
    assert_eq!((policy.forward, policy.firewall), (Forward::Leave, Preference::Iptables));
    assert_eq!(options(line).control.resync, Duration::from_secs(30));
    assert_eq!(options("").control.resync, Duration::from_secs(5));
    for (line, used) in [("-iptables-resync=0", 1), ("-iptables-resync=1000000", 86_400)] {
        let options = options(line);
        assert_eq!((options.control.resync.as_secs(), options.warnings.len()), (used, 1), "{line}");
    }
    assert_eq!(options("-iptables-resync=0").warnings, ["--iptables-resync is 0; 1 is used"]);
    let message = "--iptables-masquerade-bit is \"32\"; allowed: a bit from 0 to 31";
    check_refusal("-iptables-masquerade-bit=32", message);
}

#[test]
fn the_tunnel_is_guarded_and_each_guard_has_a_switch() {
    let all = Guard::default();
    let off = "-tunnel-notrack=false -tunnel-drop-unknown=false";
    for (line, expected) in [
        ("", Some(all)),
        ("-tunnel-notrack=false", Some(Guard { conntrack: Conntrack::Tracked, ..all })),
        ("-tunnel-drop-unknown=0", Some(Guard { unknown_sources: UnknownSources::Accept, ..all })),
        ("-tunnel-drop-pods=F", Some(Guard { pods: Pods::Accept, ..all })),
        (&format!("{off} -tunnel-drop-pods=false"), None),
    ] {
        assert_eq!(options(line).control.policy.guard, expected, "{line}");
    }
    assert_eq!(options("").control.policy.checksums, Checksums::WhereNeeded);
    assert_eq!(options("-tunnel-checksums=computed").control.policy.checksums, Checksums::Computed);
    let message = "--tunnel-checksums is \"on\"; allowed: auto, computed or keep";
    check_refusal("-tunnel-checksums=on", message);
}

#[test]
fn flags_without_effect_are_accepted() {
    options(
        "-ip-masq=false -ip-masq-fully-random-disable=0 -kube-subnet-mgr=F -kube-api-url= \
         -kube-annotation-prefix=flannel.alpha.coreos.com -kubeconfig-file= \
         -net-config-path=/etc/kube-flannel/net-conf.json -iptables-resync=0xa \
         -ip-blackhole-route=false -iptables-forward-rules=false -iptables-forward-rules \
         -set-node-network-unavailable=false -ip-masq -ip-masq=false",
    );
    check_refusal(
        "-iptables-resync=5s",
        "--iptables-resync is \"5s\"; allowed: a number of seconds",
    );
    check_refusal(
        "-set-node-network-unavailable=maybe",
        "--set-node-network-unavailable is \"maybe\"; allowed: true or false",
    );
}
