//! Export of spans to the collector.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::runtime::Handle;

use super::causes::causes;

/// Timeout of the collector's answer: the default of the specification.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Exporter that logs the first failure and the first success after it.
#[derive(Debug)]
pub struct Collector {
    /// The SDK's exporter, which retries for a while.
    exporter: opentelemetry_otlp::SpanExporter,
    problem: ExportError,
    failing: AtomicBool,
}

/// Problem of the last request.
type ExportError = Arc<Mutex<Option<String>>>;

impl Collector {
    /// Creates the exporter that the environment describes. The current tokio runtime sends the spans.
    ///
    /// # Errors
    /// The settings in the environment are invalid.
    pub(crate) fn from_env() -> anyhow::Result<Self> {
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        let problem = ExportError::default();
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(ExportClient {
                client,
                runtime: Handle::current(),
                problem: Arc::clone(&problem),
            })
            .with_protocol(Protocol::HttpBinary)
            .build()
            .context("endpoint for traces")?;
        Ok(Self {
            exporter,
            problem,
            failing: AtomicBool::new(false),
        })
    }
}

impl SpanExporter for Collector {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        let failed = self.failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) if !failed => {
                let problem = self
                    .problem
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
                let error = problem.unwrap_or_else(|| error.to_string());
                tracing::warn!(
                    error,
                    "exporting spans failed; spans are lost until the collector accepts them"
                );
            }
            Ok(()) if failed => tracing::info!("exporting spans succeeds again"),
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// HTTP client that runs in the tokio runtime, because the SDK's thread has no runtime.
#[derive(Debug)]
struct ExportClient {
    client: reqwest::Client,
    runtime: Handle,
    problem: ExportError,
}

impl ExportClient {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let request = request.try_into()?;
        let answer = self.runtime.spawn(async move {
            let (head, body) = Response::from(client.execute(request).await?).into_parts();
            Ok::<_, reqwest::Error>(Response::from_parts(head, body.collect().await?.to_bytes()))
        });
        // The URL of the endpoint may contain a password.
        Ok(answer.await?.map_err(reqwest::Error::without_url)?)
    }
}

#[async_trait::async_trait]
impl HttpClient for ExportClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.send(request).await;
        // The error of the SDK does not say why the request failed.
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("the collector answered {}", answer.status())),
            Err(error) => Some(causes(error.as_ref())),
        };
        answer
    }
}
