//! The desired Pod exists after every change of the spec or of the Pod; then nothing is written.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use qm_api::MyApp;
use serde_json::{Value, json};
use testbed::wait::until;

use super::{running, waiting};
use crate::support::{Bed, Operator, SOON, Settings};

/// Returns the values of the container's variable, and its image.
fn variable_and_image(pod: &Pod) -> (Value, String) {
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let values = container
        .env
        .iter()
        .flatten()
        .map(|variable| json!(variable.value))
        .collect();
    (Value::Array(values), container.image.clone().unwrap())
}

#[tokio::test]
async fn changed_spec_recreates_the_pod_and_nothing_else_does() {
    let bed = Bed::shared("apps").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.app("web", json!({ "image": "nginx:1", "banner": "one" }))
        .await;
    let first = bed.app_runs("web").await;
    assert_eq!(
        variable_and_image(&first),
        (json!(["one"]), "nginx:1".into())
    );

    bed.patch::<MyApp>("web", json!({ "spec": { "image": "nginx:2" } }))
        .await;
    let second = bed.app_runs_again("web", &first).await;
    assert_eq!(
        variable_and_image(&second),
        (json!(["one"]), "nginx:2".into())
    );
    let message = bed.event("web", "Replaced").await;
    assert_eq!(
        message,
        "deleted web-pod to replace it: its image is nginx:1, and the spec says nginx:2"
    );
    assert!(
        bed.events("web", "Recreated").await.is_empty(),
        "that is no loss"
    );

    // A banner of maximum length, with everything that the kubelet or a shell could interpret.
    let banner = format!(
        "'a' \"b\" $(HOME) $$ `c` \\n\n\u{1F680}{}",
        "$(date) 0123456789\n".repeat(5600)
    );
    assert!(banner.len() > 100_000);
    bed.patch::<MyApp>("web", json!({ "spec": { "banner": banner } }))
        .await;
    let third = bed.app_runs_again("web", &second).await;
    assert_eq!(
        variable_and_image(&third).0,
        json!([banner.replace('$', "$$")])
    );
    bed.patch::<MyApp>("web", json!({ "spec": { "banner": null } }))
        .await;
    let fourth = bed.app_runs_again("web", &third).await;
    assert_eq!(
        variable_and_image(&fourth).0,
        json!([null]),
        "the apiserver keeps no empty value"
    );

    bed.patch::<MyApp>("web", json!({ "spec": { "podSecurity": "Baseline" } }))
        .await;
    let fifth = bed.app_runs_again("web", &fourth).await;
    assert!(
        fifth.spec.as_ref().unwrap().containers[0]
            .security_context
            .is_none()
    );

    // A user changes the image of the Pod itself.
    bed.kubectl(&["set", "image", "pod/web-pod", "web=httpd"])
        .await;
    let sixth = bed.app_runs_again("web", &fifth).await;
    assert_eq!(variable_and_image(&sixth).1, "nginx:2");

    // Labels, annotations, suspension and the default spelt out change nothing.
    let since = bed.plane.audit().mark().await.unwrap();
    bed.patch::<MyApp>(
        "web",
        json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "suspend": false } }),
    )
    .await;
    bed.patch::<Pod>(
        "web-pod",
        json!({ "metadata": { "labels": { "a": "b" }, "annotations": { "c": "d" } } }),
    )
    .await;
    assert_eq!(bed.app_runs("web").await.uid(), sixth.uid());
    bed.marker("marker").await;
    let mut requests = bed.requests(since).await;
    requests.remove("patch myapps/status marker");
    // The status records the new generation.
    assert_eq!(requests, [("patch myapps/status web".to_owned(), 1)].into());
}

#[tokio::test]
async fn deleted_pod_is_recreated() {
    let bed = Bed::shared("apps").await;
    let mut operator = Operator::start(&bed, Settings::default()).await;
    bed.app("web", json!({ "image": "nginx" })).await;
    let mut pod = bed.app_runs("web").await;
    for _ in 0..3 {
        bed.delete::<Pod>("web-pod").await;
        pod = bed.app_runs_again("web", &pod).await;
    }
    bed.pod_ends("web").await;
    pod = bed.app_runs_again("web", &pod).await;

    // The change happens while no operator runs.
    operator.kill();
    bed.delete::<Pod>("web-pod").await;
    operator.restart();
    operator.ready().await;
    pod = bed.app_runs_again("web", &pod).await;

    // The operator does not apply events of the old Pod to the new one.
    let ready = |pod: Pod| {
        pod.status?
            .conditions?
            .into_iter()
            .find(|it| it.type_ == "Ready" && it.status == "True")
    };
    until("the Pod is ready", SOON, async || {
        Ok(bed.pod("web").await.and_then(ready))
    })
    .await
    .unwrap();
    bed.pod_is(
        "web",
        waiting("Running", "CrashLoopBackOff", "back-off 10s"),
    )
    .await;
    bed.app_has_reason("web", "CrashLoopBackOff").await;
    bed.pod_is("web", running(true)).await;
    bed.app_has_reason("web", "Ready").await;

    // At rest, and after a restart, nothing is written and nothing requested.
    bed.marker("marker").await;
    let since = bed.plane.audit().mark().await.unwrap();
    operator.kill();
    operator.restart();
    operator.ready().await;
    bed.patch::<Pod>("web-pod", json!({ "metadata": { "labels": { "a": "b" } } }))
        .await;
    bed.marker("later").await;
    let mut requests = bed.requests(since).await;
    requests.remove("patch myapps/status later");
    assert_eq!(requests, [].into());
    assert_eq!(bed.pod("web").await.unwrap().uid(), pod.uid());
}

#[tokio::test]
async fn suspended_app_is_unchanged() {
    let bed = Bed::shared("apps").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.app("web", json!({ "image": "nginx:1" })).await;
    bed.app("never", json!({ "image": "nginx:1", "suspend": true }))
        .await;
    let pod = bed.app_runs("web").await;
    bed.patch::<MyApp>("web", json!({ "spec": { "suspend": true } }))
        .await;
    bed.app_has_reason("web", "Suspended").await;
    bed.app_has_reason("never", "Suspended").await;
    bed.event("web", "Suspended").await;
    bed.patch::<MyApp>("web", json!({ "spec": { "image": "nginx:2" } }))
        .await;
    bed.app_has_reason("web", "Suspended").await;
    bed.marker("marker").await;
    assert_eq!(bed.pod("web").await.unwrap().uid(), pod.uid());
    assert!(bed.pod("never").await.is_none());
    bed.delete::<Pod>("web-pod").await;
    bed.until("web", "the Pod is deleted", |app: &MyApp| {
        app.status.as_ref().is_some_and(|it| it.pod_name.is_none())
    })
    .await;
    bed.marker("later").await;
    assert!(bed.pod("web").await.is_none());

    bed.patch::<MyApp>("web", json!({ "spec": { "suspend": null } }))
        .await;
    bed.patch::<MyApp>("never", json!({ "spec": { "suspend": false } }))
        .await;
    assert_eq!(variable_and_image(&bed.app_runs("web").await).1, "nginx:2");
    bed.app_runs("never").await;
    bed.event("web", "Ready").await;
}
