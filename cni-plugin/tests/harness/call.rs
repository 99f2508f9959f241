//! A call of a plugin.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{Answer, Node, PLUGINS, Pod};

/// Whose program is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plugin {
    Ours,
    /// Debian's bridge, with the config that flannel passes to it.
    Debian,
}

pub(crate) struct Call<'a> {
    node: &'a Node,
    environment: BTreeMap<String, String>,
    program: PathBuf,
    config: String,
}

impl<'a> Call<'a> {
    pub(super) fn new(node: &'a Node, command: &str, pod: &Pod, config: &Value) -> Self {
        let environment = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", &pod.id),
            ("CNI_NETNS", &pod.path()),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web"),
            ("CNI_PATH", PLUGINS),
        ];
        Self {
            node,
            environment: environment
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into_iter()
                .collect(),
            program: env!("CARGO_BIN_EXE_flannel").into(),
            config: config.to_string(),
        }
    }

    /// Sets a variable of the environment; an empty one counts as none.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.environment.remove(name);
        self
    }

    pub(crate) fn interface(self, name: &str) -> Self {
        self.with("CNI_IFNAME", name)
    }

    /// Another program instead of tweed's.
    pub(crate) fn program(mut self, program: &Path) -> Self {
        self.program = program.into();
        self
    }

    /// The text on standard input, which need not be JSON.
    pub(crate) fn stdin(mut self, text: &str) -> Self {
        text.clone_into(&mut self.config);
        self
    }

    pub(crate) fn run(self) -> Answer {
        Answer::of(self.start())
    }

    /// The process is the plugin itself.
    pub(crate) fn start(self) -> Child {
        let mut child = Command::new("ip")
            .args(["netns", "exec", self.node.netns()])
            .arg(&self.program)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(&self.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A process that is killed or fails early does not read.
        let _ = child.stdin.take().unwrap().write_all(self.config.as_bytes());
        child
    }
}
