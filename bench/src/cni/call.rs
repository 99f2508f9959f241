//! One call of a plugin, as a runtime makes it.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tweed_lab::Namespace;

use super::plugin::DEBIAN;

/// A container that gets an interface.
#[derive(Clone, Debug)]
pub(super) struct Container {
    /// As long as the ids of containerd.
    pub(super) id: String,
    pub(super) namespace: Namespace,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Verb {
    Add,
    Del,
}

impl Verb {
    pub(super) const BOTH: [Self; 2] = [Self::Add, Self::Del];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) program: &'a Path,
    pub(super) verb: Verb,
    pub(super) container: &'a Container,
    pub(super) config: &'a str,
}

impl Call<'_> {
    /// The time from the start of the program to its end, in the namespace of the calling thread.
    pub(super) fn time(&self) -> Result<Duration> {
        let mut command = self.command();
        command.stdout(Stdio::piped());
        let start = Instant::now();
        let output = self.start(&mut command)?.wait_with_output()?;
        let took = start.elapsed();
        let output_text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{}: {output_text}", self.described());
        Ok(took)
    }

    /// The plugin reports errors on standard output, which the caller reads.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.env_clear().envs([
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("CNI_COMMAND", self.verb.name()),
            ("CNI_CONTAINERID", &self.container.id),
            ("CNI_NETNS", &format!("/run/netns/{}", self.container.namespace.name())),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web"),
            ("CNI_PATH", DEBIAN),
        ]);
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        command
    }

    pub(super) fn start(&self, command: &mut Command) -> Result<Child> {
        let mut child = command.spawn().with_context(|| self.described())?;
        let mut stdin = child.stdin.take().context("no standard input")?;
        stdin.write_all(self.config.as_bytes()).with_context(|| self.described())?;
        Ok(child)
    }

    pub(super) fn described(&self) -> String {
        format!("{} by {}", self.verb.name(), self.program.display())
    }
}
