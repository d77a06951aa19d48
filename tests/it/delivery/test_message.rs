//! Test messages that people see, and their ids.

use http::StatusCode;
use qm_api::ContactPoint;
use rstest::rstest;
use serde_json::json;
use testbed::proxy::{Fault, Match, Times, Verb};
use testbed::receiver::Receiver;

use super::{status, tests};
use crate::support::{Bed, Operator, SOON, Settings};

/// RBAC rules or the Secret are missing for a while.
#[rstest]
#[case::forbidden(StatusCode::FORBIDDEN, "SecretForbidden")]
#[case::not_found(StatusCode::NOT_FOUND, "SecretNotFound")]
#[tokio::test]
async fn secret_that_cannot_be_read_for_a_while_sends_no_test_message(
    #[case] code: StatusCode,
    #[case] reason: &str,
) {
    let bed = Bed::shared("blip").await;
    let receiver = Receiver::start().unwrap();
    let (proxy, file) = bed.through_proxy().await;
    let settings = Settings::default()
        .kubeconfig(file)
        .flag("--secret-refresh-period=200ms");
    let mut operator = Operator::start(&bed, settings).await;
    bed.secret("url", &receiver.url()).await;
    let from = json!({ "urlFrom": { "secretName": "url", "key": "token" } });
    bed.point("hook", json!({ "type": "Webhook", "webhookSpec": from }))
        .await;
    bed.ready("hook").await;
    let secrets = Match::verb(Verb::Get).resource("secrets").name("url");
    for restart in [false, true] {
        let order = proxy.inject(secrets.clone(), Times::Always, Fault::status(code));
        bed.not_ready("hook", reason).await;
        if restart {
            operator.kill();
            operator.restart();
            operator.ready().await;
        }
        order.cancel();
        bed.ready("hook").await;
    }
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    assert_eq!(tests(&receiver).len(), 1);
    // A changed Secret is tested.
    bed.delete::<k8s_openapi::api::core::v1::Secret>("url")
        .await;
    bed.not_ready("hook", "SecretNotFound").await;
    bed.secret("url", &receiver.url()).await;
    receiver
        .wait_for(SOON, |_| tests(&receiver).len() == 2)
        .await
        .unwrap();
    bed.ready("hook").await;
}

/// A typo in the URL, which its author reverts.
#[tokio::test]
async fn earlier_endpoint_that_returns_is_tested_at_once() {
    let bed = Bed::shared("reverted").await;
    let (receiver, other) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    other.always(status(503));
    // Longer than the test.
    let _operator =
        Operator::start(&bed, Settings::default().flag("--stopped-retry-period=1h")).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    let set_url = async |url: String| {
        let spec = json!({ "webhookSpec": { "url": url } });
        bed.patch::<ContactPoint>("hook", json!({ "spec": spec }))
            .await;
    };
    set_url(other.url()).await;
    bed.not_ready("hook", "Unreachable").await;
    set_url(receiver.url()).await;
    bed.ready("hook").await;
    assert_eq!(tests(&receiver).len(), 2);
}

#[tokio::test]
async fn retried_test_message_keeps_its_id_also_after_a_restart() {
    let bed = Bed::shared("same-id").await;
    let receiver = Receiver::start().unwrap();
    receiver.always(status(503));
    let mut operator = Operator::start(&bed, Settings::default()).await;
    bed.secret("key", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        .await;
    let webhook =
        json!({ "url": receiver.url(), "signingKey": { "secretName": "key", "key": "token" } });
    bed.point("hook", json!({ "type": "Webhook", "webhookSpec": webhook }))
        .await;
    let more = async |answer: u16| {
        receiver.always(status(answer));
        let before = receiver.requests().len();
        receiver
            .wait_for(SOON, |requests| requests.len() >= before + 2)
            .await
            .unwrap();
    };
    more(503).await;
    more(404).await;
    operator.kill();
    operator.restart();
    more(404).await;
    more(503).await;
    receiver.behave();
    bed.ready("hook").await;
    let ids = |header: &str| -> Vec<String> {
        receiver
            .requests()
            .iter()
            .map(|request| request.header(header).unwrap().to_owned())
            .collect()
    };
    for header in ["ce-id", "idempotency-key", "webhook-id"] {
        let ids = ids(header);
        assert!(ids.iter().all(|id| *id == ids[0]), "{header}: {ids:?}");
    }

    // The test message gets a new id after a change of the spec, and once the receiver has accepted the last one.
    receiver.forget();
    bed.patch::<ContactPoint>(
        "hook",
        json!({ "spec": { "webhookSpec": { "headers": { "X-More": "1" } } } }),
    )
    .await;
    receiver
        .wait_for(SOON, |_| tests(&receiver).len() == 1)
        .await
        .unwrap();
    bed.ready("hook").await;
    receiver.next(1, status(404));
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    // A return to an earlier configuration does not bring back its id.
    for more in ["2", "1"] {
        let (headers, before) = (json!({ "X-More": more }), tests(&receiver).len());
        bed.patch::<ContactPoint>(
            "hook",
            json!({ "spec": { "webhookSpec": { "headers": headers } } }),
        )
        .await;
        receiver
            .wait_for(SOON, |_| tests(&receiver).len() > before)
            .await
            .unwrap();
        bed.until("hook", "is ready again", |point: &ContactPoint| {
            let status = point.status.as_ref().unwrap();
            status.ready && status.observed_generation == point.metadata.generation
        })
        .await;
    }
    let tests: Vec<_> = tests(&receiver)
        .iter()
        .map(|test| test.header("ce-id").unwrap().to_owned())
        .collect();
    let once: std::collections::BTreeSet<_> = tests.iter().collect();
    assert_eq!(once.len(), tests.len(), "{tests:?}");
}
