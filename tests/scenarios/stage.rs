//! Plays a scenario: the real loop on a kernel in memory, with a script for all other programs.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{self, Instant};
use tweed::control::{Event, HEARTBEAT, Outputs, Progress, Query, Reconciler, Settings};
use tweed::daemon::metrics::{self, Scrape};
use tweed::daemon::resources::Resources;
use tweed::model::checkpoint::Checkpoint;
use tweed::model::config::{ConfigUpdate, NetworkConfig, Unusable};
use tweed::model::event::{NodeChange, NodeEvent};
use tweed::model::lease::{Endpoint, Lease, LeaseId, LeaseUpdate};
use tweed::model::node::InterfaceOptions;
use tweed::model::path::{Path, PeerReachability};
use tweed::model::policy::Policy;
use tweed::model::prefix::Prefix;
use tweed::model::probe_secret::Secret;
use tweed::model::report::NodeReport;
use tweed::model::status::{ConfigStatus, PeerStatus, Readiness, StoreState};
use tweed::plan::config_change::{FormerPods, Reload};
use tweed::plan::trace::{Hop, HopState, PeerQuestion, Trace, TracedPacket};
use tweed::probe::{AskedTrace, Packet, PacketKind, ProbeEvent};
use tweed_http::page::Histogram;
use tweed_model::ModelKernel;

use crate::Log;
use crate::notation::{self, lease, lease_id, malformed, prefix, record};
use crate::prober::Prober;
use crate::script::{Command, Part};

pub(crate) struct Stage {
    pub(crate) kernel: ModelKernel,
    settings: Settings,
    events: mpsc::Sender<Event>,
    listeners: Listeners,
    run: JoinHandle<()>,
    own: Option<Lease>,
    /// How often the config was written.
    edits: u64,
    prober: Prober,
    /// What was on disk when the daemon was last stopped.
    saved: Option<Checkpoint>,
    /// What the loop was last asked to save.
    asked: Option<oneshot::Receiver<Option<Checkpoint>>>,
    /// The sequence number of the last event that was expected.
    last_event: u64,
    log: Log,
}

/// What the loop reports.
struct Listeners {
    progress: watch::Receiver<Progress>,
    heartbeat: watch::Receiver<Instant>,
    read_again: watch::Receiver<u64>,
    changed: watch::Receiver<()>,
}

/// Every verdict is reached within this number of steps of the prober.
const MOST_STEPS: usize = 200;

/// Plays `parts` and returns them with what really happened in the place of every expectation.
pub(crate) async fn play(parts: &[Part], log: &Log) -> String {
    let mut stage = None;
    let mut settings = settings();
    let mut played = String::new();
    for part in parts {
        let command = match part {
            Part::Remark(line) => {
                writeln!(played, "{line}").unwrap();
                continue;
            }
            Part::Command(command) => command,
        };
        match (command.verb.as_str(), &mut stage) {
            ("max-withdraw", None) => settings.max_withdraw = command.rest.parse().unwrap(),
            ("config-reload", None) => settings.reload = reload(&command.rest),
            ("flags", None) => take_flags(&mut settings, &command.rest),
            ("node", None) => {
                stage = Some(Stage::start(command, settings.clone(), log.clone()));
            }
            (_, None) => panic!("a scenario begins with its node: {}", command.text()),
            ("expect", Some(stage)) => {
                played.push_str(&command.with(&stage.actual(command).await));
                continue;
            }
            (_, Some(stage)) => stage.perform(command).await,
        }
        played.push_str(command.text());
    }
    played
}

impl Stage {
    fn start(command: &Command, settings: Settings, log: Log) -> Self {
        let interfaces: Vec<&str> = command.items().collect();
        let kernel = ModelKernel::new(notation::host(&interfaces));
        let (events, listeners, run) = daemon(kernel.clone(), settings.clone());
        let prober = Prober::start(&events);
        Self {
            kernel,
            settings,
            events,
            listeners,
            run,
            own: None,
            edits: 0,
            prober,
            saved: None,
            asked: None,
            last_event: 0,
            log,
        }
    }

