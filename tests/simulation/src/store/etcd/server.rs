//! A connection to the etcd in memory: the services of etcd, without sockets.

use std::task::{Context, Poll};

use etcd_client::Channel;
use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbEvent,
    PbKvServer, PbKvService, PbLeaseGrantRequest, PbLeaseGrantResponse, PbLeaseKeepAliveRequest,
    PbLeaseKeepAliveResponse, PbLeaseLeasesRequest, PbLeaseLeasesResponse, PbLeaseRevokeRequest,
    PbLeaseRevokeResponse, PbLeaseServer, PbLeaseService, PbLeaseTimeToLiveRequest,
    PbLeaseTimeToLiveResponse, PbPutRequest, PbPutResponse, PbRangeRequest, PbRangeResponse,
    PbRangeStreamResponse, PbResponseHeader, PbTxnOpRequest, PbTxnOpResponse, PbTxnRequest,
    PbTxnRequestOp, PbTxnResponse, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse,
    PbWatchServer, PbWatchService,
};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::{Request, Response, Status, Streaming};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt};

use super::Etcd;
use super::state::{Answer, Change, State, Wish, is_empty};
use crate::network::{Direction, Link};
use crate::store::{FULL, Health, think};

#[derive(Clone)]
pub(super) struct Connection {
    etcd: Etcd,
    link: Link,
}

/// The changes that wait for an observer; a slower one loses its connection.
const BACKLOG: usize = 4096;
/// The revisions of events before a watch began that are sent at once. All these messages have the
/// present revision.
const MISSED: usize = 1000;

type Outcome<T> = Result<Response<T>, Status>;
type Messages<T> = BoxStream<'static, Result<T, Status>>;

impl Connection {
    pub(super) fn channel(etcd: Etcd, link: Link) -> Channel {
        Channel::Custom(BoxCloneSyncService::new(Self { etcd, link }))
    }

    /// Takes a request across, has it answered, and takes the answer back.
    async fn answer<T>(&self, answer: impl FnOnce(&mut State) -> Changed<T>) -> Outcome<T> {
        self.answer_unless_full(false, answer).await
    }

    /// The same for a request that a full etcd refuses if it `puts`.
    async fn answer_unless_full<T>(
        &self,
        puts: bool,
        answer: impl FnOnce(&mut State) -> Changed<T>,
    ) -> Outcome<T> {
        self.link.count();
        let closings = self.etcd.closings.subscribe();
        self.link.cross(Direction::Request).await.map_err(|_| closed())?;
        think(self.etcd.health()).await;
        match self.etcd.health() {
            Health::Down => return Err(closed()),
            Health::Leaderless => return Err(Status::unavailable("etcdserver: no leader")),
            Health::Full if puts => return Err(Status::resource_exhausted(FULL)),
            Health::Up | Health::Full | Health::Slow(_) => {}
        }
        let answer = self.etcd.change(|state| match answer(state) {
            Ok((answer, change)) => (Ok(answer), change),
            Err(status) => (Err(status), None),
        });
        self.link.cross(Direction::Answer).await.map_err(|_| closed())?;
        // An answer does not come after the end of its connection.
        if closings.has_changed().unwrap_or(true) {
            return Err(closed());
        }
        answer.map(Response::new)
    }

    /// Takes the messages of `stream` back one by one, until the connection is closed.
    fn back<T: Send + 'static>(&self, stream: Messages<T>) -> Messages<T> {
        let link = self.link.clone();
        let across = stream.then(move |message| {
            let link = link.clone();
            async move {
                link.cross(Direction::Answer).await.map_err(|_| closed())?;
                message
            }
        });
        let (link, mut closings) = (self.link.clone(), self.etcd.closings.subscribe());
        let end = stream::once(async move {
            tokio::select! {
                biased;
                _ = closings.changed() => {}
                () = link.closed() => {}
            }
            Err(closed())
        });
        // The first error ends the stream.
        stream::select(across.boxed(), end.boxed())
            .scan(false, |is_over, message| {
                let next = (!*is_over).then(|| {
                    *is_over = message.is_err();
                    message
                });
                futures::future::ready(next)
            })
            .boxed()
    }
}

type Changed<T> = Answer<(T, Option<Change>)>;

fn closed() -> Status {
    Status::unavailable("connection closed")
}

impl Service<http::Request<Body>> for Connection {
    type Response = http::Response<Body>;
    type Error = BoxError;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (connection, path) = (self.clone(), request.uri().path().to_owned());
        Box::pin(async move {
            let answered = if path.starts_with("/etcdserverpb.KV/") {
                PbKvServer::new(connection).oneshot(request).await
            } else if path.starts_with("/etcdserverpb.Watch/") {
                PbWatchServer::new(connection).oneshot(request).await
            } else {
                PbLeaseServer::new(connection).oneshot(request).await
            };
            answered.map_err(|never| match never {})
        })
    }
}

