//! `--metrics-secure`: readers of the metrics on a real control plane, with the shipped permissions.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use k8s_openapi::api::core::v1::ServiceAccount;
use reqwest::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use reqwest::{Certificate, Client, ClientBuilder};
use serde_json::{Value, json};
use testbed::process::{Folder, Program};
use testbed::proxy::{Match, Verb};
use testbed::tls::Authority;
use testbed::wait::until;

use crate::support::{ACCOUNT, Bed, Operator, SOON, SYSTEM, Settings};

/// The shipped role of readers.
const READER: &str = "quartermaster-metrics-reader";

/// Returns settings whose caches expire before the test ends.
fn settings_without_cache() -> Settings {
    let settings = Settings::default()
        .flag("--metrics-secure")
        .flag("--metrics-authentication-ttl=200ms");
    settings
        .flag("--metrics-authorized-ttl=200ms")
        .flag("--metrics-unauthorized-ttl=100ms")
}

fn client() -> ClientBuilder {
    Client::builder()
        .no_proxy()
        .timeout(SOON)
        .pool_max_idle_per_host(0)
}

/// Returns a client that accepts any certificate.
fn unverifying_client() -> Client {
    client()
        .tls_danger_accept_invalid_certs(true)
        .build()
        .unwrap()
}

/// Returns a client that accepts only certificates of an authority.
fn verifying_client(authority: &Authority) -> Client {
    client()
        .tls_certs_only([Certificate::from_pem(authority.ca_pem().as_bytes()).unwrap()])
        .build()
        .unwrap()
}

/// Status, `WWW-Authenticate` and text.
type Answer = (u16, Option<String>, String);

async fn scrape(
    client: &Client,
    operator: &Operator,
    token: Option<&str>,
) -> anyhow::Result<Answer> {
    // The certificates of these tests have this name.
    let address = operator
        .address("--metrics-bind-address")?
        .replace("127.0.0.1", "localhost");
    let mut request = client.get(format!("https://{address}/metrics"));
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let answer = request.send().await?;
    let asks = answer
        .headers()
        .get(WWW_AUTHENTICATE)
        .map(|value| value.to_str().unwrap().to_owned());
    Ok((answer.status().as_u16(), asks, answer.text().await?))
}

/// Waits until a scrape gets this answer, with this text in it.
async fn answers(operator: &Operator, token: Option<&str>, code: u16, expected: &str) -> Answer {
    let found = until(format!("{code} {expected:?}"), SOON, async || {
        let answer = scrape(&unverifying_client(), operator, token).await?;
        anyhow::ensure!(
            answer.0 == code && answer.2.contains(expected),
            "{answer:?}"
        );
        Ok(Some(answer))
    });
    found
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", operator.logs()))
}

/// Creates a `ServiceAccount` for the test, and returns a token of the account.
async fn reader(bed: &Bed, name: &str) -> String {
    bed.create::<ServiceAccount>(name, json!({})).await;
    bed.kubectl(&["create", "token", name])
        .await
        .trim()
        .to_owned()
}

/// Binds the role to an account of the bed, by kubectl as on the pages, and waits until the binding applies.
async fn bind(bed: &Bed, name: &str) {
    let account = format!("--serviceaccount={}:{name}", bed.namespace);
    bed.kubectl(&[
        "create",
        "clusterrolebinding",
        &binding(bed, name),
        "--clusterrole",
        READER,
        &account,
    ])
    .await;
    let user = format!("system:serviceaccount:{}:{name}", bed.namespace);
    let requests = ["auth", "can-i", "get", "/metrics", "--as", &user];
    let may = until("the binding counts", SOON, async || {
        bed.plane.run_kubectl(&requests, "").await.map(Some)
    });
    assert_eq!(may.await.unwrap().trim(), "yes");
}

fn binding(bed: &Bed, name: &str) -> String {
    format!("{}-{name}", bed.namespace)
}

/// Asserts that no log contains a token or its signature.
fn assert_no_token_in_logs(operator: &Operator, tokens: &[&str]) {
    let logs = operator.logs();
    assert!(
        logs.contains("denied a request for the metrics"),
        "the log lacks the debug level"
    );
    for token in tokens {
        for part in token.split('.').chain([*token]) {
            assert!(!logs.contains(part), "{part} is in the log");
        }
    }
}

