//! Serves the endpoints: health for supervisors, metrics for monitoring, answers for `tweedctl`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::OptionFuture;
use serde::Serialize;
use serde_json::value::to_raw_value;
use tokio::net::{TcpListener, UnixListener};

use super::Shared;
use crate::control::{HEARTBEAT, Query};
use crate::daemon::http::{self, Response};
use crate::daemon::metrics;
use crate::daemon::options::Options;
use crate::model::status::Readiness;

/// A loop without a heartbeat for this time is stuck.
const STUCK: Duration = HEARTBEAT.saturating_mul(6);

const METRICS: &str = "/metrics";

/// The sockets of the daemon; none for a port that is off.
pub(super) struct Servers {
    control: UnixListener,
    health: Option<TcpListener>,
    metrics: Option<TcpListener>,
}

impl Servers {
    /// # Errors
    /// Another daemon uses the control socket or a port, or they cannot be used.
    pub(super) fn bind(options: &Options) -> Result<Self> {
        let socket = &options.control_socket;
        let control = http::bind_control(socket)
            .with_context(|| format!("binding the control socket {}", socket.display()))?;
        let bind = |address: Option<SocketAddr>, flags| {
            let bind = |address| {
                http::bind_tcp(address).with_context(|| format!("binding {flags} {address}"))
            };
            address.map(bind).transpose()
        };
        let health = bind(options.health, "--healthz-ip and --healthz-port")?;
        let metrics = bind(options.metrics, "--metrics-ip and --metrics-port")?;
        Ok(Self { control, health, metrics })
    }

    /// Never ends.
    pub(super) async fn serve(self, shared: Shared) -> Result<()> {
        let shared = &shared;
        let health = async |path: String| health(&path, shared).await;
        let metrics = async |path: String| match path.as_str() {
            METRICS => metrics(shared).await,
            _ => http::not_found(),
        };
        let control = http::serve(self.control, async |path| control(&path, shared).await);
        let health = OptionFuture::from(self.health.map(|port| http::serve(port, health)));
        let metrics = OptionFuture::from(self.metrics.map(|port| http::serve(port, metrics)));
        tokio::join!(control, health, metrics);
        Ok(())
    }
}

async fn control(path: &str, shared: &Shared) -> Response {
    match path {
        "/status" => answer(shared.ask(Query::Status).await),
        "/peers" => answer(shared.ask(Query::Peers).await),
        "/leases" => answer(shared.ask(Query::Leases).await),
        "/inputs" => answer(shared.ask(Query::Checkpoint).await),
        other => health(other, shared).await,
    }
}

/// On one line, since the answer is long with thousands of peers, and `tweedctl` formats it.
fn answer(answer: Result<impl Serialize>) -> Response {
    match answer.and_then(|answer| Ok(to_raw_value(&answer)?)) {
        Ok(answer) => http::json(200, &answer),
        Err(error) => http::text(503, &format!("{error:#}\n")),
    }
}

async fn health(path: &str, shared: &Shared) -> Response {
    match path {
        "/healthz" => liveness(shared),
        "/readyz" => {
            let readiness = shared.readiness();
            http::json(if readiness.ready { 200 } else { 503 }, &readiness)
        }
        METRICS => metrics(shared).await,
        _ => http::not_found(),
    }
}

async fn metrics(shared: &Shared) -> Response {
    match shared.ask(Query::Status).await {
        Ok(status) => {
            let silence = shared.heartbeat.borrow().elapsed();
            http::text(200, &metrics::render(&status, &shared.readiness(), silence))
        }
        Err(error) => http::text(503, &format!("{error:#}\n")),
    }
}

fn liveness(shared: &Shared) -> Response {
    let silence = shared.heartbeat.borrow().elapsed();
    if silence < STUCK {
        http::text(200, "tweedd is running\n")
    } else {
        http::text(503, &format!("the loop has been stuck for {} s\n", silence.as_secs()))
    }
}

impl Shared {
    /// Ready only if the subnet file is written.
    pub(super) fn readiness(&self) -> Readiness {
        let mut readiness = self.progress.borrow().readiness.clone();
        if let Some(reason) = self.subnet_file.borrow().clone() {
            readiness.ready = false;
            readiness.reasons.insert(0, reason);
        }
        readiness
    }
}
