//! A cluster of Kubernetes in namespaces: an etcd, an API server, its controllers, and machines with
//! containerd, a kubelet and kube-proxy.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tweed_lab::{Backend, Family, Lab, Node, PATIENCE, Process, Segment, Stack, eventually};

use super::helm::Helm;
use super::machine::Machine;
use super::{Programs, images};

/// What the first start of all programs may take on a busy machine.
const START: Duration = Duration::from_secs(180);
const PORT: u16 = 6443;
const ADMIN: &str = "admin.json";

pub(super) struct Cluster {
    pub(super) stack: Stack,
    pub(super) machines: Vec<Machine>,
    pub(super) control: Node,
    /// The program that contains all programs of Kubernetes.
    pub(super) kubernetes: PathBuf,
    pub(super) tweedctl: PathBuf,
    /// The folder of Helm.
    tools: PathBuf,
    server: Option<Process>,
    segment: Segment,
    /// Archives that each machine imports.
    images: Vec<PathBuf>,
    pub(super) lab: Lab,
}

impl Cluster {
    /// Machines n1, n2 and n3 without a network of pods.
    pub(super) fn start(programs: &Programs, stack: Stack) -> Result<Self> {
        let lab = Lab::new(programs.binaries.clone())?;
        let segment = lab.segment(stack.segment(1))?;
        let control = lab.node("control", &segment)?;
        let kubernetes = std::fs::canonicalize(&programs.kubernetes)?;
        let tweedctl = std::fs::canonicalize(&programs.binaries.tweedctl)?;
        let tools = std::fs::canonicalize(&programs.tools)?;
        let images = images::save(&lab, programs)?;
        let numbers = 1..=3;
        let machines = Vec::new();
        let mut cluster = Self {
            stack,
            machines,
            control,
            kubernetes,
            tweedctl,
            tools,
            server: None,
            segment,
            images,
            lab,
        };
        cluster.write_files(numbers.clone())?;
        cluster.start_control_plane()?;
        for number in numbers {
            cluster.add_machine(&format!("n{number}"))?;
        }
        Ok(cluster)
    }

    fn write_files(&self, machines: impl Iterator<Item = usize>) -> Result<()> {
        let mut tokens =
            "admin,admin,admin,system:masters\nproxy,system:kube-proxy,proxy\n".to_owned();
        for number in machines {
            writeln!(tokens, "n{number},system:node:n{number},n{number},system:nodes")?;
        }
        std::fs::write(self.file("tokens"), tokens)?;
        std::fs::write(self.admin(), self.kubeconfig("admin")?)?;
        let key = self.file("key").display().to_string();
        self.control.namespace().run("openssl", &["genrsa", "-out", &key, "2048"])?;
        Ok(())
    }

    fn start_control_plane(&mut self) -> Result<()> {
        let folder = self.lab.folder().display().to_string();
        self.run_control(
            &["etcd", "--unsafe-no-fsync", "--log-level=warn"],
            &[("--data-dir", format!("{folder}/etcd"))],
        )?;
        self.start_server()?;
        let kubeconfig = ("--kubeconfig", self.admin().display().to_string());
        self.run_control(
            &["kube-controller-manager", "--leader-elect=false", "--allocate-node-cidrs"],
            &[
                kubeconfig.clone(),
                ("--cluster-cidr", pods(self.stack)),
                ("--service-cluster-ip-range", services(self.stack)),
                ("--service-account-private-key-file", format!("{folder}/key")),
                ("--root-ca-file", format!("{folder}/certs/apiserver.crt")),
                // A machine that is gone is noticed in seconds.
                ("--node-monitor-grace-period", "20s".to_owned()),
            ],
        )?;
        self.run_control(&["kube-scheduler", "--leader-elect=false"], &[kubeconfig])?;
        Ok(())
    }

