//! A node for CNI plugins: namespaces of its own, a subnet.env, and calls as a runtime makes them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(dead_code, reason = "each test binary uses a part")]

mod answer;
mod call;
mod disk;
pub(crate) mod kernel;

pub(crate) use answer::Answer;
pub(crate) use call::{Call, Plugin};
pub(crate) use disk::Disk;

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tweed_lab::Namespace;

/// Longer than any step takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The folder of Debian's CNI plugins.
pub(crate) const PLUGINS: &str = "/usr/lib/cni";

/// One family, masqueraded by the daemon, as on most nodes.
pub(crate) const IPV4: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\n\
                        FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

/// Both families, masqueraded by the daemon.
pub(crate) const DUAL: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\n\
                        FLANNEL_IPV6_NETWORK=fd00:10:244::/48\n\
                        FLANNEL_IPV6_SUBNET=fd00:10:244:7::1/64\n\
                        FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

/// A host's network namespace and the files that plugins keep on it.
pub(crate) struct Node {
    pub(crate) home: TempDir,
    namespace: Namespace,
    pods: Cell<u32>,
}

/// A container's network namespace.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) id: String,
    namespace: Namespace,
}

impl Node {
    /// Its subnet.env contains `env`.
    pub(crate) fn new(env: &str) -> Self {
        static NODES: AtomicU32 = AtomicU32::new(0);
        let number = NODES.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace::create(&format!("node{number}")).unwrap();
        let node = Self { home: tempfile::tempdir().unwrap(), namespace, pods: Cell::new(0) };
        node.write_subnet_env(env);
        node
    }

    /// Replaces the file in one step, as the daemon does: a plugin may be waiting for it.
    pub(crate) fn write_subnet_env(&self, env: &str) {
        let new = self.home.path().join("subnet.env.new");
        fs::write(&new, env).unwrap();
        fs::rename(new, self.subnet_file()).unwrap();
    }

    pub(crate) fn subnet_file(&self) -> PathBuf {
        self.home.path().join("subnet.env")
    }

    /// A new container without interfaces.
    pub(crate) fn pod(&self) -> Pod {
        let number = self.pods.get();
        self.pods.set(number + 1);
        let namespace = Namespace::create(&format!("{}pod{number}", self.netns())).unwrap();
        // As long as the ids of containerd.
        let id = format!("{:0>64}", format!("{}c{number}", self.netns()));
        Pod { id, namespace }
    }

    /// kube-flannel's config, with the directories of this node.
    pub(crate) fn config(&self, version: &str) -> Value {
        json!({
            "cniVersion": version,
            "name": "cbr0",
            "type": "flannel",
            "subnetFile": self.subnet_file(),
            "dataDir": self.state_dir(),
            "ipam": { "dataDir": self.home.path().join("networks") },
            "delegate": { "hairpinMode": true, "isDefaultGateway": true },
        })
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.home.path().join("flannel")
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.home.path().join("networks/cbr0")
    }

    /// The names of the records of attachments.
    pub(crate) fn states(&self) -> Vec<String> {
        files_in(&self.state_dir()).into_iter().filter(|name| name != ".lock").collect()
    }

    /// The reserved addresses, each with its owner.
    pub(crate) fn reservations(&self) -> Vec<(String, String)> {
        let is_record = |name: &String| name != "lock" && !name.starts_with("last_reserved_ip.");
        files_in(&self.store())
            .into_iter()
            .filter(is_record)
            .map(|name| (name.clone(), fs::read_to_string(self.store().join(name)).unwrap()))
            .collect()
    }

    pub(crate) fn netns(&self) -> &str {
        self.namespace.name()
    }

    /// A call as containerd makes it, of tweed's plugin by default. A GC keeps what was written within
    /// its own tick of the clock, so it begins in the next one.
    pub(crate) fn call(&self, command: &str, pod: &Pod, config: &Value) -> Call<'_> {
        if command == "GC" {
            let before = write_time();
            while write_time() == before {}
        }
        Call::new(self, command, pod, config)
    }

    pub(crate) fn add(&self, pod: &Pod, config: &Value) -> Answer {
        self.call("ADD", pod, config).run()
    }

    pub(crate) fn del(&self, pod: &Pod, config: &Value) -> Answer {
        self.call("DEL", pod, config).run()
    }
}

/// An ADD of Debian's bridge, by `call`. It gives up if the kernel has not noted the carrier of a
/// port within 2.5 s, or if addresses are tentative for 10 s, as on a busy machine: then it is
/// called again, with the counters of the store as before.
pub(crate) fn patiently(node: &Node, call: impl Fn(&str) -> Answer) -> Answer {
    let counters = || -> Vec<PathBuf> {
        let names = files_in(&node.store()).into_iter();
        let names = names.filter(|name| name.starts_with("last_reserved_ip."));
        names.map(|name| node.store().join(name)).collect()
    };
    let read = |path: PathBuf| (path.clone(), fs::read(path).unwrap());
    let before: Vec<(PathBuf, Vec<u8>)> = counters().into_iter().map(read).collect();
    let is_late = |answer: &Answer| {
        let late = ["bridge port in error state", "still has tentative addresses"];
        late.iter().any(|words| answer.stdout.contains(words))
    };
    let mut answer = call("ADD");
    for _ in 0..20 {
        if !is_late(&answer) {
            break;
        }
        let _ = call("DEL");
        for path in counters() {
            fs::remove_file(path).unwrap();
        }
        for (path, text) in &before {
            fs::write(path, text).unwrap();
        }
        answer = call("ADD");
    }
    answer
}

/// The time of a file that is written now. Such times advance in steps.
pub(crate) fn write_time() -> (i64, i64) {
    change_time(tempfile::NamedTempFile::new().unwrap().path())
}

/// The time of the last change of a file.
pub(crate) fn change_time(path: &Path) -> (i64, i64) {
    let metadata = path.metadata().unwrap();
    (metadata.ctime(), metadata.ctime_nsec())
}

impl Drop for Node {
    fn drop(&mut self) {
        let pods = (0..self.pods.get()).map(|number| format!("{}pod{number}", self.netns()));
        for netns in pods.chain([self.netns().to_owned()]) {
            let _ = Command::new("ip").args(["netns", "del", &netns]).output();
        }
    }
}

impl Pod {
    pub(crate) fn netns(&self) -> &str {
        self.namespace.name()
    }

    /// The path of the namespace, as a runtime passes it.
    pub(crate) fn path(&self) -> String {
        format!("/run/netns/{}", self.netns())
    }

    /// Removes the namespace, as a crash of the runtime does.
    pub(crate) fn lose_netns(&self) {
        self.namespace.delete().unwrap();
    }
}

/// The sorted names of files; none if there is no such directory.
pub(crate) fn files_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
