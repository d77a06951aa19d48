//! Traces: the spans that a collector gets, and independence from the collector.

use std::collections::BTreeMap;

use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as Standing;
use prost::Message as _;
use qm_api::ConfigMapSync;
use serde_json::{Value, json};
use testbed::aws::Aws;
use testbed::bot_api::Fault;
use testbed::receiver::{Receiver, Reply};
use testbed::wait::until;

use crate::support::{Bed, CHAT, Operator, SOON, Settings, TOKEN, bot_api};

/// A fake collector: a receiver of OTLP over HTTP.
struct Collector(Receiver);

impl Collector {
    fn start() -> Self {
        Self(Receiver::start().unwrap())
    }

    /// Returns settings that export spans twenty times a second.
    fn settings(&self) -> Settings {
        let settings = Settings::default().env("OTEL_EXPORTER_OTLP_ENDPOINT", &self.0.url());
        settings
            .env("OTEL_BSP_SCHEDULE_DELAY", "50")
            .env("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=it")
    }

    fn accepted(&self) -> Vec<ExportTraceServiceRequest> {
        let requests = self.0.requests();
        let taken = requests
            .iter()
            .filter(|request| request.answered == Some(StatusCode::OK));
        taken
            .map(|request| {
                assert_eq!(request.path, "/v1/traces");
                assert_eq!(
                    request.header("content-type"),
                    Some("application/x-protobuf")
                );
                ExportTraceServiceRequest::decode(request.body.clone()).unwrap()
            })
            .collect()
    }

    fn spans(&self) -> Vec<Span> {
        let resources = self
            .accepted()
            .into_iter()
            .flat_map(|request| request.resource_spans);
        resources
            .flat_map(|resource| resource.scope_spans)
            .flat_map(|scope| scope.spans)
            .collect()
    }

    /// Waits for a span like this.
    async fn span(&self, what: &str, is: impl Fn(&Span) -> bool) -> Span {
        until(what, SOON, async || {
            Ok(self.spans().into_iter().find(|span| is(span)))
        })
        .await
        .unwrap()
    }
}