    async fn perform(&mut self, command: &Command) {
        match command.verb.as_str() {
            "config" => self.configure(&command.items().collect::<Vec<_>>().join(" ")).await,
            "own" => self.hold(&command.rest).await,
            "publish" => self.publish().await,
            "store" => self.send(store(&command.rest)).await,
            "lease" | "leases" => self.send_leases(command).await,
            "probes" => {
                if let Some(event) = self.prober.perform(&command.rest) {
                    self.send(Event::Probe(event)).await;
                }
            }
            "kernel" => crate::host::perform(&self.kernel, &command.rest),
            "restart" => self.restart().await,
            "crash" => self.crash(),
            "flags" => take_flags(&mut self.settings, &command.rest),
            "reboot" => {
                self.restart().await;
                self.set_boot(None);
                self.kernel.reboot();
            }
            "remember" => {
                let saved = self.saved.clone().expect("nothing was saved");
                self.send(Event::Remembered(Box::new(saved))).await;
            }
            // The loop finds what comes next right behind it.
            "save" => return self.ask_to_save().await,
            // Another scenario shows the operations and events so far.
            "skip" => {
                drop(self.events().await);
                self.kernel.take_log();
                self.listeners.changed.mark_unchanged();
            }
            "wait" => time::sleep(duration(&command.rest)).await,
            _ => panic!("unknown command: {}", command.text()),
        }
        self.settle().await;
    }

    /// The store reports the value of the config key, or that it was deleted.
    async fn configure(&mut self, json: &str) {
        self.edits += 1;
        let config = match json {
            "deleted" => Err("the key is missing".to_owned()),
            json => NetworkConfig::parse(json.as_bytes()).map_err(|error| error.to_string()),
        };
        let update = ConfigUpdate { config: config.map_err(Unusable), revision: self.edits };
        self.send(Event::Config(update)).await;
    }

    /// The daemon's part between loop and store: takes the lease with what is to be published.
    async fn hold(&mut self, words: &str) {
        let (subnets, created) = words.split_once(" created=").unwrap_or((words, "1"));
        let subnets: Vec<Prefix> = subnets.split_whitespace().map(prefix).collect();
        let words = subnets.iter().map(|subnet| format!("{subnet}@{}", subnet.base()));
        let words = words.collect::<Vec<_>>().join(" ");
        self.own = Some(lease(&format!("{words} created={created}")));
        self.publish().await;
    }

    async fn publish(&mut self) {
        let attributes = self.listeners.progress.borrow().attributes.clone();
        let attributes = attributes.expect("there is nothing to publish yet");
        let mut own = self.own.clone().expect("no lease is held");
        own.endpoints = attributes.published_for(own.subnets());
        self.own = Some(own.clone());
        self.send(Event::LeaseAcquired(own)).await;
    }

    async fn send_leases(&mut self, command: &Command) {
        let kind = command.kind();
        let items: Vec<&str> = command.items_of(kind).collect();
        let records = items.iter().map(|item| match *item {
            "own" => record(self.own.clone().expect("no lease is held")),
            item => record(lease(item)),
        });
        let updates: Vec<LeaseUpdate> = match kind {
            "snapshot" => vec![LeaseUpdate::Snapshot(records.collect())],
            "put" => records.map(LeaseUpdate::Put).collect(),
            "remove" => items.iter().map(|item| LeaseUpdate::Remove(id(item))).collect(),
            "delete-node" => items.iter().map(|item| LeaseUpdate::DeleteNode(id(item))).collect(),
            "spoil" => {
                let spoilt = |item: &&str| LeaseUpdate::Put(malformed(id(item), "it is no JSON"));
                items.iter().map(spoilt).collect()
            }
            other => panic!("unknown kind of lease command: {other}"),
        };
        for update in updates {
            self.send(Event::Lease(update)).await;
        }
    }

