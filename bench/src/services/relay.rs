//! Passes connections on to a server, and notes when it sends something.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tweed_lab::{Namespace, lock};

/// Ends when it is dropped.
pub(super) struct Relay {
    address: SocketAddr,
    sent: Sent,
    _runtime: Runtime,
}

/// When the server sent something for the first time since it was asked.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Option<Instant>>>);

impl Relay {
    /// Between clients and a server in this namespace.
    pub(super) fn start(namespace: &Namespace, server: SocketAddr) -> Result<Self> {
        let runtime = namespace
            .within(|| Builder::new_multi_thread().worker_threads(1).enable_all().build())??;
        let listener = namespace.within(|| std::net::TcpListener::bind("127.0.0.1:0"))??;
        listener.set_nonblocking(true)?;
        let (address, sent) = (listener.local_addr()?, Sent::default());
        let noted = sent.clone();
        runtime.spawn(async move {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server, noted.clone()));
            }
        });
        Ok(Self { address, sent, _runtime: runtime })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on, what the server sends is noted.
    pub(super) fn begin(&self) {
        *lock(&self.sent.0) = None;
    }

    /// When it sent something for the first time since [`Self::begin`].
    pub(super) fn sent(&self) -> Option<Instant> {
        *lock(&self.sent.0)
    }
}

async fn pass(client: TcpStream, server: SocketAddr, sent: Sent) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut requests, mut to_client) = client.into_split();
    let (mut answers, mut to_server) = server.into_split();
    let upwards = tokio::spawn(async move { copy(&mut requests, &mut to_server).await });
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = answers.read(&mut buffer).await?;
        let Some(bytes) = buffer.get(..length).filter(|bytes| !bytes.is_empty()) else { break };
        lock(&sent.0).get_or_insert_with(Instant::now);
        to_client.write_all(bytes).await?;
    }
    upwards.abort();
    Ok(())
}
