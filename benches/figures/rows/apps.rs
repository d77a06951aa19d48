//! `AppService` and `MyApp`: a burst compared with a plain controller that creates the same children and writes no
//! status, a single object, memory after many objects, and 500 of each kind at rest.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::Kubeconfig;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use quartermaster::controllers;
use serde_json::{Value, json};
use testbed::Options;
use testbed::control_plane::kubeconfig::client;
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

/// A kind with children, and the children that a plain controller would create.
pub(super) struct Made {
    controller: &'static str,
    spec: fn(&str) -> Value,
    /// Resource, name and content of each child.
    children: fn(&str) -> Vec<(ApiResource, String, Value)>,
}

pub(super) const APPS: Made = Made {
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
};

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
    controllers::KINDS
        .iter()
        .find(|kind| kind.controller == controller)
        .unwrap()
        .resource()
}

/// Objects that a bare watch has seen, and when it saw the last of them for the first time.
struct Seen(Mutex<(HashSet<(String, String)>, Instant)>);

impl Seen {
    fn nothing() -> Arc<Self> {
        Arc::new(Self(Mutex::new((HashSet::new(), Instant::now()))))
    }

    /// Waits until `count` objects have been seen. Returns when the last one was.
    async fn all(&self, what: &str, count: usize) -> Result<Instant> {
        until(format!("{count} {what}"), PATIENCE, async || {
            let seen = self.0.lock().unwrap();
            ensure!(seen.0.len() >= count, "{} are there", seen.0.len());
            Ok(Some(seen.1))
        })
        .await
    }
}

/// A separate control plane, and what bare watches have seen of the children and of the statuses.
pub(super) struct Scene {
    pub bed: Bed,
    children: Arc<Seen>,
    statuses: Arc<Seen>,
    watches: Vec<AbortHandle>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.watches.iter().for_each(AbortHandle::abort);
    }
}

impl Scene {
    pub async fn set(made: &[&Made]) -> Result<Self> {
        let bed = Bed::on_own_plane_with(Options::apiserver_only(), "bench").await;
        // The controller-manager, which does not run, would create this ServiceAccount: Pods are rejected without it.
        bed.kubectl(&["create", "serviceaccount", "default"]).await;
        let mut scene = Self {
            bed,
            children: Seen::nothing(),
            statuses: Seen::nothing(),
            watches: Vec::new(),
        };
        for (resource, ..) in made.iter().flat_map(|made| (made.children)("x")) {
            let children = Arc::clone(&scene.children);
            scene.watch(resource, children, |_| true);
        }
        Ok(scene)
    }

