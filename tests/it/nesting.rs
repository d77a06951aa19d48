//! Objects that nest deeper than the JSON decoder allows, or have times that it rejects: no other object is affected.

use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Patch;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::NamespaceResourceScope;
use kube::{Client, Config, Resource};
use qm_api::{AppService, ConfigMapSync, ContactPoint, TrackedField};
use qm_runtime::client;
use rstest::rstest;
use serde_json::{Value, json};
use testbed::proxy::{Fault, Match, Times, Verb};
use testbed::receiver::Receiver;

use crate::fields::{Widgets, track};
use crate::support::{Bed, LIMIT, Operator, Peak, Settings, actions_and_values, patch_large};

/// Returns a spec with a size and `levels` of nested objects.
fn nested(size: u32, levels: usize) -> String {
    format!(
        r#"{{"size":{size},"deep":{}1{}}}"#,
        r#"{"a":"#.repeat(levels),
        "}".repeat(levels)
    )
}

#[rstest]
#[case::streamed(true)]
#[case::paged(false)]
#[tokio::test]
async fn nested_object_is_unreadable_and_its_neighbours_are_delivered(#[case] streamed: bool) {
    let bed = Bed::shared("nested").await;
    let receiver = Receiver::start().unwrap();
    let (proxy, file) = bed.through_proxy().await;
    if !streamed {
        let streams = Match::any().and(|request| request.query.contains("sendInitialEvents=true"));
        proxy.inject(
            streams,
            Times::Always,
            Fault::status(StatusCode::UNPROCESSABLE_ENTITY),
        );
    }
    let widgets = Widgets::new(&bed);
    widgets.serve(&bed).await;
    widgets.grant(&bed).await;
    bed.webhook("hook", &receiver.url()).await;
    let names = ["plain", "deep-200", "deep-2000", "late"];
    widgets.put_text(&bed, "plain", r#"{"size":1}"#).await;
    widgets.put_text(&bed, "deep-200", &nested(1, 200)).await;
    widgets.put_text(&bed, "deep-2000", &nested(1, 2_000)).await;
    let operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    for name in names {
        let mut target = widgets.target(&bed, "Widget", "widgets");
        target["name"] = name.into();
        track(&bed, name, target, "{.spec.size}").await;
    }

    // In the list,
    let mut plain = vec![("Created", Some("1"))];
    bed.delivered("plain", &plain).await;
    for name in ["deep-200", "deep-2000"] {
        let message = bed.waiting(name, "TargetUnreadable: ").await;
        let expected = format!(
            "Widget {}/{name} nests deeper than 100 levels: flatten it",
            bed.namespace
        );
        assert!(message.contains(&expected), "{message}");
        assert_eq!(actions_and_values(&bed.history(name).await), []);
    }
    // and through the watch: new objects, and one that was readable before.
    bed.waiting("late", "TargetNotFound: ").await;
    widgets.put_text(&bed, "late", &nested(1, 2_000)).await;
    bed.waiting("late", "TargetUnreadable: ").await;
    widgets.put_text(&bed, "plain", r#"{"size":2}"#).await;
    plain.push(("Updated", Some("2")));
    bed.delivered("plain", &plain).await;
    widgets.put_text(&bed, "plain", &nested(3, 200)).await;
    bed.waiting("plain", "TargetUnreadable: ").await;
    bed.delivered("plain", &plain).await;

    // Each object recovers as soon as it is flat.
    widgets.put_text(&bed, "plain", r#"{"size":4}"#).await;
    bed.waiting("plain", "").await;
    plain.push(("Updated", Some("4")));
    bed.delivered("plain", &plain).await;
    for name in ["deep-200", "deep-2000"] {
        widgets.put_text(&bed, name, r#"{"size":5}"#).await;
        bed.waiting(name, "").await;
        bed.delivered(name, &[("Created", Some("5"))]).await;
    }
    bed.kubectl(&["delete", &format!("widgets.{}", widgets.group), "late"])
        .await;
    bed.waiting("late", "TargetNotFound: ").await;
    assert_eq!(
        actions_and_values(&bed.history("late").await),
        [],
        "no value was ever recorded"
    );

    // The operator used one list and one watch.
    let lists = |verb, query: &str| {
        let all = proxy.requests();
        let of = |request: &testbed::proxy::ApiRequest| {
            request.resource == "widgets" && request.verb == verb && request.query.contains(query)
        };
        all.iter().filter(|seen| of(&seen.request)).count()
    };
    assert_eq!(lists(Verb::List, ""), usize::from(!streamed));
    assert_eq!(lists(Verb::Watch, "sendInitialEvents=true"), 1);
    let failures = format!(
        "quartermaster_watch_failures_total{{resource=\"widgets.{}\"}} 0",
        widgets.group
    );
    let metrics = operator.metrics().await;
    assert!(metrics.contains(&failures), "{metrics}");
}

/// Returns an admin's client that decodes such objects: kube's own does not.
async fn reading_client(bed: &Bed) -> Client {
    let kubeconfig = Kubeconfig::read_from(bed.plane.admin_kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    config.proxy_url = None;
    client::for_command(config, &quartermaster::PROGRAM).unwrap()
}

/// Writes `managedFields` that no server generated.
async fn forge_managed_fields<K>(bed: &Bed, name: &str)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let fields = format!("{}{{}}{}", r#"{"f:a":"#.repeat(200), "}".repeat(200));
    let group = if K::group(&()).is_empty() {
        String::new()
    } else {
        format!(".{}", K::group(&()))
    };
    let resource = format!("{}{group}/{name}", K::plural(&()));
    let api_version = K::api_version(&());
    // The last time that the apiserver stores, after the last that the operator's types have.
    let entry = format!(
        r#"[{{"op":"add","path":"/metadata/managedFields/-","value":{{"manager":"forger","operation":"Update",
        "apiVersion":{api_version:?},"fieldsType":"FieldsV1","time":"9999-12-31T23:59:59Z","fieldsV1":{fields}}}}}]"#
    );
    let patched = bed
        .kubectl(&["patch", &resource, "--type=json", "-p", &entry])
        .await;
    let text = bed
        .kubectl(&["get", &resource, "-o", "json", "--show-managed-fields"])
        .await;
    assert!(
        text.contains("forger") && text.matches("f:a").count() >= 200,
        "{patched}{text}"
    );
}

