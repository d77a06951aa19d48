//! `quartermaster uninstall` while the operator runs.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, ListParams};
use qm_api::{AppService, ConfigMapSync, MyApp, MyIngress, TrackedFieldSet};
use quartermaster::controllers;
use serde_json::{Value, json};
use testbed::aws::{Aws, SUBNETS};
use testbed::receiver::Receiver;
use testbed::wait::until;

use super::{Run, all_kinds, user_with};
use crate::support::{Bed, Operator, Plane, SOON, Settings, changes};

/// An object of each kind in a namespace, with its children.
pub(super) struct Scene {
    pub bed: Bed,
    pub far: Bed,
    pub aws: Aws,
    pub receiver: Receiver,
}

impl Scene {
    pub(super) async fn on(plane: Plane, name: &str) -> Self {
        let bed = Bed::on(plane.clone(), name).await;
        let far = Bed::on(plane, &format!("{name}-far")).await;
        let scene = Self {
            bed,
            far,
            aws: Aws::start().await.unwrap(),
            receiver: Receiver::start().unwrap(),
        };
        scene.make().await;
        scene
    }

    async fn make(&self) {
        let Self {
            bed, far, receiver, ..
        } = self;
        let here = &bed.namespace;
        bed.webhook("hook", &receiver.url()).await;
        // The kind that notifies of the app's deletion is deleted first.
        bed.track("field", "Deployment", "app", "replicas", "hook")
            .await;
        bed.create::<ConfigMap>("settings", json!({ "data": { "a": "1" } }))
            .await;
        let spec = json!({ "target": { "kind": "Deployment", "names": { "include": ["nothing"] } },
            "fields": ["replicas"], "template": { "contactPoint": "hook" } });
        bed.create::<TrackedFieldSet>("set", json!({ "spec": spec }))
            .await;
        let spec = json!({ "sourceNamespace": here, "destinationNamespaces": [here, far.namespace],
            "configMapName": "settings", "destinationName": "copy" });
        bed.create::<ConfigMapSync>("sync", json!({ "spec": spec }))
            .await;
        bed.create::<MyApp>("banner", json!({ "spec": { "image": "nginx:1" } }))
            .await;
        let spec = json!({ "size": 1, "image": "nginx:1", "ports": [{ "port": 80 }], "serviceType": "ClusterIP" });
        bed.create::<AppService>("app", json!({ "spec": spec }))
            .await;
        bed.create::<MyIngress>("web", json!({ "spec": { "subnets": SUBNETS[..2] } }))
            .await;
    }

    pub(super) fn settings(&self) -> Settings {
        Settings::default().aws(&self.aws).flag(&format!(
            "--watch-namespace={},{}",
            self.bed.namespace, self.far.namespace
        ))
    }

    pub(super) async fn all_ready(&self) {
        let Self { bed, far, .. } = self;
        let ready = |status: Value| {
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            conditions
                .iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        bed.delivered("field", &[("Created", Some("1"))]).await;
        bed.until("set", "is ready", |it: &TrackedFieldSet| {
            ready(json!(it.status))
        })
        .await;
        bed.until("sync", "is ready", |it: &ConfigMapSync| {
            ready(json!(it.status))
        })
        .await;
        bed.until("banner", "is ready", |it: &MyApp| ready(json!(it.status)))
            .await;
        bed.until("app", "is ready", |it: &AppService| ready(json!(it.status)))
            .await;
        bed.until("web", "is ready", |it: &MyIngress| ready(json!(it.status)))
            .await;
        far.api::<ConfigMap>().get("copy").await.unwrap();
    }

    /// Returns the remaining objects of the namespace, as `PLURAL/NAME`.
    pub(super) async fn remaining(&self) -> Vec<String> {
        let mut left = Vec::new();
        for kind in controllers::KINDS {
            let resource = kind.resource();
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.bed.client.clone(), &self.bed.namespace, &resource);
            let Ok(all) = api.list(&ListParams::default()).await else {
                continue;
            };
            left.extend(
                all.iter()
                    .map(|object| format!("{}/{}", resource.plural, object.name_any())),
            );
        }
        left
    }

