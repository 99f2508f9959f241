//! An etcd server of one test: its own ports, its own directory, dead at the end.

use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use etcd_client::{Client, EventType, GetOptions, PutOptions, WatchOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::time::sleep;

/// Whatever does not happen by then does not happen: longer than a busy machine takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

static NEXT_PORT: AtomicU16 = AtomicU16::new(20_000);

/// A port that no other test of this process gets.
pub(crate) fn port() -> u16 {
    NEXT_PORT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) struct EtcdServer {
    directory: TempDir,
    name: String,
    scheme: &'static str,
    port: u16,
    peer_port: u16,
    /// `name=url` of all members.
    cluster: String,
    more: Vec<String>,
    child: Option<Child>,
}

impl EtcdServer {
    /// One member by itself, without encryption.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub(crate) async fn start_with(more: &[&str]) -> Self {
        let mut server = Self::prepare("http", more);
        server.run();
        server.answers().await;
        server
    }

    /// Serves TLS with the files in `arguments`; whether it answers is for the test to find out.
    pub(crate) async fn start_tls(arguments: &[&str]) -> Self {
        let mut server = Self::prepare("https", arguments);
        server.run();
        server.listens().await;
        server
    }

    pub(crate) async fn start_cluster(size: usize) -> Vec<Self> {
        let quick = ["--heartbeat-interval", "50", "--election-timeout", "500"];
        let mut members: Vec<Self> = (0..size).map(|_| Self::prepare("http", &quick)).collect();
        let cluster: Vec<String> = members.iter().map(|member| member.cluster.clone()).collect();
        for member in &mut members {
            member.cluster = cluster.join(",");
            member.run();
        }
        for member in &members {
            member.answers().await;
        }
        members
    }

    fn prepare(scheme: &'static str, more: &[&str]) -> Self {
        let (port, peer_port) = (port(), self::port());
        let name = format!("m{port}");
        Self {
            directory: TempDir::new().unwrap(),
            cluster: format!("{name}=http://127.0.0.1:{peer_port}"),
            name,
            scheme,
            port,
            peer_port,
            more: more.iter().map(ToString::to_string).collect(),
            child: None,
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// As if the machine lost power.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn run(&mut self) {
        let log = File::options().create(true).append(true).open(self.path().join("log")).unwrap();
        let peers = format!("http://127.0.0.1:{}", self.peer_port);
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.data())
            .args(["--name", &self.name, "--logger", "zap", "--log-outputs", "stderr"])
            .args(["--listen-client-urls", &self.endpoint()])
            .args(["--advertise-client-urls", &self.endpoint()])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &self.cluster])
            .args(&self.more)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Comes back after a power cut, reachable for those only who know its new port; returns the old one.
    pub(crate) async fn hide(&mut self) -> u16 {
        self.kill();
        let known = std::mem::replace(&mut self.port, port());
        self.run();
        self.answers().await;
        known
    }

    /// Comes back after a power cut, where it was before it hid.
    pub(crate) async fn show(&mut self, known: u16) {
        self.kill();
        self.port = known;
        self.run();
        self.answers().await;
    }

    /// Loses power and disk; the next run knows nothing of the past.
    pub(crate) fn wipe(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.data()).unwrap();
    }

    /// Stops, keeps its data as a backup, and goes on.
    pub(crate) async fn back_up(&mut self) {
        self.kill();
        copy(&self.data(), &self.backup());
        self.run();
        self.answers().await;
    }

    /// Loses power, and what it has held since its backup.
    pub(crate) fn restore(&mut self) {
        self.wipe();
        copy(&self.backup(), &self.data());
    }

    /// Its connections stay, but nothing comes through them.
    pub(crate) fn hang(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub(crate) fn wake(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub(crate) async fn listens(&self) {
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns once the port is open and requests are served.
    pub(crate) async fn answers(&self) {
        self.listens().await;
        let mut client = self.client().await;
        while client.get("health", None).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect([self.endpoint()], None).await.unwrap()
    }

    pub(crate) async fn put(&self, key: &str, value: &str) {
        self.client().await.put(key, value, None).await.unwrap();
    }

    /// Under an etcd lease, as flannel writes.
    pub(crate) async fn put_with_grant(&self, key: &str, value: &str) -> i64 {
        let mut client = self.client().await;
        let id = client.lease_grant(86_400, None).await.unwrap().id();
        client.put(key, value, Some(PutOptions::new().with_lease(id))).await.unwrap();
        id
    }

    pub(crate) async fn delete(&self, key: &str) {
        self.client().await.delete(key, None).await.unwrap();
    }

    /// The value under `key` and its etcd lease, zero for none.
    pub(crate) async fn get(&self, key: &str) -> Option<(String, i64)> {
        let answer = self.client().await.get(key, None).await.unwrap();
        answer.kvs().first().map(|kv| (kv.value_str().unwrap().to_owned(), kv.lease()))
    }

    pub(crate) async fn keys(&self, prefix: &str) -> Vec<String> {
        let options = GetOptions::new().with_prefix().with_keys_only();
        let answer = self.client().await.get(prefix, Some(options)).await.unwrap();
        answer.kvs().iter().map(|kv| kv.key_str().unwrap().to_owned()).collect()
    }

    /// Every change below `prefix` since the beginning, as `put KEY` or `delete KEY`; at the price of one
    /// more key.
    pub(crate) async fn history(&self, prefix: &str) -> Vec<String> {
        let end = format!("{prefix}~");
        self.put(&end, "").await;
        let options = WatchOptions::new().with_prefix().with_start_revision(1);
        let mut changes = self.client().await.watch(prefix, Some(options)).await.unwrap();
        let mut history = Vec::new();
        while history.last() != Some(&format!("put {end}")) {
            let message = changes.message().await.unwrap().unwrap();
            history.extend(message.events().iter().map(|event| {
                let verb = match event.event_type() {
                    EventType::Put => "put",
                    EventType::Delete => "delete",
                };
                format!("{verb} {}", event.kv().unwrap().key_str().unwrap())
            }));
        }
        history.pop();
        history
    }

    /// Forgets all history up to now.
    pub(crate) async fn compact(&self) {
        let revision = self.revision().await;
        self.client().await.compact(revision, None).await.unwrap();
    }

    /// Of what was written last.
    pub(crate) async fn revision(&self) -> i64 {
        self.client().await.get("revision", None).await.unwrap().header().unwrap().revision()
    }

    pub(crate) async fn is_leader(&self) -> bool {
        let status = self.client().await.status().await.unwrap();
        status.leader() == status.header().unwrap().member_id()
    }

    fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    fn backup(&self) -> PathBuf {
        self.path().join("backup")
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.as_ref().unwrap().id();
        kill(Pid::from_raw(id.try_into().unwrap()), signal).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success(), "cp {} {}: {copied}", from.display(), to.display());
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}
