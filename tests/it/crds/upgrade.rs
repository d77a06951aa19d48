//! Objects that were stored under the original program's CRDs, each breaking one rule that came later: they can still be
//! read, given a status and labels, suspended, and deleted.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Client, CustomResourceExt, ResourceExt};
use quartermaster::api::tracked_field::{Action, Delivery};
use quartermaster::api::{AppService, ContactPoint, MyApp, TrackedField};
use rstest::rstest;
use serde_json::{Value, json};
use testbed::control_plane::{ControlPlane, Options};
use testbed::receiver::Receiver;

use super::{create, install, wait_until};
use crate::support::{Bed, Operator, Plane, SOON, Settings, changes};

const ORIGINAL: &str = include_str!("original.yaml");

/// Specs in YAML: each was let in by the original CRD, and is refused today.
fn contact_points() -> Vec<String> {
    let long = |n: usize| "a".repeat(n);
    let telegram = |token: &str, more: &str| format!("{{type: Telegram, apiToken: {{{token}}}, {more}}}");
    let webhook = |url: &str, header: &str, more: &str| {
        format!(
            "{{type: Webhook, apiToken: {{secretName: s, key: k}}, webhookSpec: {{url: '{url}', headerName: '{header}'}}, \
             {more}}}"
        )
    };
    let s = "secretName: s, key: k";
    vec![
        format!("{{type: Slack, apiToken: {{{s}}}}}"),
        format!("{{type: {}, apiToken: {{{s}}}}}", long(100)),
        telegram(s, ""),
        telegram(s, "telegramSpec: {chatId: 0}"),
        telegram(s, "telegramSpec: {chatId: 1}, webhookSpec: {url: https://h, headerName: X-A}"),
        telegram("secretName: '', key: ''", "telegramSpec: {chatId: 1}"),
        telegram("secretName: A_B, key: k", "telegramSpec: {chatId: 1}"),
        telegram("secretName: s, key: a b", "telegramSpec: {chatId: 1}"),
        telegram(&format!("secretName: {}, key: {}", long(300), long(300)), "telegramSpec: {chatId: 1}"),
        format!("{{type: Webhook, apiToken: {{{s}}}}}"),
        webhook("", "", ""),
        webhook("https://h", "", ""),
        webhook("https://h", "X-A", "telegramSpec: {chatId: 1}"),
        webhook("ftp://h", "X-A", ""),
        webhook("h", "X-A", ""),
        webhook("https://user:password@h", "X-A", ""),
        webhook("https://h/#part", "X-A", ""),
        webhook(&format!("https://h/{}", long(3000)), "X-A", ""),
        webhook("https://h", "X A", ""),
        webhook("https://h", "Host", ""),
        webhook("https://h", &long(200), ""),
    ]
}

fn tracked_fields() -> Vec<String> {
    let long = |n: usize| "a".repeat(n);
    let all = |point: &str, field: &str, kind: &str, namespace: &str, name: &str| {
        format!(
            "{{contactPoint: '{point}', field: '{field}', \
             target: {{kind: '{kind}', namespace: '{namespace}', name: '{name}'}}}}"
        )
    };
    vec![
        all("Telegram", "replicas", "Deployment", "default", "a"),
        all(&long(300), "replicas", "Deployment", "default", "a"),
        all("cp", "strategy", "Deployment", "default", "a"),
        all("cp", "{range .a}", "Deployment", "default", "a"),
        all("cp", &long(2000), "Deployment", "default", "a"),
        all("cp", "replicas", "Secret", "default", "a"),
        all("cp", "replicas", "secret", "default", "a"),
        all("cp", "replicas", "DaemonSet", "default", "a"),
        all("cp", "replicas", "apps/Deployment", "default", "a"),
        all("cp", "replicas", &long(100), "default", "a"),
        all("cp", "replicas", "Deployment", "", "a"),
        all("cp", "replicas", "Deployment", "Default", "a"),
        all("cp", "replicas", "Deployment", &long(100), "a"),
        all("cp", "replicas", "Deployment", "default", "A"),
        all("cp", "replicas", "Deployment", "default", "a/b"),
        all("cp", "replicas", "Deployment", "default", &long(300)),
    ]
}

