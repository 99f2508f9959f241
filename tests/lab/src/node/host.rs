//! A node as a separate machine: its files, processes and mounts are invisible to other nodes.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::network::pod::Pod;
use crate::node::Node;
use crate::process::Process;
use crate::wait::{PATIENCE, eventually};

/// Gives a host its own `/run`. `$0` is an empty folder, `$1` the node's.
const RUN: &str = r#"
    mount -t tmpfs tmpfs "$0"
    mkdir "$0/flannel" "$0/lock" "$0/netns"
    mount --bind "$1" "$0/flannel"
    mount --no-mtab --move "$0" /run
"#;

/// The remaining script of a host's first process. `$2` is empty, or one more folder to hide.
const BOOT: &str = r#"
    for place in /var/lib /var/log /opt /etc/cni /dev/shm $2; do mount -t tmpfs tmpfs "$place"; done
    mkdir -p /etc/cni/net.d /opt/cni/bin /opt/booted
    while sleep infinity & wait; do :; done
"#;

const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// What a host with a kubelet needs. crun refuses to run next to both versions of control groups, and
/// a kubelet writes these parameters of the whole machine, unless they have its values.
const FOR_KUBELET: &str = r#"
    ! mountpoint --quiet /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
    mkdir /run/tunables
    for tunable in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
        kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000
    do
        file=/run/tunables/$(basename "${tunable%=*}")
        echo "${tunable#*=}" >"$file"
        mount --bind "$file" "/proc/sys/${tunable%=*}"
    done
"#;

/// Kills all but the first process and itself.
const POWER_CUT: &str = r"
    kill -KILL -1 || true
    find /dev/shm -mindepth 1 -delete
    umount --no-mtab --recursive --lazy /run
    findmnt --raw --noheadings --output TARGET --submounts /var/lib | sed 1d | tac |
        xargs --no-run-if-empty umount --no-mtab --lazy
";

/// Makes the host report another boot; its uptime does not advance.
const ANOTHER_BOOT: &str = r"
    cat /proc/sys/kernel/random/uuid >/run/boot_id
    mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
    echo 0.01 0.01 >/run/uptime
    mount --bind /run/uptime /proc/uptime
";

/// A node as a machine, with the usual paths of runtimes and plugins.
///
/// `/run`, `/var/lib`, `/var/log`, `/opt` and `/etc/cni` are its own and empty, except for
/// `/run/flannel`, which is the folder of the node. All its processes end with the lab.
#[derive(Clone, Debug)]
pub struct Host {
    node: Node,
    first: Process,
}

impl Host {
    /// There are no control groups: hosts would share them, and those that a killed runtime leaves
    /// would outlive the lab.
    pub fn boot(node: &Node) -> Result<Self> {
        Self::boot_without(node, CONTROL_GROUPS)
    }

    /// A host whose kubelet sees the machine's control groups, but may not tune its kernel.
    pub fn boot_for_kubelet(node: &Node) -> Result<Self> {
        let host = Self::boot_without(node, "")?;
        host.run("sh", &["-euc", FOR_KUBELET])?;
        Ok(host)
    }