    pub(super) fn start_server(&mut self) -> Result<()> {
        let folder = self.lab.folder().display().to_string();
        let address = self.server_address()?.to_string();
        let server = self.run_control(
            &[
                "kube-apiserver",
                "--etcd-servers=http://127.0.0.1:2379",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged",
                // Logs of pods.
                "--kubelet-preferred-address-types=InternalIP",
                "--service-account-issuer=https://kubernetes.default.svc",
            ],
            &[
                ("--bind-address", address.clone()),
                ("--advertise-address", address),
                ("--cert-dir", format!("{folder}/certs")),
                ("--service-account-key-file", format!("{folder}/key")),
                ("--service-account-signing-key-file", format!("{folder}/key")),
                ("--token-auth-file", format!("{folder}/tokens")),
                ("--service-cluster-ip-range", services(self.stack)),
            ],
        )?;
        let words = || server.last_words();
        eventually(START, || self.kubectl("get --raw /readyz").map(drop)).with_context(words)?;
        self.server = Some(server);
        Ok(())
    }

    pub(super) fn stop_server(&mut self) -> Result<()> {
        let server = self.server.take().context("no API server runs")?;
        server.kill().map(drop)
    }

    fn run_control(&self, words: &[&str], flags: &[(&str, String)]) -> Result<Process> {
        let flags: Vec<String> =
            flags.iter().map(|(flag, value)| format!("{flag}={value}")).collect();
        let (name, words) = words.split_first().context("no program")?;
        let arguments = words.iter().copied().chain(flags.iter().map(String::as_str));
        let arguments: Vec<&str> = std::iter::once(*name).chain(arguments).collect();
        self.lab.start_on(&self.control, name, &self.kubernetes, &arguments)
    }

    /// Of the first family.
    fn server_address(&self) -> Result<IpAddr> {
        let family = self.stack.families().first().context("a stack without a family")?;
        self.control.address(*family)
    }

    /// The file by which `user`, whose token is its name, reaches the API server.
    pub(super) fn kubeconfig(&self, user: &str) -> Result<String> {
        let server = format!("https://{}", SocketAddr::new(self.server_address()?, PORT));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
            "users": [{"name": user, "user": {"token": user}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": user}}],
            "current-context": "c",
        });
        Ok(config.to_string())
    }

    fn add_machine(&mut self, name: &str) -> Result<()> {
        let node = self.lab.node(name, &self.segment)?;
        for family in self.stack.families() {
            let (gateway, flag) = (self.control.address(*family)?, family.flag());
            node.ip(format!("{flag} route add default via {gateway}"))?;
        }
        let machine = Machine::start(self, &node)?;
        self.machines.push(machine);
        Ok(())
    }

    pub(super) fn images(&self) -> &[PathBuf] {
        &self.images
    }

    /// By which the administrator reaches the API server.
    pub(super) fn admin(&self) -> PathBuf {
        self.file(ADMIN)
    }

