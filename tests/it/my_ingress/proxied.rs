//! AWS through the proxy of the environment.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

use qm_api::MyIngress;
use rstest::rstest;
use testbed::wait::until;

use super::SUBNETS;
use crate::support::{Bed, Operator, SOON, Settings};

/// Server that records the first line of each connection and hangs up.
struct Recorder {
    port: u16,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Recorder {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, lines) = (
            listener.local_addr().unwrap().port(),
            Arc::new(Mutex::new(Vec::new())),
        );
        let recorded = Arc::clone(&lines);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut line = Vec::new();
                let _ = BufReader::new(stream).read_until(b'\n', &mut line);
                let line = String::from_utf8_lossy(&line).trim().to_owned();
                recorded
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
            }
        });
        Self { port, lines }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn lines(&self) -> Vec<String> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    async fn shows(&self, begin: &str) {
        let found = until(
            format!("a connection that begins with {begin}"),
            SOON,
            async || {
                Ok(self
                    .lines()
                    .iter()
                    .any(|line| line.starts_with(begin))
                    .then_some(()))
            },
        );
        found
            .await
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.lines()));
    }
}

fn settings(proxy: &Recorder, no_proxy: &str) -> Settings {
    let settings = Settings::default()
        .flag("--aws-timeout=2s")
        .env("AWS_REGION", "us-east-1");
    let settings = [
        "HTTPS_PROXY",
        "https_proxy",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ]
    .into_iter()
    .fold(settings, |settings, name| settings.env(name, &proxy.url()));
    settings.env("NO_PROXY", no_proxy).env("no_proxy", no_proxy)
}

fn with_keys(settings: Settings, endpoint: &str) -> Settings {
    let settings = settings
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret");
    settings.env("AWS_ENDPOINT_URL", endpoint)
}

#[tokio::test]
async fn aws_calls_go_through_the_proxy_unless_no_proxy_lists_the_host() {
    let bed = Bed::shared("aws-proxy").await;
    let (proxy, direct) = (Recorder::start(), Recorder::start());
    let operator = Operator::start(&bed, with_keys(settings(&proxy, ""), "https://aws.test")).await;
    bed.create::<MyIngress>("lb", serde_json::json!({ "spec": { "subnets": SUBNETS } }))
        .await;
    proxy.shows("CONNECT aws.test:443 ").await;
    drop(operator);
    let before = proxy.lines().len();
    let endpoint = format!("https://127.0.0.1:{}", direct.port);
    let _operator =
        Operator::start(&bed, with_keys(settings(&proxy, "127.0.0.1"), &endpoint)).await;
    // The first byte of a TLS handshake.
    direct.shows("\u{16}").await;
    assert_eq!(proxy.lines().len(), before, "{:?}", proxy.lines());
}

/// A proxy that saw them would learn the credentials of the operator's role.
#[rstest]
#[case::node(None)]
#[case::eks_pod_identity(Some(("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.23/v1/credentials")))]
#[case::ecs_task(Some(("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials")))]
#[tokio::test]
async fn credentials_are_never_requested_through_the_proxy(#[case] endpoint: Option<(&str, &str)>) {
    let bed = Bed::shared("aws-credentials").await;
    let proxy = Recorder::start();
    let settings = settings(&proxy, "")
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
    let settings = endpoint
        .into_iter()
        .fold(settings, |settings, (name, value)| {
            settings.env(name, value)
        });
    let _operator = Operator::start(&bed, settings).await;
    bed.create::<MyIngress>("lb", serde_json::json!({ "spec": { "subnets": SUBNETS } }))
        .await;
    let says = |ingress: &MyIngress| super::reason_and_message(ingress).0 == "CredentialsMissing";
    bed.until("lb", "reports the missing credentials", says)
        .await;
    assert!(
        proxy.lines().iter().all(|line| !line.contains("169.254.")),
        "{:?}",
        proxy.lines()
    );
}

#[tokio::test]
async fn unusable_proxy_is_reported_and_not_bypassed() {
    let bed = Bed::shared("aws-socks").await;
    let (proxy, direct) = (Recorder::start(), Recorder::start());
    let settings = settings(&proxy, "").env("HTTPS_PROXY", "socks5://user:password@127.0.0.1:1080");
    let endpoint = format!("https://127.0.0.1:{}", direct.port);
    let operator = Operator::start(&bed, with_keys(settings, &endpoint)).await;
    bed.create::<MyIngress>("lb", serde_json::json!({ "spec": { "subnets": SUBNETS } }))
        .await;
    let says = |ingress: &MyIngress| super::reason_and_message(ingress).0 == "ProxyInvalid";
    let ingress = bed.until("lb", "reports the invalid proxy", says).await;
    assert!(
        super::reason_and_message(&ingress)
            .1
            .contains("http://proxy.example:3128"),
        "{:?}",
        super::reason_and_message(&ingress)
    );
    assert!(!operator.logs().contains("password"));
    assert_eq!(direct.lines(), Vec::<String>::new());
}
