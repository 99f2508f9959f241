//! A daemon whose answers a test chooses.

use std::collections::BTreeMap;
use std::sync::{Mutex, mpsc};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tweed_http as http;

use crate::{Output, tweedctl};

/// A daemon that answers every question from a list, for as long as the value lives.
pub(crate) struct FakeDaemon {
    pub(crate) folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FakeDaemon {
    pub(crate) fn answering(answers: Value) -> Self {
        Self::answering_in_turn(vec![answers])
    }

    /// Answers each question as listed at first, for the second time, …; the last one is repeated.
    pub(crate) fn answering_in_turn(answers: Vec<Value>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("subnet.sock");
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = mpsc::channel();
        let serve = async move {
            let listener = http::bind_control(&socket).unwrap();
            ready.send(()).unwrap();
            let asked = Mutex::new(BTreeMap::<String, usize>::new());
            let next = |path: &str| {
                let mut asked = asked.lock().unwrap();
                let count = asked.entry(path.to_owned()).or_default();
                *count += 1;
                answers.get((*count).min(answers.len()) - 1).unwrap().get(path)
            };
            let route = async |path: String| match next(&path) {
                Some(answer) if answer["ready"] == false => http::json(503, answer),
                Some(answer) => http::json(200, answer),
                None => http::text(503, "the loop has ended\n"),
            };
            tokio::select! {
                () = http::serve(listener, route) => {}
                _ = stopped => {}
            }
        };
        let thread = thread::spawn(|| {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(serve);
        });
        is_ready.recv().unwrap();
        Self { folder, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn tweedctl(&self, line: &str) -> Output {
        let subnet_file = self.folder.path().join("subnet.env");
        tweedctl(&format!("{line} --subnet-file {}", subnet_file.display()))
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

pub(crate) fn status() -> Value {
    json!({
        "version": "0.1.0", "ready": true, "reasons": [], "store": "reachable",
        "backend": "vxlan", "mixed": false, "interface": "eth0", "public_ips": ["172.16.0.5"],
        "config": { "revision": 3, "pending": null, "invalid": null, "rollout": null },
        "subnets": ["10.244.1.0/24"], "mtu": 1450,
        "peers": { "direct": 0, "tunnel": 1, "skipped": 1, "rejected": 0, "missing": 0 },
        "reachability": { "reachable": 1, "degraded": 0, "unreachable": 0, "unknown": 0 },
        "unreachable": [],
        "desired": 6, "refused": [],
        "firewall": null,
        "tables": [],
        "statistics": {
            "created": 6, "replaced": 0, "removed": 0, "dumps": 1, "overruns": 0, "edits": 0,
            "fallbacks": 0, "mac_changes": 0,
        },
        "conflicts": {},
        "guard": null,
        "settings": [],
        "probes": null,
    })
}

pub(crate) fn peer(subnet: &str, programmed: bool) -> Value {
    json!({
        "lease": subnet.replace('/', "-"), "family": "v4", "subnet": subnet,
        "public_ip": "172.16.0.9", "backend": "vxlan", "path": "tunnel", "reason": null,
        "programmed": programmed, "reachability": null, "probes": null,
    })
}
