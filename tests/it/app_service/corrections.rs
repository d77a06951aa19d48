//! Corrections of drift, their reports, and the fields that they take from other managers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::{Resource, ResourceExt};
use qm_api::AppService;
use rstest::rstest;
use serde_json::{Value, json};
use testbed::Options;
use testbed::control_plane::audit::Mark;
use testbed::proxy::{ApiRequest, Fault, Injection, Match, Point, Proxy, Then, Times, Verb};
use testbed::wait::until;

use super::drift::{add, operator_fields, remove, replace};
use super::{
    app, deployment, not_ready, ready, ready_condition, reconciled, respec, service, writes,
};
use crate::support::{Bed, Operator, SOON, Settings, series};

const CONTAINER: &str = "/spec/template/spec/containers/0";

/// Changes an object as `manager`, with JSON patches in one request.
async fn edit<K>(bed: &Bed, manager: &str, patches: Vec<Value>) -> K
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let by = PatchParams {
        field_manager: Some(manager.into()),
        ..PatchParams::default()
    };
    let operations = serde_json::from_value(json!(patches)).unwrap();
    bed.api()
        .patch("web", &by, &Patch::<()>::Json(operations))
        .await
        .unwrap()
}

async fn scale(bed: &Bed, manager: &str, replicas: i32) {
    let by = PatchParams {
        field_manager: Some(manager.into()),
        ..PatchParams::default()
    };
    let scale = json!({ "spec": { "replicas": replicas } });
    bed.api::<Deployment>()
        .patch_scale("web", &by, &Patch::Merge(scale))
        .await
        .unwrap();
}

/// Waits until both children have their former content.
async fn restored(bed: &Bed, before: &(Value, Value)) {
    let mut last = json!(null);
    let right = until("both children are as they were", SOON, async || {
        let now = (
            operator_fields(&deployment(bed, "web").await),
            operator_fields(&service(bed, "web").await),
        );
        last = json!(now);
        Ok((now == *before).then_some(()))
    });
    if let Err(error) = right.await {
        let app: AppService = bed.api().get("web").await.unwrap();
        panic!(
            "{error:#}\n{:#}\n{last:#}\n{:#?}",
            json!(before),
            ready_condition(&app)
        );
    }
}

async fn both(bed: &Bed) -> (Value, Value) {
    (
        operator_fields(&deployment(bed, "web").await),
        operator_fields(&service(bed, "web").await),
    )
}

/// Counts the operator's requests about a resource of the test's namespace since `since`, with these verbs.
async fn request_count(bed: &Bed, since: Mark, resource: &str, verbs: &[&str]) -> usize {
    let requests = bed.operator_requests(since).await;
    requests
        .filter(|it| it.name == "web" && it.resource == resource)
        .filter(|it| verbs.contains(&it.verb.as_str()))
        .count()
}

/// No apply followed the creation of the children, and the change hits the only key of a map or list.
#[rstest]
#[case::a_service_port("services", vec![replace("/spec/ports/0/port", 8080)], "spec.ports[port=80,protocol=TCP]")]
#[case::a_limit(
    "deployments",
    vec![replace("/spec/template/spec/containers/0/resources/limits/memory", "16Mi")],
    "spec.template.spec.containers[name=web].resources.limits.memory"
)]
#[case::a_container_port(
    "deployments",
    vec![replace("/spec/template/spec/containers/0/ports/0/containerPort", 8080)],
    "spec.template.spec.containers[name=web].ports[containerPort=80,protocol=TCP]"
)]
#[case::the_number_of_pods("deployments", vec![replace("/spec/replicas", 3)], "spec.replicas")]
#[tokio::test]
async fn fresh_child_is_restored_after_its_only_key_was_changed(
    #[case] resource: &str,
    #[case] harm: Vec<Value>,
    #[case] field: &str,
) {
    let bed = Bed::shared("fresh").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "size": 0, "image": "nginx:1.7.9", "ports": [{ "port": 80, "targetPort": 80 }],
        "resources": { "limits": { "memory": "256Mi" } } });
    app(&bed, "web", spec).await;
    ready(&bed, "web").await;
    let before = both(&bed).await;
    if resource == "services" {
        edit::<Service>(&bed, "kubectl-edit", harm).await;
    } else {
        edit::<Deployment>(&bed, "kubectl-edit", harm).await;
    }
    restored(&bed, &before).await;
    ready(&bed, "web").await;
    let message = bed.event("web", "DriftCorrected").await;
    let child = if resource == "services" {
        "Service"
    } else {
        "Deployment"
    };
    let expected = format!(
        "corrected {field} of {child} {}/web, changed by kubectl-edit",
        bed.namespace
    );
    assert!(
        message.starts_with(&expected) && message.contains(" the AppService instead"),
        "{message}"
    );
}

