//! containerd, called as a kubelet calls it.

mod cri;
mod message;

use anyhow::{Context, Result, ensure};

use self::cri::Cri;
use self::message::{
    ContainerConfig, ContainerMetadata, Image, PodConfig, PodMetadata, PortMapping,
};
use super::{Container, ContainerPlan, Runtime, SERVE, image, parse};
use crate::node::host::Host;
use crate::process::{Process, install};
use crate::wait::{PATIENCE, eventually};

const SOCKET: &str = "/run/containerd/containerd.sock";
const CONFIG: &str = "/run/containerd.toml";
const CRUN: &str = "/opt/crun";

/// containerd with its CRI plugin, on a host where the CNI plugin is installed.
#[derive(Debug)]
pub struct Containerd {
    process: Process,
    cri: Cri,
}

impl Containerd {
    pub fn on(host: &Host) -> Result<Self> {
        // A host has no control groups, and containerd has no flag that passes this to crun.
        let crun = "#!/bin/sh\nexec crun --cgroup-manager=disabled \"$@\"\n";
        install(crun, &host.path(CRUN))?;
        std::fs::write(host.path(CONFIG), config())?;
        let process = host.start("containerd", &["--config", CONFIG])?;
        let containerd = Self { process, cri: Cri::new(&host.path(SOCKET))? };
        containerd.wait_ready(host)?;
        Ok(containerd)
    }

    fn wait_ready(&self, host: &Host) -> Result<()> {
        let words =
            || format!("containerd is not ready, its last words:\n{}", self.process.last_words());
        eventually(PATIENCE, || self.cri.version()).with_context(words)?;
        let archive = image::write_on(host)?;
        host.run("ctr", &["--namespace=k8s.io", "images", "import", archive])?;
        // The CRI plugin is notified a moment later; until then it would pull from the registry.
        eventually(PATIENCE, || self.cri.has_image(image::IMAGE)).with_context(words)?;
        Ok(())
    }
}

impl Runtime for Containerd {
    fn start(&self, plan: ContainerPlan<'_>) -> Result<Container> {
        let pod = pod(plan);
        let id = self.cri.run_pod(pod.clone())?;
        let addresses = parse(&self.cri.addresses(&id)?);
        let addresses = addresses.with_context(|| format!("the addresses of {id}"))?;
        let main = self.cri.start_container(&id, server(), pod)?;
        Ok(Container { id, main, addresses })
    }

    fn exec(&self, container: &Container, command: &[&str]) -> Result<String> {
        let ended = self.cri.exec(&container.main, &[&["/bin/busybox"], command].concat())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let (stdout, stderr) = (text(&ended.stdout), text(&ended.stderr));
        ensure!(ended.exit_code == 0, "{command:?}: {}: {stdout} {stderr}", ended.exit_code);
        Ok(stdout)
    }

    fn remove(&self, container: &Container) -> Result<()> {
        let stopped = self.cri.stop_pod(&container.id);
        let removed = stopped.and_then(|()| self.cri.remove_pod(&container.id));
        removed.with_context(|| format!("containerd's last words:\n{}", self.process.last_words()))
    }
}

/// Paths are containerd's defaults, except for images and crun.
fn config() -> String {
    let cri = r#"plugins."io.containerd.grpc.v1.cri""#;
    format!(
        r#"
        version = 2
        [{cri}]
        sandbox_image = "{image}"
        disable_cgroup = true
        restrict_oom_score_adj = true
        [{cri}.containerd]
        snapshotter = "native"
        [{cri}.containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        [{cri}.containerd.runtimes.runc.options]
        BinaryName = "{CRUN}"
        "#,
        image = image::IMAGE,
    )
}

fn pod(plan: ContainerPlan<'_>) -> PodConfig {
    let name = plan.name.to_owned();
    let mapping = |port| PortMapping { container_port: 80, host_port: i32::from(port) };
    PodConfig {
        hostname: name.clone(),
        metadata: Some(PodMetadata { uid: name.clone(), name, namespace: "default".to_owned() }),
        port_mappings: plan.published.map(mapping).into_iter().collect(),
    }
}

fn server() -> ContainerConfig {
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: "server".to_owned() }),
        image: Some(Image { name: image::IMAGE.to_owned() }),
        command: SERVE.map(str::to_owned).to_vec(),
    }
}