    /// Returns the children that exist.
    pub(super) async fn children(&self) -> Vec<&'static str> {
        let Self { bed, far, aws, .. } = self;
        let there = [
            (
                "copy",
                far.api::<ConfigMap>()
                    .get_opt("copy")
                    .await
                    .unwrap()
                    .is_some(),
            ),
            (
                "copy here",
                bed.api::<ConfigMap>()
                    .get_opt("copy")
                    .await
                    .unwrap()
                    .is_some(),
            ),
            (
                "pod",
                bed.api::<Pod>()
                    .get_opt("banner-pod")
                    .await
                    .unwrap()
                    .is_some(),
            ),
            (
                "deployment",
                bed.api::<Deployment>()
                    .get_opt("app")
                    .await
                    .unwrap()
                    .is_some(),
            ),
            (
                "service",
                bed.api::<Service>().get_opt("app").await.unwrap().is_some(),
            ),
            ("balancer", aws.balancer("web-alb").await.unwrap().is_some()),
        ];
        there
            .into_iter()
            .filter(|(_, there)| *there)
            .map(|(name, _)| name)
            .collect()
    }
}

pub(super) const ALL: [&str; 6] = [
    "copy",
    "copy here",
    "pod",
    "deployment",
    "service",
    "balancer",
];

#[tokio::test]
async fn uninstall_deletes_one_namespace_in_order_and_notifies_nobody() {
    let shared = Bed::shared("uninstall").await;
    let scene = Scene::on(shared.plane.clone(), "uninstall-one").await;
    let _operator = Operator::start(&scene.bed, scene.settings()).await;
    scene.all_ready().await;
    let run = Run::on(&scene.bed);
    let here = scene.bed.namespace.as_str();

    // A dry run shows the same as a run without a terminal.
    let dry = run.ends(0, &["uninstall", "-n", here, "--dry-run"]).await;
    let dry = dry
        .strip_suffix("Dry run: nothing was deleted.\n")
        .unwrap_or_else(|| panic!("{dry}"));
    let plan = run.ends(2, &["uninstall", "-n", here]).await;
    assert!(plan.starts_with(dry), "{dry}\n{plan}");
    for (kind, with) in [
        ("MyIngress", "load balancers in AWS"),
        ("ConfigMapSync", "copies"),
        ("TrackedField", ""),
    ] {
        let line = plan
            .lines()
            .find(|line| line.starts_with(kind))
            .unwrap_or_else(|| panic!("{plan}"));
        assert!(
            line.contains(with) && line.contains(&format!("{here}/")),
            "{plan}"
        );
    }
    assert!(
        plan.ends_with("Nothing was deleted: without a terminal, this command needs --yes.\n"),
        "{plan}"
    );
    assert_eq!(
        (scene.remaining().await.len(), scene.children().await),
        (7, ALL.to_vec())
    );

    let since = scene.bed.plane.audit().mark().await.unwrap();
    let done = run.ends(0, &["uninstall", "-n", here, "--yes"]).await;
    assert!(
        done.ends_with(&format!("Everything is deleted in namespace {here}.\n")),
        "{done}"
    );
    assert_eq!(
        (scene.remaining().await, scene.children().await),
        (vec![], vec![])
    );
    // The kinds are deleted in this order, each object once.
    let requests = scene
        .bed
        .plane
        .audit()
        .requests(since)
        .await
        .unwrap()
        .into_iter()
        .map(|request| request.subject);
    let deleted =
        requests.filter(|it| it.verb == "delete" && it.namespace == here && it.user == "admin");
    let deleted: Vec<_> = deleted.map(|it| it.resource).collect();
    let order = [
        "trackedfieldsets",
        "trackedfields",
        "contactpoints",
        "myingresses",
        "appservices",
        "myapps",
        "configmapsyncs",
    ];
    let plurals: Vec<_> = deleted
        .iter()
        .map(|it| it.split('.').next().unwrap().to_owned())
        .collect();
    assert_eq!(plurals, order);
    let sent: Vec<_> = changes(&scene.receiver)
        .iter()
        .map(|change| change["action"].clone())
        .collect();
    assert_eq!(sent, ["Created"]);
    let source = scene
        .bed
        .api::<ConfigMap>()
        .get_opt("settings")
        .await
        .unwrap();
    assert!(source.is_some(), "foreign objects stay");

    assert!(
        run.ends(0, &["uninstall", "-n", here])
            .await
            .starts_with("There is nothing to delete")
    );
}