#[tokio::test]
async fn only_permitted_clients_read_metrics() {
    let bed = Bed::shared("metrics").await;
    let operator = Operator::start(&bed, settings_without_cache().flag("--log-level=trace")).await;
    let (allowed, other) = (
        reader(&bed, "prometheus").await,
        reader(&bed, "somebody").await,
    );
    bind(&bed, "prometheus").await;
    let wrong = format!("{}-and-more", &allowed[..allowed.len() - 4]);

    let (_, asks, _) = answers(&operator, None, 401, "kubectl create token").await;
    assert_eq!(asks.as_deref(), Some("Bearer"));
    let (_, asks, _) = answers(&operator, Some(&wrong), 401, "kubectl create token").await;
    assert_eq!(asks.as_deref(), Some("Bearer"));
    let user = format!(
        "user \"system:serviceaccount:{}:somebody\" may not get /metrics",
        bed.namespace
    );
    let (_, _, output) = answers(&operator, Some(&other), 403, &user).await;
    assert!(
        output.contains("such as the ClusterRole ...-metrics-reader of this install")
            && !output.contains(READER),
        "the answer describes the role to bind, whose name depends on the install: {output}"
    );
    answers(
        &operator,
        Some(&allowed),
        200,
        "quartermaster_build_info{version=",
    )
    .await;

    // The server has no other path for any client.
    let address = operator.address("--metrics-bind-address").unwrap();
    let elsewhere = unverifying_client()
        .get(format!("https://{address}/"))
        .bearer_auth(&allowed)
        .send()
        .await
        .unwrap();
    assert_eq!(elsewhere.status(), 404);
    // A client without TLS gets nothing, and does not harm others.
    let plain = client()
        .build()
        .unwrap()
        .get(format!("http://{address}/metrics"))
        .bearer_auth(&allowed)
        .send()
        .await;
    assert!(plain.is_err(), "{plain:?}");

    // A permission is removed, and granted again; an account is deleted.
    bed.kubectl(&["delete", "clusterrolebinding", &binding(&bed, "prometheus")])
        .await;
    answers(&operator, Some(&allowed), 403, "may not get /metrics").await;
    bind(&bed, "prometheus").await;
    answers(&operator, Some(&allowed), 200, "quartermaster_build_info").await;
    bed.delete::<ServiceAccount>("prometheus").await;
    answers(&operator, Some(&allowed), 401, "kubectl create token").await;
    bed.kubectl(&["delete", "clusterrolebinding", &binding(&bed, "prometheus")])
        .await;
    assert_no_token_in_logs(&operator, &[&allowed, &other, &wrong]);
}

/// The users' defaults: a scrape every few seconds does not send a review each time.
#[tokio::test]
async fn reviews_are_cached() {
    let bed = Bed::shared("metrics-cache").await;
    let (proxy, kubeconfig) = bed.through_proxy().await;
    let settings = Settings::default()
        .flag("--metrics-secure")
        .kubeconfig(kubeconfig);
    let operator = Operator::start(&bed, settings).await;
    let (allowed, other) = (
        reader(&bed, "prometheus").await,
        reader(&bed, "somebody").await,
    );
    bind(&bed, "prometheus").await;
    for _ in 0..5 {
        assert_eq!(
            scrape(&unverifying_client(), &operator, Some(&allowed))
                .await
                .unwrap()
                .0,
            200
        );
        assert_eq!(
            scrape(&unverifying_client(), &operator, Some(&other))
                .await
                .unwrap()
                .0,
            403
        );
        assert_eq!(
            scrape(&unverifying_client(), &operator, Some("wrong"))
                .await
                .unwrap()
                .0,
            401
        );
    }
    let requests = |resource: &str| proxy.count(&Match::verb(Verb::Create).resource(resource));
    assert_eq!(
        (requests("tokenreviews"), requests("subjectaccessreviews")),
        (3, 2)
    );
    bed.kubectl(&["delete", "clusterrolebinding", &binding(&bed, "prometheus")])
        .await;

    // While the apiserver is unavailable, only known clients are accepted.
    proxy.refuse().await.unwrap();
    assert_eq!(
        scrape(&unverifying_client(), &operator, Some(&allowed))
            .await
            .unwrap()
            .0,
        200
    );
    for token in ["another", "a third one"] {
        answers(
            &operator,
            Some(token),
            503,
            "cannot check whether you may read metrics",
        )
        .await;
    }
    assert_eq!(
        operator
            .logs()
            .matches("reviews of clients that read the metrics fail")
            .count(),
        1
    );
    proxy.accept().await.unwrap();
    answers(&operator, Some("another"), 401, "kubectl create token").await;
}

#[tokio::test]
async fn standby_serves_metrics() {
    let bed = Bed::shared("metrics-standby").await;
    let id = format!("--leader-election-id={}", bed.namespace);
    let settings = || settings_without_cache().flag("--leader-elect").flag(&id);
    let (first, second) = (
        Operator::start(&bed, settings()).await,
        Operator::start(&bed, settings()).await,
    );
    let token = reader(&bed, "prometheus").await;
    bind(&bed, "prometheus").await;
    until(
        "one replica leads, and the other reports that it does not",
        SOON,
        async || {
            let mut leads = Vec::new();
            for operator in [&first, &second] {
                let (code, _, text) = scrape(&unverifying_client(), operator, Some(&token)).await?;
                anyhow::ensure!(code == 200, "{code}: {text}");
                let line = text
                    .lines()
                    .find(|line| line.starts_with("leader_election_master_status{"));
                leads.push(line.is_some_and(|line| line.ends_with(" 1")));
            }
            leads.sort_unstable();
            Ok((leads == [false, true]).then_some(()))
        },
    )
    .await
    .unwrap();
    bed.kubectl(&["delete", "clusterrolebinding", &binding(&bed, "prometheus")])
        .await;
}

