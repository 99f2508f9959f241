//! The command line of `tweedd`: what it refuses, with one sentence, and what it never logs.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use tweed_lab::{DaemonPlan, eventually};

use crate::fixture::ask::{exit_code, is_ready, is_waiting_for, json};
use crate::fixture::cluster::{Cluster, PATIENCE, binaries};

const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const PASSWORD: &str = "tr0ub4dor";

/// Runs the daemon, which must exit at once.
fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(binaries().tweedd).args(arguments).envs(environment.iter().copied());
    command.output().unwrap()
}

/// Requires exit code 2 and returns the one sentence on standard error.
fn refusal(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let output = run(arguments, environment);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?} {environment:?}: {printed}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(printed.lines().count(), 1, "{printed}");
    assert!(!printed.contains(PASSWORD), "{printed}");
    printed
}

#[test]
fn invalid_flags_are_refused_in_one_sentence() {
    let cases: [(&[&str], &[&str]); 18] = [
        (&["--nonsense"], &["--nonsense"]),
        (&["--nonsense=tr0ub4dor"], &["--nonsense"]),
        (&["-iface"], &["--iface", "value"]),
        (&["--healthz-port=70000"], &["--healthz-port", "70000", "65535"]),
        (
            &["--healthz-ip=no.invalid", "--healthz-port=1"],
            &["--healthz-ip", "no.invalid", "IP address"],
        ),
        (&["-v", "loud"], &["--v", "loud", "number"]),
        (&["--subnet-lease-renew-margin=0"], &["--subnet-lease-renew-margin", "1439"]),
        (&["--subnet-lease-renew-margin=1440"], &["--subnet-lease-renew-margin", "1439"]),
        (&["--subnet-lease-ttl=1"], &["--subnet-lease-ttl", "2 to 525600"]),
        (&["--subnet-lease-ttl=60"], &["--subnet-lease-ttl", "60", "--subnet-lease-renew-margin"]),
        (&["--max-withdraw=101"], &["--max-withdraw", "101", "100"]),
        (&["--public-ip=fd00::1"], &["--public-ip", "fd00::1", "IPv4"]),
        (&["--public-ipv6=10.0.0.1"], &["--public-ipv6", "10.0.0.1", "IPv6"]),
        (&["--iface-regex=("], &["--iface-regex", "regular expression"]),
        (&["--iface-can-reach=there"], &["--iface-can-reach", "there"]),
        (&["--etcd-endpoints=ftp://10.0.0.1"], &["--etcd-endpoints", "ftp://10.0.0.1"]),
        (&["--etcd-endpoints="], &["--etcd-endpoints"]),
        (&["--subnet-file=/"], &["--subnet-file"]),
    ];
    for (arguments, words) in cases {
        let printed = refusal(arguments, &[]);
        for word in words {
            assert!(printed.contains(word), "{arguments:?}: {printed}, without {word}");
        }
    }
}

#[test]
fn removed_flags_are_refused_and_not_ignored() {
    for flag in ["--remote=10.0.0.1:8888", "--listen=:8888", "--networks=a,b", "--subnet-dir=/x"] {
        let printed = refusal(&[flag], &[]);
        let name = flag.split('=').next().unwrap();
        assert!(printed.contains(name) && printed.contains("was removed"), "{printed}");
    }
}

#[test]
fn the_environment_is_checked_like_the_command_line() {
    let printed = refusal(&[], &[("FLANNELD_HEALTHZ_PORT", "70000")]);
    assert!(printed.contains("FLANNELD_HEALTHZ_PORT") && printed.contains("70000"), "{printed}");
    let printed = refusal(&[], &[("FLANNELD_KUBE_SUBNET_MGR", "true")]);
    assert!(printed.contains("NODE_NAME") && printed.contains("POD_NAMESPACE"), "{printed}");
    // A flag takes precedence over the environment.
    let printed = refusal(&["--healthz-port=x"], &[("FLANNELD_HEALTHZ_PORT", "80")]);
    assert!(printed.contains("--healthz-port"), "{printed}");
}

