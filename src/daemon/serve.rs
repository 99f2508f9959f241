//! Serves the endpoints: health for supervisors, metrics for monitoring, answers for `tweedctl`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::OptionFuture;
use serde::Serialize;
use serde_json::value::to_raw_value;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tweed_http::{self as http, Response};

use super::{CHECK, Shared};
use crate::control::{HEARTBEAT, Query};
use crate::daemon::metrics::{self, Scrape};
use crate::daemon::options::Options;
use crate::daemon::resources::Resources;
use crate::model::path::Path;
use crate::model::status::Readiness;
use crate::plan::trace::{PeerHops, PeerQuestion, TracedPacket};
use crate::probe::TRACE_TIMEOUT;
use crate::store::LeaseTerm;

/// A loop without a heartbeat for this time is stuck.
const STUCK: Duration = HEARTBEAT.saturating_mul(6);

const METRICS: &str = "/metrics";
const TRACE: &str = "/trace/";
/// In place of a path: the peer sends the packet.
const SENT: &str = "sent";

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
        let control = serve_control(self.control, shared);
        let health = OptionFuture::from(self.health.map(|port| http::serve(port, health)));
        let metrics = OptionFuture::from(self.metrics.map(|port| http::serve(port, metrics)));
        tokio::join!(control, health, metrics);
        Ok(())
    }
}

/// Binds the socket again if its file is gone, as after `rm -r /run/flannel`.
async fn serve_control(mut listener: UnixListener, shared: &Shared) {
    let path = &shared.options.control_socket;
    loop {
        tokio::select! {
            () = http::serve(listener, async |path| control(&path, shared).await) => return,
            again = rebind(path) => listener = again,
        }
        tracing::warn!(path = %path.display(), "bound the control socket again: another program had removed it");
    }
}

/// The socket, once its file was gone.
async fn rebind(path: &std::path::Path) -> UnixListener {
    loop {
        sleep(CHECK).await;
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match http::bind_control(path) {
            Ok(listener) => return listener,
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "the control socket is gone");
            }
        }
    }
}

async fn control(path: &str, shared: &Shared) -> Response {
    match path {
        "/status" => answer(shared.ask(Query::Status).await),
        "/peers" => answer(shared.ask(Query::Peers).await),
        "/leases" => answer(shared.ask(Query::Leases).await),
        "/store" => http::json(200, &shared.options.store.location()),
        "/inputs" => answer(shared.ask(Query::Checkpoint).await),
        "/events" => answer(shared.ask(|reply| Query::Events(0, reply)).await),
        other => {
            if let Some(Ok(after)) = other.strip_prefix("/events/").map(str::parse) {
                return answer(shared.ask(|reply| Query::Events(after, reply)).await);
            }
            match other.strip_prefix(TRACE).and_then(asked) {
                Some((peer, question)) => answer(trace(peer, question, shared).await),
                None => health(other, shared).await,
            }
        }
    }
}

/// `PEER/SRC/DST/SIZE/PATH`, as [`trace_path`] writes it.
fn asked(words: &str) -> Option<(IpAddr, PeerQuestion)> {
    let mut words = words.split('/');
    let mut address = || words.next()?.parse().ok();
    let (peer, source, destination) = (address()?, address()?, address()?);
    let size = words.next()?.parse().ok()?;
    let name = words.next()?;
    let path = Path::ALL.into_iter().find(|path| path.as_str() == name);
    let is_complete = words.next().is_none() && (path.is_some() || name == SENT);
    let packet = TracedPacket::parse(source, destination, size).ok().filter(|_| is_complete)?;
    Some((peer, PeerQuestion { packet, arrives_by: path }))
}

/// The path on the control socket for a question to the peer whose subnet begins with `peer`.
pub fn trace_path(peer: IpAddr, PeerQuestion { packet, arrives_by }: PeerQuestion) -> String {
    let TracedPacket { source, destination, size } = packet;
    let path = arrives_by.map_or(SENT, Path::as_str);
    format!("{TRACE}{peer}/{source}/{destination}/{size}/{path}")
}

