//! The endpoints: health for supervisors, metrics for monitoring, answers for `tweedctl`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use serde_json::value::to_raw_value;
use tokio::net::{TcpListener, UnixListener};

use super::Shared;
use crate::control::{HEARTBEAT, Question};
use crate::daemon::http::{self, Response};
use crate::daemon::metrics;
use crate::daemon::options::Options;
use crate::model::status::Readiness;

/// A loop that has not gone round for so long is stuck.
const STUCK: Duration = HEARTBEAT.saturating_mul(6);

const METRICS: &str = "/metrics";

/// Binds the control socket.
///
/// # Errors
/// Another daemon answers on it, or the path cannot be used.
pub(super) fn bind_control(options: &Options) -> anyhow::Result<UnixListener> {
    http::bind_control(&options.control_socket)
        .with_context(|| format!("binding the control socket {}", options.control_socket.display()))
}

/// Binds the health port; none if it is off.
pub(super) fn bind_health(options: &Options) -> anyhow::Result<Option<TcpListener>> {
    options.health.map(|address| bind(address, "--healthz-ip and --healthz-port")).transpose()
}

/// Binds the port of the metrics alone; none if it is off.
pub(super) fn bind_metrics(options: &Options) -> anyhow::Result<Option<TcpListener>> {
    options.metrics.map(|address| bind(address, "--metrics-ip and --metrics-port")).transpose()
}

fn bind(address: SocketAddr, flags: &str) -> anyhow::Result<TcpListener> {
    http::bind_tcp(address).with_context(|| format!("binding {flags} {address}"))
}

pub(super) async fn serve_health(listener: TcpListener, shared: Shared) -> anyhow::Result<()> {
    let shared = &shared;
    http::serve(listener, |path| async move { health(&path, shared).await }).await;
    Ok(())
}

pub(super) async fn serve_metrics(listener: TcpListener, shared: Shared) -> anyhow::Result<()> {
    let shared = &shared;
    let route = |path: String| async move {
        if path == METRICS { metrics(shared).await } else { http::not_found() }
    };
    http::serve(listener, route).await;
    Ok(())
}

pub(super) async fn serve_control(listener: UnixListener, shared: Shared) -> anyhow::Result<()> {
    let shared = &shared;
    http::serve(listener, |path| async move { control(&path, shared).await }).await;
    Ok(())
}

async fn control(path: &str, shared: &Shared) -> Response {
    match path {
        "/status" => answer(shared.ask(Question::Status).await),
        "/peers" => answer(shared.ask(Question::Peers).await),
        "/leases" => answer(shared.ask(Question::Leases).await),
        "/inputs" => answer(shared.ask(Question::Checkpoint).await),
        other => health(other, shared).await,
    }
}

/// On one line: thousands of peers make a long answer, and `tweedctl` lays it out.
fn answer(answer: anyhow::Result<impl Serialize>) -> Response {
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
    match metrics_page(shared).await {
        Ok(page) => http::text(200, &page),
        Err(error) => http::text(503, &format!("{error:#}\n")),
    }
}

async fn metrics_page(shared: &Shared) -> anyhow::Result<String> {
    let status = shared.ask(Question::Status).await?;
    let silence = shared.heartbeat.borrow().elapsed();
    Ok(metrics::render(&status, &shared.readiness(), silence))
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
    /// Ready only with a subnet file that pods can be made by.
    fn readiness(&self) -> Readiness {
        let mut readiness = self.progress.borrow().readiness.clone();
        if let Some(reason) = self.subnet_file.borrow().clone() {
            readiness.ready = false;
            readiness.reasons.insert(0, reason);
        }
        readiness
    }
}
