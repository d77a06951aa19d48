//! Changes that need no permission: all except changes of the spec, so that an object never locks out its users.

use kube::CustomResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::core::ApiResource;
use qm_api::{AppService, ConfigMapSync, ContactPoint, MyApp, TrackedField};
use serde_json::{Value, json};
use testbed::wait::until;

use super::{User, allowed, create, permission, rejected, rejection_of, without_rules};
use crate::support::{Bed, SOON};

/// Returns an object of each kind that needs many permissions, and a change of its spec.
fn objects() -> Vec<(ApiResource, Value, Value)> {
    let target = json!({ "kind": "Deployment", "namespace": "else", "name": "web" });
    vec![
        (
            ConfigMapSync::api_resource(),
            json!({ "sourceNamespace": "else", "configMapName": "a", "destinationNamespace": "where" }),
            json!({ "configMapName": "b" }),
        ),
        (
            TrackedField::api_resource(),
            json!({ "target": target, "contactPoint": "none", "field": "replicas" }),
            json!({ "field": "image" }),
        ),
        (
            ContactPoint::api_resource(),
            json!({ "type": "Telegram", "telegramSpec": { "chatId": 1 }, "apiToken": { "secretName": "s", "key": "k" } }),
            json!({ "telegramSpec": { "chatId": 2 } }),
        ),
        (
            AppService::api_resource(),
            json!({ "size": 1, "image": "a" }),
            json!({ "image": "b" }),
        ),
        (
            MyApp::api_resource(),
            json!({ "image": "a" }),
            json!({ "image": "b" }),
        ),
    ]
}

/// Labels an object, adds a finalizer, writes its status, deletes it, changes the Terminating object, and removes the
/// finalizer.
async fn assert_not_locked(user: &User, name: &str, change: &Value) {
    user.patch(
        name,
        json!({ "metadata": { "labels": { "team": "shop" } } }),
    )
    .await
    .unwrap();
    user.patch(
        name,
        json!({ "metadata": { "annotations": { "quartermaster.dev/requested-at": "now" } } }),
    )
    .await
    .unwrap();
    user.patch(
        name,
        json!({ "metadata": { "finalizers": ["example.com/held"] } }),
    )
    .await
    .unwrap();
    let status = match user.kind.kind.as_str() {
        "TrackedField" => {
            json!([{ "time": "2026-01-01T00:00:00Z", "action": "Created", "value": "1" }])
        }
        "ContactPoint" => json!({ "initialized": true, "ready": false }),
        _ => json!({ "observedGeneration": 7 }),
    };
    let patch = Patch::Merge(json!({ "status": status }));
    let written = user
        .api
        .patch_status(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    assert!(!written.data["status"].is_null(), "{written:?}");
    rejection_of(user.patch(name, json!({ "spec": change })).await);

    let terminating = user
        .api
        .delete(name, &DeleteParams::default())
        .await
        .unwrap();
    assert!(
        terminating
            .left()
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
    user.patch(
        name,
        json!({ "metadata": { "labels": { "team": null } }, "spec": change }),
    )
    .await
    .unwrap();
    user.patch(name, json!({ "metadata": { "finalizers": null } }))
        .await
        .unwrap();
    assert!(user.api.get_opt(name).await.unwrap().is_none());
}

#[tokio::test]
async fn object_can_be_labelled_and_deleted_without_permissions() {
    let bed = Bed::shared("policy-lasting").await;
    for (kind, spec, change) in objects() {
        let admin = Api::namespaced_with(bed.client.clone(), &bed.namespace, &kind);
        create(&admin, &kind, "it", &spec).await.unwrap();
        let user = User::new(&bed, &kind.plural, &kind, &[]).await;
        let expected = format!("user \"{}\" may not ", user.name);
        rejected(&expected, async || {
            user.patch("it", json!({ "spec": change })).await
        })
        .await;
        // An identical spec is not a change.
        user.patch("it", json!({ "spec": spec })).await.unwrap();
        assert_not_locked(&user, "it", &change).await;
    }
}

#[tokio::test]
async fn lost_permission_does_not_lock_an_object() {
    let bed = Bed::shared("policy-lost").await;
    let read = permission("get", "configmaps", None, &bed.namespace);
    let writes = ["create", "patch", "delete"]
        .map(|verb| permission(verb, "configmaps", None, &bed.namespace));
    let user = User::new(&bed, "jane", &ConfigMapSync::api_resource(), &writes).await;
    user.grant(&bed, "read", &read).await;
    let spec = json!({ "sourceNamespace": bed.namespace, "configMapName": "a", "destinationNamespace": bed.namespace,
        "destinationName": "b" });
    allowed("the object is created", async || {
        user.create("it", &spec).await
    })
    .await;
    user.patch("it", json!({ "spec": { "copyLabels": true } }))
        .await
        .unwrap();

    let role = user.role("read");
    bed.kubectl(&["delete", "role", &role]).await;
    let expected = format!(
        "user \"{}\" may not get configmaps \"a\" in namespace \"{}\"",
        user.name, bed.namespace
    );
    let mut limit = 0;
    rejected(&expected, async || {
        limit += 1;
        user.patch("it", json!({ "spec": { "copyLabels": limit % 2 == 0 } }))
            .await
    })
    .await;
    assert_not_locked(&user, "it", &json!({ "suspend": true })).await;
}

/// Objects that were stored before the policies, some without a spec.
#[tokio::test]
async fn objects_older_than_the_policies_are_not_locked() {
    let bed = Bed::on_own_plane_with(testbed::Options::apiserver_only(), "policy-old").await;
    for (kind, spec, change) in objects() {
        bed.apply(&without_rules(&kind.plural)).await;
        let admin = Api::namespaced_with(bed.client.clone(), &bed.namespace, &kind);
        let bare = kube::api::DynamicObject::new("bare", &kind);
        until("an object without a spec is accepted", SOON, async || {
            Ok(Some(admin.create(&Default::default(), &bare).await?))
        })
        .await
        .unwrap();
        let user = User::new(&bed, &kind.plural, &kind, &[]).await;
        let expected = format!("user \"{}\" may not ", user.name);
        rejected(&expected, async || {
            user.patch("bare", json!({ "spec": spec })).await
        })
        .await;
        assert_not_locked(&user, "bare", &spec).await;
        // Removing the spec is a change as well. Without a spec a contact point names no Secret, and is accepted.
        create(&admin, &kind, "it", &spec).await.unwrap();
        if kind.plural != "contactpoints" {
            rejection_of(user.patch("it", json!({ "spec": null })).await);
        }
        assert_not_locked(&user, "it", &change).await;
    }
}