/// The hops on the peer, or why they are not seen.
async fn trace(peer: IpAddr, question: PeerQuestion, shared: &Shared) -> Result<PeerHops> {
    let answer = match shared.ask(|reply| Query::Peer(peer, question, reply)).await? {
        Ok(answer) => answer,
        Err(reason) => return Ok(PeerHops::Unseen(reason)),
    };
    Ok(match timeout(TRACE_TIMEOUT, answer).await {
        Ok(Ok(trace)) => PeerHops::Seen(trace),
        Ok(Err(_)) | Err(_) => PeerHops::Unseen("no answer within 1 s".to_owned()),
    })
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
    let page = if let Ok(figures) = figures(shared).await {
        metrics::render(&figures)
    } else {
        // If the scrape failed, no alert could report that the loop is stuck.
        let silence = shared.heartbeat.borrow().elapsed();
        metrics::render_stuck(env!("CARGO_PKG_VERSION"), &shared.readiness(), silence)
    };
    http::text(200, &page)
}

async fn figures(shared: &Shared) -> Result<Scrape> {
    let (status, measured) = shared.ask(Query::Metrics).await?;
    let (started, subnets) = (shared.started, status.subnets.clone());
    let resources = spawn_blocking(move || Resources::read(started, &subnets)).await;
    let lease_remaining = match *shared.term.borrow() {
        LeaseTerm::None => 0.0,
        LeaseTerm::Until(end) => end.saturating_duration_since(Instant::now()).as_secs_f64(),
        LeaseTerm::Unlimited => f64::INFINITY,
    };
    Ok(Scrape {
        status,
        readiness: shared.readiness(),
        silence: shared.heartbeat.borrow().elapsed(),
        measured,
        requests: shared.requests.borrow().clone(),
        lease_remaining,
        lease_ttl: shared.options.lease.ttl,
        resources: resources.unwrap_or_default(),
        findings: shared.findings.borrow().clone(),
    })
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
    pub(super) fn readiness(&self) -> Readiness {
        let progress = self.progress.borrow();
        let lacks = match &*self.subnet_file.borrow() {
            Ok(content) => content.lacks(&progress, &self.options.control.policy),
            Err(reason) => Some(reason.clone()),
        };
        progress.readiness.clone().with_subnet_file(lacks)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::SystemTime;

    use http_body_util::BodyExt;
    use tokio::sync::{mpsc, watch};
    use tokio::time::advance;

    use super::*;
    use crate::control::{Event, Outputs};
    use crate::daemon::{Blocking, checkpoint, files};

    /// What the endpoints share, next to a loop that reads no event.
    fn shared_with_a_stuck_loop(events: mpsc::Sender<Event>) -> Shared {
        let outputs = Outputs::default();
        Shared {
            options: Rc::new(Options::parse([""; 0], |_| None).unwrap()),
            host: checkpoint::this_host(),
            events,
            progress: outputs.progress.subscribe(),
            heartbeat: outputs.heartbeat.subscribe(),
            turns: files::Turns::default(),
            subnet_file: watch::Sender::new(Err(files::NOT_WRITTEN.to_owned())),
            findings: watch::Sender::default(),
            requests: watch::Sender::default().subscribe(),
            term: watch::Sender::new(LeaseTerm::None).subscribe(),
            started: SystemTime::UNIX_EPOCH,
            begun: Instant::now(),
            blocking: Blocking::Inline,
        }
    }

    async fn body(answer: Response) -> String {
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_without_a_heartbeat_for_thirty_seconds_is_not_alive() {
        let (events, _unread) = mpsc::channel(1);
        let shared = shared_with_a_stuck_loop(events);
        advance(Duration::from_secs(29)).await;
        assert_eq!(health("/healthz", &shared).await.status(), 200);
        advance(Duration::from_secs(1)).await;
        for answer in [health("/healthz", &shared).await, control("/healthz", &shared).await] {
            assert_eq!(answer.status(), 503);
            assert_eq!(body(answer).await, "the loop has been stuck for 30 s\n");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn metrics_of_a_stuck_loop_contain_its_silence() {
        let (events, _unread) = mpsc::channel(1);
        let shared = shared_with_a_stuck_loop(events);
        advance(Duration::from_secs(40)).await;
        let answer = health(METRICS, &shared).await;
        assert_eq!(answer.status(), 200);
        let page = body(answer).await;
        let silence = page.lines().find_map(|it| it.strip_prefix("tweed_loop_silence_seconds "));
        let silence: f64 = silence.unwrap().parse().unwrap();
        assert!(silence >= 40.0, "{page}");
        assert!(page.contains("\ntweed_ready 0\n"), "{page}");
    }
}
