//! Clients of the apiserver: one whose writes pass the fence, one without the fence, and one for commands.

use std::error::Error;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::header::{RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tokio::time::{Instant, timeout};
use tower::util::MapErrLayer;
use tower::{BoxError, Layer, Service};
use tracing::{Instrument as _, debug};

use super::availability::{self, Availability};
use super::cluster::ApiServerAddress;
use super::leader::Fence;
use super::metrics::Metrics;
use super::nesting;
use super::pages;
use super::telemetry::{causes, traces};
use super::watch::pace::paced;
use crate::settings::{Program, RuntimeTimings};

/// Timeout of one request of the client without the fence.
const UNFENCED_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time without data on a connection of a command, which has no watch.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Time by which a connection outlasts the timeout of a watch, so that the server ends a quiet watch before the
/// connection counts as dead. Less than the 5 s after which kube's watcher renews a stalled watch without an error: no
/// metric would count that watch.
const WATCH_MARGIN: Duration = Duration::from_secs(3);

/// Reason why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// The request is a write, and this replica does not hold the lease: the client did not send the request, or did
    /// not wait for the response.
    #[error("cancelled: this replica does not hold the lease")]
    NotLeading,
    /// No response began within the timeout.
    #[error("the apiserver did not answer within {0:?}")]
    Timeout(Duration),
    /// The request failed before a response began.
    #[error("{url} cannot be reached: {why}")]
    Unanswered {
        /// URL of the server, without credentials.
        url: String,
        /// Innermost cause.
        why: String,
    },
}

/// Returns whether a write failed because this replica does not hold the lease. A write that was in flight when the
/// replica lost the lease may have succeeded.
pub(crate) fn is_not_leading(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(inner) if matches!(inner.downcast_ref(), Some(RequestError::NotLeading)))
}

/// Returns the message of a request that the apiserver did not answer in time.
pub(crate) fn timed_out(error: &kube::Error) -> Option<String> {
    let kube::Error::Service(inner) = error else {
        return None;
    };
    let error = inner
        .downcast_ref()
        .filter(|error| matches!(error, RequestError::Timeout(_)))?;
    Some(error.to_string())
}

/// Creates the client of all requests except those that need no lease.
///
/// - The client writes (any method but GET and HEAD) only while `fence` is open. It checks the fence until it has sent
///   the request.
/// - The client does not retry: kube's own policy repeats every verb up to 15 times on 429, 503 and 504, and a repeated
///   create can meet its own `AlreadyExists`. Callers back off and compute the request again instead.
/// - A response must begin within `api_timeout`. The client closes a connection on which it reads nothing for 3 s
///   longer than `watch_timeout`, so a watch must ask the server for a `timeoutSeconds` of at most `watch_timeout`.
/// - `availability` records how each request ended.
/// - A watch lasts at least a second, unless it fails.
/// - A list's `limit` is the maximum number of objects in a page, see [`pages::bounded`].
///
/// # Errors
/// Bad certificates or an unsupported proxy in `config`.
pub fn fenced(
    mut config: Config,
    fence: Fence,
    availability: Availability,
    metrics: Metrics,
    program: &Program,
    timings: &RuntimeTimings,
) -> kube::Result<Client> {
    config.read_timeout = Some(timings.watch_timeout + WATCH_MARGIN);
    let server = ApiServerAddress::of(&config.cluster_url);
    let gate = RequestGate {
        fence: Some(fence),
        availability: Some(availability),
        metrics,
        timeout: timings.api_timeout,
        server,
    };
    Ok(pages::bounded(paced(build(config, program, &gate)?)))
}

/// Creates the client for the lease itself and for reviews of clients that read the metrics, which standbys serve too:
/// without the fence, and with a timeout of 5 s for each request.
///
/// # Errors
/// The errors of [`fenced`].
pub(crate) fn unfenced(
    config: Config,
    program: &Program,
    metrics: Metrics,
) -> kube::Result<Client> {
    let server = ApiServerAddress::of(&config.cluster_url);
    let gate = RequestGate {
        fence: None,
        availability: None,
        metrics,
        timeout: UNFENCED_TIMEOUT,
        server,
    };
    build(with_read_timeout(config, UNFENCED_TIMEOUT), program, &gate)
}

