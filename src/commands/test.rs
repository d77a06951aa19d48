//! `quartermaster test`: requests a test message of a `ContactPoint`, and prints the receiver's answer.

use std::process::ExitCode;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use qm_api::ContactPoint;
use qm_api::common::TEST_AT;
use qm_core::conditions::{self, READY};
use qm_runtime::outcome::SPEC_INVALID;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::operator_state::OperatorState;
use super::printer::Printer;
use super::{FIELD_MANAGER, FailedRequest, OutageReporter, RETRY_INTERVAL, find};
use crate::cli::commands::TestArgs;
use crate::controllers::contact_point::endpoint::BODY_INVALID;

/// Maximum time to read the operator's Lease after `--timeout`.
const LEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// State of a requested test message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestState<'a> {
    /// The receiver has not answered.
    Waiting,
    Accepted,
    /// The receiver did not accept the message.
    NotAccepted(&'a str),
    /// The operator sends nothing while the contact point is suspended.
    Suspended,
    /// Another client changed the annotation, so the operator may never send this message.
    Replaced,
}

pub(crate) async fn run(
    client: Client,
    args: &TestArgs,
    out: &mut Printer,
) -> anyhow::Result<ExitCode> {
    let deadline = Instant::now() + args.timeout;
    let namespace = args.namespace.as_deref();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace());
    let api: Api<ContactPoint> = Api::namespaced(client.clone(), namespace);
    // A cluster that does not answer ends the command, too.
    let request = async {
        let point = find::get(&client, namespace, &args.name, &args.cluster).await?;
        if is_suspended(&point) {
            return Err(suspended(&point, args));
        }
        let requested_at = request_test(&api, &point).await?;
        Ok((point, requested_at))
    };
    let Ok(requested) = timeout_at(deadline, request).await else {
        anyhow::bail!(
            "the apiserver did not answer within {:?}: run the command again, or raise --timeout",
            args.timeout
        );
    };
    let (mut point, requested_at) = requested?;
    let title = format!("ContactPoint {namespace}/{}", args.name);
    out.line(format!(
        "Requested a test message of {title}. Waiting for the receiver's answer."
    ))?;
    let mut reported = None;
    loop {
        let Ok(read) = timeout_at(deadline, read_again(&api, &point, out)).await else {
            let why = why_unanswered(&client, &point, args).await;
            anyhow::bail!(
                "no answer to the test message of {title} within {:?}: {why}",
                args.timeout
            );
        };
        point = read?;
        match test_state(&point, &requested_at) {
            TestState::Waiting if sends_nothing(&point) => {
                let problem = not_ready(&point).unwrap_or_default();
                anyhow::bail!("the operator sends nothing to {title}: {problem}");
            }
            TestState::Waiting => {
                let problem = not_ready(&point);
                if let Some(problem) = problem.filter(|it| reported.as_ref() != Some(it)) {
                    out.line(format!("The ContactPoint is not ready: {problem}"))?;
                    reported = Some(problem);
                }
            }
            TestState::Accepted => {
                out.line("The receiver accepted the test message.")?;
                return Ok(ExitCode::SUCCESS);
            }
            TestState::NotAccepted(error) => {
                out.line(format!(
                    "The receiver did not accept the test message: {error}"
                ))?;
                return Ok(ExitCode::FAILURE);
            }
            TestState::Suspended => return Err(suspended(&point, args)),
            TestState::Replaced => {
                anyhow::bail!(
                    "the annotation {TEST_AT} of {title} was changed meanwhile: run the command again"
                )
            }
        }
    }
}

/// Requests a test message, and returns the value of the annotation.
async fn request_test(api: &Api<ContactPoint>, point: &ContactPoint) -> anyhow::Result<String> {
    let requested_at = jiff::Timestamp::now().to_string();
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PatchParams::default()
    };
    let metadata = json!({ "uid": point.uid(), "annotations": { TEST_AT: requested_at } });
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let patched = api
        .patch_metadata(&point.name_any(), &params, &patch)
        .await
        .map_err(FailedRequest::from);
    patched?;
    Ok(requested_at)
}

/// Waits, and reads the object again. Retries while the apiserver does not answer.
async fn read_again(
    api: &Api<ContactPoint>,
    point: &ContactPoint,
    out: &mut Printer,
) -> anyhow::Result<ContactPoint> {
    let mut outage = OutageReporter::default();
    loop {
        sleep(RETRY_INTERVAL).await;
        let error = match api.get_opt(&point.name_any()).await {
            Ok(Some(read)) if read.uid() == point.uid() => return Ok(read),
            Ok(_) => anyhow::bail!("the ContactPoint was deleted meanwhile"),
            Err(error) => anyhow::Error::from(FailedRequest::from(error)),
        };
        if !FailedRequest::may_pass(&error) {
            return Err(error);
        }
        outage.report(&error, out)?;
    }
}

