//! Names: a DNS server in the cluster, and pods that resolve services and other pods through it.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use tweed_lab::{Family, GREETING, Namespace, PATIENCE, Pod, Stack, eventually};

use super::cases::{ECHO, Story};
use super::cluster::{Cluster, dns, items, text};
use super::{images, workload};
use crate::verdict::Counted;

/// Pods with names of their own, on different nodes.
const PEER: &str = "peer";
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(20);
/// A question is asked once: one that gets lost is not repeated.
const TIMEOUT: Duration = Duration::from_secs(5);

/// As in the manifest of kubeadm, without the servers outside of the cluster, which do not exist.
const COREFILE: &str = ".:53 {
    errors
    health {
        lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    prometheus :9153
    cache 30
    reload
    loadbalance
}
";

/// The address that each name must have.
type Names = BTreeMap<String, IpAddr>;

/// Pods that ask for all names, one after the other.
struct Questions {
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<usize>>>,
}

pub(super) fn resolve(story: &Story) -> Result<Counted> {
    let cluster = &story.cluster;
    install(cluster)?;
    let (services, _) = workload::service(cluster, ECHO)?;
    workload::named_on_each_node(cluster, PEER)?;
    let names = names(cluster, &services)?;
    let servers: Vec<IpAddr> =
        dns(cluster.stack).split(',').map(str::parse).collect::<Result<_, _>>()?;
    let pods = workload::pods(cluster, ECHO)?;
    for pod in &pods {
        for server in &servers {
            eventually(PATIENCE, || ask_for_all(pod.namespace(), *server, &names).map(drop))?;
        }
    }
    // By the settings of kubelet.
    for pod in items(&cluster.get(&format!("pods -l app={ECHO}"))?) {
        fetch_by_name(cluster, text(pod, "/metadata/name"))?;
    }
    let asked = Questions::start(pods.iter().map(Pod::namespace), &servers, &names);
    let mut counted = story.under_load(|probe| story.flip(probe, || asked.still_run()))?;
    let answers = asked.finish()?;
    counted.remark = format!("{answers} names resolved; {}", counted.remark);
    Ok(counted)
}

impl Questions {
    fn start<'a>(
        pods: impl Iterator<Item = &'a Namespace>,
        servers: &[IpAddr],
        names: &Names,
    ) -> Self {
        let stopped = Arc::<AtomicBool>::default();
        let thread = |(pod, server): (&Namespace, IpAddr)| {
            let (pod, names, stopped) = (pod.clone(), names.clone(), Arc::clone(&stopped));
            std::thread::spawn(move || {
                let mut answers = 0;
                while !stopped.load(Ordering::SeqCst) {
                    answers += ask_for_all(&pod, server, &names)?;
                }
                Ok(answers)
            })
        };
        let each = pods.flat_map(|pod| servers.iter().map(move |server| (pod, *server)));
        let threads = each.map(thread).collect();
        Self { stopped, threads }
    }

    fn still_run(&self) -> Result<()> {
        ensure!(!self.threads.iter().any(JoinHandle::is_finished), "a name was not resolved");
        Ok(())
    }

    /// The number of answers.
    fn finish(self) -> Result<usize> {
        self.stopped.store(true, Ordering::SeqCst);
        let wait = |thread: JoinHandle<Result<usize>>| {
            thread.join().map_err(|_| anyhow!("a thread that resolves names panicked"))?
        };
        self.threads.into_iter().map(wait).sum()
    }
}

/// Returns the number of names.
fn ask_for_all(pod: &Namespace, server: IpAddr, names: &Names) -> Result<usize> {
    for (name, address) in names {
        let answers = pod.within(|| ask(server, name, Family::of(*address)))?;
        let answers = answers.with_context(|| format!("{name} by {server} in {}", pod.name()))?;
        ensure!(answers == [*address], "{name} is {address}, and not {answers:?}");
        std::thread::sleep(BETWEEN_QUESTIONS);
    }
    Ok(names.len())
}

/// One question over UDP: the addresses of this family.
fn ask(server: IpAddr, name: &str, family: Family) -> Result<Vec<IpAddr>> {
    let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.connect((server, 53))?;
    socket.send(&question(name, family)?)?;
    let mut bytes = [0; 512];
    let length = socket.recv(&mut bytes).context("no answer")?;
    addresses(bytes.get(..length).unwrap_or_default()).context("not an answer")
}

/// RFC 1035, section 4.
fn question(name: &str, family: Family) -> Result<Vec<u8>> {
    // One question, for which recursion is desired.
    let mut bytes = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len())?);
        bytes.extend_from_slice(label.as_bytes());
    }
    let kind = match family {
        Family::V4 => 1,
        Family::V6 => 28,
    };
    bytes.extend_from_slice(&[0, 0, kind, 0, 1]);
    Ok(bytes)
}

