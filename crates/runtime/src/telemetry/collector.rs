//! How spans get to the collector, and what is said when they do not.

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

use super::causes;

/// What the collector may take to answer: the specification's own default.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Says once that no spans are taken any more, and once that they are again.
#[derive(Debug)]
pub struct Collector {
    /// It tries again for a while by itself.
    exporter: opentelemetry_otlp::SpanExporter,
    problem: Problem,
    failing: AtomicBool,
}

/// What was wrong with the last request, if anything was.
type Problem = Arc<Mutex<Option<String>>>;

impl Collector {
    /// That of the environment. Must be called within the runtime that is to send.
    ///
    /// # Errors
    /// What it says cannot be done.
    pub fn of_environment() -> anyhow::Result<Self> {
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        let problem = Problem::default();
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(Sender {
                client,
                runtime: Handle::current(),
                problem: Arc::clone(&problem),
            })
            .with_protocol(Protocol::HttpBinary)
            .build()
            .context("the endpoint for traces")?;
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
                tracing::warn!(error, "the collector takes no traces: they are lost");
            }
            Ok(()) if failed => tracing::info!("the collector takes traces again"),
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

/// Sends in our runtime what the exporter's own thread, which has none, waits for.
#[derive(Debug)]
struct Sender {
    client: reqwest::Client,
    runtime: Handle,
    problem: Problem,
}

impl Sender {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let request = request.try_into()?;
        let answer = self.runtime.spawn(async move {
            let (head, body) = Response::from(client.execute(request).await?).into_parts();
            Ok::<_, reqwest::Error>(Response::from_parts(head, body.collect().await?.to_bytes()))
        });
        // The endpoint may hold a password.
        Ok(answer.await?.map_err(reqwest::Error::without_url)?)
    }
}

#[async_trait::async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.send(request).await;
        // The exporter's own error does not say why there was no answer.
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answers {}", answer.status())),
            Err(error) => Some(causes(error.as_ref())),
        };
        answer
    }
}
