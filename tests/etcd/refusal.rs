//! A server that refuses every request with one status of gRPC.

use std::cell::RefCell;
use std::rc::Rc;

use hyper::{Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The methods that were called, in order.
pub(crate) type Calls = Rc<RefCell<Vec<String>>>;

/// Never ends. `code` is the number of the status.
pub(crate) async fn refuse_all(listener: TcpListener, code: u16, calls: Calls) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn_local(serve(stream, code, Rc::clone(&calls)));
    }
}

async fn serve(stream: TcpStream, code: u16, calls: Calls) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        calls.borrow_mut().push(method(&request));
        let refusal = Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", code)
            .header("grpc-message", "etcdserver: refused");
        let _ = respond.send_response(refusal.body(()).unwrap(), true);
    }
}

fn method<T>(request: &Request<T>) -> String {
    request.uri().path().rsplit('/').next().unwrap_or_default().to_owned()
}