    fn boot_without(node: &Node, hidden: &str) -> Result<Self> {
        let place = place(node);
        std::fs::create_dir(&place).with_context(|| place.display().to_string())?;
        let apart = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let mut command = Command::new("unshare");
        command.args(apart).args(["sh", "-euc", &[RUN, BOOT].concat()]).args([
            place,
            node.folder(),
            hidden.into(),
        ]);
        let name = format!("{}-host", node.name());
        let first = node.world().start(&mut command, node.namespace(), &name)?;
        let host = Self { node: node.clone(), first };
        eventually(PATIENCE, || host.path("/opt/booted").exists())
            .with_context(|| format!("booting {}: {}", node.name(), host.first.last_words()))?;
        Ok(host)
    }

    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The path, outside the host, of its file `path`, which is absolute.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.first.pid()))
    }

    /// The names in a folder of the host, sorted; none if the folder does not exist.
    pub fn list(&self, folder: &str) -> Result<Vec<String>> {
        let Ok(entries) = std::fs::read_dir(self.path(folder)) else { return Ok(Vec::new()) };
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            Ok(entry?.file_name().to_string_lossy().into_owned())
        };
        let mut names = entries.map(name).collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    /// Runs a program on the host to its end and returns its output; if it fails, the error
    /// contains the output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let [mount, pid] = self.inside();
        let arguments = [&[mount.as_str(), &pid, program], arguments].concat();
        self.node.namespace().run("nsenter", &arguments)
    }

    /// Kills every process, removes their mounts, and empties `/run` except for the node's folder;
    /// then the host boots again.
    pub fn cut_power(&self) -> Result<()> {
        let (place, folder) = (place(&self.node), self.node.folder());
        let (place, folder) = (place.display().to_string(), folder.display().to_string());
        self.run("sh", &["-euc", &[POWER_CUT, RUN, ANOTHER_BOOT].concat(), &place, &folder])
            .map(drop)
    }

    /// Installs the CNI plugin `flannel` and its config where runtimes look for them, and links the
    /// Debian plugins that it needs.
    pub fn install_plugin(&self, flannel: &Path, config: &Path) -> Result<()> {
        let (flannel, config) = (flannel.display().to_string(), config.display().to_string());
        self.run(&flannel, &["install", "/opt/cni/bin"])?;
        for plugin in ["portmap", "loopback"] {
            self.run("ln", &["-s", &format!("/usr/lib/cni/{plugin}"), "/opt/cni/bin/"])?;
        }
        let target = "/etc/cni/net.d/10-flannel.conflist";
        self.run(&flannel, &["install-conf", &config, target]).map(drop)
    }

    /// Starts a program in the background.
    pub fn start(&self, program: &str, arguments: &[&str]) -> Result<Process> {
        self.start_as(program, program, arguments)
    }

    /// Like [`start`](Self::start); the output goes to a log with this name.
    pub fn start_as(&self, name: &str, program: &str, arguments: &[&str]) -> Result<Process> {
        let mut command = Command::new("nsenter");
        // nsenter stays its parent, and may be killed.
        command.args(self.inside()).args(["setpriv", "--pdeathsig", "KILL", program]);
        command.args(arguments);
        let name = format!("{}-{name}", self.node.name());
        self.node.world().start(&mut command, self.node.namespace(), &name)
    }

    /// Handles to the pods that a runtime runs on this host.
    pub fn pods(&self) -> Result<Vec<Pod>> {
        let names = self.list("/run/netns")?;
        let adopt = |name: &String| {
            adopt(&self.node, &self.path(&format!("/run/netns/{name}")), name).transpose()
        };
        names.iter().filter_map(adopt).collect()
    }

    /// Arguments of `nsenter`; the caller selects the network.
    fn inside(&self) -> [String; 2] {
        let place = format!("/proc/{}/ns", self.first.pid());
        [format!("--mount={place}/mnt"), format!("--pid={place}/pid_for_children")]
    }
}

/// The pod with this network namespace; none if no process runs there.
fn adopt(node: &Node, namespace: &Path, name: &str) -> Result<Option<Pod>> {
    let label = format!("{}-{name}", node.name());
    let world = node.world();
    if let Some(pod) = world.pods().into_iter().find(|pod| pod.label() == label) {
        return Ok(Some(pod));
    }
    let inode = std::fs::metadata(namespace)?.ino();
    let is_there = |process: &PathBuf| {
        std::fs::metadata(process.join("ns/net")).is_ok_and(|its| its.ino() == inode)
    };
    let processes = std::fs::read_dir("/proc")?.filter_map(|entry| Some(entry.ok()?.path()));
    let Some(process) = processes.into_iter().find(is_there) else { return Ok(None) };
    let pid = process.file_name().unwrap_or_default().to_string_lossy();
    let namespace = world.attach(&label, &pid)?;
    let addresses = namespace.addresses("eth0")?;
    let addresses = addresses.into_iter().filter(|it| it.scope == "global").map(|it| it.address);
    let pod = Pod::adopted(node.name(), &label, namespace, addresses.collect());
    world.add_pod(&pod);
    Ok(Some(pod))
}

/// The source of the node's `/run`.
fn place(node: &Node) -> PathBuf {
    node.folder().with_extension("run")
}
