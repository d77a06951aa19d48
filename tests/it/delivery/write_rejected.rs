//! An object whose status nobody can write does not block others.

use std::process::Command;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use quartermaster::api::tracked_field::Delivery;
use quartermaster::api::{ContactPoint, TrackedField};
use rstest::rstest;
use serde_json::json;
use testbed::receiver::{Receiver, Reply};
use testbed::wait::until;

use super::{is, status};
use crate::support::{Bed, Operator, SOON, Settings, changes};

/// A webhook or policy that refuses every write of the `TrackedField` with a label of this test.
struct Refusing<'a> {
    bed: &'a Bed,
    by_webhook: bool,
}

impl<'a> Refusing<'a> {
    async fn install(bed: &'a Bed, by_webhook: bool) -> Self {
        let (name, label) = (&*bed.namespace, "refused");
        let client = || bed.client.clone();
        let selector = json!({ "matchLabels": { label: name } });
        let resources = ["trackedfields", "trackedfields/status"];
        let rule = json!({ "apiGroups": ["tg.azamaton.ru"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": resources });
        let post = PostParams::default();
        if by_webhook {
            // No server listens there.
            let webhook = json!({
                "name": "refused.example.com", "clientConfig": { "url": "https://127.0.0.1:1/" }, "rules": [rule],
                "objectSelector": selector, "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
            });
            let made = json!({ "metadata": { "name": name }, "webhooks": [webhook] });
            let api = Api::<ValidatingWebhookConfiguration>::all(client());
            api.create(&post, &serde_json::from_value(made).unwrap()).await.unwrap();
        } else {
            let constraints = json!({ "resourceRules": [rule], "objectSelector": selector });
            let validation = json!({ "expression": "false", "message": "nobody writes this" });
            let policy = json!({ "metadata": { "name": name }, "spec": { "matchConstraints": constraints, "validations": [validation] } });
            let binding =
                json!({ "metadata": { "name": name }, "spec": { "policyName": name, "validationActions": ["Deny"] } });
            let (policies, bindings) = (
                Api::<ValidatingAdmissionPolicy>::all(client()),
                Api::<ValidatingAdmissionPolicyBinding>::all(client()),
            );
            policies.create(&post, &serde_json::from_value(policy).unwrap()).await.unwrap();
            bindings.create(&post, &serde_json::from_value(binding).unwrap()).await.unwrap();
        }
        let refusing = Self { bed, by_webhook };
        refusing.until("it refuses", true).await;
        refusing
    }

    async fn until(&self, what: &str, refuses: bool) {
        let arguments = [
            "-n",
            &self.bed.namespace,
            "annotate",
            "trackedfield",
            "refused",
            "x=y",
            "--overwrite",
            "--dry-run=server",
        ];
        until(what, SOON, async || {
            Ok((self.bed.plane.run_kubectl(&arguments, "").await.is_err() == refuses).then_some(()))
        })
        .await
        .unwrap();
    }

    async fn remove(&self) {
        let (name, delete) = (&*self.bed.namespace, DeleteParams::default());
        if self.by_webhook {
            let api = Api::<ValidatingWebhookConfiguration>::all(self.bed.client.clone());
            api.delete(name, &delete).await.unwrap();
        } else {
            let api = Api::<ValidatingAdmissionPolicyBinding>::all(self.bed.client.clone());
            api.delete(name, &delete).await.unwrap();
            let api = Api::<ValidatingAdmissionPolicy>::all(self.bed.client.clone());
            api.delete(name, &delete).await.unwrap();
        }
        self.until("it refuses no longer", false).await;
    }
}

#[rstest]
#[case::by_a_policy(false)]
#[case::by_a_webhook_that_fails(true)]
#[tokio::test]
async fn an_object_whose_status_cannot_be_written_holds_up_no_other(#[case] by_webhook: bool) {
    let bed = Bed::shared("unwritable").await;
    let receiver = Receiver::start().unwrap();
    let mut operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    receiver.always(status(503));
    bed.deployment("web", 1).await;
    for name in ["refused", "other"] {
        bed.track(name, "Deployment", "web", "replicas", "hook").await;
        bed.until(name, "waits", |field: &TrackedField| !field.history().unwrap().is_empty()).await;
    }
    bed.waiting("refused", "DeliveryFailing: ").await;
    bed.patch::<TrackedField>("refused", json!({ "metadata": { "labels": { "refused": bed.namespace } } })).await;
    let refusing = Refusing::install(&bed, by_webhook).await;
    receiver.behave();

    // The others go on, and status shows which one is refused.
    bed.delivered("other", &[("Created", Some("1"))]).await;
    bed.scale("web", 2).await;
    bed.delivered("other", &[("Created", Some("1")), ("Updated", Some("2"))]).await;
    let of = |receiver: &Receiver, name: &str| {
        changes(receiver)
            .iter()
            .filter(|change| change["trackedField"] == name)
            .map(|c| c["value"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(of(&receiver, "refused"), ["1"], "nothing more of it until its outcome is stored");
    let words = bed.event("refused", "WriteRejected").await;
    let because = if by_webhook { "failed calling webhook" } else { "nobody writes this" };
    assert!(words.contains(because), "{words}");
    let named = bed.until("hook", "names it", |point: &ContactPoint| {
        let conditions = &point.status.as_ref().unwrap().conditions;
        conditions.iter().any(|condition| condition.type_ == "OutcomesRecorded" && condition.status == "False")
    });
    let status = named.await.status.unwrap();
    assert!(status.ready, "messages of others can be sent");
    let condition = status.conditions.iter().find(|condition| condition.type_ == "OutcomesRecorded").unwrap();
    assert!(condition.message.contains("\"refused\"") && condition.message.contains(because), "{}", condition.message);
    let shown = Command::new(env!("CARGO_BIN_EXE_quartermaster"))
        .args(["status", "-n", &bed.namespace])
        .env("KUBECONFIG", bed.plane.admin_kubeconfig())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("WriteRejected") && shown.contains(&condition.message), "{shown}");
    let metrics = operator.metrics().await;
    let counted = metrics.lines().find(|line| line.starts_with("quartermaster_status_writes_rejected_total{")).unwrap();
    assert!(counted.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() >= 5.0, "{counted}");

    // A restart forgets the outcome and repeats its one request, no more.
    operator.kill();
    operator.restart();
    operator.ready().await;
    bed.scale("web", 3).await;
    let all = [("Created", Some("1")), ("Updated", Some("2")), ("Updated", Some("3"))];
    bed.delivered("other", &all).await;
    let repeated = of(&receiver, "refused");
    assert!(repeated.iter().all(|value| value == "1") && repeated.len() <= 2, "{repeated:?}");
    bed.until("hook", "names it again", |point: &ContactPoint| {
        let conditions = &point.status.as_ref().unwrap().conditions;
        conditions.iter().any(|condition| condition.type_ == "OutcomesRecorded")
    })
    .await;

    refusing.remove().await;
    let told = |field: &TrackedField| {
        let history = field.history().unwrap();
        history.last().unwrap().value.as_deref() == Some("3") && history.iter().all(|e| is(e, Delivery::Delivered))
    };
    bed.until("refused", "goes on", told).await;
    bed.waiting("refused", "").await;
    bed.until("hook", "names none", |point: &ContactPoint| {
        point.status.as_ref().unwrap().conditions.iter().all(|condition| condition.type_ != "OutcomesRecorded")
    })
    .await;
    let told = of(&receiver, "refused");
    assert!(told.iter().filter(|value| *value == "1").count() <= 2, "{told:?}");
}

/// An unavailable apiserver says nothing about an object: everything waits, and nothing is sent twice.
#[tokio::test]
async fn an_apiserver_that_is_away_holds_up_every_object() {
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
        bed.track(name, "Deployment", "web", "replicas", "hook").await;
        bed.waiting(name, "DeliveryFailing: ").await;
    }
    // The fault hits one object only: an operator that blamed the object would go on with the other.
    let writes = Match::writes().resource("trackedfields").name("refused");
    let order = proxy.inject(writes, Times::Always, Fault::status(http::StatusCode::INTERNAL_SERVER_ERROR));
    receiver.always(Reply::ok());
    order.wait_for_hits(8, SOON).await.unwrap();
    bed.scale("web", 2).await;
    // By now such an operator could go on with the other: five more attempts take seconds.
    bed.until("other", "its second value", |field: &TrackedField| field.history().unwrap().len() == 2).await;
    order.wait_for_hits(order.hits() + 5, SOON).await.unwrap();
    let values = |name: &str| {
        changes(&receiver).iter().filter(|c| c["trackedField"] == name).map(|c| c["value"].clone()).collect::<Vec<_>>()
    };
    assert!(!values("other").contains(&json!("2")), "{:?}", values("other"));
    order.take_back();
    for name in ["refused", "other"] {
        bed.delivered(name, &[("Created", Some("1")), ("Updated", Some("2"))]).await;
        assert_eq!(values(name), ["1", "2"]);
    }
}
