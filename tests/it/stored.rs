//! Specs that are larger than any CRD allows today, stored before the CRDs had bounds.

use futures::{StreamExt as _, stream};
use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, CustomResourceExt, ResourceExt as _};
use qm_api::tracked_field::{Delivery, Skipped};
use qm_api::{AppService, ConfigMapSync, ContactPoint, MyApp, MyIngress, TrackedField};
use rstest::rstest;
use serde_json::{Value, json};
use testbed::Options;
use testbed::aws::Aws;
use testbed::proxy::{ApiRequest, Fault, Match, Times, Verb};
use testbed::receiver::Receiver;
use testbed::wait::until;

use crate::support::{
    Bed, LIMIT, Operator, Peak, SOON, Settings, create_large, only_large_test, patch_large,
};

const APPS: usize = 100;
const LEASE: &str = "stored";

/// CRDs that accept any spec, until the bounds are restored.
struct Unbound {
    api: Api<CustomResourceDefinition>,
    crds: Vec<CustomResourceDefinition>,
    kinds: Vec<ApiResource>,
}

impl Unbound {
    async fn new(bed: &Bed, kinds: Vec<(CustomResourceDefinition, ApiResource)>) -> Self {
        let api = Api::<CustomResourceDefinition>::all(bed.client.clone());
        let (mut crds, mut resources) = (Vec::new(), Vec::new());
        for (crd, resource) in kinds {
            let bounded = api.get(&crd.name_any()).await.unwrap();
            let mut versions = serde_json::to_value(&bounded.spec.versions).unwrap();
            for version in versions.as_array_mut().unwrap() {
                let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
                version["schema"]["openAPIV3Schema"] =
                    json!({ "type": "object", "properties": { "spec": any, "status": any } });
            }
            replace_versions(&api, &bounded, versions).await;
            crds.push(bounded);
            resources.push(resource);
        }
        let unbound = Self {
            api,
            crds,
            kinds: resources,
        };
        for kind in &unbound.kinds {
            accepts(bed, kind, true).await;
        }
        unbound
    }

    async fn bind(self, bed: &Bed) {
        for crd in &self.crds {
            replace_versions(
                &self.api,
                crd,
                serde_json::to_value(&crd.spec.versions).unwrap(),
            )
            .await;
        }
        for kind in &self.kinds {
            accepts(bed, kind, false).await;
        }
    }
}

async fn replace_versions(
    api: &Api<CustomResourceDefinition>,
    crd: &CustomResourceDefinition,
    versions: Value,
) {
    let patch = json!({ "spec": { "versions": versions } });
    api.patch(
        &crd.name_any(),
        &PatchParams::default(),
        &Patch::Merge(patch),
    )
    .await
    .unwrap();
}

/// Waits until the apiserver accepts a spec with an unknown field of the wrong type for every kind, or rejects it.
async fn accepts(bed: &Bed, kind: &ApiResource, expected: bool) {
    let object =
        DynamicObject::new("tried", kind).data(json!({ "spec": { "suspend": "no bool" } }));
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let api = objects(bed, kind);
    let accepted = until(
        format!("{} are bound: {}", kind.plural, !expected),
        SOON,
        async || {
            let accepted = api.create(&dry_run, &object).await.is_ok();
            Ok((accepted == expected).then_some(()))
        },
    );
    accepted.await.unwrap();
}

fn objects(bed: &Bed, kind: &ApiResource) -> Api<DynamicObject> {
    Api::namespaced_with(bed.client.clone(), &bed.namespace, kind)
}

fn kind<K: kube::Resource<DynamicType = ()> + CustomResourceExt>()
-> (CustomResourceDefinition, ApiResource) {
    (K::crd(), K::api_resource())
}