    async fn restart(&mut self) {
        // As on disk: what is not written is not read.
        let saved = serde_json::to_string(&self.ask(Query::Checkpoint).await).unwrap();
        self.saved = serde_json::from_str(&saved).unwrap();
        self.set_boot(Some("this one".to_owned()));
        self.crash();
    }

    /// The boot that the next daemon finds in its checkpoint.
    fn set_boot(&mut self, boot: Option<String>) {
        if let Some(saved) = &mut self.saved {
            saved.host.boot = boot;
        }
    }

    /// What is on disk is what was saved before.
    fn crash(&mut self) {
        self.run.abort();
        self.last_event = 0;
        (self.events, self.listeners, self.run) =
            daemon(self.kernel.clone(), self.settings.clone());
        self.prober = Prober::start(&self.events);
    }

    async fn send(&self, event: Event) {
        self.events.send(event).await.expect("the loop has ended");
    }

    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Query) -> T {
        let (reply, answer) = oneshot::channel();
        self.send(Event::Query(question(reply))).await;
        answer.await.unwrap()
    }

    async fn ask_to_save(&mut self) {
        let (reply, answer) = oneshot::channel();
        self.send(Event::Query(Query::Checkpoint(reply))).await;
        self.asked = Some(answer);
    }

    /// The paused clock advances by a moment once all tasks wait.
    async fn settle(&mut self) {
        time::sleep(Duration::from_millis(1)).await;
        if self.prober.is_probing() {
            self.probe_paths().await;
        }
        assert!(!self.run.is_finished(), "the loop has ended");
    }

    /// Answers probes until every path has the verdict of the script. The scenario's clock does not
    /// advance meanwhile.
    async fn probe_paths(&mut self) {
        let mut peers = self.ask(Query::Peers).await;
        self.prober.expect_verdicts(&peers);
        for _ in 0..MOST_STEPS {
            if !self.prober.has_to_go_on(&peers) {
                return time::sleep(Duration::from_millis(1)).await;
            }
            let due = self.prober.due();
            self.send(Event::Probe(due)).await;
            // With its reply, the loop has sent its questions.
            drop(self.ask(Query::Peers).await);
            for result in self.prober.results() {
                self.send(Event::Probe(result)).await;
            }
            peers = self.ask(Query::Peers).await;
        }
        panic!("the probes do not lead to the verdicts of the script");
    }

    /// The actual values for the expectation of `command`.
    async fn actual(&mut self, command: &Command) -> Vec<String> {
        let progress = self.listeners.progress.borrow().clone();
        match command.kind() {
            "ready" | "not-ready" => {
                let word = if progress.readiness.ready { "ready" } else { "not-ready" };
                headed(word, progress.readiness.reasons)
            }
            "publish" => vec![format!("publish {}", published(&progress))],
            "usable" => vec![format!("usable {}", usable(&progress))],
            "dumps" => vec![format!("dumps {}", self.kernel.dumps())],
            "read-again" => vec![format!("read-again {}", *self.listeners.read_again.borrow())],
            "checkpoint" => {
                let changed = self.listeners.changed.has_changed().unwrap();
                self.listeners.changed.mark_unchanged();
                vec![format!("checkpoint {}", if changed { "changed" } else { "unchanged" })]
            }
            "saved" => self.saved().await,
            "log" => {
                let words = command.rest.strip_prefix("log").unwrap().trim();
                let log = self.log.take();
                let lines = log.lines().filter(|line| line.contains(words));
                let lines = lines.map(|line| line.trim().to_owned());
                [command.rest.clone()].into_iter().chain(lines).collect()
            }
            "metrics" => self.metrics(command.rest.trim_start_matches("metrics").trim()).await,
            "peers" => self.peers().await,
            "events" => self.events().await,
            "trace" => self.trace(&command.rest).await,
            "config" => self.config().await,
            "report" => self.report().await,
            "kernel" => {
                let words = command.rest.strip_prefix("kernel").unwrap().trim();
                let state = self.kernel.state();
                let shown = state.entries().map(ToString::to_string);
                let shown: Vec<_> = shown.filter(|entry| entry.starts_with(words)).collect();
                [command.rest.clone()].into_iter().chain(shown).collect()
            }
            _ => self.ops(),
        }
    }

    fn ops(&self) -> Vec<String> {
        let show = |op| match op {
            // Other tests show the content of tables.
            Ok(op) => format!("{op:#}"),
            Err(refused) => format!("refused {refused}"),
        };
        let log: Vec<String> = self.kernel.take_log().into_iter().map(show).collect();
        if log.is_empty() { vec!["nothing".into()] } else { log }
    }

    /// The series of metrics whose name contains `words` and that are not 0.
    async fn metrics(&self, words: &str) -> Vec<String> {
        let (status, measured) = self.ask(Query::Metrics).await;
        let page = metrics::render(&Scrape {
            status,
            measured,
            readiness: Readiness::default(),
            silence: Duration::ZERO,
            requests: Histogram::default(),
            lease_remaining: 0.0,
            lease_ttl: Duration::ZERO,
            resources: Resources::default(),
            findings: None,
        });
        let shown =
            |line: &&str| line.contains(words) && !line.starts_with('#') && !line.ends_with(" 0");
        let lines = page.lines().filter(shown).map(str::to_owned);
        [format!("metrics {words}")].into_iter().chain(lines).collect()
    }

    async fn peers(&self) -> Vec<String> {
        let peers = self.ask(Query::Peers).await;
        let show = |peer: PeerStatus| {
            let subnet = peer.subnet.map_or(peer.lease.to_string(), |subnet| subnet.to_string());
            let path = match (peer.path, peer.reason) {
                (Some(path), None) => format!("{path:?}").to_lowercase(),
                (Some(path), Some(why)) => format!("{}: {why}", format!("{path:?}").to_lowercase()),
                (None, reason) => reason.unwrap_or_default(),
            };
            let is_missing = peer.path.is_some() && !peer.programmed;
            let missing = if is_missing { ", not programmed" } else { "" };
            let unreachable = match peer.reachability {
                Some(PeerReachability::Unreachable { cause, .. }) => {
                    format!(", unreachable: {cause}")
                }
                Some(_) | None => String::new(),
            };
            format!("{subnet} {path}{missing}{unreachable}")
        };
        headed("peers", peers.into_iter().map(show).collect())
    }
}

