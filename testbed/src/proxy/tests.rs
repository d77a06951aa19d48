#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::{
    ApiErrorResponse, BOOKMARK, Ending, Fault, LIST_END, Lost, Match, Point, Proxy, Then, Times,
    Verb,
};
use crate::serve::Server;
use crate::tls::{Authority, server_config};

mod watches;

const SOON: Duration = Duration::from_secs(5);
const PODS: &str = "/api/v1/namespaces/a/pods";

/// Runs a test over HTTP/1.1 and over HTTP/2.
async fn both<F: Future<Output = ()>>(test: impl Fn(reqwest::ClientBuilder) -> F) {
    test(reqwest::Client::builder().http1_only()).await;
    test(reqwest::Client::builder().http2_prior_knowledge()).await;
}

/// Requests in short form, each with its `Authorization`.
type Received = Arc<Mutex<Vec<(String, Option<String>)>>>;

/// A small apiserver that records requests, answers `{"items":[]}`, and streams the test's events to watches.
struct Upstream {
    url: String,
    ca_pem: String,
    received: Received,
    events: broadcast::Sender<Bytes>,
    server: Server,
}

impl Upstream {
    fn start() -> Self {
        let authority = Authority::new("upstream").unwrap();
        let config = server_config(
            &authority.server(&["127.0.0.1"]).unwrap(),
            None,
            &["h2", "http/1.1"],
        )
        .unwrap();
        let received = Received::default();
        let events = broadcast::Sender::new(64);
        let server = Server::start(Some(config), {
            let (received, events) = (received.clone(), events.clone());
            move |wire, _| {
                let (received, events) = (received.clone(), events.clone());
                let service =
                    service_fn(move |request| answer(received.clone(), events.clone(), request));
                async move {
                    let _ = auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(wire), service)
                        .await;
                }
            }
        })
        .unwrap();
        let url = format!("https://{}", server.address());
        Self {
            url,
            ca_pem: authority.ca_pem().to_owned(),
            received,
            events,
            server,
        }
    }

    fn received(&self) -> usize {
        self.received.lock().unwrap().len()
    }

    /// Sends an event to all watches.
    fn send_event(&self, kind: &str, name: &str) {
        self.send_object(kind, &json!({ "metadata": { "name": name } }));
    }

    fn send_object(&self, kind: &str, object: &Value) {
        let event = json!({ "type": kind, "object": object });
        let line = format!("{event}\n");
        // The event goes out in two pieces, because events do not end where frames do.
        let (first, second) = line.split_at(20);
        for piece in [first, second] {
            self.events
                .send(Bytes::copy_from_slice(piece.as_bytes()))
                .unwrap();
        }
    }
}

type Answer = Response<http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>>;

async fn answer(
    received: Received,
    events: broadcast::Sender<Bytes>,
    request: Request<Incoming>,
) -> Result<Answer, hyper::Error> {
    let token = request
        .headers()
        .get("authorization")
        .map(|value| value.to_str().unwrap().to_owned());
    let (head, body) = request.into_parts();
    let is_watch = head
        .uri
        .query()
        .is_some_and(|query| query.contains("watch"));
    let feed = events.subscribe();
    let body = body.collect().await?.to_bytes();
    received.lock().unwrap().push((
        format!("{} {} {}", head.method, head.uri, body.len()),
        token,
    ));
    let body = if is_watch {
        let frames = futures::stream::unfold(feed, async |mut feed| {
            Some((Ok(Frame::data(feed.recv().await.ok()?)), feed))
        });
        StreamBody::new(frames).boxed_unsync()
    } else {
        Full::new(Bytes::from_static(br#"{"items":[]}"#)).boxed_unsync()
    };
    Ok(Response::builder()
        .header("content-type", "application/json")
        .body(body)
        .unwrap())
}

struct Client(reqwest::Client, String);

impl Client {
    async fn get(&self, path: &str) -> reqwest::Result<reqwest::Response> {
        self.0
            .get(format!("{}{path}", self.1))
            .bearer_auth("t0ken")
            .send()
            .await
    }

    async fn patch(&self, path: &str) -> reqwest::Result<StatusCode> {
        Ok(self
            .0
            .patch(format!("{}{path}", self.1))
            .body("{}")
            .send()
            .await?
            .status())
    }

    async fn watch(&self) -> Watch {
        let answer = self.get(&format!("{PODS}?watch=true")).await.unwrap();
        assert_eq!(answer.status(), 200);
        Watch(answer, Vec::new())
    }
}

struct Watch(reqwest::Response, Vec<u8>);

impl Watch {
    /// Returns the next event; an error if the stream is cut, null if it ends.
    async fn next(&mut self) -> reqwest::Result<Value> {
        loop {
            if let Some(end) = self.1.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.1.drain(..=end).collect();
                return Ok(serde_json::from_slice(&line).unwrap());
            }
            match self.0.chunk().await? {
                Some(chunk) => self.1.extend_from_slice(&chunk),
                None => return Ok(Value::Null),
            }
        }
    }

    async fn name(&mut self) -> String {
        self.next().await.unwrap()["object"]["metadata"]["name"]
            .as_str()
            .unwrap()
            .to_owned()
    }
}

fn start(builder: reqwest::ClientBuilder) -> (Upstream, Proxy, Client) {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream.url, &upstream.ca_pem).unwrap();
    let root = reqwest::Certificate::from_pem(proxy.ca_pem().as_bytes()).unwrap();
    let client = builder
        .tls_certs_only([root])
        .no_proxy()
        .timeout(SOON)
        .build()
        .unwrap();
    let client = Client(client, proxy.url());
    (upstream, proxy, client)
}

