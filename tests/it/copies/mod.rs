//! `ConfigMapSync`: content of copies, corrections of drift, and objects that the operator does not touch.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use qm_api::ConfigMapSync;
use serde_json::{Value, json};
use testbed::control_plane::audit::Subject;
use testbed::wait::until;

use crate::support::{ACCOUNT, Bed, Operator, SOON, SYSTEM, Settings};

mod content;
mod crowd;
mod kills;
mod namespaces;
mod owners;
mod rejected;
mod stale;

/// Label of a copy: UID of its sync.
const OWNER_LABEL: &str = "quartermaster.dev/owner-uid";

/// The namespaces of a test: that of the syncs and of the source, and others.
pub struct Shop {
    pub bed: Bed,
}

impl Shop {
    /// Creates the namespace on the control plane that tests share.
    pub async fn shared(name: &str) -> Self {
        Self {
            bed: Bed::shared(name).await,
        }
    }

    /// Creates the namespace on the control plane without controllers that tests share.
    pub async fn without_controllers(name: &str) -> Self {
        Self {
            bed: Bed::without_controllers(name).await,
        }
    }

    /// Returns the name of another namespace of this test.
    pub fn other_namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.bed.namespace)
    }

    /// Creates another namespace.
    pub async fn open(&self, name: &str, labels: Value) -> String {
        let name = self.other_namespace(name);
        let object = json!({ "metadata": { "name": name, "labels": labels } });
        let object: Namespace = serde_json::from_value(object).unwrap();
        Api::all(self.bed.client.clone())
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        name
    }

    /// Starts an operator for the test's own namespace and these others.
    pub async fn operator(&self, others: &[&str]) -> Operator {
        Operator::start(&self.bed, self.serving(others)).await
    }

    /// Returns settings for the test's own namespace and these others.
    pub fn serving(&self, others: &[&str]) -> Settings {
        others.iter().fold(Settings::default(), |settings, name| {
            settings.flag(&format!(
                "--watch-namespace={},{}",
                self.bed.namespace,
                self.other_namespace(name)
            ))
        })
    }

    /// Returns the `ConfigMap`s of a namespace.
    pub fn maps(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.bed.client.clone(), namespace)
    }

    /// Creates a `ConfigMap`; `rest` is all but its name.
    pub async fn map(&self, namespace: &str, name: &str, mut rest: Value) -> ConfigMap {
        rest["metadata"]["name"] = name.into();
        self.maps(namespace)
            .create(
                &PostParams::default(),
                &serde_json::from_value(rest).unwrap(),
            )
            .await
            .unwrap()
    }

    /// Merges a patch into a `ConfigMap`.
    pub async fn edit(&self, namespace: &str, name: &str, patch: Value) -> ConfigMap {
        self.maps(namespace)
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap()
    }

    /// Deletes a `ConfigMap`.
    pub async fn drop(&self, namespace: &str, name: &str) {
        self.maps(namespace)
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Creates a sync of `settings` from the test's own namespace.
    pub async fn sync(&self, name: &str, mut spec: Value) -> ConfigMapSync {
        for (field, value) in [
            ("sourceNamespace", &*self.bed.namespace),
            ("configMapName", "settings"),
        ] {
            if spec[field].is_null() {
                spec[field] = value.into();
            }
        }
        self.bed.create(name, json!({ "spec": spec })).await
    }

    /// Waits until a `ConfigMap` satisfies `look`.
    pub async fn until(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        look: impl Fn(&ConfigMap) -> bool,
    ) -> ConfigMap {
        let maps = self.maps(namespace);
        let found = until(format!("{namespace}/{name} {what}"), SOON, async || {
            Ok(maps.get_opt(name).await?.filter(|map| look(map)))
        });
        found.await.unwrap()
    }

    /// Waits until a copy has exactly this data.
    pub async fn copied(&self, namespace: &str, name: &str, data: Value) -> ConfigMap {
        let what = format!("has {:.1000}", data.to_string());
        let wanted = serde_json::from_value(data).unwrap();
        self.until(namespace, name, &what, |map| {
            map.data.clone().unwrap_or_default() == wanted
        })
        .await
    }

    /// Waits until the `ConfigMap` does not exist.
    pub async fn is_deleted(&self, namespace: &str, name: &str) {
        let maps = self.maps(namespace);
        until(format!("{namespace}/{name} is deleted"), SOON, async || {
            let there = maps.get_opt(name).await?;
            Ok(there
                .is_none_or(|map| map.metadata.deletion_timestamp.is_some())
                .then_some(()))
        })
        .await
        .unwrap();
    }

    /// Waits until a Terminating sync is deleted.
    pub async fn ended(&self, sync: &str) {
        let syncs = self.bed.api::<ConfigMapSync>();
        until(format!("{sync} is deleted"), SOON, async || {
            Ok(syncs.get_opt(sync).await?.is_none().then_some(()))
        })
        .await
        .unwrap();
    }

    /// Waits until the condition of a sync has this reason; returns its message.
    pub async fn reads(&self, sync: &str, reason: &str) -> String {
        let ready = |sync: &ConfigMapSync| {
            let status = sync.status.as_ref()?;
            let fits = status.observed_generation == sync.metadata.generation;
            status
                .conditions
                .first()
                .filter(|condition| fits && condition.reason == reason)
                .cloned()
        };
        let found = self
            .bed
            .until(sync, reason, |sync: &ConfigMapSync| ready(sync).is_some())
            .await;
        ready(&found).unwrap().message
    }
}

