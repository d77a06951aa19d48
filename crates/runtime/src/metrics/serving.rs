//! Server of `/metrics`: plain HTTP without authentication, or [`secure`].

use std::collections::HashSet;
use std::io;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};
use tokio::net::TcpListener;

use super::Metrics;
use super::secure::{self, Certificate, MetricsAuth, PATH};
use crate::client;
use crate::settings::Settings;

/// Creates the server of `/metrics`, which ends only when the listener fails.
///
/// # Errors
/// The certificate cannot be read or generated, or `kubernetes` returns no client.
pub async fn server(
    listener: TcpListener,
    settings: &Settings,
    kubernetes: kube::Config,
    metrics: Metrics,
) -> anyhow::Result<BoxFuture<'static, io::Result<()>>> {
    let Some(certificate) = &settings.metrics_certificate else {
        return Ok(serve(listener, metrics).boxed());
    };
    let certificate = Certificate::open(certificate, settings.program.name).await?;
    let auth = MetricsAuth::new(
        client::unfenced(kubernetes, &settings.program, metrics.clone())?,
        settings.program.hints.metrics_reader_role,
        &settings.timings,
    );
    Ok(secure::serve(
        listener,
        routes(metrics),
        certificate,
        auth,
        settings.timings.clone(),
    )
    .boxed())
}

/// Serves `/metrics` without authentication.
///
/// # Errors
/// The listener's error.
pub async fn serve(listener: TcpListener, metrics: Metrics) -> io::Result<()> {
    axum::serve(listener, routes(metrics)).await
}

fn routes(metrics: Metrics) -> Router {
    Router::new().route(PATH, get(answer)).with_state(metrics)
}

async fn answer(State(metrics): State<Metrics>, headers: HeaderMap) -> impl IntoResponse {
    let mut accepts = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    if accepts.any(|value| value.contains("application/openmetrics-text")) {
        (
            [(
                CONTENT_TYPE,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )],
            metrics.encode(),
        )
    } else {
        (
            [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
            plain(&metrics.encode()),
        )
    }
}

/// Converts `OpenMetrics` to the older format of Prometheus, which declares a counter by the name of its samples.
pub fn plain(text: &str) -> String {
    let counters: HashSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let renamed = |line: &str| {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(word @ ("HELP" | "TYPE")), Some(name), Some(rest))
                if counters.contains(name) =>
            {
                format!("# {word} {name}_total {rest}\n")
            }
            _ => format!("{line}\n"),
        }
    };
    text.lines()
        .filter(|line| *line != "# EOF")
        .map(renamed)
        .collect()
}