#[tokio::test]
async fn proxy_speaks_both_http_versions() {
    let versions = Mutex::new(Vec::new());
    both(async |builder| {
        let (_upstream, _proxy, client) = start(builder);
        let version = client.get(PODS).await.unwrap().version();
        versions.lock().unwrap().push(version);
    })
    .await;
    assert_eq!(
        *versions.lock().unwrap(),
        [http::Version::HTTP_11, http::Version::HTTP_2]
    );
}

#[tokio::test]
async fn hook_after_response_waits_for_its_last_byte() {
    both(async |builder| {
        let (_upstream, proxy, client) = start(builder);
        let (ran, mut runs) = tokio::sync::mpsc::unbounded_channel();
        let hook = Fault::hook(Point::AfterAnswer, move |request| {
            ran.send(request.verb).unwrap();
            std::future::ready(Then::GoOn)
        });
        proxy.inject(Match::any(), Times::Always, hook);
        let mut watch = client.watch().await;
        client.get(&format!("{PODS}/p")).await.unwrap();
        // The watch, which came first, has no complete response yet.
        assert_eq!(
            tokio::time::timeout(SOON, runs.recv()).await.unwrap(),
            Some(Verb::Get)
        );
        proxy.end_watches(&Match::any(), Ending::Clean);
        assert_eq!(watch.next().await.unwrap(), Value::Null);
        assert_eq!(
            tokio::time::timeout(SOON, runs.recv()).await.unwrap(),
            Some(Verb::Watch)
        );
    })
    .await;
}

