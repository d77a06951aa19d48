//! `quartermaster test`.

use http::StatusCode;
use qm_api::ContactPoint;
use serde_json::json;
use testbed::receiver::{Receiver, Reply};

use super::{Run, user_with};
use crate::support::{Bed, Operator, Settings, accepted};

/// Without a Lease of this name the command cannot tell whether an operator runs.
const NO_LEASE: &str = "--leader-election-id=nobody";

#[tokio::test]
async fn test_prints_the_answer_of_the_receiver() {
    let (bed, run, receiver, _operator) = Run::beside_operator("test-command").await;
    let here = bed.namespace.as_str();
    for (number, name) in ["cp/hook", "contactpoint/hook", "hook"].iter().enumerate() {
        let output = run.ends(0, &["test", name, "-n", here]).await;
        assert_eq!(
            output,
            format!(
                "Requested a test message of ContactPoint {here}/hook. Waiting for the receiver's answer.\n\
                 The receiver accepted the test message.\n"
            )
        );
        assert_eq!(accepted(&receiver).len(), 2 + number);
    }
    receiver.next(1, Reply::status(StatusCode::SERVICE_UNAVAILABLE));
    let output = run.ends(1, &["test", "cp/hook", "-n", here]).await;
    assert!(
        output.contains("The receiver did not accept the test message: ") && output.contains("503"),
        "{output}"
    );
    receiver.always(Reply::status(StatusCode::NOT_FOUND));
    let output = run.ends(1, &["test", "cp/hook", "-n", here]).await;
    assert!(output.contains("404"), "{output}");
}

#[tokio::test]
async fn test_tells_why_nothing_was_sent() {
    let bed = Bed::shared("test-unsent").await;
    let run = Run::on(&bed);
    let here = bed.namespace.as_str();
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    let output = run.ends(2, &["test", "tf/hook", "-n", here]).await;
    assert!(output.contains("such as cp/telegram-cp"), "{output}");
    let output = run.ends(1, &["test", "cp/hock", "-n", here]).await;
    let missing =
        format!("there is no ContactPoint hock in namespace {here}; the namespace has hook");
    assert!(output.contains(&missing), "{output}");

    // No operator runs.
    let arguments = ["test", "cp/hook", "-n", here, "--timeout=2s", NO_LEASE];
    let output = run.ends(1, &arguments).await;
    assert!(
        output.contains("no answer to the test message of ContactPoint")
            && output.contains("within 2s: Cannot tell whether the operator is running: Lease"),
        "{output}"
    );

    // The contact point gets no endpoint.
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "type": "Webhook", "webhookSpec": { "urlFrom": { "secretName": "none", "key": "url" } } });
    bed.point("blocked", spec).await;
    bed.not_ready("blocked", "SecretNotFound").await;
    let arguments = ["test", "cp/blocked", "-n", here, "--timeout=2s", NO_LEASE];
    let output = run.ends(1, &arguments).await;
    assert!(output.contains("within 2s: SecretNotFound: "), "{output}");
    let problem = "\nThe ContactPoint is not ready: SecretNotFound: ";
    assert_eq!(output.matches(problem).count(), 1, "{output}");

    // The default timeout is longer than the test waits for a command.
    let webhook = json!({ "url": receiver.url(), "body": "{{" });
    let spec = json!({ "type": "Webhook", "webhookSpec": webhook });
    bed.point("invalid", spec).await;
    bed.not_ready("invalid", "SpecInvalid").await;
    let output = run
        .ends(1, &["test", "cp/invalid", "-n", here, NO_LEASE])
        .await;
    let problem =
        format!("the operator sends nothing to ContactPoint {here}/invalid: SpecInvalid: ");
    assert!(output.contains(&problem), "{output}");

    bed.patch::<ContactPoint>("hook", json!({ "spec": { "suspend": true } }))
        .await;
    bed.not_ready("hook", "Suspended").await;
    let output = run.ends(1, &["test", "cp/hook", "-n", here]).await;
    let resume = output.split_once("to resume it: ");
    let (error, resume) = resume.unwrap_or_else(|| panic!("{output}"));
    assert!(error.contains("is suspended, so the operator sends nothing"));
    let shell = Run::on(&bed).shell(&bed);
    shell.ends(0, &["-c", resume.trim()]).await;
    bed.ready("hook").await;
    run.ends(0, &["test", "cp/hook", "-n", here]).await;
}

/// The command has the permissions of its user, and no others.
#[tokio::test]
async fn test_needs_the_permission_to_annotate() {
    let bed = Bed::shared("test-forbidden").await;
    let here = bed.namespace.as_str();
    bed.webhook("hook", "http://127.0.0.1:1").await;
    let file = user_with(&bed, "get", "contactpoints.tg.azamaton.ru").await;
    let output = Run::on(&bed)
        .kubeconfig(file)
        .ends(1, &["test", "cp/hook", "-n", here])
        .await;
    assert!(output.contains("cannot patch resource"), "{output}");
}