/// The ownership label is removed too, so the label-selected watch no longer shows the child.
#[tokio::test]
async fn child_is_restored_after_all_its_labels_were_removed() {
    let bed = Bed::shared("unlabelled").await;
    // A tiny window, so that no correction is delayed.
    let mut operator = Operator::start(&bed, Settings::default().flag("--drift-window=1ms")).await;
    app(
        &bed,
        "web",
        json!({ "size": 0, "image": "nginx:1.7.9", "ports": [{ "port": 80 }] }),
    )
    .await;
    ready(&bed, "web").await;
    let before = both(&bed).await;
    let harm = || {
        vec![
            remove("/metadata/labels"),
            replace(&format!("{CONTAINER}/image"), "nginx:evil"),
        ]
    };
    edit::<Deployment>(&bed, "kubectl-edit", harm()).await;
    edit::<Service>(&bed, "kubectl-edit", vec![remove("/metadata/labels")]).await;
    restored(&bed, &before).await;
    ready(&bed, "web").await;
    // The labels are removed first; then follow changes that only the label-selected watch would have shown.
    let labels = deployment(&bed, "web").await.labels().clone();
    let removals: Vec<_> = labels.keys().map(|label| format!("{label}-")).collect();
    let removals: Vec<_> = ["label", "deployment/web"]
        .into_iter()
        .chain(removals.iter().map(String::as_str))
        .collect();
    bed.kubectl(&removals).await;
    bed.kubectl(&["scale", "deployment/web", "--replicas=2"])
        .await;
    bed.kubectl(&["set", "image", "deployment/web", "web=nginx:evil"])
        .await;
    restored(&bed, &before).await;
    ready(&bed, "web").await;
    // The changes also happen while no operator runs.
    operator.kill();
    edit::<Deployment>(&bed, "kubectl-edit", harm()).await;
    edit::<Deployment>(&bed, "kubectl-edit", vec![replace("/spec/replicas", 2)]).await;
    operator.restart();
    restored(&bed, &before).await;
    ready(&bed, "web").await;
}

