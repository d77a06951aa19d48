//! An object whose status nobody can write does not block others.

use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use qm_api::tracked_field::Delivery;
use qm_api::{ContactPoint, TrackedField};
use rstest::rstest;
use serde_json::{Value, json};
use testbed::receiver::{Receiver, Reply, Request};
use testbed::wait::until;

use super::{is, status};
use crate::support::{Bed, Operator, SOON, Settings, changes, series};

/// The way in which writes are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Policy,
    /// The policy concerns the status alone.
    PolicyOnStatus,
    FailingWebhook,
    /// The webhook answers later than the operator waits.
    HangingWebhook,
}

/// A webhook or policy that rejects every write of the `TrackedField` with a label of this test.
struct Refusing<'a> {
    bed: &'a Bed,
    by: By,
    /// Accepts connections and answers nothing.
    _silent: TcpListener,
}

impl<'a> Refusing<'a> {
    async fn install(bed: &'a Bed, by: By) -> Self {
        let (name, label) = (&*bed.namespace, "refused");
        let client = || bed.client.clone();
        let selector = json!({ "matchLabels": { label: name } });
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let resources = match by {
            By::PolicyOnStatus => vec!["trackedfields/status"],
            _ => vec!["trackedfields", "trackedfields/status"],
        };
        let rule = json!({ "apiGroups": ["tg.azamaton.ru"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": resources });
        let post = PostParams::default();
        if matches!(by, By::FailingWebhook | By::HangingWebhook) {
            // No server listens on port 1.
            let (port, seconds) = if by == By::FailingWebhook {
                (1, 1)
            } else {
                (silent.local_addr().unwrap().port(), 8)
            };
            let webhook = json!({
                "name": "refused.example.com", "clientConfig": { "url": format!("https://127.0.0.1:{port}/") },
                "rules": [rule], "objectSelector": selector, "sideEffects": "None",
                "admissionReviewVersions": ["v1"], "timeoutSeconds": seconds,
            });
            let made = json!({ "metadata": { "name": name }, "webhooks": [webhook] });
            let api = Api::<ValidatingWebhookConfiguration>::all(client());
            api.create(&post, &serde_json::from_value(made).unwrap())
                .await
                .unwrap();
        } else {
            let constraints = json!({ "resourceRules": [rule], "objectSelector": selector });
            let validation = json!({ "expression": "false", "message": "nobody writes this" });
            let policy = json!({ "metadata": { "name": name }, "spec": { "matchConstraints": constraints, "validations": [validation] } });
            let binding = json!({ "metadata": { "name": name }, "spec": { "policyName": name, "validationActions": ["Deny"] } });
            let (policies, bindings) = (
                Api::<ValidatingAdmissionPolicy>::all(client()),
                Api::<ValidatingAdmissionPolicyBinding>::all(client()),
            );
            policies
                .create(&post, &serde_json::from_value(policy).unwrap())
                .await
                .unwrap();
            bindings
                .create(&post, &serde_json::from_value(binding).unwrap())
                .await
                .unwrap();
        }
        let refusing = Self {
            bed,
            by,
            _silent: silent,
        };
        refusing.until("writes are rejected", true).await;
        refusing
    }

    async fn until(&self, what: &str, refuses: bool) {
        let write: &[&str] = match self.by {
            By::PolicyOnStatus => &[
                "patch",
                "trackedfield",
                "refused",
                "--subresource=status",
                "--type=merge",
                "-p={}",
            ],
            _ => &["annotate", "trackedfield", "refused", "x=y", "--overwrite"],
        };
        let arguments = [&["-n", &self.bed.namespace], write, &["--dry-run=server"]].concat();
        until(what, SOON, async || {
            Ok(
                (self.bed.plane.run_kubectl(&arguments, "").await.is_err() == refuses)
                    .then_some(()),
            )
        })
        .await
        .unwrap();
    }

    async fn remove(&self) {
        let (name, delete) = (&*self.bed.namespace, DeleteParams::default());
        if matches!(self.by, By::FailingWebhook | By::HangingWebhook) {
            let api = Api::<ValidatingWebhookConfiguration>::all(self.bed.client.clone());
            api.delete(name, &delete).await.unwrap();
        } else {
            let api = Api::<ValidatingAdmissionPolicyBinding>::all(self.bed.client.clone());
            api.delete(name, &delete).await.unwrap();
            let api = Api::<ValidatingAdmissionPolicy>::all(self.bed.client.clone());
            api.delete(name, &delete).await.unwrap();
        }
        self.until("writes are accepted again", false).await;
    }
}

/// Returns whether the status names an object whose status the apiserver rejects.
fn names_an_object(point: &ContactPoint) -> bool {
    let conditions = &point.status.as_ref().unwrap().conditions;
    conditions
        .iter()
        .any(|condition| condition.type_ == "OutcomesRecorded")
}

#[rstest]
#[case::by_a_policy(By::Policy, "nobody writes this")]
#[case::by_a_failing_webhook(By::FailingWebhook, "failed calling webhook")]
#[case::by_a_hanging_webhook(By::HangingWebhook, "did not answer within 3s")]
#[tokio::test]
async fn object_with_a_rejected_status_blocks_no_other(#[case] by: By, #[case] because: &str) {
    let bed = Bed::shared("unwritable").await;
    let receiver = Receiver::start().unwrap();
    // Less than the hanging webhook takes.
    let mut operator = Operator::start(&bed, Settings::default().flag("--api-timeout=3s")).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    receiver.always(status(503));
    bed.deployment("web", 1).await;
    for name in ["refused", "other"] {
        bed.track(name, "Deployment", "web", "replicas", "hook")
            .await;
        bed.until(name, "waits", |field: &TrackedField| {
            !field.history().unwrap().is_empty()
        })
        .await;
    }
    bed.waiting("refused", "DeliveryFailing: ").await;
    bed.patch::<TrackedField>(
        "refused",
        json!({ "metadata": { "labels": { "refused": bed.namespace } } }),
    )
    .await;
    let refusing = Refusing::install(&bed, by).await;
    receiver.behave();

    // The other fields continue, and `status` shows the rejected one.
    bed.delivered("other", &[("Created", Some("1"))]).await;
    bed.scale("web", 2).await;
    bed.delivered("other", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    let of = |receiver: &Receiver, name: &str| {
        changes(receiver)
            .iter()
            .filter(|change| change["trackedField"] == name)
            .map(|c| c["value"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of(&receiver, "refused"),
        ["1"],
        "no further message of the field until its outcome is stored"
    );
    let message = bed.event("refused", "WriteRejected").await;
    assert!(message.contains(because), "{message}");
    let named = bed.until("hook", "names it", |point: &ContactPoint| {
        let conditions = &point.status.as_ref().unwrap().conditions;
        conditions
            .iter()
            .any(|condition| condition.type_ == "OutcomesRecorded" && condition.status == "False")
    });
    let status = named.await.status.unwrap();
    assert!(status.ready, "messages of others can be sent");
    let condition = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "OutcomesRecorded")
        .unwrap();
    assert!(
        condition.message.contains("\"refused\"") && condition.message.contains(because),
        "{}",
        condition.message
    );
    let output = Command::new(env!("CARGO_BIN_EXE_quartermaster"))
        .args(["status", "-n", &bed.namespace])
        .env("KUBECONFIG", bed.plane.admin_kubeconfig())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.contains("WriteRejected") && output.contains(&condition.message),
        "{output}"
    );
    let metrics = operator.metrics().await;
    let counted = metrics
        .lines()
        .find(|line| line.starts_with("quartermaster_status_writes_rejected_total{"))
        .unwrap();
    assert!(
        counted.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() >= 5.0,
        "{counted}"
    );

    // A restart forgets the outcome and repeats its one request, no more.
    operator.kill();
    operator.restart();
    operator.ready().await;
    bed.scale("web", 3).await;
    let all = [
        ("Created", Some("1")),
        ("Updated", Some("2")),
        ("Updated", Some("3")),
    ];
    bed.delivered("other", &all).await;
    let repeated = of(&receiver, "refused");
    assert!(
        repeated.iter().all(|value| value == "1") && repeated.len() <= 2,
        "{repeated:?}"
    );
    bed.until("hook", "names it again", names_an_object).await;

    refusing.remove().await;
    let recorded = |field: &TrackedField| {
        let history = field.history().unwrap();
        history.last().unwrap().value.as_deref() == Some("3")
            && history.iter().all(|e| is(e, Delivery::Delivered))
    };
    bed.until("refused", "continues", recorded).await;
    bed.waiting("refused", "").await;
    bed.until("hook", "names none", |point| !names_an_object(point))
        .await;
    let sent = of(&receiver, "refused");
    assert!(
        sent.iter().filter(|value| *value == "1").count() <= 2,
        "{sent:?}"
    );
}

/// The spec applies although the status cannot be written.
#[rstest]
#[case::suspended(json!({ "suspend": true }))]
#[case::moved(json!({ "contactPoint": "elsewhere" }))]
#[tokio::test]
async fn object_with_a_rejected_status_leaves_the_queue_that_its_spec_excludes(
    #[case] change: Value,
) {
    let bed = Bed::shared("excluded").await;
    let (receiver, elsewhere) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    let operator = Operator::start(&bed, Settings::default()).await;
    for (point, receiver) in [("hook", &receiver), ("elsewhere", &elsewhere)] {
        bed.webhook(point, &receiver.url()).await;
        bed.ready(point).await;
    }
    receiver.always(status(503));
    bed.deployment("web", 1).await;
    bed.track("refused", "Deployment", "web", "replicas", "hook")
        .await;
    bed.waiting("refused", "DeliveryFailing: ").await;
    bed.patch::<TrackedField>(
        "refused",
        json!({ "metadata": { "labels": { "refused": bed.namespace } } }),
    )
    .await;
    let refusing = Refusing::install(&bed, By::PolicyOnStatus).await;
    // This change needs a write of the status.
    bed.scale("web", 2).await;
    bed.event("refused", "WriteRejected").await;
    bed.patch::<TrackedField>("refused", json!({ "spec": change }))
        .await;
    until("no entry is enqueued", SOON, async || {
        let metrics = operator.metrics().await;
        let pending = series(&metrics, "quartermaster_entries_pending");
        Ok((pending == Some(0.0)).then_some(()))
    })
    .await
    .unwrap();
    bed.track("other", "Deployment", "web", "replicas", "hook")
        .await;
    // The queue has one request at a time, so the last request of the former entries is over by then.
    let is_of_other = |request: &Arc<Request>| request.text().contains("\"other\"");
    receiver
        .wait_for(SOON, |requests| requests.iter().any(is_of_other))
        .await
        .unwrap();
    receiver.behave();
    bed.delivered("other", &[("Created", Some("2"))]).await;
    let sent = changes(&receiver);
    assert!(
        sent.iter().all(|change| change["trackedField"] == "other"),
        "{sent:?}"
    );
    refusing.remove().await;
}

#[tokio::test]
async fn object_with_a_rejected_status_is_named_by_its_present_contact_point() {
    let bed = Bed::shared("named").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    for point in ["hook", "elsewhere"] {
        bed.webhook(point, &receiver.url()).await;
        bed.ready(point).await;
    }
    bed.deployment("web", 1).await;
    bed.track("refused", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("refused", &[("Created", Some("1"))]).await;
    bed.patch::<TrackedField>(
        "refused",
        json!({ "metadata": { "labels": { "refused": bed.namespace } } }),
    )
    .await;
    let refusing = Refusing::install(&bed, By::PolicyOnStatus).await;
    bed.scale("web", 2).await;
    bed.until("hook", "names it", names_an_object).await;
    bed.patch::<TrackedField>(
        "refused",
        json!({ "spec": { "contactPoint": "elsewhere" } }),
    )
    .await;
    bed.until("elsewhere", "names it", names_an_object).await;
    bed.until("hook", "names none", |point| !names_an_object(point))
        .await;
    refusing.remove().await;
    bed.until("elsewhere", "names none", |point| !names_an_object(point))
        .await;
}

/// An unavailable apiserver says nothing about an object: everything waits, and nothing is sent twice.
#[tokio::test]
async fn unavailable_apiserver_blocks_every_object() {
    use testbed::proxy::{Fault, Match, Times};
    let bed = Bed::shared("away").await;
    let receiver = Receiver::start().unwrap();
    let (proxy, file) = bed.through_proxy().await;
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    receiver.always(status(503));
    bed.deployment("web", 1).await;
    for name in ["refused", "other"] {
        bed.track(name, "Deployment", "web", "replicas", "hook")
            .await;
        bed.waiting(name, "DeliveryFailing: ").await;
    }
    // The fault hits one object only: an operator that blamed the object would go on with the other.
    let writes = Match::writes().resource("trackedfields").name("refused");
    let order = proxy.inject(
        writes,
        Times::Always,
        Fault::status(http::StatusCode::INTERNAL_SERVER_ERROR),
    );
    receiver.always(Reply::ok());
    order.wait_for_hits(8, SOON).await.unwrap();
    bed.scale("web", 2).await;
    // By now such an operator could go on with the other: five more attempts take seconds.
    bed.until("other", "the second value", |field: &TrackedField| {
        field.history().unwrap().len() == 2
    })
    .await;
    order.wait_for_hits(order.hits() + 5, SOON).await.unwrap();
    let values = |name: &str| {
        changes(&receiver)
            .iter()
            .filter(|c| c["trackedField"] == name)
            .map(|c| c["value"].clone())
            .collect::<Vec<_>>()
    };
    assert!(
        !values("other").contains(&json!("2")),
        "{:?}",
        values("other")
    );
    order.cancel();
    for name in ["refused", "other"] {
        bed.delivered(name, &[("Created", Some("1")), ("Updated", Some("2"))])
            .await;
        assert_eq!(values(name), ["1", "2"]);
    }
}

/// Each change wakes the object, but not before its next attempt is due.
#[tokio::test]
async fn rejected_writes_are_bounded_by_the_backoff_while_the_field_changes() {
    const BACKOFF: Duration = Duration::from_mins(2);
    const LAST: i32 = 40;
    let bed = Bed::shared("bounded").await;
    let (receiver, elsewhere) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    let settings = Settings::default()
        .flag("--backoff-min=2m")
        .flag("--backoff-max=10m");
    let _operator = Operator::start(&bed, settings).await;
    bed.deployment("web", 1).await;
    for (name, point, receiver) in [
        ("refused", "hook", &receiver),
        ("other", "elsewhere", &elsewhere),
    ] {
        bed.webhook(point, &receiver.url()).await;
        bed.ready(point).await;
        bed.track(name, "Deployment", "web", "replicas", point)
            .await;
        bed.delivered(name, &[("Created", Some("1"))]).await;
    }
    bed.patch::<TrackedField>(
        "refused",
        json!({ "metadata": { "labels": { "refused": bed.namespace } } }),
    )
    .await;
    let refusing = Refusing::install(&bed, By::PolicyOnStatus).await;
    let (mark, began) = (bed.plane.audit().mark().await.unwrap(), Instant::now());
    for replicas in 2..=LAST {
        bed.scale("web", replicas).await;
    }
    let last_is_delivered = |field: &TrackedField| {
        let history = field.history().unwrap();
        let last = history.last().unwrap();
        last.value == Some(LAST.to_string()) && is(last, Delivery::Delivered)
    };
    bed.until("other", "everything has been observed", last_is_delivered)
        .await;
    let refused = async || {
        let requests = bed.plane.audit().requests(mark).await.unwrap();
        let of = |subject: &testbed::control_plane::audit::Subject| {
            subject.namespace == bed.namespace
                && subject.name == "refused"
                && subject.resource == "trackedfields/status"
        };
        requests
            .iter()
            .filter(|request| of(&request.subject))
            .count()
    };
    let attempts = refused().await;
    let bound = usize::try_from(began.elapsed().as_secs() / BACKOFF.as_secs()).unwrap() + 1;
    assert!((1..=bound).contains(&attempts), "{attempts} refused writes");

    // A user requests an attempt.
    let ask = async |value: &str| {
        let annotation = json!({ "quartermaster.dev/requested-at": value });
        bed.patch::<TrackedField>(
            "refused",
            json!({ "metadata": { "annotations": annotation } }),
        )
        .await;
    };
    ask("1").await;
    until("the operator retries on request", SOON, async || {
        Ok((refused().await > attempts).then_some(()))
    })
    .await
    .unwrap();
    refusing.remove().await;
    ask("2").await;
    bed.until("refused", "all is delivered", last_is_delivered)
        .await;
}

/// No answer for any object: the apiserver is at fault, not the object.
#[tokio::test]
async fn hanging_apiserver_blocks_every_object() {
    use testbed::proxy::{Fault, Match, Times};
    let bed = Bed::shared("hangs").await;
    let receiver = Receiver::start().unwrap();
    let (proxy, file) = bed.through_proxy().await;
    let _operator = Operator::start(
        &bed,
        Settings::default()
            .kubeconfig(file)
            .flag("--api-timeout=2s"),
    )
    .await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    bed.deployment("web", 1).await;
    receiver.always(status(503));
    // The first request is repeated unchanged, so the second entry waits behind that request.
    for name in ["first", "second"] {
        bed.track(name, "Deployment", "web", "replicas", "hook")
            .await;
        bed.waiting(name, "DeliveryFailing: ").await;
    }
    proxy.inject(Match::any(), Times::Always, Fault::Hang);
    receiver.always(Reply::ok());
    // An operator that blamed the object would continue with the other after five of them.
    let writes = Match::writes().resource("trackedfields").name("first");
    until("nine writes", SOON, async || {
        Ok((proxy.count(&writes) >= 9).then_some(()))
    })
    .await
    .unwrap();
    let sent = || {
        changes(&receiver)
            .iter()
            .map(|change| change["trackedField"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(sent(), ["first"]);
    proxy.behave();
    for name in ["first", "second"] {
        bed.delivered(name, &[("Created", Some("1"))]).await;
    }
    assert_eq!(sent(), ["first", "second"]);
}