#[tokio::test]
async fn keep_children_keeps_every_child() {
    let shared = Bed::shared("keep").await;
    let scene = Scene::on(shared.plane.clone(), "uninstall-keep").await;
    let operator = Operator::start(&scene.bed, scene.settings()).await;
    scene.all_ready().await;
    let uids = async || {
        let app: Deployment = scene.bed.api().get("app").await.unwrap();
        let pod: Pod = scene.bed.api().get("banner-pod").await.unwrap();
        let copy: ConfigMap = scene.far.api().get("copy").await.unwrap();
        [
            app.uid(),
            pod.uid(),
            copy.uid(),
            Some(scene.aws.balancer("web-alb").await.unwrap().unwrap().arn),
        ]
    };
    let before = uids().await;
    let run = Run::on(&scene.bed);
    let here = scene.bed.namespace.as_str();
    run.ends(0, &["uninstall", "-n", here, "--keep-children", "--yes"])
        .await;
    assert_eq!(
        (scene.remaining().await, scene.children().await),
        (vec![], ALL.to_vec())
    );
    assert_eq!(uids().await, before);
    // No child has an owner left, so the garbage collector deletes none later.
    let app: Deployment = scene.bed.api().get("app").await.unwrap();
    let pod: Pod = scene.bed.api().get("banner-pod").await.unwrap();
    let copy: ConfigMap = scene.bed.api().get("copy").await.unwrap();
    for owners in [
        app.owner_references(),
        pod.owner_references(),
        copy.owner_references(),
    ] {
        assert_eq!(owners, []);
    }
    assert!(!operator.logs().contains("DeleteLoadBalancer"));

    // A new install owns children of the same names again.
    scene
        .bed
        .create::<MyIngress>("web", json!({ "spec": { "subnets": SUBNETS[..2] } }))
        .await;
    let arn = |it: &MyIngress| {
        it.status
            .as_ref()
            .and_then(|status| status.alb.as_ref()?.arn.clone())
    };
    let back = scene
        .bed
        .until("web", "has its load balancer again", |it: &MyIngress| {
            arn(it).is_some()
        })
        .await;
    assert_eq!(arn(&back), before[3]);
}

#[tokio::test]
async fn blockers_are_named_and_can_be_removed() {
    let shared = Bed::shared("held").await;
    let scene = Scene::on(shared.plane.clone(), "uninstall-held").await;
    let _operator = Operator::start(&scene.bed, scene.settings()).await;
    scene.all_ready().await;
    let run = Run::on(&scene.bed);
    let here = scene.bed.namespace.as_str();
    let arn = scene.aws.balancer("web-alb").await.unwrap().unwrap().arn;
    scene.aws.protect(&arn, true).await.unwrap();
    let finalizers = |all: &[&str]| json!({ "metadata": { "finalizers": all } });
    scene
        .bed
        .patch::<MyApp>("banner", finalizers(&["example.com/theirs"]))
        .await;
    // Document 003's program leaves this finalizer on an adopted object.
    let finalizer = "quartermaster.dev/load-balancer";
    scene
        .bed
        .patch::<MyIngress>(
            "web",
            finalizers(&["kopf.zalando.org/KopfFinalizerMarker", finalizer]),
        )
        .await;

    // The garbage collector discovers new kinds every 30 s only, and on a new control plane all are new.
    let arguments = ["uninstall", "-n", here, "--yes", "--timeout=8s"];
    let output = until("the other objects are deleted", SOON, async || {
        let output = run.ends(1, &arguments).await;
        Ok(output
            .contains("\n2 objects remain. Fix the problems above")
            .then_some(output))
    })
    .await
    .unwrap();
    let blocked =
        "  quartermaster.dev/load-balancer: DeletionProtected: deletion protection is enabled";
    assert!(
        output.contains(blocked) && output.contains("modify-load-balancer-attributes"),
        "{output}"
    );
    assert!(output.contains(&format!(
        "Remaining: myingress/web in {here}\n  kopf.zalando.org/KopfFinalizerMarker: the program that set"
    )));
    assert!(
        output.contains(&format!(
            "Remaining: myapp/banner in {here}\n  example.com/theirs: the program that set the finalizer must remove it"
        )),
        "{output}"
    );
    assert!(
        output.contains(&format!("uninstall --keep-children -n {here}")),
        "{output}"
    );
    assert_eq!(
        scene.remaining().await.len(),
        2,
        "nothing blocks the others"
    );

    // The printed commands remove the foreign finalizers, and no others ...
    let left = output.lines().filter(|line| line.starts_with("  "));
    let ways: Vec<_> = left
        .filter_map(|line| line.split_once("that program no longer runs: "))
        .collect();
    assert_eq!(ways.len(), 2, "{output}");
    for (_, command) in ways {
        Run::on(&scene.bed)
            .shell(&scene.bed)
            .ends(0, &["-c", command])
            .await;
    }
    assert_eq!(scene.remaining().await, ["myingresses/web"]);
    assert_eq!(
        scene
            .bed
            .api::<MyIngress>()
            .get("web")
            .await
            .unwrap()
            .finalizers(),
        [finalizer]
    );
    // ... and the other command frees the MyIngress, whose load balancer stays unchanged.
    run.ends(0, &["uninstall", "-n", here, "--keep-children", "--yes"])
        .await;
    assert_eq!(scene.remaining().await, [""; 0]);
    assert!(
        scene
            .aws
            .balancer("web-alb")
            .await
            .unwrap()
            .unwrap()
            .deletion_protection
    );
}

