//! `AppService` and `MyApp`: a burst compared with a bare program that makes the same writes, a single object, memory
//! after many objects, and 500 of each kind at rest.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use quartermaster::kinds;
use serde_json::{Value, json};
use testbed::Options;
use testbed::receiver::Receiver;
use testbed::usage::{Memory, cpu_seconds};
use testbed::wait::until;
use tokio::task::AbortHandle;

use crate::line::{Line, Sample};
use crate::stage::{AT_ONCE, PATIENCE, SETTLE, delivered, leading, milliseconds, settings};
use crate::support::{ACCOUNT, Bed, Operator, SYSTEM};

const BURST: usize = 500;
const ROUNDS: usize = 3;
const ALONE: usize = 40;
const MANY: usize = 2_000;
const EACH: usize = 500;

/// A kind with children, and the children that a bare program would create.
struct Made {
    controller: &'static str,
    spec: fn(&str) -> Value,
    /// Resource, name and content of each child.
    children: fn(&str) -> Vec<(ApiResource, String, Value)>,
    status: fn(&str) -> Value,
}

const APPS: Made = Made {
    controller: "appservice",
    spec: |_| json!({ "size": 1, "image": "nginx:1.29", "serviceType": "ClusterIP", "ports": [{ "port": 80, "targetPort": 80 }] }),
    children: |name| {
        let labels = json!({ "app": name });
        let container = json!({ "name": name, "image": "nginx:1.29", "imagePullPolicy": "IfNotPresent", "ports": [{ "containerPort": 80 }] });
        let template =
            json!({ "metadata": { "labels": labels }, "spec": { "containers": [container] } });
        let deployment = json!({ "spec": { "replicas": 1, "selector": { "matchLabels": labels }, "template": template } });
        let service = json!({ "spec": { "type": "ClusterIP", "selector": labels, "ports": [{ "port": 80, "targetPort": 80 }] } });
        vec![
            (
                resource("apps/v1", "Deployment"),
                name.to_owned(),
                deployment,
            ),
            (resource("v1", "Service"), name.to_owned(), service),
        ]
    },
    status: |_| json!({ "observedGeneration": 1, "conditions": [condition()] }),
};

const PODS: Made = Made {
    controller: "myapp",
    spec: |name| json!({ "image": "nginx:1.29", "banner": name }),
    children: |name| {
        let env = json!([{ "name": "BANNER", "value": name }]);
        let container = json!({ "name": name, "image": "nginx:1.29", "env": env, "command": ["/bin/sh", "-c"], "args": ["sleep infinity"] });
        let pod = json!({ "metadata": { "labels": { "app": name } }, "spec": { "containers": [container] } });
        vec![(resource("v1", "Pod"), format!("{name}-pod"), pod)]
    },
    status: |name| json!({ "podName": format!("{name}-pod"), "phase": "Pending", "ready": false, "observedGeneration": 1, "conditions": [condition()] }),
};

