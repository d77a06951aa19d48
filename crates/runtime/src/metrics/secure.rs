//! `/metrics` over TLS, to those who may read it: as controller-runtime's `filters.WithAuthenticationAndAuthorization` does
//! (<https://pkg.go.dev/sigs.k8s.io/controller-runtime/pkg/metrics/filters>).
//!
//! Who has not said yet who he is can do little: connections are bounded in number and time, and none holds up another.
//! HTTP/2, with which one connection makes requests without end, is off there by default too.

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

use crate::settings::Timings;

mod callers;
mod certificate;
mod remembered;

pub use callers::Callers;
pub(crate) use callers::PATH;
pub use certificate::Certificate;

/// Connections at once. A further one waits until one of them ends.
const CONNECTIONS: usize = 64;
/// The longest head of a request. Tokens have one or two KiB.
const HEAD: usize = 64 * 1024;

/// Serves `routes` for ever, to those whom `callers` let in.
///
/// # Errors
/// None: a listener that breaks is asked again.
pub async fn serve(
    mut listener: TcpListener,
    routes: Router,
    certificate: Certificate,
    callers: Callers,
    timings: Timings,
) -> io::Result<()> {
    let routes = routes.route_layer(from_fn_with_state(Arc::new(callers), callers::let_in));
    let (certificate, places) = (Arc::new(certificate), Arc::new(Semaphore::new(CONNECTIONS)));
    let (life, patience) = (timings.metrics_connection, timings.metrics_patience);
    loop {
        let place = Arc::clone(&places)
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let (stream, _) = Listener::accept(&mut listener).await;
        let (certificate, routes) = (Arc::clone(&certificate), routes.clone());
        tokio::spawn(async move {
            connection(stream, &certificate, routes, life, patience).await;
            drop(place);
        });
    }
}

async fn connection(
    stream: TcpStream,
    certificate: &Certificate,
    routes: Router,
    life: Duration,
    patience: Duration,
) {
    // Or else each answer waits for the client's acknowledgement of what came before it, some 40 ms.
    let _ = stream.set_nodelay(true);
    let handshake = async {
        TlsAcceptor::from(certificate.current().await)
            .accept(stream)
            .await
    };
    let stream = match timeout(patience, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            return debug!(
                error = &error as &dyn std::error::Error,
                "no TLS handshake for /metrics"
            );
        }
        Err(_) => return debug!("no TLS handshake for /metrics within {patience:?}"),
    };
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_buf_size(HEAD);
    let mut connection =
        pin!(server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)));
    if timeout(life, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        // Whoever does not end by then is cut off.
        let _ = timeout(patience, connection).await;
    }
}

#[cfg(test)]
mod tests;
