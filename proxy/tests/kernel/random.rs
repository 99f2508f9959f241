//! Whatever happens to objects, API server, proxy and table: in the end, the table is as the objects
//! ask for it.

use std::thread;
use std::time::Duration;

use anyhow::ensure;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tweed_lab::{Backup, eventually};

use crate::watch::{Cluster, LONG, SERVICES, SLICES};

/// Each is another sequence of acts.
const SEEDS: u64 = 6;
const ACTS: usize = 40;

/// The most services, and the most endpoints of each.
const MOST: u32 = 5;

struct Scene {
    cluster: Cluster,
    rng: StdRng,
    is_stopped: bool,
    is_killed: bool,
    backup: Option<Backup>,
}

impl Scene {
    fn start(seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        Self { cluster: Cluster::new(), rng, is_stopped: false, is_killed: false, backup: None }
    }

    /// Does one thing, and returns what.
    fn act(&mut self) -> String {
        let number = self.rng.random_range(0..MOST);
        let name = format!("s{number}");
        let Self { cluster, .. } = self;
        match self.rng.random_range(0..20) {
            0..4 => cluster.add_service(&name, &format!("10.96.1.{number}")),
            4..6 => cluster.server.delete(SERVICES, &name),
            6..9 => {
                let count = self.rng.random_range(0..=MOST);
                let endpoint = |index| format!("10.1.{number}.{index}");
                let all: Vec<String> = (1..=count).map(endpoint).collect();
                let all: Vec<&str> = all.iter().map(String::as_str).collect();
                cluster.add_slice(&name, &all);
                cluster.set_endpoints(&name, &all);
            }
            9 => cluster.server.delete(SLICES, &format!("{name}-1")),
            10 => cluster.server.drop_watches(),
            11 => cluster.server.compact(),
            12..14 => return self.stop_or_start_server(),
            14..16 => return self.kill_or_start_proxy(),
            16 => self.backup = Some(cluster.server.back_up()),
            17 => return self.restore(),
            _ => return self.damage(),
        }
        format!("an edit of {name}, a dropped watch, a compaction or a backup")
    }

    fn stop_or_start_server(&mut self) -> String {
        self.is_stopped = !self.is_stopped;
        if self.is_stopped {
            self.cluster.server.stop().unwrap();
            return "the API server stops".to_owned();
        }
        self.cluster.server.start_again().unwrap();
        "the API server starts".to_owned()
    }

    fn kill_or_start_proxy(&mut self) -> String {
        self.is_killed = !self.is_killed;
        if self.is_killed {
            self.cluster.kill();
            return "the proxy is killed".to_owned();
        }
        self.cluster.start();
        "the proxy starts".to_owned()
    }

    fn restore(&mut self) -> String {
        if let Some(backup) = self.backup.clone() {
            self.cluster.server.restore(backup);
        }
        "the API server is restored".to_owned()
    }

    fn damage(&mut self) -> String {
        let damage = [
            "delete table ip tweed-proxy",
            "flush set ip tweed-proxy frontends",
            "flush map ip tweed-proxy endpoints",
            "flush chain ip tweed-proxy frontend",
            "add element ip tweed-proxy refused { 10.96.0.1 . tcp . 80 }",
            "add element ip tweed-proxy count-2 { 10.96.1.1 . tcp . 80 }",
            "add element ip tweed-proxy endpoints { 10.96.1.1 . tcp . 80 . 1 : 10.9.9.9 . 9 }",
            "add table ip theirs",
        ];
        let damage = damage[self.rng.random_range(0..damage.len())];
        // Some of it is refused, if there is no table or if the element has another value.
        let _ = self.cluster.host.0.run("nft", &[damage]);
        damage.to_owned()
    }

    /// Ends all faults, and waits until a program that reads the table and all objects would change
    /// nothing.
    fn end(&mut self, acts: &[String]) {
        if self.is_stopped {
            self.stop_or_start_server();
        }
        if self.is_killed {
            self.kill_or_start_proxy();
        }
        let Cluster { host, server, .. } = &self.cluster;
        let kinds =
            ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/nodes"];
        let objects = kinds.iter().flat_map(|kind| server.list(kind));
        let objects: Vec<String> = objects.map(|object| object.to_string()).collect();
        let objects = objects.join("\n");
        let is_right = || {
            let changes = host.apply(&objects, &["--dry-run"]);
            ensure!(changes.is_empty(), "{changes}\n{acts:#?}\n{}", self.cluster.log());
            Ok(())
        };
        eventually(LONG, is_right).unwrap();
    }
}

#[test]
fn whatever_happens_the_table_is_right_in_the_end() {
    for seed in 0..SEEDS {
        let mut scene = Scene::start(seed);
        let mut acts = vec![format!("seed {seed}")];
        for _ in 0..ACTS {
            acts.push(scene.act());
            thread::sleep(Duration::from_millis(scene.rng.random_range(0..200)));
        }
        scene.end(&acts);
    }
}