impl Stage {
    /// What this node answers to the question of a peer, `trace PEER SRC DST SIZE PATH`.
    async fn trace(&mut self, words: &str) -> Vec<String> {
        let [_, peer, source, destination, size, path] =
            words.split(' ').collect::<Vec<_>>().try_into().expect("trace PEER SRC DST SIZE PATH");
        let [source, destination] = [source, destination].map(|text| text.parse().unwrap());
        let packet = TracedPacket::parse(source, destination, size.parse().unwrap()).unwrap();
        let arrives_by = Path::ALL.into_iter().find(|it| it.as_str() == path);
        let peer = prefix(peer).base();
        let asked = AskedTrace {
            peer,
            question: PeerQuestion { packet, arrives_by },
            answer: Packet::new(PacketKind::TraceAnswer, Path::Tunnel, 7, source, peer),
            gateway: peer,
            secret: Secret::new(&[7; Secret::LENGTH]),
        };
        self.send(Event::Probe(ProbeEvent::Asked(Box::new(asked)))).await;
        time::sleep(Duration::from_millis(1)).await;
        let Some(Trace { hops, delivery, .. }) = self.prober.answered() else {
            return vec![words.to_owned(), "no answer".to_owned()];
        };
        let show = |Hop { hop, state, text }| {
            let state =
                if state == HopState::Passed { String::new() } else { format!("{state:?}: ") };
            format!("{}: {}{text}", hop.as_str(), state.to_lowercase())
        };
        let head = [words.to_owned(), format!("{delivery:?}").to_lowercase()];
        head.into_iter().chain(hops.into_iter().map(show)).collect()
    }