/// Writes a certificate and a key as the kubelet does: a new folder, and a link that replaces the old one.
fn mount(folder: &Path, version: &str, certificate: &str, key: &str) {
    let data = folder.join(version);
    fs::create_dir(&data).unwrap();
    fs::write(data.join("tls.crt"), certificate).unwrap();
    fs::write(data.join("tls.key"), key).unwrap();
    symlink(version, folder.join("new")).unwrap();
    fs::rename(folder.join("new"), folder.join("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        if !folder.join(name).is_symlink() {
            symlink(Path::new("..data").join(name), folder.join(name)).unwrap();
        }
    }
}

#[tokio::test]
async fn renewed_certificate_is_loaded() {
    let bed = Bed::shared("metrics-cert").await;
    let folder = Folder::new().unwrap();
    let (old, new) = (
        Authority::new("old").unwrap(),
        Authority::new("new").unwrap(),
    );
    let (first, second) = (
        old.server(&["localhost"]).unwrap(),
        new.server(&["localhost"]).unwrap(),
    );
    mount(folder.path(), "1", &first.cert_pem, &first.key_pem);
    let path = format!("--metrics-cert-path={}", folder.path().display());
    let operator = Operator::start(&bed, settings_without_cache().flag(&path)).await;
    let shows =
        async |authority: &Authority| match scrape(&verifying_client(authority), &operator, None)
            .await
        {
            Ok((code, ..)) => code == 401,
            Err(_) => false,
        };
    assert!(shows(&old).await && !shows(&new).await);

    // A pair that does not match changes nothing, and is reported once.
    mount(folder.path(), "2", &second.cert_pem, &first.key_pem);
    for _ in 0..3 {
        assert!(shows(&old).await && !shows(&new).await);
    }
    let reports = operator
        .logs()
        .matches("reading the certificate of /metrics failed")
        .count();
    assert!(
        reports == 1
            && operator
                .logs()
                .contains("tls.key does not belong to tls.crt"),
        "{reports}"
    );
    mount(folder.path(), "3", &second.cert_pem, &second.key_pem);
    assert!(shows(&new).await && !shows(&old).await);
    for line in [&first, &second]
        .iter()
        .flat_map(|identity| identity.key_pem.lines())
        .filter(|it| !it.starts_with('-'))
    {
        assert!(!operator.logs().contains(line), "a key is in the log");
    }
}

#[tokio::test]
async fn operator_does_not_start_without_the_mounted_certificate() {
    let bed = Bed::shared("metrics-no-cert").await;
    let folder = Folder::new().unwrap();
    let kubeconfig = bed
        .plane
        .kubeconfig_for_service_account(SYSTEM, ACCOUNT)
        .await
        .unwrap();
    let path = format!("--metrics-cert-path={}", folder.path().display());
    let flags = [
        "run",
        "--metrics-secure",
        &path,
        "--metrics-bind-address=127.0.0.1:0",
        "--health-probe-bind-address=0",
    ];
    let program = Program::new(env!("CARGO_BIN_EXE_quartermaster"))
        .args(flags)
        .env("KUBECONFIG", kubeconfig);
    let mut child = program.spawn(folder.path().join("log")).unwrap();
    let ended = until("the operator exits", SOON, async || Ok(child.ended()?))
        .await
        .unwrap();
    assert_eq!(ended.code(), Some(1));
    let output = child.log_text().unwrap();
    for expected in [
        "--metrics-cert-path: certificate of /metrics: mount a folder with tls.crt and tls.key (PEM)",
        "tls.crt: No such file",
    ] {
        assert!(output.contains(expected), "{output}");
    }
}

/// The settings of the `ServiceMonitor`, as Prometheus applies them.
#[tokio::test]
async fn monitor_settings_work() {
    let bed = Bed::shared("metrics-monitor").await;
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/config/prometheus/monitor.yaml"
    );
    let monitor: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let endpoint = &monitor["spec"]["endpoints"][0];
    assert_eq!(
        endpoint["bearerTokenFile"],
        "/var/run/secrets/kubernetes.io/serviceaccount/token"
    );
    let any = endpoint["tlsConfig"]["insecureSkipVerify"]
        .as_bool()
        .unwrap();
    let operator = Operator::start(&bed, settings_without_cache()).await;
    let token = reader(&bed, "prometheus").await;
    bind(&bed, "prometheus").await;
    let prometheus = client()
        .tls_danger_accept_invalid_certs(any)
        .build()
        .unwrap();
    let address = operator.address("--metrics-bind-address").unwrap();
    let [scheme, path] = ["scheme", "path"].map(|field| endpoint[field].as_str().unwrap());
    let text = until("the role's binding is known", SOON, async || {
        let answer = prometheus
            .get(format!("{scheme}://{address}{path}"))
            .bearer_auth(&token)
            .send()
            .await?;
        Ok(Some(answer.error_for_status()?.text().await?))
    });
    assert!(text.await.unwrap().contains("quartermaster_build_info"));
    bed.kubectl(&["delete", "clusterrolebinding", &binding(&bed, "prometheus")])
        .await;
}
