//! Spans of the calls, following the [semantic conventions].
//!
//! [semantic conventions]: https://opentelemetry.io/docs/specs/semconv/cloud-providers/aws-sdk/

use qm_runtime::telemetry::traces::TARGET;
use tracing::field::Empty;
use tracing::{Span, info_span};

/// Creates the span of a call; [`Span::none`] outside a reconcile.
pub fn call(service: &'static str, action: &'static str) -> Span {
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

/// Records that the call failed with this code.
pub fn failed(span: &Span, code: &str) {
    span.record("error.type", code);
    span.record("otel.status_code", "ERROR");
}
