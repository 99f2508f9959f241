//! Ways to a server on which answers get lost, or come late.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Forwards each connection to `port`; `answer` forwards what the server sends, given how many
/// connections there were before.
async fn forward<F: Future<Output = ()> + 'static>(
    listener: TcpListener,
    port: u16,
    answer: impl Fn(usize, OwnedReadHalf, OwnedWriteHalf) -> F,
) {
    let mut connections = JoinSet::new();
    for before in 0.. {
        let (near, _) = listener.accept().await.unwrap();
        let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        connections.spawn_local(pass_on_late(near_in, far_out, Duration::ZERO));
        connections.spawn_local(answer(before, far_in, near_out));
    }
}

/// Forwards everything to `port`, but of its first connection no more than `answers` pieces back.
pub(crate) async fn lose_answers(listener: TcpListener, port: u16, answers: usize) {
    let left = Rc::new(Cell::new(answers));
    let answer = |before: usize, far_in, near_out| {
        if before > 0 {
            left.set(usize::MAX);
        }
        pass_on(far_in, near_out, Rc::clone(&left))
    };
    forward(listener, port, answer).await;
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

/// Forwards everything to `port`, but each piece of what the server sends only after `delay`.
pub(crate) async fn delay_answers(listener: TcpListener, port: u16, delay: Duration) {
    forward(listener, port, |_, far_in, near_out| pass_on_late(far_in, near_out, delay)).await;
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

/// Forwards everything to `port`, but once `muted`, no more of what the server sends to requests that it
/// had begun to answer by then. Like a proxy whose server has died: the connection itself goes on.
pub(crate) async fn mute_answers(listener: TcpListener, port: u16, muted: Rc<Cell<bool>>) {
    let answer = |_, far_in, near_out| pass_on_frames(far_in, near_out, Rc::clone(&muted));
    forward(listener, port, answer).await;
}

/// A frame of HTTP/2 begins with its length, its type, its flags and the stream that it belongs to.
async fn pass_on_frames(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, muted: Rc<Cell<bool>>) {
    let (mut newest, mut silenced) = (0, None);
    let mut head = [0; 9];
    while from.read_exact(&mut head).await.is_ok() {
        let [a, b, c, _, _, stream @ ..] = head;
        let mut body = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        if from.read_exact(&mut body).await.is_err() {
            return;
        }
        if muted.get() && silenced.is_none() {
            silenced = Some(newest);
        }
        let stream = u32::from_be_bytes(stream);
        newest = newest.max(stream);
        let is_silenced = stream != 0 && silenced.is_some_and(|silenced| stream <= silenced);
        let frame = [head.as_slice(), &body].concat();
        if !is_silenced && to.write_all(&frame).await.is_err() {
            return;
        }
    }
}
