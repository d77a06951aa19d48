//! Objects that were stored under the original program's CRDs, each breaking a later rule: they can still be read,
//! labelled, suspended and deleted, and their status can be written.

use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Client, CustomResourceExt};
use qm_api::tracked_field::ChangeAction;
use qm_api::{AppService, ConfigMapSync, ContactPoint, MyApp, MyIngress, TrackedField};
use rstest::rstest;
use serde_json::{Value, json};
use testbed::control_plane::{ControlPlane, Options};

use self::old::*;
use super::{create, install};

mod old;
mod operator;

/// The original program has two CRDs of `TrackedField`: with the status subresource, and without.
#[rstest]
#[case(true)]
#[case(false)]
#[tokio::test]
async fn objects_older_than_the_rules_can_be_read_and_changed(#[case] subresource: bool) {
    let plane = ControlPlane::start(Options::apiserver_only())
        .await
        .unwrap();
    let client = plane.client().await.unwrap();
    let points = ContactPoint::api_resource();
    let fields = TrackedField::api_resource();

    install_original(&client, subresource).await;
    let point_status = json!({ "initialized": true, "ready": true });
    let field_status = json!([
        { "time": "2025-02-11T20:44:21Z", "action": "Created", "value": "1" },
        { "time": "2025-02-11T20:51:04Z", "action": "Touched", "value": "3" },
        { "time": "2025-02-11T20:54:04Z", "action": "Deleted" },
    ]);
    let mut old = Vec::new();
    let bare: Option<String> = None;
    for (number, yaml) in [bare]
        .into_iter()
        .chain(contact_points().into_iter().map(Some))
        .enumerate()
    {
        old.push((
            points.clone(),
            format!("cp-{number}"),
            yaml,
            point_status.clone(),
            true,
        ));
    }
    for (number, yaml) in tracked_fields().into_iter().enumerate() {
        old.push((
            fields.clone(),
            format!("tf-{number}"),
            Some(yaml),
            field_status.clone(),
            subresource,
        ));
    }
    let services = AppService::api_resource();
    let app_status = json!({ "replicas": 1, "observedGeneration": 1, "conditions": [
        { "type": "Available", "status": "True", "lastUpdateTime": "2023-11-01T06:53:38Z" },
    ] });
    let bare: Option<String> = None;
    for (number, yaml) in [bare]
        .into_iter()
        .chain(app_services().into_iter().map(Some))
        .enumerate()
    {
        old.push((
            services.clone(),
            format!("app-{number}"),
            yaml,
            app_status.clone(),
            true,
        ));
    }
    let good = "{size: 1, image: i}";
    old.push((
        services.clone(),
        "no.label".into(),
        Some(good.into()),
        app_status.clone(),
        true,
    ));
    let syncs = ConfigMapSync::api_resource();
    let sync_status = json!({ "lastSyncTime": "2025-02-11T20:44:21Z" });
    let bare: Option<String> = None;
    for (number, yaml) in [bare]
        .into_iter()
        .chain(config_map_syncs().into_iter().map(Some))
        .enumerate()
    {
        old.push((
            syncs.clone(),
            format!("sync-{number}"),
            yaml,
            sync_status.clone(),
            true,
        ));
    }
    let (apps, none) = (MyApp::api_resource(), Value::Null);
    old.push((apps.clone(), "ma-bare".into(), None, none.clone(), false));
    for (name, yaml) in my_apps() {
        old.push((apps.clone(), name, Some(yaml), none.clone(), false));
    }
    let ingresses = MyIngress::api_resource();
    let alb_status =
        json!({ "alb": { "dns": "a.elb.amazonaws.com", "arn": "arn:aws:elasticloadbalancing:a" } });
    old.push((
        ingresses.clone(),
        "mi-bare".into(),
        None,
        alb_status.clone(),
        true,
    ));
    for (name, yaml) in my_ingresses() {
        old.push((
            ingresses.clone(),
            name,
            Some(yaml),
            alb_status.clone(),
            true,
        ));
    }
    for (kind, name, yaml, status, by_subresource) in &old {
        store(
            &client,
            kind,
            name,
            yaml.as_deref(),
            status,
            *by_subresource,
        )
        .await;
    }

    install(&plane).await;
    assert_all_readable(&client).await;
    for (kind, name, yaml, status, _) in &old {
        assert_old_object_usable(&client, kind, name, yaml.as_deref(), status).await;
    }
}

