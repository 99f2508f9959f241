//! A machine of the cluster: containerd, a kubelet and kube-proxy.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;
use tweed_lab::{Containerd, Host, Node, Pod, Process};

use super::cluster::{Cluster, dns, pods, text};
use super::images;

pub(super) struct Machine {
    host: Host,
    kubelet: Process,
}

impl Machine {
    pub(super) fn start(cluster: &Cluster, node: &Node) -> Result<Self> {
        let host = Host::boot_for_kubelet(node)?;
        let kubelet = start_all(cluster, &host)?;
        Ok(Self { host, kubelet })
    }

    pub(super) fn name(&self) -> &str {
        self.node().name()
    }

    pub(super) fn node(&self) -> &Node {
        self.host.node()
    }

    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    /// The pods with these addresses.
    pub(super) fn pods(&self, addresses: &[IpAddr]) -> Result<Vec<Pod>> {
        let mut pods = self.host.pods()?;
        let is_wanted =
            |pod: &Pod, family| pod.address(family).is_ok_and(|it| addresses.contains(&it));
        pods.retain(|pod| pod.families().into_iter().any(|family| is_wanted(pod, family)));
        ensure!(pods.len() == addresses.len(), "not all of {addresses:?} are on {}", self.name());
        Ok(pods)
    }

    pub(super) fn import(&self, image: &Path) -> Result<()> {
        import(&self.host, image)
    }

    pub(super) fn restart_kubelet(&mut self, cluster: &Cluster) -> Result<()> {
        self.kubelet.kill()?;
        self.kubelet = start_kubelet(cluster, &self.host)?;
        Ok(())
    }

    /// Everything ends, in memory and in the kernel; the disk stays.
    pub(super) fn cut_power(&mut self) -> Result<()> {
        self.host.cut_power()?;
        let namespace = self.node().namespace();
        namespace.run("nft", &["flush", "ruleset"])?;
        namespace.ip("nexthop flush")?;
        for link in namespace.ip_json::<serde_json::Value>("link show")? {
            let name = text(&link, "/ifname");
            if !["lo", "eth0", "mgmt0"].contains(&name) {
                // One end of a pair takes the other along.
                let _ = namespace.ip(&format!("link delete {name}"));
            }
        }
        Ok(())
    }

    pub(super) fn boot(&mut self, cluster: &Cluster) -> Result<()> {
        self.kubelet = start_all(cluster, &self.host)?;
        Ok(())
    }
}

/// Starts what runs on a machine; returns the kubelet.
fn start_all(cluster: &Cluster, host: &Host) -> Result<Process> {
    Containerd::on(host)?;
    for image in cluster.images() {
        import(host, image)?;
    }
    host.run(
        "ctr",
        &["--namespace=k8s.io", "images", "tag", "--force", images::TWEED, images::PUSHED],
    )?;
    // Plugins of Debian that the config of pods names.
    host.run("sh", &["-c", "ln -sf /usr/lib/cni/* /opt/cni/bin/"])?;
    start_proxy(cluster, host)?;
    start_kubelet(cluster, host)
}

fn import(host: &Host, image: &Path) -> Result<()> {
    std::fs::copy(image, host.path("/run/image.tar"))?;
    host.run("ctr", &["--namespace=k8s.io", "images", "import", "/run/image.tar"]).map(drop)
}

fn start_kubelet(cluster: &Cluster, host: &Host) -> Result<Process> {
    let name = host.node().name();
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        // Machines share the control groups of one.
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": false,
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": false,
        "clusterDNS": dns(cluster.stack).split(',').collect::<Vec<_>>(),
        "clusterDomain": "cluster.local",
        // No name is resolved outside the cluster.
        "resolvConf": "",
        "volumePluginDir": "/var/lib/kubelet/plugins",
        // How soon pods see an edited ConfigMap.
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "5s",
        "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "maxPods": 110,
    });
    std::fs::write(host.path("/run/kubelet.json"), config.to_string())?;
    std::fs::write(host.path("/run/kubelet.kubeconfig"), cluster.kubeconfig(name)?)?;
    let addresses = cluster.stack.families().iter().map(|family| host.node().address(*family));
    let addresses = addresses.map(|it| Ok(it?.to_string())).collect::<Result<Vec<_>>>()?;
    host.start_as(
        "kubelet",
        &cluster.kubernetes.display().to_string(),
        &[
            "kubelet",
            "--config=/run/kubelet.json",
            "--kubeconfig=/run/kubelet.kubeconfig",
            &format!("--hostname-override={name}"),
            &format!("--node-ip={}", addresses.join(",")),
        ],
    )
}

fn start_proxy(cluster: &Cluster, host: &Host) -> Result<Process> {
    std::fs::write(host.path("/run/proxy.kubeconfig"), cluster.kubeconfig("proxy")?)?;
    host.start_as(
        "kube-proxy",
        &cluster.kubernetes.display().to_string(),
        &[
            "kube-proxy",
            "--proxy-mode=nftables",
            "--kubeconfig=/run/proxy.kubeconfig",
            &format!("--hostname-override={}", host.node().name()),
            &format!("--cluster-cidr={}", pods(cluster.stack)),
            // These are parameters of the whole machine.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ],
    )
}