/// Returns the resourceVersion, which changes with every write.
pub fn version(object: &impl ResourceExt) -> String {
    object.resource_version().unwrap()
}

impl Shop {
    /// Asserts that reconciles of a sync write nothing. A pending status may conflict with the request for a reconcile,
    /// and so be written late, but not each time. Nothing else may be written at all.
    pub async fn assert_at_rest(&self, sync: &str) {
        for _ in 0..3 {
            let writes = self.writes_of_reconciles(sync).await;
            if writes.is_empty() {
                return;
            }
            let is_status = |it: &Subject| it.resource == "configmapsyncs/status";
            assert!(writes.iter().all(is_status), "{writes:?}");
        }
        panic!("reconciles write the status of {sync} each time");
    }

    /// Triggers reconciles of a sync, and returns their writes. Reconciles of one object run one after the other: when
    /// the second reads the source, the first has made all of its writes.
    async fn writes_of_reconciles(&self, sync: &str) -> Vec<Subject> {
        // A pending status write would come after the first reconcile, once the annotation no longer precedes it.
        let says = |sync: &ConfigMapSync| {
            sync.status
                .as_ref()
                .is_some_and(|status| status.observed_generation == sync.metadata.generation)
        };
        self.bed
            .until(sync, "has a status of its generation", says)
            .await;
        let audit = self.bed.plane.audit();
        let mut mark = audit.mark().await.unwrap();
        let operator_user = format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}");
        for number in 0..3 {
            let before = audit.mark().await.unwrap();
            // By the end of the first reconcile, the previous ones have written their results.
            if number == 1 {
                mark = before;
            }
            let at = uuid::Uuid::new_v4().to_string();
            let patch =
                json!({ "metadata": { "annotations": { "quartermaster.dev/requested-at": at } } });
            let annotated: ConfigMapSync = self.bed.patch(sync, patch).await;
            let (namespace, name) = (
                &annotated.spec.source_namespace,
                &annotated.spec.config_map_name,
            );
            until(format!("a reconcile of {sync}"), SOON, async || {
                let requests = audit.requests(before).await?;
                let looked = requests.iter().map(|request| &request.subject).any(|it| {
                    it.user == operator_user
                        && it.verb == "get"
                        && it.namespace == *namespace
                        && it.name == *name
                });
                Ok(looked.then_some(()))
            })
            .await
            .unwrap();
        }
        let requests = audit.requests(mark).await.unwrap();
        requests
            .into_iter()
            .map(|request| request.subject)
            .filter(|it| {
                it.user == operator_user
                    && it.is_write()
                    && it.namespace.starts_with(&self.bed.namespace)
            })
            // Events are written outside the reconciles, so an Event of an earlier reconcile may come late, as may the
            // status of another sync.
            .filter(|it| {
                it.resource != "events"
                    && (it.resource != "configmapsyncs/status" || it.name == sync)
            })
            .collect()
    }
}