/// Asserts that every object can be decoded: a single undecodable one would end the list and the watch of all.
async fn assert_all_readable(client: &Client) {
    let points = Api::<ContactPoint>::all(client.clone())
        .list(&ListParams::default())
        .await
        .unwrap();
    assert_eq!(points.items.len(), contact_points().len() + 1);
    assert!(points.iter().all(|point| {
        point
            .status
            .as_ref()
            .is_some_and(|s| s.initialized && s.ready)
    }));
    let apps = Api::<AppService>::all(client.clone())
        .list(&ListParams::default())
        .await
        .unwrap();
    assert_eq!(apps.items.len(), app_services().len() + 2);
    assert!(apps.iter().all(|app| {
        app.status
            .as_ref()
            .is_some_and(|s| s.condition("Available").is_some())
    }));
    let fields = Api::<TrackedField>::all(client.clone())
        .list(&ListParams::default())
        .await
        .unwrap();
    assert_eq!(fields.items.len(), tracked_fields().len());
    let syncs = Api::<ConfigMapSync>::all(client.clone())
        .list(&ListParams::default())
        .await
        .unwrap();
    assert_eq!(syncs.items.len(), config_map_syncs().len() + 1);
    assert!(syncs.iter().all(|sync| {
        sync.status
            .as_ref()
            .is_some_and(|s| s.last_sync_time.is_some())
    }));
    let apps = Api::<MyApp>::all(client.clone())
        .list(&ListParams::default())
        .await
        .unwrap();
    assert_eq!(apps.items.len(), my_apps().len() + 1);
    let ingresses = Api::<MyIngress>::all(client.clone())
        .list(&ListParams::default())
        .await
        .unwrap();
    assert_eq!(ingresses.items.len(), my_ingresses().len() + 1);
    assert!(ingresses.iter().all(|ingress| {
        ingress
            .status
            .as_ref()
            .is_some_and(|status| status.alb.is_some())
    }));
    for field in fields {
        let history = field.history().unwrap();
        let actions: Vec<_> = history.iter().map(|entry| entry.action).collect();
        assert_eq!(
            actions,
            [
                ChangeAction::Created,
                ChangeAction::Updated,
                ChangeAction::Deleted
            ]
        );
        assert!(
            history
                .iter()
                .all(|entry| entry.id.is_none() && entry.delivery.is_none())
        );
    }
}

async fn assert_old_object_usable(
    client: &Client,
    kind: &ApiResource,
    name: &str,
    yaml: Option<&str>,
    status: &Value,
) {
    let spec: Option<Value> = yaml.map(|yaml| serde_saphyr::from_str(yaml).unwrap());
    // If the name is the problem, the copy gets an equally bad name.
    let again = if name.len() > 28 || name.contains('.') || name == "internal" {
        format!("{name}-again")
    } else {
        "again".into()
    };
    let today = create(client, kind, &again, spec.as_ref(), true).await;
    assert!(
        today.is_err(),
        "{yaml:?} breaks no rule, so it shows nothing"
    );

    let api = Api::<DynamicObject>::namespaced_with(client.clone(), "default", kind);
    let merge = async |patch: Value| {
        let object = api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        object.unwrap_or_else(|error| panic!("{yaml:?}: {error}"))
    };
    let found = api.get(name).await.unwrap();
    let unobserved = qm_core::schema::unobserved_status();
    let has_default = status.is_null() && kind.kind != "TrackedField";
    let kept = if has_default { &unobserved } else { status };
    assert_eq!(&found.data["status"], kept, "{name} kept its status");

    // A status of this version, with fields that the old CRD did not have.
    let present_status = if status.is_array() {
        json!([{ "time": "2026-01-01T00:00:00Z", "action": "Updated", "value": "4", "id": "i", "delivery": "Pending" }])
    } else if kind.kind == "AppService" {
        let ready = json!({ "type": "Ready", "status": "False", "reason": "SpecInvalid", "observedGeneration": 1 });
        json!({ "replicas": 1, "selector": "app=a", "observedGeneration": 1, "conditions": [ready] })
    } else if kind.kind == "ConfigMapSync" || kind.kind == "MyIngress" {
        let mut present_status = status.clone();
        present_status["observedGeneration"] = 1.into();
        present_status
    } else {
        let mut present_status = json!({ "ready": false, "observedGeneration": 1 });
        if status.is_object() {
            present_status["initialized"] = true.into();
        }
        present_status
    };
    let patch = json!({ "status": present_status });
    let patched = api
        .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    assert_eq!(
        patched
            .unwrap_or_else(|error| panic!("{yaml:?}: {error}"))
            .data["status"],
        present_status
    );
    let mut again = api.get(name).await.unwrap();
    again.data["status"] = status.clone();
    if !status.is_array() {
        api.replace_status(name, &PostParams::default(), &again)
            .await
            .unwrap();
    }

    merge(
        json!({ "metadata": { "labels": { "a": "b" }, "annotations": { "quartermaster.dev/requested-at": "now" } } }),
    )
    .await;
    merge(json!({ "metadata": { "finalizers": ["quartermaster.dev/test"] } })).await;
    // An object without a spec has nothing to suspend.
    if spec.is_some() {
        let suspended = merge(json!({ "spec": { "suspend": true } })).await;
        assert_eq!(suspended.data["spec"]["suspend"], true);
    }
    api.delete(name, &DeleteParams::default()).await.unwrap();
    merge(json!({ "metadata": { "finalizers": null } })).await;
    assert!(api.get_opt(name).await.unwrap().is_none());
}