#[tokio::test]
async fn missing_permission_is_named_at_once() {
    let bed = Bed::shared("denied").await;
    bed.webhook("hook", "http://127.0.0.1:1").await;
    let file = user_with(&bed, "get,list", &all_kinds()).await;
    let output = Run::on(&bed)
        .kubeconfig(file)
        .ends(1, &["uninstall", "-n", &bed.namespace, "--yes"])
        .await;
    assert!(
        output.contains(
            "Some of these objects may belong to another program, because not every CRD could be read: custom"
        ),
        "{output}"
    );
    assert!(
        output.contains("cannot delete resource \"contactpoints\" in API group \"tg.azamaton.ru\""),
        "{output}"
    );
}

/// The whole cluster and the CRDs, while a user keeps creating objects.
#[tokio::test]
async fn purge_leaves_nothing() {
    let first = Bed::on_own_plane("purge").await;
    let scene = Scene::on(first.plane.clone(), "purge-one").await;
    let settings = Settings::default()
        .aws(&scene.aws)
        .whole_cluster()
        .leader_election(100);
    let mut operator = Operator::start(&scene.bed, settings).await;
    scene.all_ready().await;
    let run = Run::on(&scene.bed);

    let output = run.ends(0, &["uninstall", "--yes"]).await;
    assert!(
        output.contains("The operator and its CRDs stay"),
        "{output}"
    );
    assert_eq!(
        (scene.remaining().await, scene.children().await),
        (vec![], vec![])
    );
    let crds = async || scene.bed.kubectl(&["get", "crds", "-o", "name"]).await;
    for kind in controllers::KINDS {
        assert!(crds().await.contains(&kind.crd_name()));
    }

    // A restarted operator continues the deletions, although the CRD is being deleted, too.
    scene
        .bed
        .create::<MyIngress>("again", json!({ "spec": { "subnets": SUBNETS[..2] } }))
        .await;
    let made = |it: &MyIngress| {
        it.status
            .as_ref()
            .is_some_and(|it| it.alb.as_ref().is_some_and(|alb| alb.arn.is_some()))
    };
    scene.bed.until("again", "has a load balancer", made).await;
    operator.kill();
    let crd = "myingresses.demo.rtfm.co.ua";
    scene
        .bed
        .kubectl(&["delete", "crd", crd, "--wait=false"])
        .await;
    let stuck = |it: &MyIngress| it.metadata.deletion_timestamp.is_some();
    scene.bed.until("again", "stays Terminating", stuck).await;
    operator.restart();
    until("object and CRD are deleted", SOON, async || {
        Ok((!crds().await.contains(crd)).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(scene.aws.balancers().await.unwrap(), []);

    // Objects that are created meanwhile are deleted, too.
    first.webhook("late", "http://127.0.0.1:1").await;
    first
        .patch::<qm_api::ContactPoint>(
            "late",
            json!({ "metadata": { "finalizers": ["example.com/x"] } }),
        )
        .await;
    let arguments = ["uninstall", "--yes", "--purge"];
    let purge = run.run(&arguments);
    let meanwhile = async {
        let is_terminating =
            |point: &qm_api::ContactPoint| point.metadata.deletion_timestamp.is_some();
        first
            .until("late", "is being deleted", is_terminating)
            .await;
        first.webhook("later", "http://127.0.0.1:1").await;
        let none = json!({ "metadata": { "finalizers": null } });
        first.patch::<qm_api::ContactPoint>("late", none).await;
    };
    let (purge_output, ()) = tokio::join!(purge, meanwhile);
    assert_eq!(purge_output.code, 0, "{purge_output:#?}");
    for kind in controllers::KINDS {
        assert!(
            !crds().await.contains(&kind.crd_name()),
            "{purge_output:#?}"
        );
    }
    assert!(
        run.ends(0, &arguments)
            .await
            .starts_with("There is nothing to delete.")
    );
    until("the apiserver has forgotten them", SOON, async || {
        Ok(scene
            .bed
            .kubectl(&["api-resources", "--categories=quartermaster", "-o", "name"])
            .await
            .is_empty()
            .then_some(()))
    })
    .await
    .unwrap();
}
