//! The samples for receivers: each message follows the schema that its receiver publishes.
//!
//! A `.json` file beside this module is a JSON Schema, written from the page that its `$comment` names.

use std::fs;

use http::StatusCode;
use k8s_openapi::api::core::v1::{Secret, Service};
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::receiver::{Receiver, Reply, Request};
use testbed::wait::until;

use crate::support::{Bed, Operator, SOON, Settings, accepted, condition};

mod schema;

const ROUTING_KEY: &str = "0123456789abcdef0123456789ABCDEF";
const GENIE_KEY: &str = "GenieKey eb243592-faa2-4ba2-a551-1afdf565c889";

/// A sample, `config/samples/tg_v1_contactpoint_FILE.yaml`.
struct Sample {
    file: &'static str,
    /// Name of the schema; ntfy has none, because its body is the text.
    schema: Option<&'static str>,
    /// Maximum size of the body in bytes.
    max_bytes: usize,
    /// Value of the Secret's key that `apiToken` names.
    token: Option<&'static str>,
    /// Returns the message's text.
    text: fn(&Request) -> String,
    /// Returns a value as the text contains it.
    shown: fn(&str) -> String,
}

impl Sample {
    /// Name of the `ContactPoint`.
    fn name(&self) -> String {
        self.file.replace('_', "-")
    }

    fn manifest(&self) -> Value {
        let file = format!(
            "{}/config/samples/tg_v1_contactpoint_{}.yaml",
            env!("CARGO_MANIFEST_DIR"),
            self.file
        );
        serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap()
    }

    /// Creates the sample and its Secret, with a path of `receiver` as the URL.
    async fn create(&self, bed: &Bed, receiver: &Receiver) {
        let manifest = self.manifest();
        let (name, mut spec) = (self.name(), manifest["spec"].clone());
        assert_eq!(manifest["metadata"]["name"], *name);
        let url = format!("{}/{name}", receiver.url());
        let mut data = json!({});
        let webhook = &mut spec["webhookSpec"];
        match webhook["urlFrom"]["key"].as_str() {
            Some(key) => data[key] = url.into(),
            None => webhook["url"] = url.into(),
        }
        if let Some(key) = spec["apiToken"]["key"].as_str() {
            data[key] = self.token.unwrap().into();
        }
        bed.create::<Secret>(&name, json!({ "stringData": data }))
            .await;
        bed.point(&name, spec).await;
    }

    /// Returns the text of a request, after a check of its body.
    fn read(&self, request: &Request) -> String {
        let name = self.file;
        assert!(
            request.body.len() <= self.max_bytes,
            "{name}: {} bytes",
            request.body.len()
        );
        if let Some(schema) = self.schema {
            let file = format!(
                "{}/tests/it/receivers/{schema}.json",
                env!("CARGO_MANIFEST_DIR")
            );
            let schema: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
            let body = request.json().unwrap();
            let violations = schema::violations(&schema, &body);
            assert!(violations.is_empty(), "{name}: {violations:?}\n{body:#}");
            assert_eq!(request.header("content-type"), Some("application/json"));
        }
        (self.text)(request)
    }
}

fn field(request: &Request, pointer: &str) -> String {
    let body = request.json().unwrap();
    let text = body.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_else(|| panic!("{pointer}: {body}")).into()
}

/// Checks that `short` is the beginning of `text` on one line, cut to `limit` characters.
fn is_beginning(short: &str, text: &str, limit: usize) {
    let line = text.replace('\n', "; ");
    if line.chars().count() <= limit {
        assert_eq!(short, line);
    } else {
        assert!(line.starts_with(short.strip_suffix('…').unwrap()));
        assert_eq!(short.chars().count(), limit);
    }
}

fn pagerduty(request: &Request) -> String {
    assert_eq!(field(request, "/routing_key"), ROUTING_KEY);
    assert_eq!(field(request, "/event_action"), "trigger");
    assert!(
        !request
            .headers
            .values()
            .any(|value| value.as_bytes() == ROUTING_KEY.as_bytes())
    );
    let text = field(request, "/payload/custom_details/text");
    is_beginning(&field(request, "/payload/summary"), &text, 1024);
    text
}