/// This folder cannot be created, so the daemon exits right after its warnings.
const NOWHERE: &str = "--subnet-file=/proc/no\n2026-01-01T00:00:00Z ERROR forged/subnet.env";

#[test]
fn no_argument_forges_a_line_of_the_log() {
    let output = run(&[NOWHERE], &[]);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("no\\n2026") && !printed.contains("\n2026-01-01"), "{printed}");
}

#[test]
fn readable_secrets_are_warned_of_once_at_the_start() {
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::set_permissions(key.path(), Permissions::from_mode(0o644)).unwrap();
    let path = key.path().display().to_string();
    let etcd = ["--etcd-endpoints=https://10.0.0.1:2379", "--etcd-username=u", "--etcd-password=p"];
    let client = [("FLANNELD_ETCD_CERTFILE", &*path), ("FLANNELD_ETCD_KEYFILE", &*path)];
    let pod = [("NODE_NAME", "n1"), ("POD_NAMESPACE", "kube-flannel")];
    let kube = [&pod[..], &[("FLANNELD_KUBECONFIG_FILE", &*path)]].concat();
    for (arguments, variables, warnings) in [
        (&etcd[..], &client[..], &["in the list of processes", " has mode 0644, "][..]),
        (&["--kube-subnet-mgr"], &kube, &[" has mode 0644, "]),
    ] {
        let output = run(&[&[NOWHERE], arguments].concat(), variables);
        let printed = String::from_utf8(output.stderr).unwrap();
        let count = |warning: &&str| printed.lines().filter(|line| line.contains(warning)).count();
        assert!(warnings.iter().all(|warning| count(warning) == 1), "{printed}");
    }
}

#[test]
fn version_and_help_exit_with_success() {
    for flag in ["--version", "-version", "--version=true"] {
        let output = run(&[flag], &[]);
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(printed, format!("tweedd {}\n", env!("CARGO_PKG_VERSION")));
    }
    for flag in ["--help", "-help", "-h"] {
        let output = run(&[flag], &[]);
        assert_eq!(output.status.code(), Some(0));
        let printed = String::from_utf8(output.stdout).unwrap();
        for known in ["--etcd-endpoints", "--iface", "--subnet-file", "--ip-masq", "--max-withdraw"]
        {
            assert!(printed.contains(known), "{printed}");
        }
    }
}

#[test]
fn a_daemon_accepts_flannels_flags_and_environment() {
    let cluster = Cluster::start(0, VXLAN).unwrap();
    let endpoints = cluster.etcd.endpoints().join(",");
    let by_words = cluster.lab.node("words", &cluster.segment).unwrap();
    let file = by_words.subnet_file().display().to_string();
    let words = [
        "-etcd-endpoints",
        &endpoints,
        "-etcd-prefix",
        "/coreos.com/network/",
        "-iface=eth0",
        "--subnet-file",
        &file,
        "-healthz-port",
        "0x1f91",
        "-v=10",
        "-ip-masq=false",
        "-iptables-forward-rules=false",
        "-log_backtrace_at",
        ":0",
        "ignored",
        "--nonsense",
    ];
    let plan = DaemonPlan::program(&by_words, binaries().tweedd);
    let plan = words.iter().fold(plan, |plan, word| plan.argument(*word));
    plan.start().unwrap().wait_ready().unwrap();

    let by_environment = cluster.lab.node("environment", &cluster.segment).unwrap();
    let file = by_environment.subnet_file().display().to_string();
    let variables = [
        ("ETCD_ENDPOINTS", endpoints.as_str()),
        ("IFACE", "eth0"),
        ("SUBNET_FILE", &file),
        ("HEALTHZ_PORT", "8081"),
        ("V", "2"),
        ("PUBLIC_IP", ""),
        ("VERSION", "true"),
        // flanneld starts in spite of this value, so tweedd must too.
        ("IPTABLES_RESYNC", "often"),
        ("ETCD_USERNAME", "root"),
        ("ETCD_CAFILE", "/nowhere"),
        ("KUBE_ANNOTATION_PREFIX", "Blue"),
    ];
    let plan = DaemonPlan::program(&by_environment, binaries().tweedd);
    let set = |plan: DaemonPlan, (name, value): &(&str, &str)| {
        plan.environment(format!("FLANNELD_{name}"), value)
    };
    variables.iter().fold(plan, set).start().unwrap().wait_ready().unwrap();
}