/// The program's Service and Deployment would have been refused for most of these; the objects are there all the same.
fn app_services() -> Vec<String> {
    let long = |n: usize| "a".repeat(n);
    let ports = |ports: &str| format!("{{size: 1, image: i, ports: [{ports}]}}");
    let port = |rest: &str| ports(&format!("{{port: 80, {rest}}}"));
    let many = (1..=65).map(|n| format!("{{port: {n}, name: p{n}}}")).collect::<Vec<_>>().join(", ");
    vec![
        "{size: 1, image: ''}".into(),
        "{size: 1, image: 'a b'}".into(),
        format!("{{size: 1, image: {}}}", long(2000)),
        ports("{port: 0}"),
        ports("{port: 65536}"),
        ports(&many),
        ports("{port: 80}, {port: 81}"),
        ports("{port: 80, name: a}, {port: 81, name: a}"),
        ports("{port: 80, name: a}, {port: 80, name: b}"),
        ports("{port: 80, name: a, nodePort: 30000}, {port: 81, name: b, nodePort: 30000}"),
        ports("{port: 53, name: a, targetPort: dns}, {port: 53, name: b, targetPort: dns, protocol: UDP}"),
        port("name: Http"),
        port(&format!("name: {}", long(64))),
        port("targetPort: 5000000000"),
        port("targetPort: Http"),
        port(&format!("targetPort: {}", long(200))),
        port("nodePort: -1"),
        port("protocol: tcp"),
        port(&format!("protocol: {}", long(100))),
        port("appProtocol: a b"),
        port(&format!("appProtocol: {}", long(400))),
    ]
}

/// Names and specs; the original's had no status.
fn my_apps() -> Vec<(String, String)> {
    let banner = |banner: &str| format!("{{image: nginx, banner: \"{banner}\"}}");
    let specs = [
        "{}".into(),
        "{banner: hello}".into(),
        "{image: ''}".into(),
        "{image: a b}".into(),
        format!("{{image: {}}}", "a".repeat(2000)),
        banner(&"a".repeat(130_000)),
        banner(&"\u{e4}".repeat(70_000)),
        banner(r"a\0b"),
    ];
    let numbered = specs.into_iter().enumerate().map(|(number, spec)| (format!("ma-{number}"), spec));
    let named = [("ma.dot".into(), "{image: nginx}".into()), ("a".repeat(64), "{image: nginx}".into())];
    numbered.chain(named).collect()
}

/// Both of the original's CRDs that are about: its `TrackedField` with the status subresource, and without.
#[rstest]
#[case(true)]
#[case(false)]
#[tokio::test]
async fn objects_older_than_the_rules(#[case] subresource: bool) {
    let plane = ControlPlane::start(Options::apiserver_only()).await.unwrap();
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
    for (number, yaml) in [bare].into_iter().chain(contact_points().into_iter().map(Some)).enumerate() {
        old.push((points.clone(), format!("cp-{number}"), yaml, point_status.clone(), true));
    }
    for (number, yaml) in tracked_fields().into_iter().enumerate() {
        old.push((fields.clone(), format!("tf-{number}"), Some(yaml), field_status.clone(), subresource));
    }
    let services = AppService::api_resource();
    let app_status = json!({ "replicas": 1, "observedGeneration": 1, "conditions": [
        { "type": "Available", "status": "True", "lastUpdateTime": "2023-11-01T06:53:38Z" },
    ] });
    let bare: Option<String> = None;
    for (number, yaml) in [bare].into_iter().chain(app_services().into_iter().map(Some)).enumerate() {
        old.push((services.clone(), format!("app-{number}"), yaml, app_status.clone(), true));
    }
    let good = "{size: 1, image: i}";
    old.push((services.clone(), "no.label".into(), Some(good.into()), app_status.clone(), true));
    let (apps, none) = (MyApp::api_resource(), Value::Null);
    old.push((apps.clone(), "ma-bare".into(), None, none.clone(), false));
    for (name, yaml) in my_apps() {
        old.push((apps.clone(), name, Some(yaml), none.clone(), false));
    }
    for (kind, name, yaml, status, by_subresource) in &old {
        store(&client, kind, name, yaml.as_deref(), status, *by_subresource).await;
    }

    install(&plane).await;
    every_one_can_be_read(&client).await;
    for (kind, name, yaml, status, _) in &old {
        old_object_lives_on(&client, kind, name, yaml.as_deref(), status).await;
    }
}

