//! What runs containers on a host, and calls the CNI plugin for each.

mod containerd;
mod image;
mod podman;

use std::net::IpAddr;

use anyhow::{Context, Result};

pub use containerd::Containerd;
pub use podman::Podman;

use crate::network::address::Family;

/// What every container answers over HTTP.
pub const GREETING: &str = "a container of the lab";

/// What every container does: it answers HTTP on port 80.
const SERVE: [&str; 6] = ["/bin/busybox", "httpd", "-f", "-p80", "-h", "/srv"];

/// What a container shall be like.
#[derive(Clone, Copy, Debug)]
pub struct ContainerPlan<'a> {
    pub name: &'a str,
    /// The port of the host that leads to its port 80.
    pub published: Option<u16>,
}

/// A container that runs, alone in its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// As the CNI plugin is told it: where containers are grouped in pods, the pod's.
    pub id: String,
    /// As commands are told it.
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
    /// Starts a container that answers HTTP on port 80 with [`GREETING`], in a pod of its own.
    fn start(&self, plan: ContainerPlan<'_>) -> Result<Container>;

    /// Runs a program of busybox in the container and returns what it prints; a failing one is an error
    /// that quotes it.
    fn exec(&self, container: &Container, command: &[&str]) -> Result<String>;

    /// Ends the container at once and takes its pod away.
    fn remove(&self, container: &Container) -> Result<()>;
}

fn parse(addresses: &str) -> Result<Vec<IpAddr>> {
    let parse = |word: &str| word.parse().with_context(|| word.to_owned());
    addresses.split_whitespace().map(parse).collect()
}