    /// Watches a resource, and adds the objects that match to `seen`.
    fn watch(
        &mut self,
        resource: ApiResource,
        seen: Arc<Seen>,
        matches: fn(&DynamicObject) -> bool,
    ) {
        let api = self.api(&resource);
        let watch = async move {
            let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()));
            while let Some(event) = events.next().await {
                let Ok(Event::Apply(object) | Event::InitApply(object)) = event else {
                    continue;
                };
                let name = (resource.plural.clone(), object.name_any());
                let mut seen = seen.0.lock().unwrap();
                if matches(&object) && seen.0.insert(name) {
                    seen.1 = Instant::now();
                }
            }
        };
        self.watches.push(tokio::spawn(watch).abort_handle());
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
        self.create_as(&self.bed.client, resource, name, content)
            .await
    }

    async fn create_as(
        &self,
        client: &Client,
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
        let api = Api::namespaced_with(client.clone(), &self.bed.namespace, resource);
        Ok(api.create(&PostParams::default(), &object).await?)
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
    pub async fn make_all(&self, made: &Made, names: &[String]) -> Result<()> {
        stream::iter(names)
            .map(|name| self.make(made, name))
            .buffer_unordered(AT_ONCE)
            .try_for_each(async |_| Ok(()))
            .await
    }

    /// Creates `AppService`s one after the other, beside the `children` of others. Returns the milliseconds from the
    /// acknowledgement of each until both children exist.
    pub async fn alone(&self, children: usize) -> Result<Sample> {
        let make = async |number| {
            self.make(&APPS, &format!("alone-{number}")).await?;
            Ok(Instant::now())
        };
        self.one_by_one(children, make).await
    }

    /// Creates the children of `AppService`s without the operator, both at once. Returns the milliseconds from the first
    /// request of each until both children exist.
    pub async fn alone_without_operator(&self, children: usize) -> Result<Sample> {
        let make = async |number| {
            let at = Instant::now();
            let children = (APPS.children)(&format!("plain-{number}"));
            let children = children
                .iter()
                .map(|(resource, name, content)| self.create(resource, name, content.clone()));
            try_join_all(children).await?;
            Ok(at)
        };
        self.one_by_one(children, make).await
    }

    /// Runs `make`, which returns an instant, again and again. Returns the milliseconds from each instant until two
    /// further children exist.
    async fn one_by_one(
        &self,
        children: usize,
        make: impl AsyncFn(usize) -> Result<Instant>,
    ) -> Result<Sample> {
        let mut sample = Sample::default();
        for number in 0..ALONE {
            let at = make(number).await?;
            let last = self.children.all("children", children + (number + 1) * 2);
            let last = last.await?;
            sample = sample.and([milliseconds(at, last.max(at))].into_iter().collect());
            // The next app must not meet the work of this one.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(sample)
    }

    /// Waits until this many children exist.
    pub async fn has_children(&self, count: usize) -> Result<()> {
        self.children.all("children", count).await?;
        Ok(())
    }

    /// Lists the objects of the kind; returns the events that follow.
    async fn events(&self, made: &Made) -> impl Stream<Item = DynamicObject> + use<> {
        let api = self.api(&operator_kind(made.controller));
        let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
        while !matches!(events.next().await, Some(Ok(Event::InitDone))) {}
        events.filter_map(async |event| match event {
            Ok(Event::Apply(object)) => Some(object),
            _ => None,
        })
    }

    /// Returns the client of a plain controller: a `ServiceAccount`'s, because the apiserver authorizes an administrator
    /// without RBAC.
    async fn plain_client(&self) -> Result<Client> {
        let namespace = &self.bed.namespace;
        let account = format!("--serviceaccount={namespace}:default");
        let role = "--clusterrole=cluster-admin";
        self.bed
            .kubectl(&["create", "clusterrolebinding", "plain", role, &account])
            .await;
        let plane = &self.bed.plane;
        let file = plane
            .kubeconfig_for_service_account(namespace, "default")
            .await?;
        client(&Kubeconfig::read_from(file)?).await
    }

    /// Creates the children of each object as a plain controller does: `AT_ONCE` objects at a time, a child after the
    /// other.
    async fn plain(&self, client: &Client, made: &Made, events: impl Stream<Item = DynamicObject>) {
        events
            .for_each_concurrent(AT_ONCE, async |object| {
                for (resource, name, content) in (made.children)(&object.name_any()) {
                    self.create_as(client, &resource, &name, content)
                        .await
                        .unwrap();
                }
            })
            .await;
    }
}

pub(super) fn names(count: usize) -> Vec<String> {
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

/// Measures 500 `AppService`s and 500 `MyApp`s at once, each side on a separate control plane, in turn; and the time
/// from the last child to the last status.
pub async fn burst(program: PathBuf) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (made, kind) in [(&APPS, "AppServices"), (&PODS, "MyApps")] {
        let count = BURST * (made.children)("x").len();
        let (mut rates, mut plain) = (Vec::new(), Vec::new());
        let (mut delays, mut busy) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut scene = Scene::set(&[made]).await?;
            let statuses = Arc::clone(&scene.statuses);
            // The CRD's default is -1.
            let has_status = |object: &DynamicObject| {
                object.data["status"]["observedGeneration"].as_i64() == object.metadata.generation
            };
            scene.watch(operator_kind(made.controller), statuses, has_status);
            let mut operator = scene.operator(program.clone()).await?;
            let process = operator.child().id();
            let idle = cpu_seconds(process)?;
            let began = Instant::now();
            scene.make_all(made, &names(BURST)).await?;
            let last_child = scene.children.all("children", count).await?;
            rates.push(rate(BURST, last_child - began));
            let last_status = scene.statuses.all("statuses", BURST).await?;
            delays.push(milliseconds(last_child, last_status.max(last_child)));
            busy.push(cpu_seconds(process)? - idle);
            drop(operator);
            drop(scene);

            let scene = Scene::set(&[made]).await?;
            let client = scene.plain_client().await?;
            let events = scene.events(made).await;
            let began = Instant::now();
            let load = async {
                scene.make_all(made, &names(BURST)).await?;
                scene.children.all("children", count).await
            };
            let last_child = tokio::select! {
                last_child = load => last_child?,
                () = scene.plain(&client, made, events) => bail!("the watch has ended"),
            };
            plain.push(rate(BURST, last_child - began));
        }
        let note = format!(
            "{rates:.0?}/s beside {plain:.0?}/s of a plain controller without statuses; {busy:.1?} s of the operator's CPU"
        );
        let percent = median(rates) / median(plain) * 100.0;
        lines.push(
            Line::new(
                &format!("500 {kind} at once"),
                percent,
                "% of a plain controller",
            )
            .at_least(100.0)
            .note(note),
        );
        let what = format!("500 {kind} at once: last child -> last status");
        let longest = delays.iter().copied().fold(0.0, f64::max);
        lines.push(Line::new(&what, longest, "ms").below(2000.0));
    }
    Ok(lines)
}

/// Measures one `AppService` at a time, from its acknowledgement to both children; then memory after 2,000.
pub async fn alone(program: PathBuf) -> Result<Vec<Line>> {
    let scene = Scene::set(&[&APPS]).await?;
    let mut operator = scene.operator(program).await?;
    let sample = scene.alone(0).await?;
    scene.make_all(&APPS, &names(MANY)).await?;
    scene.children.all("children", (MANY + ALONE) * 2).await?;
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
    scene.children.all("children", EACH * 3).await?;
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
            format!("every {} is ready", kind.kind),
            PATIENCE,
            async || {
                // A list of all objects is work for the apiserver, so it is not read every time.
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
    // The last statuses wait up to 5 s for their write.
    tokio::time::sleep(SETTLE * 2).await;
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
