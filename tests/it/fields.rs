//! Tracked values: names for the fields of some kinds, paths into any other, and changes.

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::PostParams;
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use qm_api::tracked_field::{Delivery, Entry, Skipped};
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::Options;
use testbed::receiver::Receiver;
use testbed::wait::until;

use crate::support::{
    Bed, CHAT, Operator, SOON, Settings, TOKEN, actions_and_values, bot_api, changes,
    fill_tracker_role, texts,
};

#[tokio::test]
async fn kubectl_get_is_short_and_shows_no_value_of_a_former_target() {
    let bed = Bed::shared("columns").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    let image = "registry.example.com/team/application-server:1.29.0";
    bed.create::<Deployment>("web", workload(1, image, "side:1", false))
        .await;
    bed.track("image", "Deployment", "web", "image", "hook")
        .await;
    bed.delivered("image", &[("Created", Some(image))]).await;
    let row = async |flags: &[&str]| {
        bed.kubectl(&[&["get", "tf", "image", "--no-headers"], flags].concat())
            .await
    };
    let short = row(&[]).await;
    assert!(
        short.contains(" registry.example.co…cation-server:1.29.0 ") && !short.contains(image),
        "{short}"
    );
    assert!(row(&["-o", "wide"]).await.contains(image));

    bed.patch::<TrackedField>(
        "image",
        json!({ "spec": { "target": { "name": "nowhere" } } }),
    )
    .await;
    let waiting = bed.waiting("image", "TargetNotFound: ").await;
    let row = |row: &str| {
        row.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let short = row(&bed.kubectl(&["get", "tf", "image", "--no-headers"]).await);
    assert_eq!(
        short[..6],
        [
            "image",
            "Deployment",
            "nowhere",
            "image",
            "Delivered",
            "TargetNotFound"
        ],
        "{waiting}"
    );
    bed.patch::<TrackedField>(
        "image",
        json!({ "spec": { "target": { "name": "web" }, "field": "replicas" } }),
    )
    .await;
    bed.delivered("image", &[("Created", Some(image)), ("Created", Some("1"))])
        .await;
    let short = row(&bed.kubectl(&["get", "tf", "image", "--no-headers"]).await);
    assert_eq!(
        short[..6],
        ["image", "Deployment", "web", "replicas", "1", "Delivered"]
    );
}

#[tokio::test]
async fn names_of_fields_of_deployments_stateful_sets_and_services_are_tracked() {
    let bed = Bed::shared("words").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.create::<Deployment>("web", workload(2, "web:1", "side:1", false))
        .await;
    bed.create::<StatefulSet>("db", workload(1, "db:1", "side:1", true))
        .await;
    let ports = |number: u16, name: &str| {
        json!([
            { "name": "http", "port": 80, "targetPort": number },
            { "name": "admin", "port": 81, "targetPort": name },
            { "name": "plain", "port": 82 },
        ])
    };
    bed.service("front", ports(8080, "admin-port")).await;
    let cases = [
        (
            "deployment-replicas",
            "Deployment",
            "web",
            "replicas",
            "2",
            "3",
        ),
        (
            "deployment-image",
            "Deployment",
            "web",
            "image",
            "web:1",
            "web:2",
        ),
        (
            "deployment-side",
            "Deployment",
            "web",
            "image:side",
            "side:1",
            "side:2",
        ),
        (
            "stateful-replicas",
            "StatefulSet",
            "db",
            "replicas",
            "1",
            "4",
        ),
        (
            "stateful-image",
            "StatefulSet",
            "db",
            "image",
            "db:1",
            "db:2",
        ),
        (
            "stateful-side",
            "StatefulSet",
            "db",
            "image:side",
            "side:1",
            "side:2",
        ),
        (
            "port-number",
            "Service",
            "front",
            "targetPort",
            "8080",
            "9090",
        ),
        (
            "port-name",
            "Service",
            "front",
            "targetPort:admin",
            "admin-port",
            "other-port",
        ),
        (
            "path",
            "Deployment",
            "web",
            "{.spec.template.spec.containers[*].image}",
            r#"["web:1","side:1"]"#,
            "x",
        ),
    ];
    for (name, kind, target, field, ..) in &cases {
        bed.track(name, kind, target, field, "hook").await;
    }
    // The API defaults a missing targetPort to port.
    bed.track(
        "port-default",
        "Service",
        "front",
        "targetPort:plain",
        "hook",
    )
    .await;
    bed.track(
        "no-such-container",
        "Deployment",
        "web",
        "image:nobody",
        "hook",
    )
    .await;
    for (name, .., value, _) in &cases {
        bed.delivered(name, &[("Created", Some(value))]).await;
    }
    bed.delivered("port-default", &[("Created", Some("82"))])
        .await;
    let nobody = bed
        .delivered("no-such-container", &[("Created", None)])
        .await;
    assert!(nobody[0].missing);

    bed.patch::<Deployment>("web", workload(3, "web:2", "side:2", false))
        .await;
    bed.patch::<StatefulSet>("db", workload(4, "db:2", "side:2", true))
        .await;
    bed.patch::<Service>(
        "front",
        json!({ "spec": { "ports": ports(9090, "other-port") } }),
    )
    .await;
    for (name, .., before, after) in &cases {
        let after = if *name == "path" {
            r#"["web:2","side:2"]"#
        } else {
            after
        };
        bed.delivered(name, &[("Created", Some(before)), ("Updated", Some(after))])
            .await;
    }
    let actions_and_values = changes(&receiver);
    let port = actions_and_values
        .iter()
        .find(|change| change["trackedField"] == "port-name" && change["action"] == "Updated")
        .unwrap();
    assert_eq!(
        port["text"],
        format!(
            "Resource kind: Service\nName: front\nStatus: Updated\nValue: other-port\nNamespace: {}\nPrevious: admin-port\n\
             Changed by: unknown",
            bed.namespace
        )
    );
    assert_eq!(
        actions_and_values.len(),
        2 * cases.len() + 2,
        "each change is sent once"
    );
    // Meanwhile the targets' statuses changed, but no tracked field did.
    assert_eq!(bed.history("port-default").await.len(), 1);
}

fn workload(replicas: i32, image: &str, side: &str, stateful: bool) -> Value {
    let containers = json!([{ "name": "main", "image": image }, { "name": "side", "image": side }]);
    let labels = json!({ "app": "app" });
    let mut spec = json!({
        "replicas": replicas,
        "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels }, "spec": { "containers": containers } },
    });
    if stateful {
        spec["serviceName"] = "app".into();
    }
    json!({ "spec": spec })
}

/// A kind of this test alone, so that no other test grants it.
pub struct Widgets {
    pub group: String,
}

impl Widgets {
    pub fn new(bed: &Bed) -> Self {
        Self {
            group: format!("{}.example.com", bed.namespace),
        }
    }

    pub async fn serve(&self, bed: &Bed) {
        self.serve_as(bed, "Namespaced", "Widget").await;
    }

    async fn serve_as(&self, bed: &Bed, scope: &str, kind: &str) {
        let group = &self.group;
        bed.apply(&format!(
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: widgets.{group}}}\n\
             spec: {{group: {group}, scope: {scope}, names: {{plural: widgets, kind: {kind}}}, versions: [{{name: v1, \
             served: true, storage: true, schema: {{openAPIV3Schema: {{type: object, \
             x-kubernetes-preserve-unknown-fields: true}}}}}}]}}"
        ))
        .await;
        let crd = format!("crd/widgets.{group}");
        bed.kubectl(&[
            "wait",
            "--for=condition=Established",
            &crd,
            "--timeout=600s",
        ])
        .await;
    }

    /// Deletes the CRD, and with it all widgets.
    pub async fn end(&self, bed: &Bed) {
        bed.kubectl(&["delete", "crd", &format!("widgets.{}", self.group)])
            .await;
    }

    /// Grants the operator reading widgets; returns once the tracker role aggregates the grant.
    pub async fn grant(&self, bed: &Bed) {
        bed.apply(&format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: track-{}, labels: \
             {{quartermaster.dev/aggregate-to-tracker: \"true\"}}}}\nrules:\n- {{apiGroups: [{:?}], resources: \
             [widgets], verbs: [get, list, watch]}}\n- {{apiGroups: [\"\"], resources: [configmaps], verbs: [get, list, \
             watch]}}",
            bed.namespace, self.group
        ))
        .await;
        until("the tracker role has the grant", SOON, async || {
            let role = [
                "get",
                "clusterrole",
                "quartermaster-tracker-role",
                "-o",
                "json",
            ];
            let role = bed.kubectl(&role).await;
            Ok(role.contains(&self.group).then_some(()))
        })
        .await
        .unwrap();
    }

    async fn put(&self, bed: &Bed, spec: Value) {
        self.put_text(bed, "one", &spec.to_string()).await;
    }

    /// Applies a widget whose spec is this JSON.
    pub async fn put_text(&self, bed: &Bed, name: &str, spec: &str) {
        let metadata = json!({ "name": name });
        let api_version = format!("{}/v1", self.group);
        bed.apply(&format!(r#"{{"apiVersion":{api_version:?},"kind":"Widget","metadata":{metadata},"spec":{spec}}}"#))
            .await;
    }

    pub fn target(&self, bed: &Bed, kind: &str, plural: &str) -> Value {
        let api_version = format!("{}/v1", self.group);
        json!({ "apiVersion": api_version, "resource": plural, "kind": kind, "namespace": bed.namespace, "name": "one" })
    }
}

pub async fn track(bed: &Bed, name: &str, target: Value, field: &str) {
    let spec = json!({ "target": target, "field": field, "contactPoint": "hook" });
    bed.create::<TrackedField>(name, json!({ "spec": spec }))
        .await;
}

#[tokio::test]
async fn other_kinds_need_a_grant_and_a_resource() {
    let bed = Bed::shared("kinds").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    let widgets = Widgets::new(&bed);
    track(
        &bed,
        "widget",
        widgets.target(&bed, "Widget", "widgets"),
        "{.spec.size}",
    )
    .await;
    let message = bed.waiting("widget", "ResourceMismatch: ").await;
    assert!(
        message.contains(&format!("does not serve {}/v1", widgets.group)),
        "{message}"
    );

    widgets.serve(&bed).await;
    widgets.put(&bed, json!({ "size": 5 })).await;
    let message = bed.waiting("widget", "Forbidden: ").await;
    for part in [
        "does not grant get, list, watch on widgets",
        "quartermaster.dev/aggregate-to-tracker: \"true\"",
        &widgets.group,
        "[\"widgets\"]",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(
        bed.event("widget", "Forbidden").await,
        message.trim_start_matches("Forbidden: ")
    );

    widgets.grant(&bed).await;
    bed.waiting("widget", "").await;
    bed.delivered("widget", &[("Created", Some("5"))]).await;
    widgets
        .put(&bed, json!({ "size": { "b": 2, "a": [1, null] } }))
        .await;
    bed.delivered(
        "widget",
        &[
            ("Created", Some("5")),
            ("Updated", Some(r#"{"a":[1,null],"b":2}"#)),
        ],
    )
    .await;

    let config = json!({ "metadata": { "name": "one" }, "data": { "app.conf": "level=info" }, "kind": "ConfigMap", "apiVersion": "v1" });
    bed.apply(&config.to_string()).await;
    let target = json!({ "apiVersion": "v1", "resource": "configmaps", "kind": "ConfigMap", "namespace": bed.namespace, "name": "one" });
    track(&bed, "config", target, r"{.data.app\.conf}").await;
    bed.delivered("config", &[("Created", Some("level=info"))])
        .await;
    bed.kubectl(&[
        "patch",
        "configmap",
        "one",
        "-p",
        r#"{"data":{"app.conf":"level=debug"}}"#,
    ])
    .await;
    bed.delivered(
        "config",
        &[
            ("Created", Some("level=info")),
            ("Updated", Some("level=debug")),
        ],
    )
    .await;

    track(
        &bed,
        "kind",
        widgets.target(&bed, "Gadget", "widgets"),
        "{.spec.size}",
    )
    .await;
    let message = bed.waiting("kind", "ResourceMismatch: ").await;
    assert!(message.ends_with("write target.kind: Widget"), "{message}");
    track(
        &bed,
        "plural",
        widgets.target(&bed, "Widget", "widgetz"),
        "{.spec.size}",
    )
    .await;
    let message = bed.waiting("plural", "ResourceMismatch: ").await;
    assert!(
        message.ends_with("has no resource \"widgetz\"; there is \"widgets\""),
        "{message}"
    );
    assert_eq!(actions_and_values(&bed.history("kind").await), []);

    // Recreated in another scope, and in the first one.
    let mut expected = vec![
        ("Created", Some("5")),
        ("Updated", Some(r#"{"a":[1,null],"b":2}"#)),
        ("Deleted", None),
    ];
    widgets.end(&bed).await;
    bed.waiting("widget", "ResourceMismatch: ").await;
    bed.delivered("widget", &expected).await;
    widgets.serve_as(&bed, "Cluster", "Widget").await;
    bed.waiting("widget", "OutOfScope: the target is cluster-scoped")
        .await;
    widgets.end(&bed).await;
    widgets.serve(&bed).await;
    widgets.put(&bed, json!({ "size": 6 })).await;
    expected.push(("Created", Some("6")));
    bed.delivered("widget", &expected).await;
}

/// A CRD that was deleted and recreated may serve the same resource in another scope, or with another kind.
#[tokio::test]
async fn recreated_kind_is_discovered_again() {
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), "anew").await;
    let receiver = Receiver::start().unwrap();
    let settings = Settings::default()
        .kubeconfig(bed.plane.admin_kubeconfig())
        .whole_cluster();
    let _operator = Operator::start(&bed, settings).await;
    bed.webhook("hook", &receiver.url()).await;
    let widgets = Widgets::new(&bed);
    let put = async |kind: &str, namespace: Option<&str>, size: u32| {
        let gvk = GroupVersionKind::gvk(&widgets.group, "v1", kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, "widgets");
        let api = match namespace {
            Some(namespace) => {
                Api::<DynamicObject>::namespaced_with(bed.client.clone(), namespace, &resource)
            }
            None => Api::all_with(bed.client.clone(), &resource),
        };
        let object = DynamicObject::new("one", &resource).data(json!({ "spec": { "size": size } }));
        // Right after its CRD the apiserver may answer 429 or 404 for a moment.
        until("the object exists", SOON, async || {
            Ok(api
                .create(&PostParams::default(), &object)
                .await
                .map(Some)?)
        })
        .await
        .unwrap();
    };
    let lies_in = async |namespace: Option<&str>| {
        bed.patch::<TrackedField>(
            "it",
            json!({ "spec": { "target": { "namespace": namespace } } }),
        )
        .await;
    };
    fill_tracker_role(&bed.plane, &[(&widgets.group, "widgets")]).await;
    widgets.serve_as(&bed, "Cluster", "Widget").await;
    put("Widget", None, 5).await;
    track(
        &bed,
        "it",
        widgets.target(&bed, "Widget", "widgets"),
        "{.spec.size}",
    )
    .await;
    // The admission policy may have reviewed the author's permissions in that namespace only.
    let message = bed
        .waiting("it", "ResourceMismatch: widgets are cluster-scoped")
        .await;
    assert!(message.ends_with("remove target.namespace"), "{message}");
    assert_eq!(actions_and_values(&bed.history("it").await), []);
    lies_in(None).await;
    let mut expected = vec![("Created", Some("5"))];
    bed.delivered("it", &expected).await;

    // Deleted for a while,
    widgets.end(&bed).await;
    bed.waiting("it", "ResourceMismatch: ").await;
    expected.push(("Deleted", None));
    bed.delivered("it", &expected).await;
    widgets.serve_as(&bed, "Namespaced", "Widget").await;
    put("Widget", Some(&bed.namespace), 6).await;
    bed.waiting("it", "ResourceMismatch: widgets are namespaced")
        .await;
    lies_in(Some(&bed.namespace)).await;
    expected.push(("Created", Some("6")));
    bed.delivered("it", &expected).await;
    bed.waiting("it", "").await;

    // and recreated so soon that no watch may have noticed.
    widgets.end(&bed).await;
    widgets.serve_as(&bed, "Cluster", "Gadget").await;
    put("Gadget", None, 7).await;
    expected.push(("Deleted", None));
    bed.delivered("it", &expected).await;
    let message = bed.waiting("it", "ResourceMismatch: widgets of ").await;
    assert!(message.ends_with("write target.kind: Gadget"), "{message}");
    bed.patch::<TrackedField>("it", json!({ "spec": { "target": { "kind": "Gadget" } } }))
        .await;
    bed.waiting("it", "ResourceMismatch: widgets are cluster-scoped")
        .await;
    lies_in(None).await;
    expected.push(("Created", Some("7")));
    bed.delivered("it", &expected).await;
    bed.waiting("it", "").await;
}

#[tokio::test]
async fn kinds_that_need_no_api_version_are_tracked_by_word_or_path() {
    let bed = Bed::shared("builtin").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    let manifests = |image: &str, host: &str, most: u32| {
        let pod = format!(
            "{{metadata: {{labels: {{app: a}}}}, spec: {{containers: [{{name: main, image: '{image}'}}, {{name: side, image: \
             'side:1'}}]"
        );
        let batch = format!("{pod}, restartPolicy: Never}}}}");
        format!(
            "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: agent}}\nspec: {{selector: {{matchLabels: {{app: a}}}}, \
             template: {pod}}}}}}}\n---\n\
             apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: nightly}}\nspec: {{schedule: '0 0 * * *', jobTemplate: \
             {{spec: {{template: {batch}}}}}}}\n---\n\
             apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: front}}\nspec: {{rules: [{{host: {host}}}]}}\n\
             ---\n\
             apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {{name: scaler}}\nspec: {{maxReplicas: \
             {most}, scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}, metrics: [{{type: Resource, \
             resource: {{name: cpu, target: {{type: Utilization, averageUtilization: {most}}}}}}}]}}\n"
        )
    };
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: once}\nspec: {template: {spec: {restartPolicy: Never, \
               containers: [{name: main, image: 'job:1'}]}}}\n";
    bed.apply(&format!(
        "{}---\n{job}",
        manifests("main:1", "a.example.com", 3)
    ))
    .await;
    let images = |main: &str| format!(r#"["{main}","side:1"]"#);
    let (before, after) = (images("main:1"), images("main:2"));
    let cases = [
        ("DaemonSet", "agent", "images", &*before, &*after),
        ("DaemonSet", "agent", "image:main", "main:1", "main:2"),
        ("CronJob", "nightly", "image", "main:1", "main:2"),
        ("CronJob", "nightly", "images", &before, &after),
        (
            "Ingress",
            "front",
            "{.spec.rules[*].host}",
            "a.example.com",
            "b.example.com",
        ),
        (
            "HorizontalPodAutoscaler",
            "scaler",
            "{.spec.metrics[0].resource.target.averageUtilization}",
            "3",
            "4",
        ),
    ];
    let name = |number: usize| format!("field-{number}");
    for (number, (kind, target, field, ..)) in cases.iter().enumerate() {
        bed.track(&name(number), kind, target, field, "hook").await;
    }
    // A Job's template cannot change.
    bed.track("job", "Job", "once", "images", "hook").await;
    bed.delivered("job", &[("Created", Some("job:1"))]).await;
    for (number, (.., value, _)) in cases.iter().enumerate() {
        bed.delivered(&name(number), &[("Created", Some(value))])
            .await;
    }
    // A target whose kind is watched already is read.
    let again = [
        "DaemonSet/agent",
        "Job/once",
        "CronJob/nightly",
        "Ingress/front",
        "HorizontalPodAutoscaler/scaler",
    ];
    for (number, target) in again.iter().enumerate() {
        let (kind, target) = target.split_once('/').unwrap();
        let name = format!("again-{number}");
        bed.track(&name, kind, target, "{.metadata.name}", "hook")
            .await;
        bed.delivered(&name, &[("Created", Some(target))]).await;
    }
    bed.apply(&manifests("main:2", "b.example.com", 4)).await;
    for (number, (.., value, next)) in cases.iter().enumerate() {
        let both = [("Created", Some(*value)), ("Updated", Some(*next))];
        bed.delivered(&name(number), &both).await;
    }
}

#[tokio::test]
async fn context_and_writer_are_recorded_with_each_change() {
    let bed = Bed::shared("context").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    let long = "я".repeat(200);
    let manifest = |image: &str, owner: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, annotations: {{example.com/owner: '{owner}', long: \
             '{long}'}}}}\nspec: {{replicas: 1, selector: {{matchLabels: {{app: a}}}}, template: {{metadata: {{labels: {{app: a}}}}, \
             spec: {{containers: [{{name: web, image: '{image}'}}]}}}}}}"
        )
    };
    bed.apply(&manifest("web:1", "@one")).await;
    let track = async |name: &str, field: &str| {
        let spec = json!({
            "contactPoint": "hook",
            "field": field,
            "target": { "kind": "Deployment", "namespace": bed.namespace, "name": "web" },
            "context": { "owner": r"{.metadata.annotations.example\.com/owner}", "long": "{.metadata.annotations.long}", "none": "{.spec.none}" },
            "template": "{{ value }} {{ context.owner }} [{{ context.none }}]{% if changedBy %} by {{ changedBy.manager }}{% endif %}",
        });
        bed.create::<TrackedField>(name, json!({ "spec": spec }))
            .await;
    };
    track("image", "image").await;
    track("replicas", "replicas").await;
    bed.delivered("image", &[("Created", Some("web:1"))]).await;
    bed.delivered("replicas", &[("Created", Some("1"))]).await;

    // The owner alone is no change; the next change has it.
    bed.apply(&manifest("web:1", "@two")).await;
    bed.apply(&manifest("web:2", "@two")).await;
    let updated = [("Created", Some("web:1")), ("Updated", Some("web:2"))];
    let history = bed.delivered("image", &updated).await;
    let owner = |at: usize| history[at].context["owner"].as_str();
    assert_eq!((owner(0), owner(1)), ("@one", "@two"));
    assert_eq!(history[1].context["none"], "");
    assert_eq!(history[1].context["long"], "я".repeat(128));
    let writer = history[1].changed_by.as_ref().unwrap();
    assert_eq!(
        (&*writer.manager, writer.operation.as_deref()),
        ("kubectl", Some("Apply"))
    );
    assert!(writer.time.is_some());

    // A subresource is named.
    bed.kubectl(&["scale", "deployment/web", "--replicas=3"])
        .await;
    let scaled = [("Created", Some("1")), ("Updated", Some("3"))];
    let history = bed.delivered("replicas", &scaled).await;
    let writer = history[1].changed_by.as_ref().unwrap();
    assert_eq!(writer.to_string(), "kubectl (scale)");

    // A Deleted entry has the last known context.
    bed.kubectl(&["delete", "deployment", "web"]).await;
    let deleted = [updated[0], updated[1], ("Deleted", None)];
    let history = bed.delivered("image", &deleted).await;
    assert_eq!(history[2].context["owner"], "@two");
    assert_eq!(history[2].changed_by, None);
    let texts = texts(&receiver);
    assert!(
        texts.iter().any(|text| text == "web:2 @two [] by kubectl"),
        "{texts:?}"
    );
}

#[tokio::test]
async fn change_is_sent_only_when_the_expression_says_so() {
    let bed = Bed::shared("when").await;
    let receiver = Receiver::start().unwrap();
    let operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    bed.create::<Deployment>("web", workload(3, "web:1", "side:1", false))
        .await;
    let mut spec = json!({
        "contactPoint": "hook",
        "field": "replicas",
        "target": { "kind": "Deployment", "namespace": bed.namespace, "name": "web" },
        "when": "action == 'Updated' && number(value) < number(previous)",
    });
    bed.create::<TrackedField>("shrinks", json!({ "spec": spec }))
        .await;
    let recorded = async |count: usize| {
        let is_complete = |field: &TrackedField| {
            let history = field.history().unwrap();
            history.len() == count && !history.iter().any(Entry::is_pending)
        };
        let what = format!("has {count} entries, none of them Pending");
        bed.until("shrinks", &what, is_complete)
            .await
            .history()
            .unwrap()
    };
    let scale = async |replicas: u32| {
        bed.patch::<Deployment>("web", json!({ "spec": { "replicas": replicas } }))
            .await;
    };
    recorded(1).await;
    for (count, replicas) in [(2, 5), (3, 2), (4, 4)] {
        scale(replicas).await;
        recorded(count).await;
    }
    let history = recorded(4).await;
    let sent: Vec<_> = history
        .iter()
        .map(|entry| (entry.delivery, entry.skipped))
        .collect();
    let (skip, sends) = (
        (None, Some(Skipped::When)),
        (Some(Delivery::Delivered), None),
    );
    assert_eq!(sent, [skip, skip, sends, skip]);
    let texts = texts(&receiver);
    assert_eq!(texts.len(), 2, "{texts:?}"); // after the test message
    assert!(
        texts[1].contains("Value: 2\n") && texts[1].contains("Previous: 5\n"),
        "{texts:?}"
    );
    let row = bed.kubectl(&["get", "tf", "shrinks", "--no-headers"]).await;
    assert!(row.contains(" When "), "{row}");
    let skipped = "quartermaster_entries_skipped_total{reason=\"When\"} 3";
    let metrics = operator.metrics().await;
    assert!(metrics.lines().any(|line| line == skipped), "{metrics}");

    // A skipped entry takes one write, and one that is sent two.
    let since = bed.plane.audit().mark().await.unwrap();
    for (count, replicas) in [(5, 5), (6, 6), (7, 3)] {
        scale(replicas).await;
        recorded(count).await;
    }
    let written = until("all writes are in the audit log", SOON, async || {
        let writes = bed.plane.audit().writes(since).await?;
        let of_field = writes
            .iter()
            .filter(|(subject, _)| subject.namespace == bed.namespace && subject.name == "shrinks");
        let written: usize = of_field.map(|(_, count)| count).sum();
        // The apiserver logs a request after it has answered.
        anyhow::ensure!(written >= 4, "{written}");
        Ok(Some(written))
    });
    assert_eq!(written.await.unwrap(), 4);

    // An expression that fails sends the message and is reported, before any further change.
    let when = |when: &str| json!({ "spec": { "when": when } });
    bed.patch::<TrackedField>("shrinks", when("number(kind) > 1.0"))
        .await;
    let message = bed.waiting("shrinks", "WhenInvalid: ").await;
    assert!(
        message.contains(
            "failed for the newest change: line 1, column 1: number: \"Deployment\" is not a number"
        ),
        "{message}"
    );
    scale(1).await;
    assert_eq!(recorded(8).await[7].delivery, Some(Delivery::Delivered));
    bed.patch::<TrackedField>("shrinks", when("valu == '1'"))
        .await;
    let message = bed
        .waiting(
            "shrinks",
            "WhenInvalid: spec.when: line 1, column 1: unknown variable valu",
        )
        .await;
    assert!(
        message.contains("until the expression is fixed, a message is sent for every change"),
        "{message}"
    );
    scale(7).await;
    assert_eq!(recorded(9).await[8].delivery, Some(Delivery::Delivered));
    let errors = "quartermaster_when_errors_total 2";
    let metrics = operator.metrics().await;
    assert!(metrics.lines().any(|line| line == errors), "{metrics}");
    bed.patch::<TrackedField>("shrinks", when("value == '7'"))
        .await;
    bed.waiting("shrinks", "").await;

    // All variables that a change has.
    spec["context"] = json!({ "image": "{.spec.template.spec.containers[0].image}" });
    spec["when"] = format!(
        "__namespace__ == '{}' && kind == 'Deployment' && name == 'web' && field == 'replicas' && value == '7' && !missing \
         && previous == null && action == 'Created' && context.image == 'web:1' && changedBy != null",
        bed.namespace
    )
    .into();
    bed.create::<TrackedField>("variables", json!({ "spec": spec }))
        .await;
    bed.delivered("variables", &[("Created", Some("7"))]).await;
    bed.waiting("variables", "").await;
}

#[tokio::test]
async fn missing_empty_false_and_null_are_four_values() {
    let bed = Bed::shared("nothing").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    let widgets = Widgets::new(&bed);
    widgets.serve(&bed).await;
    widgets.grant(&bed).await;
    widgets.put(&bed, json!({ "other": 1 })).await;
    track(
        &bed,
        "it",
        widgets.target(&bed, "Widget", "widgets"),
        "{.spec.it}",
    )
    .await;
    let mut expected = vec![("Created", None)];
    bed.delivered("it", &expected).await;
    let steps = [
        (json!({ "it": "" }), ""),
        (json!({ "it": false }), "false"),
        (json!({ "it": null }), "null"),
        (json!({ "it": 0 }), "0"),
    ];
    for (spec, value) in steps {
        // Replaced, not applied: apply removes fields with null.
        let api_version = format!("{}/v1", widgets.group);
        let object = json!({ "apiVersion": api_version, "kind": "Widget", "metadata": { "name": "one" }, "spec": spec });
        let replace = ["-n", &bed.namespace, "replace", "-f", "-"];
        bed.plane
            .run_kubectl(&replace, &object.to_string())
            .await
            .unwrap();
        expected.push(("Updated", Some(value)));
        bed.delivered("it", &expected).await;
    }
    widgets.put(&bed, json!({})).await;
    let take_away = r#"[{"op":"remove","path":"/spec/it"}]"#;
    bed.kubectl(&[
        "patch",
        &format!("widgets.{}/one", widgets.group),
        "--type=json",
        "-p",
        take_away,
    ])
    .await;
    expected.push(("Updated", None));
    let history = bed.delivered("it", &expected).await;
    let missing: Vec<bool> = history.iter().map(|entry| entry.missing).collect();
    assert_eq!(missing, [true, false, false, false, false, true]);
    let values: Vec<String> = texts(&receiver)
        .iter()
        .filter_map(|text| {
            text.lines()
                .find(|line| line.starts_with("Value:"))
                .map(str::to_owned)
        })
        .collect();
    assert_eq!(
        values,
        [
            "Value: (not set)",
            "Value: ",
            "Value: false",
            "Value: null",
            "Value: 0",
            "Value: (not set)"
        ]
    );
}

/// Newlines and marks that change the direction of text are spaces in the operator's own texts; event data and templates
/// get the value itself.
#[tokio::test]
async fn value_cannot_forge_lines_of_a_message() {
    let value = "1\nNamespace: prod\r\u{2028}Status: Deleted\u{202e}\u{2066}\u{61c}x";
    let shown = "1 Namespace: prod  Status: Deleted   x";
    let bed = Bed::shared("forged").await;
    let (receiver, telegram) = (Receiver::start().unwrap(), bot_api());
    let _operator = Operator::start(&bed, Settings::default().telegram(&telegram.url())).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.telegram("chat", TOKEN, CHAT).await;
    bed.ready("chat").await;
    bed.deployment("web", 1).await;
    let annotation = json!({ "metadata": { "annotations": { "note": value } } });
    bed.patch::<Deployment>("web", annotation).await;
    let track = async |name: &str, contact_point: &str, template: Option<&str>| {
        let spec = json!({
            "contactPoint": contact_point,
            "field": "{.metadata.annotations.note}",
            "target": { "kind": "Deployment", "namespace": bed.namespace, "name": "web" },
            "template": template,
        });
        bed.create::<TrackedField>(name, json!({ "spec": spec }))
            .await;
    };
    track("default", "chat", None).await;
    track("event", "hook", None).await;
    track("template", "hook", Some("{{ value }}")).await;
    for name in ["default", "event", "template"] {
        bed.delivered(name, &[("Created", Some(value))]).await;
    }
    let text = telegram.messages()[1].text.clone();
    let expected = format!(
        "Resource kind: Deployment\nName: web\nStatus: Created\nValue: {shown}\nNamespace: {}",
        bed.namespace
    );
    assert_eq!(text, expected);
    for change in changes(&receiver) {
        assert_eq!(change["value"], value);
        let is_templated = change["trackedField"] == "template";
        let expected = if is_templated { value } else { &expected };
        assert_eq!(change["text"], expected);
    }

    let digests = json!({ "spec": { "digestSeconds": 300 } });
    bed.patch::<ContactPoint>("chat", digests).await;
    let is_pending = |field: &TrackedField| field.history().unwrap().iter().any(Entry::is_pending);
    for name in ["a", "b"] {
        track(name, "chat", None).await;
        bed.until(name, "has a Pending entry", is_pending).await;
    }
    let request =
        json!({ "metadata": { "annotations": { "quartermaster.dev/requested-at": "1" } } });
    bed.patch::<ContactPoint>("chat", request).await;
    for name in ["a", "b"] {
        bed.delivered(name, &[("Created", Some(value))]).await;
    }
    let digest = telegram.messages()[2].text.clone();
    let line = format!(
        "Deployment {}/web {{.metadata.annotations.note}}: Created {shown}",
        bed.namespace
    );
    assert_eq!(digest.lines().skip(1).collect::<Vec<_>>(), [&line; 2]);
}

#[tokio::test]
async fn change_there_and_back_gives_two_entries() {
    let bed = Bed::shared("breath").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.track("replicas", "Deployment", "web", "replicas", "hook")
        .await;
    let mut expected = vec![("Created", Some("1"))];
    bed.delivered("replicas", &expected).await;
    for _ in 0..10 {
        bed.scale("web", 3).await;
        bed.scale("web", 1).await;
        expected.extend([("Updated", Some("3")), ("Updated", Some("1"))]);
    }
    let history = bed.delivered("replicas", &expected).await;
    let ids: Vec<_> = history
        .iter()
        .map(|entry| entry.id.clone().unwrap())
        .collect();
    let actions_and_values: Vec<_> = changes(&receiver)
        .iter()
        .map(|change| change["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(actions_and_values, ids, "in order, each once");
}

#[tokio::test]
async fn recreated_or_changed_target_starts_with_created() {
    let bed = Bed::shared("series").await;
    let receiver = Receiver::start().unwrap();
    let operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.deployment("other", 7).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    let mut expected = vec![("Created", Some("1"))];
    bed.delivered("it", &expected).await;

    bed.delete::<Deployment>("web").await;
    expected.push(("Deleted", None));
    bed.delivered("it", &expected).await;
    bed.waiting("it", "TargetNotFound: Deployment ").await;
    bed.deployment("web", 2).await;
    expected.push(("Created", Some("2")));
    bed.delivered("it", &expected).await;
    bed.waiting("it", "").await;

    bed.patch::<TrackedField>("it", json!({ "spec": { "field": "image" } }))
        .await;
    expected.push(("Created", Some("nginx:latest")));
    bed.delivered("it", &expected).await;
    bed.patch::<TrackedField>(
        "it",
        json!({ "spec": { "field": "replicas", "target": { "name": "other" } } }),
    )
    .await;
    expected.push(("Created", Some("7")));
    let history = bed.delivered("it", &expected).await;
    let last = history.last().unwrap();
    assert_eq!(
        last.subject.as_ref().unwrap().as_str(),
        format!("Deployment/{}/other/replicas", bed.namespace)
    );
    bed.scale("web", 9).await;
    bed.scale("other", 8).await;
    expected.push(("Updated", Some("8")));
    bed.delivered("it", &expected).await;
    receiver
        .wait_for(SOON, |_| changes(&receiver).len() == expected.len())
        .await
        .unwrap();
    let changes = changes(&receiver);
    assert_eq!(
        changes[3]["previous"],
        Value::Null,
        "the value of another field is no previous value"
    );
    assert_eq!(changes[5]["previous"], "7");

    bed.service("front", json!([{ "port": 80, "targetPort": 8080 }]))
        .await;
    let front = json!({ "field": "targetPort", "target": { "kind": "Service", "name": "front" } });
    bed.patch::<TrackedField>("it", json!({ "spec": front }))
        .await;
    expected.push(("Created", Some("8080")));
    bed.delivered("it", &expected).await;
    let ended = r#""msg":"stopped the watch of a resource that no object names any more","apiVersion":"apps/v1","resource":"deployments""#;
    assert!(
        operator.logs().contains(ended),
        "nobody watches Deployments any more"
    );
}

#[tokio::test]
async fn quiet_field_that_changes_and_comes_back_sends_no_old_value() {
    let bed = Bed::shared("quiet").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let target = json!({ "kind": "Deployment", "namespace": bed.namespace, "name": "web" });
    let spec = json!({ "target": target, "field": "replicas", "contactPoint": "hook", "initial": "Quiet" });
    bed.create::<TrackedField>("it", json!({ "spec": spec }))
        .await;
    let values = ["1", "nginx:latest", "1"];
    for (number, field) in (1..).zip(["replicas", "image", "replicas"]) {
        bed.patch::<TrackedField>("it", json!({ "spec": { "field": field } }))
            .await;
        let what = format!("{number} quiet entries");
        bed.until("it", &what, |it: &TrackedField| {
            let history = it.history().unwrap();
            let shown = history.iter().map(|entry| entry.value.as_deref());
            shown.eq(values[..number].iter().copied().map(Some))
                && history
                    .iter()
                    .all(|entry| entry.skipped == Some(Skipped::Initial) && !entry.is_pending())
        })
        .await;
    }
    bed.scale("web", 2).await;
    receiver
        .wait_for(SOON, |_| !changes(&receiver).is_empty())
        .await
        .unwrap();
    let changes = changes(&receiver);
    assert_eq!(changes.len(), 1);
    assert_eq!(
        (&changes[0]["previous"], &changes[0]["value"]),
        (&json!("1"), &json!("2"))
    );
}
