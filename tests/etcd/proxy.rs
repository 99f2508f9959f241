//! Ways to a server on which answers get lost, or come late.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Passes everything on to `port`, but of its first connection no more than `answers` pieces back.
pub(crate) async fn lose_answers(listener: TcpListener, port: u16, answers: usize) {
    let left = Rc::new(Cell::new(answers));
    let mut connections = JoinSet::new();
    loop {
        let (near, _) = listener.accept().await.unwrap();
        let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        connections.spawn_local(pass_on(near_in, far_out, Rc::new(Cell::new(usize::MAX))));
        connections.spawn_local(pass_on(far_in, near_out, Rc::clone(&left)));
        if connections.len() > 2 {
            left.set(usize::MAX);
        }
    }
}

async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, left: Rc<Cell<usize>>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        match left.get() {
            0 => {}
            more if to.write_all(&buffer[..length]).await.is_ok() => left.set(more - 1),
            _ => return,
        }
    }
}

/// Passes everything on to `port`, but each piece of what the server says only after `delay`.
pub(crate) async fn delay_answers(listener: TcpListener, port: u16, delay: Duration) {
    let mut connections = JoinSet::new();
    loop {
        let (near, _) = listener.accept().await.unwrap();
        let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        connections.spawn_local(pass_on_late(near_in, far_out, Duration::ZERO));
        connections.spawn_local(pass_on_late(far_in, near_out, delay));
    }
}

async fn pass_on_late(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        sleep(delay).await;
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