fn opsgenie(request: &Request) -> String {
    assert_eq!(request.header("authorization"), Some(GENIE_KEY));
    let text = field(request, "/description");
    is_beginning(&field(request, "/message"), &text, 130);
    text
}

/// <https://docs.slack.dev/messaging/formatting-message-text/>: `&`, `<` and `>` are escaped, and no other characters.
fn slack(request: &Request) -> String {
    let text = field(request, "/text");
    assert!(!text.contains(['<', '>']), "{text}");
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&")
}

fn discord(request: &Request) -> String {
    let body = request.json().unwrap();
    assert_eq!(body["allowed_mentions"], json!({ "parse": [] }));
    field(request, "/content")
}

/// <https://docs.ntfy.sh/publish/>: the body is the message, a header the title.
fn ntfy(request: &Request) -> String {
    assert_eq!(request.header("x-title"), Some("Quartermaster"));
    assert!(
        request
            .header("content-type")
            .unwrap()
            .starts_with("text/plain")
    );
    assert!(!request.body.is_empty());
    std::str::from_utf8(&request.body).unwrap().to_owned()
}

/// Discord, Teams and Mattermost render Markdown, in which a value must not make a link.
fn without_links(value: &str) -> String {
    value.replace("](", "] (")
}

fn samples() -> [Sample; 9] {
    const KIB: usize = 1024;
    let sample = |file, schema, max_bytes, text: fn(&Request) -> String| Sample {
        file,
        schema: Some(schema),
        max_bytes,
        token: None,
        text,
        shown: str::to_owned,
    };
    [
        Sample {
            token: Some(ROUTING_KEY),
            ..sample("pagerduty", "pagerduty", 512 * KIB, pagerduty)
        },
        Sample {
            token: Some(GENIE_KEY),
            ..sample("opsgenie", "opsgenie", 256 * KIB, opsgenie)
        },
        Sample {
            token: Some(GENIE_KEY),
            ..sample("jira_service_management", "opsgenie", 256 * KIB, opsgenie)
        },
        sample("slack", "slack", 256 * KIB, slack),
        Sample {
            shown: without_links,
            ..sample("discord", "discord", 256 * KIB, discord)
        },
        Sample {
            shown: without_links,
            ..sample("teams", "teams", 28 * KIB, |request| {
                field(request, "/attachments/0/content/body/0/text")
            })
        },
        Sample {
            shown: |value| {
                without_links(value)
                    .replace('@', "@\u{200b}")
                    .replace('<', "<\u{200b}")
            },
            ..sample("mattermost", "mattermost", 256 * KIB, |request| {
                field(request, "/text")
            })
        },
        Sample {
            shown: |value| value.replace('<', "<\u{200b}"),
            ..sample("google_chat", "google_chat", 32_000, |request| {
                field(request, "/text")
            })
        },
        Sample {
            schema: None,
            ..sample("ntfy", "", 4096, ntfy)
        },
    ]
}

/// A new sample needs an entry in the table above; `webhook` sends events.
#[test]
fn every_sample_of_a_receiver_is_tested() {
    let folder = format!("{}/config/samples", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| {
            let name = name.strip_prefix("tg_v1_contactpoint_")?;
            Some(name.strip_suffix(".yaml")?.to_owned())
        })
        .filter(|name| name != "webhook")
        .collect();
    files.sort();
    let mut tested = samples().map(|sample| sample.file);
    tested.sort_unstable();
    assert_eq!(files, tested);
}

async fn annotate(bed: &Bed, value: &str) {
    bed.patch::<Service>(
        "front",
        json!({ "metadata": { "annotations": { "a": value } } }),
    )
    .await;
}