/// A user who may write an object may write any `managedFields`, even if the schema is strict.
#[tokio::test]
async fn forged_managed_fields_hide_nothing() {
    let mut bed = Bed::shared("forged").await;
    bed.client = reading_client(&bed).await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.webhook("forged", &receiver.url()).await;
    forge_managed_fields::<ContactPoint>(&bed, "forged").await;
    bed.deployment("web", 1).await;
    forge_managed_fields::<Deployment>(&bed, "web").await;
    bed.create::<ConfigMap>("map", json!({ "data": { "value": "1" } }))
        .await;
    forge_managed_fields::<ConfigMap>(&bed, "map").await;
    bed.track("forged", "Deployment", "web", "replicas", "hook")
        .await;
    forge_managed_fields::<TrackedField>(&bed, "forged").await;
    bed.track("web", "Deployment", "web", "replicas", "hook")
        .await;
    let widgets = Widgets::new(&bed);
    // The grant gives permission for ConfigMaps.
    widgets.grant(&bed).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "resource": "configmaps", "namespace": bed.namespace, "name": "map" });
    track(&bed, "map", map, "{.data.value}").await;
    for (name, value) in [("forged", "1"), ("web", "1"), ("map", "1")] {
        bed.delivered(name, &[("Created", Some(value))]).await;
    }
    for name in ["hook", "forged"] {
        bed.ready(name).await;
    }

    // The watches deliver such objects too.
    forge_managed_fields::<ContactPoint>(&bed, "hook").await;
    forge_managed_fields::<TrackedField>(&bed, "web").await;
    bed.scale("web", 2).await;
    bed.patch::<ConfigMap>("map", json!({ "data": { "value": "2" } }))
        .await;
    for name in ["forged", "web", "map"] {
        bed.delivered(name, &[("Created", Some("1")), ("Updated", Some("2"))])
            .await;
    }
    bed.webhook("new", &receiver.url()).await;
    bed.ready("new").await;
}

/// Creates an app whose overrides have `levels` of nested objects. No struct of this test can hold them.
async fn put_app(bed: &Bed, name: &str, levels: usize) {
    let deep = format!("{}{{}}{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
    bed.apply(&format!(
        r#"{{"apiVersion":"kosmos.io/v1","kind":"AppService","metadata":{{"name":{name:?}}},
        "spec":{{"size":0,"image":"i","podOverrides":{{"spec":{deep}}}}}}}"#
    ))
    .await;
}

/// Waits until the app is `Ready` with this status and reason; returns the message.
async fn app_reads(bed: &Bed, name: &str, reason: &str) -> String {
    let mut message = None;
    bed.until(name, reason, |app: &AppService| {
        let status = app.status.as_ref();
        let current = status.filter(|it| it.observed_generation == app.metadata.generation);
        let ready = current.and_then(|status| status.condition("Ready"));
        let ready = ready.filter(|ready| ready.reason.as_deref() == Some(reason));
        message = ready.and_then(|ready| ready.message.clone());
        ready.is_some()
    })
    .await;
    message.unwrap_or_default()
}

