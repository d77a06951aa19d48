//! `/metrics` over TLS with authentication and authorization, as controller-runtime's
//! `filters.WithAuthenticationAndAuthorization` does
//! (<https://pkg.go.dev/sigs.k8s.io/controller-runtime/pkg/metrics/filters>).
//!
//! Anybody can open a connection, so connections are bounded in number and time, and none blocks another. HTTP/2, which
//! lets one connection send any number of requests, is off, as by default in controller-runtime.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::serve::Listener;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use crate::settings::RuntimeTimings;

mod auth;
mod cache;
mod certificate;

pub use auth::MetricsAuth;
pub(crate) use auth::PATH;
pub use certificate::Certificate;

/// Maximum number of open connections. A further connection waits until one ends.
const CONNECTIONS: usize = 64;
/// Maximum length of a request's head, in bytes. Tokens have one or two KiB.
const HEAD: usize = 64 * 1024;

/// Serves `routes` to clients that `auth` accepts.
///
/// # Errors
/// None: the server retries a listener that fails.
pub async fn serve(
    mut listener: TcpListener,
    routes: Router,
    certificate: Certificate,
    auth: MetricsAuth,
    timings: RuntimeTimings,
) -> io::Result<()> {
    let routes = routes.route_layer(from_fn_with_state(Arc::new(auth), auth::require));
    let (certificate, slots) = (Arc::new(certificate), Arc::new(Semaphore::new(CONNECTIONS)));
    let (max_age, io_timeout) = (
        timings.metrics_connection_max_age,
        timings.metrics_io_timeout,
    );
    loop {
        let slot = Arc::clone(&slots)
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let (stream, _) = Listener::accept(&mut listener).await;
        let (certificate, routes) = (Arc::clone(&certificate), routes.clone());
        tokio::spawn(async move {
            connection(stream, &certificate, routes, max_age, io_timeout).await;
            drop(slot);
        });
    }
}

async fn connection(
    stream: TcpStream,
    certificate: &Certificate,
    routes: Router,
    max_age: Duration,
    io_timeout: Duration,
) {
    // Otherwise each answer waits about 40 ms for the client's acknowledgement of the previous packet.
    let _ = stream.set_nodelay(true);
    let handshake = async {
        TlsAcceptor::from(certificate.current().await)
            .accept(stream)
            .await
    };
    let stream = match timeout(io_timeout, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            return debug!(
                error = &error as &dyn std::error::Error,
                "TLS handshake for /metrics failed"
            );
        }
        Err(_) => return debug!(timeout = ?io_timeout, "TLS handshake for /metrics timed out"),
    };
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(io_timeout)
        .max_buf_size(HEAD);
    let mut connection =
        pin!(server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)));
    if timeout(max_age, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        // The server drops the connection of a client that has not closed it by then.
        let _ = timeout(io_timeout, connection).await;
    }
}

#[cfg(test)]
mod tests;