/// Another manager's half of a field and the operator's half together make the child invalid; the operator removes only
/// the other half.
#[tokio::test]
async fn app_stays_ready_after_a_sibling_field_invalidates_a_child() {
    let bed = Bed::shared("siblings").await;
    let _operator = Operator::start(&bed, Settings::default().flag("--drift-window=1ms")).await;
    let from = json!({ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k", "optional": true } } });
    let mut spec = json!({ "size": 0, "image": "nginx:1.7.9", "ports": [{ "port": 80 }], "env": [from],
        "resources": { "requests": { "cpu": "100m" } }, "livenessProbe": { "httpGet": { "port": 80, "path": "/" } } });
    app(&bed, "web", spec.clone()).await;
    ready(&bed, "web").await;
    // The Service and the Deployment were both applied once.
    spec["ports"][0]["appProtocol"] = json!("http");
    spec["image"] = json!("nginx:1.8");
    respec(&bed, "web", spec.clone()).await;
    ready(&bed, "web").await;
    reconciled(&bed, "web").await;
    let foreign_patches = vec![
        add(
            "/spec/template/spec/containers/-",
            json!({ "name": "sidecar", "image": "proxy" }),
        ),
        add(
            "/spec/template/spec/volumes",
            json!([{ "name": "scratch", "emptyDir": {} }]),
        ),
        add(
            &format!("{CONTAINER}/volumeMounts"),
            json!([{ "name": "scratch", "mountPath": "/tmp" }]),
        ),
        add(
            &format!("{CONTAINER}/env/-"),
            json!({ "name": "THEIRS", "value": "1" }),
        ),
        add(
            "/spec/template/spec/tolerations",
            json!([{ "key": "gpu", "operator": "Exists" }]),
        ),
    ];
    edit::<Deployment>(&bed, "injector", foreign_patches).await;
    reconciled(&bed, "web").await;
    let before = both(&bed).await;

    bed.kubectl(&["set", "env", "deployment/web", "-c", "web", "A=literal"])
        .await;
    restored(&bed, &before).await;
    bed.kubectl(&[
        "set",
        "resources",
        "deployment/web",
        "-c",
        "web",
        "--limits=cpu=50m",
        "--requests=cpu=50m",
    ])
    .await;
    restored(&bed, &before).await;
    let probe = vec![
        remove(&format!("{CONTAINER}/livenessProbe/httpGet")),
        add(
            &format!("{CONTAINER}/livenessProbe/tcpSocket"),
            json!({ "port": 80 }),
        ),
    ];
    edit::<Deployment>(&bed, "prober", probe).await;
    restored(&bed, &before).await;
    edit::<Service>(
        &bed,
        "porter",
        vec![
            replace("/spec/ports/0/port", 8080),
            replace("/spec/ports/0/targetPort", 8080),
        ],
    )
    .await;
    restored(&bed, &before).await;
    ready(&bed, "web").await;
    for manager in ["kubectl-set", "prober", "porter"] {
        let named = until(format!("an Event names {manager}"), SOON, async || {
            let corrections = bed.events("web", "DriftCorrected").await;
            let notes = corrections.iter().filter_map(|event| event.note.as_deref());
            let is_named = |note: &str| note.contains(&format!("changed by {manager}"));
            Ok(notes.into_iter().any(is_named).then_some(()))
        });
        named.await.unwrap();
    }
    assert_eq!(bed.events("web", "WriteRejected").await, []);

    // Later changes of the app take effect.
    spec["image"] = json!("nginx:1.27");
    respec(&bed, "web", spec).await;
    ready(&bed, "web").await;
    let mut expected = before.0["spec"].clone();
    expected["template"]["spec"]["containers"][0]["image"] = json!("nginx:1.27");
    assert_eq!(
        operator_fields(&deployment(&bed, "web").await)["spec"],
        expected
    );
}

/// A limit that others set blocks a later request; the app's newer value wins.
#[tokio::test]
async fn change_of_the_app_applies_although_a_sibling_field_forbids_it() {
    let bed = Bed::shared("later").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let mut spec = json!({ "size": 0, "image": "i", "ports": [{ "port": 80 }] });
    app(&bed, "web", spec.clone()).await;
    ready(&bed, "web").await;
    let limits = json!({ "limits": { "cpu": "50m" }, "requests": { "cpu": "50m" } });
    edit::<Deployment>(
        &bed,
        "vertical-scaler",
        vec![add(&format!("{CONTAINER}/resources"), limits)],
    )
    .await;
    reconciled(&bed, "web").await;
    spec["resources"] = json!({ "requests": { "cpu": "100m" } });
    respec(&bed, "web", spec).await;
    ready(&bed, "web").await;
    let now = json!(
        deployment(&bed, "web")
            .await
            .spec
            .unwrap()
            .template
            .spec
            .unwrap()
            .containers[0]
            .resources
    );
    assert_eq!(now, json!({ "requests": { "cpu": "100m" } }));
    let message = bed.event("web", "DriftCorrected").await;
    assert!(
        message.contains("resources.limits of ") && message.contains("vertical-scaler"),
        "{message}"
    );
}

/// Source ranges of another client fit a Service of type `LoadBalancer` only.
#[tokio::test]
async fn service_type_changes_although_a_field_of_another_manager_forbids_it() {
    let bed = Bed::shared("ranges").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let mut spec = json!({ "size": 0, "image": "i", "ports": [{ "port": 80 }], "serviceType": "LoadBalancer" });
    app(&bed, "web", spec.clone()).await;
    ready(&bed, "web").await;
    let ranges = vec![add("/spec/loadBalancerSourceRanges", json!(["10.0.0.0/8"]))];
    edit::<Service>(&bed, "firewall", ranges).await;
    reconciled(&bed, "web").await;
    spec["serviceType"] = json!("NodePort");
    respec(&bed, "web", spec).await;
    ready(&bed, "web").await;
    let now = service(&bed, "web").await.spec.unwrap();
    assert_eq!(now.type_.as_deref(), Some("NodePort"));
    assert_eq!(now.load_balancer_source_ranges, None);
    let message = bed.event("web", "DriftCorrected").await;
    assert!(
        message.contains("spec.loadBalancerSourceRanges of ") && message.contains("firewall"),
        "{message}"
    );
}

/// The spec removes a volume that another client mounts in the app's container and in a sidecar.
#[rstest]
#[case::without_a_mount_of_the_app(json!([]))]
#[case::beside_a_mount_of_the_app(json!([{ "name": "data", "mountPath": "/data" }]))]
#[tokio::test]
async fn removed_volume_takes_only_its_mounts_from_another_manager(#[case] own_mounts: Value) {
    let bed = Bed::shared("mounted").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let (cache, data) = (
        json!({ "name": "cache", "emptyDir": {} }),
        json!({ "name": "data", "emptyDir": {} }),
    );
    let mut overrides = json!({ "spec": { "volumes": [cache, data] } });
    let own_mounts = own_mounts.as_array().unwrap();
    if !own_mounts.is_empty() {
        overrides["spec"]["containers"] = json!([{ "name": "web", "volumeMounts": own_mounts }]);
    }
    let mut spec = json!({ "size": 0, "image": "i", "podOverrides": overrides });
    app(&bed, "web", spec.clone()).await;
    ready(&bed, "web").await;
    let of_cache = json!({ "name": "cache", "mountPath": "/cache" });
    let of_scratch = json!({ "name": "scratch", "mountPath": "/scratch" });
    let mounts = [
        own_mounts.as_slice(),
        &[of_cache.clone(), of_scratch.clone()],
    ]
    .concat();
    let sidecar =
        json!({ "name": "sidecar", "image": "proxy", "volumeMounts": [of_cache, of_scratch] });
    let foreign_patches = vec![
        add("/spec/template/spec/containers/-", sidecar),
        add(
            "/spec/template/spec/volumes/-",
            json!({ "name": "scratch", "emptyDir": {} }),
        ),
        add(&format!("{CONTAINER}/volumeMounts"), mounts),
        add(&format!("{CONTAINER}/tty"), true),
    ];
    edit::<Deployment>(&bed, "injector", foreign_patches).await;
    reconciled(&bed, "web").await;

    spec["podOverrides"]["spec"]["volumes"] = json!([data]);
    respec(&bed, "web", spec).await;
    ready(&bed, "web").await;
    let template = deployment(&bed, "web").await.spec.unwrap().template;
    let containers = template.spec.unwrap().containers;
    assert_eq!(containers[0].tty, Some(true));
    let used = |container: usize| {
        let mounts = containers[container].volume_mounts.iter().flatten();
        let mut names: Vec<_> = mounts.map(|mount| mount.name.as_str()).collect();
        names.sort_unstable();
        names
    };
    let expected = if own_mounts.is_empty() {
        vec!["scratch"]
    } else {
        vec!["data", "scratch"]
    };
    assert_eq!((used(0), used(1)), (expected, vec!["scratch"]));
    let message = bed.event("web", "DriftCorrected").await;
    assert!(
        message.contains("volumeMounts[mountPath=/cache]") && message.contains("injector"),
        "{message}"
    );
}

/// A spec that the apiserver rejects by itself takes nothing from others.
#[tokio::test]
async fn invalid_spec_takes_nothing_from_other_managers() {
    let bed = Bed::shared("fault").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let mut spec = json!({ "size": 0, "image": "i" });
    app(&bed, "web", spec.clone()).await;
    ready(&bed, "web").await;
    let limits = json!({ "limits": { "memory": "1Gi" } });
    edit::<Deployment>(
        &bed,
        "vertical-scaler",
        vec![add(&format!("{CONTAINER}/resources"), limits.clone())],
    )
    .await;
    reconciled(&bed, "web").await;
    spec["resources"] = json!({ "requests": { "cpu": "-1" }, "limits": { "cpu": "4" } });
    respec(&bed, "web", spec.clone()).await;
    let message = not_ready(&bed, "web", "WriteRejected").await;
    assert!(
        message.contains("must be greater than or equal to 0"),
        "{message}"
    );
    let now = deployment(&bed, "web").await;
    assert_eq!(
        json!(now.spec.unwrap().template.spec.unwrap().containers[0].resources),
        limits
    );
    // Others keep their values once the spec is fixed.
    spec["resources"]["requests"]["cpu"] = json!("2");
    respec(&bed, "web", spec).await;
    ready(&bed, "web").await;
    let now = json!(
        deployment(&bed, "web")
            .await
            .spec
            .unwrap()
            .template
            .spec
            .unwrap()
            .containers[0]
            .resources
    );
    assert_eq!(
        now,
        json!({ "requests": { "cpu": "2" }, "limits": { "cpu": "4", "memory": "1Gi" } })
    );
    assert!(bed.events("web", "DriftCorrected").await.is_empty());
}

#[tokio::test]
async fn correction_is_reported_once_an_episode_and_counted_each_time() {
    let bed = Bed::shared("told").await;
    let operator = Operator::start(&bed, Settings::default()).await;
    app(&bed, "web", json!({ "size": 0, "image": "nginx:1.7.9" })).await;
    ready(&bed, "web").await;
    let counter = "quartermaster_drift_corrections_total{controller=\"appservice\"}";
    assert_eq!(series(&operator.metrics().await, counter), Some(0.0));
    for corrected in [1.0, 2.0] {
        bed.kubectl(&["set", "image", "deployment/web", "web=nginx:evil"])
            .await;
        bed.until("web", "has its image again", |deployment: &Deployment| {
            let image = &deployment
                .spec
                .as_ref()
                .unwrap()
                .template
                .spec
                .as_ref()
                .unwrap()
                .containers[0]
                .image;
            image.as_deref() == Some("nginx:1.7.9")
        })
        .await;
        until("the correction is counted", SOON, async || {
            let counted = series(&operator.metrics().await, counter);
            anyhow::ensure!(counted == Some(corrected), "{counted:?}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }
    // This reconcile comes after all corrections, so no further Event of the first episode can follow.
    bed.kubectl(&[
        "annotate",
        "appsvc/web",
        "quartermaster.dev/requested-at=now",
    ])
    .await;
    reconciled(&bed, "web").await;
    let message = bed.event("web", "DriftCorrected").await;
    assert!(
        message.contains("spec.template.spec.containers[name=web].image")
            && message.contains("kubectl-set"),
        "{message}"
    );
    assert!(
        message.ends_with("; before: spec.template.spec.containers[name=web].image=nginx:evil"),
        "{message}"
    );
    assert_eq!(bed.events("web", "DriftCorrected").await.len(), 1);
    assert!(
        operator.logs().contains("corrected drift"),
        "an INFO line reports it"
    );
}

#[tokio::test]
async fn deletion_of_a_child_is_reported_unless_the_operator_deletes() {
    let bed = Bed::shared("recreated").await;
    let operator = Operator::start(&bed, Settings::default()).await;
    let with_port = json!({ "size": 0, "image": "nginx:1.7.9", "ports": [{ "port": 80 }] });
    let without = json!({ "size": 0, "image": "nginx:1.7.9" });
    app(&bed, "web", with_port.clone()).await;
    ready(&bed, "web").await;
    // The operator itself deletes the Service, and creates it again.
    respec(&bed, "web", without).await;
    until("the Service is deleted", SOON, async || {
        Ok(bed
            .api::<Service>()
            .get_opt("web")
            .await?
            .is_none()
            .then_some(()))
    })
    .await
    .unwrap();
    respec(&bed, "web", with_port).await;
    bed.until("web", "is back", |service: &Service| {
        service.metadata.deletion_timestamp.is_none()
    })
    .await;
    ready(&bed, "web").await;
    let counter = "quartermaster_drift_corrections_total{controller=\"appservice\"}";
    assert_eq!(series(&operator.metrics().await, counter), Some(0.0));

    for corrected in [1.0, 2.0] {
        let before = deployment(&bed, "web").await.uid();
        bed.kubectl(&["delete", "deployment", "web"]).await;
        until("the Deployment is back", SOON, async || {
            let now = bed.api::<Deployment>().get_opt("web").await?;
            Ok(now.filter(|now| now.uid() != before))
        })
        .await
        .unwrap();
        until("the correction is counted", SOON, async || {
            let counted = series(&operator.metrics().await, counter);
            anyhow::ensure!(counted == Some(corrected), "{counted:?}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }
    let message = bed.event("web", "Recreated").await;
    let what = format!(
        "recreated Deployment {}/web, which another client had deleted",
        bed.namespace
    );
    assert!(
        message.starts_with(&what) && message.ends_with("change the AppService instead"),
        "{message}"
    );
    assert_eq!(
        bed.events("web", "Recreated").await.len(),
        1,
        "once within 10 minutes"
    );
    assert!(
        operator.logs().contains("recreated a deleted child"),
        "an INFO line reports it"
    );
}

/// An autoscaler on the Deployment itself keeps changing it.
#[tokio::test]
async fn app_is_contested_while_an_autoscaler_scales_its_deployment() {
    let bed = Bed::shared("contested").await;
    let flags = ["--drift-backoff-min=1s", "--drift-backoff-max=60s"];
    let settings = flags
        .iter()
        .fold(Settings::default(), |settings, flag| settings.flag(flag));
    let _operator = Operator::start(&bed, settings).await;
    app(&bed, "web", json!({ "size": 1, "image": "nginx:1.7.9" })).await;
    ready(&bed, "web").await;
    let sized = |size: i32| {
        move |deployment: &Deployment| deployment.spec.as_ref().unwrap().replicas == Some(size)
    };
    for manager in ["flux", "kube-controller-manager", "kube-controller-manager"] {
        scale(&bed, manager, 4).await;
        bed.until("web", "has its size again", sized(1)).await;
    }
    let message = not_ready(&bed, "web", "DriftContested").await;
    for part in [
        "flux keeps changing spec.replicas, and kube-controller-manager keeps changing",
        "spec.replicas",
        "Deployment ",
        "scaleTargetRef",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(bed.events("web", "DriftCorrected").await.len(), 2);
    // Corrections are now rarer than changes, while the app stays `DriftContested`.
    let since = bed.plane.audit().mark().await.unwrap();
    for round in 0..12 {
        let replicas = 4 + round % 2;
        scale(&bed, "kube-controller-manager", replicas).await;
        until(
            "the app reports the contest, or the drift is corrected",
            SOON,
            async || {
                let app: AppService = bed.api().get("web").await?;
                let ready = ready_condition(&app).unwrap();
                assert_eq!(
                    (ready.status.as_str(), ready.reason.as_deref()),
                    ("False", Some("DriftContested"))
                );
                let is_told = app.status.as_ref().unwrap().replicas == Some(replicas.into());
                Ok((is_told || sized(1)(&deployment(&bed, "web").await)).then_some(()))
            },
        )
        .await
        .unwrap();
    }
    let corrected = request_count(&bed, since, "deployments", &["patch"]).await;
    assert!(corrected <= 8, "{corrected} corrections of 12 changes");

    // The autoscaler stops: the app recovers once corrections have stopped.
    bed.until("web", "has its size again", sized(1)).await;
    ready(&bed, "web").await;
    bed.until("web", "has its size", sized(1)).await;
}

/// The app's own autoscaler scales, and the Deployment controller reports.
#[tokio::test]
async fn scaling_by_the_autoscaler_of_the_app_costs_a_read_and_no_write() {
    let bed = Bed::shared("scaled").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "size": 1, "image": "nginx:1.7.9", "autoscaling": { "min": 1, "max": 9 },
        "resources": { "requests": { "cpu": "100m" } } });
    app(&bed, "web", spec).await;
    ready(&bed, "web").await;
    reconciled(&bed, "web").await;
    let since = bed.plane.audit().mark().await.unwrap();
    for replicas in 2..7 {
        scale(&bed, "kube-controller-manager", replicas).await;
        let complete = |app: &AppService| {
            app.status
                .as_ref()
                .is_some_and(|status| status.available_replicas == Some(replicas.into()))
        };
        bed.until("web", "runs them", complete).await;
    }
    reconciled(&bed, "web").await;
    let written = request_count(
        &bed,
        since,
        "deployments",
        &["patch", "update", "create", "delete"],
    )
    .await;
    assert_eq!(written, 0);
    let read = request_count(&bed, since, "deployments", &["get"]).await;
    assert!(read <= 5, "{read} reads for 5 changes");
}

/// The operator does not fight an admission policy that changes written values: one apply per process, and no Event.
#[tokio::test]
async fn value_changed_by_admission_is_applied_once_a_process() {
    let bed = Bed::on_own_plane_with(Options::default(), "admission").await;
    let policy = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
    "metadata": { "name": "pull" }, "spec": {
        "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "matchConstraints": { "resourceRules": [{ "apiGroups": ["apps"], "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"], "resources": ["deployments"] }] },
        "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression":
            "[JSONPatch{op: \"add\", path: \"/spec/template/spec/containers/0/imagePullPolicy\", value: \"Always\"}]" } }],
    } });
    let binding = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": { "name": "pull" }, "spec": { "policyName": "pull" } });
    for object in [policy, binding] {
        bed.plane
            .run_kubectl(&["apply", "-f", "-"], &object.to_string())
            .await
            .unwrap();
    }
    let pulls = |deployment: &Deployment| {
        let container = &deployment
            .spec
            .as_ref()
            .unwrap()
            .template
            .spec
            .as_ref()
            .unwrap()
            .containers[0];
        container.image_pull_policy.clone()
    };
    until("the policy acts", SOON, async || {
        let name = format!("probe-{}", uuid::Uuid::new_v4().simple());
        let labels = json!({ "app": name });
        let container = json!({ "name": "a", "image": "i", "imagePullPolicy": "Never" });
        let template =
            json!({ "metadata": { "labels": labels }, "spec": { "containers": [container] } });
        let spec =
            json!({ "replicas": 0, "selector": { "matchLabels": labels }, "template": template });
        let probe: Deployment = bed.create(&name, json!({ "spec": spec })).await;
        Ok((pulls(&probe).as_deref() == Some("Always")).then_some(()))
    })
    .await
    .unwrap();
    let mut operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "size": 0, "image": "nginx:1.7.9", "resources": { "requests": { "cpu": "0.5", "memory": "1000m" } } });
    app(&bed, "web", spec).await;
    ready(&bed, "web").await;
    reconciled(&bed, "web").await;
    assert_eq!(
        pulls(&deployment(&bed, "web").await).as_deref(),
        Some("Always")
    );
    let since = bed.plane.audit().mark().await.unwrap();
    edit::<Deployment>(
        &bed,
        "somebody",
        vec![add("/metadata/labels/team", "theirs")],
    )
    .await;
    reconciled(&bed, "web").await;
    assert_eq!(
        request_count(&bed, since, "deployments", &["patch", "update"]).await,
        0
    );
    operator.kill();
    operator.restart();
    operator.ready().await;
    for _ in 0..3 {
        reconciled(&bed, "web").await;
    }
    let applied = request_count(&bed, since, "deployments", &["patch", "update"]).await;
    assert!(applied <= 2, "the hand-over and the apply: {applied}");
    let since = bed.plane.audit().mark().await.unwrap();
    operator.kill();
    operator.restart();
    operator.ready().await;
    for _ in 0..3 {
        reconciled(&bed, "web").await;
    }
    assert_eq!(
        request_count(&bed, since, "deployments", &["patch", "update"]).await,
        1
    );
    assert!(bed.events("web", "DriftCorrected").await.is_empty());
    assert!(!writes(&bed, since).await.is_empty());
    assert_eq!(
        pulls(&deployment(&bed, "web").await).as_deref(),
        Some("Always")
    );
    assert_eq!(deployment(&bed, "web").await.labels()["team"], "theirs");
}

/// The kubelet uses the last of two variables with one name, so a duplicate changes the app.
#[tokio::test]
async fn duplicated_variable_is_corrected() {
    let bed = Bed::shared("repeated").await;
    let mut operator = Operator::start(&bed, Settings::default().flag("--drift-window=1ms")).await;
    let env = json!([{ "name": "A", "value": "b" }, { "name": "B", "value": "c" }]);
    app(
        &bed,
        "web",
        json!({ "size": 0, "image": "nginx:1.7.9", "ports": [{ "port": 80 }], "env": env }),
    )
    .await;
    ready(&bed, "web").await;
    let before = both(&bed).await;
    let repeat = || {
        vec![add(
            &format!("{CONTAINER}/env/-"),
            json!({ "name": "A", "value": "evil" }),
        )]
    };
    edit::<Deployment>(&bed, "kubectl-edit", repeat()).await;
    restored(&bed, &before).await;
    let message = bed.event("web", "DriftCorrected").await;
    assert!(
        message.starts_with("corrected spec.template.spec.containers[name=web].env[name=A] of "),
        "{message}"
    );
    // The edit also happens while no operator runs.
    operator.kill();
    edit::<Deployment>(&bed, "kubectl-edit", repeat()).await;
    operator.restart();
    restored(&bed, &before).await;
    ready(&bed, "web").await;
}

/// Another manager adds a container port; then a user removes the app's own port, which has only a number.
#[tokio::test]
async fn foreign_container_port_stays_after_the_port_of_the_app_was_removed() {
    let bed = Bed::shared("ports").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    app(
        &bed,
        "web",
        json!({ "size": 0, "image": "i", "ports": [{ "port": 80, "targetPort": 80 }] }),
    )
    .await;
    ready(&bed, "web").await;
    let foreign_patches = vec![add(
        &format!("{CONTAINER}/ports/-"),
        json!({ "containerPort": 9090 }),
    )];
    edit::<Deployment>(&bed, "injector", foreign_patches).await;
    reconciled(&bed, "web").await;
    edit::<Deployment>(
        &bed,
        "kubectl-edit",
        vec![remove(&format!("{CONTAINER}/ports/0"))],
    )
    .await;
    let numbers = |deployment: &Deployment| {
        let ports = &deployment
            .spec
            .as_ref()
            .unwrap()
            .template
            .spec
            .as_ref()
            .unwrap()
            .containers[0]
            .ports;
        ports
            .iter()
            .flatten()
            .map(|port| port.container_port)
            .collect::<std::collections::BTreeSet<_>>()
    };
    bed.until("web", "has its port again", |deployment| {
        numbers(deployment).contains(&80)
    })
    .await;
    reconciled(&bed, "web").await;
    assert_eq!(numbers(&deployment(&bed, "web").await), [80, 9090].into());
}

/// Agents write their own annotations and labels every minute.
#[tokio::test]
async fn annotation_of_an_agent_on_a_child_costs_no_request() {
    let bed = Bed::shared("stamps").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    app(
        &bed,
        "web",
        json!({ "size": 0, "image": "i", "ports": [{ "port": 80 }] }),
    )
    .await;
    ready(&bed, "web").await;
    reconciled(&bed, "web").await;
    let since = bed.plane.audit().mark().await.unwrap();
    for stamp in 0..3 {
        let stamps = || {
            vec![
                add("/metadata/annotations/seen", stamp.to_string()),
                add("/metadata/labels/seen", stamp.to_string()),
            ]
        };
        edit::<Deployment>(&bed, "agent", stamps()).await;
        edit::<Service>(&bed, "agent", stamps()).await;
        reconciled(&bed, "web").await;
    }
    for resource in ["deployments", "services"] {
        assert_eq!(
            request_count(&bed, since, resource, &["get", "patch", "update"]).await,
            0,
            "{resource}"
        );
    }
    // The operator notices a change of the app's own label.
    edit::<Deployment>(
        &bed,
        "agent",
        vec![replace("/metadata/labels/app", "theirs")],
    )
    .await;
    bed.until("web", "has its label again", |deployment: &Deployment| {
        deployment.labels()["app"] == "web"
    })
    .await;
}

/// Restarts the proxy's count at each dry run: the second request after the dry run that changes the child is the
/// apply.
fn cut_the_apply_after_a_dry_run(proxy: &Proxy) -> Injection {
    let left = Arc::new(AtomicUsize::new(0));
    let armed = Arc::clone(&left);
    let arm = move |_| {
        armed.store(2, Ordering::SeqCst);
        std::future::ready(Then::GoOn)
    };
    proxy.inject(
        Match::verb(Verb::Create)
            .resource("deployments")
            .name("web"),
        Times::First(1),
        Fault::hook(Point::AfterApplied, arm),
    );
    let cut = move |_| {
        let is_last = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        }) == Ok(1);
        std::future::ready(if is_last { Then::Cut } else { Then::GoOn })
    };
    proxy.inject(
        Match::verb(Verb::Patch).resource("deployments").name("web"),
        Times::Always,
        Fault::hook(Point::Before, cut),
    )
}

