//! Permissions that the author of an object needs, kind by kind, permission by permission.

use kube::CustomResourceExt as _;
use kube::api::Api;
use kube::core::ApiResource;
use qm_api::{AppService, ConfigMapSync, ContactPoint, MyApp, TrackedField, TrackedFieldSet};
use serde_json::{Value, json};

use super::{
    Permission, User, allowed, cluster_permission, create, permission, rejected, rejection_of,
    without_rules,
};
use crate::support::Bed;

/// An object of one kind, a change of its spec that needs the same permissions, and exactly these permissions.
struct Case {
    kind: ApiResource,
    spec: Value,
    change: Value,
    permissions: Vec<Permission>,
    /// Reason and fix at the end of each rejection: one for all, or one for each permission.
    because: &'static [&'static str],
}

/// On create and on a change of the spec, the object is accepted with all of the permissions. Without one of them, the
/// object is rejected with a message that names the permission.
async fn assert_each_permission_is_needed(bed: &Bed, name: &str, case: Case) {
    let all = User::new(bed, &format!("{name}-all"), &case.kind, &case.permissions).await;
    allowed("a user with all permissions creates it", async || {
        all.try_create(&case.spec).await
    })
    .await;
    allowed("a user with all permissions creates it", async || {
        all.create(name, &case.spec).await
    })
    .await;
    for (index, missing) in case.permissions.iter().enumerate() {
        let mut others = case.permissions.clone();
        others.remove(index);
        let user = User::new(bed, &format!("{name}-{index}"), &case.kind, &others).await;
        let expected = missing.missing(&user.name);
        let because = case
            .because
            .get(index)
            .unwrap_or_else(|| case.because.last().unwrap());
        let rejection = rejected(&expected, async || user.try_create(&case.spec).await).await;
        assert!(
            rejection.ends_with(&format!("{expected}{because}")),
            "{rejection}"
        );
        let rejection = rejected(&expected, async || {
            user.patch(name, json!({ "spec": case.change })).await
        })
        .await;
        assert!(
            rejection.ends_with(&format!("{expected}{because}")),
            "{rejection}"
        );
    }
    all.patch(name, json!({ "spec": case.change }))
        .await
        .unwrap();
}

/// Creates another namespace.
async fn another(bed: &Bed, name: &str) -> String {
    Bed::on(bed.plane.clone(), name).await.namespace
}

const SOURCE: &str = "a ConfigMapSync copies only what its author may read. Ask for that permission, or name another source";
const DESTINATION: &str = "a ConfigMapSync writes only where its author may: in the one namespace that it names, in every namespace if it \
    names several or selects them. Ask for that permission, or name another destination";