/// The schema of an `AppService` leaves its overrides open, so the apiserver stores them at any depth.
#[rstest]
#[case::streamed(true)]
#[case::paged(false)]
#[tokio::test]
async fn nested_app_is_invalid_and_its_neighbours_go_on(#[case] streamed: bool) {
    let mut bed = Bed::shared("nested-app").await;
    bed.client = reading_client(&bed).await;
    let (proxy, file) = bed.through_proxy().await;
    if !streamed {
        let streams = Match::any().and(|request| request.query.contains("sendInitialEvents=true"));
        let status = Fault::status(StatusCode::UNPROCESSABLE_ENTITY);
        proxy.inject(streams, Times::Always, status);
    }
    let expected = "spec.podOverrides.spec.a: unknown field";
    let plain = json!({ "spec": { "size": 0, "image": "i" } });
    bed.create::<AppService>("plain", plain.clone()).await;
    put_app(&bed, "deep", 2_000).await;
    let operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;

    // In the list,
    app_reads(&bed, "plain", "Ready").await;
    let message = app_reads(&bed, "deep", "SpecInvalid").await;
    assert!(message.starts_with(expected), "{message}");
    // and through the watch.
    put_app(&bed, "late", 2_000).await;
    let message = app_reads(&bed, "late", "SpecInvalid").await;
    assert!(message.starts_with(expected), "{message}");
    bed.create::<AppService>("new", plain).await;
    app_reads(&bed, "new", "Ready").await;
    bed.patch::<AppService>("plain", json!({ "spec": { "image": "j" } }))
        .await;
    app_reads(&bed, "plain", "Ready").await;

    // The apiserver compares the whole specs of a change for the policy on authors.
    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    bed.patch::<AppService>("late", label).await;

    // Each object recovers as soon as it is flat, and can be deleted until then.
    let flat = json!({ "spec": { "podOverrides": null } });
    bed.patch::<AppService>("deep", flat).await;
    app_reads(&bed, "deep", "Ready").await;
    bed.delete::<AppService>("late").await;
    let metrics = operator.metrics().await;
    let failures = "quartermaster_watch_failures_total{resource=\"appservices.kosmos.io\"} 0";
    assert!(metrics.contains(failures), "{metrics}");
}

/// The operator does not know which fields such a Deployment has, and who owns them.
#[tokio::test]
async fn deployment_that_cannot_be_decoded_is_not_written() {
    let bed = Bed::shared("late-status").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "spec": { "size": 0, "image": "i" } });
    bed.create::<AppService>("web", spec).await;
    app_reads(&bed, "web", "Ready").await;
    let label = json!({ "metadata": { "labels": { "by": "kubectl" } } }).to_string();
    bed.kubectl(&["patch", "deployment", "web", "-p", &label])
        .await;
    // The Deployment controller keeps conditions of other types.
    let condition =
        json!({ "type": "Late", "status": "True", "lastUpdateTime": "9999-12-31T23:59:59Z" });
    let status = json!({ "status": { "conditions": [condition] } }).to_string();
    let patch = ["patch", "deployment", "web", "--subresource=status", "-p"];
    bed.kubectl(&[&patch[..], &[status.as_str()]].concat())
        .await;

    let image = json!({ "spec": { "image": "j" } });
    bed.patch::<AppService>("web", image).await;
    let message = app_reads(&bed, "web", "WriteFailed").await;
    let problem = "web could not be read or written: Error deserializing response: ";
    assert!(message.contains(problem), "{message}");
    let arguments = ["get", "deployment", "web", "-o", "json"];
    let text = bed
        .kubectl(&[&arguments[..], &["--show-managed-fields"]].concat())
        .await;
    let deployment: Value = serde_json::from_str(&text).unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "i");
    let mut entries = deployment["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter();
    let owns_label = |entry: &Value| {
        entry["manager"] == "kubectl-patch" && entry["fieldsV1"].to_string().contains("f:by")
    };
    assert!(entries.any(owns_label), "{text}");

    bed.kubectl(&["delete", "deployment", "web"]).await;
    app_reads(&bed, "web", "Ready").await;
}