    /// The events since the last expectation.
    async fn events(&mut self) -> Vec<String> {
        let events = self.ask(|reply| Query::Events(self.last_event, reply)).await.events;
        self.last_event = events.last().map_or(self.last_event, |event| event.sequence);
        let show = |event: &Arc<NodeEvent>| {
            let NodeChange { kind, subject, message, .. } = &event.change;
            format!("{} {subject}: {message}", kind.as_str())
        };
        headed("events", events.iter().map(show).collect())
    }

    /// The leases that the loop gave to be saved.
    async fn saved(&mut self) -> Vec<String> {
        let asked = self.asked.take().expect("nothing was to be saved");
        let Some(Checkpoint { leases, .. }) = asked.await.unwrap() else {
            return vec!["saved nothing".to_owned()];
        };
        let show = |end: &Endpoint| format!("{}@{}", end.subnet, end.public_ip);
        let ends = leases.iter().flat_map(|lease| &lease.endpoints);
        headed("saved", ends.map(show).collect())
    }

    /// The applied config, and why the newest one is pending.
    async fn config(&self) -> Vec<String> {
        let status = self.ask(Query::Status).await;
        let backend = status.backend.unwrap_or_default();
        let mixed = if status.mixed { " mixed" } else { "" };
        let ConfigStatus { rollout, pending, invalid, revision } = status.config;
        let head = format!("config {backend}{mixed}, revision {revision}");
        [Some(head), rollout, pending, invalid].into_iter().flatten().collect()
    }

    /// The report of the node for the operator.
    async fn report(&self) -> Vec<String> {
        let report = self.ask(Query::Report).await;
        let Some(NodeReport { exceptions, peers, failing_peers, .. }) = report else {
            return vec!["report nothing".to_owned()];
        };
        let head = format!("{} direct, {} by tunnel", peers.direct, peers.tunnel);
        let lines = exceptions.into_iter().map(|e| format!("{} {}", e.lease, e.reason));
        let failing = failing_peers.into_iter().map(|peer| {
            let cause = peer.reachability.cause().unwrap_or_default();
            format!("{} {}: {cause}", peer.lease, peer.reachability.state().as_str())
        });
        headed("report", [head].into_iter().chain(lines).chain(failing).collect())
    }
}

fn settings() -> Settings {
    Settings {
        interface: InterfaceOptions::default(),
        max_withdraw: 50,
        reload: Reload::Live,
        former_pods: FormerPods::Leased,
        policy: Policy::default(),
        resync: Duration::from_secs(5),
        jitter: || 0.5,
    }
}

fn take_flags(settings: &mut Settings, flags: &str) {
    let control = notation::options(flags).control;
    (settings.policy, settings.interface) = (control.policy, control.interface);
}

fn daemon(
    kernel: ModelKernel,
    settings: Settings,
) -> (mpsc::Sender<Event>, Listeners, JoinHandle<()>) {
    let (events, received) = mpsc::channel(64);
    let outputs = Outputs::default();
    let listeners = Listeners {
        progress: outputs.progress.subscribe(),
        heartbeat: outputs.heartbeat.subscribe(),
        read_again: outputs.read_again.subscribe(),
        changed: outputs.changed.subscribe(),
    };
    let run = Reconciler::new(kernel, settings, received, outputs).run();
    (events, listeners, tokio::task::spawn_local(run))
}