#[tokio::test]
async fn config_map_sync_needs_permissions_of_its_author() {
    let bed = Bed::shared("policy-sync").await;
    let (from, to) = (another(&bed, "from").await, another(&bed, "to").await);
    let spec =
        json!({ "sourceNamespace": from, "configMapName": "settings", "destinationNamespace": to });
    let named = |copy| {
        vec![
            permission("get", "configmaps", Some("settings"), &from),
            permission("create", "configmaps", None, &to),
            permission("patch", "configmaps", Some(copy), &to),
            permission("delete", "configmaps", Some(copy), &to),
        ]
    };
    let selected = vec![
        permission("get", "configmaps", Some("settings"), &from),
        cluster_permission("create", "configmaps", None),
        cluster_permission("patch", "configmaps", Some("settings")),
        cluster_permission("delete", "configmaps", Some("settings")),
    ];
    let with = |more: Value| {
        let mut spec = spec.clone();
        spec.as_object_mut().unwrap().remove("destinationNamespace");
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        spec
    };
    let cases = [
        ("one", spec.clone(), named("settings")),
        (
            "renamed",
            with(json!({ "destinationNamespace": to, "destinationName": "copy" })),
            named("copy"),
        ),
        (
            "a-list-of-one",
            with(json!({ "destinationNamespaces": [to] })),
            named("settings"),
        ),
        (
            "go",
            with(json!({ "destinationNamespace": "", "destinationNamespaces": [to] })),
            named("settings"),
        ),
        (
            "several",
            with(json!({ "destinationNamespaces": [to, bed.namespace] })),
            selected.clone(),
        ),
        (
            "selector",
            with(json!({ "destinationNamespaceSelector": { "matchLabels": { "no": "one" } } })),
            selected,
        ),
    ];
    for (name, spec, permissions) in cases {
        let change = json!({ "copyLabels": true });
        let because: &[&str] = &[SOURCE, DESTINATION];
        assert_each_permission_is_needed(
            &bed,
            name,
            Case {
                kind: ConfigMapSync::api_resource(),
                spec,
                change,
                permissions,
                because,
            },
        )
        .await;
    }

    // The permissions depend on the new spec.
    let user = User::new(
        &bed,
        "mover",
        &ConfigMapSync::api_resource(),
        &named("settings"),
    )
    .await;
    allowed("created", async || user.create("moved", &spec).await).await;
    for (change, missing) in [
        (
            json!({ "sourceNamespace": to, "destinationNamespace": from }),
            permission("get", "configmaps", Some("settings"), &to),
        ),
        (
            json!({ "configMapName": "other" }),
            permission("get", "configmaps", Some("other"), &from),
        ),
        (
            json!({ "destinationNamespace": bed.namespace }),
            permission("create", "configmaps", None, &bed.namespace),
        ),
        (
            json!({ "destinationName": "other" }),
            permission("patch", "configmaps", Some("other"), &to),
        ),
        (
            json!({ "destinationNamespace": null, "destinationNamespaceSelector": {} }),
            cluster_permission("create", "configmaps", None),
        ),
    ] {
        let expected = missing.missing(&user.name);
        rejected(&expected, async || {
            user.patch("moved", json!({ "spec": change })).await
        })
        .await;
    }
}

