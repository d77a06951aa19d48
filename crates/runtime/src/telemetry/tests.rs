#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{Arc, Mutex};

use kube::{Client, api::Api};
use serde_json::json;
use tracing::instrument::WithSubscriber as _;
use tracing::{debug, error, info, info_span, trace, warn};

use super::*;
use crate::cluster::ApiServerAddress;
use crate::testing::PROGRAM;

/// Writer that keeps the log.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    fn lines(&self) -> Vec<Value> {
        self.text()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Kept {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn logged(level: &str, json: bool, work: impl FnOnce()) -> Kept {
    let kept = Kept::default();
    tracing::subscriber::with_default(
        subscriber(&PROGRAM, level, json, false, kept.clone(), None).unwrap(),
        work,
    );
    kept
}

#[test]
fn json_is_flat_with_the_keys_of_controller_runtime() {
    let kept = logged("info", true, || {
        let _span = reconcile_span("widget", "example.com", "Widget", "shop", "web").entered();
        let _step = info_span!("step", name = "inner", attempt = 2).entered();
        let error = io::Error::other("no \"luck\"\n");
        warn!(
            error = &error as &dyn std::error::Error,
            count = 3_u64,
            ready = false,
            msg = "mine",
            "it {}",
            "failed"
        );
    });
    let mut line = kept.lines().remove(0);
    let fields = line.as_object_mut().unwrap();
    let id = fields.remove("reconcileID").unwrap();
    assert!(id.as_str().unwrap().parse::<Uuid>().is_ok());
    let time = fields.remove("ts").unwrap();
    assert!(
        time.as_str().unwrap().parse::<Timestamp>().is_ok() && time.as_str().unwrap().len() == 24,
        "{time}"
    );
    let expected = serde_json::json!({
        "level": "warn", "logger": "qm_runtime::telemetry::tests", "msg": "it failed",
        "controller": "widget", "controllerGroup": "example.com", "controllerKind": "Widget",
        "namespace": "shop", "name": "inner", "attempt": 2, "error": "no \"luck\"\n", "count": 3, "ready": false,
    });
    assert_eq!(line, expected);
    assert!(kept.text().starts_with("{\"ts\":"), "{}", kept.text());
    assert_eq!(kept.text().lines().count(), 1);
}

#[test]
fn lines_have_the_fields_of_their_reconcile_at_any_level() {
    for level in ["error", "error,widget_operator=info"] {
        let kept = logged(level, true, || {
            let _span = reconcile_span("widget", "example.com", "Widget", "shop", "web").entered();
            error!(target: "widget_operator", "failed");
        });
        assert_eq!(kept.lines()[0]["name"], "web", "{level}: {}", kept.text());
    }
}

#[test]
fn terminal_gets_text() {
    let kept = logged("info", false, || {
        let _span = reconcile_span("widget", "example.com", "Widget", "shop", "web").entered();
        info!("sent");
    });
    let text = kept.text();
    assert!(
        text.contains(" INFO ") && text.contains("sent") && text.contains("name=\"web\""),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn each_cause_appears_once() {
    #[derive(Debug, thiserror::Error)]
    enum Layered {
        #[error("no answer: {0}")]
        Repeats(#[source] io::Error),
        #[error("no answer")]
        Silent(#[source] io::Error),
    }
    let cause = || io::Error::other("refused");
    assert_eq!(causes(&Layered::Repeats(cause())), "no answer: refused");
    assert_eq!(causes(&Layered::Silent(cause())), "no answer: refused");
    assert_eq!(causes(&cause()), "refused");
    let kept = logged("info", true, || {
        let error = Layered::Silent(cause());
        warn!(error = &error as &dyn std::error::Error, "failed");
    });
    assert_eq!(kept.lines()[0]["error"], "no answer: refused");
}

#[test]
fn levels_and_directives_limit_the_log() {
    let log = || {
        debug!("own");
        debug!(target: "widget_operator", "notify");
        info!(target: "hyper", "other");
        error!(target: "kube_runtime::watcher", "repeated");
    };
    let messages = |level| -> Vec<String> {
        logged(level, true, log)
            .lines()
            .iter()
            .map(|line| line["msg"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(messages("info"), ["other"]);
    assert_eq!(messages("debug"), ["own", "notify", "other"]);
    assert_eq!(messages("info,widget_operator=debug"), ["notify", "other"]);
    assert_eq!(messages("error"), Vec::<String>::new());
}

#[test]
fn no_level_lets_other_crates_log_data() {
    for level in [
        "trace",
        "hyper=trace,reqwest::connect=trace,h2=trace,kube_client=trace,qm_=trace",
    ] {
        let kept = logged(level, true, || {
            trace!(target: "hyper::proto::h1", "sesame");
            debug!(target: "hyper_util::client", "sesame");
            debug!(target: "h2::codec", "sesame");
            trace!(target: "reqwest::connect", "sesame");
            warn!(target: "kube_client::client", "sesame");
            trace!(target: "anything", "sesame");
            trace!("own");
        });
        assert_eq!(kept.text().matches("sesame").count(), 0, "{}", kept.text());
        assert_eq!(kept.lines().len(), 1, "{}", kept.text());
    }
}

#[test]
fn spans_for_traces_are_in_no_line() {
    let kept = logged("trace", true, || {
        let _span = reconcile_span("widget", "example.com", "Widget", "shop", "web").entered();
        let _request = traces::request(
            &http::Method::GET,
            "/api/v1/nodes/n",
            &ApiServerAddress::default(),
        )
        .entered();
        info!("read");
    });
    let line = kept.lines().remove(0);
    assert_eq!(
        (
            &line["name"],
            &line["http.request.method"],
            &line["url.full"]
        ),
        (&json!("web"), &Value::Null, &Value::Null)
    );
}

/// Sends a token in a URL and in a header through the real crates, and reads a truncated Secret, which kube would log
/// at warn.
#[tokio::test]
async fn no_token_is_logged_at_trace_level() {
    use k8s_openapi::api::core::v1::Secret;
    use testbed::receiver::{Receiver, Reply};

    let kept = Kept::default();
    let subscriber = subscriber(&PROGRAM, "trace", true, false, kept.clone(), None).unwrap();
    let work = async {
        let cut =
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"},"data":{"token":"sesame"#;
        let receiver = Receiver::start().unwrap();
        receiver.always(Reply::ok().body(cut));
        let url = receiver.url();

        let sender = reqwest::Client::builder()
            .connection_verbose(true)
            .build()
            .unwrap();
        let request = sender
            .post(format!("{url}/botsesame/sendMessage"))
            .header("Authorization", "Bearer sesame");
        assert_eq!(request.body("sesame").send().await.unwrap().status(), 200);

        let mut config = kube::Config::new(url.parse().unwrap());
        config.auth_info.token = Some("sesame".to_owned().into());
        let client = Client::try_from(config).unwrap();
        Api::<Secret>::namespaced(client, "x")
            .get("x")
            .await
            .unwrap_err();
        trace!("done");
    };
    work.with_subscriber(subscriber).await;
    assert!(!kept.text().contains("sesame"), "{}", kept.text());
    assert!(kept.text().contains("done"), "{}", kept.text());
}
