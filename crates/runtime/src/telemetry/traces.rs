//! Traces, sent by OTLP over HTTP where the environment names an endpoint
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).
//!
//! Each reconcile has a span, which log lines carry. Each request to the apiserver or to AWS, and each message that the
//! reconcile offered, has a span beneath it. Requests about a target run outside reconciles and have a span of their
//! own above them. Log lines from `info` up are events of their span. Requests and calls are named by the semantic
//! conventions (<https://opentelemetry.io/docs/specs/semconv/>), reconciles as in the log.

use std::env;
use std::time::Duration;

use http::Method;
use opentelemetry::trace::{SpanContext, Status, TraceContextExt as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::field::Empty;
use tracing::level_filters::LevelFilter;
use tracing::{Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer, Registry};

use super::collector::Collector;
use crate::cluster::Server;

/// Of the spans that are for traces alone: no line of the log carries their fields.
pub const TARGET: &str = "quartermaster::trace";
/// What the spans that wait may take to be sent when the process ends.
const END: Duration = Duration::from_secs(1);
/// Any of these names the endpoint.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];
/// Any of these names the protocol.
const PROTOCOLS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];

/// What sends the spans, if anything does.
#[must_use]
pub struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// That of the environment. Must be called within the runtime that is to send.
    ///
    /// # Errors
    /// What it says cannot be done; the words say what to write instead.
    pub fn of_environment() -> anyhow::Result<Self> {
        if !wanted(|name| env::var(name).ok()) {
            return Ok(Self(None));
        }
        if let Some(protocol) =
            given(&PROTOCOLS, |name| env::var(name).ok()).filter(|it| it != "http/protobuf")
        {
            anyhow::bail!(
                "OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}: write http/protobuf, and the collector's port for it (4318)"
            );
        }
        let exporter = Collector::of_environment()?;
        let mut resource = Resource::builder();
        let named = env::var_os("OTEL_SERVICE_NAME").is_some()
            || env::var("OTEL_RESOURCE_ATTRIBUTES")
                .is_ok_and(|attributes| attributes.contains("service.name="));
        if !named {
            resource = resource.with_service_name("quartermaster");
        }
        let resource = resource
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self(Some(
            SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_resource(resource)
                .build(),
        )))
    }

    /// None.
    pub fn none() -> Self {
        Self(None)
    }

    /// What has spans sent: our own, and none of those crates' that send them.
    pub(super) fn layer(&self) -> Option<Box<dyn Layer<Registry> + Send + Sync>> {
        let tracer = self.0.as_ref()?.tracer("quartermaster");
        let layer = tracing_opentelemetry::layer().with_tracer(tracer);
        let layer = layer
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_target(false);
        Some(
            layer
                .with_filter(
                    Targets::new()
                        .with_targets(super::OWN_TARGETS.map(|target| (target, LevelFilter::INFO))),
                )
                .boxed(),
        )
    }

    /// Sends what waits, for a moment. What the collector does not take by then is lost.
    pub fn end(self) {
        if let Some(provider) = self.0 {
            // Nobody is left to be told.
            let _ = provider.shutdown_with_timeout(END);
        }
    }
}

/// The first of these that is set to anything.
fn given(names: &[&str], variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    names
        .iter()
        .find_map(|name| variable(name).filter(|value| !value.is_empty()))
}

/// Whether the environment asks for traces
/// (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>).
fn wanted(variable: impl Fn(&str) -> Option<String>) -> bool {
    let says = |name: &str, word: &str| {
        variable(name).is_some_and(|value| value.eq_ignore_ascii_case(word))
    };
    given(&ENDPOINTS, &variable).is_some()
        && !says("OTEL_SDK_DISABLED", "true")
        && !says("OTEL_TRACES_EXPORTER", "none")
}

/// Where in a trace something was asked for.
#[derive(Clone, Debug)]
pub struct Origin(SpanContext);

/// The span that we are in, if it is part of a trace.
pub fn here() -> Option<Origin> {
    let origin = Span::current().context().span().span_context().clone();
    origin.is_valid().then_some(Origin(origin))
}

/// Has `span` stand beneath the first of these, with a link to each of the others.
pub fn beneath<'a>(span: &Span, origins: impl IntoIterator<Item = &'a Origin>) {
    let mut origins = origins.into_iter().map(|Origin(origin)| origin.clone());
    if let Some(first) = origins.next() {
        // It fails only where nothing is traced.
        let _ = span.set_parent(Context::new().with_remote_span_context(first.clone()));
        for other in origins.filter(|other| *other != first) {
            span.add_link(other);
        }
    }
}