#[tokio::test]
async fn tracked_field_needs_permissions_of_its_author() {
    let bed = Bed::shared("policy-field").await;
    let elsewhere = another(&bed, "elsewhere").await;
    let other = |kind: &str, api_version: &str, resource: &str| json!({ "kind": kind, "apiVersion": api_version, "resource": resource });
    let cases = [
        (
            "deployment",
            json!({ "kind": "Deployment" }),
            "deployments.apps",
            true,
        ),
        (
            "statefulset",
            json!({ "kind": "StatefulSet" }),
            "statefulsets.apps",
            true,
        ),
        ("service", json!({ "kind": "Service" }), "services", true),
        (
            "cronjob",
            json!({ "kind": "CronJob" }),
            "cronjobs.batch",
            true,
        ),
        (
            "ingress",
            json!({ "kind": "Ingress" }),
            "ingresses.networking.k8s.io",
            true,
        ),
        (
            "networkpolicy",
            other("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
            "networkpolicies.networking.k8s.io",
            true,
        ),
        (
            "configmap",
            other("ConfigMap", "v1", "configmaps"),
            "configmaps",
            true,
        ),
        ("node", other("Node", "v1", "nodes"), "nodes", false),
        // Other fields take precedence over the known kinds.
        (
            "other",
            other("Deployment", "example.com/v1", "deployments"),
            "deployments.example.com",
            true,
        ),
    ];
    for (name, mut target, resource, namespaced) in cases {
        target["name"] = "web".into();
        let permission = if namespaced {
            permission("get", resource, Some("web"), &elsewhere)
        } else {
            cluster_permission("get", resource, Some("web"))
        };
        if namespaced {
            target["namespace"] = elsewhere.clone().into();
        }
        let case = Case {
            kind: TrackedField::api_resource(),
            spec: json!({ "target": target, "contactPoint": "none", "field": "{.spec}" }),
            change: json!({ "historyLimit": 7 }),
            permissions: vec![permission],
            because: &[
                "a TrackedField reports only what its author may read. Ask for that permission, or name another target",
            ],
        };
        assert_each_permission_is_needed(&bed, name, case).await;
    }
}

#[tokio::test]
async fn contact_point_needs_permissions_of_its_author() {
    let bed = Bed::shared("policy-point").await;
    let secret = |name| permission("get", "secrets", Some(name), &bed.namespace);
    let key = |name| json!({ "secretName": name, "key": "k" });
    let because: &[&str] = &[
        "a ContactPoint sends only what its author may read, and looks for it in this namespace first. Ask for \
        that permission, or name another Secret",
    ];
    let telegram = Case {
        kind: ContactPoint::api_resource(),
        spec: json!({ "type": "Telegram", "telegramSpec": { "chatId": 1 }, "apiToken": key("token") }),
        change: json!({ "telegramSpec": { "chatId": 2 } }),
        permissions: vec![secret("token")],
        because,
    };
    assert_each_permission_is_needed(&bed, "telegram", telegram).await;
    let webhook = json!({
        "headerName": "X-Token",
        "urlFrom": key("url"),
        "signingKey": key("signing"),
        "tls": { "secretName": "tls" },
    });
    let webhook = Case {
        kind: ContactPoint::api_resource(),
        spec: json!({ "type": "Webhook", "webhookSpec": webhook, "apiToken": key("token") }),
        change: json!({ "webhookSpec": { "timeoutSeconds": 7 } }),
        permissions: ["token", "url", "signing", "tls"].map(secret).to_vec(),
        because,
    };
    assert_each_permission_is_needed(&bed, "webhook", webhook).await;

    // A contact point without Secret needs no permission; anybody may choose its receiver.
    let user = User::new(&bed, "nobody", &ContactPoint::api_resource(), &[]).await;
    let open = json!({ "type": "Webhook", "webhookSpec": { "url": "http://127.0.0.1:1/" } });
    allowed("a contact point without a Secret is created", async || {
        user.create("open", &open).await
    })
    .await;
    user.patch(
        "open",
        json!({ "spec": { "webhookSpec": { "url": "http://127.0.0.1:2/" } } }),
    )
    .await
    .unwrap();
    let token =
        json!({ "spec": { "apiToken": key("token"), "webhookSpec": { "headerName": "X-Token" } } });
    rejected(&secret("token").missing(&user.name), async || {
        user.patch("open", token.clone()).await
    })
    .await;
}

const MAKES: &str =
    "an AppService creates only what its author may create. Ask for that permission";

#[tokio::test]
async fn app_needs_permissions_of_its_author() {
    let bed = Bed::shared("policy-app").await;
    let make = |resource| permission("create", resource, None, &bed.namespace);
    let plain = json!({ "size": 1, "image": "nginx", "ports": [{ "port": 80 }] });
    let mut more = plain.clone();
    more["autoscaling"] = json!({ "max": 3 });
    more["resources"] = json!({ "requests": { "cpu": "100m" } });
    more["ingress"] = json!({ "host": "a.example.com" });
    let permissions = [
        "deployments.apps",
        "services",
        "horizontalpodautoscalers.autoscaling",
        "ingresses.networking.k8s.io",
    ]
    .map(make);
    let image = json!({ "image": "other" });
    let sidecar = json!({ "spec": { "containers": [{ "name": "logs", "image": "logs" }] } });
    for (name, spec, change, count) in [
        ("plain", plain.clone(), image.clone(), 2),
        ("overridden", plain, json!({ "podOverrides": sidecar }), 2),
        ("more", more, image, 4),
    ] {
        let case = Case {
            kind: AppService::api_resource(),
            spec,
            change,
            permissions: permissions[..count].to_vec(),
            because: &[
                MAKES,
                MAKES,
                "an AppService creates only what its author may create. Ask for that permission, or leave autoscaling out",
                "an AppService creates only what its author may create. Ask for that permission, or leave ingress out",
            ],
        };
        assert_each_permission_is_needed(&bed, name, case).await;
    }
    let case = Case {
        kind: MyApp::api_resource(),
        spec: json!({ "image": "nginx" }),
        change: json!({ "banner": "hello" }),
        permissions: vec![make("pods")],
        because: &["a MyApp creates only what its author may create. Ask for that permission"],
    };
    assert_each_permission_is_needed(&bed, "pod", case).await;
}

/// If the CRD has lost its rules, an object can name a kind without its resource.
#[tokio::test]
async fn unknown_target_needs_all_permissions() {
    let bed = Bed::on_own_plane_with(testbed::Options::apiserver_only(), "policy-unknown").await;
    bed.apply(&without_rules("trackedfields")).await;
    let kind = TrackedField::api_resource();
    let admin = Api::namespaced_with(bed.client.clone(), &bed.namespace, &kind);
    let spec =
        |target: Value| json!({ "target": target, "contactPoint": "none", "field": "{.spec}" });
    let half = spec(
        json!({ "kind": "NetworkPolicy", "namespace": bed.namespace, "name": "a", "apiVersion": "networking.k8s.io/v1" }),
    );
    allowed("the rules are removed", async || {
        create(&admin, &kind, "half", &half).await
    })
    .await;

    let permissions = [
        permission(
            "get",
            "networkpolicies.networking.k8s.io",
            None,
            &bed.namespace,
        ),
        permission("get", "deployments.apps", None, &bed.namespace),
    ];
    let user = User::new(&bed, "nearly-all", &kind, &permissions).await;
    // The operator does the same: the kind is known, although the spec has only some of the other fields.
    let known = spec(
        json!({ "kind": "Deployment", "namespace": bed.namespace, "name": "a", "resource": "networkpolicies" }),
    );
    allowed("a kind that is known", async || {
        user.try_create(&known).await
    })
    .await;
    for target in [
        json!({ "kind": "NetworkPolicy", "namespace": bed.namespace, "name": "a" }),
        json!({ "kind": "NetworkPolicy", "namespace": bed.namespace, "name": "a", "apiVersion": "networking.k8s.io/v1" }),
        json!({ "kind": "deployment", "namespace": bed.namespace, "name": "a", "resource": "deployments" }),
    ] {
        let expected = permission("get", "*.*", Some("a"), &bed.namespace).missing(&user.name);
        let rejection = rejection_of(user.try_create(&spec(target)).await);
        assert!(rejection.contains(&expected), "{rejection}");
    }
}

#[tokio::test]
async fn tracked_field_set_needs_permissions_of_its_author() {
    const CREATES: &str =
        "a TrackedFieldSet creates only what its author may create. Ask for that permission";
    const READS: &str = "a TrackedFieldSet reports only what its author may list and watch. Ask for both permissions, or name \
        other namespaces in spec.target.namespaces.names";
    let bed = Bed::shared("policy-set").await;
    let other = another(&bed, "other").await;
    let create = permission(
        "create",
        "trackedfields.tg.azamaton.ru",
        None,
        &bed.namespace,
    );
    let in_namespace = |resource, namespace: &str| {
        ["list", "watch"].map(|verb| permission(verb, resource, None, namespace))
    };
    let everywhere =
        ["list", "watch"].map(|verb| cluster_permission(verb, "deployments.apps", None));
    let spec = |target: Value| json!({ "target": target, "fields": ["{.spec}"], "template": { "contactPoint": "hook" } });
    let cases = [
        (
            "own",
            json!({ "kind": "Deployment" }),
            in_namespace("deployments.apps", &bed.namespace).to_vec(),
        ),
        (
            "named",
            json!({ "kind": "Service", "namespaces": { "names": [bed.namespace, other] } }),
            [
                in_namespace("services", &bed.namespace),
                in_namespace("services", &other),
            ]
            .concat(),
        ),
        (
            "selected",
            json!({ "kind": "Deployment", "namespaces": { "selector": { "matchLabels": { "a": "b" } } } }),
            everywhere.to_vec(),
        ),
    ];
    for (name, target, read) in cases {
        let permissions = [vec![create.clone()], read].concat();
        let case = Case {
            kind: TrackedFieldSet::api_resource(),
            spec: spec(target),
            change: json!({ "fields": ["{.metadata.labels}"] }),
            because: &[CREATES, READS],
            permissions,
        };
        assert_each_permission_is_needed(&bed, name, case).await;
    }
}