/// Without its labels no watch shows the Service again, so only this reconcile can notice the second change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn port_that_changes_while_labels_are_restored_is_corrected() {
    let bed = Bed::shared("race").await;
    let (proxy, file) = bed.through_proxy().await;
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    let spec = json!({ "size": 0, "image": "nginx:1.7.9", "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] });
    app(&bed, "web", spec).await;
    ready(&bed, "web").await;
    let before = both(&bed).await;
    let (services, changed) = (bed.api::<Service>(), Arc::new(AtomicUsize::new(0)));
    let change = move |request: ApiRequest| {
        let (services, changed) = (services.clone(), Arc::clone(&changed));
        async move {
            if request.query.contains("force=true") && changed.fetch_add(1, Ordering::SeqCst) == 0 {
                let by = PatchParams {
                    field_manager: Some("kubectl-patch".into()),
                    ..PatchParams::default()
                };
                let operations =
                    serde_json::from_value(json!([replace("/spec/ports/0/port", 81)])).unwrap();
                services
                    .patch("web", &by, &Patch::<()>::Json(operations))
                    .await
                    .unwrap();
            }
            Then::GoOn
        }
    };
    let patches = Match::verb(Verb::Patch).resource("services").name("web");
    let injection = proxy.inject(patches, Times::Always, Fault::hook(Point::Before, change));
    edit::<Service>(&bed, "kubectl-label", vec![remove("/metadata/labels")]).await;
    injection.wait_for_hits(2, SOON).await.unwrap();
    restored(&bed, &before).await;
    ready(&bed, "web").await;
}

/// The apply right after the transfer of fields from another manager fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_taken_from_others_are_reported_although_an_apply_failed() {
    let bed = Bed::shared("cut").await;
    let (proxy, file) = bed.through_proxy().await;
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    let mut spec = json!({ "size": 0, "image": "i" });
    app(&bed, "web", spec.clone()).await;
    ready(&bed, "web").await;
    let limits = json!({ "limits": { "cpu": "50m" }, "requests": { "cpu": "50m" } });
    edit::<Deployment>(
        &bed,
        "vertical-scaler",
        vec![add(&format!("{CONTAINER}/resources"), limits)],
    )
    .await;
    reconciled(&bed, "web").await;
    let patches = cut_the_apply_after_a_dry_run(&proxy);
    spec["resources"] = json!({ "requests": { "cpu": "100m" } });
    respec(&bed, "web", spec).await;
    ready(&bed, "web").await;
    patches.wait_for_hits(4, SOON).await.unwrap();
    let now = json!(
        deployment(&bed, "web")
            .await
            .spec
            .unwrap()
            .template
            .spec
            .unwrap()
            .containers[0]
            .resources
    );
    assert_eq!(now, json!({ "requests": { "cpu": "100m" } }));
    let message = bed.event("web", "DriftCorrected").await;
    assert!(
        message.contains("resources.limits of ") && message.contains("vertical-scaler"),
        "{message}"
    );
}

