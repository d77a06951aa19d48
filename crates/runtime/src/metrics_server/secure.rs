//! `/metrics` over TLS with authentication and authorization, as controller-runtime's
//! `filters.WithAuthenticationAndAuthorization` does
//! (<https://pkg.go.dev/sigs.k8s.io/controller-runtime/pkg/metrics/filters>).
//!
//! Connections are bounded in number and time. HTTP/2 is off, as by default in controller-runtime.

use std::sync::Arc;

use futures::FutureExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use crate::server::{self, ClientStream, Handler, Limits, OpenStream};
use crate::settings::RuntimeTimings;

mod auth;
mod cache;
mod certificate;

pub use auth::MetricsAuth;
pub(crate) use auth::PATH;
pub use certificate::Certificate;

/// Maximum number of open connections.
const CONNECTIONS: usize = 64;

/// Serves the metrics of `handler` forever to clients that `auth` accepts.
pub(crate) async fn serve(
    listener: TcpListener,
    handler: Handler,
    certificate: Certificate,
    auth: MetricsAuth,
    timings: RuntimeTimings,
) {
    let limits = Limits {
        connections: CONNECTIONS,
        max_age: timings.metrics_connection_max_age,
        io_timeout: timings.metrics_io_timeout,
    };
    server::serve(listener, limits, tls(certificate), auth.require(handler)).await;
}

fn tls(certificate: Certificate) -> OpenStream {
    let certificate = Arc::new(certificate);
    Box::new(move |stream| handshake(Arc::clone(&certificate), stream).boxed())
}

async fn handshake(
    certificate: Arc<Certificate>,
    stream: TcpStream,
) -> Option<Box<dyn ClientStream>> {
    match TlsAcceptor::from(certificate.current().await)
        .accept(stream)
        .await
    {
        Ok(stream) => Some(Box::new(stream)),
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            debug!(error, "TLS handshake for /metrics failed");
            None
        }
    }
}

#[cfg(test)]
mod tests;
