//! An etcd server of one test: its own ports, its own directory, dead at the end.

use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use etcd_client::{Client, GetOptions, PutOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::time::sleep;

static NEXT_PORT: AtomicU16 = AtomicU16::new(20_000);

/// A port that no other test of this process gets.
pub(crate) fn port() -> u16 {
    NEXT_PORT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) struct EtcdServer {
    directory: TempDir,
    arguments: Vec<String>,
    child: Option<Child>,
    port: u16,
}

impl EtcdServer {
    /// One member by itself, without encryption.
    pub(crate) async fn start() -> Self {
        let (client, peer) = (port(), port());
        let url = |port| format!("http://127.0.0.1:{port}");
        let server = Self::spawn(
            client,
            &[
                "--listen-client-urls",
                &url(client),
                "--advertise-client-urls",
                &url(client),
                "--listen-peer-urls",
                &url(peer),
                "--initial-advertise-peer-urls",
                &url(peer),
                "--initial-cluster",
                &format!("default={}", url(peer)),
            ],
        );
        server.answers().await;
        server
    }

    pub(crate) fn spawn(port: u16, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let directory = TempDir::new().unwrap();
        let mut server = Self { directory, arguments, child: None, port };
        server.run();
        server
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
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
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.data())
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// A server that comes back knows nothing of its past.
    pub(crate) fn wipe(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.data()).unwrap();
    }

    /// Its connections stay, but nothing comes through them.
    pub(crate) fn hang(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub(crate) fn wake(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Returns once the port is open and requests are served.
    pub(crate) async fn answers(&self) {
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            sleep(Duration::from_millis(20)).await;
        }
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

    fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.as_ref().unwrap().id();
        kill(Pid::from_raw(id.try_into().unwrap()), signal).unwrap();
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}
