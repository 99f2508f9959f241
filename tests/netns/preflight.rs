//! Tests that host settings that drop or block traffic are found, and no others.

use std::cell::RefCell;
use std::fs;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;
use tweed::kernel::host::{Places, gather, other_daemons};
use tweed::kernel::{Kernel, NetlinkKernel};
use tweed::model::policy::Forward;
use tweed::model::prefix::Family;
use tweed::plan::preflight::{self, Finding, Level, Needs, OtherDaemon, Port, Routing};

use crate::host::{eventually, ip, name, on_a_host, prefix, run, shows};

/// A node that does not have its tunnel device on `eth0` yet.
fn needs() -> Needs {
    Needs {
        families: Family::ALL.into(),
        subnets: Vec::new(),
        networks: vec![prefix("10.244.0.0/16"), prefix("fd00:10:244::/56")],
        underlay: Some(name("eth0")),
        tunnels: vec![name("flannel.1")],
        routing: Routing::Asymmetric,
        nexthops: true,
        ports: vec![Port::Tunnel(8472), Port::Probes(8475)],
        neighbours: Family::ALL.map(|family| (family, 10)).into(),
        pod_mtu: Some(1450),
        forward: Forward::Leave,
    }
}

/// The files of a host whose networkd and udev do not manage tweed's links.
struct Host {
    root: TempDir,
    places: Places,
}

impl Host {
    fn new() -> Self {
        for sysctl in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            set(sysctl, "1");
        }
        for link in ["all", "eth0"] {
            set(&format!("net/ipv4/conf/{link}/rp_filter"), "0");
        }
        let root = tempfile::tempdir().unwrap();
        let host = Self { places: Places::below(root.path()), root };
        host.put("sys/module/vxlan/parameters/udp_port", "0");
        host.put("run/systemd/netif/state", "");
        host.put("run/udev/control", "");
        host.put(&format!("{LIBRARY}257.9-1.so"), "");
        host.put("usr/lib/systemd/network/99-default.link", PERSISTENT);
        for file in [
            "systemd/networkd.conf.d/tweed.conf",
            "systemd/network/10-tweed.network",
            "systemd/network/10-tweed.link",
        ] {
            let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(file);
            host.put(&format!("etc/{file}"), &fs::read_to_string(sample).unwrap());
        }
        host
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn allow(&self, path: &str, mode: u32) {
        let path = self.root.path().join(path);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.root.path().join(path)).unwrap();
    }

    async fn findings(&self) -> Vec<Finding> {
        self.findings_for(&needs()).await
    }

    async fn findings_for(&self, needs: &Needs) -> Vec<Finding> {
        let links = NetlinkKernel::open().unwrap().facts(None).await.unwrap().interfaces;
        preflight::findings(needs, &gather(needs, links, &self.places))
    }

    /// Retries, because a process that another test is starting may briefly hold the same sockets.
    async fn comes_to(&self, claim: impl Fn(&[Finding]) -> bool) {
        let last = RefCell::default();
        let holds = async || {
            let findings = self.findings().await;
            let holds = claim(&findings);
            last.replace(findings);
            holds
        };
        eventually(holds, || format!("{:?}", last.borrow())).await;
    }

    /// The names of the findings, and their subjects.
    async fn found(&self) -> Vec<String> {
        let findings = self.findings().await;
        findings.iter().map(|finding| format!("{} {}", finding.id, finding.place)).collect()
    }
}

const LIBRARY: &str = "usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-";
const PERSISTENT: &str = "[Match]\nOriginalName=*\n[Link]\nMACAddressPolicy=persistent\n";
const DHCP: &str = "[Match]\nName=*\n[Network]\nDHCP=yes\n";
const NOTHING: [&str; 0] = [];

fn set(sysctl: &str, value: &str) {
    fs::write(format!("/proc/sys/{sysctl}"), value).unwrap();
}

/// A process that is killed when this value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts `program`, a copy of `sleep`.
fn sleeper(program: &Path, input: Stdio) -> Running {
    Running(Command::new(program).arg("600").stdin(input).spawn().unwrap())
}

#[test]
fn a_correct_host_has_no_findings() {
    on_a_host(async || assert_eq!(Host::new().found().await, NOTHING));
}

