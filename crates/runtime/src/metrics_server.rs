//! Server of `/metrics`: plain HTTP without authentication, or [`secure`].

use std::collections::HashSet;
use std::future::ready;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::net::TcpListener;

use self::secure::{Certificate, MetricsAuth, PATH};
use crate::client;
use crate::metrics::Metrics;
use crate::server::{self, Handler, Limits, Response};
use crate::settings::Settings;

pub mod secure;

/// Creates the server of `/metrics`, which serves forever.
///
/// # Errors
/// The certificate cannot be read or generated, or `kubernetes` returns no client.
pub async fn server(
    listener: TcpListener,
    settings: &Settings,
    kubernetes: kube::Config,
    metrics: Metrics,
) -> anyhow::Result<BoxFuture<'static, ()>> {
    let Some(certificate) = &settings.metrics_certificate else {
        return Ok(serve(listener, metrics).boxed());
    };
    let certificate = Certificate::open(certificate, settings.program.name).await?;
    let auth = MetricsAuth::new(
        client::unfenced(kubernetes, &settings.program, metrics.clone())?,
        settings.program.hints.metrics_reader_hint,
        &settings.timings,
    );
    let (handler, timings) = (handler(metrics), settings.timings.clone());
    Ok(secure::serve(listener, handler, certificate, auth, timings).boxed())
}

/// Serves `/metrics` without authentication forever.
pub async fn serve(listener: TcpListener, metrics: Metrics) {
    server::serve(listener, Limits::TRUSTED, server::plain(), handler(metrics)).await;
}

fn handler(metrics: Metrics) -> Handler {
    Box::new(move |head| {
        let is_known = head.uri.path() == PATH;
        ready(if is_known {
            answer(&metrics, &head.headers)
        } else {
            server::not_found()
        })
        .boxed()
    })
}

fn answer(metrics: &Metrics, headers: &HeaderMap) -> Response {
    let mut accepts = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let (format, body) = if accepts.any(|value| value.contains("application/openmetrics-text")) {
        (
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            metrics.encode(),
        )
    } else {
        (
            "text/plain; version=0.0.4; charset=utf-8",
            plain(&metrics.encode()),
        )
    };
    let mut response = server::text(StatusCode::OK, body);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(format));
    response
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
