//! A network namespace, and programs inside it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sched::{CloneFlags, setns};
use serde::de::DeserializeOwned;

use crate::network::address::{Address, AddressesJson};
use crate::network::http::{self, Answer};
use crate::wait::{PATIENCE, lock};

/// A named network namespace. A cheap handle: the [`Lab`](crate::Lab) that created it deletes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    name: Arc<str>,
}

impl Namespace {
    /// Outside a [`Lab`](crate::Lab), the caller deletes it.
    pub fn create(name: &str) -> Result<Self> {
        // The first `ip netns add` mounts the folder of names; two concurrent ones conflict.
        static ADDING: Mutex<()> = Mutex::new(());
        let adding = lock(&ADDING);
        output(Command::new("ip").args(["netns", "add", name]))?;
        drop(adding);
        let namespace = Self { name: name.into() };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// A name for the namespace of a process.
    pub(crate) fn attach(name: &str, pid: &str) -> Result<Self> {
        output(Command::new("ip").args(["netns", "attach", name, pid]))?;
        Ok(Self { name: name.into() })
    }

    pub fn delete(&self) -> Result<()> {
        output(Command::new("ip").args(["netns", "del", &self.name])).map(drop)
    }

    /// As `ip netns list` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a new thread inside this namespace.
    ///
    /// Sockets and processes created there stay in the namespace.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter()?;
                Ok(work())
            });
            inside.join().map_err(|_| anyhow!("a thread inside {} panicked", self.name))?
        })
    }

    /// Moves the calling thread into this namespace permanently.
    pub(crate) fn enter(&self) -> Result<()> {
        let path = format!("/run/netns/{}", self.name);
        let file = File::open(&path).with_context(|| path.clone())?;
        setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("entering {path}"))
    }

    /// Runs a program to its end and returns its output; if it fails, the error contains the
    /// output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.within(|| output(Command::new(program).args(arguments)))?
            .with_context(|| format!("in {}", self.name))
    }

    /// Like [`run`](Self::run), for a program whose exit code is significant.
    pub fn output(&self, program: impl AsRef<OsStr>, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(program);
        self.within(|| command.args(arguments).output())?.with_context(|| {
            format!("running {} in {}", command.get_program().display(), self.name)
        })
    }

    /// Like [`output`](Self::output), for a program that reads `input`.
    pub fn output_for(
        &self,
        program: impl AsRef<OsStr>,
        arguments: &[&str],
        input: &str,
    ) -> Result<Output> {
        let mut command = Command::new(program);
        command.args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn(&mut command)?;
        child.stdin.take().context("no standard input")?.write_all(input.as_bytes())?;
        Ok(child.wait_with_output()?)
    }

    /// Loads what `nft` lists of the rules in their place, as an administrator does after a boot with
    /// what was saved. `nft`: the program.
    pub fn reload_rules(&self, nft: &str) -> Result<()> {
        let saved = self.run(nft, &["list", "ruleset"])?;
        let loaded = self.output_for(nft, &["-f", "-"], &format!("flush ruleset\n{saved}"))?;
        let reason = String::from_utf8_lossy(&loaded.stderr);
        ensure!(loaded.status.success(), "{nft} cannot load its own listing: {reason}");
        Ok(())
    }

    pub(crate) fn spawn(&self, command: &mut Command) -> Result<Child> {
        self.within(|| command.spawn())?.with_context(|| {
            format!("starting {} in {}", command.get_program().display(), self.name)
        })
    }

    /// `ip(8)` with `arguments`: `namespace.ip("link set eth0 down")`.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        self.run("ip", &words(arguments))
    }

    /// Several lines for one `ip(8)`, which is much cheaper than one for each; the first line that
    /// fails is the last one.
    pub fn ip_batch(&self, lines: &str) -> Result<()> {
        let output = self.output_for("ip", &["-batch", "-"], lines)?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "in {}: {}: {lines}", self.name, text.trim());
        Ok(())
    }

    /// `ip -json` with `arguments`.
    pub fn ip_json<T: DeserializeOwned>(&self, arguments: &str) -> Result<Vec<T>> {
        objects(&self.ip(&format!("-json {arguments}"))?)
            .with_context(|| format!("reading `ip -json {arguments}`"))
    }

    /// The addresses of a device.
    pub fn addresses(&self, dev: &str) -> Result<Vec<Address>> {
        let all: Vec<AddressesJson> = self.ip_json("address show")?;
        let ours = all.into_iter().filter(|link| link.ifname == dev);
        ours.flat_map(|link| link.addr_info).map(Address::try_from).collect()
    }

    /// `bridge(8)` with `arguments`.
    pub fn bridge(&self, arguments: &str) -> Result<String> {
        self.run("bridge", &words(arguments))
    }

    /// `bridge -json` with `arguments`.
    pub fn bridge_json<T: DeserializeOwned>(&self, arguments: &str) -> Result<Vec<T>> {
        objects(&self.bridge(&format!("-json {arguments}"))?)
            .with_context(|| format!("reading `bridge -json {arguments}`"))
    }

    /// One HTTP GET from inside: `/`, `/metrics`.
    pub fn get(&self, address: SocketAddr, path: &str) -> Result<Answer> {
        let ask = || http::get_within(PATIENCE, address, path);
        self.within(ask)?.with_context(|| format!("in {}", self.name))
    }

    /// Writes a kernel parameter, named with dots or slashes: `net.ipv4.ip_forward`.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = sysctl_path(key);
        self.within(|| std::fs::write(&path, value))?
            .with_context(|| format!("{path} in {}", self.name))
    }

    /// Reads a kernel parameter; the inverse of [`set_sysctl`](Self::set_sysctl).
    pub fn sysctl(&self, key: &str) -> Result<String> {
        let path = sysctl_path(key);
        let text = self.within(|| std::fs::read_to_string(&path))?;
        Ok(text.with_context(|| format!("{path} in {}", self.name))?.trim().to_owned())
    }
}

fn words(arguments: &str) -> Vec<&str> {
    arguments.split_whitespace().collect()
}

fn objects<T: DeserializeOwned>(text: &str) -> Result<Vec<T>> {
    if text.trim().is_empty() { Ok(Vec::new()) } else { Ok(serde_json::from_str(text)?) }
}

/// A device name may contain dots (`flannel.1`): in a key with slashes, dots are kept.
fn sysctl_path(key: &str) -> String {
    let key = if key.contains('/') { key.to_owned() } else { key.replace('.', "/") };
    format!("/proc/sys/{key}")
}

fn output(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command.output().with_context(|| shown.clone())?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let text = if stderr.trim().is_empty() { stdout.trim() } else { stderr.trim() };
    ensure!(output.status.success(), "{shown}: {}: {text}", output.status);
    Ok(stdout.into_owned())
}