/// The operator meets all of them at once: each that cannot work says why, what it told is not told again, and once that
/// is said nothing more is written.
#[tokio::test]
async fn the_operator_takes_old_objects_as_they_are() {
    let plane = Arc::new(ControlPlane::start(Options::apiserver_only()).await.unwrap());
    let client = plane.client().await.unwrap();
    install_original(&client, false).await;
    let receiver = Receiver::start().unwrap();
    let theirs = json!([
        { "time": "2025-02-11T20:44:21Z", "action": "Created", "value": "1" },
        { "time": "2025-02-11T20:51:04Z", "action": "Touched", "value": "3" },
    ]);
    let well = json!({ "initialized": true, "ready": true });
    let (points, fields) = (ContactPoint::api_resource(), TrackedField::api_resource());
    let odd_points = contact_points();
    for (number, yaml) in odd_points.iter().enumerate() {
        store(&client, &points, &format!("cp-{number}"), Some(yaml), &json!({}), false).await;
    }
    store(&client, &points, "bare", None, &well, true).await;
    let hook = format!(
        "{{type: Webhook, apiToken: {{secretName: s, key: k}}, webhookSpec: {{url: '{}', headerName: X-A}}}}",
        receiver.url()
    );
    store(&client, &points, "good", Some(&hook), &well, true).await;
    let odd_fields = tracked_fields();
    for (number, yaml) in odd_fields.iter().enumerate() {
        store(&client, &fields, &format!("tf-{number}"), Some(yaml), &theirs, false).await;
    }
    let good = "{contactPoint: good, field: replicas, target: {kind: Deployment, namespace: default, name: web}}";
    store(&client, &fields, "good", Some(good), &theirs, false).await;
    let services = AppService::api_resource();
    let mut odd_services = app_services();
    // Kubernetes itself lets nothing else be written of an object with a scale below zero: no status, no label.
    odd_services.push("{size: -1, image: i}".into());
    for (number, yaml) in odd_services.iter().enumerate() {
        store(&client, &services, &format!("app-{number}"), Some(yaml), &json!({}), false).await;
    }
    store(&client, &services, "no.label", Some("{size: 1, image: i}"), &json!({}), false).await;
    let (apps, odd_apps) = (MyApp::api_resource(), my_apps());
    store(&client, &apps, "bare", None, &Value::Null, false).await;
    for (name, yaml) in &odd_apps {
        store(&client, &apps, name, Some(yaml), &Value::Null, false).await;
    }
    install(&plane).await;

    let bed = Bed { plane: Plane::Own(Arc::clone(&plane)), client, namespace: "default".into() };
    bed.create::<Secret>("s", json!({ "stringData": { "k": "token" } })).await;
    bed.deployment("web", 3).await;
    let settings = Settings::default().kubeconfig(plane.admin_kubeconfig()).whole_cluster();
    let operator = Operator::start(&bed, settings).await;
    bed.until("good", "taken over", |point: &ContactPoint| {
        point.status.as_ref().is_some_and(|status| status.ready && status.observed_generation.is_some())
    })
    .await;
    for number in 0..odd_points.len() {
        bed.until(&format!("cp-{number}"), "says how it stands", |point: &ContactPoint| {
            point.status.as_ref().is_some_and(|status| !status.conditions.is_empty())
        })
        .await;
    }
    bed.not_ready("bare", "SpecInvalid").await;
    let says = |reason: &'static str| {
        move |app: &AppService| {
            let ready = app.status.as_ref().and_then(|status| status.condition("Ready"));
            ready.is_some_and(|ready| ready.status == "False" && ready.reason.as_deref().unwrap().contains(reason))
        }
    };
    let below_zero = format!("app-{}", odd_services.len() - 1);
    for number in 0..odd_services.len() - 1 {
        bed.until(&format!("app-{number}"), "says how it stands", says("")).await;
    }
    bed.until("app-0", "says what to write", says("SpecInvalid")).await;
    let words = bed.event(&below_zero, "SpecInvalid").await;
    assert!(words.starts_with("spec.size: write a number from 0"), "{words}");
    bed.until("no.label", "says what to write", says("SpecInvalid")).await;
    for number in 0..odd_fields.len() {
        let name = format!("tf-{number}");
        let waits = |field: &TrackedField| field.annotations().contains_key("quartermaster.dev/waiting");
        let field = bed.until(&name, "says why it waits", waits).await;
        // A target that is gone meanwhile is news; nothing else is.
        let history = field.history().unwrap();
        let new: Vec<_> = history.iter().skip(2).map(|entry| entry.action).collect();
        assert!(new.is_empty() || new == [Action::Deleted], "{name}: {history:?}");
        assert!(history[..2].iter().all(|entry| entry.id.is_none()), "{name}: {history:?}");
    }
    for name in odd_apps.iter().map(|(name, _)| name.as_str()).chain(["bare"]) {
        let app = bed
            .until(name, "says why", |app: &MyApp| {
                app.status.as_ref().is_some_and(|status| !status.conditions.is_empty())
            })
            .await;
        let reason = &app.status.unwrap().conditions[0].reason;
        // An image that cannot be pulled is the kubelet's to tell; here nobody lets a Pod in.
        let wanted = match name {
            "bare" | "ma-0" | "ma-1" | "ma-2" => "ImageMissing",
            "ma-3" | "ma-4" => "PodRefused",
            _ => "SpecInvalid",
        };
        assert_eq!(reason, wanted, "{name}");
    }
    // What the document's program told is not told again; what it missed is.
    bed.scale("web", 4).await;
    bed.until("good", "goes on", |field: &TrackedField| {
        let history = field.history().unwrap();
        let told: Vec<_> = history.iter().filter_map(|entry| entry.value.as_deref()).collect();
        let last = history.last();
        told == ["1", "3", "4"] && last.is_some_and(|last| last.delivery == Some(Delivery::Delivered))
    })
    .await;
    receiver.wait_for(SOON, |_| !changes(&receiver).is_empty()).await.unwrap();
    let told: Vec<_> = changes(&receiver).iter().map(|change| change["value"].clone()).collect();
    assert_eq!((told, receiver.requests().len()), (vec![json!("4")], 1), "no test message, no repetition");

    let since = plane.audit().mark().await.unwrap();
    bed.delete::<AppService>(&below_zero).await;
    bed.webhook("marker", &receiver.url()).await;
    bed.ready("marker").await;
    let mut writes = plane.audit().writes(since).await.unwrap();
    writes.retain(|subject, _| {
        matches!(&*subject.group, "tg.azamaton.ru" | "kosmos.io")
            && subject.verb != "delete"
            && subject.name != "marker"
    });
    assert!(writes.is_empty(), "{writes:?}");
    assert!(!operator.logs().contains("panicked"));
}

