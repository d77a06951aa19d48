//! Requests that an app costs, and their order.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Service;
use qm_api::AppService;
use serde_json::json;
use testbed::Options;

use super::{app, deployment, not_ready, ready, ready_condition, reconciled, service, writes};
use crate::support::{ACCOUNT, Bed, Operator, SYSTEM, Settings};

#[tokio::test]
async fn new_app_costs_three_writes_and_no_read() {
    let two = vec!["--service-node-port-range=30000-30001".into()];
    let bed = Bed::on_own_plane_with(
        Options {
            apiserver_flags: two,
            ..Options::apiserver_only()
        },
        "cost",
    )
    .await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let ports = json!([{ "port": 80 }]);
    // The first app starts the watches.
    app(
        &bed,
        "first",
        json!({ "size": 1, "image": "i", "ports": ports }),
    )
    .await;
    bed.until("first", "is passed over", |app: &AppService| {
        super::is_observed(app)
    })
    .await;

    let since = bed.plane.audit().mark().await.unwrap();
    app(
        &bed,
        "web",
        json!({ "size": 1, "image": "i", "ports": ports }),
    )
    .await;
    bed.until("web", "is passed over", |app: &AppService| {
        super::is_observed(app)
    })
    .await;
    let operator = format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}");
    let requests = bed.plane.audit().requests(since).await.unwrap();
    let mut operator_writes: Vec<_> = requests
        .iter()
        .map(|request| &request.subject)
        .filter(|it| it.user == operator && it.verb != "watch" && it.resource != "events")
        .map(|it| format!("{} {}", it.verb, it.resource))
        .collect();
    operator_writes.sort();
    assert_eq!(
        operator_writes,
        [
            "create deployments",
            "create services",
            "patch appservices/status"
        ]
    );

    // No node port is left for a third app, which has to wait for one.
    app(
        &bed,
        "late",
        json!({ "size": 1, "image": "i", "ports": ports }),
    )
    .await;
    let message = not_ready(&bed, "late", "NodePortTaken").await;
    assert!(
        message.contains("failed to allocate a nodePort"),
        "{message}"
    );
    bed.delete::<AppService>("web").await;
    bed.delete::<Service>("web").await;
    bed.until("late", "has its port", |app: &AppService| {
        let ports = app
            .status
            .as_ref()
            .map(|status| status.ports.as_slice())
            .unwrap_or_default();
        ports.iter().any(|port| port.node_port.is_some())
    })
    .await;
}

/// Longest time that a status waits for children.
const STATUS_DELAY: SignedDuration = SignedDuration::from_secs(5);

#[tokio::test]
async fn children_of_many_apps_come_before_statuses() {
    const APPS: usize = 60;
    let bed = Bed::without_controllers("burst").await;
    let since = bed.plane.audit().mark().await.unwrap();
    for number in 0..APPS {
        let spec = json!({ "size": 1, "image": "i", "serviceType": "ClusterIP", "ports": [{ "port": 80 }] });
        app(&bed, &format!("app-{number}"), spec).await;
    }
    // The operator finds all apps at once when it starts.
    let _operator = Operator::start(&bed, Settings::default()).await;
    for number in 0..APPS {
        bed.until(
            &format!("app-{number}"),
            "has a status",
            |app: &AppService| super::is_observed(app),
        )
        .await;
    }

    let operator = format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}");
    let requests = bed.plane.audit().requests(since).await.unwrap();
    let requests: Vec<_> = requests
        .iter()
        .filter(|it| it.subject.user == operator && it.subject.namespace == bed.namespace)
        .collect();
    // Time of each app's last child.
    let mut created = HashMap::<&str, Timestamp>::new();
    for request in &requests {
        let subject = &request.subject;
        if subject.verb == "create" && subject.resource != "events" {
            let time = created.entry(&subject.name).or_insert(request.time);
            *time = request.time.max(*time);
        }
    }
    assert_eq!(created.len(), APPS);
    let last_child = *created.values().max().unwrap();
    let statuses = requests
        .iter()
        .filter(|request| request.subject.resource == "appservices/status");
    let mut written = 0;
    for status in statuses {
        let waited = status.time.duration_since(created[&*status.subject.name]);
        assert!(
            status.time > last_child || waited >= STATUS_DELAY,
            "{status:?} comes before the last child"
        );
        written += 1;
    }
    assert_eq!(written, APPS, "each status is written once");
}

#[tokio::test]
async fn operator_writes_nothing_at_rest() {
    let bed = Bed::shared("rest").await;
    let mut operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "size": 1, "image": "i", "ports": [{ "port": 80 }], "ingress": {}, "env": [{ "name": "A", "value": "b" }],
        "resources": { "requests": { "cpu": "0.1", "memory": 1024 } } });
    app(&bed, "web", spec).await;
    let mut scaled = json!({ "size": 1, "image": "i", "autoscaling": { "max": 2 }, "serviceAccountName": "default",
        "resources": { "limits": { "cpu": "1" } } });
    app(&bed, "scaled", scaled.clone()).await;
    scaled["suspend"] = true.into();
    app(&bed, "suspended", scaled).await;
    app(&bed, "off", json!({ "size": 0, "image": "i" })).await;
    for name in ["web", "scaled", "off"] {
        ready(&bed, name).await;
    }
    // The autoscaler's controller reports within seconds that there are no metrics, which the status repeats.
    bed.until("scaled", "reports its autoscaler", |app: &AppService| {
        let message = ready_condition(app).and_then(|it| it.message.as_deref());
        message.is_some_and(|it| it.contains("does not scale"))
    })
    .await;
    for name in ["web", "scaled", "off", "suspended"] {
        reconciled(&bed, name).await;
    }
    assert!(
        bed.api::<k8s_openapi::api::apps::v1::Deployment>()
            .get_opt("suspended")
            .await
            .unwrap()
            .is_none()
    );

    let since = bed.plane.audit().mark().await.unwrap();
    let versions = async || {
        let (deployment, service) = (deployment(&bed, "web").await, service(&bed, "web").await);
        (
            deployment.metadata.resource_version,
            service.metadata.resource_version,
        )
    };
    let before = versions().await;
    for name in ["web", "scaled", "off", "suspended"] {
        reconciled(&bed, name).await;
    }
    // A new process finds unchanged objects.
    operator.kill();
    operator.restart();
    operator.ready().await;
    for name in ["web", "scaled", "off", "suspended"] {
        reconciled(&bed, name).await;
    }
    assert_eq!(versions().await, before);
    let operator_writes = writes(&bed, since).await;
    assert!(operator_writes.is_empty(), "{operator_writes:?}");
}
