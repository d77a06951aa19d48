//! HTTP/1 server of the probes and the metrics.
//!
//! Any client can open connections, so each connection has its own task and its own timeouts. The server does not speak
//! HTTP/2, which lets one connection send any number of requests.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::header::{ALLOW, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::{debug, error};

/// Maximum length of a request's head, in bytes. Tokens have one or two KiB.
const HEAD: usize = 64 * 1024;
/// Delay after a failure to accept a connection, mostly for lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// Response of the server.
pub(crate) type Response = http::Response<Full<Bytes>>;

/// Function that answers a GET or HEAD request, whose body is ignored.
pub(crate) type Handler = Box<dyn Fn(Parts) -> BoxFuture<'static, Response> + Send + Sync>;

/// Function that sets up a connection, such as by a TLS handshake. `None` drops the connection.
pub(crate) type OpenStream =
    Box<dyn Fn(TcpStream) -> BoxFuture<'static, Option<Box<dyn ClientStream>>> + Send + Sync>;

/// Connection to a client, encrypted or not.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ClientStream for T {}

/// Bounds of the connections.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum number of open connections. A further connection waits until one ends.
    pub(crate) connections: usize,
    /// Maximum age of a connection.
    pub(crate) max_age: Duration,
    /// Timeout of the setup, of the next request's head, and of the client's close after the maximum age.
    pub(crate) io_timeout: Duration,
}

impl Limits {
    /// Limits of a server without authentication: the network decides who can connect, such as the kubelet.
    pub(crate) const TRUSTED: Self = Self {
        connections: Semaphore::MAX_PERMITS,
        max_age: Duration::MAX,
        // Longer than the usual interval between two requests of a client that keeps its connection.
        io_timeout: Duration::from_mins(2),
    };
}

/// Serves requests forever.
pub(crate) async fn serve(
    listener: TcpListener,
    limits: Limits,
    open_stream: OpenStream,
    handler: Handler,
) {
    let (open_stream, handler) = (Arc::new(open_stream), Arc::new(handler));
    let slots = Arc::new(Semaphore::new(limits.connections));
    // The semaphore is never closed.
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        let stream = accept(&listener).await;
        let (open_stream, handler) = (Arc::clone(&open_stream), Arc::clone(&handler));
        tokio::spawn(async move {
            // Otherwise each answer waits about 40 ms for the client's acknowledgement of the previous packet.
            let _ = stream.set_nodelay(true);
            match timeout(limits.io_timeout, open_stream(stream)).await {
                Ok(Some(stream)) => connection(stream, limits, &handler).await,
                Ok(None) => {}
                Err(_) => debug!(timeout = ?limits.io_timeout, "setup of a connection timed out"),
            }
            drop(slot);
        });
    }
}

/// Returns the setup of connections without TLS.
pub(crate) fn plain() -> OpenStream {
    Box::new(|stream| Box::pin(async { Some(Box::new(stream) as Box<dyn ClientStream>) }))
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        let error = match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => error,
        };
        let client_left = matches!(
            error.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::ConnectionAborted
                | ErrorKind::ConnectionReset
        );
        if !client_left {
            error!(
                error = &error as &dyn std::error::Error,
                "accepting a connection failed; will retry"
            );
            sleep(ACCEPT_RETRY).await;
        }
    }
}

async fn connection(stream: Box<dyn ClientStream>, limits: Limits, handler: &Handler) {
    let service = service_fn(|request: Request<Incoming>| {
        let head = request.into_parts().0;
        async {
            let is_read = matches!(head.method, Method::GET | Method::HEAD);
            Ok::<_, std::convert::Infallible>(if is_read {
                handler(head).await
            } else {
                method_not_allowed()
            })
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.io_timeout)
            .max_buf_size(HEAD)
            .serve_connection(TokioIo::new(stream), service)
    );
    if timeout(limits.max_age, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        // After the timeout, the server drops a connection that the client has not closed.
        let _ = timeout(limits.io_timeout, connection).await;
    }
}

/// Returns a response of plain text.
pub(crate) fn text(status: StatusCode, body: String) -> Response {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

/// Returns the response for an unknown path.
pub(crate) fn not_found() -> Response {
    text(StatusCode::NOT_FOUND, String::new())
}

fn method_not_allowed() -> Response {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, String::new());
    let reads = HeaderValue::from_static("GET,HEAD");
    response.headers_mut().insert(ALLOW, reads);
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[tokio::test]
    async fn only_reads_are_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/x", listener.local_addr().unwrap());
        let handler: Handler = Box::new(|head| {
            let body = format!("{} {}", head.method, head.uri.path());
            Box::pin(async { text(StatusCode::OK, body) })
        });
        let server = tokio::spawn(serve(listener, Limits::TRUSTED, plain(), handler));
        let client = reqwest::Client::new();
        let send = async |method: Method| {
            let response = client.request(method, &url).body("{}").send().await;
            let response = response.unwrap();
            let allow = response.headers().get(ALLOW).cloned();
            let status = response.status().as_u16();
            (status, allow, response.text().await.unwrap())
        };
        assert_eq!(send(Method::GET).await, (200, None, "GET /x".into()));
        assert_eq!(send(Method::HEAD).await, (200, None, String::new()));
        let allow = Some(HeaderValue::from_static("GET,HEAD"));
        assert_eq!(send(Method::POST).await, (405, allow, String::new()));
        server.abort();
    }
}