/// The apiserver stores every time in a Pod template, and the operator's types have none after 9999-12-30T22:00:00Z.
#[rstest]
#[case::streamed(true)]
#[case::paged(false)]
#[tokio::test]
async fn app_is_ready_despite_times_that_cannot_be_decoded(#[case] streamed: bool) {
    let bed = Bed::shared("template-time").await;
    let (proxy, file) = bed.through_proxy().await;
    if !streamed {
        let streams = Match::any().and(|request| request.query.contains("sendInitialEvents=true"));
        let status = Fault::status(StatusCode::UNPROCESSABLE_ENTITY);
        proxy.inject(streams, Times::Always, status);
    }
    let times = json!({ "creationTimestamp": "9999-12-31T23:59:59Z", "deletionTimestamp": "9999-12-31T23:59:59Z" });
    let has_times = async |deployment: &str| {
        let text = bed
            .kubectl(&["get", "deployment", deployment, "-o", "json"])
            .await;
        let object: Value = serde_json::from_str(&text).unwrap();
        let metadata = &object["spec"]["template"]["metadata"];
        ["creationTimestamp", "deletionTimestamp"]
            .iter()
            .all(|field| metadata[field] == times[field])
    };
    let mut template = times.clone();
    template["labels"] = json!({ "app": "forged" });
    let forged = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "forged", "labels": { "quartermaster.dev/owner-uid": "forged" } },
        "spec": { "replicas": 0, "selector": { "matchLabels": { "app": "forged" } }, "template": {
            "metadata": template, "spec": { "containers": [{ "name": "web", "image": "i" }] } } },
    });
    bed.apply(&forged.to_string()).await;
    assert!(has_times("forged").await);

    // A Deployment that nobody owns is in the list,
    let mut operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    let spec = json!({ "spec": { "size": 0, "image": "i" } });
    bed.create::<AppService>("web", spec).await;
    app_reads(&bed, "web", "Ready").await;

    // and the app's own Deployment gets such times through the watch.
    let patch = json!({ "spec": { "template": { "metadata": times } } }).to_string();
    bed.kubectl(&["patch", "deployment", "web", "-p", &patch])
        .await;
    assert!(has_times("web").await);
    let image = json!({ "spec": { "image": "j" } });
    bed.patch::<AppService>("web", image).await;
    app_reads(&bed, "web", "Ready").await;

    // After a restart, both are in the list.
    operator.kill();
    operator.restart();
    operator.ready().await;
    let image = json!({ "spec": { "image": "k" } });
    bed.patch::<AppService>("web", image).await;
    app_reads(&bed, "web", "Ready").await;
    let failures = "quartermaster_watch_failures_total{resource=\"deployments.apps\"} 0";
    let metrics = operator.metrics().await;
    assert!(metrics.contains(failures), "{metrics}");
}

/// Decoded, each 0.7 MB of such `managedFields` would take more than 60 MB of memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn large_forged_managed_fields_fit_into_memory() {
    let mut bed = Bed::shared("forged-large").await;
    bed.client = reading_client(&bed).await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.create::<ConfigMap>("map", json!({ "data": { "value": "1" } }))
        .await;
    let chain = (0..80).fold(json!({}), |inner, _| json!({ "f:a": inner }));
    let chains = (0..1000).map(|number| (format!("f:{number}"), chain.clone()));
    let fields: serde_json::Map<_, _> = chains.collect();
    let add = |api_version: &str| {
        let entry = json!({
            "manager": "forger", "operation": "Update", "apiVersion": api_version, "fieldsType": "FieldsV1",
            "time": "2026-01-01T00:00:00Z", "fieldsV1": fields,
        });
        let add = json!([{ "op": "add", "path": "/metadata/managedFields/-", "value": entry }]);
        Patch::Json::<()>(serde_json::from_value(add).unwrap())
    };
    let version = ContactPoint::api_version(&());
    patch_large(&bed.api::<ConfigMap>(), "map", &add("v1")).await;
    patch_large(&bed.api::<ContactPoint>(), "hook", &add(&version)).await;
    for object in ["cm/map", "contactpoint/hook"] {
        let text = bed
            .kubectl(&["get", object, "-o", "json", "--show-managed-fields"])
            .await;
        assert!(text.matches("f:a").count() > 70_000, "{object} is forged");
    }
    let mut operator = Operator::start(&bed, Settings::default()).await;
    let peak = Peak::watch(operator.child().id());
    let spec = json!({
        "sourceNamespace": bed.namespace, "configMapName": "map", "destinationNamespace": bed.namespace,
        "destinationName": "copy",
    });
    bed.create::<ConfigMapSync>("sync", json!({ "spec": spec }))
        .await;
    bed.until("copy", "is a copy", |copy: &ConfigMap| {
        copy.data.as_ref().is_some_and(|data| data["value"] == "1")
    })
    .await;
    bed.ready("hook").await;
    let peak = peak.end();
    println!("peak of RssAnon, forged managedFields: {peak:.1} MiB");
    assert!(peak < LIMIT / 2.0, "{peak} MiB");
}