/// None if the bytes are too short.
fn addresses(bytes: &[u8]) -> Option<Vec<IpAddr>> {
    let count = bytes.get(7)?;
    // The question has a type and a class behind its name.
    let mut rest = behind_name(bytes.get(12..)?)?.get(4..)?;
    let mut addresses = Vec::new();
    for _ in 0..*count {
        // Type, class, TTL and length are ten bytes.
        let record = behind_name(rest)?;
        let length = usize::from(u16::from_be_bytes(record.get(8..10)?.try_into().ok()?));
        let data = record.get(10..10 + length)?;
        addresses.extend(<[u8; 4]>::try_from(data).map(IpAddr::from));
        addresses.extend(<[u8; 16]>::try_from(data).map(IpAddr::from));
        rest = record.get(10 + length..)?;
    }
    Some(addresses)
}

/// A name ends with an empty label, or with two bytes that point to the rest of it.
fn behind_name(bytes: &[u8]) -> Option<&[u8]> {
    match usize::from(*bytes.first()?) {
        0 => bytes.get(1..),
        pointer if pointer >= 0xc0 => bytes.get(2..),
        length => behind_name(bytes.get(1 + length..)?),
    }
}

/// The service of `ECHO`, and each pod of the headless service.
fn names(cluster: &Cluster, services: &[IpAddr]) -> Result<Names> {
    let mut names = Names::new();
    for (number, service) in services.iter().enumerate() {
        // A name has one address here, so that of another family gets another case of letters.
        let name = if number == 0 { ECHO.to_owned() } else { ECHO.to_uppercase() };
        names.insert(format!("{name}.default.svc.cluster.local"), *service);
    }
    for pod in items(&cluster.get(&format!("pods -l app={PEER}"))?) {
        let name = text(pod, "/metadata/name");
        let address = text(pod, "/status/podIP").parse().with_context(|| name.to_owned())?;
        names.insert(format!("{name}.{PEER}.default.svc.cluster.local"), address);
    }
    ensure!(names.len() == services.len() + cluster.machines.len(), "{names:?}");
    Ok(names)
}

/// The program of the pod resolves the short name of the service.
fn fetch_by_name(cluster: &Cluster, pod: &str) -> Result<()> {
    let command = format!("exec {pod} -- /bin/busybox wget -q -O - http://{ECHO}");
    let page = cluster.kubectl(&command)?;
    ensure!(page.trim() == GREETING, "{pod}: http://{ECHO} is {page:?}");
    Ok(())
}

/// As by the manifest of kubeadm.
pub(super) fn install(cluster: &Cluster) -> Result<()> {
    let servers: Vec<_> = dns(cluster.stack).split(',').map(str::to_owned).collect();
    let policy = if cluster.stack == Stack::Dual { "RequireDualStack" } else { "SingleStack" };
    let named = |name: &str| json!({"name": name, "namespace": "kube-system"});
    let account = json!({"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"});
    let port = |name: &str, protocol: &str| json!({"name": name, "port": 53, "protocol": protocol});
    let objects = json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named("coredns")},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": "system:coredns"},
                "rules": [
                    {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
                    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
                ],
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "system:coredns"},
                "roleRef": role,
                "subjects": [account],
            },
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named("coredns"), "data": {"Corefile": COREFILE}},
            deployment(),
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": named("kube-dns"),
                "spec": {
                    "ipFamilyPolicy": policy,
                    "clusterIP": servers.first(),
                    "clusterIPs": servers,
                    "selector": {"k8s-app": "kube-dns"},
                    "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")],
                },
            },
        ],
    });
    cluster.apply_object(&objects)?;
    cluster.wait_rolled_out("--namespace=kube-system deployment coredns")
}

fn deployment() -> Value {
    let probe = |path: &str, port: u16| json!({"httpGet": {"path": path, "port": port}});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "coredns", "namespace": "kube-system"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"k8s-app": "kube-dns"}},
            "template": {
                "metadata": {"labels": {"k8s-app": "kube-dns"}},
                "spec": {
                    "serviceAccountName": "coredns",
                    "dnsPolicy": "Default",
                    "containers": [{
                        "name": "coredns",
                        "image": images::DNS,
                        "imagePullPolicy": "Never",
                        "command": ["/coredns"],
                        "args": ["-conf", "/etc/coredns/Corefile"],
                        "livenessProbe": probe("/health", 8080),
                        "readinessProbe": probe("/ready", 8181),
                        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
                    }],
                    "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
                },
            },
        },
    })
}
