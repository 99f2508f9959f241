//! podman, which runs the CNI plugins itself.

use anyhow::{Context, Result, ensure};

use super::{Container, ContainerPlan, Runtime, SERVE, image, parse};
use crate::node::host::Host;
use crate::wait::{PATIENCE, eventually};

const ADDRESSES: &str =
    "--format={{with .NetworkSettings.Networks.cbr0}}{{.IPAddress}} {{.GlobalIPv6Address}}{{end}}";

/// podman with its CNI backend, on a host where the plugin is installed.
#[derive(Debug)]
pub struct Podman {
    host: Host,
}

impl Podman {
    pub fn on(host: &Host) -> Result<Self> {
        let podman = Self { host: host.clone() };
        let backend = podman.call(&["info", "--format={{.Host.NetworkBackend}}"])?;
        ensure!(
            backend == "cni",
            "podman was built without CNI, or is configured to use {backend}"
        );
        let archive = image::write_on(host)?;
        podman.call(&["load", "--quiet", "--input", archive])?;
        Ok(podman)
    }

    /// Starts an exited container again; its addresses change.
    pub fn start_again(&self, container: &Container) -> Result<Container> {
        self.call(&["start", &container.main])?;
        self.describe(container.id.clone())
    }

    fn describe(&self, id: String) -> Result<Container> {
        let addresses = self.call(&["inspect", ADDRESSES, &id])?;
        let addresses = parse(&addresses).with_context(|| format!("the addresses of {id}"))?;
        Ok(Container { main: id.clone(), id, addresses })
    }

    fn call(&self, arguments: &[&str]) -> Result<String> {
        Ok(self.host.run("podman", arguments)?.trim().to_owned())
    }
}

impl Runtime for Podman {
    fn start(&self, plan: ContainerPlan<'_>) -> Result<Container> {
        let name = format!("--name={}", plan.name);
        let published = plan.published.map(|port| format!("--publish={port}:80"));
        // As other runtimes let containers ping.
        let mut arguments = vec!["run", "--detach", "--cgroups=disabled", "--cap-add=net_raw"];
        arguments.extend(["--network=cbr0", &name]);
        arguments.extend(published.as_deref());
        arguments.push(image::IMAGE);
        self.describe(self.call(&[&arguments[..], &SERVE].concat())?)
    }

    fn exec(&self, container: &Container, command: &[&str]) -> Result<String> {
        self.call(&[&["exec", &container.main, "/bin/busybox"], command].concat())
    }

    fn remove(&self, container: &Container) -> Result<()> {
        // It waits for 5 s until the killed process is gone; a busy machine takes longer.
        let words = ["rm", "--force", "--ignore", "--time=0", &container.main];
        eventually(PATIENCE, || self.call(&words).map(drop)).map(drop)
    }
}
