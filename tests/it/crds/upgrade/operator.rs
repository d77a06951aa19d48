//! The operator starts with all objects of [`old`](super::old).

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::{CustomResourceExt, ResourceExt};
use qm_api::tracked_field::{ChangeAction, Delivery};
use qm_api::{AppService, ConfigMapSync, ContactPoint, MyApp, MyIngress, TrackedField};
use serde_json::{Value, json};
use testbed::control_plane::{ControlPlane, Options};
use testbed::receiver::Receiver;

use super::old::*;
use crate::crds::install;
use crate::support::{Bed, Operator, Plane, SOON, Settings, changes};

/// The operator sees all old objects together: each object that cannot work reports why, sent entries are not sent
/// again, and after that report nothing more is written.
#[tokio::test]
async fn operator_accepts_old_objects_unchanged() {
    let plane = Arc::new(
        ControlPlane::start(Options::apiserver_only())
            .await
            .unwrap(),
    );
    let client = plane.client().await.unwrap();
    install_original(&client, false).await;
    let receiver = Receiver::start().unwrap();
    let original_status = json!([
        { "time": "2025-02-11T20:44:21Z", "action": "Created", "value": "1" },
        { "time": "2025-02-11T20:51:04Z", "action": "Touched", "value": "3" },
    ]);
    let well = json!({ "initialized": true, "ready": true });
    let (points, fields) = (ContactPoint::api_resource(), TrackedField::api_resource());
    let odd_points = contact_points();
    for (number, yaml) in odd_points.iter().enumerate() {
        store(
            &client,
            &points,
            &format!("cp-{number}"),
            Some(yaml),
            &json!({}),
            false,
        )
        .await;
    }
    store(&client, &points, "bare", None, &well, true).await;
    let hook = format!(
        "{{type: Webhook, apiToken: {{secretName: s, key: k}}, webhookSpec: {{url: '{}', headerName: X-A}}}}",
        receiver.url()
    );
    store(&client, &points, "good", Some(&hook), &well, true).await;
    let odd_fields = tracked_fields();
    for (number, yaml) in odd_fields.iter().enumerate() {
        store(
            &client,
            &fields,
            &format!("tf-{number}"),
            Some(yaml),
            &original_status,
            false,
        )
        .await;
    }
    let good = "{contactPoint: good, field: replicas, target: {kind: Deployment, namespace: default, name: web}}";
    store(
        &client,
        &fields,
        "good",
        Some(good),
        &original_status,
        false,
    )
    .await;
    let services = AppService::api_resource();
    let mut odd_services = app_services();
    // Kubernetes itself rejects every other write of an object with a negative scale: no status, no label.
    odd_services.push("{size: -1, image: i}".into());
    for (number, yaml) in odd_services.iter().enumerate() {
        store(
            &client,
            &services,
            &format!("app-{number}"),
            Some(yaml),
            &json!({}),
            false,
        )
        .await;
    }
    store(
        &client,
        &services,
        "no.label",
        Some("{size: 1, image: i}"),
        &json!({}),
        false,
    )
    .await;
    let (syncs, odd_syncs) = (ConfigMapSync::api_resource(), config_map_syncs());
    for (number, yaml) in odd_syncs.iter().enumerate() {
        store(
            &client,
            &syncs,
            &format!("sync-{number}"),
            Some(yaml),
            &json!({}),
            false,
        )
        .await;
    }
    store(&client, &syncs, "bare", None, &json!({}), false).await;
    let (apps, odd_apps) = (MyApp::api_resource(), my_apps());
    store(&client, &apps, "bare", None, &Value::Null, false).await;
    for (name, yaml) in &odd_apps {
        store(&client, &apps, name, Some(yaml), &Value::Null, false).await;
    }
    let (ingresses, odd_ingresses) = (MyIngress::api_resource(), my_ingresses());
    store(&client, &ingresses, "bare", None, &json!({}), false).await;
    for (name, yaml) in &odd_ingresses {
        store(&client, &ingresses, name, Some(yaml), &json!({}), false).await;
    }
    install(&plane).await;
    let role = [
        "create",
        "clusterrole",
        "quartermaster-tracker-role",
        "--verb=get,list,watch",
    ];
    plane
        .run_kubectl(&[&role[..], &["--resource=deployments.apps"]].concat(), "")
        .await
        .unwrap();

    let bed = Bed {
        plane: Plane::Own(Arc::clone(&plane)),
        client,
        namespace: "default".into(),
    };
    bed.create::<Secret>("s", json!({ "stringData": { "k": "token" } }))
        .await;
    bed.deployment("web", 3).await;
    let settings = Settings::default()
        .kubeconfig(plane.admin_kubeconfig())
        .whole_cluster();
    let operator = Operator::start(&bed, settings).await;
    bed.until("good", "is adopted", |point: &ContactPoint| {
        point
            .status
            .as_ref()
            .is_some_and(|status| status.ready && status.observed_generation.is_some())
    })
    .await;
    for number in 0..odd_points.len() {
        bed.until(
            &format!("cp-{number}"),
            "has a condition",
            |point: &ContactPoint| {
                point
                    .status
                    .as_ref()
                    .is_some_and(|status| !status.conditions.is_empty())
            },
        )
        .await;
    }
    bed.not_ready("bare", "SpecInvalid").await;
    let says = |reason: &'static str| {
        move |app: &AppService| {
            let ready = app
                .status
                .as_ref()
                .and_then(|status| status.condition("Ready"));
            ready.is_some_and(|ready| {
                ready.status == "False" && ready.reason.as_deref().unwrap().contains(reason)
            })
        }
    };
    let below_zero = format!("app-{}", odd_services.len() - 1);
    for number in 0..odd_services.len() - 1 {
        bed.until(&format!("app-{number}"), "has a condition", says(""))
            .await;
    }
    bed.until("app-0", "reports how to fix the spec", says("SpecInvalid"))
        .await;
    let message = bed.event(&below_zero, "SpecInvalid").await;
    assert!(
        message.starts_with("spec.size: write a number from 0"),
        "{message}"
    );
    bed.until(
        "no.label",
        "reports how to fix the spec",
        says("SpecInvalid"),
    )
    .await;
    for name in (0..odd_syncs.len())
        .map(|number| format!("sync-{number}"))
        .chain(["bare".into()])
    {
        let says = |sync: &ConfigMapSync| {
            sync.status.as_ref().is_some_and(|status| {
                status
                    .conditions
                    .first()
                    .is_some_and(|condition| condition.reason == "SpecInvalid")
            })
        };
        let sync = bed.until(&name, "reports how to fix the spec", says).await;
        assert!(sync.finalizers().is_empty(), "{name}: nothing to clean up");
    }
    for number in 0..odd_fields.len() {
        let name = format!("tf-{number}");
        let waits = |field: &TrackedField| {
            field
                .annotations()
                .contains_key("quartermaster.dev/waiting")
        };
        let field = bed.until(&name, "reports why it waits", waits).await;
        // A target that was deleted meanwhile causes an entry; nothing else does.
        let history = field.history().unwrap();
        let new: Vec<_> = history.iter().skip(2).map(|entry| entry.action).collect();
        assert!(
            new.is_empty() || new == [ChangeAction::Deleted],
            "{name}: {history:?}"
        );
        assert!(
            history[..2].iter().all(|entry| entry.id.is_none()),
            "{name}: {history:?}"
        );
    }
    let last = format!("tf-{}", odd_fields.len() - 1);
    bed.waiting(&last, "FieldNotFound").await;
    bed.event(&last, "FieldNotFound").await;
    let field: TrackedField = bed.api().get(&last).await.unwrap();
    assert_eq!(
        field.history().unwrap().len(),
        2,
        "a field that cannot exist records nothing"
    );
    for name in odd_apps
        .iter()
        .map(|(name, _)| name.as_str())
        .chain(["bare"])
    {
        let app = bed
            .until(name, "reports why", |app: &MyApp| {
                app.status
                    .as_ref()
                    .is_some_and(|status| !status.conditions.is_empty())
            })
            .await;
        let reason = &app.status.unwrap().conditions[0].reason;
        // The kubelet reports an image that cannot be pulled; here admission rejects every Pod.
        let expected = match name {
            "bare" | "ma-0" | "ma-1" | "ma-2" => "ImageMissing",
            "ma-3" | "ma-4" => "Forbidden",
            _ => "SpecInvalid",
        };
        assert_eq!(reason, expected, "{name}");
    }
    for name in odd_ingresses
        .iter()
        .map(|(name, _)| name.as_str())
        .chain(["bare"])
    {
        let says = |ingress: &MyIngress| {
            let conditions = ingress
                .status
                .as_ref()
                .map(|status| &*status.conditions)
                .unwrap_or_default();
            conditions
                .first()
                .is_some_and(|condition| condition.reason == "SpecInvalid")
        };
        let ingress = bed.until(name, "reports how to fix the spec", says).await;
        assert!(
            ingress.finalizers().is_empty(),
            "{name}: nothing to clean up"
        );
    }
    // Entries that the original program sent are not sent again; changes that it missed are sent.
    bed.scale("web", 4).await;
    bed.until("good", "continues", |field: &TrackedField| {
        let history = field.history().unwrap();
        let sent: Vec<_> = history
            .iter()
            .filter_map(|entry| entry.value.as_deref())
            .collect();
        let last = history.last();
        sent == ["1", "3", "4"]
            && last.is_some_and(|last| last.delivery == Some(Delivery::Delivered))
    })
    .await;
    receiver
        .wait_for(SOON, |_| !changes(&receiver).is_empty())
        .await
        .unwrap();
    let sent: Vec<_> = changes(&receiver)
        .iter()
        .map(|change| change["value"].clone())
        .collect();
    assert_eq!(
        (sent, receiver.requests().len()),
        (vec![json!("4")], 1),
        "no test message, no repetition"
    );

    let since = plane.audit().mark().await.unwrap();
    bed.delete::<AppService>(&below_zero).await;
    bed.webhook("marker", &receiver.url()).await;
    bed.ready("marker").await;
    let mut writes = plane.audit().writes(since).await.unwrap();
    writes.retain(|subject, _| {
        matches!(
            &*subject.group,
            "tg.azamaton.ru" | "kosmos.io" | "apps.bixbite.io" | "demo.rtfm.co.ua"
        ) && subject.verb != "delete"
            && subject.name != "marker"
    });
    assert!(writes.is_empty(), "{writes:?}");
    assert!(!operator.logs().contains("panicked"));
}