/// How many messages `span` was to send, and whether they were taken. No convention is of chats, and the request has no span
/// of its own: its URL is a secret.
pub fn sent(span: &Span, messages: usize, well: bool) {
    span.set_attribute(
        "quartermaster.messages",
        i64::try_from(messages).unwrap_or(i64::MAX),
    );
    if !well {
        span.set_status(Status::error(""));
    }
}

/// The pass that we are in has failed.
pub fn failed() {
    Span::current().set_status(Status::error(""));
}

/// The span of a request to the apiserver; none outside of a pass.
pub fn request(method: &Method, path: &str, server: &Server) -> Span {
    if Span::current().is_none() {
        return Span::none();
    }
    let span = info_span!(
        target: TARGET,
        "request",
        "otel.name" = Empty,
        "otel.kind" = "client",
        "otel.status_code" = Empty,
        "http.request.method" = method.as_str(),
        "http.response.status_code" = Empty,
        "error.type" = Empty,
        "server.address" = server.address,
        "server.port" = server.port,
        "url.full" = Empty,
        "url.template" = Empty,
    );
    if !span.is_disabled() {
        let template = template(path);
        span.record("otel.name", format!("{method} {template}"));
        span.record("url.full", format!("{}{path}", server.url));
        span.record("url.template", template);
    }
    span
}

/// What the apiserver answered; nothing, where there was no answer.
pub fn answered(span: &Span, code: Option<u16>) {
    if span.is_disabled() {
        return;
    }
    if let Some(code) = code {
        span.record("http.response.status_code", code);
    }
    if code.is_none_or(|code| code >= 400) {
        span.record(
            "error.type",
            code.map_or_else(|| "_OTHER".to_owned(), |code| code.to_string()),
        );
        span.record("otel.status_code", "ERROR");
    }
}

/// The span of a call of this service of AWS; none outside of a pass.
pub fn aws(service: &'static str, action: &'static str) -> Span {
    if Span::current().is_none() {
        return Span::none();
    }
    info_span!(
        target: TARGET,
        "aws",
        "otel.name" = format!("{service}/{action}"),
        "otel.kind" = "client",
        "otel.status_code" = Empty,
        "rpc.system" = "aws-api",
        "rpc.service" = service,
        "rpc.method" = action,
        "error.type" = Empty,
    )
}

/// AWS refused the call, with this code.
pub fn refused(span: &Span, code: &str) {
    span.record("error.type", code);
    span.record("otel.status_code", "ERROR");
}

/// A path of the apiserver without the names in it
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris>).
fn template(path: &str) -> String {
    let mut segments: Vec<&str> = path.split('/').collect();
    // Before the resource stand "", "api" and a version, or "", "apis", a group and a version.
    let mut resource = match segments.get(1) {
        Some(&"api") => 3,
        Some(&"apis") => 4,
        _ => return path.to_owned(),
    };
    if segments.get(resource) == Some(&"namespaces")
        && segments.len() > resource + 2
        && segments[resource + 2] != "status"
    {
        segments[resource + 1] = "{namespace}";
        resource += 2;
    }
    if let Some(name) = segments.get_mut(resource + 1) {
        *name = "{name}";
    }
    segments.join("/")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        "/api/v1/namespaces/shop/configmaps/settings",
        "/api/v1/namespaces/{namespace}/configmaps/{name}"
    )]
    #[case(
        "/apis/apps/v1/namespaces/shop/deployments",
        "/apis/apps/v1/namespaces/{namespace}/deployments"
    )]
    #[case(
        "/apis/kosmos.io/v1/namespaces/a/appservices/b/status",
        "/apis/kosmos.io/v1/namespaces/{namespace}/appservices/{name}/status"
    )]
    #[case("/api/v1/namespaces/shop", "/api/v1/namespaces/{name}")]
    #[case("/api/v1/namespaces/shop/status", "/api/v1/namespaces/{name}/status")]
    #[case("/api/v1/nodes/node-1", "/api/v1/nodes/{name}")]
    #[case("/version", "/version")]
    fn names_are_no_part_of_a_template(#[case] path: &str, #[case] wanted: &str) {
        assert_eq!(template(path), wanted);
    }

    #[rstest]
    #[case::nothing(&[], false)]
    #[case::empty(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], false)]
    #[case::endpoint(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")], true)]
    #[case::of_traces(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4318/v1/traces")], true)]
    #[case::disabled(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"), ("OTEL_SDK_DISABLED", "TRUE")], false)]
    #[case::no_exporter(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"), ("OTEL_TRACES_EXPORTER", "none")], false)]
    fn traces_are_sent_where_they_are_asked_for(
        #[case] environment: &[(&str, &str)],
        #[case] sent: bool,
    ) {
        let variable = |name: &str| {
            environment
                .iter()
                .find(|(it, _)| *it == name)
                .map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(wanted(variable), sent);
    }
}