/// An answer to the dry run that says nothing about the object, such as an admission webhook's, does not prove that
/// others are at fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_managers_lose_nothing_when_the_dry_run_proves_nothing() {
    let bed = Bed::shared("unproved").await;
    let (proxy, file) = bed.through_proxy().await;
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    let mut spec = json!({ "size": 0, "image": "i" });
    app(&bed, "web", spec.clone()).await;
    ready(&bed, "web").await;
    let resources = json!({ "limits": { "cpu": "50m" }, "requests": { "cpu": "50m" } });
    edit::<Deployment>(
        &bed,
        "vertical-scaler",
        vec![add(&format!("{CONTAINER}/resources"), resources.clone())],
    )
    .await;
    reconciled(&bed, "web").await;
    let dry_run = Match::verb(Verb::Create)
        .resource("deployments")
        .name("web");
    proxy.inject(
        dry_run,
        Times::Always,
        Fault::status(StatusCode::BAD_REQUEST),
    );
    spec["resources"] = json!({ "requests": { "cpu": "100m" } });
    respec(&bed, "web", spec).await;
    not_ready(&bed, "web", "WriteRejected").await;
    let now = json!(
        deployment(&bed, "web")
            .await
            .spec
            .unwrap()
            .template
            .spec
            .unwrap()
            .containers[0]
            .resources
    );
    assert_eq!(now, resources);
    assert!(bed.events("web", "DriftCorrected").await.is_empty());
}