#[tokio::test]
async fn samples_match_the_schema_of_each_receiver() {
    let bed = Bed::shared("receivers").await;
    let receiver = Receiver::start().unwrap();
    let operator = Operator::start(&bed, Settings::default()).await;
    let samples = samples();
    let nasty = "<!channel>&\"@everyone\"\\{{x}}é😀[Sign in](http://evil.test)";
    bed.service("front", json!([{ "port": 80 }])).await;
    annotate(&bed, nasty).await;
    for sample in &samples {
        let name = sample.name();
        sample.create(&bed, &receiver).await;
        bed.ready(&name).await;
        bed.track(
            &name,
            "Service",
            "front",
            "{.metadata.annotations.a}",
            &name,
        )
        .await;
    }
    let entry = |value: &str| {
        format!(
            "Resource kind: Service\nName: front\nStatus: Created\nValue: {value}\nNamespace: {}",
            bed.namespace
        )
    };
    for sample in &samples {
        let name = sample.name();
        bed.delivered(&name, &[("Created", Some(nasty))]).await;
        let path = format!("/{name}");
        let requests = accepted(&receiver);
        let requests: Vec<_> = requests.iter().filter(|it| it.path == path).collect();
        let texts: Vec<_> = requests.iter().map(|it| sample.read(it)).collect();
        let expected = entry(&(sample.shown)(nasty));
        assert_eq!(
            texts,
            ["Contact point is ready".to_owned(), expected],
            "{name}"
        );
        assert!(
            requests
                .iter()
                .all(|request| request.header("ce-specversion") == Some("1.0"))
        );
    }

    // A digest that exceeds the limit of every receiver. A control character is the longest in JSON.
    for sample in &samples {
        let name = sample.name();
        bed.patch::<ContactPoint>(&name, json!({ "spec": { "suspend": true } }))
            .await;
        bed.patch::<TrackedField>(&name, json!({ "spec": { "template": "{{ value }}" } }))
            .await;
        bed.waiting(&name, "ContactPointNotReady").await;
    }
    receiver.forget();
    for nth in 0..30 {
        let long = ["😀", "\u{1}"][nth % 2].repeat(250);
        annotate(&bed, &format!("{nth}{long}")).await;
    }
    for sample in &samples {
        bed.until(&sample.name(), "recorded", |field: &TrackedField| {
            field.history().unwrap().len() == 31
        })
        .await;
    }
    // Recorded entries are offered to the queue a moment later.
    let all = format!("quartermaster_entries_pending {}", 30 * samples.len());
    until("all wait", SOON, async || {
        Ok(operator
            .metrics()
            .await
            .lines()
            .any(|line| line == all)
            .then_some(()))
    })
    .await
    .unwrap();
    for sample in &samples {
        let name = sample.name();
        bed.patch::<ContactPoint>(&name, json!({ "spec": { "suspend": false } }))
            .await;
        let path = format!("/{name}");
        bed.until(&name, "is sent", |field: &TrackedField| {
            !field
                .history()
                .unwrap()
                .iter()
                .any(qm_api::tracked_field::Entry::is_pending)
        })
        .await;
        let requests = receiver
            .wait_for(SOON, |all| all.iter().any(|request| request.path == path))
            .await
            .unwrap();
        for request in requests.iter().filter(|request| request.path == path) {
            let text = sample.read(request);
            assert!(text.starts_with("30 changes\n"), "{name}: {text}");
        }
    }
}

/// A service answers 400 to an unknown key; the message names the answer, not the key.
#[tokio::test]
async fn answer_of_pagerduty_is_shown_without_the_key() {
    let bed = Bed::shared("pagerduty").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    let answer = json!({
        "status": "invalid event",
        "message": "Event object is invalid",
        "errors": [format!("Invalid routing key {ROUTING_KEY}")],
    });
    receiver.always(Reply::status(StatusCode::BAD_REQUEST).json(&answer));
    samples()[0].create(&bed, &receiver).await;
    let (_, message) = condition(&bed.not_ready("pagerduty", "Rejected").await);
    assert!(
        message.contains("Invalid routing key [redacted]"),
        "{message}"
    );
}
