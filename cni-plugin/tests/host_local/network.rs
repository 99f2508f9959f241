//! A network with its own store, and the two programs that use it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tweed_cni::host_local::{self, Config};
use tweed_cni::protocol::request::Attachment;
use tweed_cni::protocol::result::AddResult;
use tweed_netlink::rtnl::route::Route;

/// Debian's program, of the package containernetworking-plugins.
const HOST_LOCAL: &str = "/usr/lib/cni/host-local";

pub(crate) struct Network {
    pub(crate) home: TempDir,
    pub(crate) config: Value,
}

/// The answer to an ADD: the result of CNI 1.0.0, or the text of the error.
pub(crate) type Answer = Result<Value, String>;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Program {
    Go,
    Ours,
}

pub(crate) const BOTH: [Program; 2] = [Program::Go, Program::Ours];

impl Network {
    pub(crate) fn with(ipam: &Value) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut ipam = ipam.clone();
        ipam["type"] = json!("host-local");
        ipam["dataDir"] = json!(home.path().join("networks"));
        let config = json!({"cniVersion": "1.0.0", "name": "cbr0", "type": "bridge", "ipam": ipam});
        Self { home, config }
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.home.path().join("networks/cbr0")
    }

    pub(crate) fn parse(&self) -> Result<Config, String> {
        let mut config = Config::parse(self.config.as_object().unwrap(), None)
            .map_err(|error| error.to_string())?;
        config.location.results = self.home.path().join("results");
        Ok(config)
    }

    pub(crate) fn add(&self, program: Program, container: &str, interface: &str) -> Answer {
        let attachment = attachment(container, interface);
        match program {
            Program::Go => self.run("ADD", &attachment),
            Program::Ours => {
                host_local::allocate(&self.parse()?, &attachment, || Ok(None), |_| Ok(()))
                    .map(|allocation| result(&allocation))
                    .map_err(|error| error.to_string())
            }
        }
    }

    pub(crate) fn del(&self, program: Program, container: &str, interface: &str) {
        let attachment = attachment(container, interface);
        match program {
            Program::Go => drop(self.run("DEL", &attachment).unwrap()),
            Program::Ours => {
                host_local::release(&self.parse().unwrap().location, &attachment, None).unwrap();
            }
        }
    }

    pub(crate) fn check(&self, program: Program, container: &str, interface: &str) -> bool {
        let attachment = attachment(container, interface);
        match program {
            Program::Go => self.run("CHECK", &attachment).is_ok(),
            Program::Ours => {
                host_local::check(&self.parse().unwrap().location, &attachment).is_ok()
            }
        }
    }

    /// Frees all addresses that none of `containers` holds.
    pub(crate) fn collect(&self, containers: &[String]) {
        let valid: Vec<_> = containers.iter().map(|id| attachment(id, "eth0")).collect();
        drop(host_local::collect(&self.parse().unwrap().location, &valid).unwrap());
    }

    fn run(&self, command: &str, attachment: &Attachment) -> Answer {
        let mut running = Command::new(HOST_LOCAL)
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &attachment.container_id)
            .env("CNI_IFNAME", &attachment.interface)
            .env("CNI_NETNS", "/run/netns/none")
            .env("CNI_PATH", Path::new(HOST_LOCAL).parent().unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let config = self.config.to_string();
        running.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
        let output = running.wait_with_output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if output.status.success() {
            Ok(answer)
        } else {
            Err(answer["msg"].as_str().unwrap().into())
        }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory()).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Every file with its content; no process may change them meanwhile.
    pub(crate) fn files(&self) -> BTreeMap<String, String> {
        let read = |name: String| {
            let text = fs::read_to_string(self.directory().join(&name)).unwrap();
            (name, text)
        };
        self.names().into_iter().map(read).collect()
    }

    /// Every reserved address with its holder.
    pub(crate) fn held(&self) -> BTreeMap<IpAddr, String> {
        let files = self.files().into_iter();
        files.filter_map(|(name, owner)| Some((name.parse().ok()?, owner))).collect()
    }
}

pub(crate) fn attachment(container: &str, interface: &str) -> Attachment {
    Attachment { container_id: container.into(), interface: interface.into() }
}

/// The result in the form of host-local.
fn result(allocation: &AddResult) -> Value {
    let ips: Vec<_> = allocation
        .addresses
        .iter()
        .map(|one| json!({"address": one.address.to_string(), "gateway": one.gateway.unwrap()}))
        .collect();
    let mut result = json!({"cniVersion": "1.0.0", "ips": ips});
    let route = |route: &Route| match route.gateway {
        Some(gateway) => json!({"dst": route.destination.to_string(), "gw": gateway}),
        None => json!({"dst": route.destination.to_string()}),
    };
    let routes: Vec<_> = allocation.routes.iter().map(route).collect();
    if !routes.is_empty() {
        result["routes"] = routes.into();
    }
    let dns = &allocation.dns;
    let mut fields = serde_json::Map::new();
    for (key, list) in
        [("nameservers", &dns.nameservers), ("search", &dns.search), ("options", &dns.options)]
    {
        if !list.is_empty() {
            fields.insert(key.into(), json!(list));
        }
    }
    if !dns.domain.is_empty() {
        fields.insert("domain".into(), json!(dns.domain));
    }
    result["dns"] = fields.into();
    result
}