fn condition() -> Value {
    json!({ "type": "Ready", "status": "False", "reason": "Pending", "message": "made by the floor", "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

fn resource(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let plural = format!("{}s", kind.to_lowercase());
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: api_version.into(),
        kind: kind.into(),
        plural,
    }
}

fn operator_kind(controller: &str) -> ApiResource {
    kinds::KINDS
        .iter()
        .find(|kind| kind.controller == controller)
        .unwrap()
        .resource()
}

/// A separate control plane, and the children that a bare watch has seen.
struct Scene {
    bed: Bed,
    seen: Arc<Mutex<HashSet<(String, String)>>>,
    last: Arc<Mutex<Instant>>,
    watches: Vec<AbortHandle>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.watches.iter().for_each(AbortHandle::abort);
    }
}

impl Scene {
    async fn set(made: &[&Made]) -> Result<Self> {
        let bed = Bed::own_with(Options::apiserver_only(), "bench").await;
        // The controller-manager, which does not run, would create this ServiceAccount: Pods are rejected without it.
        bed.kubectl(&["create", "serviceaccount", "default"]).await;
        let (seen, last) = (
            Arc::<Mutex<HashSet<_>>>::default(),
            Arc::new(Mutex::new(Instant::now())),
        );
        let kinds = made
            .iter()
            .flat_map(|made| (made.children)("x"))
            .map(|(resource, ..)| resource);
        let watches = kinds.map(|resource| {
            let api: Api<DynamicObject> =
                Api::namespaced_with(bed.client.clone(), &bed.namespace, &resource);
            let (seen, last) = (Arc::clone(&seen), Arc::clone(&last));
            let watch = async move {
                let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()));
                while let Some(event) = events.next().await {
                    let Ok(Event::Apply(object) | Event::InitApply(object)) = event else {
                        continue;
                    };
                    if seen
                        .lock()
                        .unwrap()
                        .insert((resource.plural.clone(), object.name_any()))
                    {
                        *last.lock().unwrap() = Instant::now();
                    }
                }
            };
            tokio::spawn(watch).abort_handle()
        });
        let watches = watches.collect();
        Ok(Self {
            bed,
            seen,
            last,
            watches,
        })
    }

    async fn operator(&self, program: PathBuf) -> Result<Operator> {
        leading(&self.bed, settings(program)).await
    }

    fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.bed.client.clone(), &self.bed.namespace, resource)
    }

    async fn create(
        &self,
        resource: &ApiResource,
        name: &str,
        content: Value,
    ) -> Result<DynamicObject> {
        let mut object = DynamicObject::new(name, resource);
        object.metadata.labels = serde_json::from_value(content["metadata"]["labels"].clone())?;
        object.data = content;
        object
            .data
            .as_object_mut()
            .context("an object")?
            .remove("metadata");
        Ok(self
            .api(resource)
            .create(&PostParams::default(), &object)
            .await?)
    }

    /// Creates one object of the kind.
    async fn make(&self, made: &Made, name: &str) -> Result<DynamicObject> {
        self.create(
            &operator_kind(made.controller),
            name,
            json!({ "spec": (made.spec)(name) }),
        )
        .await
    }

    /// Creates several objects of the kind, `AT_ONCE` at a time.
    async fn make_all(&self, made: &Made, names: &[String]) -> Result<()> {
        stream::iter(names)
            .map(|name| self.make(made, name))
            .buffer_unordered(AT_ONCE)
            .try_for_each(async |_| Ok(()))
            .await
    }

    /// Waits until the bare watch has seen `count` children. Returns the time of the last one.
    async fn children(&self, count: usize) -> Result<Instant> {
        until(format!("{count} children"), PATIENCE, async || {
            let seen = self.seen.lock().unwrap().len();
            ensure!(seen >= count, "{seen} are there");
            Ok(Some(*self.last.lock().unwrap()))
        })
        .await
    }

    /// Creates the children of one object, as the bare program does.
    async fn bare(&self, made: &Made, name: &str) -> Result<()> {
        self.make(made, name).await?;
        for (resource, name, content) in (made.children)(name) {
            self.create(&resource, &name, content).await?;
        }
        let patch = json!({ "status": (made.status)(name) });
        self.api(&operator_kind(made.controller))
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("app-{number}")).collect()
}

/// Returns objects per second.
fn rate(count: usize, took: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / took.as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures 500 `AppService`s and 500 `MyApp`s at once, each side on a separate control plane, in turn.
pub async fn burst(program: PathBuf) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (made, what) in [
        (&APPS, "500 AppServices at once"),
        (&PODS, "500 MyApps at once"),
    ] {
        let each = (made.children)("x").len();
        let (mut rates, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let scene = Scene::set(&[made]).await?;
            let _operator = scene.operator(program.clone()).await?;
            let began = Instant::now();
            scene.make_all(made, &names(BURST)).await?;
            rates.push(rate(BURST, scene.children(BURST * each).await? - began));
            drop(scene);

            let scene = Scene::set(&[made]).await?;
            let names = names(BURST);
            let began = Instant::now();
            let work = stream::iter(&names)
                .map(|name| scene.bare(made, name))
                .buffer_unordered(AT_ONCE);
            work.try_for_each(async |()| Ok(())).await?;
            bare.push(rate(BURST, scene.children(BURST * each).await? - began));
        }
        let note = format!("{rates:.0?}/s beside {bare:.0?}/s of a bare program");
        let (rates, bare) = (median(rates), median(bare));
        lines.push(
            Line::new(what, rates / bare * 100.0, "% of a bare program")
                .at_least(70.0)
                .note(note),
        );
    }
    Ok(lines)
}

