//! What the proxy serves about itself: health, readiness and metrics.

use std::cell::RefCell;
use std::future::pending;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use futures::future::OptionFuture;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;
use tracing::info;
use tweed_http::page::{Histogram, Page};
use tweed_http::process::Process;
use tweed_http::{Response, bind_tcp, json, not_found, serve, text};

use crate::options::Run;
use tweed_proxy::kernel::Damage;
use tweed_proxy::objects::watch::Access;

/// What `run` has done, and how it is.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// The kinds of objects that are not listed yet.
    pub(crate) unlisted: Vec<&'static str>,
    /// What is wrong with the Node of this host.
    pub(crate) node_problem: Option<String>,
    /// Whether all services were programmed once.
    pub(crate) is_programmed: bool,
    /// Why the table is not up to date.
    pub(crate) problem: Option<String>,
    pub(crate) frontends: usize,
    /// How many services and frontends are not programmed as their objects ask for it.
    pub(crate) warnings: usize,
    /// How the API server answers.
    pub(crate) access: Access,
    /// Elements that were put or removed.
    pub(crate) changes: u64,
    /// How often other programs have changed the table.
    foreign_changes: u64,
    /// How often it is unknown whether one has.
    lost_reports: u64,
    /// Of writing what differs, in seconds.
    durations: Histogram,
}

/// The answer to `/readyz`.
#[derive(Serialize)]
struct Readiness {
    ready: bool,
    reasons: Vec<String>,
}

/// The ports; none if they are off.
pub(crate) struct Servers {
    health: Option<TcpListener>,
    metrics: Option<TcpListener>,
    started: SystemTime,
}

const METRICS: &str = "/metrics";

impl Figures {
    /// A writing of what differed.
    pub(crate) fn note(&mut self, took: Duration) {
        self.durations.observe(took.as_secs_f64());
    }

    /// The table is read again. `is_first`: for the first time for a while.
    pub(crate) fn note_damage(&mut self, damage: Damage, is_first: bool) {
        let (count, what) = match damage {
            Damage::Foreign => (&mut self.foreign_changes, "another program changed the table"),
            Damage::LostReports => {
                (&mut self.lost_reports, "reports of changes of the table were lost")
            }
        };
        *count += 1;
        if is_first {
            info!("{what}: reading it again");
        }
    }

    fn readiness(&self) -> Readiness {
        let problems = [&self.node_problem, &self.problem].into_iter().flatten();
        let unlisted = self.unlisted.iter().map(|kind| format!("the {kind} are not listed yet"));
        let mut reasons: Vec<String> = unlisted.chain(problems.cloned()).collect();
        if reasons.is_empty() && !self.is_programmed {
            reasons.push("the services are not programmed yet".to_owned());
        }
        Readiness { ready: reasons.is_empty(), reasons }
    }

    fn page(&self) -> Page {
        let mut page = Page::default();
        let help = "Version of this program; always 1.";
        page.by_label("tweed_proxy_build_info", help, "version", [(env!("CARGO_PKG_VERSION"), 1)]);
        let help = "Whether all services are programmed, as /readyz reports.";
        page.gauge("tweed_proxy_ready", help, u8::from(self.readiness().ready));
        let help = "Addresses with protocol and port by which services are reached.";
        page.gauge("tweed_proxy_frontends", help, self.frontends);
        let help = "Fields of objects that are unsupported, in conflict or unreadable; the log names them.";
        page.gauge("tweed_proxy_warnings", help, self.warnings);
        let help = "Elements of sets that were put or removed.";
        page.counter("tweed_proxy_changed_elements_total", help, self.changes);
        let help = "Changes of the table by other programs, after each of which it was read again.";
        page.counter("tweed_proxy_foreign_changes_total", help, self.foreign_changes);
        let help =
            "Losses of the kernel's reports of changes, after each of which the table was read.";
        page.counter("tweed_proxy_lost_reports_total", help, self.lost_reports);
        let name = "tweed_proxy_watch_silence_seconds";
        page.family(name, "gauge", "Time for which a watch has had no answer; 0 if it has one.");
        for (kind, silence) in self.access.silences() {
            // As resources are named.
            page.sample(name, &[("kind", &kind.replace(' ', ""))], silence.as_secs_f64());
        }
        let help = "Times of writing what differs, in seconds.";
        let name = "kubeproxy_sync_proxy_rules_duration_seconds";
        page.histogram(name, help, &self.durations);
        page
    }
}

impl Servers {
    /// # Errors
    /// An address is in use, or none of this host.
    pub(crate) fn bind(options: &Run) -> anyhow::Result<Self> {
        let bind = |address: Option<SocketAddr>, flag| {
            let bind = |address| bind_tcp(address).with_context(|| format!("{flag} {address}"));
            address.map(bind).transpose()
        };
        Ok(Self {
            health: bind(options.healthz_bind_address, "--healthz-bind-address")?,
            metrics: bind(options.metrics_bind_address, "--metrics-bind-address")?,
            started: SystemTime::now(),
        })
    }

    /// Never ends.
    pub(crate) async fn serve(self, figures: &RefCell<Figures>) {
        let started = self.started;
        let metrics = async |path: String| match path.as_str() {
            METRICS => page(started, figures).await,
            _ => not_found(),
        };
        let health = async |path: String| match path.as_str() {
            // The loop runs in the same thread: if that answers, the loop is not stuck.
            "/healthz" | "/livez" => text(200, "tweed-proxy is running\n"),
            "/readyz" => {
                let readiness = figures.borrow().readiness();
                json(if readiness.ready { 200 } else { 503 }, &readiness)
            }
            METRICS => page(started, figures).await,
            _ => not_found(),
        };
        let health = OptionFuture::from(self.health.map(|port| serve(port, health)));
        let metrics = OptionFuture::from(self.metrics.map(|port| serve(port, metrics)));
        tokio::join!(health, metrics);
        pending::<()>().await;
    }
}

async fn page(started: SystemTime, figures: &RefCell<Figures>) -> Response {
    let process = spawn_blocking(move || Process::read(started)).await;
    let mut page = figures.borrow().page();
    if let Ok(Ok(process)) = process {
        process.add_to(&mut page);
    }
    text(200, &page.into_text())
}
