//! podman, which runs the CNI plugins itself.

use anyhow::{Context, Result, ensure};

use super::{Container, ContainerPlan, Runtime, SERVE, image};
use crate::host::Host;

const NETWORK: &str = "cbr0";

/// podman with its CNI backend, on a host where the plugin is installed.
#[derive(Debug)]
pub struct Podman {
    host: Host,
}

impl Podman {
    pub fn on(host: &Host) -> Result<Self> {
        let podman = Self { host: host.clone() };
        let backend = podman.call(&["info", "--format={{.Host.NetworkBackend}}"])?;
        ensure!(backend == "cni", "podman was built without CNI, or is told to use {backend}");
        let archive = image::write_on(host)?;
        podman.call(&["load", "--quiet", "--input", archive])?;
        Ok(podman)
    }

    fn call(&self, arguments: &[&str]) -> Result<String> {
        Ok(self.host.run("podman", arguments)?.trim().to_owned())
    }
}

impl Runtime for Podman {
    fn start(&self, plan: ContainerPlan<'_>) -> Result<Container> {
        let (name, network) = (format!("--name={}", plan.name), format!("--network={NETWORK}"));
        let published = plan.published.map(|port| format!("--publish={port}:80"));
        // As other runtimes let containers ping.
        let mut arguments = vec!["run", "--detach", "--cgroups=disabled", "--cap-add=net_raw"];
        arguments.extend([name.as_str(), &network]);
        arguments.extend(published.as_deref());
        arguments.push(image::NAME);
        let id = self.call(&[&arguments[..], &SERVE].concat())?;
        let format = format!("--format={{{{.NetworkSettings.Networks.{NETWORK}.IPAddress}}}}");
        let address = self.call(&["inspect", &format, &id])?;
        let address =
            address.parse().with_context(|| format!("the address {address:?} of {id}"))?;
        Ok(Container { main: id.clone(), id, address })
    }

    fn exec(&self, container: &Container, command: &[&str]) -> Result<String> {
        self.call(&[&["exec", &container.main, "/bin/busybox"], command].concat())
    }

    fn remove(&self, container: &Container) -> Result<()> {
        self.call(&["rm", "--force", "--time=0", &container.main]).map(drop)
    }
}