/// 100 `AppService`s of 1.3 MB: whole pages of such objects, or all of them in a cache, would take far more memory than
/// a replica has.
#[rstest]
#[case::streamed(true)]
#[case::paged(false)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn huge_specs_fit_into_the_memory_of_both_replicas(#[case] streamed: bool) {
    let _guard = only_large_test().await;
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), "huge").await;
    let (proxy, file) = bed.through_proxy().await;
    if !streamed {
        let streams = Match::any().and(|request| request.query.contains("sendInitialEvents=true"));
        proxy.inject(
            streams,
            Times::Always,
            Fault::status(StatusCode::UNPROCESSABLE_ENTITY),
        );
    }
    let apps = objects(&bed, &AppService::api_resource());
    let unbound = Unbound::new(&bed, vec![kind::<AppService>()]).await;
    let spec = json!({ "size": 1, "image": "nginx:1.29", "args": vec!["x".repeat(97); 13_000] });
    let stored = stream::iter((0..APPS).map(|number| {
        let app = DynamicObject::new(&format!("huge-{number}"), &AppService::api_resource());
        let (apps, app) = (&apps, app.data(json!({ "spec": spec })));
        async move { create_large(apps, &app).await }
    }));
    stored.buffer_unordered(4).collect::<()>().await;
    unbound.bind(&bed).await;

    let settings = Settings::default().kubeconfig(file).leader_election(100);
    let settings = settings.flag(&format!("--leader-election-id={LEASE}"));
    let mut replicas = Vec::new();
    for _ in 0..2 {
        replicas.push(Operator::launch(&bed, settings.clone()).await);
    }
    let peaks: Vec<_> = replicas
        .iter_mut()
        .map(|replica| Peak::watch(replica.child().id()))
        .collect();
    for replica in &replicas {
        replica.ready().await;
    }
    let all_invalid = until("every large spec is reported", SOON, async || {
        let list = apps.list_metadata(&Default::default()).await?;
        anyhow::ensure!(list.items.len() == APPS);
        for app in list {
            let app = bed.api::<AppService>().get_status(&app.name_any()).await?;
            let status = app.status.unwrap_or_default();
            let ready = status.condition("Ready").cloned().unwrap_or_default();
            let (reason, message) = (
                ready.reason.unwrap_or_default(),
                ready.message.unwrap_or_default(),
            );
            let reported = reason == "SpecInvalid"
                && message.contains("spec is 1300")
                && message.contains("Shorten it");
            anyhow::ensure!(reported, "{:?} says {reason}: {message}", app.metadata.name);
        }
        Ok(Some(()))
    });
    all_invalid.await.unwrap();
    // Each object comes through the watches again, whole.
    for number in 0..APPS {
        let patch = json!({ "metadata": { "annotations": { "round": "2" } } });
        patch_large(&apps, &format!("huge-{number}"), &Patch::Merge(&patch)).await;
    }
    // The other app works as before,
    let plain = json!({ "spec": { "size": 1, "image": "nginx:1.29" } });
    bed.create::<AppService>("plain", plain).await;
    bed.until("plain", "exists", |_: &Deployment| true).await;
    // and so does an object that became small enough.
    let args = json!({ "spec": { "args": ["-v"] } });
    bed.patch::<AppService>("huge-0", args).await;
    bed.until("huge-0", "exists", |_: &Deployment| true).await;
    let deployments = bed
        .api::<Deployment>()
        .list_metadata(&Default::default())
        .await
        .unwrap();
    assert_eq!(deployments.items.len(), 2, "no other spec was acted on");

    for peak in peaks {
        let peak = peak.end();
        println!("peak of RssAnon, streamed: {streamed}: {peak:.1} MiB");
        assert!(peak < LIMIT, "{peak} MiB");
    }
    let requests = proxy.requests();
    let lists = |resource: &str, query: &str| {
        let of =
            |request: &ApiRequest| request.resource == resource && request.query.contains(query);
        requests
            .iter()
            .filter(|seen| seen.request.verb == Verb::List && of(&seen.request))
            .count()
    };
    assert!(
        lists("appservices", "continue=") > 0,
        "our own kinds are listed in pages"
    );
    assert_eq!(lists("deployments", "limit=") > 0, !streamed);
}