/// Installs the original's CRDs and waits until they are served.
async fn install_original(client: &Client, subresource: bool) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for text in ORIGINAL.split("---\n") {
        let mut crd: CustomResourceDefinition = serde_saphyr::from_str(text).unwrap();
        if crd.spec.names.kind == "TrackedField" && !subresource {
            crd.spec.versions[0].subresources = None;
        }
        api.create(&PostParams::default(), &crd).await.unwrap();
        let name = crd.name_any();
        wait_until("the original CRD is served", async || {
            let conditions = api.get(&name).await.unwrap().status.and_then(|s| s.conditions).unwrap_or_default();
            conditions.iter().any(|c| c.type_ == "Established" && c.status == "True")
        })
        .await;
    }
}

async fn store(
    client: &Client,
    kind: &ApiResource,
    name: &str,
    yaml: Option<&str>,
    status: &Value,
    by_subresource: bool,
) {
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), "default", kind);
    let mut object = DynamicObject::new(name, kind);
    object.data = json!({ "status": status });
    if let Some(yaml) = yaml {
        object.data["spec"] = serde_saphyr::from_str(yaml).unwrap();
    }
    // Right after its CRD the apiserver may answer 429 or 404 for a moment.
    wait_until(&format!("{name} is stored"), async || match api.create(&PostParams::default(), &object).await {
        Ok(_) => true,
        Err(kube::Error::Api(said)) if said.code == 429 || said.code == 404 => false,
        Err(said) => panic!("the original CRD refuses {yaml:?}: {said}"),
    })
    .await;
    if by_subresource {
        let patch = json!({ "status": status });
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
}

/// One object that cannot be read would end the list and the watch of all.
async fn every_one_can_be_read(client: &Client) {
    let points = Api::<ContactPoint>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    assert_eq!(points.items.len(), contact_points().len() + 1);
    assert!(points.iter().all(|point| point.status.as_ref().is_some_and(|s| s.initialized && s.ready)));
    let apps = Api::<AppService>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    assert_eq!(apps.items.len(), app_services().len() + 2);
    assert!(apps.iter().all(|app| app.status.as_ref().is_some_and(|s| s.condition("Available").is_some())));
    let fields = Api::<TrackedField>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    assert_eq!(fields.items.len(), tracked_fields().len());
    let apps = Api::<MyApp>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    assert_eq!(apps.items.len(), my_apps().len() + 1);
    for field in fields {
        let history = field.history().unwrap();
        let actions: Vec<_> = history.iter().map(|entry| entry.action).collect();
        assert_eq!(actions, [Action::Created, Action::Updated, Action::Deleted]);
        assert!(history.iter().all(|entry| entry.id.is_none() && entry.delivery.is_none()));
    }
}