/// Creates the client of a command. The client does not retry, so that the user learns immediately of a busy server;
/// errors name the server.
///
/// # Errors
/// The errors of [`fenced`].
pub fn for_command(config: Config, program: &Program) -> kube::Result<Client> {
    let ApiServerAddress { url, .. } = ApiServerAddress::of(&config.cluster_url);
    let unanswered = MapErrLayer::new(move |error: BoxError| -> BoxError {
        let mut first: &dyn Error = &*error;
        while let Some(cause) = first.source() {
            first = cause;
        }
        RequestError::Unanswered {
            url: url.clone(),
            why: first.to_string(),
        }
        .into()
    });
    let builder = ClientBuilder::try_from(with_defaults(
        with_read_timeout(config, COMMAND_TIMEOUT),
        program,
    )?)?;
    Ok(builder
        .with_layer(&nesting::layer())
        .with_layer(&unanswered)
        .build())
}

fn build(config: Config, program: &Program, gate: &RequestGate) -> kube::Result<Client> {
    Ok(ClientBuilder::try_from(with_defaults(config, program)?)?
        .with_layer(&nesting::layer())
        .with_layer(gate)
        .build())
}

/// Limits the time in which a connection opens, and the time without progress of a read or write, to `time`.
fn with_read_timeout(mut config: Config, time: Duration) -> Config {
    config.connect_timeout = Some(time);
    config.read_timeout = Some(time);
    config.write_timeout = Some(time);
    config
}

/// Applies the settings that all clients have in common.
fn with_defaults(mut config: Config, program: &Program) -> kube::Result<Config> {
    config.default_retry = false;
    // Otherwise the idle time of a pooled connection counts towards the timeout of the next response.
    config.reset_reader_on_write = true;
    config.headers.retain(|(name, _)| name != USER_AGENT);
    let agent = HeaderValue::try_from(format!("{}/{}", program.name, program.version))
        .map_err(|error| kube::Error::HttpError(error.into()))?;
    config.headers.push((USER_AGENT, agent));
    Ok(config)
}

/// Returns whether lists can be streamed through a watch, which saves memory on both sides: Kubernetes 1.34 and newer
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#streaming-lists>). kube does not fall back by itself.
///
/// # Errors
/// The error of the request for the version.
pub(crate) async fn streaming_lists_supported(client: &Client) -> kube::Result<bool> {
    let version = client.apiserver_version().await?;
    debug!(
        server = version.git_version,
        "read the version of the apiserver"
    );
    Ok(at_least_1_34(&version.major, &version.minor))
}

fn at_least_1_34(major: &str, minor: &str) -> bool {
    // Some vendors write "34+".
    let number = |text: &str| {
        text.trim_end_matches(|c: char| !c.is_ascii_digit())
            .parse::<u32>()
            .unwrap_or(0)
    };
    (number(major), number(minor)) >= (1, 34)
}

/// Parses `Retry-After` as the apiserver writes it, in seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    Some(availability::pause(
        headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?,
    ))
}

/// Returns whether the success of a request proves that the apiserver stores objects. A dry run and a review store
/// nothing, Events may have a separate etcd, and an etcd that is out of space still deletes.
fn stores(method: &Method, uri: &Uri) -> bool {
    let is_reviewed = uri.path().starts_with("/apis/authorization.k8s.io/");
    let is_event = uri.path().split('/').any(|segment| segment == "events");
    let is_dry_run = uri.query().is_some_and(|query| query.contains("dryRun="));
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
        && !(is_reviewed || is_event || is_dry_run)
}

/// Layer of each request: fence, metrics, timeout, span.
#[derive(Clone)]
struct RequestGate {
    fence: Option<Fence>,
    availability: Option<Availability>,
    metrics: Metrics,
    timeout: Duration,
    server: ApiServerAddress,
}

impl<S> Layer<S> for RequestGate {
    type Service = GatedService<S>;

    fn layer(&self, inner: S) -> GatedService<S> {
        GatedService {
            gate: self.clone(),
            inner,
        }
    }
}

struct GatedService<S> {
    gate: RequestGate,
    inner: S,
}