fn headed(head: &str, items: Vec<String>) -> Vec<String> {
    let mut items = items.into_iter();
    let first = items.next().map_or(head.to_owned(), |item| format!("{head} {item}"));
    [first].into_iter().chain(items).collect()
}

fn published(progress: &Progress) -> String {
    let Some(attributes) = &progress.attributes else { return "nothing".into() };
    let endpoints = attributes.endpoints.iter().map(|endpoint| {
        let vtep = endpoint.vtep.map(|vtep| {
            let mixed = if vtep.mixed { " mixed" } else { "" };
            format!(" {}{mixed}", vtep.mac)
        });
        format!(" {}{}", endpoint.public_ip, vtep.unwrap_or_default())
    });
    format!("{}{}", attributes.backend.as_str(), endpoints.collect::<String>())
}

fn usable(progress: &Progress) -> String {
    let Some(usable) = &progress.usable else { return "nothing".into() };
    let subnets: Vec<String> = usable.subnets.iter().map(ToString::to_string).collect();
    format!("{} mtu {}", subnets.join(" "), usable.mtu)
}

fn reload(words: &str) -> Reload {
    match words {
        "true" => Reload::Live,
        "false" => Reload::AtStart,
        other => panic!("--config-reload is not {other}"),
    }
}

fn store(words: &str) -> Event {
    Event::Store(match words {
        "overdue" => return Event::Overdue,
        "reachable" => StoreState::Reachable,
        "refuses" => StoreState::OptionalRefused("this node's report: request is too large".into()),
        "lacks" => StoreState::NoSubnet(
            "no subnet for this node yet: node n1: it has no IPv4 podCIDR yet".into(),
        ),
        "lacks-ipv6" => StoreState::RequestRefused(
            "no subnet of another address family yet: node n1: it has no IPv6 podCIDR yet".into(),
        ),
        "holds" => StoreState::OversizedValue("a value is too large for a lease".into()),
        "unreachable" => StoreState::Unreachable("no server answers".into()),
        other => panic!("a store is not {other}"),
    })
}

fn id(subnets: &str) -> LeaseId {
    lease_id(&subnets.split_whitespace().map(prefix).collect::<Vec<_>>())
}

pub(crate) fn duration(text: &str) -> Duration {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let number: u64 = digits.parse().unwrap();
    match &text[digits.len()..] {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(60 * number),
        "h" => Duration::from_secs(3600 * number),
        unit => panic!("{unit} is no unit of time"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_report_that_changes_nothing_is_a_heartbeat_too() {
    let test = async {
        let kernel = ModelKernel::new(notation::host(&[]));
        let (events, listeners, _run) = daemon(kernel, settings());
        let peer = prefix("10.244.2.0/24").base();
        for _ in 0..3 {
            time::sleep(HEARTBEAT / 2).await;
            let alive = ProbeEvent::Alive { peer, at: Instant::now() };
            events.send(Event::Probe(alive)).await.unwrap();
            time::sleep(Duration::from_millis(1)).await;
            assert!(listeners.heartbeat.borrow().elapsed() <= Duration::from_millis(2));
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn an_audit_lists_the_host_and_what_it_holds_once() {
    let test = async {
        let kernel = ModelKernel::new(notation::host(&["eth0 172.16.0.1/24"]));
        let (events, _listeners, _run) = daemon(kernel.clone(), settings());
        let config = NetworkConfig::parse(br#"{ "Network": "10.244.0.0/16" }"#);
        let config = config.map_err(|error| Unusable(error.to_string()));
        events.send(Event::Config(ConfigUpdate { config, revision: 1 })).await.unwrap();
        time::sleep(Duration::from_secs(10)).await;
        let (listings, dumps) = (kernel.listings(), kernel.dumps());
        time::sleep(Duration::from_secs(300)).await;
        assert_eq!((kernel.listings(), kernel.dumps()), (listings + 1, dumps + 1));
    };
    LocalSet::new().run_until(test).await;
}