#[tokio::test]
async fn requests_are_forwarded_and_counted() {
    both(async |builder| {
        let (upstream, proxy, client) = start(builder);
        let answer = client.get(&format!("{PODS}?limit=5")).await.unwrap();
        assert_eq!(answer.text().await.unwrap(), r#"{"items":[]}"#);
        assert_eq!(
            client.patch(&format!("{PODS}/p/status")).await.unwrap(),
            200
        );
        let body = json!({"metadata": {"name": "q"}}).to_string();
        client
            .0
            .post(format!("{}{PODS}", proxy.url()))
            .body(body.clone())
            .send()
            .await
            .unwrap();
        let received = upstream.received.lock().unwrap().clone();
        assert_eq!(
            received[0],
            (
                format!("GET {PODS}?limit=5 0"),
                Some("Bearer t0ken".to_owned())
            )
        );
        assert_eq!(received[1].0, format!("PATCH {PODS}/p/status 2"));
        assert_eq!(received[2].0, format!("POST {PODS} {}", body.len()));
        let counts: Vec<_> = proxy
            .counts()
            .into_iter()
            .map(|((verb, what), n)| (verb, what, n))
            .collect();
        let one = |verb, what: &str| (verb, what.to_owned(), 1);
        assert_eq!(
            counts,
            [
                one(Verb::List, "pods"),
                one(Verb::Create, "pods"),
                one(Verb::Patch, "pods/status")
            ]
        );
        assert_eq!(proxy.count(&Match::writes().name("q").namespace("a")), 1);
        assert_eq!(proxy.count(&Match::writes().except_resource("pods")), 0);
        assert_eq!(
            proxy.count(&Match::any().and(|request| request.query == "limit=5")),
            1
        );
        let both = Match::any()
            .and(|request| request.resource == "services")
            .and(|request| request.query == "limit=5");
        assert_eq!(proxy.count(&both), 0);
    })
    .await;
}

#[tokio::test]
async fn nth_request_is_rejected_like_the_apiserver() {
    both(async |builder| {
        let (upstream, proxy, client) = start(builder);
        let error = ApiErrorResponse {
            code: StatusCode::TOO_MANY_REQUESTS,
            retry_after: Some(3),
            message: "later",
        };
        let injection = proxy.inject(
            Match::verb(Verb::Get).name("p"),
            Times::Nth(2),
            Fault::Answer(error),
        );
        let path = format!("{PODS}/p");
        assert_eq!(client.get(&path).await.unwrap().status(), 200);
        assert_eq!(
            client.get(&format!("{PODS}/other")).await.unwrap().status(),
            200
        );
        let refused = client.get(&path).await.unwrap();
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["retry-after"]),
            (429, &"3".parse().unwrap())
        );
        let status: Value = serde_json::from_str(&refused.text().await.unwrap()).unwrap();
        assert_eq!(
            (&status["kind"], &status["reason"], &status["message"]),
            (&json!("Status"), &json!("TooManyRequests"), &json!("later"))
        );
        assert_eq!(
            (&status["code"], &status["details"]["retryAfterSeconds"]),
            (&json!(429), &json!(3))
        );
        assert_eq!(client.get(&path).await.unwrap().status(), 200);
        assert_eq!((injection.hits(), upstream.received()), (1, 3));
        proxy.inject(
            Match::any(),
            Times::First(2),
            Fault::status(StatusCode::CONFLICT),
        );
        for want in [409, 409, 200] {
            assert_eq!(client.get(&path).await.unwrap().status(), want);
        }
        let injection = proxy.inject(
            Match::any(),
            Times::Always,
            Fault::status(StatusCode::CONFLICT),
        );
        assert_eq!(client.get(&path).await.unwrap().status(), 409);
        injection.cancel();
        assert_eq!(client.get(&path).await.unwrap().status(), 200);
    })
    .await;
}

#[tokio::test]
async fn write_faults_apply_before_or_after_the_apiserver() {
    both(async |builder| {
        let (upstream, proxy, client) = start(builder.timeout(SOON));
        let path = format!("{PODS}/p");
        proxy.inject(Match::writes(), Times::First(1), Fault::Cut);
        assert!(client.patch(&path).await.is_err());
        assert_eq!(upstream.received(), 0);
        proxy.inject(
            Match::writes(),
            Times::First(1),
            Fault::LoseAnswer(Lost::Cut),
        );
        assert!(client.patch(&path).await.is_err());
        assert_eq!(upstream.received(), 1);
        let timeout = Lost::Answer(StatusCode::GATEWAY_TIMEOUT.into());
        proxy.inject(Match::writes(), Times::First(1), Fault::LoseAnswer(timeout));
        assert_eq!(client.patch(&path).await.unwrap(), 504);
        assert_eq!(upstream.received(), 2);
        assert_eq!(client.patch(&path).await.unwrap(), 200);
        for (fault, received) in [(Fault::Hang, 3), (Fault::LoseAnswer(Lost::Hang), 4)] {
            proxy.inject(Match::writes(), Times::First(1), fault);
            let request = client
                .0
                .patch(format!("{}{path}", proxy.url()))
                .timeout(Duration::from_secs(2));
            assert!(request.send().await.unwrap_err().is_timeout());
            assert_eq!(upstream.received(), received);
        }
        proxy.inject(
            Match::writes(),
            Times::First(1),
            Fault::Delay(Duration::from_millis(50)),
        );
        let begun = Instant::now();
        assert_eq!(client.patch(&path).await.unwrap(), 200);
        assert!(begun.elapsed() >= Duration::from_millis(50));
    })
    .await;
}

