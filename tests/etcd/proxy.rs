//! A way to a server on which answers get lost.

use std::cell::Cell;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

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
