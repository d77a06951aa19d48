//! A server's connection, which records when a request's first bytes came, and can be reset.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Instant, SystemTime};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::journal::lock;

/// An instant on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) instant: Instant,
    pub(crate) time: SystemTime,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self {
            instant: Instant::now(),
            time: SystemTime::now(),
        }
    }
}

/// State of a connection that the socket and the server share.
#[derive(Default)]
pub(crate) struct Line {
    reset: AtomicBool,
    head: Mutex<Option<Moment>>,
    flushed: watch::Sender<u64>,
}

impl Line {
    /// Ends the connection with a TCP reset instead of a clean close.
    pub(crate) fn reset_at_end(&self) {
        self.reset.store(true, Ordering::SeqCst);
    }

    /// Returns the arrival time of the current request's first bytes (HTTP/1).
    pub(crate) fn take_head(&self) -> Moment {
        lock(&self.head).take().unwrap_or_else(Moment::now)
    }

    /// Returns the number of response bytes that the kernel has so far.
    pub(crate) fn flushed(&self) -> watch::Receiver<u64> {
        self.flushed.subscribe()
    }
}

/// The TCP stream, which closes with a reset if the shared state requires it, also under TLS.
struct Socket {
    tcp: TcpStream,
    line: Arc<Line>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.line.reset.load(Ordering::SeqCst) {
            let _ = self.tcp.set_zero_linger();
        }
    }
}

enum Transport {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

/// A connection after decryption.
pub(crate) struct Wire {
    transport: Transport,
    line: Arc<Line>,
    /// Whether the next bytes begin a request.
    expecting: bool,
    written: u64,
}

impl Wire {
    pub(crate) async fn new(
        tcp: TcpStream,
        tls: Option<TlsAcceptor>,
        line: Arc<Line>,
    ) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        let socket = Socket {
            tcp,
            line: line.clone(),
        };
        let transport = match tls {
            None => Transport::Plain(socket),
            Some(acceptor) => Transport::Tls(Box::new(acceptor.accept(socket).await?)),
        };
        Ok(Self {
            transport,
            line,
            expecting: true,
            written: 0,
        })
    }
}

macro_rules! each_transport {
    ($wire:expr, $stream:ident => $call:expr) => {
        match &mut $wire.transport {
            Transport::Plain(socket) => {
                let $stream = Pin::new(socket);
                $call
            }
            Transport::Tls(stream) => {
                let $stream = Pin::new(stream.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = each_transport!(self, stream => stream.poll_read(cx, buffer));
        if self.expecting && buffer.filled().len() > before {
            self.expecting = false;
            *lock(&self.line.head) = Some(Moment::now());
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.expecting = true;
        let polled = each_transport!(self, stream => stream.poll_write(cx, bytes));
        if let Poll::Ready(Ok(count)) = polled {
            self.written += count as u64;
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = each_transport!(self, stream => stream.poll_flush(cx));
        if matches!(polled, Poll::Ready(Ok(()))) {
            let written = self.written;
            self.line
                .flushed
                .send_if_modified(|flushed| std::mem::replace(flushed, written) != written);
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each_transport!(self, stream => stream.poll_shutdown(cx))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