/// Objects of other users, of the maximum size of etcd: decoded, the first two would take 180 MB, and the third twice
/// as much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn huge_foreign_objects_fit_into_the_memory_of_both_replicas() {
    let _guard = only_large_test().await;
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), "others").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.track("web", "Deployment", "web", "replicas", "hook")
        .await;
    let deployment = async |name: &str, labels: Value, container: Value, volumes: Value| {
        let pods = json!({ "app": name });
        let template = json!({ "metadata": { "labels": pods }, "spec": { "containers": [container], "volumes": volumes } });
        let spec =
            json!({ "replicas": 0, "selector": { "matchLabels": pods }, "template": template });
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "labels": labels }, "spec": spec,
        });
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        create_large(
            &objects(&bed, &ApiResource::erase::<Deployment>(&())),
            &object,
        )
        .await;
    };
    let container =
        |more: &str, value: Value| json!({ "name": "web", "image": "nginx:1", more: value });
    let variables = || json!(vec![json!({ "name": "a" }); 140_000]);
    deployment(
        "variables",
        json!({}),
        container("env", variables()),
        json!([]),
    )
    .await;
    deployment(
        "arguments",
        json!({}),
        container("args", json!(vec![""; 700_000])),
        json!([]),
    )
    .await;
    // The operator watches by this label for the children of an app.
    bed.create::<AppService>("app", json!({ "spec": { "size": 1, "image": "nginx:1" } }))
        .await;
    let owned = json!({ "quartermaster.dev/owner-uid": "none" });
    let volumes: Vec<_> = (0..60_000)
        .map(|number| json!({ "name": format!("v{number}"), "emptyDir": {} }))
        .collect();
    deployment(
        "volumes",
        owned,
        container("args", json!([])),
        json!(volumes),
    )
    .await;
    for name in ["variables", "arguments", "volumes"] {
        bed.track(name, "Deployment", name, "image", "hook").await;
    }

    let settings = Settings::default()
        .leader_election(100)
        .flag(&format!("--leader-election-id={LEASE}"));
    let mut replicas = Vec::new();
    for _ in 0..2 {
        replicas.push(Operator::launch(&bed, settings.clone()).await);
    }
    let peaks: Vec<_> = replicas
        .iter_mut()
        .map(|replica| Peak::watch(replica.child().id()))
        .collect();
    for replica in &replicas {
        replica.ready().await;
    }
    bed.until("app", "exists", |_: &Deployment| true).await;
    bed.delivered("arguments", &[("Created", Some("nginx:1"))])
        .await;
    for name in ["variables", "volumes"] {
        let message = bed.waiting(name, "TargetUnreadable: ").await;
        assert!(
            message.contains("takes more than 24 MiB of memory once it is decoded: shorten it"),
            "{message}"
        );
    }
    // The operator gets these objects through watches and by reads, several concurrently.
    for (round, replicas) in (2..6).enumerate() {
        for name in ["variables", "arguments", "volumes"] {
            let patch = json!({ "metadata": { "annotations": { "round": round.to_string() } } });
            patch_large(&bed.api::<Deployment>(), name, &Patch::Merge(&patch)).await;
            bed.track(
                &format!("{name}-{round}"),
                "Deployment",
                name,
                "{.metadata.annotations.round}",
                "hook",
            )
            .await;
        }
        bed.scale("web", replicas).await;
    }
    for round in 0..4 {
        bed.until(
            &format!("arguments-{round}"),
            "has the newest value",
            |field: &TrackedField| {
                field
                    .history()
                    .unwrap()
                    .last()
                    .is_some_and(|entry| entry.value.as_deref() == Some("3"))
            },
        )
        .await;
        for name in ["variables", "volumes"] {
            bed.waiting(&format!("{name}-{round}"), "TargetUnreadable: ")
                .await;
        }
    }
    bed.until("web", "has the newest value", |field: &TrackedField| {
        field
            .history()
            .unwrap()
            .last()
            .is_some_and(|entry| entry.value.as_deref() == Some("5"))
    })
    .await;
    for peak in peaks {
        let peak = peak.end();
        println!("peak of RssAnon, objects of others: {peak:.1} MiB");
        assert!(peak < LIMIT, "{peak} MiB");
    }
}

/// An expression that the CRD rejects today sends every message, and hides no other object.
#[tokio::test]
async fn expression_of_any_type_and_length_is_reported() {
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), "expressions").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let unbound = Unbound::new(&bed, vec![kind::<TrackedField>()]).await;
    let nested = (0..100).fold(json!(true), |inner, _| json!([inner]));
    let whens = [
        ("text", json!("action == 'Updated'"), ""),
        ("number", json!(5), "the result is number, not bool"),
        ("list", json!([[true]]), "the result is list, not bool"),
        (
            "map",
            json!({ "a": 1 }),
            "maps and messages are not available",
        ),
        (
            "long",
            json!("x".repeat(100_000)),
            "the expression is longer than 512 characters",
        ),
        (
            "deep",
            json!("(".repeat(100_000)),
            "the expression is longer than 512 characters",
        ),
        (
            "nested",
            nested,
            "the expression has more than 128 parts or 32 levels",
        ),
    ];
    let target = json!({ "kind": "Deployment", "namespace": bed.namespace, "name": "web" });
    for (name, when, _) in &whens {
        let spec =
            json!({ "target": target, "contactPoint": "hook", "field": "replicas", "when": when });
        let object = DynamicObject::new(name, &unbound.kinds[0]).data(json!({ "spec": spec }));
        objects(&bed, &unbound.kinds[0])
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    }
    unbound.bind(&bed).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    for (name, _, problem) in whens.iter().filter(|(.., problem)| !problem.is_empty()) {
        bed.delivered(name, &[("Created", Some("1"))]).await;
        let problem = format!("WhenInvalid: spec.when: {problem}");
        bed.waiting(name, &problem).await;
    }
    // The watch goes on.
    bed.scale("web", 2).await;
    let is_sent = |field: &TrackedField| {
        let last = field.history().unwrap().pop();
        last.is_some_and(|last| {
            last.value.as_deref() == Some("2") && last.delivery == Some(Delivery::Delivered)
        })
    };
    for (name, ..) in &whens {
        bed.until(name, "sends the update", is_sent).await;
    }
    let created = bed.history("text").await.swap_remove(0);
    assert_eq!(
        (created.delivery, created.skipped),
        (None, Some(Skipped::When))
    );
}

/// Returns a text of more bytes than a spec may have.
fn large() -> String {
    "x".repeat(300_000)
}

