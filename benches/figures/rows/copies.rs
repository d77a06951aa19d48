//! `ConfigMapSync`: latency of copies, one source in many namespaces, and many `ConfigMap`s without a sync.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use qm_api::ConfigMapSync;
use serde_json::{Value, json};
use testbed::Options;
use testbed::usage::Memory;
use testbed::wait::until;
use tokio::task::AbortHandle;

use crate::line::{Line, Sample};
use crate::stage::{AT_ONCE, PATIENCE, SETTLE, leading, milliseconds, settings};
use crate::support::{Bed, Operator};

const SYNCS: usize = 100;
const EDITS: usize = 1_000;
/// Edits per second.
const RATE: u32 = 50;
const NAMESPACES: usize = 200;
const CROWD: usize = 10_000;
const CROWD_BYTES: usize = 20_000;
/// Promised limit of each correction, in milliseconds.
const RIGHT: f64 = 1000.0;

/// Time at which the bare watch first saw each value, by namespace and name.
type Seen = HashMap<(String, String, String), Instant>;

/// A control plane, its syncs, and a bare watch of all copies.
pub(super) struct Scene {
    pub bed: Bed,
    seen: Arc<Mutex<Seen>>,
    watch: AbortHandle,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Scene {
    pub async fn set() -> Self {
        let bed = Bed::on_own_plane_with(Options::apiserver_only(), "bench").await;
        let seen = Arc::<Mutex<Seen>>::default();
        let (log, api) = (Arc::clone(&seen), Api::<ConfigMap>::all(bed.client.clone()));
        let watch = tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()));
            while let Some(event) = events.next().await {
                let Ok(Event::Apply(map)) = event else {
                    continue;
                };
                let value = map
                    .data
                    .as_ref()
                    .and_then(|data| data.get("v"))
                    .cloned()
                    .unwrap_or_default();
                let key = (map.namespace().unwrap_or_default(), map.name_any(), value);
                log.lock().unwrap().entry(key).or_insert_with(Instant::now);
            }
        });
        Self {
            bed,
            seen,
            watch: watch.abort_handle(),
        }
    }

    async fn operator(&self, program: PathBuf) -> Result<Operator> {
        leading(&self.bed, settings(program)).await
    }

    fn maps(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.bed.client.clone(), namespace)
    }

    pub async fn namespace(&self, name: &str, labels: Value) -> Result<()> {
        let namespace: Namespace =
            serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } }))?;
        Api::all(self.bed.client.clone())
            .create(&PostParams::default(), &namespace)
            .await?;
        Ok(())
    }

    pub async fn source(&self, name: &str, value: &str) -> Result<()> {
        let map: ConfigMap = serde_json::from_value(
            json!({ "metadata": { "name": name }, "data": { "v": value } }),
        )?;
        self.maps(&self.bed.namespace)
            .create(&PostParams::default(), &map)
            .await?;
        Ok(())
    }

    /// Sets a value. Returns the time of the apiserver's acknowledgement.
    pub async fn edit(&self, namespace: &str, name: &str, value: &str) -> Result<Instant> {
        let patch = Patch::Merge(json!({ "data": { "v": value } }));
        self.maps(namespace)
            .patch(name, &PatchParams::default(), &patch)
            .await?;
        Ok(Instant::now())
    }

    pub async fn sync(&self, name: &str, to: Value) {
        let mut spec = json!({ "sourceNamespace": self.bed.namespace, "configMapName": name });
        spec.as_object_mut()
            .unwrap()
            .extend(to.as_object().unwrap().clone());
        self.bed
            .create::<ConfigMapSync>(name, json!({ "spec": spec }))
            .await;
    }

    /// Waits for a value. Returns the time at which the bare watch first saw the value.
    pub async fn arrival(&self, namespace: &str, name: &str, value: &str) -> Result<Instant> {
        let key = (namespace.to_owned(), name.to_owned(), value.to_owned());
        until(format!("{key:?}"), PATIENCE, async || {
            Ok(self.seen.lock().unwrap().get(&key).copied())
        })
        .await
    }

    /// Creates sources, each copied to namespace `far`.
    pub async fn syncs(&self, count: usize) -> Result<Vec<String>> {
        self.namespace("far", json!({})).await?;
        let names: Vec<_> = (0..count).map(|number| format!("s{number}")).collect();
        let make = |name: &String| {
            let name = name.clone();
            async move {
                self.source(&name, "first").await?;
                self.sync(&name, json!({ "destinationNamespace": "far" }))
                    .await;
                anyhow::Ok(())
            }
        };
        stream::iter(&names)
            .map(make)
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<_>>()
            .await?;
        Ok(names)
    }

    /// Edits the sources in turn. Returns the milliseconds until the copy matches, and until a bare watch shows the
    /// source.
    pub async fn edited(
        self: &Arc<Self>,
        names: &[String],
        count: usize,
    ) -> Result<(Sample, Sample)> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
        let mut edits = Vec::new();
        for (number, name) in names.iter().cycle().take(count).enumerate() {
            ticks.tick().await;
            let (scene, name, value) = (Arc::clone(self), name.clone(), format!("e{number}"));
            edits.push(tokio::spawn(async move {
                let at = scene.edit(&scene.bed.namespace, &name, &value).await?;
                anyhow::Ok((name, value, at))
            }));
        }
        let (mut matched, mut floor) = (Sample::default(), Sample::default());
        for edit in edits {
            let (name, value, at) = edit.await??;
            matched = matched.and(
                [milliseconds(at, self.arrival("far", &name, &value).await?)]
                    .into_iter()
                    .collect(),
            );
            let source = self.arrival(&self.bed.namespace, &name, &value).await?;
            floor = floor.and([milliseconds(at, source)].into_iter().collect());
        }
        Ok((matched, floor))
    }
}