fn text(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Attribute::StringValue(text)) => text,
        Some(Attribute::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn attributes(of: &[KeyValue]) -> BTreeMap<String, String> {
    of.iter()
        .map(|attribute| (attribute.key.clone(), text(attribute.value.clone())))
        .collect()
}

fn is(span: &Span, key: &str, value: &str) -> bool {
    attributes(&span.attributes)
        .get(key)
        .is_some_and(|it| it == value)
}

/// Selects the reconcile of a controller for the object of this name.
fn reconcile_of<'a>(controller: &'a str, name: &'a str) -> impl Fn(&Span) -> bool + 'a {
    move |span| is(span, "controller", controller) && is(span, "name", name)
}

#[tokio::test]
async fn reconcile_span_contains_its_requests_and_messages() {
    let bed = Bed::shared("traces").await;
    let (collector, telegram, aws) = (Collector::start(), bot_api(), Aws::start().await.unwrap());
    let settings = collector.settings().telegram(&telegram.url()).aws(&aws);
    let _operator = Operator::start(&bed, settings).await;
    bed.telegram("chat", TOKEN, CHAT).await;
    bed.ready("chat").await;
    bed.deployment("web", 1).await;
    bed.track("replicas", "Deployment", "web", "replicas", "chat")
        .await;
    bed.delivered("replicas", &[("Created", Some("1"))]).await;

    // Sent requests are children of a reconcile that offered them.
    let is_beneath = |span: &Span, reconcile: &Span| {
        span.parent_span_id == reconcile.span_id && span.trace_id == reconcile.trace_id
    };
    let sent = collector
        .span("the message", |span| {
            span.name == "send" && !span.parent_span_id.is_empty()
        })
        .await;
    assert!(
        is(&sent, "messaging.batch.message_count", "1") && is(&sent, "name", "chat"),
        "{sent:?}"
    );
    let reconcile = collector
        .span("the reconcile", |reconcile| is_beneath(&sent, reconcile))
        .await;
    assert!(
        reconcile_of("trackedfield", "replicas")(&reconcile)
            && is(&reconcile, "namespace", &bed.namespace),
        "{reconcile:?}"
    );
    assert!(reconcile.parent_span_id.is_empty());
    let template = "/apis/tg.azamaton.ru/v1/namespaces/{namespace}/trackedfields/{name}/status";
    let written = collector
        .span("the write of the status", |span| {
            is(span, "url.template", template)
        })
        .await;
    assert_eq!(written.kind(), SpanKind::Client);
    let method = attributes(&written.attributes)
        .remove("http.request.method")
        .unwrap();
    assert_eq!(written.name, format!("{method} {template}"));
    assert!(
        is(&written, "http.response.status_code", "200"),
        "{written:?}"
    );
    let attributes_of_request = attributes(&written.attributes);
    let at = format!(
        "https://{}:{}/apis/tg.azamaton.ru/",
        attributes_of_request["server.address"], attributes_of_request["server.port"]
    );
    assert!(
        attributes_of_request["url.full"].starts_with(&at),
        "{attributes_of_request:?}"
    );
    let writer = collector
        .span("the read of the owner tags", |reconcile| {
            is_beneath(&written, reconcile)
        })
        .await;
    assert!(
        reconcile_of("trackedfield", "replicas")(&writer),
        "{writer:?}"
    );

    // A failed reconcile is marked as failed: AWS does not know the subnets.
    let subnets = json!({ "subnets": ["subnet-nowhere", "subnet-else"] });
    bed.create::<qm_api::MyIngress>("web", json!({ "spec": subnets }))
        .await;
    let call = "Elastic Load Balancing v2/CreateLoadBalancer";
    let refused = collector
        .span("the call that AWS rejected", |span| span.name == call)
        .await;
    assert!(is(&refused, "error.type", "SubnetNotFound"), "{refused:?}");
    assert_eq!(refused.status.as_ref().unwrap().code(), Standing::Error);
    let failed = collector
        .span("the failed reconcile", |reconcile| {
            is_beneath(&refused, reconcile)
        })
        .await;
    assert_eq!(failed.status.as_ref().unwrap().code(), Standing::Error);
    assert!(
        failed
            .events
            .iter()
            .any(|event| event.name.starts_with("reconcile failed")),
        "{failed:?}"
    );

    // A broken connection: the text of such an error has the URL, which contains the token.
    telegram.fault_next(1, Fault::Instead(Reply::reset()));
    bed.patch::<Deployment>("web", json!({ "spec": { "replicas": 2 } }))
        .await;
    bed.delivered(
        "replicas",
        &[("Created", Some("1")), ("Updated", Some("2"))],
    )
    .await;
    let unsent = |span: &Span| {
        span.name == "send"
            && span
                .status
                .as_ref()
                .is_some_and(|it| it.code() == Standing::Error)
    };
    collector.span("the failed request", unsent).await;

    // The resource attributes contain no part of a secret.
    let resource = attributes(
        &collector.accepted().remove(0).resource_spans[0]
            .resource
            .as_ref()
            .unwrap()
            .attributes,
    );
    assert_eq!(resource["service.name"], "quartermaster");
    assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(resource["k8s.cluster.name"], "it");
    for request in collector.0.requests() {
        assert!(!String::from_utf8_lossy(&request.body).contains(TOKEN));
    }
}

/// Returns a sync that copies the `ConfigMap` `settings`.
fn sync(bed: &Bed, to: &str) -> Value {
    let (source, name) = (&bed.namespace, "settings");
    json!({ "spec": { "sourceNamespace": source, "destinationNamespace": source, "configMapName": name, "destinationName": to } })
}

fn is_ready(sync: &ConfigMapSync) -> bool {
    sync.status
        .as_ref()
        .is_some_and(|it| it.conditions.iter().any(|it| it.status == "True"))
}

#[tokio::test]
async fn spans_accepted_at_last_are_not_reported_as_lost() {
    let bed = Bed::shared("busy").await;
    let collector = Collector::start();
    collector
        .0
        .next(1, Reply::status(StatusCode::SERVICE_UNAVAILABLE));
    let operator = Operator::start(&bed, collector.settings()).await;
    bed.create::<ConfigMapSync>("first", sync(&bed, "first"))
        .await;
    collector
        .span(
            "the reconcile after the outage",
            reconcile_of("configmapsync", "first"),
        )
        .await;
    assert_eq!(
        collector.0.requests()[0].answered,
        Some(StatusCode::SERVICE_UNAVAILABLE)
    );
    assert!(
        !operator.logs().contains("exporting spans"),
        "{}",
        operator.logs()
    );
}

#[tokio::test]
async fn missing_collector_changes_nothing() {
    let bed = Bed::shared("uncollected").await;
    let collector = Collector::start();
    collector.0.refuse().await.unwrap();
    let with_password = collector.0.url().replace("://", "://otel:hunter2@");
    let settings = collector
        .settings()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &with_password);
    let mut operator = Operator::start(&bed, settings).await;
    let says = async |line: &str| {
        until(line, SOON, async || {
            Ok(operator.logs().contains(line).then_some(()))
        })
        .await
        .unwrap();
    };
    bed.create::<ConfigMap>("settings", json!({ "data": { "a": "b" } }))
        .await;
    bed.create::<ConfigMapSync>("first", sync(&bed, "first"))
        .await;
    bed.until("first", "Ready", is_ready).await;
    let lost = "exporting spans failed; spans are lost until the collector accepts them";
    says(lost).await;
    collector.0.always(Reply::status(StatusCode::UNAUTHORIZED));
    collector.0.accept().await.unwrap();
    bed.create::<ConfigMapSync>("lost", sync(&bed, "lost"))
        .await;
    until("the collector gets another request", SOON, async || {
        Ok(collector.0.requests().first().cloned())
    })
    .await
    .unwrap();
    collector.0.behave();
    bed.create::<ConfigMapSync>("second", sync(&bed, "second"))
        .await;
    collector
        .span(
            "the later reconcile",
            reconcile_of("configmapsync", "second"),
        )
        .await;
    says("exporting spans succeeds again").await;
    let logs = operator.logs();
    assert_eq!(logs.matches(lost).count(), 1, "{logs}");
    assert!(!logs.contains("hunter2"), "{logs}");

    // A hanging collector blocks neither the work nor the shutdown.
    collector.0.always(Reply::hang());
    bed.create::<ConfigMapSync>("third", sync(&bed, "third"))
        .await;
    bed.until("third", "Ready", is_ready).await;
    operator.child().terminate().unwrap();
    assert!(operator.child().wait(SOON).await.unwrap().success());
}

#[tokio::test]
async fn failed_export_is_reported_and_blocks_nothing() {
    let bed = Bed::shared("untraced").await;
    let collector = Collector::start();
    let settings = collector
        .settings()
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    let mut operator = Operator::start(&bed, settings).await;
    bed.create::<ConfigMap>("settings", json!({ "data": { "a": "b" } }))
        .await;
    bed.create::<ConfigMapSync>("first", sync(&bed, "first"))
        .await;
    bed.until("first", "Ready", is_ready).await;
    let logs = operator.logs();
    assert!(
        logs.contains("OTEL_EXPORTER_OTLP_PROTOCOL is grpc: write http/protobuf"),
        "{logs}"
    );
    // Waiting spans are sent at the end.
    operator.child().terminate().unwrap();
    assert!(operator.child().wait(SOON).await.unwrap().success());
    assert!(collector.0.requests().is_empty());
}
