//! A user who may edit a namespace may create the operator's resources in it, and thereby reaches no further.

use kube::api::{Patch, PatchParams};
use kube::{CustomResourceExt as _, ResourceExt as _};
use qm_api::{AppService, ConfigMapSync, ContactPoint, MyApp, MyIngress, TrackedField};
use serde_json::json;

use super::{User, allowed, permission, rejection_of};
use crate::support::Bed;

#[tokio::test]
async fn editor_of_a_namespace_uses_resources_only_in_it() {
    let bed = Bed::shared("policy-edit").await;
    let elsewhere = Bed::on(bed.plane.clone(), "elsewhere").await.namespace;
    let secret = json!({ "secretName": "token", "key": "k" });
    let copy = json!({ "sourceNamespace": bed.namespace, "configMapName": "a", "destinationNamespace": bed.namespace,
        "destinationName": "b" });
    let target = json!({ "kind": "Service", "namespace": bed.namespace, "name": "web" });
    let inside = [
        (ConfigMapSync::api_resource(), copy.clone()),
        (
            TrackedField::api_resource(),
            json!({ "target": target, "contactPoint": "none", "field": "targetPort" }),
        ),
        (
            ContactPoint::api_resource(),
            json!({ "type": "Telegram", "telegramSpec": { "chatId": 1 }, "apiToken": secret }),
        ),
        (
            AppService::api_resource(),
            json!({ "size": 0, "image": "a", "ports": [{ "port": 80 }],
            "autoscaling": { "max": 2 }, "resources": { "requests": { "cpu": "1m" } }, "ingress": {} }),
        ),
        (MyApp::api_resource(), json!({ "image": "a" })),
    ];
    for role in ["edit", "admin"] {
        for (kind, spec) in &inside {
            let user =
                User::without_permissions(&bed, &format!("{role}-{}", kind.plural), kind).await;
            user.bind(&bed, "ClusterRole", role, &bed.namespace).await;
            allowed("an editor of the namespace", async || {
                user.try_create(spec).await
            })
            .await;
        }
    }
    // As for a Deployment, these users may set the number of Pods.
    let kind = AppService::api_resource();
    let user = User::without_permissions(&bed, "scaler", &kind).await;
    user.bind(&bed, "ClusterRole", "edit", &bed.namespace).await;
    let app = json!({ "size": 1, "image": "a" });
    allowed("an app is created", async || user.create("web", &app).await).await;
    let three = Patch::Merge(json!({ "spec": { "replicas": 3 } }));
    let scaled = user
        .api
        .patch_scale("web", &PatchParams::default(), &three)
        .await
        .unwrap();
    assert_eq!(scaled.spec.unwrap().replicas, Some(3));

    let user = User::without_permissions(&bed, "jane", &ConfigMapSync::api_resource()).await;
    user.bind(&bed, "ClusterRole", "edit", &bed.namespace).await;
    allowed("inside", async || user.try_create(&copy).await).await;
    let mut from_elsewhere = copy.clone();
    from_elsewhere["sourceNamespace"] = elsewhere.clone().into();
    let rejection = rejection_of(user.try_create(&from_elsewhere).await);
    assert!(
        rejection
            .contains(&permission("get", "configmaps", Some("a"), &elsewhere).missing(&user.name)),
        "{rejection}"
    );
    let mut to_elsewhere = copy;
    to_elsewhere["destinationNamespace"] = elsewhere.clone().into();
    let rejection = rejection_of(user.try_create(&to_elsewhere).await);
    assert!(
        rejection
            .contains(&permission("create", "configmaps", None, &elsewhere).missing(&user.name)),
        "{rejection}"
    );

    // Kubernetes has no permission for load balancers: the permission to create a MyIngress is granted separately.
    // Reading one is another permission.
    let kind = MyIngress::api_resource();
    let load_balancer = json!({ "subnets": ["subnet-0a", "subnet-0b"] });
    for role in ["edit", "admin"] {
        let user = User::without_permissions(&bed, &format!("{role}-alb"), &kind).await;
        user.bind(&bed, "ClusterRole", role, &bed.namespace).await;
        allowed("an editor lists MyIngresses", async || {
            user.api.list(&Default::default()).await
        })
        .await;
        match user.try_create(&load_balancer).await {
            Err(kube::Error::Api(rejection)) => assert!(
                rejection.code == 403 && !rejection.message.contains("Policy"),
                "{rejection:?}"
            ),
            other => panic!("{:?}", other.map(|it| it.name_any())),
        }
    }
    let user = User::without_permissions(&bed, "owner", &kind).await;
    user.bind(
        &bed,
        "ClusterRole",
        "quartermaster-myingress-editor-role",
        &bed.namespace,
    )
    .await;
    allowed(
        "a user with the separate role creates a MyIngress",
        async || user.try_create(&load_balancer).await,
    )
    .await;
}