/// Measures one `AppService` at a time, from its acknowledgement to both children; then memory after 2,000.
pub async fn alone(program: PathBuf) -> Result<Vec<Line>> {
    let scene = Scene::set(&[&APPS]).await?;
    let mut operator = scene.operator(program).await?;
    let mut sample = Sample::default();
    for number in 0..ALONE {
        scene.make(&APPS, &format!("alone-{number}")).await?;
        let at = Instant::now();
        let last = scene.children((number + 1) * 2).await?;
        sample = sample.and([milliseconds(at, last.max(at))].into_iter().collect());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    scene.make_all(&APPS, &names(MANY)).await?;
    scene.children((MANY + ALONE) * 2).await?;
    tokio::time::sleep(SETTLE).await;
    let memory = Memory::of(operator.child().id())?;
    Ok(vec![
        Line::new("one AppService -> both children, p50", sample.p50(), "ms").below(15.0),
        Line::new("RssAnon after 2,000 AppServices", memory.anonymous, "MiB").below(20.0),
        Line::new("VmRSS after 2,000 AppServices", memory.resident, "MiB").below(34.0),
    ])
}

/// Measures 500 of each kind, all of them ready, over a minute without changes.
pub async fn still(program: PathBuf) -> Result<Vec<Line>> {
    const WINDOW: Duration = Duration::from_mins(1);
    let scene = Scene::set(&[&APPS, &PODS]).await?;
    let mut operator = scene.operator(program).await?;
    let names = names(EACH);
    scene.make_all(&APPS, &names).await?;
    let pods: Vec<_> = names.iter().map(|name| format!("pod-{name}")).collect();
    scene.make_all(&PODS, &pods).await?;
    scene.children(EACH * 3).await?;
    let receiver = Receiver::start()?;
    let (scene_ref, hook) = (&scene, &receiver.url());
    stream::iter(&names)
        .map(|name| async move {
            let scene = scene_ref;
            scene.create(&resource("v1", "ConfigMap"), name, json!({ "data": { "v": name } })).await?;
            let here = &scene.bed.namespace;
            let spec = json!({ "sourceNamespace": here, "configMapName": name, "destinationNamespace": here, "destinationName": format!("copy-{name}") });
            scene.create(&operator_kind("configmapsync"), name, json!({ "spec": spec })).await?;
            scene.bed.webhook(name, hook).await;
            scene.bed.track(name, "Deployment", name, "replicas", name).await;
            // The controller-manager and a kubelet, which do not run, would write these statuses.
            let well = json!({ "status": { "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
                "availableReplicas": 1, "conditions": [{ "type": "Available", "status": "True" }] } });
            scene.api(&resource("apps/v1", "Deployment")).patch_status(name, &PatchParams::default(), &Patch::Merge(&well)).await?;
            let runs = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
            let pod = format!("pod-{name}-pod");
            scene.api(&resource("v1", "Pod")).patch_status(&pod, &PatchParams::default(), &Patch::Merge(&runs)).await?;
            anyhow::Ok(())
        })
        .buffer_unordered(AT_ONCE)
        .try_for_each(async |()| Ok(()))
        .await?;
    delivered(&scene.bed, EACH).await?;
    for kind in [
        operator_kind("appservice"),
        operator_kind("myapp"),
        operator_kind("configmapsync"),
    ] {
        until(
            format!("every {} is well", kind.kind),
            PATIENCE,
            async || {
                tokio::time::sleep(Duration::from_millis(500)).await;
                let all = scene
                    .api(&kind)
                    .list(&kube::api::ListParams::default())
                    .await?
                    .items;
                let well = |object: &&DynamicObject| {
                    object.data["status"]["conditions"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .any(|condition| {
                            condition["type"] == "Ready" && condition["status"] == "True"
                        })
                };
                let count = all.iter().filter(well).count();
                ensure!(count == EACH, "{count} are");
                Ok(Some(()))
            },
        )
        .await?;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let process = operator.child().id();
    let (since, before, began) = (
        scene.bed.plane.audit().mark().await?,
        cpu_seconds(process)?,
        Instant::now(),
    );
    tokio::time::sleep(WINDOW).await;
    let share = (cpu_seconds(process)? - before) / began.elapsed().as_secs_f64() * 100.0;
    let user = format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}");
    let requests = scene.bed.plane.audit().requests(since).await?;
    let writes = requests
        .iter()
        .filter(|request| request.subject.user == user && request.subject.is_write());
    let others = writes
        .filter(|request| request.subject.resource != "leases")
        .count();
    Ok(vec![
        Line::new("CPU at rest, 500 of each kind", share, "% of a core").below(0.5),
        Line::new(
            "writes at rest but the lease's, 500 of each kind, in 60 s",
            f64::from(u32::try_from(others)?),
            "",
        )
        .at_most(0.0),
    ])
}