impl<S, B> Service<Request<Body>> for GatedService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: Send,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        let gate = self.gate.clone();
        let writes = !matches!(method, Method::GET | Method::HEAD);
        let stores = stores(&method, request.uri());
        let fence = gate.fence.clone().filter(|_| writes);
        if fence.as_ref().is_some_and(|fence| !fence.is_open()) {
            return Box::pin(async { Err(RequestError::NotLeading.into()) });
        }
        let span = traces::request(&method, &path, &gate.server);
        let request_span = span.clone();
        let answer = self.inner.call(request);
        let answered = async move {
            let started = Instant::now();
            let guarded = async {
                let Some(fence) = &fence else {
                    return answer.await;
                };
                let answer = fence.guard(answer).await;
                answer.unwrap_or_else(|| Err(RequestError::NotLeading.into()))
            };
            let result = match timeout(gate.timeout, guarded).await {
                Ok(result) => result,
                Err(_) => Err(RequestError::Timeout(gate.timeout).into()),
            };
            let code = result
                .as_ref()
                .ok()
                .map(|response| response.status().as_u16());
            // A write that the fence blocked is no evidence about the apiserver.
            let is_fenced = fence.as_ref().is_some_and(|fence| !fence.is_open());
            if let Some(availability) = gate
                .availability
                .as_ref()
                .filter(|_| code.is_some() || !is_fenced)
            {
                availability.answered(
                    stores,
                    code,
                    result
                        .as_ref()
                        .ok()
                        .and_then(|response| retry_after(response.headers())),
                );
            }
            gate.metrics
                .api_request(gate.server.host(), method.as_str(), code);
            traces::answered(&request_span, code);
            let error = result.as_ref().err().map(|error| causes(error.as_ref()));
            debug!(%method, path, code, error, took = ?started.elapsed(), "sent a request to the apiserver");
            result
        };
        Box::pin(answered.instrument(span))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::future::{Ready, pending, ready};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
    use rstest::rstest;
    use tower::service_fn;

    use super::*;
    use crate::testing::PROGRAM;

    const OBJECT: &str = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}"#;

    #[rstest]
    #[case::create("POST", "/apis/apps/v1/namespaces/a/deployments", true)]
    #[case::apply(
        "PATCH",
        "/api/v1/namespaces/a/services/b?fieldManager=c&force=true",
        true
    )]
    #[case::read("GET", "/api/v1/namespaces/a/services/b", false)]
    #[case::delete("DELETE", "/api/v1/namespaces/a/services/b", false)]
    #[case::event("POST", "/apis/events.k8s.io/v1/namespaces/a/events", false)]
    #[case::dry_run(
        "PATCH",
        "/api/v1/namespaces/a/services/b?dryRun=All&force=true",
        false
    )]
    #[case::review(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        false
    )]
    fn success_proves_that_objects_are_stored(
        #[case] method: &str,
        #[case] uri: &str,
        #[case] proves: bool,
    ) {
        assert_eq!(
            stores(&method.parse().unwrap(), &uri.parse().unwrap()),
            proves
        );
    }

    fn gate(fence: &Fence, metrics: &Metrics) -> RequestGate {
        RequestGate {
            fence: Some(fence.clone()),
            availability: None,
            metrics: metrics.clone(),
            timeout: Duration::from_secs(30),
            server: ApiServerAddress::of(&"https://api".parse().unwrap()),
        }
    }

    /// Returns a client whose server counts requests and answers each with `OBJECT`.
    fn client(gate: &RequestGate) -> (Client, Arc<AtomicUsize>) {
        let reached = Arc::new(AtomicUsize::new(0));
        let count = reached.clone();
        let server = service_fn(
            move |_: Request<Body>| -> Ready<Result<Response<Body>, BoxError>> {
                count.fetch_add(1, Ordering::Relaxed);
                ready(Ok(Response::new(Body::from(OBJECT.as_bytes().to_vec()))))
            },
        );
        (Client::new(gate.layer(server), "default"), reached)
    }

    #[tokio::test(start_paused = true)]
    async fn writes_fail_without_the_lease() {
        let (fence, metrics) = (Fence::shut(), Metrics::new(&PROGRAM));
        let (client, reached) = client(&gate(&fence, &metrics));
        let api: Api<ConfigMap> = Api::default_namespaced(client);
        let (post, patch, delete) = (
            PostParams::default(),
            PatchParams::default(),
            DeleteParams::default(),
        );
        let merge = Patch::Merge(serde_json::json!({}));
        let errors = [
            api.create(&post, &ConfigMap::default())
                .await
                .map(drop)
                .unwrap_err(),
            api.replace("x", &post, &ConfigMap::default())
                .await
                .map(drop)
                .unwrap_err(),
            api.patch("x", &patch, &merge).await.map(drop).unwrap_err(),
            api.delete("x", &delete).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(is_not_leading(&error), "{error:?}");
            assert!(
                error.to_string().contains("does not hold the lease"),
                "{error}"
            );
        }
        assert_eq!(reached.load(Ordering::Relaxed), 0);
        api.get("x").await.unwrap();
        assert_eq!(reached.load(Ordering::Relaxed), 1);

        fence.renewed(Instant::now(), Duration::from_secs(6));
        api.patch("x", &patch, &merge).await.unwrap();
        tokio::time::advance(Duration::from_secs(6)).await;
        assert!(is_not_leading(
            &api.patch("x", &patch, &merge).await.unwrap_err()
        ));
        assert_eq!(reached.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn write_that_waits_for_a_connection_fails_when_the_lease_is_lost() {
        let fence = Fence::shut();
        fence.renewed(Instant::now(), Duration::from_secs(6));
        let sent = Arc::new(AtomicUsize::new(0));
        let count = sent.clone();
        let server = service_fn(move |_: Request<Body>| {
            let count = count.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(7)).await;
                count.fetch_add(1, Ordering::Relaxed);
                Ok::<_, BoxError>(Response::new(Body::empty()))
            }
        });
        let client = Client::new(
            gate(&fence, &Metrics::new(&PROGRAM)).layer(server),
            "default",
        );
        let api: Api<ConfigMap> = Api::default_namespaced(client);
        let error = api
            .create(&PostParams::default(), &ConfigMap::default())
            .await
            .unwrap_err();
        assert!(is_not_leading(&error), "{error:?}");
        assert_eq!(sent.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn request_times_out_without_a_response() {
        let metrics = Metrics::new(&PROGRAM);
        let server = service_fn(|_: Request<Body>| pending::<Result<Response<Body>, BoxError>>());
        let client = Client::new(gate(&Fence::open(), &metrics).layer(server), "default");
        let error = Api::<ConfigMap>::default_namespaced(client)
            .get("x")
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("did not answer within 30s"),
            "{error}"
        );
        let line = "rest_client_requests_total{code=\"<error>\",method=\"GET\",host=\"api:443\"} 1";
        assert!(metrics.encode().contains(line), "{}", metrics.encode());
    }

    #[tokio::test]
    async fn requests_are_counted_by_code_and_method() {
        let metrics = Metrics::new(&PROGRAM);
        let (client, _) = client(&gate(&Fence::open(), &metrics));
        let api: Api<ConfigMap> = Api::default_namespaced(client);
        api.get("x").await.unwrap();
        api.get("x").await.unwrap();
        api.create(&PostParams::default(), &ConfigMap::default())
            .await
            .unwrap();
        let text = metrics.encode();
        for line in [
            "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"api:443\"} 2",
            "rest_client_requests_total{code=\"200\",method=\"POST\",host=\"api:443\"} 1",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[tokio::test]
    async fn error_of_a_command_names_the_server() {
        let shut = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let client = for_command(
            Config::new(format!("http://me:hunter2@{shut}").parse().unwrap()),
            &PROGRAM,
        )
        .unwrap();
        let kube::Error::Service(error) = Api::<ConfigMap>::default_namespaced(client)
            .get("x")
            .await
            .unwrap_err()
        else {
            panic!()
        };
        assert_eq!(
            causes(&*error),
            format!("http://{shut} cannot be reached: Connection refused (os error 111)")
        );
    }

    /// The test uses a socket, because kube's own layers are below those of this module.
    #[tokio::test]
    async fn client_sends_its_user_agent_and_does_not_retry() {
        use http::StatusCode;
        use testbed::receiver::{Receiver, Reply};

        let receiver = Receiver::start().unwrap();
        receiver.always(Reply::status(StatusCode::SERVICE_UNAVAILABLE));
        let config = || Config::new(receiver.url().parse().unwrap());
        let fenced = super::fenced(
            config(),
            Fence::open(),
            Availability::default(),
            Metrics::new(&PROGRAM),
            &PROGRAM,
            &RuntimeTimings::default(),
        )
        .unwrap();
        let unfenced = super::unfenced(config(), &PROGRAM, Metrics::new(&PROGRAM)).unwrap();
        let command = for_command(config(), &PROGRAM).unwrap();
        for client in [fenced, unfenced, command] {
            Api::<ConfigMap>::default_namespaced(client)
                .get("x")
                .await
                .unwrap_err();
        }
        let requests = receiver.requests();
        let agents = requests.iter().map(|request| request.header("user-agent"));
        assert_eq!(
            agents.collect::<Vec<_>>(),
            [Some("widget-operator/1.2.3"); 3]
        );
    }

    #[rstest]
    #[case("1", "33", false)]
    #[case("1", "33+", false)]
    #[case("1", "34", true)]
    #[case("1", "34+", true)]
    #[case("1", "36", true)]
    #[case("2", "0", true)]
    #[case("", "", false)]
    fn streaming_lists_need_version_1_34(
        #[case] major: &str,
        #[case] minor: &str,
        #[case] supported: bool,
    ) {
        assert_eq!(at_least_1_34(major, minor), supported);
    }
}
