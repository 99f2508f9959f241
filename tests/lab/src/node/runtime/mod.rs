//! Container runtimes on a host, which call the CNI plugin for each container.

mod containerd;
mod image;
mod podman;

use std::net::IpAddr;

use anyhow::{Context, Result};

pub use containerd::Containerd;
pub use image::{IMAGE, Image, add_program};
pub use podman::Podman;

use crate::network::address::Family;

/// The body of every container's HTTP responses.
pub const GREETING: &str = "a container of the lab";

/// The command of every container: it serves HTTP on port 80.
const SERVE: [&str; 6] = ["/bin/busybox", "httpd", "-f", "-p80", "-h", "/srv"];

/// The plan of a container.
#[derive(Clone, Copy, Debug)]
pub struct ContainerPlan<'a> {
    pub name: &'a str,
    /// The port of the host that is forwarded to its port 80.
    pub published: Option<u16>,
}

/// A running container, the only one in its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The id that the CNI plugin gets: the pod's, if containers are grouped in pods.
    pub id: String,
    /// The id that commands take.
    main: String,
    pub addresses: Vec<IpAddr>,
}

impl Container {
    pub fn address(&self, family: Family) -> Result<IpAddr> {
        let found = self.addresses.iter().find(|address| Family::of(**address) == family);
        found.copied().with_context(|| format!("{} has no {family:?} address", self.id))
    }
}

/// A container runtime, ready to run containers of the lab's image.
pub trait Runtime {
    /// Starts a container that serves [`GREETING`] by HTTP on port 80, in its own pod.
    fn start(&self, plan: ContainerPlan<'_>) -> Result<Container>;

    /// Runs a program of busybox in the container and returns its output; if it fails, the error
    /// contains the output.
    fn exec(&self, container: &Container, command: &[&str]) -> Result<String>;

    /// Stops the container at once and removes its pod.
    fn remove(&self, container: &Container) -> Result<()>;
}

fn parse(addresses: &str) -> Result<Vec<IpAddr>> {
    let parse = |word: &str| word.parse().with_context(|| word.to_owned());
    addresses.split_whitespace().map(parse).collect()
}