/// A rule over several fields applies again once a field that it names is changed, even to another wrong value.
#[tokio::test]
async fn changed_field_has_to_satisfy_the_rules() {
    let plane = ControlPlane::start(Options::apiserver_only())
        .await
        .unwrap();
    let client = plane.client().await.unwrap();
    install_original(&client, true).await;
    let chat = "{type: Telegram, apiToken: {secretName: s, key: k}, telegramSpec: {chatId: 0}}";
    store(
        &client,
        &ContactPoint::api_resource(),
        "chat",
        Some(chat),
        &json!({}),
        false,
    )
    .await;
    let target =
        "{contactPoint: cp, field: replicas, target: {kind: ReplicaSet, namespace: a, name: b}}";
    store(
        &client,
        &TrackedField::api_resource(),
        "target",
        Some(target),
        &json!([]),
        false,
    )
    .await;
    install(&plane).await;

    let points = Api::<DynamicObject>::namespaced_with(
        client.clone(),
        "default",
        &ContactPoint::api_resource(),
    );
    let fields = Api::<DynamicObject>::namespaced_with(
        client.clone(),
        "default",
        &TrackedField::api_resource(),
    );
    for (api, name, patch, expected) in [
        (
            &points,
            "chat",
            json!({ "telegramSpec": null }),
            "type: Telegram needs a chat",
        ),
        (
            &points,
            "chat",
            json!({ "type": "Webhook" }),
            "type: Webhook needs an endpoint",
        ),
        (
            &points,
            "chat",
            json!({ "webhookSpec": { "url": "https://h" } }),
            "type: Telegram takes no webhookSpec",
        ),
        (
            &points,
            "chat",
            json!({ "apiToken": null }),
            "type: Telegram needs the bot's token",
        ),
        (
            &points,
            "chat",
            json!({ "telegramSpec": { "chatId": 7 } }),
            "",
        ),
        (
            &fields,
            "target",
            json!({ "target": { "kind": "NetworkPolicy" } }),
            "needs apiVersion and resource",
        ),
        (
            &fields,
            "target",
            json!({ "target": { "apiVersion": "apps/v1" } }),
            "needs apiVersion and resource",
        ),
        (&fields, "target", json!({ "target": { "name": "c" } }), ""),
        (
            &fields,
            "target",
            json!({ "target": { "apiVersion": "apps/v1", "resource": "replicasets" } }),
            "",
        ),
    ] {
        let patched = api
            .patch(
                name,
                &PatchParams::default(),
                &Patch::Merge(json!({ "spec": patch })),
            )
            .await;
        match patched {
            Ok(_) => assert!(expected.is_empty(), "{patch} is accepted"),
            Err(error) => assert!(
                !expected.is_empty() && error.to_string().contains(expected),
                "{patch}: {error}"
            ),
        }
    }
}
