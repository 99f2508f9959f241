//! Accepts requests, and answers them from the store.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::Asked;
use super::reply::{self, Body, json, page, refusal, throttled};
use super::selector::{Place, Query, Selector, decoded};
use super::state::Shared;
use super::store::Store;
use super::watch;
use crate::wait::lock;

/// The limit of a real server, in bytes.
const LARGEST_REQUEST: usize = 3 * 1024 * 1024;

/// Serves until `stop` is sent; then all connections end.
pub(super) fn run(
    shared: &Arc<Shared>,
    listener: TcpListener,
    stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            failed = accept(shared, listener) => failed,
            _ = stopped => Ok(()),
        }
    })
}

async fn accept(shared: &Arc<Shared>, listener: TcpListener) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        let shared = Arc::clone(shared);
        connections.spawn(async move {
            let answer = |request: Request<Incoming>| {
                let shared = Arc::clone(&shared);
                async move { Ok::<_, Infallible>(answer(&shared, request).await) }
            };
            let http = hyper::server::conn::http1::Builder::new();
            // A client may disconnect at any time.
            drop(http.serve_connection(TokioIo::new(stream), service_fn(answer)).await);
        });
    }
}

pub(super) async fn answer<B: HttpBody>(
    shared: &Arc<Shared>,
    request: Request<B>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
    let (method, path) = (parts.method, parts.uri.path().to_owned());
    let what = format!("{method} {path}");
    let query = parts.uri.query().unwrap_or_default();
    let header = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    lock(&shared.asked).push(Asked {
        what: what.clone(),
        query: query.to_owned(),
        content_type: header.unwrap_or_default().to_owned(),
        body: String::from_utf8_lossy(&body).into_owned(),
    });
    if let Some(refused) = fault(shared, &what, query).await {
        return refused;
    }
    if body.len() > LARGEST_REQUEST {
        return reply::entity_too_large(LARGEST_REQUEST);
    }
    route(shared, &method, &path, &Query::parse(query), &body)
}

async fn fault(shared: &Shared, what: &str, query: &str) -> Option<Response<Body>> {
    let faults = lock(&shared.faults).clone();
    tokio::time::sleep(faults.delay).await;
    if faults.hangs {
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }
    if let Some(shown) = faults.page.filter(|it| query.contains(it.query)) {
        return Some(page(shown));
    }
    if faults.throttled > 0 {
        lock(&shared.faults).throttled -= 1;
        return Some(throttled(faults.retry_after));
    }
    let is_among = |prefixes: &[String]| prefixes.iter().any(|prefix| what.starts_with(prefix));
    if is_among(&faults.webhook_down) {
        let message = "Internal error occurred: failed calling webhook \"policy.example.org\"";
        return Some(refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message));
    }
    let message = "User \"system:serviceaccount:kube-flannel:flannel\" cannot do this";
    is_among(&faults.forbidden).then(|| refusal(StatusCode::FORBIDDEN, "Forbidden", message))
}

fn route(
    shared: &Arc<Shared>,
    method: &Method,
    path: &str,
    query: &Query,
    body: &[u8],
) -> Response<Body> {
    let Some(place) = place(path) else {
        return json(StatusCode::OK, &json!({ "major": "1", "minor": "37" }));
    };
    match (method.as_str(), place) {
        ("GET", (collection, None)) if query.is("watch", "true") => {
            watch::answer(shared, &collection, query)
        }
        ("GET", (collection, None)) if query.is("resourceVersionMatch", "Exact") => {
            list_former(shared, &collection, query)
        }
        ("GET", (collection, None)) => list(shared, &collection, query),
        ("GET", (collection, Some(name))) => stored(shared, &(collection, name), StatusCode::OK),
        ("POST", (collection, None)) => create(shared, collection, body),
        ("DELETE", (collection, Some(name))) => delete(shared, &(collection, name)),
        ("PATCH", (collection, Some(name))) if query.get("fieldManager").is_some() => {
            apply(shared, &(collection, name), body)
        }
        ("PATCH", (collection, Some(name))) => patch(shared, &(collection, name), path, body),
        _ => refusal(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "not this"),
    }
}

/// The collection, and the name if the path has one; none if the path names no object.
fn place(path: &str) -> Option<(String, Option<String>)> {
    let path = path.strip_suffix("/status").unwrap_or(path);
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let depth = match parts.as_slice() {
        ["api", _, "namespaces", _, ..] => 5,
        ["api", ..] => 3,
        ["apis", _, _, "namespaces", _, ..] => 6,
        ["apis", ..] => 4,
        _ => return None,
    };
    let (collection, name) = parts.split_at_checked(depth)?;
    Some((format!("/{}", collection.join("/")), name.first().map(ToString::to_string)))
}

