//! The server of `/metrics`: over plain HTTP to everybody, or [`secure`].

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
use super::secure::{self, Callers, Certificate, PATH};
use crate::client;
use crate::settings::Settings;

/// The server of `/metrics`, as the flags have it. It ends only when the listener breaks.
///
/// # Errors
/// There is no certificate where one is to be, or no client can be made for `kubernetes`.
pub async fn server(
    listener: TcpListener,
    settings: &Settings,
    kubernetes: kube::Config,
    metrics: Metrics,
) -> anyhow::Result<BoxFuture<'static, io::Result<()>>> {
    let Some(certificate) = &settings.metrics_certificate else {
        return Ok(serve(listener, metrics).boxed());
    };
    let certificate = Certificate::open(certificate).await?;
    let callers = Callers::new(
        client::unfenced(kubernetes, metrics.clone())?,
        &settings.timings,
    );
    Ok(secure::serve(
        listener,
        routes(metrics),
        certificate,
        callers,
        settings.timings.clone(),
    )
    .boxed())
}

/// Serves `/metrics` for ever, to everybody.
///
/// # Errors
/// When the listener breaks.
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

/// `OpenMetrics` in the older format, in which a counter is declared by the name that its samples have.
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