#[tonic::async_trait]
impl PbKvService for Connection {
    type RangeStreamStream = Messages<PbRangeStreamResponse>;

    async fn range(&self, request: Request<PbRangeRequest>) -> Outcome<PbRangeResponse> {
        let request = request.into_inner();
        self.answer(|state| Ok((state.range(&request)?, None))).await
    }

    async fn range_stream(&self, _: Request<PbRangeRequest>) -> Outcome<Self::RangeStreamStream> {
        Err(Status::unimplemented("etcd 3.4 has no such request"))
    }

    async fn put(&self, request: Request<PbPutRequest>) -> Outcome<PbPutResponse> {
        let ops = one(PbTxnOpRequest::RequestPut(request.into_inner()));
        let put = |response| match response {
            PbTxnOpResponse::ResponsePut(put) => Some(put),
            _ => None,
        };
        self.answer_unless_full(true, |state| single(state, &ops, put)).await
    }

    async fn delete_range(&self, request: Request<PbDeleteRequest>) -> Outcome<PbDeleteResponse> {
        let ops = one(PbTxnOpRequest::RequestDeleteRange(request.into_inner()));
        let deleted = |response| match response {
            PbTxnOpResponse::ResponseDeleteRange(deleted) => Some(deleted),
            _ => None,
        };
        self.answer(|state| single(state, &ops, deleted)).await
    }

    async fn txn(&self, request: Request<PbTxnRequest>) -> Outcome<PbTxnResponse> {
        let request = request.into_inner();
        let is_put =
            |op: &PbTxnRequestOp| matches!(op.request, Some(PbTxnOpRequest::RequestPut(_)));
        let puts = request.success.iter().chain(&request.failure).any(is_put);
        self.answer_unless_full(puts, |state| state.txn(&request)).await
    }

    async fn compact(
        &self,
        request: Request<PbCompactionRequest>,
    ) -> Outcome<PbCompactionResponse> {
        let revision = request.into_inner().revision;
        self.answer(|state| {
            state.compact(revision)?;
            Ok((PbCompactionResponse { header: Some(state.header()) }, None))
        })
        .await
    }
}

fn one(request: PbTxnOpRequest) -> PbTxnRequest {
    let success = vec![PbTxnRequestOp { request: Some(request) }];
    PbTxnRequest { success, ..PbTxnRequest::default() }
}

/// A single request is a transaction of one operation.
fn single<T: WithHeader>(
    state: &mut State,
    ops: &PbTxnRequest,
    take: impl Fn(PbTxnOpResponse) -> Option<T>,
) -> Changed<T> {
    let (answer, change) = state.txn(ops)?;
    let response = answer.responses.into_iter().find_map(|op| take(op.response?));
    let mut response = response.ok_or_else(|| Status::internal("no response"))?;
    response.set_header(answer.header);
    Ok((response, change))
}

trait WithHeader {
    fn set_header(&mut self, header: Option<PbResponseHeader>);
}

impl WithHeader for PbPutResponse {
    fn set_header(&mut self, header: Option<PbResponseHeader>) {
        self.header = header;
    }
}

impl WithHeader for PbDeleteResponse {
    fn set_header(&mut self, header: Option<PbResponseHeader>) {
        self.header = header;
    }
}

#[tonic::async_trait]
impl PbLeaseService for Connection {
    type LeaseKeepAliveStream = Messages<PbLeaseKeepAliveResponse>;

    async fn lease_grant(
        &self,
        request: Request<PbLeaseGrantRequest>,
    ) -> Outcome<PbLeaseGrantResponse> {
        let PbLeaseGrantRequest { ttl, id } = request.into_inner();
        self.answer_unless_full(true, |state| {
            let id = state.grant(id, ttl)?;
            let header = Some(state.header());
            Ok((PbLeaseGrantResponse { header, id, ttl, error: String::new() }, None))
        })
        .await
    }

