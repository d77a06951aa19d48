//! The apiserver is unavailable or asks for a pause: failed reconciles are retried when they can succeed, not when the
//! backoff ends.

use std::time::Duration;

use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use qm_api::{AppService, MyApp};
use serde_json::json;
use testbed::proxy::{ApiErrorResponse, Fault, Match, Times, Verb};
use testbed::wait::until;

use crate::support::{Bed, Operator, SOON, Settings};

/// Backoff longer than any test waits.
const BACKOFF: [&str; 2] = ["--backoff-min=30m", "--backoff-max=30m"];

async fn app(bed: &Bed, name: &str) {
    bed.create::<AppService>(
        name,
        json!({ "spec": { "image": "nginx:1.29", "size": 1 } }),
    )
    .await;
}

/// Each reconcile failed, and then no request succeeded for a while. Without a retry nothing happens for half an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_objects_are_reconciled_soon_after_the_apiserver_is_back() {
    let bed = Bed::shared("back").await;
    let (proxy, file) = bed.through_proxy().await;
    let settings = BACKOFF
        .iter()
        .fold(Settings::default().kubeconfig(file), |settings, flag| {
            settings.flag(flag)
        });
    let mut operator = Operator::start(&bed, settings).await;
    let fails = |resource: &str| {
        let writes = Match::writes().resource(resource);
        proxy.inject(
            writes,
            Times::Always,
            Fault::status(StatusCode::INTERNAL_SERVER_ERROR),
        )
    };
    let failed = ["deployments", "pods"].map(fails);
    for name in ["app-0", "app-1", "app-2"] {
        app(&bed, name).await;
    }
    bed.create::<MyApp>(
        "shell",
        json!({ "spec": { "image": "nginx:1.29", "banner": "b" } }),
    )
    .await;
    failed[0].wait_for_hits(3, SOON).await.unwrap();
    failed[1].wait_for_hits(1, SOON).await.unwrap();
    proxy.refuse().await.unwrap();
    let noticed = |logs: &str| logs.contains("apiserver is unavailable");
    until("the outage is noticed", SOON, async || {
        Ok(noticed(&operator.logs()).then_some(()))
    })
    .await
    .unwrap();
    proxy.behave();
    proxy.accept().await.unwrap();
    for name in ["app-0", "app-1", "app-2"] {
        until(format!("{name} runs"), SOON, async || {
            bed.api::<Deployment>()
                .get_opt(name)
                .await
                .map_err(Into::into)
        })
        .await
        .unwrap();
    }
    until("the Pod is created", SOON, async || {
        bed.api::<Pod>()
            .get_opt("shell-pod")
            .await
            .map_err(Into::into)
    })
    .await
    .unwrap();
    operator.child().check_running().unwrap();
}

/// The equivalent of an etcd that is out of space: reads and the apiserver's own checks succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_objects_are_reconciled_soon_after_writes_succeed_again() {
    const APPS: [&str; 5] = ["app-0", "app-1", "app-2", "app-3", "app-4"];
    let bed = Bed::shared("space").await;
    let (proxy, file) = bed.through_proxy().await;
    let settings = BACKOFF
        .iter()
        .fold(Settings::default().kubeconfig(file), |settings, flag| {
            settings.flag(flag)
        });
    let mut operator = Operator::start(&bed, settings).await;
    let unstored = proxy.inject(
        Match::writes(),
        Times::Always,
        Fault::status(StatusCode::INTERNAL_SERVER_ERROR),
    );
    for name in APPS {
        app(&bed, name).await;
    }
    let noticed = |logs: &str| logs.matches("apiserver stores no writes").count();
    until("the outage is noticed", SOON, async || {
        Ok((noticed(&operator.logs()) > 0).then_some(()))
    })
    .await
    .unwrap();
    // The operator retries one object at a time meanwhile.
    let before = unstored.hits();
    unstored.wait_for_hits(before + 2, SOON).await.unwrap();
    proxy.behave();
    for name in APPS {
        until(format!("{name} runs"), SOON, async || {
            bed.api::<Deployment>()
                .get_opt(name)
                .await
                .map_err(Into::into)
        })
        .await
        .unwrap();
    }
    operator.child().check_running().unwrap();
    assert_eq!(noticed(&operator.logs()), 1);
    assert!(!operator.logs().contains("apiserver is unavailable"));
}

/// Neither the backoff nor a change of the object triggers an earlier retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_is_not_retried_before_the_retry_after_of_a_429() {
    const AFTER: u32 = 30;
    let bed = Bed::shared("later").await;
    let (proxy, file) = bed.through_proxy().await;
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    let creates = Match::verb(Verb::Create)
        .resource("deployments")
        .name("busy");
    let busy = ApiErrorResponse {
        retry_after: Some(AFTER),
        ..StatusCode::TOO_MANY_REQUESTS.into()
    };
    let refused = proxy.inject(creates.clone(), Times::First(1), Fault::Answer(busy));
    app(&bed, "busy").await;
    refused.wait_for_hits(1, SOON).await.unwrap();
    bed.patch::<AppService>("busy", json!({ "spec": { "size": 2 } }))
        .await;
    // Other objects do not wait.
    app(&bed, "other").await;
    let made = async |name: &str| {
        until(format!("{name} runs"), SOON, async || {
            bed.api::<Deployment>()
                .get_opt(name)
                .await
                .map_err(Into::into)
        })
        .await
        .unwrap()
    };
    made("other").await;
    let deployment = made("busy").await;
    assert_eq!(deployment.spec.unwrap().replicas, Some(2));
    let tried = |creates: &Match| -> Vec<_> {
        proxy
            .requests()
            .iter()
            .filter(|seen| creates.matches(&seen.request))
            .map(|seen| seen.at)
            .collect()
    };
    let (after, busy) = (Duration::from_secs(AFTER.into()), tried(&creates));
    assert_eq!(busy.len(), 2, "no attempt in between");
    assert!(busy[1] - busy[0] >= after, "{:?}", busy[1] - busy[0]);
    let other = tried(&creates.name("other"));
    assert!(
        other[0] - busy[0] < after,
        "the object had to wait, too: {:?}",
        other[0] - busy[0]
    );
}
