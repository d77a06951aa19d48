//! Traces by OTLP over HTTP, if the environment names an endpoint
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).
//!
//! Each reconcile has a span, whose fields are those of its log lines; each request to the apiserver has a span below
//! it. Requests outside reconciles have a separate parent span. Log lines from `info` up are events of their span.
//! Spans of requests use the names of the semantic conventions (<https://opentelemetry.io/docs/specs/semconv/>), spans
//! of reconciles those of the log.

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
use crate::cluster::ApiServerAddress;
use crate::settings::Program;

/// Target of spans for traces only: no log line has their fields.
pub const TARGET: &str = "qm_runtime::trace";
/// Timeout of the last export when the process ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// Variables that name the endpoint.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];
/// Variables that name the protocol.
const PROTOCOLS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];

/// Exporter of the spans, if the environment asks for one.
#[must_use]
pub struct Traces {
    provider: Option<SdkTracerProvider>,
    program: &'static str,
    targets: Vec<&'static str>,
}

impl Traces {
    /// Creates the exporter that the environment asks for. The current tokio runtime sends the spans.
    ///
    /// # Errors
    /// The settings in the environment are unsupported or invalid.
    pub(crate) fn from_env(program: &Program) -> anyhow::Result<Self> {
        if !is_enabled(|name| env::var(name).ok()) {
            return Ok(Self::none());
        }
        if let Some(protocol) =
            first_set(&PROTOCOLS, |name| env::var(name).ok()).filter(|it| it != "http/protobuf")
        {
            anyhow::bail!(
                "OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}: write http/protobuf, and the collector's port for it (4318)"
            );
        }
        let exporter = Collector::from_env()?;
        let mut resource = Resource::builder();
        let named = env::var_os("OTEL_SERVICE_NAME").is_some()
            || env::var("OTEL_RESOURCE_ATTRIBUTES")
                .is_ok_and(|attributes| attributes.contains("service.name="));
        if !named {
            resource = resource.with_service_name(program.name);
        }
        let resource = resource
            .with_attribute(KeyValue::new("service.version", program.version))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource)
            .build();
        Ok(Self {
            provider: Some(provider),
            program: program.name,
            targets: program.own_targets().collect(),
        })
    }

    /// Creates an exporter that sends nothing.
    pub fn none() -> Self {
        Self {
            provider: None,
            program: "",
            targets: Vec::new(),
        }
    }

    /// Returns the layer that exports spans of the program's own crates only, because the crates that send spans create
    /// spans too.
    pub(super) fn layer(&self) -> Option<Box<dyn Layer<Registry> + Send + Sync>> {
        let tracer = self.provider.as_ref()?.tracer(self.program);
        let layer = tracing_opentelemetry::layer().with_tracer(tracer);
        let layer = layer
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_target(false);
        Some(
            layer
                .with_filter(
                    Targets::new().with_targets(
                        self.targets
                            .iter()
                            .map(|target| (*target, LevelFilter::INFO)),
                    ),
                )
                .boxed(),
        )
    }

    /// Sends the remaining spans within a second. Spans that the collector does not accept by then are lost.
    pub fn shutdown(self) {
        if let Some(provider) = self.provider {
            // The process is ending, and the collector logs its own errors.
            let _ = provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT);
        }
    }
}

/// Returns the value of the first variable that is not empty.
fn first_set(names: &[&str], variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    names
        .iter()
        .find_map(|name| variable(name).filter(|value| !value.is_empty()))
}

/// Returns whether the environment asks for traces
/// (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>).
fn is_enabled(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is = |name: &str, word: &str| {
        variable(name).is_some_and(|value| value.eq_ignore_ascii_case(word))
    };
    first_set(&ENDPOINTS, &variable).is_some()
        && !is("OTEL_SDK_DISABLED", "true")
        && !is("OTEL_TRACES_EXPORTER", "none")
}

/// Position in a trace that caused a later span.
#[derive(Clone, Debug)]
pub struct Origin(SpanContext);

/// Returns the current span, if it is part of a trace.
pub fn current() -> Option<Origin> {
    let origin = Span::current().context().span().span_context().clone();
    origin.is_valid().then_some(Origin(origin))
}

/// Makes `span` a child of the first origin and links it to the others.
pub fn set_origins<'a>(span: &Span, origins: impl IntoIterator<Item = &'a Origin>) {
    let mut origins = origins.into_iter().map(|Origin(origin)| origin.clone());
    if let Some(first) = origins.next() {
        // Setting the parent fails only if tracing is off.
        let _ = span.set_parent(Context::new().with_remote_span_context(first.clone()));
        for other in origins.filter(|other| *other != first) {
            span.add_link(other);
        }
    }
}

/// Records that the current reconcile failed.
pub fn failed() {
    Span::current().set_status(Status::error(""));
}

/// Creates the span of a request to the apiserver; [`Span::none`] if the request has no parent span, such as that of a
/// watch.
pub(crate) fn request(method: &Method, path: &str, server: &ApiServerAddress) -> Span {
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

/// Records the status code of the answer; `None` means no answer.
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

/// Returns a path of the apiserver with placeholders for names
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris>).
fn template(path: &str) -> String {
    let mut segments: Vec<&str> = path.split('/').collect();
    // The resource follows "", "api" and a version, or "", "apis", a group and a version.
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
        "/apis/example.com/v1/namespaces/a/widgets/b/status",
        "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}/status"
    )]
    #[case("/api/v1/namespaces/shop", "/api/v1/namespaces/{name}")]
    #[case("/api/v1/namespaces/shop/status", "/api/v1/namespaces/{name}/status")]
    #[case("/api/v1/nodes/node-1", "/api/v1/nodes/{name}")]
    #[case("/version", "/version")]
    fn template_has_no_names(#[case] path: &str, #[case] expected: &str) {
        assert_eq!(template(path), expected);
    }

    #[rstest]
    #[case::nothing(&[], false)]
    #[case::empty(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], false)]
    #[case::endpoint(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")], true)]
    #[case::of_traces(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4318/v1/traces")], true)]
    #[case::disabled(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"), ("OTEL_SDK_DISABLED", "TRUE")], false)]
    #[case::no_exporter(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"), ("OTEL_TRACES_EXPORTER", "none")], false)]
    fn environment_enables_traces(#[case] environment: &[(&str, &str)], #[case] sent: bool) {
        let variable = |name: &str| {
            environment
                .iter()
                .find(|(it, _)| *it == name)
                .map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(is_enabled(variable), sent);
    }
}