/// Returns the state of the test message that this value of the annotation requested. Pure.
fn test_state<'a>(point: &'a ContactPoint, requested_at: &str) -> TestState<'a> {
    let status = point.status.as_ref();
    let last_test = status.and_then(|status| status.last_test.as_ref());
    match last_test {
        Some(test) if test.requested_at.as_deref() == Some(requested_at) => {
            match test.error.as_deref() {
                Some(error) => TestState::NotAccepted(error),
                None => TestState::Accepted,
            }
        }
        _ if is_suspended(point) => TestState::Suspended,
        _ if point.annotations().get(TEST_AT).map(String::as_str) == Some(requested_at) => {
            TestState::Waiting
        }
        _ => TestState::Replaced,
    }
}

fn is_suspended(point: &ContactPoint) -> bool {
    point.spec.suspend.unwrap_or_default()
}

fn suspended(point: &ContactPoint, args: &TestArgs) -> anyhow::Error {
    let (namespace, name) = (point.namespace().unwrap_or_default(), point.name_any());
    let resume = args.cluster.command(&format!(
        "kubectl patch contactpoint/{name} -n {namespace} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'"
    ));
    anyhow::anyhow!(
        "ContactPoint {namespace}/{name} is suspended, so the operator sends nothing; to resume it: {resume}"
    )
}

/// Returns the condition `Ready` of a `ContactPoint` that is not ready.
fn not_ready_condition(point: &ContactPoint) -> Option<&Condition> {
    let ready = conditions::get(&point.status.as_ref()?.conditions, READY)?;
    (ready.status != "True").then_some(ready)
}

/// Returns reason and message of a `ContactPoint` that is not ready.
fn not_ready(point: &ContactPoint) -> Option<String> {
    not_ready_condition(point).map(|ready| format!("{}: {}", ready.reason, ready.message))
}

/// Returns whether only a change of the spec lets the operator send the test message.
fn sends_nothing(point: &ContactPoint) -> bool {
    not_ready_condition(point).is_some_and(|ready| {
        [SPEC_INVALID, BODY_INVALID].contains(&&*ready.reason)
            && ready.observed_generation == point.metadata.generation
    })
}

/// Returns the most likely reason why the operator has recorded no answer.
async fn why_unanswered(client: &Client, point: &ContactPoint, args: &TestArgs) -> String {
    let lease = args.lease.key();
    let operator = timeout(LEASE_TIMEOUT, OperatorState::read(client, &lease)).await;
    let operator = match operator {
        Ok(operator) => operator.problem(),
        Err(_) => Some("The apiserver does not answer".into()),
    };
    let reasons: Vec<_> = not_ready(point).into_iter().chain(operator).collect();
    if reasons.is_empty() {
        "the receiver's rate limit or an earlier request may delay it; raise --timeout".to_owned()
    } else {
        reasons.join(". ")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    #[rstest]
    #[case::not_observed(json!(null), Some("2"), false, TestState::Waiting)]
    #[case::removed(json!({ "requestedAt": "1" }), None, false, TestState::Replaced)]
    #[case::earlier_error(json!({ "requestedAt": "1", "error": "404" }), Some("2"), false, TestState::Waiting)]
    #[case::accepted(json!({ "requestedAt": "2" }), Some("2"), false, TestState::Accepted)]
    #[case::not_accepted(json!({ "requestedAt": "2", "error": "404" }), Some("2"), false, TestState::NotAccepted("404"))]
    #[case::suspended(json!(null), Some("2"), true, TestState::Suspended)]
    #[case::accepted_and_then_suspended(json!({ "requestedAt": "2" }), Some("2"), true, TestState::Accepted)]
    #[case::replaced(json!({ "requestedAt": "1" }), Some("3"), false, TestState::Replaced)]
    #[case::replaced_and_answered(json!({ "requestedAt": "3" }), Some("3"), false, TestState::Replaced)]
    fn state_follows_the_annotation_and_the_status(
        #[case] last_test: Value,
        #[case] annotation: Option<&str>,
        #[case] suspend: bool,
        #[case] state: TestState<'_>,
    ) {
        let mut last_test = last_test;
        if last_test.is_object() {
            last_test["spec"] = "abc".into();
        }
        let point: ContactPoint = serde_json::from_value(json!({
            "apiVersion": "tg.azamaton.ru/v1",
            "kind": "ContactPoint",
            "metadata": { "name": "hook", "annotations": annotation.map(|it| json!({ TEST_AT: it })) },
            "spec": { "type": "Webhook", "suspend": suspend },
            "status": { "initialized": true, "ready": true, "lastTest": last_test },
        }))
        .unwrap();
        assert_eq!(test_state(&point, "2"), state);
    }
}