    /// A file of the lab.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.lab.folder().join(name)
    }

    /// `kubectl` as administrator; arguments contain no spaces.
    pub(super) fn kubectl(&self, arguments: &str) -> Result<String> {
        self.kubectl_of(&arguments.split_whitespace().collect::<Vec<_>>())
    }

    pub(super) fn kubectl_of(&self, arguments: &[&str]) -> Result<String> {
        let config = self.admin().display().to_string();
        let arguments = [&["kubectl", "--kubeconfig", &config], arguments].concat();
        self.control.namespace().run(&self.kubernetes.display().to_string(), &arguments)
    }

    /// Runs commands, which may contain `kubectl` and `helm`, as administrator, until one fails.
    pub(super) fn shell(&self, commands: &str) -> Result<()> {
        self.shell_with(Helm::V4, commands)
    }

    pub(super) fn shell_with(&self, helm: Helm, commands: &str) -> Result<()> {
        let kubernetes = self.kubernetes.display();
        let kubectl = format!("kubectl() {{ {kubernetes} kubectl \"$@\"; }}");
        let helm = format!("helm() {{ {} \"$@\"; }}", self.tools.join(helm.program()).display());
        let (admin, home) = (self.admin(), self.file("home"));
        let settings = format!("export KUBECONFIG={} HOME={}", admin.display(), home.display());
        let script = format!("set -eu\n{settings}\n{kubectl}\n{helm}\n{commands}");
        self.control.namespace().run("sh", &["-c", &script]).map(drop).context(commands.to_owned())
    }

    pub(super) fn apply(&self, manifest: &Path) -> Result<()> {
        self.kubectl(&format!("apply -f {}", manifest.display())).map(drop)
    }

    /// Applies an object.
    pub(super) fn apply_object(&self, object: &Value) -> Result<()> {
        let file = self.file("object.json");
        std::fs::write(&file, object.to_string())?;
        self.apply(&file)
    }

    pub(super) fn get(&self, what: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.kubectl(&format!("get {what} -o json"))?)?)
    }

    /// Waits until all machines are Ready and available for pods.
    pub(super) fn wait_ready(&self) -> Result<Duration> {
        eventually(START, || {
            let nodes = self.get("nodes")?;
            for machine in &self.machines {
                let name = machine.name();
                let node = items(&nodes).find(|node| text(node, "/metadata/name") == name);
                let node = node.with_context(|| format!("there is no node {name}"))?;
                let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
                for (kind, status) in [("Ready", "True"), ("NetworkUnavailable", "False")] {
                    let mut conditions = conditions.into_iter().flatten();
                    let condition = conditions.find(|it| text(it, "/type") == kind);
                    let found = condition.is_some_and(|it| text(it, "/status") == status);
                    ensure!(found, "{name}: {kind} is not {status}: {condition:?}");
                }
            }
            Ok(())
        })
    }

    /// Waits until all pods of a kind and name are ready.
    pub(super) fn wait_rolled_out(&self, what: &str) -> Result<()> {
        let what = format!("rollout status {what} --timeout={}s", START.as_secs());
        self.kubectl(&what).map(drop)
    }

    /// Each machine's routes to the subnets of each other go through a device of this name.
    pub(super) fn wait_for_routes(&self, backend: Backend) -> Result<()> {
        eventually(PATIENCE, || {
            let subnets = self.subnets()?;
            for machine in &self.machines {
                for (name, subnet) in subnets.iter().filter(|(name, _)| name != machine.name()) {
                    let is_v6 = subnet.contains(':');
                    let device = match backend {
                        Backend::HostGw => "eth0",
                        Backend::Vxlan if is_v6 => "flannel-v6.1",
                        Backend::Vxlan => "flannel.1",
                    };
                    let family = if is_v6 { Family::V6 } else { Family::V4 };
                    let route =
                        machine.node().ip(format!("{} route show {subnet}", family.flag()))?;
                    let is_so = route.contains(&format!("dev {device} "));
                    ensure!(is_so, "{}: route to {name}: {route:?}", machine.name());
                }
            }
            Ok(())
        })
        .map(drop)
    }

    /// The name of each node with each of its subnets.
    pub(super) fn subnets(&self) -> Result<Vec<(String, String)>> {
        let nodes = self.get("nodes")?;
        let mut all = Vec::new();
        for node in items(&nodes) {
            let name = text(node, "/metadata/name");
            let subnets = node.pointer("/spec/podCIDRs").and_then(Value::as_array);
            let subnets = subnets.with_context(|| format!("{name} has no subnet"))?;
            all.extend(subnets.iter().map(|subnet| (name.to_owned(), text(subnet, "").to_owned())));
        }
        Ok(all)
    }
}

/// The networks of all pods, for Kubernetes.
pub(super) fn pods(stack: Stack) -> String {
    networks(stack, "10.244.0.0/16", "fd00:244::/48")
}

/// The usual address of the cluster's DNS.
pub(super) fn dns(stack: Stack) -> String {
    networks(stack, "10.96.0.10", "fd00:96::a")
}

fn services(stack: Stack) -> String {
    networks(stack, "10.96.0.0/16", "fd00:96::/112")
}

fn networks(stack: Stack, v4: &str, v6: &str) -> String {
    let network = |family: &Family| match family {
        Family::V4 => v4,
        Family::V6 => v6,
    };
    stack.families().iter().map(network).collect::<Vec<_>>().join(",")
}

pub(super) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.pointer("/items").and_then(Value::as_array).into_iter().flatten()
}

/// The text at a JSON pointer; empty if there is none.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