#[test]
fn settings_of_the_kernel_are_found() {
    on_a_host(async || {
        let host = Host::new();
        for (sysctl, flaw, good, finding) in [
            ("net/ipv4/ip_forward", "0", "1", "forwarding-off"),
            ("net/ipv6/conf/all/forwarding", "0", "1", "forwarding-off"),
            ("net/ipv4/conf/eth0/rp_filter", "1", "2", "strict-reverse-path"),
        ] {
            set(sysctl, flaw);
            assert_eq!(host.found().await, [format!("{finding} {sysctl}")]);
            set(sysctl, good);
        }
        assert_eq!(host.found().await, NOTHING);
    });
}

#[test]
fn a_link_without_carrier_is_found() {
    on_a_host(async || {
        let host = Host::new();
        ip("link set eth0 down");
        assert_eq!(host.found().await, ["underlay-down link eth0"]);
    });
}

#[test]
fn cni_configs_and_plugins_are_read_in_the_order_of_runtimes() {
    const FLANNEL: &str = "etc/cni/net.d/10-flannel.conflist";
    on_a_host(async || {
        let mut host = Host::new();
        let sample = include_str!("../../config/cni/10-flannel.conflist");
        host.put(FLANNEL, sample);
        for plugin in ["flannel", "loopback", "portmap"] {
            let file = format!("opt/cni/bin/{plugin}");
            assert!(host.found().await.contains(&format!("cni-plugin-missing /{file}")));
            host.put(&file, "");
            host.allow(&file, 0o755);
        }
        assert_eq!(host.found().await, NOTHING);
        host.allow("opt/cni/bin/portmap", 0o644);
        assert_eq!(host.found().await, ["cni-plugin-missing /opt/cni/bin/portmap"]);
        host.allow("opt/cni/bin/portmap", 0o755);

        // Runtimes read no other endings, and the first of all names.
        for name in ["05-a.conflist.bak", "05-b", "11-c.conf"] {
            host.put(&format!("etc/cni/net.d/{name}"), r#"{"type":"calico"}"#);
        }
        assert_eq!(host.found().await, NOTHING);
        host.put("etc/cni/net.d/05-d.json", r#"{"type":"calico"}"#);
        assert_eq!(host.found().await, ["other-cni-config /etc/cni/net.d/05-d.json"]);
        host.remove("etc/cni/net.d/05-d.json");

        // A folder that the operator names instead.
        host.places.cni_plugins = vec![host.root.path().join("empty")];
        assert_eq!(host.found().await.len(), 3);
        host.places.cni_configs = host.root.path().join("empty");
        assert_eq!(host.found().await, NOTHING);
    });
}

#[test]
fn a_narrow_underlay_is_found() {
    on_a_host(async || {
        let host = Host::new();
        ip("link set eth0 mtu 1400");
        assert_eq!(host.found().await, ["mtu-too-large link eth0"]);
    });
}

#[test]
fn a_pod_mtu_that_is_too_small_is_found() {
    on_a_host(async || {
        let host = Host::new();
        let narrow = Needs { pod_mtu: Some(1270), ..needs() };
        let findings = host.findings_for(&narrow).await;
        assert_eq!(findings.iter().map(|found| found.id).collect::<Vec<_>>(), ["mtu-too-small"]);
    });
}

#[test]
fn a_bridge_created_before_the_mtu_changed_is_found() {
    on_a_host(async || {
        let host = Host::new();
        ip("link add cni0 mtu 1500 type bridge");
        assert_eq!(host.found().await, ["pods-of-another-mtu link cni0"]);
        ip("link set cni0 mtu 1450");
        assert_eq!(host.found().await, NOTHING);
    });
}

#[test]
fn a_port_in_use_by_another_program_is_found() {
    on_a_host(async || {
        let host = Host::new();
        ip("link add other type vxlan id 7 dstport 8472 local 172.16.0.1");
        ip("link set other up");
        assert_eq!(host.found().await, ["port-taken UDP port 8472"]);
        ip("link del other");
        ip("link add flannel.1 type vxlan id 1 dstport 8472 local 172.16.0.1");
        ip("link set flannel.1 mtu 1450 up");
        shows("link show flannel.1", "UP").await;
        set("net/ipv4/conf/flannel.1/rp_filter", "0");
        assert_eq!(host.found().await, NOTHING);

        let socket = UdpSocket::bind("0.0.0.0:8475").unwrap();
        let holder = sleeper(Path::new("sleep"), OwnedFd::from(socket).into());
        let fix = format!("stop sleep (process {})", holder.0.id());
        host.comes_to(|findings| findings.len() == 1 && findings[0].fix.starts_with(&fix)).await;
        drop(holder);
        host.comes_to(<[Finding]>::is_empty).await;
    });
}

#[test]
fn a_drop_of_iptables_is_found_until_it_accepts_pod_packets() {
    const PLACE: &str = "forward-drop chain FORWARD of table ip filter";
    on_a_host(async || {
        let host = Host::new();
        run("iptables-nft -P FORWARD DROP");
        assert_eq!(host.found().await, [PLACE]);
        run("iptables-nft -N PODS");
        run("iptables-nft -A FORWARD -m comment --comment pods -j PODS");
        run("iptables-nft -A PODS -s 10.244.0.0/16 -j ACCEPT");
        let findings = host.findings().await;
        assert_eq!(findings[0].level, Level::Note, "only pods reach pods: {findings:?}");
        run("iptables-nft -A PODS -d 10.244.0.0/16 -j ACCEPT");
        assert_eq!(host.found().await, NOTHING);
        run("iptables-nft -I FORWARD -j REJECT");
        assert_eq!(host.found().await, [PLACE]);
    });
}

#[test]
fn the_policy_of_iptables_is_only_a_note_if_the_daemon_accepts_pod_packets() {
    on_a_host(async || {
        let host = Host::new();
        let needs = Needs { forward: Forward::Accept, ..needs() };
        let level = async || {
            let findings = host.findings_for(&needs).await;
            findings.iter().find(|found| found.id == "forward-drop").map(|found| found.level)
        };
        run("iptables-nft -P FORWARD DROP");
        assert_eq!(level().await, Some(Level::Note));
        // A later rule cannot accept a packet that an earlier rule rejects.
        run("iptables-nft -A FORWARD -j REJECT");
        assert_eq!(level().await, Some(Level::Warning));
    });
}

#[test]
fn the_recommended_command_makes_the_host_accept_pod_packets() {
    on_a_host(async || {
        let host = Host::new();
        // The last rules of firewalld, and rules that match only some packets.
        run("nft add table inet wall");
        run("nft add chain inet wall forward { type filter hook forward priority 10 ; }");
        run("nft add rule inet wall forward ct state established accept");
        run("nft add rule inet wall forward ip saddr 192.168.0.0/16 accept");
        run("nft add rule inet wall forward counter reject with icmpx admin-prohibited");
        let findings = host.findings().await;
        assert_eq!(findings.len(), 2, "one of each family: {findings:?}");
        for finding in findings {
            assert_eq!(finding.id, "forward-drop");
            finding.fix.split(" && ").for_each(|command| drop(run(command)));
        }
        assert_eq!(host.found().await, NOTHING);
    });
}

#[test]
fn unreadable_rules_are_reported() {
    on_a_host(async || {
        let host = Host::new();
        run("iptables-legacy -P FORWARD DROP");
        assert_eq!(host.found().await, ["legacy-iptables table filter of iptables-legacy"]);
    });
}

#[test]
fn chains_of_kube_proxy_require_bridge_netfilter() {
    const SETTING: &str = "net/bridge/bridge-nf-call-iptables";
    on_a_host(async || {
        let host = Host::new();
        run("iptables-nft -t nat -N KUBE-SERVICES");
        // Another test may load the module, with which the setting appears, at any time.
        host.comes_to(|findings| {
            let sees = fs::read_to_string(format!("/proc/sys/{SETTING}")).unwrap_or_default();
            match findings {
                [] => sees.trim() == "1",
                [found] => {
                    let is_it = found.id == "bridge-netfilter-off";
                    is_it && found.place == SETTING && sees.trim() != "1"
                }
                _ => false,
            }
        })
        .await;
    });
}

#[test]
fn networkd_and_udev_without_tweeds_files_are_found() {
    on_a_host(async || {
        let host = Host::new();
        host.put("etc/systemd/network/50-dhcp.network", DHCP);
        assert_eq!(host.found().await, NOTHING);
        host.remove("etc/systemd/networkd.conf.d/tweed.conf");
        let config = "networkd-foreign-routes /etc/systemd/networkd.conf";
        assert_eq!(host.found().await, [config]);
        host.remove("etc/systemd/network/10-tweed.network");
        let managed = "networkd-manages-link /etc/systemd/network/50-dhcp.network";
        assert_eq!(host.found().await, [config, managed, managed], "tunnel and bridge");
        host.put("etc/systemd/network/50-dhcp.network", "");
        host.remove("etc/systemd/network/10-tweed.link");
        let policy = "udev-mac-policy /usr/lib/systemd/network/99-default.link";
        assert_eq!(host.found().await, [config, policy]);
        // Its folder exists on hosts without networkd, too.
        host.remove("run/systemd/netif/state");
        assert_eq!(host.found().await, [policy], "networkd does not run");
        fs::remove_dir_all(host.root.path().join("run")).unwrap();
        assert_eq!(host.found().await, NOTHING, "neither runs");
    });
}

#[test]
fn an_old_networkd_is_found_by_the_name_of_its_library() {
    on_a_host(async || {
        let host = Host::new();
        let old = "networkd-foreign-nexthops /etc/systemd/networkd.conf";
        host.remove(&format!("{LIBRARY}257.9-1.so"));
        assert_eq!(host.found().await, [old], "the version is not known");
        host.put("usr/lib64/systemd/libsystemd-shared-256.so", "");
        assert_eq!(host.found().await, NOTHING);
        host.put(&format!("{LIBRARY}252.so"), "");
        assert_eq!(host.found().await, [old], "the lowest version counts");
        let plain = Needs { nexthops: false, ..needs() };
        assert_eq!(host.findings_for(&plain).await, [], "no route has an object");
    });
}

#[test]
fn a_drop_in_setting_is_used_like_one_of_the_file() {
    on_a_host(async || {
        let host = Host::new();
        host.put("run/systemd/network/05-all.network", DHCP);
        let found = host.found().await;
        assert_eq!(found[0], "networkd-manages-link /run/systemd/network/05-all.network");
        host.put("etc/systemd/network/05-all.network.d/a.conf", "[Match]\nName=\nName=eth*\n");
        assert_eq!(host.found().await, NOTHING);
    });
}

#[test]
fn a_file_overrides_vendor_files_of_the_same_name() {
    on_a_host(async || {
        let host = Host::new();
        host.put("usr/lib/systemd/network/05-all.network", DHCP);
        let found = host.found().await;
        assert_eq!(found[0], "networkd-manages-link /usr/lib/systemd/network/05-all.network");
        host.put("etc/systemd/network/05-all.network", "[Match]\nName=eth*\n");
        assert_eq!(host.found().await, NOTHING);
    });
}

#[test]
fn a_missing_module_is_found_if_modules_are_listed() {
    on_a_host(async || {
        let host = Host::new();
        fs::remove_dir_all(host.root.path().join("sys")).unwrap();
        assert_eq!(host.found().await, NOTHING, "nothing is known");
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let list = format!("lib/modules/{}/modules.dep", release.trim());
        host.put(&list, "kernel/net/bridge/bridge.ko.xz: kernel/net/llc/llc.ko.xz\n");
        assert_eq!(host.found().await, ["vxlan-missing module vxlan"]);
        host.put(&list, "kernel/drivers/net/vxlan/vxlan.ko.xz: kernel/net/ipv4/tunnel.ko.xz\n");
        assert_eq!(host.found().await, NOTHING);
    });
}

#[test]
fn a_small_neighbour_table_is_found_if_its_size_is_readable() {
    on_a_host(async || {
        let mut host = Host::new();
        let proc = host.root.path().join("proc");
        host.put("proc/sys/net/ipv6/neigh/default/gc_thresh3", "128\n");
        host.places.proc = proc;
        let place = "net/ipv6/neigh/default/gc_thresh3";
        assert_eq!(host.found().await, [format!("neighbour-table-small {place}")]);
    });
}

#[test]
fn another_daemon_is_found_only_in_the_same_network_namespace() {
    on_a_host(async || {
        let host = Host::new();
        let program = host.root.path().join("flanneld");
        let sleep = run("which sleep");
        symlink(sleep.trim(), &program).unwrap();
        let elsewhere = {
            let program = program.clone();
            let start = move || {
                unshare(CloneFlags::CLONE_NEWNET).unwrap();
                sleeper(&program, Stdio::null())
            };
            thread::spawn(start).join().unwrap()
        };
        named(&elsewhere).await;
        assert_eq!(host.found().await, NOTHING);

        let here = sleeper(&program, Stdio::null());
        named(&here).await;
        let other_daemons = other_daemons(&host.places);
        assert_eq!(other_daemons, [OtherDaemon::Process(here.0.id())]);
        let findings = host.findings().await;
        assert_eq!((findings[0].id, findings[0].level), ("other-daemon", Level::Fatal));
        assert!(preflight::refusal(&other_daemons).is_some());
    });
}

/// A process has its own name only a moment after it was started.
async fn named(process: &Running) {
    let name = || fs::read_to_string(format!("/proc/{}/comm", process.0.id())).unwrap();
    eventually(async || name() == "flanneld\n", name).await;
}