#[tokio::test]
async fn hooks_run_at_their_points() {
    both(async |builder| {
        let (upstream, proxy, client) = start(builder);
        let path = format!("{PODS}/p");
        let hook_runs = Arc::new(Mutex::new(Vec::new()));
        for (point, then) in [
            (Point::Before, Then::GoOn),
            (Point::AfterApplied, Then::GoOn),
            (Point::AfterAnswer, Then::GoOn),
            (Point::Before, Then::Cut),
            (Point::AfterApplied, Then::Cut),
        ] {
            let (hook_runs, received) = (hook_runs.clone(), upstream.received.clone());
            let injection = proxy.inject(
                Match::verb(Verb::Patch),
                Times::First(1),
                Fault::hook(point, move |request| {
                    hook_runs.lock().unwrap().push((
                        point,
                        request.name,
                        received.lock().unwrap().len(),
                    ));
                    std::future::ready(then)
                }),
            );
            assert_eq!(
                client.patch(&path).await.is_ok(),
                then == Then::GoOn,
                "{point:?}"
            );
            injection.wait_for_hits(1, SOON).await.unwrap();
        }
        let deadline = Instant::now() + SOON;
        while hook_runs.lock().unwrap().len() < 5 && Instant::now() < deadline {
            tokio::task::yield_now().await;
        }
        let mut hook_runs: Vec<_> = hook_runs
            .lock()
            .unwrap()
            .iter()
            .map(|(point, name, received)| {
                assert_eq!(name.as_deref(), Some("p"));
                (*point, *received)
            })
            .collect();
        // The hook after the response may run while the next request is already in flight.
        let after = hook_runs
            .iter()
            .position(|(point, _)| *point == Point::AfterAnswer)
            .unwrap();
        assert!(hook_runs.remove(after).1 >= 3);
        let want = [
            (Point::Before, 0),
            (Point::AfterApplied, 2),
            (Point::Before, 3),
            (Point::AfterApplied, 4),
        ];
        assert_eq!(hook_runs, want);
    })
    .await;
}

#[tokio::test]
async fn unreachable_upstream_looks_unreachable() {
    let (upstream, proxy, client) = start(reqwest::Client::builder().pool_max_idle_per_host(0));
    let mut watch = client.watch().await;
    upstream.server.shut().await.unwrap();
    assert!(watch.next().await.is_err());
    assert!(client.get(PODS).await.is_err());
    upstream.server.open().await.unwrap();
    assert_eq!(client.get(PODS).await.unwrap().status(), 200);
    proxy.refuse().await.unwrap();
    assert!(client.get(PODS).await.unwrap_err().is_connect());
    proxy.accept().await.unwrap();
    assert_eq!(client.get(PODS).await.unwrap().status(), 200);
}

#[test]
fn kubeconfig_selects_the_proxy() {
    let upstream = Upstream::start();
    let ca = serde_json::to_value(k8s_openapi::ByteString(
        upstream.ca_pem.clone().into_bytes(),
    ))
    .unwrap();
    let kubeconfig = |user: Value| {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": upstream.url, "certificate-authority-data": ca}}],
            "users": [{"name": "u", "user": user}],
        })
        .to_string()
    };
    let original = kubeconfig(json!({"token": "t0ken"}));
    let proxy = Proxy::for_kubeconfig(&original).unwrap();
    let proxied: Value = serde_json::from_str(&proxy.kubeconfig(&original).unwrap()).unwrap();
    assert_eq!(proxied["clusters"][0]["cluster"]["server"], proxy.url());
    let k8s_openapi::ByteString(proxied_ca) = serde_json::from_value(
        proxied["clusters"][0]["cluster"]["certificate-authority-data"].clone(),
    )
    .unwrap();
    assert_eq!(proxied_ca, proxy.ca_pem().as_bytes());
    assert_eq!(proxied["users"][0]["user"]["token"], "t0ken");
    let certificates =
        kubeconfig(json!({"client-certificate-data": "eA==", "client-key-data": "eA=="}));
    assert_eq!(
        proxy.kubeconfig(&certificates).unwrap_err().to_string(),
        "user u has no token"
    );
}