/// The dry run of the Service alone does not meet the node port that the Service itself holds.
#[tokio::test]
async fn port_with_a_fixed_node_port_is_restored() {
    let bed = Bed::shared("pinned").await;
    let _operator = Operator::start(&bed, Settings::default().flag("--drift-window=1ms")).await;
    let mut spec = json!({ "size": 0, "image": "i", "ports": [{ "port": 80 }] });
    app(&bed, "web", spec.clone()).await;
    ready(&bed, "web").await;
    let allocated = service(&bed, "web").await.spec.unwrap().ports.unwrap()[0]
        .node_port
        .unwrap();
    spec["ports"][0]["nodePort"] = json!(allocated);
    respec(&bed, "web", spec).await;
    ready(&bed, "web").await;
    let before = both(&bed).await;
    let port = vec![
        replace("/spec/ports/0/port", 8080),
        replace("/spec/ports/0/targetPort", 8080),
    ];
    edit::<Service>(&bed, "porter", port).await;
    restored(&bed, &before).await;
    ready(&bed, "web").await;
    assert!(bed.events("web", "NodePortTaken").await.is_empty());
}

/// The corrections of a deleted Deployment say nothing about the next one.
#[tokio::test]
async fn contest_does_not_outlive_its_child() {
    let bed = Bed::shared("outlived").await;
    let flags = ["--drift-backoff-min=20m", "--drift-backoff-max=30m"];
    let settings = flags
        .iter()
        .fold(Settings::default(), |settings, flag| settings.flag(flag));
    let _operator = Operator::start(&bed, settings).await;
    app(&bed, "web", json!({ "size": 0, "image": "i" })).await;
    ready(&bed, "web").await;
    let sized = |deployment: &Deployment| deployment.spec.as_ref().unwrap().replicas == Some(0);
    for replicas in [2, 3, 4] {
        scale(&bed, "their-autoscaler", replicas).await;
        bed.until("web", "has its size again", sized).await;
    }
    not_ready(&bed, "web", "DriftContested").await;
    // The next correction is not due for 20 minutes.
    scale(&bed, "their-autoscaler", 5).await;
    let is_reported = |app: &AppService| app.status.as_ref().unwrap().replicas == Some(5);
    bed.until("web", "the drift is reported", is_reported).await;
    assert!(!sized(&deployment(&bed, "web").await), "corrected at once");
    bed.delete::<Deployment>("web").await;
    ready(&bed, "web").await;
    scale(&bed, "their-autoscaler", 5).await;
    bed.until("web", "has its size again", sized).await;
}