async fn old_object_lives_on(client: &Client, kind: &ApiResource, name: &str, yaml: Option<&str>, status: &Value) {
    let spec: Option<Value> = yaml.map(|yaml| serde_saphyr::from_str(yaml).unwrap());
    // As bad a name, where it is the name.
    let again = if name.len() > 63 || name.contains('.') { format!("{name}-again") } else { "again".into() };
    let today = create(client, kind, &again, spec.as_ref(), true).await;
    assert!(today.is_err(), "{yaml:?} breaks no rule, so it shows nothing");

    let api = Api::<DynamicObject>::namespaced_with(client.clone(), "default", kind);
    let merge = async |patch: Value| {
        let object = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        object.unwrap_or_else(|said| panic!("{yaml:?}: {said}"))
    };
    let found = api.get(name).await.unwrap();
    assert_eq!(&found.data["status"], status, "{name} kept its status");

    // A status of ours, with fields that the old CRD did not have.
    let ours = if status.is_array() {
        json!([{ "time": "2026-01-01T00:00:00Z", "action": "Updated", "value": "4", "id": "i", "delivery": "Pending" }])
    } else if kind.kind == "AppService" {
        let ready = json!({ "type": "Ready", "status": "False", "reason": "SpecInvalid", "observedGeneration": 1 });
        json!({ "replicas": 1, "selector": "app=a", "observedGeneration": 1, "conditions": [ready] })
    } else {
        let mut ours = json!({ "ready": false, "observedGeneration": 1 });
        if status.is_object() {
            ours["initialized"] = true.into();
        }
        ours
    };
    let patch = json!({ "status": ours });
    let patched = api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    assert_eq!(patched.unwrap_or_else(|said| panic!("{yaml:?}: {said}")).data["status"], ours);
    let mut again = api.get(name).await.unwrap();
    again.data["status"] = status.clone();
    if !status.is_array() {
        api.replace_status(name, &PostParams::default(), &again).await.unwrap();
    }

    merge(
        json!({ "metadata": { "labels": { "a": "b" }, "annotations": { "quartermaster.dev/requested-at": "now" } } }),
    )
    .await;
    merge(json!({ "metadata": { "finalizers": ["quartermaster.dev/test"] } })).await;
    // One without a spec has nothing to suspend.
    if spec.is_some() {
        let suspended = merge(json!({ "spec": { "suspend": true } })).await;
        assert_eq!(suspended.data["spec"]["suspend"], true);
    }
    api.delete(name, &DeleteParams::default()).await.unwrap();
    merge(json!({ "metadata": { "finalizers": null } })).await;
    assert!(api.get_opt(name).await.unwrap().is_none());
}

/// A rule over several fields binds again once a field that it names is changed, to another wrong value too.
#[tokio::test]
async fn a_changed_field_is_held_to_the_rules() {
    let plane = ControlPlane::start(Options::apiserver_only()).await.unwrap();
    let client = plane.client().await.unwrap();
    install_original(&client, true).await;
    let chat = "{type: Telegram, apiToken: {secretName: s, key: k}, telegramSpec: {chatId: 0}}";
    store(&client, &ContactPoint::api_resource(), "chat", Some(chat), &json!({}), false).await;
    let target = "{contactPoint: cp, field: replicas, target: {kind: DaemonSet, namespace: a, name: b}}";
    store(&client, &TrackedField::api_resource(), "target", Some(target), &json!([]), false).await;
    install(&plane).await;

    let points = Api::<DynamicObject>::namespaced_with(client.clone(), "default", &ContactPoint::api_resource());
    let fields = Api::<DynamicObject>::namespaced_with(client.clone(), "default", &TrackedField::api_resource());
    for (api, name, patch, words) in [
        (&points, "chat", json!({ "telegramSpec": null }), "type: Telegram needs a chat"),
        (&points, "chat", json!({ "type": "Webhook" }), "type: Webhook needs an endpoint"),
        (&points, "chat", json!({ "webhookSpec": { "url": "https://h" } }), "type: Telegram takes no webhookSpec"),
        (&points, "chat", json!({ "apiToken": null }), "type: Telegram needs the bot's token"),
        (&points, "chat", json!({ "telegramSpec": { "chatId": 7 } }), ""),
        (&fields, "target", json!({ "target": { "kind": "Job" } }), "needs apiVersion and resource"),
        (&fields, "target", json!({ "target": { "apiVersion": "apps/v1" } }), "needs apiVersion and resource"),
        (&fields, "target", json!({ "target": { "name": "c" } }), ""),
        (&fields, "target", json!({ "target": { "apiVersion": "apps/v1", "resource": "daemonsets" } }), ""),
    ] {
        let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": patch }))).await;
        match patched {
            Ok(_) => assert!(words.is_empty(), "{patch} is accepted"),
            Err(said) => assert!(!words.is_empty() && said.to_string().contains(words), "{patch}: {said}"),
        }
    }
}