fn list(shared: &Shared, collection: &str, query: &Query) -> Response<Body> {
    let store = lock(&shared.store);
    let limit = query.get("limit").and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
    let token = query.get("continue").map(decoded);
    let after = token.as_deref().and_then(|token| token.rsplit_once(':'));
    let after = after.map(|(collection, name)| (collection.to_owned(), name.to_owned()));
    let selector = Selector::of(collection, query);
    let mut found: Vec<(&Place, &Value)> =
        store.list(&selector, after).take(limit.saturating_add(1)).collect();
    let more = found.len() > limit;
    found.truncate(limit);
    let last = found.last().filter(|_| more);
    let token = last.map(|((collection, name), _)| format!("{collection}:{name}"));
    let items: Vec<&Value> = found.into_iter().map(|(_, object)| object).collect();
    let metadata = json!({
        "resourceVersion": store.version().to_string(),
        "continue": token.unwrap_or_default(),
    });
    json(StatusCode::OK, &json!({ "kind": "List", "metadata": metadata, "items": items }))
}

/// The list of a former version, of one object by its name.
fn list_former(shared: &Shared, collection: &str, query: &Query) -> Response<Body> {
    let store = lock(&shared.store);
    let place = Selector::of(collection, query).place();
    let version = query.get("resourceVersion").and_then(|text| text.parse().ok());
    let Some((place, version)) = place.zip(version) else { return invalid() };
    if version > store.version() {
        return reply::too_large(version, store.version());
    }
    if version < store.compacted() {
        return refusal(StatusCode::GONE, "Expired", "too old resource version");
    }
    let items: Vec<&Value> = store.at(&place, version).into_iter().collect();
    let metadata = json!({ "resourceVersion": version.to_string() });
    json(StatusCode::OK, &json!({ "kind": "List", "metadata": metadata, "items": items }))
}

fn create(shared: &Shared, collection: String, body: &[u8]) -> Response<Body> {
    let Ok(mut object) = serde_json::from_slice::<Value>(body) else { return invalid() };
    let Some(name) = object["metadata"]["name"].as_str().map(ToOwned::to_owned) else {
        return invalid();
    };
    if let Some(Value::Object(texts)) = object.get_mut("stringData").map(Value::take) {
        let encoded = texts.into_iter().map(|(key, text)| {
            (key, Value::from(STANDARD.encode(text.as_str().unwrap_or_default())))
        });
        object["data"] = Value::Object(encoded.collect());
    }
    if let Some(why) = Store::too_long(&object) {
        return too_long(why);
    }
    let place = (collection, name);
    if shared.change(|store| store.create(place.clone(), object)) {
        stored(shared, &place, StatusCode::CREATED)
    } else {
        refusal(StatusCode::CONFLICT, "AlreadyExists", "already exists")
    }
}

fn delete(shared: &Shared, place: &Place) -> Response<Body> {
    if shared.change(|store| store.delete(place)) {
        json(StatusCode::OK, &json!({ "kind": "Status", "status": "Success" }))
    } else {
        absent()
    }
}

fn patch(shared: &Shared, place: &Place, path: &str, body: &[u8]) -> Response<Body> {
    let Ok(mut wanted) = serde_json::from_slice::<Value>(body) else { return invalid() };
    // The status subresource cannot change a node's spec.
    if let (true, Some(fields)) = (path.ends_with("/status"), wanted.as_object_mut()) {
        fields.remove("spec");
    }
    let seen = wanted["metadata"]["resourceVersion"].clone();
    shared.change(|store| {
        let known = store.get(place).map(|object| &object["metadata"]["resourceVersion"]);
        let is_outdated = known.is_some_and(|known| !seen.is_null() && *known != seen);
        if is_outdated {
            let modified = "the object has been modified";
            return refusal(StatusCode::CONFLICT, "Conflict", modified);
        }
        if let Some(why) = store.patched(place, &wanted).as_ref().and_then(Store::too_long) {
            return too_long(why);
        }
        // A condition has the time of the write in it.
        if wanted["status"].is_null() {
            store.patch(place, &wanted);
        } else {
            store.apply(place, &wanted);
        }
        store.get(place).map_or_else(absent, |object| json(StatusCode::OK, object))
    })
}

/// Creates the object if it does not exist.
fn apply(shared: &Shared, place: &Place, body: &[u8]) -> Response<Body> {
    let Ok(object) = serde_json::from_slice::<Value>(body) else { return invalid() };
    if let Some(why) = Store::too_long(&object) {
        return too_long(why);
    }
    if shared.change(|store| store.create(place.clone(), object.clone())) {
        return stored(shared, place, StatusCode::CREATED);
    }
    shared.change(|store| store.apply(place, &object));
    stored(shared, place, StatusCode::OK)
}

/// The object that was written.
fn stored(shared: &Shared, place: &Place, status: StatusCode) -> Response<Body> {
    lock(&shared.store).get(place).map_or_else(absent, |object| json(status, object))
}

fn absent() -> Response<Body> {
    refusal(StatusCode::NOT_FOUND, "NotFound", "not found")
}

fn too_long(why: &str) -> Response<Body> {
    refusal(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", why)
}

fn invalid() -> Response<Body> {
    refusal(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", "no object")
}
