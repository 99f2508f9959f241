//! Masquerading by iptables, as the CNI plugins do it that know nothing else.

mod script;

use std::io::{self, Write};
use std::process::{Command, Stdio};

use ipnetwork::IpNetwork;

use super::names;
use crate::bridge::identity::Identity;
use crate::excerpt;
use crate::protocol::error::Error;
use crate::protocol::request::Attachment;

/// One of the two families of programs.
#[derive(Clone, Copy)]
struct Family {
    is_ipv4: bool,
    program: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family { is_ipv4: true, program: "iptables" },
    Family { is_ipv4: false, program: "ip6tables" },
];

pub(super) fn ensure(identity: &Identity, addresses: &[IpNetwork]) -> Result<(), Error> {
    let chain = names::chain(identity);
    let comment = names::iptables_comment(&identity.network, &identity.attachment.container_id);
    for family in FAMILIES {
        let of_family: Vec<_> =
            addresses.iter().copied().filter(|one| one.is_ipv4() == family.is_ipv4).collect();
        if !of_family.is_empty() {
            let script = script::add(&chain, &comment, &of_family);
            family.restore(&script).map_err(|error| family.failure(&error))?;
        }
    }
    Ok(())
}

/// Without iptables there are no rules of it either.
pub(super) fn remove(identity: &Identity) -> Result<(), Error> {
    let chain = names::chain(identity);
    remove_chains(|rules| {
        script::has_chain(rules, &chain).then(|| chain.clone()).into_iter().collect()
    })
}

pub(super) fn collect(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let lives: Vec<_> = valid.iter().map(|one| one.container_id.as_str()).collect();
    remove_chains(|rules| script::stale_chains(rules, network, &lives))
}

fn remove_chains(choose: impl Fn(&str) -> Vec<String>) -> Result<(), Error> {
    for family in FAMILIES {
        let Some(rules) = family.list() else { continue };
        let chains = choose(&rules);
        if !chains.is_empty() {
            let script = script::remove(&rules, &chains);
            family.restore(&script).map_err(|error| family.failure(&error))?;
        }
    }
    Ok(())
}

impl Family {
    /// The rules of the table in which addresses are translated; none if they cannot be had.
    fn list(self) -> Option<String> {
        let arguments = ["--wait", "--table", "nat", "--list-rules"];
        let output =
            Command::new(self.program).args(arguments).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// All lines of `script`, or none of them.
    fn restore(self, script: &str) -> io::Result<()> {
        let mut child = Command::new(format!("{}-restore", self.program))
            .args(["--wait", "--noflush"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(script.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let said = excerpt::sentence(said.trim());
        if output.status.success() { Ok(()) } else { Err(io::Error::other(said)) }
    }

    fn failure(self, cause: &io::Error) -> Error {
        Error::failed(format!("masquerading by {}: {cause}", self.program))
    }
}