#[test]
fn a_port_that_is_taken_ends_the_start_before_anything_is_touched() {
    let cluster = Cluster::start(0, VXLAN).unwrap();
    let node = cluster.lab.node("n1", &cluster.segment).unwrap();
    let taken = node.namespace().within(|| TcpListener::bind("0.0.0.0:8081")).unwrap().unwrap();
    let kernel = node.snapshot().unwrap();
    let daemon = node.daemon(&cluster.etcd).start().unwrap();
    assert_eq!(exit_code(&daemon, PATIENCE).unwrap(), 1);
    let words = daemon.process().last_words();
    assert!(words.contains("8081") && words.contains("in use"), "{words}");
    assert_eq!(words.lines().count(), 1, "{words}");
    assert_eq!(kernel.changes(&node.snapshot().unwrap()), Vec::<String>::new());
    drop(taken);
}

#[test]
fn a_second_daemon_on_the_same_files_ends_and_leaves_the_first_alone() {
    let cluster = Cluster::start(1, VXLAN).unwrap();
    let (node, first) = (&cluster.nodes[0], &cluster.daemons[0]);
    let kernel = node.snapshot().unwrap();
    let second = node.daemon(&cluster.etcd).argument("--healthz-port=0").start().unwrap();
    assert_eq!(exit_code(&second, PATIENCE).unwrap(), 1);
    let words = second.process().last_words();
    // Both write to one log.
    let is_refusal = |line: &str| line.contains("another tweedd") && line.contains("subnet.sock");
    assert!(words.lines().any(is_refusal), "{words}");
    assert_eq!(kernel.changes(&node.snapshot().unwrap()), Vec::<String>::new());
    eventually(PATIENCE, || is_ready(first)).unwrap();
    assert_eq!(json(first, "status").unwrap()["ready"], true);
}

#[test]
fn a_password_is_never_logged() {
    let cluster = Cluster::start(0, VXLAN).unwrap();
    let etcdctl = |words: &str| {
        let words: Vec<&str> = words.split_whitespace().collect();
        cluster.etcd.etcdctl(&words).unwrap()
    };
    etcdctl(&format!("user add root:{PASSWORD}"));
    etcdctl("user grant-role root root");
    etcdctl("auth enable");
    let start = |name: &str, password: &str| {
        let node = cluster.lab.node(name, &cluster.segment).unwrap();
        let plan = node.daemon(&cluster.etcd).argument("-v=10").argument("--etcd-username=root");
        let daemon = plan.environment("FLANNELD_ETCD_PASSWORD", password).start().unwrap();
        (node, daemon)
    };
    let (node, daemon) = start("right", PASSWORD);
    daemon.wait_ready().unwrap();
    let mut reported = vec![daemon.log().unwrap(), daemon.get("/readyz").unwrap().body];
    for subcommand in ["status", "peers", "leases"] {
        reported.push(json(&daemon, subcommand).unwrap().to_string());
    }
    let checkpoint = node.folder().join("subnet.state.json");
    eventually(PATIENCE, || checkpoint.exists()).unwrap();
    reported.push(std::fs::read_to_string(&checkpoint).unwrap());
    assert!(
        reported.iter().all(|text| !text.is_empty() && !text.contains(PASSWORD)),
        "{reported:?}"
    );

    let (_, daemon) = start("wrong", "tr0ub4dor-but-wrong");
    eventually(PATIENCE, || is_waiting_for(&daemon, "authentication failed")).unwrap();
    let reported = [daemon.log().unwrap(), daemon.get("/readyz").unwrap().body];
    assert!(reported.iter().all(|text| !text.contains(PASSWORD)), "{reported:?}");
    assert!(daemon.process().is_running());
}