/// Measures from the acknowledgement of an edit of one of 100 sources until a bare watch sees the copy match. The floor
/// is the watch event of the source. Then measures copies that are edited and deleted, and one source in 200
/// namespaces.
pub async fn copies(program: PathBuf) -> Result<Vec<Line>> {
    let scene = Arc::new(Scene::set().await);
    let _operator = scene.operator(program).await?;
    let names = scene.syncs(SYNCS).await?;
    for name in &names {
        scene.arrival("far", name, "first").await?;
    }
    let (matched, floor) = scene.edited(&names, EDITS).await?;
    let (mut edited, mut deleted) = (Sample::default(), Sample::default());
    let maps = scene.maps("far");
    for (number, name) in names.iter().take(20).enumerate() {
        let is = maps.get(name).await?.data.unwrap_or_default()["v"].clone();
        for delete in [false, true] {
            let key = ("far".to_owned(), name.clone(), is.clone());
            scene.seen.lock().unwrap().remove(&key);
            let at = if delete {
                maps.delete(name, &DeleteParams::default()).await?;
                Instant::now()
            } else {
                scene.edit("far", name, &format!("wrong{number}")).await?
            };
            let took = [milliseconds(at, scene.arrival("far", name, &is).await?)]
                .into_iter()
                .collect();
            if delete {
                deleted = deleted.and(took);
            } else {
                edited = edited.and(took);
            }
        }
    }
    let most = |what: &str, sample: &Sample| {
        let note = format!("the longest of 20; p50 {:.1} ms", sample.p50());
        Line::new(what, sample.max(), "ms").below(RIGHT).note(note)
    };
    let mut lines = vec![
        Line::new(
            "source edited -> copy matches, p50, 100 syncs",
            matched.p50(),
            "ms",
        )
        .below(50.0)
        .floor(floor.p50()),
        Line::new(
            "source edited -> copy matches, p99, 100 syncs",
            matched.p99(),
            "ms",
        )
        .below(250.0)
        .floor(floor.p99()),
        most("copy edited -> matches again", &edited),
        most("copy deleted -> recreated", &deleted),
    ];
    lines.extend(many(&scene).await?);
    Ok(lines)
}