    async fn lease_revoke(
        &self,
        request: Request<PbLeaseRevokeRequest>,
    ) -> Outcome<PbLeaseRevokeResponse> {
        let id = request.into_inner().id;
        self.answer(|state| {
            let change = state.revoke(id)?;
            Ok((PbLeaseRevokeResponse { header: Some(state.header()) }, change))
        })
        .await
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<PbLeaseKeepAliveRequest>>,
    ) -> Outcome<Self::LeaseKeepAliveStream> {
        self.answer(|_| Ok(((), None))).await?;
        let connection = self.clone();
        let answers = request.into_inner().then(move |request| {
            let connection = connection.clone();
            async move {
                let id = request?.id;
                let answered = connection.answer(|state| {
                    let ttl = state.keep_alive(id);
                    let header = Some(state.header());
                    Ok((PbLeaseKeepAliveResponse { header, id, ttl }, None))
                });
                answered.await.map(Response::into_inner)
            }
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<PbLeaseTimeToLiveRequest>,
    ) -> Outcome<PbLeaseTimeToLiveResponse> {
        let PbLeaseTimeToLiveRequest { id, keys: with_keys } = request.into_inner();
        self.answer(|state| {
            let (granted_ttl, ttl, keys) = state.time_to_live(id).unwrap_or((0, -1, Vec::new()));
            let keys = if with_keys { keys } else { Vec::new() };
            let header = Some(state.header());
            Ok((PbLeaseTimeToLiveResponse { header, id, ttl, granted_ttl, keys }, None))
        })
        .await
    }

    async fn lease_leases(
        &self,
        _: Request<PbLeaseLeasesRequest>,
    ) -> Outcome<PbLeaseLeasesResponse> {
        Err(Status::unimplemented("tweed lists no etcd leases"))
    }
}

#[tonic::async_trait]
impl PbWatchService for Connection {
    type WatchStream = Messages<PbWatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<PbWatchRequest>>,
    ) -> Outcome<Self::WatchStream> {
        self.answer(|_| Ok(((), None))).await?;
        let (observer, changes) = mpsc::channel(BACKLOG);
        let etcd = self.etcd.clone();
        let asked = request.into_inner().map(move |request| {
            let asked = request?.request_union;
            Ok(etcd.begin(asked, &observer))
        });
        let asked = asked.flat_map(|begun| match begun {
            Ok(responses) => stream::iter(responses.into_iter().map(Ok).collect::<Vec<_>>()),
            Err(status) => stream::iter(vec![Err(status)]),
        });
        let etcd = self.etcd.clone();
        let changes = stream::unfold(changes, move |mut changes| {
            let etcd = etcd.clone();
            async move {
                let (revision, events) = changes.recv().await?;
                Some((Ok(etcd.read(|state| response(state, revision, events))), changes))
            }
        });
        Ok(Response::new(self.back(stream::select(asked, changes).boxed())))
    }
}

impl Etcd {
    /// Answers a request on the stream of a watch.
    fn begin(
        &self,
        asked: Option<PbWatchRequestUnion>,
        observer: &mpsc::Sender<Change>,
    ) -> Vec<PbWatchResponse> {
        let mut shared = self.shared();
        let header = Some(shared.state.header());
        let create = match asked {
            Some(PbWatchRequestUnion::CreateRequest(create)) => create,
            Some(PbWatchRequestUnion::ProgressRequest(_)) => {
                return vec![PbWatchResponse {
                    header,
                    watch_id: -1,
                    ..PbWatchResponse::default()
                }];
            }
            Some(PbWatchRequestUnion::CancelRequest(cancel)) => {
                let watch_id = cancel.watch_id;
                let canceled = true;
                return vec![PbWatchResponse {
                    header,
                    watch_id,
                    canceled,
                    ..PbWatchResponse::default()
                }];
            }
            None => return Vec::new(),
        };
        let created = PbWatchResponse { header, created: true, ..PbWatchResponse::default() };
        if is_empty(&create.key, &create.range_end) {
            let cancel_reason = "mvcc: watcher range is empty".to_owned();
            return vec![PbWatchResponse {
                watch_id: -1,
                canceled: true,
                cancel_reason,
                ..created
            }];
        }
        let compact_revision = shared.state.compacted();
        if create.start_revision > 0 && create.start_revision < compact_revision {
            let canceled = PbWatchResponse {
                canceled: true,
                compact_revision,
                header: created.header,
                ..PbWatchResponse::default()
            };
            return vec![created, canceled];
        }
        let from = create.start_revision;
        let (key, range_end, previous) = (create.key, create.range_end, create.prev_kv);
        let wish = Wish { key, range_end, from, previous };
        if create.start_revision > 0 {
            let missed = shared.state.since(create.start_revision).filter_map(|it| wish.of(it));
            let missed: Vec<Change> = missed.collect();
            for changes in missed.chunks(MISSED) {
                let events = changes.iter().flat_map(|(_, events)| events.clone()).collect();
                // In the queue of later ones, so that those do not overtake them.
                let _ = observer.try_send((shared.state.revision(), events));
            }
        }
        if shared.health != Health::Down {
            shared.observers.push((wish, observer.clone()));
        }
        vec![created]
    }
}

fn response(state: &State, revision: i64, events: Vec<PbEvent>) -> PbWatchResponse {
    let header = Some(PbResponseHeader { revision, ..state.header() });
    PbWatchResponse { header, events, ..PbWatchResponse::default() }
}
