//! A listener, its connections, and the runtime of all servers.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use anyhow::{Context as _, anyhow};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::wire::{Line, Wire};

/// Returns the runtime of all servers of this process. Servers that tests share outlive a test's own runtime.
pub(crate) fn runtime() -> anyhow::Result<&'static Handle> {
    static RUNTIME: LazyLock<io::Result<Runtime>> = LazyLock::new(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("testbed")
            .enable_all()
            .build()
    });
    RUNTIME
        .as_ref()
        .map(Runtime::handle)
        .map_err(|error| anyhow!("cannot start the testbed's runtime: {error}"))
}

/// A listener on a free port of 127.0.0.1, and its connections. All end when the server is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    orders: mpsc::UnboundedSender<Order>,
    _stop: DropGuard,
}

enum Order {
    Shut(oneshot::Sender<io::Result<()>>),
    Open(oneshot::Sender<io::Result<()>>),
}

impl Server {
    /// Listens, and calls `serve` with each connection.
    pub(crate) fn start<F, C>(tls: Option<ServerConfig>, serve: F) -> anyhow::Result<Self>
    where
        F: Fn(Wire, Arc<Line>) -> C + Clone + Send + Sync + 'static,
        C: Future<Output = ()> + Send + 'static,
    {
        let handle = runtime()?;
        let _entered = handle.enter();
        let listener = bind_closed(SocketAddr::from(([127, 0, 0, 1], 0)))
            .and_then(|socket| socket.listen(BACKLOG))
            .context("cannot listen on 127.0.0.1")?;
        let address = listener.local_addr()?;
        let (orders, inbox) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        let accepting = accept(listener, address, tls, serve, inbox);
        handle.spawn(stop.clone().run_until_cancelled_owned(accepting));
        Ok(Self {
            address,
            orders,
            _stop: stop.drop_guard(),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every connection and refuses new ones, until [`Self::open`].
    pub(crate) async fn shut(&self) -> anyhow::Result<()> {
        self.order(Order::Shut)
            .await
            .context("cannot close the listener")
    }

    /// Listens again on the same port.
    pub(crate) async fn open(&self) -> anyhow::Result<()> {
        self.order(Order::Open).await.context("cannot listen again")
    }

    async fn order(
        &self,
        order: fn(oneshot::Sender<io::Result<()>>) -> Order,
    ) -> anyhow::Result<()> {
        let (done, answer) = oneshot::channel();
        self.orders
            .send(order(done))
            .map_err(|_| anyhow!("the server has ended"))?;
        Ok(answer.await??)
    }
}

const BACKLOG: u32 = 1024;

/// Binds a port without listening: connections are refused, and no other process gets the port.
fn bind_closed(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?; // lets this process bind the port while it still listens
    socket.bind(address)?;
    Ok(socket)
}

async fn accept<F, C>(
    mut listener: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    serve: F,
    mut inbox: mpsc::UnboundedReceiver<Order>,
) where
    F: Fn(Wire, Arc<Line>) -> C + Clone + Send + Sync + 'static,
    C: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => { connections.spawn(connection(stream, tls.clone(), serve.clone())); }
                Err(error) => {
                    // The cause is most likely a lack of file descriptors, so other connections get a moment to end.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
            },
            Some(_) = connections.join_next() => {}
            order = inbox.recv() => match order {
                None => return,
                Some(Order::Open(done)) => { let _ = done.send(Ok(())); }
                Some(Order::Shut(done)) => {
                    // Binding comes first, otherwise another process may get the port.
                    let held = match bind_closed(address) {
                        Ok(held) => held,
                        Err(error) => { let _ = done.send(Err(error)); return; }
                    };
                    drop(listener);
                    connections.shutdown().await;
                    let _ = done.send(Ok(()));
                    let Some(opened) = reopen(held, &mut inbox).await else { return };
                    listener = opened;
                }
            },
        }
    }
}

async fn reopen(
    held: TcpSocket,
    inbox: &mut mpsc::UnboundedReceiver<Order>,
) -> Option<TcpListener> {
    loop {
        match inbox.recv().await? {
            Order::Shut(done) => drop(done.send(Ok(()))),
            Order::Open(done) => match held.listen(BACKLOG) {
                Ok(listener) => {
                    let _ = done.send(Ok(()));
                    return Some(listener);
                }
                Err(error) => {
                    let _ = done.send(Err(error));
                    return None;
                }
            },
        }
    }
}

async fn connection<F, C>(stream: TcpStream, tls: Option<TlsAcceptor>, serve: F)
where
    F: Fn(Wire, Arc<Line>) -> C,
    C: Future<Output = ()>,
{
    let line = Arc::new(Line::default());
    match Wire::new(stream, tls, line.clone()).await {
        Ok(wire) => serve(wire, line).await,
        Err(error) => tracing::debug!(%error, "no TLS handshake"),
    }
}