/// Measures one source in 200 namespaces: from the creation and from the edit of the source to the last copy. The floor
/// is a bare program that replaces all copies.
async fn many(scene: &Scene) -> Result<Vec<Line>> {
    let spaces: Vec<_> = (0..NAMESPACES).map(|number| format!("n{number}")).collect();
    let open = |name: &String| {
        let name = name.clone();
        async move { scene.namespace(&name, json!({ "many": "x" })).await }
    };
    stream::iter(&spaces)
        .map(open)
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<_>>()
        .await?;
    scene
        .sync(
            "many",
            json!({ "destinationNamespaceSelector": { "matchLabels": { "many": "x" } } }),
        )
        .await;
    let last = async |value: &str, began: Instant| {
        let mut last = began;
        for space in &spaces {
            last = last.max(scene.arrival(space, "many", value).await?);
        }
        anyhow::Ok((last - began).as_secs_f64())
    };
    scene.source("many", "1").await?;
    let made = last("1", Instant::now()).await?;
    let at = scene.edit(&scene.bed.namespace, "many", "2").await?;
    let edited = last("2", at).await?;
    let began = Instant::now();
    let replace = |space: &String| {
        let maps = scene.maps(space);
        async move {
            let mut map = maps.get("many").await?;
            map.data = Some(BTreeMap::from([("v".to_owned(), "floor".to_owned())]));
            maps.replace("many", &PostParams::default(), &map).await
        }
    };
    stream::iter(&spaces)
        .map(replace)
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<_>>()
        .await?;
    let floor = began.elapsed().as_secs_f64();
    Ok(vec![
        Line::new("source made -> 200 copies", made, "s").below(2.0),
        Line::new("source edited -> 200 copies match", edited, "s")
            .below(2.0)
            .floor(floor),
    ])
}

/// Measures memory with 100 syncs among 10,000 `ConfigMap`s of 20 kB, half of which contain their content twice, as
/// `kubectl apply` leaves them.
pub async fn crowd(program: PathBuf) -> Result<Vec<Line>> {
    let scene = Scene::set().await;
    scene.namespace("crowd", json!({})).await?;
    let content = "x".repeat(CROWD_BYTES);
    let maps = scene.maps("crowd");
    let make = |number: usize| {
        let mut map =
            json!({ "metadata": { "name": format!("m{number}") }, "data": { "content": content } });
        if number.is_multiple_of(2) {
            map["metadata"]["annotations"] =
                json!({ "kubectl.kubernetes.io/last-applied-configuration": map.to_string() });
        }
        let maps = maps.clone();
        async move {
            anyhow::Ok(
                maps.create(&PostParams::default(), &serde_json::from_value(map)?)
                    .await?,
            )
        }
    };
    stream::iter(0..CROWD)
        .map(make)
        .buffer_unordered(AT_ONCE)
        .try_for_each(async |_| Ok(()))
        .await?;
    let names = scene.syncs(SYNCS).await?;
    let mut operator = scene.operator(program).await?;
    for name in &names {
        scene.arrival("far", name, "first").await?;
    }
    for name in &names {
        scene.edit(&scene.bed.namespace, name, "second").await?;
    }
    for name in &names {
        scene.arrival("far", name, "second").await?;
    }
    tokio::time::sleep(SETTLE).await;
    let memory = Memory::of(operator.child().id())?;
    Ok(vec![
        Line::new(
            "RssAnon, 100 syncs among 10,000 ConfigMaps",
            memory.anonymous,
            "MiB",
        )
        .below(24.0),
        Line::new(
            "VmRSS, 100 syncs among 10,000 ConfigMaps",
            memory.resident,
            "MiB",
        )
        .below(40.0),
    ])
}
