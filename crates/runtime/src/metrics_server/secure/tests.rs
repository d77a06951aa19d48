#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::future::ready;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore};
use serde_json::{Value, json};
use testbed::process::Folder;
use testbed::tls::Authority;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::{BoxError, service_fn};

use super::*;
use crate::settings::{MetricsCertificate, RuntimeTimings};

/// A timeout that expires, a timeout that does not, and the deadline of a step.
const SHORT: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_hours(1);
const SOON: Duration = Duration::from_secs(30);

/// Server behind an apiserver that knows and accepts only the token `good`.
struct Site {
    address: SocketAddr,
    /// Configuration of a client that would resume a session.
    client: ClientConfig,
    server: AbortHandle,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn apiserver(request: Request<Body>) -> Result<Response<Body>, BoxError> {
    let path = request.uri().path().to_owned();
    let mut review: Value = serde_json::from_slice(&request.into_body().collect_bytes().await?)?;
    review["status"] = match path.rsplit('/').next().unwrap() {
        "tokenreviews" if review["spec"]["token"] == "good" => {
            json!({ "authenticated": true, "user": {} })
        }
        "tokenreviews" => json!({ "authenticated": false }),
        "subjectaccessreviews" => json!({ "allowed": true }),
        other => panic!("{other}"),
    };
    Ok(Response::new(Body::from(serde_json::to_vec(&review)?)))
}

impl Site {
    async fn new(io_timeout: Duration, max_age: Duration) -> Self {
        let authority = Authority::new("ours").unwrap();
        let identity = authority.server(&["localhost"]).unwrap();
        let folder = Folder::new().unwrap();
        std::fs::write(folder.path().join("tls.crt"), identity.cert_pem).unwrap();
        std::fs::write(folder.path().join("tls.key"), identity.key_pem).unwrap();
        // The folder no longer exists at the first handshake, so the certificate stays.
        let mounted = MetricsCertificate::Mounted(folder.path().into());
        let certificate = Certificate::open(&mounted, "x").await.unwrap();
        let auth = MetricsAuth::new(
            Client::new(service_fn(apiserver), "default"),
            None,
            &RuntimeTimings::default(),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let handler =
            Box::new(|_| ready(server::text(StatusCode::OK, "all of them".into())).boxed());
        let timings = RuntimeTimings {
            metrics_io_timeout: io_timeout,
            metrics_connection_max_age: max_age,
            ..RuntimeTimings::default()
        };
        let server = tokio::spawn(serve(listener, handler, certificate, auth, timings));
        let server = server.abort_handle();
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(authority.ca_pem().as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let client = client.with_root_certificates(roots).with_no_client_auth();
        Self {
            address,
            client,
            server,
        }
    }

    async fn silent(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn tls(&self) -> TlsStream<TcpStream> {
        let mut config = self.client.clone();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, self.silent().await)
            .await
            .unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        // Only a full handshake shows the current certificate.
        assert_eq!(
            stream.get_ref().1.handshake_kind(),
            Some(HandshakeKind::Full)
        );
        stream
    }

    /// Returns the answer to a request over HTTP/1.1, with its head.
    async fn get(&self, token: &str) -> String {
        let mut stream = self.tls().await;
        let head = format!(
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        );
        stream
            .write_all(format!("{head}Connection: close\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await; // the connection may end without TLS' close_notify
        answer
    }
}

/// Waits until the server ends this connection.
async fn ended(stream: &mut (impl AsyncRead + Unpin)) {
    let mut rest = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut rest))
        .await
        .expect("the server leaves the connection open");
}

#[tokio::test]
async fn known_token_is_accepted() {
    let site = Site::new(LONG, LONG).await;
    let answer = site.get("good").await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("all of them"),
        "{answer}"
    );
    let answer = site.get("bad").await;
    assert!(
        answer.starts_with("HTTP/1.1 401 ") && answer.contains("\r\nwww-authenticate: Bearer\r\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn silent_connection_is_closed() {
    let site = Site::new(SHORT, LONG).await;
    ended(&mut site.silent().await).await;
    let mut half = site.tls().await;
    half.write_all(b"GET /metrics HTTP/1.1\r\nHost: local")
        .await
        .unwrap();
    ended(&mut half).await;
}

#[tokio::test]
async fn connection_has_a_maximum_age() {
    let site = Site::new(LONG, SHORT).await;
    ended(&mut site.tls().await).await;
    let mut busy = site.tls().await;
    let served = async {
        while busy
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await
            .is_ok()
        {
            let Ok(1..) = busy.read(&mut [0; 4096]).await else {
                break;
            };
        }
    };
    timeout(SOON, served)
        .await
        .expect("the server keeps the connection");
}

#[tokio::test]
async fn number_of_connections_is_bounded() {
    let site = Site::new(LONG, LONG).await;
    let mut silent = Vec::new();
    for _ in 1..CONNECTIONS {
        silent.push(site.silent().await);
    }
    let one_is_left = timeout(SOON, site.get("good"))
        .await
        .expect("silent connections block others");
    assert!(one_is_left.contains(" 200 OK"), "{one_is_left}");
    silent.push(site.silent().await);
    let mut waits = pin!(site.get("good"));
    assert!(
        timeout(SHORT, &mut waits).await.is_err(),
        "the server accepts more connections"
    );
    silent.clear();
    let served = timeout(SOON, waits)
        .await
        .expect("no connection became free");
    assert!(served.contains(" 200 OK"), "{served}");
}