#[tokio::test]
async fn large_spec_of_any_kind_is_reported_until_it_is_shortened_or_deleted() {
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), "kinds").await;
    let aws = Aws::start().await.unwrap();
    let kinds = vec![
        kind::<AppService>(),
        kind::<ConfigMapSync>(),
        kind::<ContactPoint>(),
        kind::<MyApp>(),
        kind::<MyIngress>(),
        kind::<TrackedField>(),
    ];
    let of_kind: Vec<_> = kinds.iter().map(|(_, kind)| kind.clone()).collect();
    bed.create::<ConfigMap>("source", json!({ "data": { "key": "value" } }))
        .await;
    let _operator = Operator::start(&bed, Settings::default().aws(&aws)).await;
    let sync = json!({
        "configMapName": "source", "sourceNamespace": bed.namespace, "destinationNamespace": bed.namespace,
        "destinationName": "copy",
    });
    bed.create::<ConfigMapSync>("copied", json!({ "spec": sync }))
        .await;
    let copy = bed
        .until("copy", "is a copy", |copy: &ConfigMap| copy.data.is_some())
        .await;
    assert!(!copy.labels().is_empty(), "{copy:?}");

    let unbound = Unbound::new(&bed, kinds).await;
    let target = json!({ "kind": "Deployment", "namespace": bed.namespace, "name": "web" });
    // Valid fields of some kinds, and a valid spec.
    let specs = [
        ("image", json!({ "size": 1, "image": "nginx:1.29" })),
        ("configMapName", sync),
        (
            "type",
            json!({ "type": "Webhook", "webhookSpec": { "url": "http://127.0.0.1:9/" } }),
        ),
        (
            "banner",
            json!({ "image": "nginx:1.29", "banner": "hello" }),
        ),
        ("ipAddressType", json!({ "scheme": "internal" })),
        (
            "field",
            json!({ "target": target, "contactPoint": "web", "field": "replicas" }),
        ),
    ];
    for (kind, (field, spec)) in of_kind.iter().zip(&specs) {
        let mut oversized = spec.clone();
        oversized[field] = large().into();
        for name in ["shortened", "deleted"] {
            let object = DynamicObject::new(name, kind).data(json!({ "spec": oversized }));
            objects(&bed, kind)
                .create(&PostParams::default(), &object)
                .await
                .unwrap();
        }
    }
    let syncs = &of_kind[1];
    let patch = Patch::Merge(json!({ "spec": { "configMapName": large() } }));
    objects(&bed, syncs)
        .patch("copied", &PatchParams::default(), &patch)
        .await
        .unwrap();
    unbound.bind(&bed).await;

    let reads = async |kind: &ApiResource, name: &str, invalid: bool| {
        let api = objects(&bed, kind);
        let what = format!("{} {name} reads SpecInvalid: {invalid}", kind.kind);
        let read = until(what, SOON, async || {
            let object = api.get(name).await?;
            let waiting = object
                .annotations()
                .get("quartermaster.dev/waiting")
                .cloned();
            let conditions = object.data["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let ready = conditions
                .iter()
                .find(|condition| condition["type"] == "Ready");
            let ready = ready.map(|ready| {
                format!(
                    "{}: {}",
                    ready["reason"].as_str().unwrap(),
                    ready["message"]
                )
            });
            let message = waiting.or(ready).unwrap_or_default();
            let is_invalid = message.starts_with("SpecInvalid")
                && message.contains("spec is 300")
                && message.contains("Shorten it");
            anyhow::ensure!(is_invalid == invalid, "the message is {message:?}");
            Ok(Some(()))
        });
        read.await.unwrap();
    };
    for kind in &of_kind {
        for name in ["shortened", "deleted"] {
            reads(kind, name, true).await;
        }
    }
    reads(syncs, "copied", true).await;
    for (kind, (field, spec)) in of_kind.iter().zip(&specs) {
        let patch = Patch::Merge(json!({ "spec": { *field: spec[field] } }));
        objects(&bed, kind)
            .patch("shortened", &PatchParams::default(), &patch)
            .await
            .unwrap();
        reads(kind, "shortened", false).await;
    }
    for (kind, name) in of_kind
        .iter()
        .map(|kind| (kind, "deleted"))
        .chain([(syncs, "copied")])
    {
        let api = objects(&bed, kind);
        api.delete(name, &DeleteParams::default()).await.unwrap();
        let deleted = until(
            format!("{} {name} is deleted", kind.kind),
            SOON,
            async || Ok(api.get_opt(name).await?.is_none().then_some(())),
        );
        deleted.await.unwrap();
    }
    // The operator could not read the large spec's deletion policy, so the copies stay.
    let left = bed.api::<ConfigMap>().get("copy").await.unwrap();
    assert_eq!(left.data, copy.data);
}
